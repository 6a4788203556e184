"""LOCK.ACQUIRE ... QUEUE ms: a place in line for a client that must not block its connection.

nil at once; the place is kept for ms after the last such call, and the lock is reserved
for it when its turn comes (CONTRACT 2). G5: a reserved place that lapses is skipped. G6.
"""

import time

import pytest

from harness.kinds import (
    ask, count, give_up_places, gone, hold_of, line_of, owners_of, release, states_of, take,
)  # fmt: skip
from harness.limits import eventually
from harness.replies import lock_info
from harness.wire import refused

#: A place that does not lapse while a test runs.
KEPT = "QUEUE 3600000"


@pytest.fixture(autouse=True)
def no_place_stays(server):
    """Places outlive connections: without this they would outlive the test."""
    yield
    give_up_places(server)


@pytest.mark.parametrize("protocol, nil", [(2, b"$-1\r\n"), (3, b"_\r\n")])
def test_nil_at_once_and_a_place_in_line(server, cli, protocol, nil):
    take(cli, "door", "alice")
    asker = server.connect(protocol)
    line = "LOCK.ACQUIRE door bob PX 60000 QUEUE 3600000"
    assert asker.bytes_of(line) == nil
    assert states_of(cli, "door") == [("bob", "queued")]
    waiter = lock_info(cli, "door")["queue"][0]
    assert waiter["client-id"] is None and waiter["mode"] == "exclusive"
    assert server.info("clients")["blocked_clients"] == "0"
    assert count(cli, "waiters") == 1


def test_a_free_lock_is_granted_at_once(cli):
    token = take(cli, "door", "bob", KEPT)
    assert cli("LOCK.FENCE door") == token
    assert line_of(cli, "door") == []
    assert take(cli, "door", "bob", KEPT) == token, "G9"


def test_a_lock_that_becomes_free_is_reserved_and_the_next_call_gets_it(server, cli):
    # G5
    first = take(cli, "door", "alice")
    assert take(cli, "door", "bob", KEPT) is None
    release(cli, "door", "alice")
    assert cli("EXISTS door") == 0, "nobody holds it"
    assert cli("LOCK.FENCE door") is None
    assert owners_of(cli, "door") == []
    for owner in ("carol", "alice"):
        assert take(cli, "door", owner) is None, "a newcomer does not pass"
    blocked = ask(server, "door", "dave")
    assert blocked.waits()
    token = take(cli, "door", "bob", KEPT, lease_ms=50_000)
    assert token > first
    assert 40_000 < hold_of(cli, "door", "bob")["lease-left-ms"] <= 50_000
    assert line_of(cli, "door") == ["dave"]
    release(cli, "door", "bob")
    assert isinstance(blocked.answer(), int)


@pytest.mark.parametrize("command", ["DEL door", "FLUSHALL", "RENAME door x", "LOCK.RENEW door alice PX 1"])
def test_whatever_frees_the_lock_it_is_reserved(cli, command):
    # G6
    take(cli, "door", "alice")
    take(cli, "door", "bob", KEPT)
    cli(command)
    eventually(lambda: owners_of(cli, "door") == [], "alice holds it no longer")
    assert take(cli, "door", "carol") is None
    assert isinstance(take(cli, "door", "bob", KEPT), int)


def test_the_call_that_gets_a_reserved_lock_needs_no_option(cli):
    take(cli, "door", "alice")
    take(cli, "door", "bob", KEPT)
    release(cli, "door", "alice")
    assert isinstance(take(cli, "door", "bob"), int)
    assert line_of(cli, "door") == []


def test_a_call_before_its_turn_keeps_the_place(cli):
    # G5: first come, not last asked
    take(cli, "door", "alice")
    for owner in ("bob", "carol", "dave"):
        take(cli, "door", owner, KEPT)
    for owner in ("dave", "bob", "carol", "dave"):
        assert take(cli, "door", owner, KEPT) is None
    assert line_of(cli, "door") == ["bob", "carol", "dave"]
    release(cli, "door", "alice")
    for owner in ("dave", "carol"):
        assert take(cli, "door", owner, KEPT) is None
    for owner in ("bob", "carol", "dave"):
        assert isinstance(take(cli, "door", owner, KEPT), int)
        release(cli, "door", owner)
    assert cli("DBSIZE") == 0


