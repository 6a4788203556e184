"""Waits that would never end are refused (G11), and only those.

A cycle: each owner in it holds a lock that another one waits for, and none can continue.
"""

import random

import pytest

from harness.kinds import (
    ask, ask_all, count, line_of, owners_of, release, take, take_all,
)  # fmt: skip
from harness.limits import eventually
from harness.wire import ServerError, refused


def chain(server, cli, size, block_ms=0):
    """o0 holds l0 and waits for l1, which o1 holds, and so on; the last one waits for nothing."""
    for n in range(size):
        take(cli, f"l{n}", f"o{n}")
    return [ask(server, f"l{n + 1}", f"o{n}", block_ms=block_ms) for n in range(size - 1)]


def refusal(cli, *command):
    """The error that a command gets."""
    try:
        reply = cli(*command)
    except ServerError as error:
        return error.line
    raise AssertionError(f"accepted: {reply}")


def test_a_position_that_is_kept_is_a_wait_while_it_lasts(cli):
    # G11
    take(cli, "left", "ann")
    take(cli, "right", "ben")
    assert cli("LOCK.ACQUIRE right ann PX 60000 QUEUE 60000") is None
    assert refusal(cli, "LOCK.ACQUIRE left ben PX 60000 QUEUE 60000").startswith("DEADLOCK")
    # The position for ann is given up, and then there is no cycle any more.
    assert cli("LOCK.RELEASE right ann TOKEN 1") == 0
    assert cli("LOCK.ACQUIRE left ben PX 60000 QUEUE 60000") is None
    assert cli("LOCK.ACQUIRE left ben PX 60000 QUEUE 200") is None
    assert refusal(cli, "LOCK.ACQUIRE right ann PX 60000 QUEUE 60000").startswith("DEADLOCK")
    eventually(lambda: count(cli, "waiters") == 0, "ben's position has lapsed")
    assert cli("LOCK.ACQUIRE right ann PX 60000 QUEUE 60000") is None


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("block_ms", [0, 600_000])
def test_the_wait_that_closes_a_cycle_is_refused(server, cli, size, block_ms):
    # G11
    before = count(cli, "deadlocks")
    waiters = chain(server, cli, size, block_ms)
    last = f"o{size - 1}"
    error = refusal(cli, f"LOCK.ACQUIRE l0 {last} PX 60000 BLOCK {block_ms}")
    assert error.startswith("DEADLOCK ")
    for n in range(size):
        assert f"'o{n}'" in error and f"'l{n}'" in error, error
    assert "\n" not in error
    assert count(cli, "deadlocks") == before + 1
    # no trace of it
    assert line_of(cli, "l0") == []
    assert owners_of(cli, f"l{size - 1}") == [last]
    assert all(waiter.waits() for waiter in waiters)
    assert server.info("clients")["blocked_clients"] == str(size - 1)
    # the others continue when it gives up its locks
    release(cli, f"l{size - 1}", last)
    for n in reversed(range(size - 1)):
        assert isinstance(waiters[n].answer(), int)
        release(cli, f"l{n}", f"o{n}")


def test_a_refused_owner_may_ask_without_waiting(server, cli):
    # an error only for a wait
    chain(server, cli, 2)
    assert take(cli, "l0", "o1") is None
    replies = cli.pipeline("MULTI", "LOCK.ACQUIRE l0 o1 PX 60000 BLOCK 0", "EXEC")[-1]
    assert replies == [None]


def test_the_refused_connection_can_continue(server, cli):
    # G7: one answer
    chain(server, cli, 2)
    for _ in range(3):
        with refused("DEADLOCK"):
            take(cli, "l0", "o1", "BLOCK 0")
        assert cli("PING") == "PONG"
    assert count(cli, "waiters") == 1


def test_a_cycle_that_was_broken_is_none(server, cli):
    (waiter,) = chain(server, cli, 2)
    with refused("DEADLOCK"):
        take(cli, "l0", "o1", "BLOCK 0")
    waiter.leave()
    eventually(lambda: count(cli, "waiters") == 0)
    assert ask(server, "l0", "o1").waits()


def test_a_long_chain_is_no_cycle(server, cli):
    # no false alarm
    waiters = chain(server, cli, 60)
    assert all(waiter.is_blocked() for waiter in waiters)
    assert ask(server, "l0", "stranger").waits()
    free = ask(server, "other", "o59")
    assert isinstance(free.answer(), int)


def test_a_long_cycle_is_found_and_reported_in_one_line(server, cli):
    chain(server, cli, 60)
    error = refusal(cli, "LOCK.ACQUIRE l0 o59 PX 60000 BLOCK 0")
    assert error.startswith("DEADLOCK ") and len(error) < 4000


