"""The checker of histories of one server: each fault, put in by hand, must be found.

The tests of liveness are in test_history_checker_liveness.py, many servers in test_history_checker_many.py, histories
in files in test_history_checker_files.py. Histories of real servers are in test_history.py.
"""

from math import inf

from checkers import LOST, Request, Seen, faults
from checkers.evidence import Evidence


def ask(command, lock, owner, sent, answered, reply=None, **known):
    """One request; lock may be several in one text."""
    return Request(command, tuple(lock.split()), owner, sent, answered, reply, **known)


def acquire(owner, sent, answered, token, mode="exclusive", lease=1.0, lock="door", **known):
    return ask("acquire", lock, owner, sent, answered, token, mode=mode, lease=lease, **known)


def shared(owner, sent, answered, token, **known):
    return acquire(owner, sent, answered, token, "shared", **known)


def permit(owner, sent, answered, token, limit=2, **known):
    return acquire(owner, sent, answered, token, f"limit {limit}", **known)


def several(owner, sent, answered, token, lock="door gate", lease=1.0, **known):
    return ask("macquire", lock, owner, sent, answered, token, lease=lease, **known)


def renew(owner, sent, answered, reply=1, lease=1.0, lock="door", **known):
    return ask("renew", lock, owner, sent, answered, reply, lease=lease, **known)


def release(owner, sent, answered, reply=1, lock="door", **known):
    return ask("release", lock, owner, sent, answered, reply, **known)


def fence(owner, sent, answered, reply, token=None, lock="door"):
    return ask("fence", lock, owner, sent, answered, reply, token=token)


def count(owner, sent, answered, number, token, error=""):
    return ask("count", "door", owner, sent, answered, number, token=token, error=error)


def write(owner, sent, answered, before, token):
    return ask("write", "door", owner, sent, answered, before, token=token)


def info(owner, sent, answered, kind, *holders, queue=(), lock="door", holds=0):
    seen = Seen(kind, holders, tuple((waiter, "blocked") for waiter in queue), holds)
    return ask("info", lock, owner, sent, answered, seen)


def nothing(owner, sent, answered):
    return ask("info", "door", owner, sent, answered)


def held_by(owner, sent, answered, *rows):
    return ask("heldby", "", owner, sent, answered, list(rows))


def row(lock, token):
    return (lock, "held", "exclusive", token)


def delete(sent, answered, reply=1, lock="door"):
    return ask("del", lock, "admin", sent, answered, reply)


def close(sent, connection="c"):
    return ask("close", "", "", sent, sent, connection=connection)


def deadlock(owner, sent, answered, *links, lock="door"):
    links = ", ".join(f"'{a}' waits for '{lock}' and there for '{b}'" for a, lock, b in links)
    error = f"DEADLOCK this wait would never end: {links}"
    return ask("acquire", lock, owner, sent, answered, error=error, block=1.0)


def only_fault(what, *history):
    """Something is found, and nothing else."""
    found = faults(list(history))
    assert found and all(what in fault for fault in found), found


def both_faults(one, other, *history):
    """Both are found."""
    found = faults(list(history))
    assert all(any(what in fault for fault in found) for what in (one, other)), found