# Places that lapse


def test_a_place_that_is_not_refreshed_is_lost(cli):
    take(cli, "door", "alice")
    start = time.monotonic()
    take(cli, "door", "bob", "QUEUE 150")
    eventually(lambda: line_of(cli, "door") == [], "the place lapses")
    assert time.monotonic() - start >= 0.150, "not before its time"
    release(cli, "door", "alice")
    assert isinstance(take(cli, "door", "carol"), int)


def test_a_place_that_is_refreshed_is_kept(server, cli):
    # ms after the last call, not after the first
    take(cli, "door", "alice")
    take(cli, "door", "bob", "QUEUE 400")
    timer = ask(server, "door", "timer", block_ms=1000)
    while not timer.connection.has_input(0.05):
        assert take(cli, "door", "bob", "QUEUE 3000") is None
    assert line_of(cli, "door") == ["bob"]


def test_a_refreshed_place_lasts_as_long_as_the_last_call_says(cli):
    take(cli, "door", "alice")
    take(cli, "door", "bob", KEPT)
    take(cli, "door", "bob", "QUEUE 50")
    eventually(lambda: line_of(cli, "door") == [], "the place lapses")


def test_a_reserved_place_that_lapses_is_skipped_without_anybody_asking(server, cli):
    # G5, G6
    take(cli, "door", "alice")
    take(cli, "door", "bob", "QUEUE 300")
    carol = ask(server, "door", "carol")
    dave = ask(server, "door", "dave")
    release(cli, "door", "alice")
    assert isinstance(carol.answer(), int)
    assert dave.waits()
    assert take(cli, "door", "bob") is None, "bob came too late"


def test_many_reserved_places_lapse_one_after_the_other(server, cli):
    # G6
    take(cli, "door", "alice")
    for n in range(100):
        take(cli, "door", f"p{n}", f"QUEUE {50 + n * 2}")
    carol = ask(server, "door", "carol")
    release(cli, "door", "alice")
    assert isinstance(carol.answer(), int)
    assert line_of(cli, "door") == []


def test_a_place_outlives_its_connection(server, cli):
    take(cli, "door", "alice")
    asker = server.connect()
    take(asker, "door", "bob", KEPT)
    client_id = asker("CLIENT ID")
    asker.close()
    gone(server, client_id)
    assert line_of(cli, "door") == ["bob"]
    release(cli, "door", "alice")
    assert isinstance(take(cli, "door", "bob", KEPT), int)


def test_release_gives_up_a_place(server, cli):
    take(cli, "door", "alice")
    take(cli, "door", "bob", KEPT)
    carol = ask(server, "door", "carol")
    assert cli("LOCK.RELEASE door bob") == 0
    assert line_of(cli, "door") == ["carol"]
    take(cli, "door", "dave", KEPT)
    release(cli, "door", "alice")
    assert isinstance(carol.answer(), int)
    release(cli, "door", "carol")
    assert cli("LOCK.RELEASE door dave") == 0, "also one that is reserved"
    assert isinstance(take(cli, "door", "eve"), int)


def test_a_release_of_a_reserved_place_lets_the_next_in(server, cli):
    # G6
    take(cli, "door", "alice")
    take(cli, "door", "bob", KEPT)
    carol = ask(server, "door", "carol")
    release(cli, "door", "alice")
    assert carol.waits()
    assert cli("LOCK.RELEASE door bob") == 0
    assert isinstance(carol.answer(), int)


def test_a_place_of_an_unknown_minted_owner_cannot_be_resumed(server, cli):
    # CONTRACT 2: the caller of '*' would receive only nil; such a place would block all others for nothing
    take(cli, "door", "alice")
    try:
        assert take(cli, "door", "*", KEPT) is None
    except Exception as refusal:
        assert "ERR" in str(refusal)
    assert line_of(cli, "door") == []
    release(cli, "door", "alice")
    assert isinstance(take(cli, "door", "bob"), int)


# Mixed with waiters that block


