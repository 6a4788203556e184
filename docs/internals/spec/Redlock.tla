------------------------------ MODULE Redlock ------------------------------
(* One exclusive lock over several independent servers: an owner that gets it *)
(* on a majority holds it. Servers restart empty, leases vanish, clocks of    *)
(* tokens are forgotten: who may believe to hold it, and in which order are   *)
(* the tokens?                                                                *)
(*                                                                            *)
(* Time goes in ticks, at the same rate for everybody. README.md says what is *)
(* left out, and what each constant and action is in Redis and in redislock.  *)
EXTENDS Naturals, FiniteSets

CONSTANTS
  Server, Owner,
  Lease,           \* how long a grant lasts, in ticks
  Quarantine,      \* redislock.quarantine, in ticks
  Majority,        \* how many servers make one

  Raises,          \* TRUE: an owner that was granted it on a majority raises the token
                   \* there to the highest that it got, and then holds the lock

  (* What an operator and chance may do.                                      *)
  Forgets,         \* TRUE: servers restart without the lock
  ForgetsTokens,   \* TRUE: and without their clock of tokens
  EndsEarly,       \* TRUE: a hold may vanish at any moment: DEL, FLUSHALL, an eviction,
                   \* a lease that ran on a clock that was set

  (* Where tokens come from.                                                  *)
  Recovery,        \* what a server does that forgot its clock of tokens:
                   \* "nothing": it begins at 0.
                   \* "at once": it starts with the highest token of the others.
                   \* "late": it asks the others when its quarantine is over, and
                   \*    grants nothing before.
  WallClock,       \* TRUE: tokens follow the servers' wall clocks (what redislock does).
                   \* FALSE: each server counts by one
  Ahead,           \* with a wall clock: how far a token may be ahead of the slowest one,
                   \* in ticks: what the clocks differ by, and the lead that tokens have got
  TokenMax,        \* without: the last number, which keeps the number of states finite

  (* What is asked of tokens.                                                 *)
  Disjoint         \* FALSE: that they are in the order in which attempts succeed.
                   \* TRUE: only if the one attempt began after the other had succeeded,
                   \* and that none comes twice

VARIABLES
  lock,            \* of each server: its hold
  age,             \* of each server: how long it has been up
  last,            \* of each server: the newest token that it knows of
  recovers,        \* of each server: whether it has yet to ask the others for theirs
  attempt,         \* of each owner: what it is doing to get the lock
  held,            \* of each owner: how long it may still believe to hold the lock
  newest,          \* the newest token that an owner has got
  used,            \* all tokens that an owner has got
  wentBack         \* whether a token ever came twice, or was lower than it may be

vars == <<lock, age, last, recovers, attempt, held, newest, used, wentBack>>

Max(a, b) == IF a > b THEN a ELSE b
Highest(numbers) == CHOOSE n \in numbers : \A other \in numbers : other <= n
OneLess(n) == IF n = 0 THEN 0 ELSE n - 1

----------------------------------------------------------------------------
(* Tokens. By the wall clock a token is told by its distance to the present   *)
(* of the slowest clock, which is `Now`: it falls by one with every tick, and *)
(* is 0 when it is as old as a lease, for then nothing is compared with it.   *)

Now == Lease
NewTokens(s) ==
  IF WallClock THEN {t \in Now .. Now + Ahead : t > last[s]}
               ELSE {t \in {last[s] + 1} : t <= TokenMax}
Aged(t) == IF WallClock THEN OneLess(t) ELSE t

----------------------------------------------------------------------------
(* Holds and attempts. An owner counts its lease from before it sent the      *)
(* first request. `above`: what its token has to be above.                    *)

Free == [owner |-> "nobody", left |-> 0]
HoldOf(o) == [owner |-> o, left |-> Lease]
Older(h) == IF h.left <= 1 THEN Free ELSE [h EXCEPT !.left = @ - 1]

None == [phase |-> "none", left |-> 0, granted |-> {}, raised |-> {}, token |-> 0, above |-> 0]
Begun == [phase |-> "acquire", left |-> Lease, granted |-> {}, raised |-> {}, token |-> 0,
          above |-> IF Disjoint THEN newest ELSE 0]
OlderAttempt(a) ==
  IF a.left <= 1 THEN None
  ELSE [a EXCEPT !.left = @ - 1, !.token = Aged(@), !.above = Aged(@)]

----------------------------------------------------------------------------
Init ==
  /\ lock = [s \in Server |-> Free]
  /\ age = [s \in Server |-> Quarantine]
  /\ last = [s \in Server |-> 0]
  /\ recovers = [s \in Server |-> FALSE]
  /\ attempt = [o \in Owner |-> None]
  /\ held = [o \in Owner |-> 0]
  /\ newest = 0
  /\ used = {}
  /\ wentBack = FALSE

Tick ==
  /\ age' = [s \in Server |-> IF age[s] < Quarantine THEN age[s] + 1 ELSE Quarantine]
  /\ lock' = [s \in Server |-> Older(lock[s])]
  /\ last' = [s \in Server |-> Aged(last[s])]
  /\ attempt' = [o \in Owner |-> OlderAttempt(attempt[o])]
  /\ held' = [o \in Owner |-> OneLess(held[o])]
  /\ newest' = Aged(newest)
  /\ used' = {Aged(t) : t \in used} \ {0}
  /\ UNCHANGED <<recovers, wentBack>>