def test_a_good_history_has_no_faults():
    assert faults(
        [
            # readers and writers
            shared("ann", 0.0, 0.1, 7, reentrant=True),
            shared("ben", 0.1, 0.2, 8, lease=0.5),
            shared("ann", 0.2, 0.3, 7, reentrant=True),
            info("ann", 0.3, 0.4, "shared", ("ann", 7, 2), ("ben", 8, 1)),
            acquire("cat", 0.1, 0.35, None, block=0.2),
            release("ann", 0.36, 0.37), release("ann", 0.38, 0.39),
            acquire("ann", 0.4, 0.75, 9, block=0.5, reentrant=True),
            fence("ann", 0.75, 0.8, 0, token=7),
            count("ann", 0.8, 0.81, 1, 9),
            acquire("ann", 0.82, 0.83, 9, reentrant=True), acquire("ann", 0.83, 0.84, 9, reentrant=True),
            shared("ann", 0.85, 0.9, 9),
            shared("dan", 0.86, 0.95, 10, block=0.5),
            info("ann", 1.0, 1.1, "shared", ("ann", 9, 3), ("dan", 10, 1)),
            count("dan", 1.1, 1.15, 2, 10),
            count("ann", 1.2, 1.25, 3, 9),
            release("ann", 1.3, 1.31), release("ann", 1.32, 1.33), fence("x", 1.34, 1.35, 10),
            release("ann", 1.36, 1.37), release("ann", 1.38, 1.39, 0),
            delete(1.4, 1.45), fence("dan", 1.46, 1.5, 0, token=10), delete(1.5, 1.55, 0),
            ask("count", "door", "dan", 1.5, 1.6, token=10, error="FENCED token 10"),
            # several
            several("eve", 2.0, 2.1, 11), several("fay", 2.1, 2.2, None),
            held_by("eve", 2.2, 2.3, row("door", 11), row("gate", 11)),
            several("eve", 2.3, 2.4, 11), release("eve", 2.5, 2.6, lock="gate"),
            held_by("eve", 2.6, 2.7, row("door", 11)),
            acquire("gil", 2.7, 2.8, 12, lock="gate"),
            deadlock(
                "eve", 2.85, 2.9, ("eve", "gate", "gil"), ("gil", "door", "eve"), lock="gate"
            ),
            acquire("gil", 2.8, 3.5, 13, block=2.0, lock="door"),
            # permits
            permit("a", 4.0, 4.1, 20, lock="pool"), permit("b", 4.1, 4.2, 21, lock="pool"),
            permit("c", 4.2, 4.3, None, lock="pool"),
            permit("c", 4.2, 4.3, None, limit=3, lock="pool", error="LOCKKIND it is LIMIT 2"),
            # tied
            acquire("k", 6.0, 6.1, 30, lease=0.1, keepalive=True, connection="c"),
            fence("k", 7.0, 7.1, 1, token=30), close(8.0),
            acquire("l", 8.0, 8.2, 31, block=1.0),
            # two at once
            acquire("m", 10.0, 10.5, None, block=5.0, error="UNBLOCKED a newer request"),
            acquire("m", 10.1, 10.6, None, block=5.0), release("m", 10.55, 10.58, 0),
            ask("acquire", "door", "n", 11.0, inf, error=LOST, lease=0.1),
        ]
    ) == []  # fmt: skip


# G1


def test_holds_that_do_not_go_together():
    only_fault("two holders", shared("a", 0.0, 0.1, 7), acquire("b", 0.2, 0.3, 8))
    only_fault("two holders", acquire("a", 0.0, 0.1, 7), shared("b", 0.2, 0.3, 8))
    only_fault("two holders", acquire("a", 0.0, 0.1, 7), several("b", 0.2, 0.3, 8))
    # a reader that is granted the whole lock with another reader
    readers = [shared("a", 0.0, 0.1, 7), shared("b", 0.1, 0.2, 8)]
    both_faults("two holders", "another token while it held", *readers, acquire("a", 0.2, 0.3, 9))
    # a downgrade unblocks no reader before
    alone = acquire("a", 0.0, 0.1, 7, lease=5.0)
    only_fault("two holders", alone, shared("b", 0.2, 0.3, 8), shared("a", 0.5, 0.6, 7))
    # held in a different way
    for held in (shared("a", 0.0, 0.1, 7), permit("a", 0.0, 0.1, 7, limit=3)):
        both_faults("two holders", "of another kind", held, permit("b", 0.2, 0.3, 8))


def test_two_holders_at_once_are_found():
    # G1
    only_fault("two holders", acquire("alice", 0.0, 0.1, 7), acquire("bob", 0.2, 0.3, 8))


def test_two_holders_are_found_after_a_short_hold_in_between():
    # G1: the overlap is not with the hold just before
    history = [
        acquire("alice", 0.0, 0.1, 7, lease=9.0), acquire("bob", 0.2, 0.3, 8, lease=0.2),
        acquire("carol", 5.0, 5.1, 9, lease=0.2),
    ]  # fmt: skip
    assert len([fault for fault in faults(history) if "two holders" in fault]) == 2


def test_a_grant_before_the_renewed_lease_ended_is_found():
    # G1
    only_fault("two holders", acquire("alice", 0.0, 0.1, 7, lease=0.5), renew("alice", 0.3, 0.4), acquire("bob", 0.6, 0.7, 8))


def test_a_release_that_comes_true_proves_the_hold_until_then():
    # G1: the lease has expired by the clock, but the server said 1
    lives = acquire("alice", 0.0, 0.1, 7, lease=0.2)
    both_faults("two holders", "outlived", lives, acquire("bob", 0.3, 0.4, 8), release("alice", 0.6, 0.7))