def test_places_and_blocked_waiters_stand_in_one_line(server, cli):
    # G5
    take(cli, "door", "alice")
    take(cli, "door", "p1", KEPT)
    b1 = ask(server, "door", "b1")
    take(cli, "door", "p2", KEPT)
    b2 = ask(server, "door", "b2")
    assert states_of(cli, "door") == [
        ("p1", "queued"), ("b1", "blocked"), ("p2", "queued"), ("b2", "blocked"),
    ]  # fmt: skip
    release(cli, "door", "alice")
    assert b1.waits()
    assert isinstance(take(cli, "door", "p1", KEPT), int)
    assert take(cli, "door", "p2", KEPT) is None
    release(cli, "door", "p1")
    assert isinstance(b1.answer(), int)
    release(cli, "door", "b1")
    assert b2.waits()
    assert isinstance(take(cli, "door", "p2", KEPT), int)
    release(cli, "door", "p2")
    assert isinstance(b2.answer(), int)


def test_an_owner_can_change_from_a_place_to_blocking(server, cli):
    # G9: one place in line
    take(cli, "door", "alice")
    take(cli, "door", "bob", "QUEUE 500")
    take(cli, "door", "carol", KEPT)
    bob = ask(server, "door", "bob")
    assert states_of(cli, "door") == [("bob", "blocked"), ("carol", "queued")]
    timer = ask(server, "other", "x")
    timer.answer()
    assert ask(server, "other", "y", block_ms=800).answer() is None, "the place's time is over by now"
    assert bob.waits()
    release(cli, "door", "alice")
    assert isinstance(bob.answer(), int)


def test_an_owner_can_change_from_blocking_to_a_place(server, cli):
    # G9
    take(cli, "door", "alice")
    bob = ask(server, "door", "bob")
    carol = ask(server, "door", "carol")
    assert take(cli, "door", "bob", KEPT) is None
    with refused("UNBLOCKED"):
        bob.answer()
    assert states_of(cli, "door") == [("bob", "queued"), ("carol", "blocked")]
    release(cli, "door", "alice")
    assert carol.waits()
    assert isinstance(take(cli, "door", "bob", KEPT), int)


def test_an_owner_that_blocks_on_its_reserved_place_is_granted_at_once(server, cli):
    take(cli, "door", "alice")
    take(cli, "door", "bob", KEPT)
    release(cli, "door", "alice")
    assert isinstance(take(cli, "door", "bob", "BLOCK 0"), int)
    assert line_of(cli, "door") == []


# Contexts that may not block


@pytest.mark.parametrize("way", ["MULTI", "script"])
def test_places_work_in_transactions_and_scripts(cli, way):
    def place(owner):
        if way == "MULTI":
            return cli.pipeline("MULTI", f"LOCK.ACQUIRE door {owner} PX 60000 {KEPT}", "EXEC")[-1][0]
        script = "return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 'PX', 60000, 'QUEUE', 3600000)"
        return cli("EVAL", script, 1, "door", owner)

    take(cli, "door", "alice")
    assert place("bob") is None
    assert place("carol") is None
    assert states_of(cli, "door") == [("bob", "queued"), ("carol", "queued")]
    release(cli, "door", "alice")
    assert place("carol") is None
    token = place("bob")
    assert cli("LOCK.FENCE door") == token


def test_many_owners_share_one_connection(cli):
    # its purpose: no request blocks the others
    take(cli, "door", "alice")
    names = [f"task{n}" for n in range(50)]
    replies = cli.pipeline(*[f"LOCK.ACQUIRE door {name} PX 60000 {KEPT}" for name in names])
    assert replies == [None] * 50
    assert line_of(cli, "door") == names
    last = cli("LOCK.FENCE door")
    release(cli, "door", "alice")
    for name in names:
        replies = cli.pipeline(*[f"LOCK.ACQUIRE door {each} PX 60000 {KEPT}" for each in (names[-1], name)])
        if name != names[-1]:
            assert replies[0] is None
        assert replies[1] > last
        last = replies[1]
        release(cli, "door", name)
        if name == names[-2]:
            assert cli("LOCK.RELEASE", "door", names[0]) == 0
    assert line_of(cli, "door") == []


# Other kinds


