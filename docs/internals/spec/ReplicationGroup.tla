-------------------------- MODULE ReplicationGroup --------------------------
(* One exclusive lock on one primary and its replicas, while servers are lost, *)
(* promoted, cut off and restarted empty: who may believe to hold the lock?    *)
(*                                                                             *)
(* Time goes in ticks, at the same rate for everybody. Leases count down, ages *)
(* stop at Quarantine: that is all that anyone asks of them, and it makes the  *)
(* number of states finite though time has no end. Tokens are counted from the *)
(* present, see `Now`. README.md says what is left out, and what each constant *)
(* and action is in Redis and in redislock.                                    *)
EXTENDS Naturals, FiniteSets

CONSTANTS
  Server, Owner,
  Lease,         \* how long a grant or a renewal lasts, in ticks
  Quarantine,    \* redislock.quarantine, in ticks

  (* What the module does before it grants, and before it answers.           *)
  Acks,          \* how many replicas must have acknowledged it
  Seasoned,      \* TRUE: an acknowledgement counts only from a replica that had followed
                 \* this server for a quarantine when the request was carried out
  Waits,         \* TRUE: nothing new is granted before a quarantine as primary is over
  RenewsEarly,   \* TRUE: what is known is renewed in that time too

  (* What an operator and chance may do.                                     *)
  OnePrimary,    \* TRUE: nobody is promoted before the old primary is dead
  Forgets,       \* TRUE: any server may restart without its memory at any time
  Files,         \* TRUE: such a server comes back with the hold of some time before

  (* What the module does about a request that was not acknowledged in time. *)
  Undo,          \* which holds it takes away then, by owner and token:
                 \* "none": they stay until their lease ends.
                 \* "safe": those that nobody was ever told of, that no other request waits
                 \*    for, and that are not asked for again before they are taken away.
                 \* And what must not be: "safe", and also what was "even confirmed", what
                 \* is "even awaited" by another request, what was "even asked again".
  AsksAgain,     \* TRUE: an owner may repeat a request whose answer has not come

  (* Tokens are looked at only where they are asked about.                   *)
  Tokens,        \* TRUE: holds have tokens
  Ahead          \* how far a new token may be ahead of the slowest wall clock, in ticks:
                 \* what the clocks differ by, and the lead that tokens have got

VARIABLES
  role,          \* of each server: "primary", "replica" or "dead"
  follows,       \* of each server: the primary that it was attached to last
  age,           \* of each server: how long it has had this role, under this primary
  lock,          \* of each server: the hold that it knows of
  file,          \* of each server: the hold that it would restart with
  last,          \* of each server: the newest token that it knows of
  pending,       \* requests carried out and not answered yet
  held,          \* of each owner: how long it may still believe to hold the lock
  newest,        \* the newest token that an owner was told
  wentBack       \* whether an owner was ever told a token that is not above those before

vars == <<role, follows, age, lock, file, last, pending, held, newest, wentBack>>

Max(a, b) == IF a > b THEN a ELSE b
OneLess(n) == IF n = 0 THEN 0 ELSE n - 1

