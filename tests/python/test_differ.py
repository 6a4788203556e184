"""The parts of `make differ`, which is itself no part of these tests: each judge must see what it is there for."""

import pytest

from differ import judges
from differ.look import NOTHING, NOW, TOTALS, Place, View
from differ.play import Request, shown, unanswered
from differ.run import CROWDED, Differ, Found, told, without_crowds
from differ.script import LONG_MS, NAMES, Author, Step
from differ.shrink import kind_of, shrunk
from harness.limits import VALGRIND
from harness.wire import ServerError

A, B = (0, "a"), (0, "b")


def hold(owner, token=1, left=600_000, count=1):
    return {"owner": owner, "token": token, "lease-left-ms": left, "count": count, "keepalive": False}


def waiter(owner, mode="exclusive", client=9, state="blocked"):
    return {"owner": owner, "mode": mode, "state": state, "client-id": client if state == "blocked" else None}


def queued(owner, mode="exclusive"):
    return waiter(owner, mode, state="queued")


def lock(*holders, kind="exclusive", limit=None, queue=(), ttl=-1):
    return Place("redislock" if holders else "none", ttl if holders else -2, kind, limit, holders, tuple(queue))


def view(places=None, digest="0", **info):
    """A server that shows just this; INFO and HELDBY agree with it unless told otherwise."""
    seen = View({(db, name): NOTHING for db in (0, 1) for name in NAMES} | (places or {}), {}, {}, digest)
    held = seen.holders()
    numbers = dict.fromkeys(NOW + TOTALS, 0)
    numbers |= {"locks": len({place for place, _ in held}), "holds": len(held), "waiters": len(seen.waiters())}
    lists = {each["owner"]: [] for _, each in held + seen.waiters()}
    for (_, name), each in held:
        lists[each["owner"]].append((name, "held", "exclusive", each["token"]))
    for (_, name), each in seen.waiters():
        lists[each["owner"]].append((name, "waiting", "exclusive", None))
    return View(seen.places, numbers | info, lists, digest)


# Copies


def test_equal_copies_do_not_differ():
    # G13
    older = view({A: lock(hold("o1", left=599_000), ttl=30_000)})
    assert judges.differing(view({A: lock(hold("o1"), ttl=31_000)}), {"a copy": older}) == []


@pytest.mark.parametrize("other", [
    lock(hold("o1")),
    lock(hold("o1"), ttl=500_000),
    lock(hold("o2"), ttl=30_000),
    lock(hold("o1", token=2), ttl=30_000),
    lock(hold("o1", count=2), ttl=30_000),
    lock(hold("o1", left=1_000), ttl=30_000),
    lock(hold("o1"), hold("o2"), ttl=30_000),
    lock(hold("o1"), ttl=30_000, kind="shared"),
    Place("string", 30_000),
    NOTHING,
])  # fmt: skip
def test_copies_that_differ_are_seen(other):
    # G13
    found = judges.differing(view({A: lock(hold("o1"), ttl=30_000)}), {"a copy": view({A: other})})
    assert found and found[0].startswith("differs: a copy: (0, 'a')"), found


def test_digests_and_counts_of_copies_are_compared():
    # G13, G15
    assert judges.differing(view(), {"a copy": view(digest="1")}) == ["differs: a copy: the digests"]
    assert judges.differing(view(), {"a copy": view(holds=1)}) == ["differs: a copy: INFO counts 1 holds, not 0"]


# Events


def events(text, place=A):
    """Events of one lock, by the last part of their names; 'restore' is the server's own."""
    return [(place, word if word == "restore" else f"lock.{word}") for word in text.split()]


@pytest.mark.parametrize("start, text, end", [
    (0, "", 0),
    (0, "acquired", 1),
    (1, "broken acquired", 1),
    (1, "acquired", 1),  # an upgrade
    (0, "acquired acquired released expired", 0),
    (3, "broken acquired released", 0),
    (0, "restore", 1),
    (0, "restore broken", 0),
    (1, "restore broken", 1),
    (1, "restore", 1),  # of the very lock that is there
    (1, "restore broken acquired", 1),
    (0, "restore acquired broken", 1),  # what waited for its turn is told behind it
    (2, "broken expired", 0),  # one of two was over when the lock was broken
])  # fmt: skip
def test_lives_that_a_lock_can_have(start, text, end):
    # G15
    assert judges.can_lead(start, end, [event for _, event in events(text)])