def test_owners_and_names_of_any_bytes_are_reported_in_one_line(server, cli):
    # G14
    strange = [b"a\r\n+OK\r\n", b"\x00\xff" * 60]
    for n in range(2):
        cli("LOCK.ACQUIRE", b"l\n%d" % n, strange[n], "PX", 60000)
    server.ask("LOCK.ACQUIRE", b"l\n1", strange[0], "PX", 60000, "BLOCK", 0)
    reply = cli.bytes_of("LOCK.ACQUIRE", b"l\n0", strange[1], "PX", 60000, "BLOCK", 0)
    assert reply.startswith(b"-DEADLOCK ") and reply.count(b"\r\n") == 1 and len(reply) < 4000


def test_an_expired_lease_is_no_hold(server, cli):
    # no false alarm
    take(cli, "a", "alice")
    take(cli, "b", "bob", lease_ms=50)
    eventually(lambda: owners_of(cli, "b") == [], "bob holds nothing any more")
    take(cli, "b", "carol")
    assert ask(server, "b", "alice").waits()
    assert ask(server, "a", "bob").waits()


def test_a_waiter_for_two_locks_may_get_the_other(server, cli):
    # no false alarm: an owner with two connections can continue with one of them
    take(cli, "a", "alice")
    take(cli, "b", "bob")
    take(cli, "c", "carol")
    for_b, for_c = ask(server, "b", "alice"), ask(server, "c", "alice")
    bob = ask(server, "a", "bob")
    assert bob.waits()
    release(cli, "c", "carol")
    assert isinstance(for_c.answer(), int)
    release(cli, "a", "alice")
    assert isinstance(bob.answer(), int)
    assert for_b.waits()


def test_databases_are_not_mixed_up(server, cli):
    # no false alarm for the same names elsewhere; a cycle over two databases is one
    other = server.connect(db=1)
    take(cli, "a", "alice")
    take(other, "b", "bob")
    take(other, "a", "carol")
    take(cli, "b", "carol")
    assert ask(server, "b", "alice").waits()
    bob = ask(server, "a", "bob", db=1)
    assert bob.waits()
    bob.leave()
    eventually(lambda: count(cli, "waiters") == 1, "bob waits no longer")
    assert ask(server, "b", "alice", db=1).waits()
    release(cli, "b", "carol")
    with refused("DEADLOCK"):
        take(cli, "a", "bob", "BLOCK 0")


# Readers


def test_a_writer_waits_for_every_reader(server, cli):
    take(cli, "door", "r1", "SHARED")
    take(cli, "door", "r2", "SHARED")
    take(cli, "gate", "w")
    writer = ask(server, "door", "w")
    with refused("DEADLOCK", "'r2'", "'w'", "'door'", "'gate'"):
        take(cli, "gate", "r2", "BLOCK 0")
    assert ask(server, "gate", "stranger").waits()
    assert owners_of(cli, "door") == ["r1", "r2"]
    release(cli, "door", "r2")
    release(cli, "door", "r1")
    assert isinstance(writer.answer(), int)


def test_a_reader_after_a_writer_waits_for_the_readers_before_it(server, cli):
    # r1 reads and waits for x; x waits after a writer who waits for r1
    take(cli, "door", "r1", "SHARED")
    take(cli, "gate", "x")
    assert ask(server, "door", "w").waits()
    assert ask(server, "door", "x", "SHARED").waits()
    with refused("DEADLOCK"):
        take(cli, "gate", "r1", "BLOCK 0")


def test_a_reader_who_waits_for_a_writer_elsewhere(server, cli):
    # no false alarm: no request waits for the readers
    take(cli, "door", "r1", "SHARED")
    take(cli, "door", "r2", "SHARED")
    take(cli, "gate", "x")
    assert ask(server, "gate", "r1").waits()
    assert isinstance(take(cli, "door", "x", "SHARED"), int)


# Several locks at once


def test_a_request_for_several_waits_for_each(server, cli):
    for key, owner in (("a", "alice"), ("b", "bob"), ("c", "carol")):
        take(cli, key, owner)
    assert ask_all(server, "b c", "alice").waits()
    for owner in ("bob", "carol"):
        with refused("DEADLOCK", "'alice'", f"'{owner}'", "'a'"):
            take(cli, "a", owner, "BLOCK 0")
    assert line_of(cli, "a") == []


def test_a_request_for_several_that_closes_a_cycle_leaves_no_trace(server, cli):
    take(cli, "a", "alice")
    take(cli, "b", "bob")
    assert ask(server, "a", "bob").waits()
    error = refusal(cli, "LOCK.MACQUIRE 4 x b y z alice PX 60000 BLOCK 0")
    assert error.startswith("DEADLOCK ") and "'b'" in error and "'a'" in error
    for key in "xyz":
        assert cli("LOCK.INFO", key) is None
        assert isinstance(take(cli, key, "other"), int)
    assert line_of(cli, "b") == []
    assert count(cli, "waiters") == 1


