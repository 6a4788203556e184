"""The ends of a wait without a grant: the waiter leaves, is rejected, or is one too many.

G7 (every waiter is answered exactly once), G8 (the dead do not hold up the living),
CONTRACT 4 (limits).
"""

import pytest

from harness.limits import SLOW_FACTOR, eventually
from harness.replies import owner_of, queue_of, waiters_of
from harness.server import Server, at_least
from harness.wire import Closed, refused

HAS_UNBLOCK_TIMEOUT = at_least(redis=(7, 4), valkey=(8, 0))


def line_up(server, cli, *names, lease=3600000):
    """alice holds the door; the others wait for it in this order."""
    cli("LOCK.ACQUIRE door alice PX 60000")
    return [
        server.ask("LOCK.ACQUIRE", "door", name, "PX", lease, "BLOCK", 0)
        for name in names
    ]


# Waiters that go away


@pytest.mark.parametrize("how", ["leave", "crash"])
def test_a_waiter_whose_connection_closed_leaves_the_queue(server, cli, how):
    # G8
    bob, carol = line_up(server, cli, "bob", "carol")
    getattr(bob, how)()
    eventually(lambda: queue_of(cli, "door") == ["carol"], "bob leaves the queue")
    cli("LOCK.RELEASE door alice")
    assert isinstance(carol.answer(), int)
    assert owner_of(cli, "door") == "carol"


def test_when_all_waiters_are_gone_the_lock_is_free(server, cli):
    # G8
    for waiter in line_up(server, cli, "bob", "carol", "dave"):
        waiter.crash()
    eventually(lambda: waiters_of(cli, "door") == 0, "the queue is empty")
    cli("LOCK.RELEASE door alice")
    assert cli("DBSIZE") == 0
    assert isinstance(cli("LOCK.ACQUIRE door erin PX 60000"), int)


def test_a_waiter_in_the_middle_leaves_the_others_in_order(server, cli):
    # G5, G8
    bob, carol, dave = line_up(server, cli, "bob", "carol", "dave")
    carol.leave()
    eventually(lambda: queue_of(cli, "door") == ["bob", "dave"], "carol leaves")
    cli("LOCK.RELEASE door alice")
    assert isinstance(bob.answer(), int)
    cli("LOCK.RELEASE door bob")
    assert isinstance(dave.answer(), int)


@pytest.mark.parametrize("how", ["leave", "crash"])
def test_a_waiter_that_leaves_as_the_lock_is_freed_does_not_block_it(server, cli, how):
    # G8, G6: whichever the server sees first, carol has the lock in the end
    for turn in range(30):
        lock = f"door:{turn}"
        cli("LOCK.ACQUIRE", lock, "alice", "PX", 60000)
        bob = server.ask("LOCK.ACQUIRE", lock, "bob", "PX", 40, "BLOCK", 0)
        carol = server.ask("LOCK.ACQUIRE", lock, "carol", "PX", 60000, "BLOCK", 0)
        cli.send("LOCK.RELEASE", lock, "alice")
        getattr(bob, how)()
        assert cli.read() == 1
        assert isinstance(carol.answer(), int)
        carol.leave()


def test_a_waiter_whose_user_is_deleted_as_the_lock_is_freed_does_not_keep_it(server, cli):
    # G8: the server closes bob's connection at the end of that turn, and drops the reply to him
    server.admin("ACL SETUSER bob on >secret +@all ~* &*")
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0", user="bob")
    carol = server.ask("LOCK.ACQUIRE door carol PX 60000 BLOCK 0")
    cli("MULTI")
    cli("ACL DELUSER bob")
    cli("LOCK.RELEASE door alice")
    assert cli("EXEC") == [1, 1]
    assert bob.was_closed()
    assert isinstance(carol.answer(), int)