-----------------------------------------------------------------------------
(* Tokens. A token is the wall clock's time, and always above the last one. As *)
(* a number it is told by its distance to the present of the slowest clock,    *)
(* which is `Now`; so all tokens fall by one with every tick, and what is as   *)
(* old as a lease is 0: nothing that is told later can be compared with it.    *)

Now == Lease
NewTokens(s) == IF Tokens THEN {t \in Now .. Now + Ahead : t > last[s]} ELSE {0}

-----------------------------------------------------------------------------
(* Holds and requests.                                                         *)

(* `ending`: it is about to be undone. Only its primary knows.                 *)
Free == [owner |-> "nobody", left |-> 0, token |-> 0, ending |-> FALSE]
HoldOf(o, t) == [owner |-> o, left |-> Lease, token |-> t, ending |-> FALSE]
Copied(h) == [h EXCEPT !.ending = FALSE]
Saved(h) == IF h = Free THEN Free ELSE [Copied(h) EXCEPT !.left = Lease]
Extended(h) == [h EXCEPT !.left = Lease, !.ending = @ /\ Undo = "even asked again"]
Older(h) == IF h.left <= 1 THEN Free
            ELSE [h EXCEPT !.left = @ - 1, !.token = OneLess(@)]

(* The replicas whose acknowledgement counts for what s carries out now.       *)
Counted(s) == {r \in Server : /\ role[r] = "replica" /\ follows[r] = s
                              /\ Seasoned => age[r] >= Quarantine}

Waiting(o) == {p \in pending : p.owner = o}
ForHold(s, o) == {p \in pending : p.server = s /\ p.owner = o}

(* A request that s has just carried out. `fresh`: it is for a hold that began *)
(* here and that nobody was told of yet.                                       *)
Request(s, o, t, fresh) ==
  [server |-> s, owner |-> o, left |-> Lease, counted |-> Counted(s), acked |-> {},
   token |-> t, fresh |-> Undo # "none" /\ fresh]
Again(s, o) ==
  Request(s, o, lock[s].token, lock[s].ending \/ \E p \in ForHold(s, o) : p.fresh)

(* An owner sends one request after the other; if it repeats them, two at most *)
(* are on their way.                                                           *)
MaySend(o) == IF AsksAgain THEN Cardinality(Waiting(o)) < 2 ELSE Waiting(o) = {}

(* s takes up a new role: what waits for it is refused, and it acknowledges    *)
(* nothing more to its old primary. What it acknowledged before still counts.  *)
Without(s) == {[p EXCEPT !.counted = @ \ {s}] : p \in {q \in pending : q.server # s}}

MayGrant(s) == Waits => age[s] >= Quarantine
MayRenew(s) == RenewsEarly \/ MayGrant(s)

-----------------------------------------------------------------------------
Init ==
  LET first == CHOOSE s \in Server : TRUE
  IN  /\ role = [s \in Server |-> IF s = first THEN "primary" ELSE "replica"]
      /\ follows = [s \in Server |-> first]
      /\ age = [s \in Server |-> Quarantine]
      /\ lock = [s \in Server |-> Free]
      /\ file = [s \in Server |-> Free]
      /\ last = [s \in Server |-> 0]
      /\ pending = {}
      /\ held = [o \in Owner |-> 0]
      /\ newest = [token |-> 0, owner |-> "nobody"]
      /\ wentBack = FALSE

(* Time passes. A request is as old as its lease: an answer that comes when    *)
(* that is over tells nobody that he holds anything.                           *)
Tick ==
  /\ age' = [s \in Server |-> IF age[s] < Quarantine THEN age[s] + 1 ELSE Quarantine]
  /\ lock' = [s \in Server |-> Older(lock[s])]
  /\ file' = [s \in Server |-> [file[s] EXCEPT !.token = OneLess(@)]]
  /\ last' = [s \in Server |-> OneLess(last[s])]
  /\ pending' = {[p EXCEPT !.left = @ - 1, !.token = OneLess(@)] :
                   p \in {q \in pending : q.left > 1}}
  /\ held' = [o \in Owner |-> OneLess(held[o])]
  /\ newest' = [newest EXCEPT !.token = OneLess(@)]
  /\ UNCHANGED <<role, follows, wentBack>>

(* REPLICAOF NO ONE, FAILOVER, Sentinel, a cluster's election: any replica,    *)
(* whatever it has received.                                                   *)
Promote(s) ==
  /\ role[s] = "replica"
  /\ OnePrimary => \A other \in Server : role[other] # "primary"
  /\ role' = [role EXCEPT ![s] = "primary"]
  /\ age' = [age EXCEPT ![s] = 0]
  /\ pending' = Without(s)
  /\ follows' = [follows EXCEPT ![s] = s]
  /\ UNCHANGED <<lock, file, last, held, newest, wentBack>>

(* REPLICAOF another primary, by a replica of somebody else or a primary that  *)
(* is demoted. The resynchronisation discards what the server had; only   *)
(* the clock of tokens is never set back.                                      *)
Attach(s, primary) ==
  /\ s # primary
  /\ role[primary] = "primary"
  /\ role[s] = "replica" => follows[s] # primary
  /\ role' = [role EXCEPT ![s] = "replica"]
  /\ follows' = [follows EXCEPT ![s] = primary]
  /\ age' = [age EXCEPT ![s] = 0]
  /\ lock' = [lock EXCEPT ![s] = Copied(lock[primary])]
  /\ last' = [last EXCEPT ![s] = Max(@, last[primary])]
  /\ pending' = Without(s)
  /\ UNCHANGED <<file, held, newest, wentBack>>

(* The primary dies, or is cut off from all clients, and stays so until it is  *)
(* attached to another. Without OnePrimary a primary that nobody hears needs   *)
(* no action of its own.                                                       *)
Crash(s) ==
  /\ OnePrimary
  /\ role[s] = "primary"
  /\ role' = [role EXCEPT ![s] = "dead"]
  /\ pending' = Without(s)
  /\ UNCHANGED <<follows, age, lock, file, last, held, newest, wentBack>>

(* The file of s is as s is now. Leases do not run in it.                      *)
Save(s) ==
  /\ Files
  /\ file' = [file EXCEPT ![s] = Saved(lock[s])]
  /\ UNCHANGED <<role, follows, age, lock, last, pending, held, newest, wentBack>>

(* The process dies and is started again in its old role.                      *)
Restart(s) ==
  /\ Forgets
  /\ role[s] # "dead"
  /\ lock' = [lock EXCEPT ![s] = file[s]]
  /\ last' = [last EXCEPT ![s] = file[s].token]
  /\ age' = [age EXCEPT ![s] = 0]
  /\ pending' = Without(s)
  /\ UNCHANGED <<role, follows, file, held, newest, wentBack>>

(* A replica receives the whole stream, undone grants included, and says so.   *)
Replicate(s) ==
  LET primary == follows[s]
  IN  /\ role[s] = "replica"
      /\ role[primary] = "primary"
      /\ lock' = [lock EXCEPT ![s] = Copied(lock[primary])]
      /\ last' = [last EXCEPT ![s] = Max(@, last[primary])]
      /\ pending' = {IF p.server = primary /\ s \in p.counted
                     THEN [p EXCEPT !.acked = @ \cup {s}]
                     ELSE p : p \in pending}
      /\ UNCHANGED <<role, follows, age, file, held, newest, wentBack>>

(* LOCK.ACQUIRE on a free lock, from a client or out of the queue.             *)
Grant(s, o) ==
  /\ role[s] = "primary"
  /\ MayGrant(s)
  /\ lock[s] = Free
  /\ held[o] = 0
  /\ MaySend(o)
  /\ \E t \in NewTokens(s) :
       /\ lock' = [lock EXCEPT ![s] = HoldOf(o, t)]
       /\ last' = [last EXCEPT ![s] = t]
       /\ pending' = pending \cup {Request(s, o, t, TRUE)}
  /\ UNCHANGED <<role, follows, age, file, held, newest, wentBack>>

(* LOCK.RENEW by an owner that believes to hold the lock.                      *)
Renew(s, o) ==
  /\ role[s] = "primary"
  /\ MayRenew(s)
  /\ lock[s].owner = o
  /\ held[o] > 0
  /\ MaySend(o)
  /\ lock' = [lock EXCEPT ![s] = Extended(@)]
  /\ pending' = pending \cup {Again(s, o)}
  /\ UNCHANGED <<role, follows, age, file, last, held, newest, wentBack>>

(* LOCK.ACQUIRE, or LOCK.RENEW, by the owner of the hold, which was refused or *)
(* has waited too long for its answer: the same token, and the lease anew.     *)
Repeat(s, o) ==
  /\ AsksAgain
  /\ role[s] = "primary"
  /\ MayRenew(s)
  /\ lock[s].owner = o
  /\ held[o] = 0
  /\ MaySend(o)
  /\ lock' = [lock EXCEPT ![s] = Extended(@)]
  /\ pending' = pending \cup {Again(s, o)}
  /\ UNCHANGED <<role, follows, age, file, last, held, newest, wentBack>>

(* Enough replicas have it: the owner is told, and counts from when the server *)
(* carried it out. From now on the hold is not fresh.                          *)
Confirm(p) ==
  /\ Cardinality(p.acked) >= Acks
  /\ held' = [held EXCEPT ![p.owner] = Max(@, p.left)]
  /\ pending' = {IF q \in ForHold(p.server, p.owner) THEN [q EXCEPT !.fresh = FALSE] ELSE q :
                   q \in pending \ {p}}
  /\ newest' = IF p.token > newest.token THEN [token |-> p.token, owner |-> p.owner] ELSE newest
  /\ wentBack' = \/ wentBack
                 \/ p.token < newest.token
                 \/ p.token = newest.token /\ p.token > 0 /\ p.owner # newest.owner
  /\ UNCHANGED <<role, follows, age, lock, file, last>>

(* The time for acknowledgements is over: NOREPLICAS. If nobody was ever told  *)
(* of the hold, and this was the last request to wait for it, it is to be      *)
(* taken away. Else it stays: its owner may hold it by an earlier answer.      *)
Refuse(p) ==
  LET others == ForHold(p.server, p.owner) \ {p}
      ends == \/ p.fresh /\ (others = {} \/ Undo = "even awaited")
              \/ Undo = "even confirmed"
  IN  /\ Undo # "none"
      /\ pending' = pending \ {p}
      /\ lock' = IF ends /\ lock[p.server].owner = p.owner
                 THEN [lock EXCEPT ![p.server].ending = TRUE]
                 ELSE lock
      /\ UNCHANGED <<role, follows, age, file, last, held, newest, wentBack>>

(* It is taken away, a moment later: the next in line may have the lock.       *)
TakeAway(s) ==
  /\ role[s] = "primary"
  /\ lock[s].ending
  /\ lock' = [lock EXCEPT ![s] = Free]
  /\ UNCHANGED <<role, follows, age, file, last, pending, held, newest, wentBack>>

(* LOCK.RELEASE. It is answered at once; what else this owner has asked of     *)
(* this server is refused.                                                     *)
Release(s, o) ==
  /\ role[s] = "primary"
  /\ lock[s].owner = o
  /\ AsksAgain \/ (held[o] > 0 /\ Waiting(o) = {})
  /\ lock' = [lock EXCEPT ![s] = Free]
  /\ held' = [held EXCEPT ![o] = 0]
  /\ pending' = pending \ ForHold(s, o)
  /\ UNCHANGED <<role, follows, age, file, last, newest, wentBack>>

Next ==
  \/ Tick
  \/ \E s \in Server : Promote(s) \/ Restart(s) \/ Replicate(s) \/ Crash(s)
  \/ \E s, primary \in Server : Attach(s, primary)
  \/ \E s \in Server, o \in Owner : Grant(s, o) \/ Renew(s, o) \/ Repeat(s, o) \/ Release(s, o)
  \/ \E p \in pending : Confirm(p) \/ Refuse(p)
  \/ \E s \in Server : TakeAway(s) \/ Save(s)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* G1: no two owners believe to hold the lock at the same time.                *)
OneHolder == \A a, b \in Owner : a # b => ~(held[a] > 0 /\ held[b] > 0)

(* G4: every token that an owner is told is above all that were told before,   *)
(* for another hold.                                                           *)
TokensRise == ~wentBack
=============================================================================