def test_a_waiter_after_a_request_for_several_waits_for_it(server, cli):
    # bob holds a and would wait for b, which is free, but alice is ahead, and she waits for a
    take(cli, "a", "bob")
    alice = ask_all(server, "a b", "alice")
    with refused("DEADLOCK", "'alice'", "'bob'"):
        take(cli, "b", "bob", "BLOCK 0")
    assert line_of(cli, "b") == ["alice"]
    assert take(cli, "b", "bob") is None, "G5"
    release(cli, "a", "bob")
    assert isinstance(alice.answer(), int)


def test_two_requests_for_several_are_no_cycle(server, cli):
    # G12: of two such requests one is ahead of the other everywhere
    take(cli, "a", "h")
    take(cli, "b", "h2")
    first = ask_all(server, "a b", "first")
    second = ask_all(server, "b a", "second")
    assert first.waits() and second.waits()
    release(cli, "a", "h")
    release(cli, "b", "h2")
    assert isinstance(first.answer(), int)
    assert second.waits()
    release(cli, "a", "first")
    release(cli, "b", "first")
    assert isinstance(second.answer(), int)


def test_two_holders_that_ask_for_several_can_be_a_cycle(server, cli):
    take(cli, "a", "alice")
    take(cli, "b", "bob")
    assert ask_all(server, "b c", "alice").waits()
    with refused("DEADLOCK"):
        take_all(cli, "a d", "bob", "BLOCK 0")
    assert isinstance(take(cli, "d", "carol"), int)


def test_no_alarm_for_requests_for_several_in_a_row(server, cli):
    # each waits after the one before it, and the first is free to go
    take_all(cli, "a b", "o0")
    waiters = [ask_all(server, f"{x} {y}", f"o{n}") for n, (x, y) in enumerate(["bc", "cd", "da", "ab"], start=1)]
    assert all(waiter.waits() for waiter in waiters)
    release(cli, "a", "o0")
    release(cli, "b", "o0")
    for n, (waiter, keys) in enumerate(zip(waiters, ["bc", "cd", "da", "ab"]), start=1):
        assert isinstance(waiter.answer(), int)
        for key in keys:
            release(cli, key, f"o{n}")


# Semaphores


def test_a_semaphore_is_waited_for_only_if_all_its_holders_are_stuck(server, cli):
    # no false alarm while one permit holder is free to go
    take(cli, "pool", "free", "LIMIT 2")
    take(cli, "pool", "stuck", "LIMIT 2")
    take(cli, "door", "carol")
    assert ask(server, "door", "stuck").waits()
    carol = ask(server, "pool", "carol", "LIMIT 2")
    assert carol.waits()
    assert count(cli, "waiters") == 2
    # the other one gets stuck too: that closes the cycle
    with refused("DEADLOCK", "'carol'", "'free'"):
        take(cli, "door", "free", "BLOCK 0")
    release(cli, "pool", "free")
    assert isinstance(carol.answer(), int)


def test_a_semaphore_whose_holders_are_all_stuck(server, cli):
    take(cli, "door", "carol")
    for n in range(3):
        take(cli, "pool", f"h{n}", "LIMIT 3")
        assert ask(server, "door", f"h{n}").waits()
    with refused("DEADLOCK", "'carol'", "'pool'", "'door'"):
        take(cli, "pool", "carol", "LIMIT 3 BLOCK 0")
    assert line_of(cli, "pool") == []
    assert len(line_of(cli, "door")) == 3


def test_a_semaphore_with_a_permit_left_is_no_wait(server, cli):
    take(cli, "door", "carol")
    take(cli, "pool", "h", "LIMIT 2")
    assert ask(server, "door", "h").waits()
    assert isinstance(take(cli, "pool", "carol", "LIMIT 2 BLOCK 0"), int)


def test_two_semaphores_of_one(server, cli):
    take(cli, "left", "alice", "LIMIT 1")
    take(cli, "right", "bob", "LIMIT 1")
    assert ask(server, "right", "alice", "LIMIT 1").waits()
    with refused("DEADLOCK"):
        take(cli, "left", "bob", "LIMIT 1 BLOCK 0")


def test_dining_at_large_semaphores(server, cli):
    # no false alarm with many holders, one of which can go
    for n in range(200):
        take(cli, "pool", f"h{n}", "LIMIT 200")
    take(cli, "door", "carol")
    for n in range(20):
        ask(server, "door", f"h{n * 10}")
    assert ask(server, "pool", "carol", "LIMIT 200").waits()