def test_a_permit_too_many():
    permits = [permit(owner, n / 10, n / 10 + 0.05, n) for n, owner in enumerate("abc", 1)]
    only_fault("3 holders", *permits)


def test_a_hold_that_outlives_its_connection_is_certain_for_its_full_lease():
    kept = acquire("a", 0.0, 0.1, 7, lease=0.5, keepalive=True, connection="c")
    only_fault("two holders", kept, close(5.0), acquire("b", 5.1, 5.2, 8))
    cut = acquire("a", 0.0, 0.1, 7, lease=9.0, ephemeral=0.2, connection="c")
    only_fault("two holders", cut, close(1.0), acquire("b", 1.0, 1.1, 8))
    assert faults([cut, close(1.0), acquire("b", 1.0, 1.3, 8)]) == []


def test_the_tie_moves_to_the_newest_connection():
    first = acquire("a", 0.0, 0.1, 7, lease=9.0, ephemeral=0.0, connection="c")
    moved = renew("a", 0.2, 0.3, lease=9.0, connection="d")
    only_fault("two holders", first, moved, close(1.0), acquire("b", 1.1, 1.2, 8))
    assert faults([first, moved, close(1.0, "d"), acquire("b", 1.1, 1.2, 8)]) == []


# G2


def test_a_lease_that_ended_early():
    held = acquire("a", 0.0, 0.1, 7)
    only_fault("ended early", held, renew("a", 0.2, 0.3, 0))
    only_fault("ended early", held, release("a", 0.2, 0.3, 0, token=7))
    only_fault("it was held", held, fence("a", 0.2, 0.3, 0, token=7))
    only_fault("it was held", held, fence("b", 0.2, 0.3, None))
    only_fault("it was held", held, fence("b", 0.2, 0.3, 6))
    only_fault("it was held", held, count("a", 0.2, 0.3, None, 7, error="FENCED"))
    only_fault("it was held", held, nothing("b", 0.2, 0.3))
    only_fault("it was held", held, delete(0.2, 0.3, 0))
    only_fault("not shown", held, held_by("a", 0.2, 0.3))
    kept = acquire("a", 0.0, 0.1, 7, lease=0.1, keepalive=True, connection="c")
    only_fault("ended early", kept, renew("a", 3.0, 3.1, 0), close(4.0))


def test_a_holder_that_info_does_not_show():
    held = [shared("a", 0.0, 0.1, 7), shared("b", 0.0, 0.1, 8)]
    only_fault("it was held", *held, info("x", 0.2, 0.3, "shared", ("b", 8, 1)))


def test_a_reply_shows_the_oldest_tokens_and_counts_the_others():
    held = [shared("a", 0.0, 0.1, 7), shared("b", 0.0, 0.1, 8)]
    assert faults([*held, info("x", 0.2, 0.3, "shared", ("a", 7, 1), holds=2)]) == []
    only_fault("it was held", *held, info("x", 0.2, 0.3, "shared", ("a", 7, 1), holds=1))
    only_fault("it was held", *held, info("x", 0.2, 0.3, "shared", ("b", 8, 1), holds=2))
    only_fault("it was held", *held, info("x", 0.2, 0.3, "limit 3", ("a", 7, 1), holds=2))


def test_a_hold_that_lives_on():
    held = acquire("a", 0.0, 0.1, 7)
    only_fault("lives on", held, delete(0.2, 0.3), fence("a", 0.4, 0.5, 1, token=7))
    only_fault("lives on", held, release("a", 0.2, 0.3), count("a", 0.4, 0.5, 1, 7))
    only_fault("lives on", held, delete(0.2, 0.3), renew("a", 0.4, 0.5))
    only_fault("lives on", held, delete(0.2, 0.3), release("a", 0.4, 0.5))
    only_fault("outlived", held, renew("a", 2.4, 2.5))
    only_fault("outlived", held, fence("a", 2.4, 2.5, 1, token=7))


def test_a_request_that_names_another_token():
    held = acquire("a", 0.0, 0.1, 7)
    only_fault("nothing with this token", held, release("a", 0.2, 0.3, token=6))
    only_fault("nothing with this token", held, renew("a", 0.2, 0.3, token=6))
    only_fault("nothing with this token", held, release("b", 0.2, 0.3))
    assert faults([held, release("a", 0.2, 0.3, 0, token=6)]) == []


# REENTRANT


