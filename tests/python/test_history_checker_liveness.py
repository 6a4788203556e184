"""The checker of liveness: each fault, put into a history by hand, must be found."""

from math import inf

from checkers import LOST, UNANSWERED, Request, faults
from test_history_checker import acquire, ask, close, delete, info, only_fault, permit, release, several, shared


def waits(owner, sent, answered, token=None, **known):
    return acquire(owner, sent, answered, token, **{"block": answered - sent} | known)


def use(owner, sent, answered, token, reply=1, at="table"):
    return ask("use", "door", owner, sent, answered, reply, token=token, connection=at)


def end(left=0, permits=(1, 1), agrees=True, **counted):
    seen = {"left": {"holds": left}, "permits": {"door": list(permits)}, "agrees": agrees, "counted": counted}
    return Request("end", (), "", 90.0, 91.0, seen)


# G6


def test_a_waiter_for_a_free_lock():
    only_fault("beside a waiter", acquire("a", 0.0, 0.1, 7), delete(0.2, 0.3), waits("b", 0.2, 2.5))
    only_fault("beside a waiter", acquire("a", 0.0, 0.1, 7), release("a", 0.2, 0.3), waits("b", 0.2, 4.0, 8))
    cut = acquire("a", 0.0, 0.1, 7, lease=60.0, ephemeral=0.0, connection="c")
    only_fault("beside a waiter", cut, close(1.0), waits("b", 0.2, 5.0))
    only_fault("beside a waiter", waits("b", 0.0, 2.0))
    several_waits = several("d", 0.2, 3.0, None, block=2.8)
    assert faults([cut, several_waits, waits("b", 0.2, 3.0)]) == []
    assert faults([cut, close(1.0), waits("b", 0.2, 2.5)]) == [], "the server may see it a moment later"


def test_a_slow_server_may_stall_for_longer():
    free = [acquire("a", 0.0, 0.1, 7), delete(0.2, 0.3), waits("b", 0.2, 2.5)]
    place = [shared("a", 0.0, 0.1, 7, lease=9.0), reads("b", 0.2, 2.0)]
    deadlock = [
        acquire("a", 0.0, 0.1, 7, lease=9.0), acquire("b", 0.0, 0.1, 8, lock="gate", lease=9.0),
        waits("a", 0.2, 2.0, lock="gate"), waits("b", 0.3, 2.0),
    ]  # fmt: skip
    for history in (free, place, deadlock):
        assert len(faults(history, stall_seconds=1.0)) == 1
        assert faults(history, stall_seconds=10.0) == []


def test_a_waiter_for_a_lock_that_may_be_held():
    held = acquire("a", 0.0, 0.1, 7, lease=3.0)
    assert faults([held, waits("b", 0.2, 3.9, 8)]) == []
    kept = acquire("a", 0.0, 0.1, 7, keepalive=True, connection="c")
    assert faults([kept, waits("b", 0.2, 9.0)]) == []
    gone = ask("acquire", "door", "g", 0.0, inf, error=LOST, lease=2.0, gone=0.1)
    assert faults([gone, waits("b", 0.2, 2.9)]) == []
    place = acquire("p", 0.0, 0.1, None, place=3.0)
    assert faults([place, waits("b", 0.2, 2.9)]) == []
    many = several("d", 0.0, 3.0, None, block=3.0)
    assert faults([many, waits("b", 0.2, 2.9), acquire("x", 0.0, 0.1, 9, lock="gate", lease=3.0)]) == []


def reads(owner, sent, answered, token=None, **known):
    return waits(owner, sent, answered, token, mode="shared", **known)


def takes(owner, sent, answered, token=None, **known):
    return waits(owner, sent, answered, token, mode="limit 2", **known)


def test_a_waiter_for_a_free_place():
    reader = shared("a", 0.0, 0.1, 7, lease=9.0)
    only_fault("a place for 1.", reader, reads("b", 0.2, 2.0))
    only_fault("a place for 1.", reader, reads("b", 0.2, 2.0, 8))
    one = permit("a", 0.0, 0.1, 7, lease=9.0)
    only_fault("a place for 1.", one, takes("b", 0.2, 2.0))
    left = permit("b", 0.1, 0.2, 8, lease=9.0)
    only_fault("a place for 1.", one, left, release("b", 0.5, 0.6), takes("c", 0.3, 3.0, 9))
    # As if the writer had left the line without a new look at the queue.
    only_fault("a place for 2.", reader, waits("w", 0.2, 0.5), reads("b", 0.3, 3.0))
    gone = ask("acquire", "door", "w", 0.2, inf, error=LOST, lease=0.1, block=9.0, gone=0.5)
    only_fault("a place for 1.", reader, gone, reads("b", 0.3, 3.4))


def test_a_waiter_that_may_have_had_no_place():
    reader = shared("a", 0.0, 0.1, 7, lease=9.0)
    assert faults([reader, waits("w", 0.2, 3.0), reads("b", 0.3, 3.0)]) == [], "somebody may be ahead"
    assert faults([reader, shared("p", 0.1, 0.2, None, place=3.0), reads("b", 0.3, 3.0)]) == []
    assert faults([reader, several("d", 0.1, 3.0, None, block=2.8), reads("b", 0.3, 3.0)]) == []
    assert faults([reader, reads("b", 0.2, 1.1)]) == [], "not for long enough"
    left = [release("a", 0.15, 0.18), waits("a", 0.2, 0.3, 9, lease=9.0)]
    assert faults([reader, *left, reads("b", 0.4, 3.0)]) == [], "it holds alone"
    downgraded = [acquire("a", 0.0, 0.1, 7, lease=9.0), shared("a", 2.9, 3.0, 7, lease=9.0)]
    assert faults([*downgraded, reads("b", 0.4, 3.1, 8)]) == []
    full = [permit(owner, 0.0, 0.1, token, lease=9.0) for owner, token in (("a", 7), ("b", 8))]
    assert faults([*full, takes("c", 0.2, 3.0)]) == []
    unheard = ask("acquire", "door", "g", 0.0, inf, error=LOST, lease=4.0, mode="limit 2", gone=0.1)
    assert faults([full[0], unheard, takes("c", 0.2, 3.0)]) == []


