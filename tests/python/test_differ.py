"""The parts of `make differ`, which is itself no part of these tests: each judge must see its own faults."""

import pytest

from checkers.answers import misanswered
from checkers.counts import miscounted, unbalanced
from checkers.events import can_lead, disordered, overwritten
from checkers.liveness import idle
from checkers.replication import differing
from checkers.view import NOTHING, NOW, TOTALS, Place, View
from differ.play import Request, shown, unanswered
from differ.run import CROWDED, Differ, Found, told, without_crowds
from differ.script import LONG_MS, NAMES, Author, Step
from differ.shrink import kind_of, shrunk
from harness.limits import VALGRIND
from harness.wire import ServerError
from likeness.real import Real, build, command_of
from likeness.script import Author as Playwright
from likeness.told import Names, differences, flat, simulated

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
    """A server that shows just this; INFO and HELDBY agree with it by default."""
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
    assert differing(view({A: lock(hold("o1"), ttl=31_000)}), {"a copy": older}) == []


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
    found = differing(view({A: lock(hold("o1"), ttl=30_000)}), {"a copy": view({A: other})})
    assert found and found[0].startswith("differs: a copy: (0, 'a')"), found


def test_digests_and_counts_of_copies_are_compared():
    # G13, G15
    assert differing(view(), {"a copy": view(digest="1")}) == ["differs: a copy: the digests"]
    assert differing(view(), {"a copy": view(holds=1)}) == ["differs: a copy: INFO counts 1 holds, not 0"]


# Events


def events(text, place=A):
    """Events of one lock, by the last part of their names; 'restore' is the server's own."""
    return [(place, word if word == "restore" else f"lock.{word}") for word in text.split()]