def test_a_permit_is_reserved_and_the_others_are_handed_on(server, cli):
    # G5, G6: a reserved permit does not hold up the next one
    for n in range(2):
        take(cli, "pool", f"h{n}", "LIMIT 2")
    take(cli, "pool", "place", "LIMIT 2", KEPT)
    first, second = ask(server, "pool", "b1", "LIMIT 2"), ask(server, "pool", "b2", "LIMIT 2")
    release(cli, "pool", "h0")
    assert first.waits(), "the permit is reserved"
    release(cli, "pool", "h1")
    assert isinstance(first.answer(), int)
    assert second.waits()
    assert isinstance(take(cli, "pool", "place", "LIMIT 2", KEPT), int)
    assert len(owners_of(cli, "pool")) == 2
    assert second.waits()


def test_a_reserved_permit_that_lapses_is_handed_on(server, cli):
    # G6
    take(cli, "pool", "h", "LIMIT 1")
    take(cli, "pool", "place", "LIMIT 1 QUEUE 250")
    waiter = ask(server, "pool", "b", "LIMIT 1")
    release(cli, "pool", "h")
    assert isinstance(waiter.answer(), int)


def test_readers_are_not_held_up_by_a_readers_place(server, cli):
    # G5: consecutive readers are granted together
    take(cli, "door", "w")
    take(cli, "door", "r1", "SHARED", KEPT)
    r2 = ask(server, "door", "r2", "SHARED")
    writer = ask(server, "door", "w2")
    release(cli, "door", "w")
    assert isinstance(r2.answer(), int)
    assert isinstance(take(cli, "door", "r1", "SHARED", KEPT), int)
    assert owners_of(cli, "door") == ["r2", "r1"]
    assert writer.waits()


def test_a_writers_place_blocks_readers_after_it(server, cli):
    # G5
    take(cli, "door", "r1", "SHARED")
    take(cli, "door", "w", KEPT)
    reader = ask(server, "door", "r2", "SHARED")
    assert reader.waits()
    release(cli, "door", "r1")
    assert reader.waits()
    assert isinstance(take(cli, "door", "w", KEPT), int)
    assert reader.waits()
    release(cli, "door", "w")
    assert isinstance(reader.answer(), int)


# Limits


def test_places_count_as_waiters_for_the_limit(cli):
    # CONTRACT 4
    cli("CONFIG SET redislock.max-waiters-per-lock 2")
    take(cli, "door", "alice")
    take(cli, "door", "p1", KEPT)
    take(cli, "door", "p2", KEPT)
    with refused("LOCKQUEUE"):
        take(cli, "door", "p3", KEPT)
    assert take(cli, "door", "p2", KEPT) is None, "a place that is kept is not a new one"
    cli("CONFIG SET redislock.max-waiters-per-lock 10000")
    cli("CONFIG SET redislock.max-waiters 2")
    with refused("LOCKQUEUE"):
        take(cli, "door", "p3", KEPT)


def test_max_wait_bounds_places(cli):
    cli("CONFIG SET redislock.max-wait 5000")
    take(cli, "door", "alice")
    assert take(cli, "door", "bob", "QUEUE 5000") is None
    with refused("ERR", "QUEUE", "1 to 5000"):
        take(cli, "door", "bob", "QUEUE 5001")


def test_without_max_wait_max_lease_bounds_places(cli):
    cli("CONFIG SET redislock.max-lease 1000")
    take(cli, "door", "alice", lease_ms=1000)
    assert take(cli, "door", "bob", "QUEUE 1000", lease_ms=1000) is None
    with refused("ERR", "QUEUE", "1 to 1000 (milliseconds)"):
        take(cli, "door", "bob", "QUEUE 1001", lease_ms=1000)
    cli("CONFIG SET redislock.max-wait 5000")
    assert take(cli, "door", "bob", "QUEUE 5000", lease_ms=1000) is None


def test_an_operator_ends_a_reservation(server, cli):
    # docs/reference/commands/info.md
    take(cli, "door", "alice")
    take(cli, "door", "bob", KEPT)
    carol = ask(server, "door", "carol")
    release(cli, "door", "alice")
    assert carol.waits(), "the door is kept free for bob"
    (first, _) = lock_info(cli, "door")["queue"]
    assert first["state"] == "queued"
    assert cli("LOCK.RELEASE", "door", first["owner"]) == 0
    assert isinstance(carol.answer(), int)