@pytest.mark.parametrize("start, text, end", [
    (0, "", 1),
    (1, "", 0),  # broken in silence
    (1, "acquired broken", 1),  # told the wrong way round
    (0, "acquired acquired broken", 1),
    (0, "broken", 0),
    (0, "released", 0),
    (1, "released expired", 0),
    (1, "broken broken", 0),
    (0, "acquired", 0),
])  # fmt: skip
def test_lives_that_no_lock_can_have(start, text, end):
    # G15
    before, after = ({A: lock(*(hold(f"o{n}") for n in range(number)))} for number in (start, end))
    found = judges.disordered(view(before), view(after), [(None, "FLUSHALL"), *events(text)])
    assert len(found) == 1 and found[0].startswith("events: (0, 'a')"), found
    assert judges.disordered(view(), view(), events("acquired released", B)) == []


def test_a_grant_over_what_was_written_is_seen():
    # CONTRACT 5
    written = view({A: Place("string", -1)})
    assert judges.overwritten(written, [(A, "set")]) == []
    assert judges.overwritten(view({A: lock(hold("o"))}), [(A, "set"), (A, "del"), (A, "lock.acquired")]) == []
    assert judges.overwritten(view(), [(A, "set"), (None, "FLUSHALL")]) == []
    assert judges.overwritten(view({A: lock(hold("o"))}), [(A, "set"), (A, "lock.acquired")]) != []
    assert judges.overwritten(view(), [(A, "set")]) == [f"overwritten: {A}: what was written is gone"]


def test_a_grant_that_was_published_late_is_not_held_to_be_one_over_what_was_written():
    # G15: a key goes in a script, a lock is taken there, and somebody writes over it, all in one turn of the server
    late = [(A, "del"), (A, "set"), *events("broken acquired broken")]
    assert judges.overwritten(view({A: Place("string", -1)}), late) == []
    assert judges.overwritten(view({A: lock(hold("o"))}), late[:-1]) != []
    assert judges.overwritten(view(), [*late[:-1], (A, "del"), late[-1]]) != []


# Counts


def test_info_and_heldby_are_what_info_lists():
    # G15
    seen = view({A: lock(hold("o1"), queue=[waiter("o2")]), B: lock(hold("o1"))})
    assert judges.miscounted(seen) == []
    for name in NOW:
        assert judges.miscounted(seen._replace(info=seen.info | {name: 7})) != []
    assert judges.miscounted(seen._replace(held_by=seen.held_by | {"o1": []})) != []
    assert judges.miscounted(seen._replace(held_by=seen.held_by | {"o9": [("a", "held", "shared", 3)]})) != []


def test_the_key_of_an_empty_lock_may_count_as_a_lock():
    empty = {A: Place("redislock", -1)}
    assert judges.miscounted(view(empty)) == judges.miscounted(view(empty, locks=1)) == []
    assert judges.miscounted(view(locks=1)) != []


def test_counters_move_by_what_is_published():
    # G15
    before, one = view(), {A: lock(hold("o"))}
    assert judges.unbalanced(before, view(one, grants=1), events("acquired")) == []
    assert judges.unbalanced(before, view(one, grants=2), events("acquired")) != []
    assert judges.unbalanced(before, view(one), []) != [], "nobody was granted what is held"
    assert judges.unbalanced(before, view(one), events("restore")) == [], "but by a RESTORE"
    assert judges.unbalanced(view(one), view(), []) != [], "broken in silence"
    assert judges.unbalanced(view(one), view(broken=1), []) != [], "and not published"
    assert judges.unbalanced(view(one), view(broken=1), events("broken")) == []
    assert judges.unbalanced(before, view(one, grants=2, releases=1), events("acquired acquired")) == [], "an upgrade"


# Waiting