@pytest.mark.parametrize("start, text, end", [
    (0, "", 0),
    (0, "acquired", 1),
    (1, "broken acquired", 1),
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
    assert can_lead(start, end, [event for _, event in events(text)])


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
    found = disordered(view(before), view(after), [(None, "FLUSHALL"), *events(text)])
    assert len(found) == 1 and found[0].startswith("events: (0, 'a')"), found
    assert disordered(view(), view(), events("acquired released", B)) == []


def test_a_grant_over_a_written_value_is_seen():
    # CONTRACT 5
    written = view({A: Place("string", -1)})
    assert overwritten(written, [(A, "set")]) == []
    assert overwritten(view({A: lock(hold("o"))}), [(A, "set"), (A, "del"), (A, "lock.acquired")]) == []
    assert overwritten(view(), [(A, "set"), (None, "FLUSHALL")]) == []
    assert overwritten(view({A: lock(hold("o"))}), [(A, "set"), (A, "lock.acquired")]) != []
    assert overwritten(view(), [(A, "set")]) == [f"overwritten: {A}: what was written is gone"]


def test_a_grant_published_late_is_not_taken_for_one_over_a_written_value():
    # G15: a key is removed in a script, a lock is taken there, and a client writes over it, all in one turn of the
    # server
    late = [(A, "del"), (A, "set"), *events("broken acquired broken")]
    assert overwritten(view({A: Place("string", -1)}), late) == []
    assert overwritten(view({A: lock(hold("o"))}), late[:-1]) != []
    assert overwritten(view(), [*late[:-1], (A, "del"), late[-1]]) != []


# Counts


def test_info_and_heldby_agree_with_lock_info():
    # G15
    seen = view({A: lock(hold("o1"), queue=[waiter("o2")]), B: lock(hold("o1"))})
    assert miscounted(seen) == []
    for name in NOW:
        assert miscounted(seen._replace(info=seen.info | {name: 7})) != []
    assert miscounted(seen._replace(held_by=seen.held_by | {"o1": []})) != []
    assert miscounted(seen._replace(held_by=seen.held_by | {"o9": [("a", "held", "shared", 3)]})) != []


def test_the_key_of_an_empty_lock_may_count_as_a_lock():
    empty = {A: Place("redislock", -1)}
    assert miscounted(view(empty)) == miscounted(view(empty, locks=1)) == []
    assert miscounted(view(locks=1)) != []


def test_counters_move_by_what_is_published():
    # G15
    before, one = view(), {A: lock(hold("o"))}
    assert unbalanced(before, view(one, grants=1), events("acquired")) == []
    assert unbalanced(before, view(one, grants=2), events("acquired")) != []
    assert unbalanced(before, view(one), []) != [], "nobody was granted what is held"
    assert unbalanced(before, view(one), events("restore")) == [], "but by a RESTORE"
    assert unbalanced(view(one), view(), []) != [], "broken in silence"
    assert unbalanced(view(one), view(broken=1), []) != [], "and not published"
    assert unbalanced(view(one), view(broken=1), events("broken")) == []


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
def test_a_waiter_for_a_free_lock_is_seen(place):
    # G6
    assert len(idle(view({A: place}), MOST)) == 1


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
def test_a_waiter_that_has_to_wait_is_no_fault(place):
    # G5
    assert idle(view({A: place}), MOST) == []


def test_a_reader_beyond_max_holders_has_to_wait():
    place = lock(hold("h"), hold("i"), kind="shared", queue=[waiter("r", "shared")])
    assert idle(view({A: place}), 2) == [] and idle(view({A: place}), 3) != []


def test_a_request_for_several_needs_all_of_them():
    # G12
    party = waiter("p", client=5)
    assert idle(view({A: lock(queue=[party]), B: lock(queue=[party])}), MOST) != []
    assert idle(view({A: lock(queue=[party]), B: lock(hold("h"), queue=[party])}), MOST) == []
    assert idle(view({A: lock(queue=[party]), B: lock(queue=[queued("q"), party])}), MOST) == []


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
    assert misanswered([older, refused]) != [] and misanswered([older, several]) != []
    assert misanswered([older]) != []
    for newer in ("LOCK.ACQUIRE a o1 PX 9 BLOCK 0", "LOCK.MACQUIRE 2 b a o1 PX 9", "EXEC"):
        assert misanswered([older, refused, request(newer, 7)]) == []
    minted = request("LOCK.ACQUIRE a * PX 9 BLOCK 0", TAKEN_OVER)
    assert misanswered([minted, request("LOCK.ACQUIRE a 0c32 PX 9", 7)]) == []
    for other in ("LOCK.ACQUIRE a o2 PX 9", "LOCK.ACQUIRE b o1 PX 9", "GET a"):
        assert misanswered([older, request(other, 7)]) != []


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


def test_a_fault_is_reported_with_the_command_that_repeats_it():
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
    # G13: a writable replica that receives a write
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


# The simulated server against real ones


def test_a_seed_always_draws_the_same_play_with_all_there_is():
    assert Playwright("7.0").steps(60) == Playwright("7.0").steps(60) != Playwright("7.1").steps(60)
    steps = [step.split("\t") for seed in range(300) for step in Playwright(f"1.{seed}").steps(60)]
    acts = {words[0] for words in steps}
    assert acts == {
        "round", "send", "pass", "close", "kill", "unblock", "unblock-error", "set", "forbid", "allow", "unpause",
        "demote", "promote", "attach", "ack", "reload", "load-file",
        "failover", "failover-abort", "slot",
    }  # fmt: skip
    words = {word for step in steps for word in step}
    assert words >= {"LOCK.ACQUIRE", "LOCK.MACQUIRE", "LOCK.RELEASE", "LOCK.RENEW", "LOCK.FENCE", "LOCK.EXEC"}
    assert words >= {"SHARED", "LIMIT", "REENTRANT", "EPHEMERAL", "KEEPALIVE", "BLOCK", "QUEUE", "RAISE", "TOKEN"}
    assert words >= {"DEL", "UNLINK", "SET", "PEXPIRE", "PERSIST", "RENAME", "MOVE", "COPY", "DUMP", "RESTORE"}
    assert words >= {"FLUSHALL", "FLUSHDB", "SWAPDB", "MULTI", "EXEC", "DISCARD", "WATCH", "EVAL", "PAUSE"}
    assert words >= {"NX", "legacy-strings", "cluster", "leaves", "left", "ours"}


def test_a_reply_is_printed_in_parts():
    reply = [{"kind": "shared", "client-id": 17}, True, None, "7", 7, FULL]
    words = ["*6", "%2", "$kind", "$shared", "$client-id", "$c3", "#true", "_", "$7", ":7", f"-{FULL.line}"]
    assert flat(reply, {17: "c3"}) == words
    assert flat(ServerError("READONLY You can't write"), {}) == ["-READONLY"]
    no_right = ServerError("ERR The user executing the script can't run this command or subcommand")
    assert flat(no_right, {}) == ["-NOPERM"]


def test_what_minted_owners_are_called():
    owner = "5d3a9b1e-7c7b-4f6a-9d7e-0123456789ab"
    names = Names()
    assert names.plain(f"reply\tc1\t${owner}") == "reply\tc1\t$minted0"
    blocks = [b"\1\0" + b"name and kind", b"\1\1" + owner.encode()]
    payload = ",".join(f"x{block.hex()}" for block in blocks)
    assert names.plain(f"stream\t{payload}\tREPLACE") == "stream\tname and kindminted0\tREPLACE"


def test_a_file_is_read_by_commands():
    data = b"#TS:1\r\n*2\r\n$3\r\ndel\r\n$1\r\na\r\n*1\r\n$4\r\nEXEC\r\n"
    words, rest = command_of(data)
    assert words == [b"DEL", b"a"] and command_of(rest) == ([b"EXEC"], b"")


def test_differences_are_seen_whatever_they_are_in():
    lines = ["reply\tc1\t:1", "event\t0\ta\tlock.acquired", "file\t0\tDEL\ta", "changed\ta", "place\t0\ta\tnone\t-2\t_"]
    assert differences(lines, lines) == []
    for missing in range(len(lines)):
        fewer = lines[:missing] + lines[missing + 1 :]
        assert any(lines[missing] in line for line in differences(lines, fewer))
        assert any(lines[missing] in line for line in differences(fewer, lines))
    two = ["event\t0\ta\tlock.released", "event\t0\ta\tlock.acquired"]
    assert differences(two, two[::-1]) != []
    replies = ["reply\tc1\t:1", "reply\tc2\t:2"]
    assert differences(replies, replies[::-1]) == [], "nobody can tell whom of two clients is answered first"
    broken = ["event\t0\ta\tlock.broken", "event\t0\tb\tlock.broken"]
    assert differences(broken, broken[::-1]) == [], "locks that are broken together have no order"


def test_what_becomes_of_locks_at_one_moment_has_no_order_where_a_server_has_loaded_its_keys():
    file = ["file\t-\tMULTI", "file\t0\tLOCK.APPLY\ta\tENDED\t1", "file\t0\tLOCK.APPLY\tb\tENDED\t1", "file\t-\tEXEC"]
    events = ["event\t0\ta\tlock.expired", "event\t0\tb\tlock.expired"]
    for lines in (file, events):
        swapped = [*file[:1], *file[2:0:-1], *file[3:]] if lines is file else events[::-1]
        assert differences(lines, swapped) != []
        assert differences(lines, swapped, is_reloaded=True) == []
    assert differences(events, events[:1], is_reloaded=True) != []


def test_what_the_simulated_server_tells_is_read_by_rounds():
    text = "step\t1\tround\nstep\t2\tsend\t1\t0\tGET\ta\nreply\tc1\t-NOPERM no\t$client-id\t:301\n"
    steps = [("round", []), ("send\t1\t0\tGET\ta", ["reply\tc1\t-NOPERM\t$client-id\t$c1"])]
    assert simulated(text + text) == [steps, steps]


@pytest.mark.skipif(VALGRIND, reason="time stands still")
def test_time_on_a_server_advances_only_on_request(tmp_path):
    real = Real(build(tmp_path), tmp_path, 1)
    try:
        steps = ["round", "send\t1\t0\tLOCK.ACQUIRE\ta\to1\tPX\t51", "pass\t40", "pass\t20"]
        told_of = dict(real.plays(steps))
    finally:
        real.ends()
    place = "place\t0\ta\tredislock\t-1\t%6\t$kind\t$exclusive\t$limit\t_\t$holds\t:1\t$holders\t*1\t%8\t$owner\t$o1"
    first, second, last = (told_of[step] for step in steps[1:])
    assert "reply\tc1\t:1700000000000000" in first and "event\t0\ta\tlock.acquired" in first and "changed\ta" in first
    assert any(line.startswith(f"{place}\t$token\t:1700000000000000\t$lease-left-ms\t:49\t") for line in first)
    # Each step takes two milliseconds.
    assert any("$lease-left-ms\t:7\t$held-ms\t:44" in line for line in second)
    assert "event\t0\ta\tlock.expired" in last and any("\tENDED\t" in line for line in last)
    assert "file\t0\tLOCK.APPLY\ta\tENDED\t1700000000000000" in last
