"""LOCK.ACQUIRE ... BLOCK: waiting in line.

G5 (first come, first served), G7 (every waiter is answered once), G9 (one place for one owner). Other ends of a wait
are in test_waiting_ends.py, the wake-up of a waiter in test_wake_up.py.
"""

import time

import pytest

from harness.limits import SLOW_FACTOR, eventually
from harness.replies import holder, lock_info, owner_of, queue_of, waiters_of
from harness.wire import encode, refused


def test_a_waiter_is_granted_when_the_holder_releases(server, cli):
    # G6, G7
    first = cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 60000")
    assert bob.waits()
    assert cli("LOCK.RELEASE door alice") == 1
    token = bob.answer()
    assert token > first
    assert cli("LOCK.FENCE", "door", token) == 1
    assert owner_of(cli, "door") == "bob"
    assert waiters_of(cli, "door") == 0


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_waiter_that_asked_for_an_owner_gets_owner_and_token(server, cli, protocol):
    cli("LOCK.ACQUIRE door alice PX 60000")
    someone = server.ask("LOCK.ACQUIRE door * PX 60000 BLOCK 0", protocol=protocol)
    assert someone.waits()
    (name,) = queue_of(cli, "door")
    cli("LOCK.RELEASE door alice")
    assert someone.answer() == [name, cli("LOCK.FENCE door")]
    assert owner_of(cli, "door") == name


@pytest.mark.parametrize("protocol, nil", [(2, b"$-1\r\n"), (3, b"_\r\n")])
@pytest.mark.parametrize("owner", ["bob", "*"])
def test_a_wait_that_times_out_is_answered_with_nil(server, cli, protocol, nil, owner):
    # G7
    cli("LOCK.ACQUIRE door alice PX 60000")
    waiter = server.connect(protocol)
    start = time.monotonic()
    reply = waiter.bytes_of("LOCK.ACQUIRE", "door", owner, "PX", 60000, "BLOCK", 150)
    assert reply == nil
    assert time.monotonic() - start >= 0.150, "not before its time"
    assert waiters_of(cli, "door") == 0
    assert cli("LOCK.RELEASE door alice") == 1
    assert cli("DBSIZE") == 0, "a waiter that gave up is not granted"


def test_waits_of_many_lengths_end_each_in_its_time(server, cli):
    # G7: server-side timeouts, not in the order of arrival
    cli("LOCK.ACQUIRE door alice PX 60000")
    lengths = [400, 100, 300, 200, 50]
    start = time.monotonic()
    waiters = [
        server.ask("LOCK.ACQUIRE", "door", f"w{ms}", "PX", 60000, "BLOCK", ms)
        for ms in lengths
    ]
    for ms, waiter in sorted(zip(lengths, waiters), key=lambda pair: pair[0]):
        assert waiter.answer() is None
        assert time.monotonic() - start >= ms / 1000
    assert waiters_of(cli, "door") == 0


