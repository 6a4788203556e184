"""Undelivered holds: each is delivered or revoked, and no other hold is ever revoked (CONTRACT 6)."""

import pytest

from harness.combinations import AGAIN, cells
from harness.confirming import confirming, frozen
from harness.kinds import ask, hold_of, owners_of, release, take
from harness.limits import eventually
from harness.replies import lock_info
from harness.wire import ServerError, encode, refused

LEASE_MS = 50_000
#: For tests in which a confirmation fails: long enough for a second request.
BRIEF_MS = 1_500


@pytest.fixture
def pair(start_server):
    """A primary and its replica; an unconfirmed grant waits for a minute."""
    primary, replicas = confirming(start_server, replicas=1)
    return primary, replicas[0]


@pytest.fixture
def stuck(pair):
    """A primary whose replica is paused, so that unconfirmed grants fail soon."""
    primary, replica = pair
    with frozen(replica):
        primary.admin("CONFIG", "SET", "redislock.confirm-timeout", BRIEF_MS)
        yield primary
        primary.admin("CONFIG", "SET", "redislock.confirm-timeout", 60_000)


def acquire(server, owner, *options, lease_ms=LEASE_MS, name="door"):
    """A request on a connection of its own that is not read yet."""
    return server.ask("LOCK.ACQUIRE", name, owner, "PX", lease_ms, *options)


def fails(*requests):
    """These are not confirmed."""
    for request in requests:
        with refused("NOREPLICAS"):
            request.answer()


def in_one_turn(server, *commands):
    """A connection that sends these to be read in one turn of the server's event loop."""
    cli = server.connect()
    cli.send_bytes(b"".join(encode(*command) for command in commands))
    return cli