(* An owner that has nothing left anywhere begins to ask all servers.         *)
Start(o) ==
  /\ attempt[o] = None
  /\ held[o] = 0
  /\ \A s \in Server : lock[s].owner # o
  /\ attempt' = [attempt EXCEPT ![o] = Begun]
  /\ UNCHANGED <<lock, age, last, recovers, held, newest, used, wentBack>>

(* LOCK.ACQUIRE on one server.                                                *)
GrantAt(s, o) ==
  /\ attempt[o].phase = "acquire"
  /\ lock[s] = Free
  /\ age[s] >= Quarantine
  /\ ~recovers[s]
  /\ \E t \in NewTokens(s) :
       /\ lock' = [lock EXCEPT ![s] = HoldOf(o)]
       /\ last' = [last EXCEPT ![s] = t]
       /\ attempt' = [attempt EXCEPT ![o].granted = @ \cup {s}, ![o].token = Max(@, t)]
  /\ UNCHANGED <<age, recovers, held, newest, used, wentBack>>

(* The owner holds the lock, by the highest token that it got.                *)
Succeed(o) ==
  LET token == attempt[o].token
  IN  /\ held' = [held EXCEPT ![o] = attempt[o].left]
      /\ attempt' = [attempt EXCEPT ![o] = None]
      /\ wentBack' = IF Disjoint
                     THEN wentBack \/ token <= attempt[o].above \/ token \in used
                     ELSE wentBack \/ token <= newest
      /\ newest' = Max(newest, token)
      /\ used' = IF Disjoint THEN used \cup {token} ELSE {}
      /\ UNCHANGED <<lock, age, last, recovers>>

(* A majority has granted it.                                                 *)
Win(o) ==
  /\ attempt[o].phase = "acquire"
  /\ Cardinality(attempt[o].granted) >= Majority
  /\ IF Raises
     THEN /\ attempt' = [attempt EXCEPT ![o].phase = "raise"]
          /\ UNCHANGED <<lock, age, last, recovers, held, newest, used, wentBack>>
     ELSE Succeed(o)

(* LOCK.RENEW ... RAISE on one server. Only the owner of the hold is heard.   *)
RaiseAt(s, o) ==
  /\ attempt[o].phase = "raise"
  /\ s \in attempt[o].granted
  /\ lock[s].owner = o
  /\ last' = [last EXCEPT ![s] = Max(@, attempt[o].token)]
  /\ attempt' = [attempt EXCEPT ![o].raised = @ \cup {s}]
  /\ UNCHANGED <<lock, age, recovers, held, newest, used, wentBack>>

(* A majority has raised it.                                                  *)
WinRaised(o) ==
  /\ attempt[o].phase = "raise"
  /\ Cardinality(attempt[o].raised) >= Majority
  /\ Succeed(o)

GiveUp(o) ==
  /\ attempt[o] # None
  /\ attempt' = [attempt EXCEPT ![o] = None]
  /\ UNCHANGED <<lock, age, last, recovers, held, newest, used, wentBack>>

(* LOCK.RELEASE on one server: after an attempt that failed, or at the end.   *)
ReleaseAt(s, o) ==
  /\ lock[s].owner = o
  /\ attempt[o] = None
  /\ lock' = [lock EXCEPT ![s] = Free]
  /\ held' = [held EXCEPT ![o] = 0]
  /\ UNCHANGED <<age, last, recovers, attempt, newest, used, wentBack>>

(* The process dies and is started again.                                     *)
Restart(s) ==
  LET others == {last[other] : other \in Server \ {s}}
  IN  /\ Forgets
      /\ lock' = [lock EXCEPT ![s] = Free]
      /\ age' = [age EXCEPT ![s] = 0]
      /\ last' = [last EXCEPT ![s] =
                    IF ~ForgetsTokens THEN @
                    ELSE IF Recovery = "at once" THEN Highest(others) ELSE 0]
      /\ recovers' = [recovers EXCEPT ![s] = ForgetsTokens /\ Recovery = "late"]
      /\ UNCHANGED <<attempt, held, newest, used, wentBack>>

(* After its quarantine the server takes over the highest token of the        *)
(* others, if all of them know theirs.                                        *)
Recover(s) ==
  /\ recovers[s]
  /\ age[s] >= Quarantine
  /\ \A other \in Server \ {s} : ~recovers[other]
  /\ recovers' = [recovers EXCEPT ![s] = FALSE]
  /\ last' = [last EXCEPT ![s] = Highest({last[any] : any \in Server})]
  /\ UNCHANGED <<lock, age, attempt, held, newest, used, wentBack>>

Vanish(s) ==
  /\ EndsEarly
  /\ lock[s] # Free
  /\ lock' = [lock EXCEPT ![s] = Free]
  /\ UNCHANGED <<age, last, recovers, attempt, held, newest, used, wentBack>>

Next ==
  \/ Tick
  \/ \E o \in Owner : Start(o) \/ Win(o) \/ WinRaised(o) \/ GiveUp(o)
  \/ \E s \in Server, o \in Owner : GrantAt(s, o) \/ RaiseAt(s, o) \/ ReleaseAt(s, o)
  \/ \E s \in Server : Restart(s) \/ Vanish(s) \/ Recover(s)

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------
(* No two owners believe to hold the lock at the same time.                   *)
OneHolder == \A a, b \in Owner : a # b => ~(held[a] > 0 /\ held[b] > 0)

(* Tokens are distinct and in order.                                          *)
TokensRise == ~wentBack
============================================================================