def test_block_0_waits_without_limit(server, cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    carol = server.ask("LOCK.ACQUIRE door carol PX 60000 BLOCK 250")
    assert carol.answer() is None, "a waiter with a limit is long gone"
    assert bob.waits()
    cli("LOCK.RELEASE door alice")
    assert isinstance(bob.answer(), int)


def test_a_free_lock_is_granted_without_waiting(server, cli):
    assert isinstance(cli("LOCK.ACQUIRE door alice PX 60000 BLOCK 0"), int)
    assert cli("LOCK.ACQUIRE door alice PX 60000 BLOCK 0") == cli("LOCK.FENCE door")
    assert server.info("clients")["blocked_clients"] == "0"


def test_twenty_waiters_are_granted_in_the_order_they_came(server, cli):
    # G5, and G4: tokens follow the order of the grants
    cli("LOCK.ACQUIRE door w0 PX 60000")
    waiters = [
        server.ask("LOCK.ACQUIRE", "door", f"w{n}", "PX", 60000, "BLOCK", 0)
        for n in range(1, 21)
    ]
    assert queue_of(cli, "door") == [f"w{n}" for n in range(1, 21)]
    last = cli("LOCK.FENCE door")
    for n, waiter in enumerate(waiters, start=1):
        assert cli("LOCK.RELEASE", "door", f"w{n - 1}") == 1
        token = waiter.answer()
        assert token > last
        last = token
        assert owner_of(cli, "door") == f"w{n}"
        assert waiters_of(cli, "door") == 20 - n


def test_waiters_of_different_locks_do_not_mix(server, cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    cli("LOCK.ACQUIRE gate alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    carol = server.ask("LOCK.ACQUIRE gate carol PX 60000 BLOCK 0")
    cli("LOCK.RELEASE gate alice")
    assert isinstance(carol.answer(), int)
    assert bob.waits()
    assert owner_of(cli, "door") == "alice"


def test_one_owner_may_wait_for_two_locks(server, cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    cli("LOCK.ACQUIRE gate alice PX 60000")
    door = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    gate = server.ask("LOCK.ACQUIRE gate bob PX 60000 BLOCK 0")
    cli("LOCK.RELEASE gate alice")
    assert isinstance(gate.answer(), int)
    assert door.waits()
    cli("LOCK.RELEASE door alice")
    assert isinstance(door.answer(), int)


# Nobody passes


def test_a_newcomer_gets_nil_while_others_wait(server, cli):
    # G5
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    assert cli("LOCK.ACQUIRE door carol PX 60000") is None
    assert bob.waits()
    assert queue_of(cli, "door") == ["bob"], "a request that does not wait has no place"


@pytest.mark.parametrize("block", [[], ["BLOCK", 0]])
def test_a_newcomer_never_slips_in_between_release_and_grant(server, cli, block):
    # G5: release and the newcomer's request arrive in one packet
    for turn in range(30):
        lock = f"door:{turn}"
        cli("LOCK.ACQUIRE", lock, "alice", "PX", 60000)
        bob = server.ask("LOCK.ACQUIRE", lock, "bob", "PX", 60000, "BLOCK", 0)
        newcomer = server.connect()
        newcomer.send_bytes(
            encode("LOCK.RELEASE", lock, "alice")
            + encode("LOCK.ACQUIRE", lock, "dave", "PX", 60000, *block)
        )
        assert newcomer.read() == 1
        token = bob.answer()
        assert cli("LOCK.FENCE", lock, token) == 1
        if block:
            assert queue_of(cli, lock) == ["dave"]
        else:
            assert newcomer.read() is None
        newcomer.close()
        bob.leave()


def test_the_releaser_itself_does_not_pass_the_waiters(server, cli):
    # G5: release and acquire again, as fast as it goes
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    released, again = cli.pipeline(
        "LOCK.RELEASE door alice", "LOCK.ACQUIRE door alice PX 60000"
    )
    assert (released, again) == (1, None)
    assert isinstance(bob.answer(), int)


@pytest.mark.parametrize("way", ["MULTI", "script"])
def test_a_newcomer_does_not_pass_inside_a_transaction(server, cli, way):
    # G5: the grant comes after the transaction, the newcomer is in it
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    if way == "MULTI":
        replies = cli.pipeline(
            "MULTI",
            "LOCK.RELEASE door alice",
            "LOCK.ACQUIRE door dave PX 60000",
            "EXEC",
        )[-1]
    else:
        script = (
            "return {redis.call('LOCK.RELEASE', KEYS[1], 'alice'),"
            " redis.call('LOCK.ACQUIRE', KEYS[1], 'dave', 'PX', 60000)}"
        )
        replies = cli("EVAL", script, 1, "door")
    assert replies == [1, None]
    assert isinstance(bob.answer(), int)
    assert owner_of(cli, "door") == "bob"


# The lease of an owner that waited


def test_the_lease_starts_at_the_grant(server, cli):
    # CONTRACT 2: not at the request
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    eventually(
        lambda: lock_info(cli, "door")["queue"][0]["waited-ms"] >= 600,
        "bob has waited for a while",
    )
    cli("LOCK.RELEASE door alice")
    bob.answer()
    hold = holder(cli, "door")
    assert 59_700 <= hold["lease-left-ms"] + hold["held-ms"] <= 60_000


def test_the_lease_of_a_waiter_ends_after_its_grant(server, cli):
    # G3: a lease that began out of the queue ends like any other
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 100 BLOCK 0")
    released = time.monotonic()
    cli("LOCK.RELEASE door alice")
    bob.answer()
    eventually(lambda: cli("DBSIZE") == 0, "bob's lease ends")
    assert time.monotonic() - released >= 0.100


# One owner, one place in line


def test_a_request_repeated_takes_over_the_place_in_line(server, cli):
    # G9
    cli("LOCK.ACQUIRE door alice PX 60000")
    old = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    carol = server.ask("LOCK.ACQUIRE door carol PX 60000 BLOCK 0")
    new = server.ask("LOCK.ACQUIRE door bob PX 50000 BLOCK 0")
    with refused("UNBLOCKED"):
        old.answer()
    assert queue_of(cli, "door") == ["bob", "carol"], "the place, not the end"
    assert lock_info(cli, "door")["queue"][0]["client-id"] == new.client_id
    cli("LOCK.RELEASE door alice")
    assert isinstance(new.answer(), int)
    assert holder(cli, "door")["lease-left-ms"] <= 50_000, "the newer request's lease"
    assert carol.waits()


def test_the_repeated_request_has_its_own_timeout(server, cli):
    # G9: the old timeout went with the old request
    cli("LOCK.ACQUIRE door alice PX 60000")
    old = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 400")
    new = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    carol = server.ask("LOCK.ACQUIRE door carol PX 60000 BLOCK 800")
    with refused("UNBLOCKED"):
        old.answer()
    assert carol.answer() is None, "the old timeout is over by now"
    assert new.waits()
    cli("LOCK.RELEASE door alice")
    assert isinstance(new.answer(), int)


def test_the_connection_that_was_replaced_can_continue(server, cli):
    # G7: answered once, and usable afterwards
    cli("LOCK.ACQUIRE door alice PX 60000")
    old = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    new = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    with refused("UNBLOCKED"):
        old.answer()
    assert old.connection("PING") == "PONG"
    old.leave()
    assert new.waits(), "the old connection has nothing to do with it any more"


def test_many_repetitions_keep_one_place(server, cli):
    # G9
    cli("LOCK.ACQUIRE door alice PX 60000")
    requests = [server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0") for _ in range(20)]
    for old in requests[:-1]:
        with refused("UNBLOCKED"):
            old.answer()
    assert waiters_of(cli, "door") == 1
    cli("LOCK.RELEASE door alice")
    assert isinstance(requests[-1].answer(), int)


# Commands after a waiting request


def test_commands_sent_after_a_request_are_answered_in_order(server, cli):
    # G7: exactly one reply, before those of the commands that follow
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.connect()
    bob.send_bytes(
        encode("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
        + encode("PING")
        + encode("LOCK.FENCE door")
        + encode("LOCK.RELEASE door bob")
    )
    eventually(lambda: waiters_of(cli, "door") == 1, "bob waits")
    assert not bob.has_input(0.05)
    cli("LOCK.RELEASE door alice")
    token = bob.read()
    assert isinstance(token, int)
    assert bob.read() == "PONG"
    assert bob.read() == token
    assert bob.read() == 1
    assert cli("DBSIZE") == 0


def test_a_wait_after_a_wait_begins_when_its_turn_comes(server, cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    cli("LOCK.ACQUIRE gate alice PX 60000")
    bob = server.connect()
    bob.send_bytes(
        encode("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
        + encode("LOCK.ACQUIRE gate bob PX 60000 BLOCK 0")
    )
    eventually(lambda: waiters_of(cli, "door") == 1, "bob waits for the door")
    assert waiters_of(cli, "gate") == 0
    cli("LOCK.RELEASE gate alice")
    cli("LOCK.RELEASE door alice")
    assert bob.read() < bob.read()


# Contexts that may not wait


@pytest.mark.parametrize("block", [0, 60000])
def test_in_a_transaction_block_is_as_if_absent(server, cli, block):
    # CONTRACT 2: never an error, as BLPOP
    cli("LOCK.ACQUIRE door alice PX 60000")
    command = f"LOCK.ACQUIRE door bob PX 60000 BLOCK {block}"
    star = f"LOCK.ACQUIRE door * PX 60000 BLOCK {block}"
    replies = cli.pipeline("MULTI", command, star, "PING", "EXEC")[-1]
    assert replies == [None, None, "PONG"]
    assert waiters_of(cli, "door") == 0
    granted = cli.pipeline("MULTI", command.replace("door", "gate"), "EXEC")[-1]
    assert granted == [cli("LOCK.FENCE gate")]


@pytest.mark.parametrize("protocol", [2, 3])
def test_in_a_script_block_is_as_if_absent(server, protocol):
    # CONTRACT 2
    cli = server.connect(protocol)
    cli("LOCK.ACQUIRE door alice PX 60000")
    script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'bob', 'PX', 60000, 'BLOCK', 0)"
    assert cli("EVAL", script, 1, "door") is None
    assert waiters_of(cli, "door") == 0
    assert cli("EVAL", script, 1, "gate") == cli("LOCK.FENCE gate")
    assert cli("PING") == "PONG"


def test_a_script_sees_nil_as_false_and_a_token_as_a_number(cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    script = "return type(redis.call('LOCK.ACQUIRE', KEYS[1], 'bob', 'PX', 60000))"
    assert cli("EVAL", script, 1, "door") == "boolean"
    assert cli("EVAL", script, 1, "gate") == "number"


# Many at once


def test_many_waiters_over_many_locks_are_all_served(server, cli):
    # G5, G6, G7: 20 locks with 10 waiters each; every grant is passed on by a release
    locks = [f"door:{n}" for n in range(20)]
    lines = {}
    for lock in locks:
        cli("LOCK.ACQUIRE", lock, "first", "PX", 60000 * SLOW_FACTOR)
    for turn in range(10):
        for lock in locks:
            line = lines.setdefault(lock, [])
            line.append(
                server.ask("LOCK.ACQUIRE", lock, f"w{turn}", "PX", 600000, "BLOCK", 0)
            )
    for lock in locks:
        cli("LOCK.RELEASE", lock, "first")
    for turn in range(10):
        tokens = [lines[lock][turn].answer() for lock in locks]
        assert len(set(tokens)) == 20
        for lock in locks:
            assert cli("LOCK.RELEASE", lock, f"w{turn}") == 1
    assert cli("DBSIZE") == 0