# G5


def test_a_newcomer_that_passes_somebody_seen_in_line():
    held = acquire("a", 0.0, 0.1, 7, lease=2.0)
    first, seen = waits("b", 0.2, 1.9, 9), info("x", 0.3, 0.4, "exclusive", ("a", 7, 1), queue=("b",))
    newcomer = waits("c", 0.5, 0.9, 8, lease=0.01)
    only_fault("passed in line", held, first, seen, newcomer, release("a", 0.55, 0.6))
    early = newcomer._replace(sent=0.35)
    assert faults([held, first, seen, early, release("a", 0.55, 0.6)]) == [], "it may have been ahead"


# G7


def test_a_request_without_an_answer():
    only_fault("never answered", ask("renew", "door", "a", 0.0, inf, error=UNANSWERED))
    held = [acquire("a", 0.0, 0.1, 7), acquire("z", 60.0, 60.1, 8, lock="gate")]
    silent = ask("acquire", "door", "b", 0.2, inf, error=UNANSWERED, block=inf)
    found = faults([*held, silent])
    assert [fault.split(":")[0] for fault in found] == ["never answered", "free for 58.900 s beside a waiter"]


# G11


def test_a_deadlock_without_a_verdict():
    held = [acquire("a", 0.0, 0.1, 7, lease=9.0), acquire("b", 0.1, 0.2, 8, lock="gate", lease=9.0)]
    first, second = waits("a", 0.3, 2.3, lock="gate"), waits("b", 0.4, 2.4)
    only_fault("a deadlock that nobody was told of", *held, first, second)
    assert faults([*held, first, second._replace(answered=1.2, block=0.75)]) == [], "not for long enough"
    assert faults([*held, first, release("b", 0.35, 0.4, lock="gate")])[0].startswith("free for")
    permits = [permit("a", 0.0, 0.1, 7, lock="pool", lease=9.0), held[1]]
    # There is room, so it is no deadlock.
    only_fault("a place for 2.", *permits, first, permit("b", 0.4, 2.4, None, lock="pool", block=2.0))


# G4


def test_a_resource_that_was_deceived():
    held = acquire("a", 0.0, 0.1, 7)
    later = acquire("b", 2.0, 2.1, 8)
    only_fault("took an old token", held, later, use("b", 2.2, 2.3, 8), use("a", 2.4, 2.5, 7))
    only_fault("had seen a newer token", held, use("a", 0.2, 0.3, 7, reply=0))
    assert faults([held, later, use("b", 2.2, 2.3, 8), use("a", 2.4, 2.5, 7, reply=0)]) == []
    assert faults([held, later, use("b", 2.2, 2.3, 8), use("a", 2.4, 2.5, 7, at="chair")]) == [], "another one"
    assert faults([shared("a", 0.0, 0.1, 7), use("a", 0.2, 0.3, 7, reply=0)]) == []


# G3, G8, G13


def test_counts_and_locks_at_the_end_must_fit_the_history():
    held = acquire("a", 0.0, 0.1, 7)
    fenced = ask("count", "door", "a", 5.0, 5.1, token=7, error="FENCED token 7")
    nil = waits("b", 0.2, 0.4)
    good = {"grants": 1, "timeouts": 1, "deadlocks": 0, "fenced": 1}
    history = [held, nil, fenced]
    assert faults([*history, end(**good)]) == []
    only_fault("left at the end: holds 2", *history, end(left=2, **good))
    only_fault("not all permits: 0 of 1", *history, end(permits=(1, 0), **good))
    only_fault("the replica is not equal", *history, end(agrees=False, **good))
    for name, wrong in {"grants": (0, 2), "timeouts": (2,), "deadlocks": (1,), "fenced": (0, 2)}.items():
        for number in wrong:
            only_fault(f"counted {number} {name}", *history, end(**good | {name: number}))
    lost = ask("acquire", "door", "g", 5.0, inf, error=LOST, lease=0.1)
    assert faults([*history, lost, end(**good | {"grants": 2, "deadlocks": 1})]) == []


def test_every_grant_that_is_counted_ends_once():
    held = acquire("a", 0.0, 0.1, 7)
    good = {"grants": 1, "releases": 0, "expirations": 1, "broken": 0}
    assert faults([held, end(**good)]) == []
    only_fault("counted 1 grants, of which 0 have ended", held, end(**good | {"expirations": 0}))
    only_fault("counted 1 grants, of which 2 have ended", held, end(**good | {"releases": 1}))


def test_several_locks_that_are_granted_at_once_count_each():
    both = ask("macquire", "door chair", "a", 0.0, 0.1, reply=7, lease=1.0)
    again = ask("macquire", "door", "a", 0.2, 0.3, reply=7, lease=1.0)
    ended = {"releases": 2, "expirations": 0, "broken": 0}
    assert faults([both, again, end(grants=2, **ended)]) == []
    only_fault("counted 1 grants", both, again, end(grants=1, **ended | {"releases": 1}))
    lost = ask("macquire", "door chair", "b", 5.0, inf, error=LOST, lease=0.1)
    assert faults([both, lost, end(grants=4, **ended | {"releases": 4})]) == []