def test_counts():
    twice = [acquire("a", 0.0, 0.1, 7), acquire("a", 0.1, 0.2, 7, reentrant=True)]
    once = release("a", 0.2, 0.3)
    only_fault("ended early", *twice, once, release("a", 0.3, 0.4, 0))
    only_fault("two holders", *twice, once, acquire("b", 0.4, 0.5, 8))
    only_fault("lives on", *twice, once, release("a", 0.3, 0.4), release("a", 0.5, 0.6))
    only_fault("counts", *twice, info("a", 0.2, 0.3, "exclusive", ("a", 7, 1)))
    idempotent = [acquire("a", 0.0, 0.1, 7), acquire("a", 0.1, 0.2, 7)]
    only_fault("lives on", *idempotent, once, release("a", 0.4, 0.5))


# G4


def test_tokens():
    first = acquire("a", 0.0, 0.1, 7)
    only_fault("token went down", first, acquire("b", 0.2, 0.3, 6, lock="gate"))
    only_fault("one token", first, acquire("b", 0.2, 0.3, 7, lock="gate"))
    only_fault("one token", first, acquire("a", 0.2, 0.3, 7, lock="gate"))
    assert faults([several("a", 0.0, 0.1, 7), acquire("a", 0.2, 0.3, 7, lock="gate")]) == []
    only_fault("a reader was granted the whole lock", shared("a", 0.0, 0.1, 7), acquire("a", 0.2, 0.3, 7))


def test_overlapping_requests_prove_nothing():
    # The order of the two is unknown, so neither order is a fault.
    assert faults([acquire("alice", 0.0, 1.0, 8, lease=0.05), acquire("bob", 0.1, 0.9, 7, lease=0.05)]) == []


def test_the_order_of_writes():
    short = acquire("a", 0.0, 0.1, 7, lease=0.2)
    new = acquire("b", 0.4, 0.5, 8)
    only_fault("ran after", short, new, count("b", 0.5, 0.6, 1, 8), count("a", 0.0, 0.7, 2, 7))
    only_fault("not every command ran once", short, count("a", 0.1, 0.15, 2, 7))
    twice = count("a", 0.1, 0.15, 1, 7), count("a", 0.1, 0.15, 1, 7)
    only_fault("not every command ran once", short, *twice)
    only_fault("ran after", short, new, write("a", 0.1, 0.6, "8", 7))
    assert faults([short, new, write("b", 0.5, 0.6, "7", 8)]) == []


# G5


def test_a_waiter_that_passes_another_in_line():
    asks = [acquire("b", 0.2, 0.9, 9, block=1.0), acquire("c", 0.3, 0.8, 8, block=1.0, lease=0.01)]
    seen = info("x", 0.4, 0.5, "exclusive", ("a", 7, 1), queue=("b", "c"))
    held = acquire("a", 0.0, 0.1, 7, lease=0.6)
    only_fault("passed in line", held, *asks, seen)
    seen = info("x", 0.4, 0.5, "exclusive", ("a", 7, 1), queue=("c", "b"))
    assert faults([held, *asks, seen]) == []


# G7


def test_an_early_nil():
    only_fault("nil too early", acquire("b", 0.0, 0.1, None, block=0.2))
    only_fault("nil too early", several("b", 0.0, 9.0, None, block=inf))
    asked = acquire("b", 0.0, 0.1, None, block=0.2)
    assert faults([asked, release("b", 0.05, 0.07, 0)]) == []
    only_fault("nobody took its place", asked._replace(error="UNBLOCKED a newer request"))


def test_an_error_that_no_client_should_get():
    only_fault("strange error", acquire("b", 0.0, 0.1, None, error="ERR syntax"))


# G9


def test_the_holder_asks_again():
    held = acquire("a", 0.0, 0.1, 7)
    only_fault("asked again", held, acquire("a", 0.2, 0.3, None))
    only_fault("asked again", held, shared("a", 0.2, 0.3, None))
    only_fault("asked again", several("a", 0.0, 0.1, 7), several("a", 0.2, 0.3, None))
    only_fault("another token", held, acquire("a", 0.2, 0.3, 8))
    assert faults([shared("a", 0.0, 0.1, 7), acquire("a", 0.2, 0.3, None)]) == []


def test_two_requests_at_once_may_be_served_the_other_way_round():
    one, other = acquire("a", 0.0, 0.5, 9, block=1.0), acquire("a", 0.1, 0.4, 8, block=1.0)
    broken = delete(0.3, 0.45)
    assert faults([one, other, broken, count("a", 0.6, 0.7, 1, 9), release("a", 0.8, 0.9)]) == []
    only_fault("lives on", one, other, broken, count("a", 0.6, 0.7, 1, 8))
    both_faults("token went down", "another token", one, acquire("a", 0.6, 0.7, 8, lease=0.1))