# However many reservations there are (G6)


def reserve(cli, count, *options, key="door"):
    """This many owners each keep a position in the queue."""
    for reply in cli.pipeline(
        *(["LOCK.ACQUIRE", key, f"p{n}", "PX", "60000", "QUEUE", "3600000", *options] for n in range(count))
    ):
        assert reply is None, reply


@pytest.mark.parametrize("reserved", [64, 65, 100, 9_000])
def test_a_waiter_that_fits_alongside_any_number_of_reservations_is_granted(server, cli, reserved):
    take(cli, "door", "writer")
    reserve(cli, reserved, "SHARED")
    reader = ask(server, "door", "reader", "SHARED")
    release(cli, "door", "writer")
    assert isinstance(reader.answer(), int)
    assert isinstance(take(cli, "door", "newcomer", "SHARED"), int)
    assert isinstance(take(cli, "door", f"p{reserved - 1}", "SHARED", KEPT), int), "the last one's own turn"
    assert take(cli, "door", "other writer") is None


@pytest.mark.parametrize("reserved", [65, 100, 299])
def test_free_permits_alongside_reserved_ones(server, cli, reserved):
    for n in range(300):
        take(cli, "door", f"h{n}", "LIMIT 300")
    reserve(cli, reserved, "LIMIT", "300")
    assert take(cli, "door", "newcomer", "LIMIT 300") is None
    for n in range(300):
        release(cli, "door", f"h{n}")
    free = 300 - reserved
    granted = [take(cli, "door", f"n{n}", "LIMIT 300") for n in range(free + 3)]
    assert [isinstance(token, int) for token in granted] == [True] * free + [False] * 3
    waiter = ask(server, "door", "waiter", "LIMIT 300")
    assert waiter.waits()
    assert isinstance(take(cli, "door", f"p{reserved - 1}", "LIMIT 300", KEPT), int)
    release(cli, "door", "n0")
    assert isinstance(waiter.answer(), int)


# Clients that track the key are notified of the next turn


class Poller:
    """An owner that asks again only when the server says that the key has changed."""

    def __init__(self, server, owner, options="QUEUE 300", key="door"):
        self.cli = server.connect(protocol=3)
        self.cli("CLIENT TRACKING ON BCAST")
        self.words = [*("LOCK.ACQUIRE", key, owner, "PX", "60000"), *options.split()]

    def asks(self):
        """A token, or nothing."""
        self.cli.pushes.clear()
        return self.cli(*self.words)

    def is_told(self):
        """Returns whether a message about the key came since the last call."""
        self.cli("PING")
        return bool(self.cli.pushes)


def test_a_turn_that_lapses_is_signalled(server, cli):
    take(cli, "door", "alice")
    first, second, third = (Poller(server, f"p{n}", f"QUEUE {ms}") for n, ms in enumerate([100, 200, 3600000]))
    assert [poller.asks() for poller in (first, second, third)] == [None] * 3
    release(cli, "door", "alice")
    eventually(third.is_told, "the door is free")
    third.cli.pushes.clear()
    eventually(third.is_told, "the first place has lapsed, and the second has its turn")
    third.cli.pushes.clear()
    eventually(third.is_told, "the second has lapsed, too")
    assert isinstance(third.asks(), int)


@pytest.mark.parametrize("going", ["leave", "kill", "unblock", "withdraw"])
def test_a_turn_that_begins_because_a_waiter_left_is_signalled(server, cli, going):
    take(cli, "gate", "alice")
    waiter = server.ask("LOCK.MACQUIRE 2 gate door waiter PX 60000 BLOCK 0")
    poller = Poller(server, "poller", KEPT)
    assert poller.asks() is None, "the door is free, and the waiter is ahead"
    assert not poller.is_told()
    act = {
        "leave": waiter.leave,
        "kill": lambda: cli("CLIENT", "KILL", "ID", waiter.client_id),
        "unblock": lambda: cli("CLIENT", "UNBLOCK", waiter.client_id, "ERROR"),
        "withdraw": lambda: cli("LOCK.RELEASE gate waiter"),
    }
    act[going]()
    eventually(poller.is_told, "its turn has come")
    assert isinstance(poller.asks(), int)