REVOKED = {cell: code for cell, code in cells(AGAIN).items() if cell[0].endswith("-revoked")}
HELD = {
    "exclusive-revoked": [("LOCK.MACQUIRE", 2, "door", "gate", "alice", "PX", LEASE_MS)],
    "SHARED-revoked": [("LOCK.MACQUIRE", 2, "door", "gate", "alice", "PX", LEASE_MS, "SHARED")],
    "LIMIT-revoked": [("LOCK.ACQUIRE", name, "alice", "PX", LEASE_MS, "LIMIT", 3) for name in ("door", "gate")],
}
ASKED = {
    "exclusive": ("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS),
    "SHARED": ("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS, "SHARED"),
    "LIMIT": ("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS, "LIMIT", 3),
    "other-LIMIT": ("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS, "LIMIT", 5),
    "MACQUIRE": ("LOCK.MACQUIRE", 2, "door", "gate", "alice", "PX", LEASE_MS),
    "MACQUIRE-SHARED": ("LOCK.MACQUIRE", 2, "door", "gate", "alice", "PX", LEASE_MS, "SHARED"),
    "RENEW": ("LOCK.RENEW", "door", "alice", "PX", LEASE_MS),
    "RAISE": ("LOCK.RENEW", "door", "alice", "PX", LEASE_MS, "RAISE", 1),
}


@pytest.mark.parametrize("row, column", REVOKED)
def test_an_owner_asks_again_for_a_hold_with_a_pending_revocation(pair, row, column):
    primary, replica = pair
    cli = primary.connect()
    with frozen(replica):
        lost = [primary.ask(*words) for words in HELD[row]]
        eventually(lambda: cli("EXISTS door gate") == 2, "both are held")
        token = cli("LOCK.FENCE door")
        again = in_one_turn(primary, *(("CLIENT", "KILL", "ID", one.client_id) for one in lost), ASKED[column])
        assert [again.read() for _ in lost] == [1] * len(lost)
    try:
        reply = again.read()
    except ServerError as error:
        assert REVOKED[row, column] == "C" and "redislock.confirm" in error.line
        eventually(lambda: cli("DBSIZE") == 0, "it is revoked")
        return
    told = {"t": reply == token, "g": reply > token, "1": reply == 1}
    assert told[REVOKED[row, column]], (reply, token)
    assert owners_of(cli, "door") == ["alice"], "she was told of it"


def test_a_renewal_that_is_not_confirmed_delivers_nothing(stuck):
    cli = stuck.connect()
    grant = acquire(stuck, "alice")
    renewal = stuck.ask("LOCK.RENEW", "door", "alice", "PX", LEASE_MS)
    fails(grant, renewal)
    eventually(lambda: cli("EXISTS door") == 0, "it is revoked")


def test_an_owner_that_asks_again_during_a_pause_keeps_what_was_to_be_revoked(pair):
    primary, replica = pair
    cli = primary.connect()
    with frozen(replica):
        primary.admin("CONFIG", "SET", "redislock.confirm-timeout", 300)
        grant = acquire(primary, "alice")
        cli("CLIENT PAUSE 60000 WRITE")
        fails(grant)
        token = cli("LOCK.FENCE door")
        primary.admin("CONFIG", "SET", "redislock.confirm-timeout", 60_000)
    again = in_one_turn(primary, ("CLIENT", "UNPAUSE"), ("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS))
    assert again.read() == "OK" and again.read() == token
    assert cli("LOCK.FENCE door") == token


def test_what_an_accepted_request_has_set_stays_though_it_is_not_confirmed(pair):
    primary, replica = pair
    cli = primary.connect()
    for name in ("shorter", "read", "moved"):
        take(cli, name, "alice", lease_ms=LEASE_MS)
    tied = primary.connect()
    take(tied, "tied", "alice", "EPHEMERAL 5000", lease_ms=LEASE_MS)
    with frozen(replica):
        primary.admin("CONFIG", "SET", "redislock.confirm-timeout", 300)
        moves = acquire(primary, "alice", "EPHEMERAL", 5_000, name="tied")
        fails(
            primary.ask("LOCK.RENEW", "shorter", "alice", "PX", 20_000),
            acquire(primary, "alice", "SHARED", name="read"),
            moves,
        )
        primary.admin("CONFIG", "SET", "redislock.confirm-timeout", 60_000)
    assert hold_of(cli, "shorter", "alice")["lease-left-ms"] <= 20_000
    assert isinstance(take(cli, "read", "bob", "SHARED", lease_ms=LEASE_MS), int), "she holds it shared"
    tied.close()
    cli("PING")
    assert hold_of(cli, "tied", "alice")["lease-left-ms"] > 5_000, "it is tied to the other connection"
    moves.crash()
    eventually(lambda: hold_of(cli, "tied", "alice")["lease-left-ms"] <= 5_000, "its lease is cut")


def test_each_hold_of_a_request_for_several_has_its_own_fate(pair):
    primary, replica = pair
    cli = primary.connect()
    with frozen(replica):
        both = primary.ask("LOCK.MACQUIRE", 2, "door", "gate", "alice", "PX", LEASE_MS)
        eventually(lambda: cli("EXISTS door gate") == 2, "both are held")
        one = acquire(primary, "alice")
        assert one.waits()
        cli("CLIENT", "KILL", "ID", both.client_id)
        eventually(lambda: cli("EXISTS gate") == 0, "that one is revoked")
        assert one.waits()
    assert one.answer() == cli("LOCK.FENCE door")


def test_what_a_demoted_server_was_to_revoke_is_delivered(pair):
    primary, replica = pair
    cli = primary.connect()
    with frozen(replica):
        primary.admin("CONFIG", "SET", "redislock.confirm-timeout", 300)
        grant = acquire(primary, "alice")
        cli("CLIENT PAUSE 60000 WRITE")
        fails(grant)
        token = cli("LOCK.FENCE door")
        turns = in_one_turn(primary, ("REPLICAOF", "127.0.0.1", 1), ("REPLICAOF", "NO", "ONE"), ("CLIENT", "UNPAUSE"))
        assert [turns.read() for _ in range(3)] == ["OK"] * 3
        assert isinstance(cli("LOCK.INFO door"), list)
        cli("DEBUG SLEEP 0.1")
        assert cli("LOCK.FENCE door") == token


def granted_in_one_turn(server, options, *commands):
    """Bob holds, and Alice waits with these options: then this happens in the turn in which she is granted the lock.

    Her connection is killed after it. Gives the connection that sent the commands, and reads the first and the last."""
    cli = server.connect()
    take(cli, "door", "bob")
    alice = ask(server, "door", "alice", options)
    kill = ("CLIENT", "KILL", "ID", alice.client_id)
    turn = in_one_turn(server, ("LOCK.RELEASE", "door", "bob"), *commands, kill)
    assert turn.read() == 1
    return turn


def test_a_delivered_count_stays_when_the_reply_before_it_is_dropped(server, cli):
    again = ("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS, "REENTRANT")
    turn = granted_in_one_turn(server, "REENTRANT", again)
    assert isinstance(turn.read(), int) and turn.read() == 1
    cli("DEBUG SLEEP 0.1")
    assert hold_of(cli, "door", "alice")["count"] == 2


def test_the_next_owner_keeps_what_it_was_granted_in_the_turn_of_the_one_that_was_lost(server, cli):
    # G1, G10
    take(cli, "door", "bob")
    alice = ask(server, "door", "alice")
    eve = ask(server, "door", "eve")
    kill = ("CLIENT", "KILL", "ID", alice.client_id)
    turn = in_one_turn(server, ("LOCK.RELEASE", "door", "bob"), ("LOCK.RELEASE", "door", "alice"), kill)
    assert [turn.read() for _ in range(3)] == [1, 1, 1]
    token = eve.answer()
    cli("DEBUG SLEEP 0.1")
    assert lock_info(cli, "door", "FULL")["holders"][0]["token"] == token


@pytest.mark.parametrize("options", ["", "EPHEMERAL 0"])
def test_a_grant_that_is_dropped_with_its_connection_ends_once(server, cli, options):
    # G15: the connection cuts the lease at the same time.
    cli("CONFIG SET notify-keyspace-events KEd")
    subscriber = server.connect()
    subscriber("PSUBSCRIBE __keyevent@*__:lock.*")
    granted_in_one_turn(server, options)
    eventually(lambda: cli("EXISTS door") == 0, "it is revoked")
    take(cli, "other", "alice")
    events = []
    while not events or events[-1][1] != "other":
        _, _, channel, name = subscriber.read()
        events.append((channel.partition(":lock.")[2], name))
    ends = [event for event, name in events if name == "door" and event != "acquired"]
    assert ends[0] == "released" and ends[1:] in (["released"], ["expired"]), events


def test_local_confirms_what_waits_and_nothing_is_revoked(pair):
    primary, replica = pair
    cli = primary.connect()
    with frozen(replica):
        grant = acquire(primary, "alice")
        assert grant.waits()
        primary.admin("CONFIG SET redislock.confirm local")
        token = grant.answer()
        cli("DEBUG SLEEP 0.1")
        assert cli("LOCK.FENCE door") == token
    release(cli, "door", "alice")