# G11


def test_a_cycle_that_cannot_be():
    held = [acquire("a", 0.0, 0.1, 7), acquire("b", 0.1, 0.2, 8, lock="gate")]
    waits = acquire("a", 0.2, 0.9, None, lock="gate", block=0.7)
    right = ("b", "door", "a"), ("a", "gate", "b")
    assert faults([*held, waits, deadlock("b", 0.4, 0.5, *right)]) == []
    only_fault("did not wait", *held, deadlock("b", 0.4, 0.5, *right))
    only_fault("was not at", held[1], waits, deadlock("b", 0.4, 0.5, *right))
    only_fault("no cycle", *held, waits, deadlock("b", 0.4, 0.5, right[0]))
    only_fault("no cycle", *held, waits, deadlock("b", 0.4, 0.5))
    both = waits, acquire("b", 0.3, 0.9, None, block=0.6)
    only_fault("a cycle of others", *held, *both, deadlock("x", 0.4, 0.5, *right))
    # The last holder of a semaphore that could continue; the cycle may be that of another holder.
    permits = [permit("x", 0.0, 0.1, 7), permit("a", 0.0, 0.1, 8)]
    both = waits, permit("b", 0.2, 0.9, None, block=0.7)
    refused = deadlock("x", 0.4, 0.5, ("a", "gate", "b"), ("b", "door", "a"), lock="gate")
    assert faults([*permits, held[1]._replace(reply=9), *both, refused]) == []


def test_kinds_that_do_not_agree():
    held = acquire("a", 0.0, 0.1, 7)
    other = "LOCKKIND this lock is exclusive or SHARED now"
    only_fault("of the same kind", held, shared("b", 0.2, 0.3, None, error=other))
    only_fault("of another kind", held, permit("b", 0.2, 0.3, None))
    assert faults([held, permit("b", 0.2, 0.3, None, error=other)]) == []


# G12


def test_a_part_of_a_grant():
    both = several("a", 0.0, 0.5, 7)
    only_fault("a part of a grant", both, held_by("a", 0.1, 0.2, row("door", 7)))
    # One lock of it was seen held while another one was still another's.
    seen = info("x", 0.1, 0.2, "exclusive", ("a", 7, 1))
    only_fault("two holders", acquire("b", 0.0, 0.1, 6, lock="gate", lease=0.4), both, seen)
    # A request that got nothing was seen to hold something.
    refused = several("a", 0.0, 0.5, None)
    only_fault("nobody was granted", refused, seen)
    only_fault("nobody was granted", refused, held_by("a", 0.1, 0.2, row("gate", 7)))
    only_fault("another's token", both, held_by("b", 0.6, 0.7, row("gate", 7), row("door", 7)))


def test_views_that_cannot_be():
    held = [permit("a", 0.0, 0.1, 7), permit("b", 0.0, 0.1, 8)]
    three = ("a", 7, 1), ("b", 8, 1), ("c", 9, 1)
    late = permit("c", 0.0, 0.9, 9)
    seen = info("x", 0.2, 0.3, "limit 2", *three)
    both_faults("too many holders", "3 holders", *held, late, seen)
    only_fault("it was held", *held, info("x", 0.2, 0.3, "exclusive", ("a", 7, 1)))
    only_fault("another's token", held[0], info("x", -2.0, -1.0, "limit 2", ("a", 7, 1)))


def test_the_spans_in_which_a_hold_is_certain():
    history = [
        acquire("a", 0.0, 0.1, 7), delete(0.3, 0.4), fence("a", 0.35, 0.5, 1, token=7),
        shared("b", 1.0, 1.1, 8, lease=2.0),
        acquire("b", 1.2, 1.3, 9), renew("b", 1.4, 1.5, lease=0.3),
        shared("b", 1.6, 1.65, 9, lease=0.5), release("b", 1.9, 2.0),
    ]  # fmt: skip
    spans = [(*span[:2], span[2]) for hold in Evidence(history).holds for span in hold.spans()]
    assert spans == [
        (0.1, 0.35, "exclusive"), (1.1, 1.2, "shared"),
        (1.3, 1.6, "exclusive"), (1.6, 1.9, "shared"),
    ]  # fmt: skip