MOST = 1000
BUSY = lock(hold("h"), queue=[waiter("w")])
READ = lock(hold("h"), kind="shared", queue=[waiter("w"), waiter("r", "shared", 8)])


@pytest.mark.parametrize("place", [
    lock(queue=[waiter("w")]),
    lock(queue=[waiter("w", "shared")], kind="shared"),
    lock(hold("h"), kind="shared", queue=[waiter("r", "shared")]),
    lock(hold("w"), kind="shared", queue=[waiter("w")]),
    lock(kind="shared", queue=[*(queued(f"r{n}", "shared") for n in range(65)), waiter("r", "shared")]),
    lock(kind="limit", limit=300, queue=[*(queued(f"r{n}", "limit") for n in range(99)), waiter("r", "limit")]),
    lock(hold("h"), kind="limit", limit=3, queue=[queued("q", "limit"), waiter("r", "limit")]),
    Place("string", -1, "exclusive", None, (), (waiter("w"),)),
])  # fmt: skip
def test_whoever_waits_for_what_is_free_is_seen(place):
    # G6
    assert len(judges.idle(view({A: place}), MOST)) == 1


@pytest.mark.parametrize("place", [
    BUSY,
    READ,
    lock(queue=[queued("q"), waiter("w")]),
    lock(queue=[queued("q", "shared"), waiter("w")]),
    lock(queue=[queued("q")]),
    lock(hold("h"), hold("w"), kind="shared", queue=[waiter("w")]),
    lock(hold("h"), kind="limit", limit=2, queue=[queued("q", "limit"), waiter("r", "limit")]),
    lock(hold("h"), hold("i"), kind="limit", limit=2, queue=[waiter("r", "limit")]),
    lock(hold("h"), kind="shared", queue=[queued("q"), waiter("r", "shared")]),
])  # fmt: skip
def test_whoever_has_to_wait_is_not_accused_of_it(place):
    # G5
    assert judges.idle(view({A: place}), MOST) == []


def test_readers_stop_at_the_setting():
    place = lock(hold("h"), hold("i"), kind="shared", queue=[waiter("r", "shared")])
    assert judges.idle(view({A: place}), 2) == [] and judges.idle(view({A: place}), 3) != []


def test_a_request_for_several_needs_all_of_them():
    # G12
    party = waiter("p", client=5)
    assert judges.idle(view({A: lock(queue=[party]), B: lock(queue=[party])}), MOST) != []
    assert judges.idle(view({A: lock(queue=[party]), B: lock(hold("h"), queue=[party])}), MOST) == []
    assert judges.idle(view({A: lock(queue=[party]), B: lock(queue=[queued("q"), party])}), MOST) == []


# Answers


def request(words, reply=None, is_open=False, client=1):
    return Request(1, client, 0, tuple(words.split()), reply, is_open)


TAKEN_OVER = ServerError("UNBLOCKED a newer request of the same owner took over this place in the queue")
FULL = ServerError("LOCKQUEUE 1 requests wait for this lock already")


def test_a_place_that_is_lost_to_a_refused_request_is_seen():
    # G9
    older = request("LOCK.ACQUIRE a o1 PX 9 BLOCK 0", TAKEN_OVER)
    refused = request("LOCK.ACQUIRE a o1 PX 9 BLOCK 0", FULL)
    several = request("LOCK.MACQUIRE 2 a b o1 PX 9 BLOCK 0", ServerError("DEADLOCK this wait would never end"))
    assert judges.misanswered([older, refused]) != [] and judges.misanswered([older, several]) != []
    assert judges.misanswered([older]) != []
    for newer in ("LOCK.ACQUIRE a o1 PX 9 BLOCK 0", "LOCK.MACQUIRE 2 b a o1 PX 9", "EXEC"):
        assert judges.misanswered([older, refused, request(newer, 7)]) == []
    minted = request("LOCK.ACQUIRE a * PX 9 BLOCK 0", TAKEN_OVER)
    assert judges.misanswered([minted, request("LOCK.ACQUIRE a 0c32 PX 9", 7)]) == []
    for other in ("LOCK.ACQUIRE a o2 PX 9", "LOCK.ACQUIRE b o1 PX 9", "GET a"):
        assert judges.misanswered([older, request(other, 7)]) != []