def test_a_waiter_that_quits_after_its_request_keeps_a_delivered_grant(server, cli):
    # G1: the connection closes in the turn in which the grant is sent, and the grant has arrived
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.connect()
    bob.send("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    bob.send("QUIT")
    eventually(lambda: waiters_of(cli, "door") == 1, "bob waits")
    carol = server.ask("LOCK.ACQUIRE door carol PX 60000 BLOCK 0")
    cli("LOCK.RELEASE door alice")
    assert isinstance(bob.read(), int)
    assert bob.read() == "OK"
    assert carol.waits()
    assert owner_of(cli, "door") == "bob"


def test_a_waiter_that_leaves_while_a_module_yields_keeps_a_delivered_grant(start_server, neighbour_path):
    # G1: within that command the server sends the reply and closes the connection, in the turn of the grant
    server = start_server("--busy-reply-threshold", "100", "--loadmodule", neighbour_path)
    cli = server.connect()
    cli("LOCK.MACQUIRE 2 door gate alice PX 60000")
    dave = server.connect()
    dave.send("LOCK.ACQUIRE gate dave PX 60000 BLOCK 0")
    dave.send("NEIGHBOUR.YIELD", 1000)
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    carol = server.ask("LOCK.ACQUIRE door carol PX 60000 BLOCK 0")
    eventually(lambda: waiters_of(cli, "gate") == 1, "dave waits")
    cli("MULTI")
    cli("LOCK.RELEASE door alice")
    cli("LOCK.RELEASE gate alice")
    assert cli("EXEC") == [1, 1]
    assert isinstance(bob.answer(), int)
    bob.leave()
    assert isinstance(dave.read(), int)
    assert dave.read() is None
    assert carol.waits()
    assert owner_of(cli, "door") == "bob"


def test_two_hundred_waiters_that_vanish_leave_nothing(server, cli):
    # G8
    waiters = line_up(server, cli, *[f"w{n}" for n in range(200)])
    for waiter in waiters[:-1]:
        waiter.crash()
    eventually(lambda: waiters_of(cli, "door") == 1, "199 waiters leave")
    cli("LOCK.RELEASE door alice")
    assert isinstance(waiters[-1].answer(), int)
    assert waiters_of(cli, "door") == 0


def test_client_kill_takes_the_waiter_out_of_the_queue(server, cli):
    # G8
    bob, carol = line_up(server, cli, "bob", "carol")
    assert cli("CLIENT", "KILL", "ID", bob.client_id) == 1
    assert bob.was_closed()
    assert queue_of(cli, "door") == ["carol"]
    cli("LOCK.RELEASE door alice")
    assert isinstance(carol.answer(), int)


def test_the_holder_that_disconnects_keeps_the_lock(server, cli):
    # G10: without EPHEMERAL a hold does not depend on a connection
    alice = server.connect()
    alice("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    alice.close()
    assert bob.waits()
    assert owner_of(cli, "door") == "alice"


# Waiters whose departure unblocks others (G6)

#: The ways in which a waiter leaves. It is asked for no longer than this.
GOINGS = {
    "it closes": lambda cli, waiter: waiter.leave(),
    "its machine resets the connection": lambda cli, waiter: waiter.crash(),
    "CLIENT KILL": lambda cli, waiter: cli("CLIENT", "KILL", "ID", waiter.client_id),
    "CLIENT UNBLOCK": lambda cli, waiter: cli("CLIENT", "UNBLOCK", waiter.client_id),
    "CLIENT UNBLOCK ERROR": lambda cli, waiter: cli("CLIENT", "UNBLOCK", waiter.client_id, "ERROR"),
    "its owner withdraws": lambda cli, waiter: cli("LOCK.RELEASE door writer"),
    "its time is over": lambda cli, waiter: waiter.answer(),
}
#: No test relies on the server's cron, which runs once a second here. An immediate action takes a millisecond.
CRON_HZ, AT_ONCE_SECONDS, TURNS = 1, 0.4 * SLOW_FACTOR, 6


@pytest.fixture(scope="module")
def unhurried():
    """A server whose cron runs once a second only."""
    server = Server("--hz", CRON_HZ, "--dynamic-hz", "no").start()
    yield server
    server.stop()
    server.finish()


def reader_behind_a_writer(server, block):
    """ann reads, a writer waits to write, rob waits to read after the writer."""
    server.admin("LOCK.ACQUIRE door ann PX 3600000 SHARED")
    writer = server.ask("LOCK.ACQUIRE", "door", "writer", "PX", 3600000, "BLOCK", block)
    return writer, server.ask("LOCK.ACQUIRE door rob PX 3600000 SHARED BLOCK 0")


def request_behind_one_for_several(server, block):
    """The door is free: its waiter wants the gate too, which ann holds. rob waits after it."""
    server.admin("LOCK.ACQUIRE gate ann PX 3600000")
    writer = server.ask("LOCK.MACQUIRE", 2, "gate", "door", "writer", "PX", 3600000, "BLOCK", block)
    return writer, server.ask("LOCK.ACQUIRE door rob PX 3600000 BLOCK 0")


@pytest.mark.parametrize("scene", [reader_behind_a_writer, request_behind_one_for_several])
@pytest.mark.parametrize("going", GOINGS)
def test_a_waiter_that_leaves_lets_in_at_once_those_it_held_up(unhurried, scene, going):
    if going == "CLIENT UNBLOCK" and not HAS_UNBLOCK_TIMEOUT:
        pytest.skip("Redis before 7.4 may lose the answer: there it does nothing")
    cli = unhurried.connect()
    for _ in range(TURNS):
        writer, rob = scene(unhurried, 60 if going == "its time is over" else 0)
        assert rob.waits() or going == "its time is over"
        GOINGS[going](cli, writer)
        assert isinstance(rob.answer(AT_ONCE_SECONDS), int)
        unhurried.close_connections()
        cli = unhurried.connect()
        cli("FLUSHALL")
        eventually(lambda: waiters_of(cli, "door") == 0, "nobody waits any more")


# Waiters that are rejected


def test_a_release_withdraws_the_owners_waiting_request(server, cli):
    # CONTRACT 2, LOCK.RELEASE: that request gets nil; 0, as no hold was given up
    bob, carol = line_up(server, cli, "bob", "carol")
    assert cli("LOCK.RELEASE door bob") == 0
    assert bob.answer() is None
    assert queue_of(cli, "door") == ["carol"]
    assert owner_of(cli, "door") == "alice"
    cli("LOCK.RELEASE door alice")
    assert isinstance(carol.answer(), int)


def test_a_withdrawn_request_can_be_made_again_at_the_end(server, cli):
    # G5
    bob, _ = line_up(server, cli, "bob", "carol")
    cli("LOCK.RELEASE door bob")
    assert bob.answer() is None
    server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    assert queue_of(cli, "door") == ["carol", "bob"]


def test_a_release_withdraws_no_other_owners_request(server, cli):
    # G10
    bob, carol = line_up(server, cli, "bob", "carol")
    assert cli("LOCK.RELEASE door dave") == 0
    assert bob.waits() and carol.waits()


def test_client_unblock_timeout_ends_the_wait_with_nil_or_not_at_all(server, cli):
    # G7; 0, and a wait that continues, is for Redis before 7.4, which may lose the answer
    bob, carol = line_up(server, cli, "bob", "carol")
    ended = cli("CLIENT", "UNBLOCK", bob.client_id)
    if HAS_UNBLOCK_TIMEOUT:
        assert ended == 1
    if ended == 1:
        assert bob.answer() is None
        eventually(lambda: queue_of(cli, "door") == ["carol"], "bob leaves the queue")
        assert bob.connection("PING") == "PONG"
    else:
        assert ended == 0
        assert bob.waits()
        assert queue_of(cli, "door") == ["bob", "carol"]
    assert carol.waits()


def test_client_unblock_error_ends_the_wait_with_an_error(server, cli):
    # G7, CONTRACT 9
    bob, carol = line_up(server, cli, "bob", "carol")
    ended = cli("CLIENT", "UNBLOCK", bob.client_id, "ERROR")
    if HAS_UNBLOCK_TIMEOUT:
        assert ended == 1
    if ended == 1:
        with refused("UNBLOCKED"):
            bob.answer()
        eventually(lambda: queue_of(cli, "door") == ["carol"], "bob leaves the queue")
        assert bob.connection("PING") == "PONG"
        cli("LOCK.RELEASE door alice")
        assert isinstance(carol.answer(), int)
    else:
        assert ended == 0
        assert bob.waits()


@pytest.mark.parametrize("kind", ["TIMEOUT", "ERROR"])
def test_client_unblock_leaves_no_memory_behind(start_server, kind):
    # 34 kB stayed of every wait that was ended so: the server frees nothing that a module does not give back.
    rounds = 300
    server = start_server()
    cli = server.connect()
    line_up(server, cli, "bob")
    bob = server.connect()
    number = bob("CLIENT ID")

    def used():
        return int(server.info("memory")["used_memory"])

    def wait_and_end():
        bob.send("LOCK.ACQUIRE door carol PX 60000 BLOCK 0")
        eventually(lambda: cli("CLIENT", "UNBLOCK", number, kind) == 1, "carol waits")
        ended = bob.read_any()
        assert ended is None or "UNBLOCKED" in str(ended)

    wait_and_end()
    before = used()
    for _ in range(rounds):
        wait_and_end()
    eventually(lambda: used() < before + rounds * 1_000, "the server has freed what it frees in its own time")
    assert queue_of(cli, "door") == ["bob"]


@pytest.mark.parametrize("kind", ["TIMEOUT", "ERROR"])
def test_client_unblock_as_the_lock_is_freed_loses_no_reply_and_no_lock(
    server, cli, kind
):
    # G6, G7: release and CLIENT UNBLOCK in one packet, so in one turn of the server
    for turn in range(30):
        lock = f"door:{turn}"
        cli("LOCK.ACQUIRE", lock, "alice", "PX", 60000)
        bob = server.ask("LOCK.ACQUIRE", lock, "bob", "PX", 3600000, "BLOCK", 0)
        carol = server.ask("LOCK.ACQUIRE", lock, "carol", "PX", 60000, "BLOCK", 0)
        release = ("LOCK.RELEASE", lock, "alice")
        unblock = ("CLIENT", "UNBLOCK", bob.client_id, kind)
        cli.pipeline(*((release, unblock) if turn % 2 else (unblock, release)))
        if isinstance(answer_and_ping(bob), int):
            assert cli("LOCK.RELEASE", lock, "bob") == 1
        assert isinstance(carol.answer(), int), "a grant bob was not told is taken back"
        bob.leave()
        carol.leave()


def answer_and_ping(request):
    """A token, nil or UNBLOCKED, and then the connection continues. Redis before 7.4 may lose the answer of a client
    that it unblocks: then the connection must be closed.
    """
    try:
        answer = request.connection.read_any()
        assert answer is None or isinstance(answer, int) or "UNBLOCKED" in str(answer)
        assert request.connection("PING") == "PONG", "answered once, not twice"
        return answer
    except Closed:
        assert not HAS_UNBLOCK_TIMEOUT, "closed, although the server loses no answer"
        return None


@pytest.mark.parametrize("first", ["release", "kill"])
def test_client_kill_as_the_lock_is_freed_leaves_it_to_the_next(server, cli, first):
    # G8: granted and killed before the grant was delivered, in one packet; bob's lease is an hour
    bob, carol = line_up(server, cli, "bob", "carol")
    release = "LOCK.RELEASE door alice"
    kill = ("CLIENT", "KILL", "ID", bob.client_id)
    steps = (release, kill) if first == "release" else (kill, release)
    assert cli.pipeline(*steps) == [1, 1]
    assert bob.was_closed()
    assert isinstance(carol.answer(), int)
    assert owner_of(cli, "door") == "carol"
    assert waiters_of(cli, "door") == 0


def test_shutdown_ends_with_waiters(start_server):
    # G7: their connections are closed, and the server ends well
    server = start_server()
    cli = server.connect()
    bob, carol = line_up(server, cli, "bob", "carol")
    cli.send("SHUTDOWN NOSAVE")
    assert server.process.wait(30) == 0
    assert bob.connection.is_closed(1) and carol.connection.is_closed(1)
    server.process = None


# One too many


def test_a_lock_has_at_most_max_waiters_per_lock(server, cli):
    # CONTRACT 4, 7
    cli("CONFIG SET redislock.max-waiters-per-lock 2")
    line_up(server, cli, "bob", "carol")
    with refused("LOCKQUEUE"):
        cli("LOCK.ACQUIRE door dave PX 60000 BLOCK 0")
    assert queue_of(cli, "door") == ["bob", "carol"]
    assert cli("LOCK.ACQUIRE door dave PX 60000") is None, "not waiting is no error"
    cli("LOCK.ACQUIRE gate alice PX 60000")
    dave = server.ask("LOCK.ACQUIRE gate dave PX 60000 BLOCK 0")
    assert dave.waits(), "each lock has its own queue"


def test_a_full_queue_has_room_again_when_somebody_leaves(server, cli):
    cli("CONFIG SET redislock.max-waiters-per-lock 2")
    bob, carol = line_up(server, cli, "bob", "carol")
    cli("LOCK.RELEASE door alice")
    bob.answer()
    dave = server.ask("LOCK.ACQUIRE door dave PX 60000 BLOCK 0")
    assert dave.waits()
    carol.leave()
    eventually(lambda: waiters_of(cli, "door") == 1, "carol leaves")
    assert server.ask("LOCK.ACQUIRE door erin PX 60000 BLOCK 0").waits()


def test_a_repeated_request_needs_no_second_place(server, cli):
    # G9 with a full queue
    cli("CONFIG SET redislock.max-waiters-per-lock 2")
    old, _ = line_up(server, cli, "bob", "carol")
    new = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    with refused("UNBLOCKED"):
        old.answer()
    assert new.waits()


def test_the_server_has_at_most_max_waiters(server, cli):
    # CONTRACT 4, 7
    cli("CONFIG SET redislock.max-waiters 3")
    line_up(server, cli, "bob", "carol")
    cli("LOCK.ACQUIRE gate alice PX 60000")
    server.ask("LOCK.ACQUIRE gate bob PX 60000 BLOCK 0")
    with refused("LOCKQUEUE"):
        cli("LOCK.ACQUIRE gate carol PX 60000 BLOCK 0")
    with refused("LOCKQUEUE"):
        cli("LOCK.ACQUIRE door dave PX 60000 BLOCK 0")


@pytest.mark.parametrize("setting", ["max-waiters", "max-waiters-per-lock"])
def test_with_no_room_at_all_only_free_locks_are_granted(server, cli, setting):
    cli("CONFIG", "SET", f"redislock.{setting}", 0)
    assert isinstance(cli("LOCK.ACQUIRE door alice PX 60000 BLOCK 0"), int)
    with refused("LOCKQUEUE"):
        cli("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    with refused("LOCKQUEUE"):
        cli("LOCK.ACQUIRE door * PX 60000 BLOCK 10")


def test_a_wait_can_be_capped(server, cli):
    # CONTRACT 7, max-wait: 0 ms asked = this cap
    cli("CONFIG SET redislock.max-wait 200")
    cli("LOCK.ACQUIRE door alice PX 60000")
    with refused("ERR", "BLOCK", "0 to 200"):
        cli("LOCK.ACQUIRE door bob PX 60000 BLOCK 201")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    carol = server.ask("LOCK.ACQUIRE door carol PX 60000 BLOCK 200")
    assert bob.answer() is None
    assert carol.answer() is None
    assert waiters_of(cli, "door") == 0