def test_reentrant_and_repeated_requests_are_no_cycle(server, cli):
    token = take(cli, "a", "alice", "REENTRANT")
    assert take(cli, "a", "alice", "REENTRANT BLOCK 0") == token
    take(cli, "b", "bob")
    old = ask(server, "b", "alice")
    new = ask(server, "b", "alice")
    with refused("UNBLOCKED"):
        old.answer()
    assert new.waits()


def test_random_waits_end_or_are_refused(server, cli):
    # G11 for everything at once: whatever is requested, some owner can always continue
    chance = random.Random(11)
    holds, waits = {}, {}
    for step in range(250):
        owner, key = f"o{chance.randrange(6)}", f"l{chance.randrange(6)}"
        mode = "SHARED" if chance.random() < 0.4 else ""
        if owner in waits:
            continue
        request = ask(server, key, owner, mode)
        if request.connection.has_input():
            try:
                request.answer()
                holds.setdefault(owner, set()).add(key)
            except ServerError as error:
                assert error.code == "DEADLOCK" or (error.code == "LOCKHELD" and key in holds[owner])
            request.leave()
        else:
            waits[owner] = (request, key)
        free = [name for name in [f"o{n}" for n in range(6)] if name not in waits]
        assert free, "all wait, and nobody can ever go on"
        if chance.random() < 0.5:
            name = chance.choice(free)
            for held in holds.pop(name, ()):
                cli("LOCK.RELEASE", held, name)
            for waiting, (request, key) in list(waits.items()):
                if request.connection.has_input(0.01):
                    assert isinstance(request.answer(), int)
                    holds.setdefault(waiting, set()).add(key)
                    del waits[waiting]
                    request.leave()
    assert count(cli, "deadlocks") > 0
    # and no request hangs: an owner that is free gives up, until all are served
    for _ in range(100):
        if not waits:
            break
        for name in [f"o{n}" for n in range(6)]:
            if name not in waits:
                for held in holds.pop(name, ()):
                    cli("LOCK.RELEASE", held, name)
        for waiting, (request, key) in list(waits.items()):
            if request.connection.has_input(0.05):
                assert isinstance(request.answer(), int)
                holds.setdefault(waiting, set()).add(key)
                del waits[waiting]
    assert not waits, {name: key for name, (_, key) in waits.items()}


# A request that is refused takes over nothing (G9)


def lowered(cli, limit):
    """Limits the waiters of a lock from here on."""
    cli("CONFIG", "SET", "redislock.max-waiters-per-lock", limit)


@pytest.mark.parametrize(
    "newer",
    [
        "LOCK.ACQUIRE door bob PX 60000 SHARED BLOCK 0",
        "LOCK.ACQUIRE door bob PX 60000 SHARED QUEUE 60000",
        "LOCK.MACQUIRE 2 door gate bob PX 60000 BLOCK 0",
    ],
)
def test_an_owner_refused_by_a_full_line_keeps_its_older_place(server, cli, newer):
    take(cli, "door", "alice")
    bob, cem, dee = (ask(server, "door", owner, block_ms=0) for owner in ("bob", "cem", "dee"))
    lowered(cli, 1)
    try:
        with refused("LOCKQUEUE"):
            cli(newer)
        assert bob.waits() and line_of(cli, "door") == ["bob", "cem", "dee"]
        assert line_of(cli, "gate") == []
    finally:
        lowered(cli, 10_000)
    release(cli, "door", "alice")
    assert isinstance(bob.answer(), int)
    assert cem.waits() and dee.waits()


def test_an_owner_refused_for_a_deadlock_keeps_its_older_place(server, cli):
    take(cli, "lamp", "bob")
    take(cli, "door", "alice")
    take(cli, "gate", "cem")
    bob = ask(server, "door", "bob", block_ms=0)
    cem = ask(server, "lamp", "cem", block_ms=0)
    with refused("DEADLOCK"):
        cli("LOCK.MACQUIRE 2 door gate bob PX 60000 BLOCK 0")
    assert bob.waits() and line_of(cli, "door") == ["bob"]
    # without the older request it would have been no cycle, so nothing else is refused
    release(cli, "door", "alice")
    assert isinstance(bob.answer(), int)
    assert cem.waits()


def test_an_accepted_request_takes_over_all_of_the_older_one(server, cli):
    take(cli, "door", "alice")
    take(cli, "gate", "alice")
    older = ask_all(server, "door gate", "bob", block_ms=0)
    newer = ask_all(server, "gate lamp", "bob", block_ms=0)
    with refused("UNBLOCKED"):
        older.answer()
    assert line_of(cli, "door") == [] and line_of(cli, "gate") == ["bob"]
    release(cli, "gate", "alice")
    assert isinstance(newer.answer(), int)