def test_requests_without_an_answer_are_seen():
    # G7
    class Client:
        id, open = 9, [request("LOCK.ACQUIRE a w PX 9 BLOCK 0", is_open=True)]

    assert unanswered([Client()], view({A: BUSY})) == []
    assert unanswered([Client()], view()) == [f"answers: never answered: {Client.open[0]}"]


# Scripts


def test_a_seed_always_draws_the_same_script():
    assert Author("7.0").steps(60) == Author("7.0").steps(60) != Author("7.1").steps(60)


def test_scripts_have_all_there_is():
    steps = [step for seed in range(80) for step in Author(f"1.{seed}").steps(40)]
    acts = {step.act for step in steps}
    assert acts >= {"send", "rest", "copies", "close", "drop", "kill", "unblock", "unblock-error"}
    assert acts >= {"reload", "roles", "failover", "rewrite"}
    words = {str(word) for step in steps for command in step.commands for word in command}
    assert words >= {"LOCK.ACQUIRE", "LOCK.MACQUIRE", "LOCK.RELEASE", "LOCK.RENEW", "LOCK.FENCE", "LOCK.EXEC"}
    assert words >= {"SHARED", "LIMIT", "REENTRANT", "EPHEMERAL", "KEEPALIVE", "BLOCK", "QUEUE", "RAISE", "TOKEN"}
    assert words >= {"DEL", "UNLINK", "SET", "SUNIONSTORE", "PEXPIRE", "PERSIST", "RENAME", "MOVE", "COPY", "DUMP"}
    assert words >= {"RESTORE", "FLUSHALL", "FLUSHDB", "SWAPDB", "MULTI", "EVAL", "PAUSE", "redislock.max-waiters"}
    assert len([word for word in words if word.startswith("r") and word[1:].isdigit()]) > 64
    assert all(Author(f"1.{seed}").steps(5)[-1] == Step("rest") for seed in range(9))


# What is told


def test_fewer_steps_are_found():
    steps = list(range(40))
    assert shrunk(steps, lambda some: {7, 31} <= set(some), 60.0) == [7, 31]
    assert shrunk(steps, lambda some: False, 60.0) == steps
    assert shrunk(steps, lambda some: True, 0.0) == steps
    assert kind_of(["idle: o1 waits", "counts: 1"]) == "idle"


def test_a_fault_is_told_with_what_repeats_it():
    lines = ["  1 c1 db 0: LOCK.ACQUIRE a o1 PX 9 -> 7", *(f"  2 c1 db 0: LOCK.ACQUIRE a r{n} PX 9" for n in range(9))]
    text = told(Found(3, [(1, Step("send")), (4, Step("rest"))], ["idle: o1 waits"], lines), 7)
    assert "FAULT idle: o1 waits" in text and "--seed 7 --round 3 --steps 1,4" in text
    assert text.count("LOCK.ACQUIRE a r") == 2 and text.count(CROWDED) == 1
    assert without_crowds(lines[:1]) == lines[:1]
    assert shown(b"\x00a") == '"\\x00\\x61"' and shown("two words") == '"two words"'
    assert shown(FULL) == f"({FULL.line})"


# On real servers


@pytest.mark.timeout(120)
@pytest.mark.skipif(VALGRIND, reason="three servers, and as many more that load their files")
def test_a_copy_that_was_changed_is_seen():
    # G13: a writable replica in which somebody writes
    with Differ("test") as differ:
        taken = (1, Step("send", 0, (("LOCK.ACQUIRE", "a", "o1", "PX", LONG_MS[0]),)))
        steps = [taken, (2, Step("copies")), *((3, Step(act)) for act in ("reload", "roles", "rest"))]
        assert differ.plays(0, steps).faults == []
        replica = differ.chain.nodes[1]
        replica.admin("CONFIG SET replica-read-only no")
        # In the middle of the round, for it begins with empty servers.
        differ.tell = lambda line: replica.admin("SET b theirs")
        found = differ.plays(0, [taken, (2, Step("rest"))]).faults
        assert "differs: the replica: (0, 'b'): type none, there string" in found