def test_a_permit_whose_reservation_lapses_is_signalled_once(server, cli):
    for owner in ("a", "b"):
        take(cli, "door", owner, "LIMIT 2")
    lapses = Poller(server, "p0", "LIMIT 2 QUEUE 100")
    stays, last = Poller(server, "p1", f"LIMIT 2 {KEPT}"), Poller(server, "p2", f"LIMIT 2 {KEPT}")
    assert [poller.asks() for poller in (lapses, stays, last)] == [None] * 3
    release(cli, "door", "a")
    eventually(stays.is_told, "a permit is free")
    assert stays.asks() is None, "it is kept for the first"
    eventually(stays.is_told, "the first has lapsed")
    assert stays.cli.pushes and len(stays.cli.pushes) == 1
    assert isinstance(stays.asks(), int)
    eventually(last.is_told, "the permit was taken")
    for _ in range(3):
        cli("PING")  # what else there is to tell goes out at the end of a turn of the event loop
    last.is_told()
    last.cli.pushes.clear()
    cli("LOCK.RELEASE door p2")
    assert not last.is_told(), "an owner that had no turn leaves"


def test_owners_are_not_signalled_when_others_join_or_leave_after_them(server, cli):
    take(cli, "door", "alice")
    watching = Poller(server, "first", KEPT)
    assert watching.asks() is None
    for owner in ("bob", "carol"):
        take(cli, "door", owner, KEPT)
    waiter = ask(server, "door", "dave")
    cli("LOCK.RELEASE door bob")
    waiter.leave()
    eventually(lambda: line_of(cli, "door") == ["first", "carol"], "dave has left")
    assert not watching.is_told()


def test_owners_that_ask_only_when_signalled_are_served_in_order(server, cli):
    take(cli, "door", "alice")
    pollers = [Poller(server, f"p{n}", KEPT) for n in range(5)]
    assert [poller.asks() for poller in pollers] == [None] * 5
    cli("LOCK.RELEASE door p1")  # it gives up
    release(cli, "door", "alice")
    served = []
    while len(served) < 4:
        told = [n for n, poller in enumerate(pollers) if n not in served and n != 1 and poller.is_told()]
        granted = [n for n in told if isinstance(pollers[n].asks(), int)]
        served += granted
        for n in granted:
            release(cli, "door", f"p{n}")
    assert served == [0, 2, 3, 4]


def test_asking_for_a_place_writes_nothing(start_server):
    # nothing for files and replicas to know
    server = start_server("--appendonly", "yes")
    cli = server.connect()
    take(cli, "door", "alice")
    size = server.info("persistence")["aof_current_size"]
    digest = cli("DEBUG DIGEST")
    for n in range(10):
        take(cli, "door", f"p{n}", KEPT)
        take(cli, "door", f"p{n}", KEPT)
    assert server.info("persistence")["aof_current_size"] == size
    assert cli("DEBUG DIGEST") == digest


def test_places_are_in_the_memory_of_the_primary_only(start_server):
    # CONTRACT 4
    server = start_server("--appendonly", "yes", "--appendfsync", "always")
    cli = server.connect()
    token = take(cli, "door", "alice")
    take(cli, "door", "bob", KEPT)
    server.kill()
    cli = server.start().connect()
    assert cli("LOCK.FENCE", "door", token) == 1
    assert line_of(cli, "door") == []


def test_a_server_that_becomes_a_replica_drops_its_places(start_server):
    # CONTRACT 4: queues are dropped at a change of roles
    primary, server = start_server(), start_server()
    cli = server.connect()
    take(cli, "door", "alice")
    take(cli, "door", "bob", KEPT)
    cli("REPLICAOF", "127.0.0.1", primary.port)
    eventually(lambda: server.info("replication")["master_link_status"] == "up", "linked")
    cli("REPLICAOF NO ONE")
    assert line_of(cli, "door") == []
    assert isinstance(take(cli, "door", "carol"), int)
