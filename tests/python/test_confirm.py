"""redislock.confirm all: a grant or a renewal is answered when every replica has it (CONTRACT 6, T3)."""

import contextlib
import re
import subprocess
import time

import pytest

from harness.confirming import confirming, frozen, has_caught_up, has_replicas, set_rule
from harness.kinds import ask, ask_all, hold_of, owners_of, release, take
from harness.limits import SOON_SECONDS, eventually
from harness.payload import dump
from harness.replicas import is_linked
from harness.replies import module_info
from harness.server import CLI, StartFailed
from harness.wire import Closed, ServerError, encode, refused

#: For tests in which a confirmation fails: long enough to look around before.
BRIEF_MS = 300
LEASE_MS = 50_000


@pytest.fixture
def group(start_server):
    """A primary with two replicas; an unconfirmed grant waits for a minute."""
    primary, replicas = confirming(start_server)
    return primary, replicas[0], replicas[1]


@contextlib.contextmanager
def stuck(primary, *replicas):
    """These replicas are paused, and unconfirmed grants fail soon."""
    with frozen(*replicas):
        primary.admin("CONFIG", "SET", "redislock.confirm-timeout", BRIEF_MS)
        try:
            yield
        finally:
            primary.admin("CONFIG", "SET", "redislock.confirm-timeout", 60_000)


@contextlib.contextmanager
def revoked_later(group):
    """Alice's grant was not confirmed, and writes are paused until the end of this: then it is revoked. Gives a client."""
    primary, _, second = group
    cli = primary.connect()
    with stuck(primary, second):
        request = primary.ask("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS)
        cli("CLIENT PAUSE 60000 WRITE")
        with refused("NOREPLICAS", "the grant", "you may or may not hold it"):
            request.answer()
        yield cli
        assert cli("LOCK.FENCE door") is not None
        cli("CLIENT UNPAUSE")
        eventually(lambda: cli("LOCK.FENCE door") is None, "it is revoked")


def counted(server, name):
    """A number of INFO redislock."""
    return int(module_info(server.admin)[name])


# Each way to be granted or renewed, as (the earlier hold, the request, whether the reply is a token).
REQUESTS = {
    "acquire": ((), f"LOCK.ACQUIRE door alice PX {LEASE_MS}"),
    "acquire shared": ((), f"LOCK.ACQUIRE door alice PX {LEASE_MS} SHARED"),
    "acquire one of three": ((), f"LOCK.ACQUIRE door alice PX {LEASE_MS} LIMIT 3"),
    "acquire for a while of the connection": ((), f"LOCK.ACQUIRE door alice PX {LEASE_MS} EPHEMERAL 5"),
    "keep a place": ((), f"LOCK.ACQUIRE door alice PX {LEASE_MS} QUEUE 50000"),
    "acquire several": ((), f"LOCK.MACQUIRE 2 door gate alice PX {LEASE_MS}"),
    "acquire several shared": ((), f"LOCK.MACQUIRE 2 door gate alice PX {LEASE_MS} SHARED"),
    "acquire again": (("",), f"LOCK.ACQUIRE door alice PX {LEASE_MS}"),
    "downgrade": (("",), f"LOCK.ACQUIRE door alice PX {LEASE_MS} SHARED"),
    "renew": (("",), f"LOCK.RENEW door alice PX {LEASE_MS}"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_answer_waits_for_every_replica(group, name):
    # T3: one of two is not enough
    primary, first, second = group
    before, request = REQUESTS[name]
    cli = primary.connect()
    for options in before:
        take(cli, "door", "alice", options, lease_ms=40_000)
    with frozen(second):
        waiting = primary.ask(*request.split())
        assert waiting.waits()
        has_caught_up(primary, first)
        assert owners_of(first.connect(), "door") == ["alice"], "the first replica has it"
        assert waiting.waits() and counted(primary, "confirm_waits") == 1
    reply = waiting.answer()
    assert reply == 1 if request.startswith("LOCK.RENEW") else reply > 1_000_000
    has_caught_up(primary, second)
    assert hold_of(second.connect(), "door", "alice")["token"] >= hold_of(cli, "door", "alice")["token"]


def test_a_minted_owner_is_returned_with_its_token(group):
    cli = group[0].connect()
    owner, token = cli(f"LOCK.ACQUIRE door * PX {LEASE_MS}")
    assert len(owner) == 36 and hold_of(cli, "door", owner)["token"] == token


@pytest.mark.parametrize("name", [name for name in REQUESTS if not REQUESTS[name][0]])
def test_a_grant_that_is_not_confirmed_is_revoked(group, name):
    primary, first, second = group
    cli = primary.connect()
    with stuck(primary, second):
        request = primary.ask(*REQUESTS[name][1].split())
        with refused("NOREPLICAS", "the grant", "you may or may not hold it: ask again as the same owner, or release"):
            request.answer()
        eventually(lambda: cli("DBSIZE") == 0, "nothing is held")
        eventually(lambda: cli("LOCK.FENCE door") is None, "it is revoked")
    for replica in (first, second):
        eventually(lambda replica=replica: replica.admin("DBSIZE") == 0, "nor at the replica")
    assert counted(primary, "confirm_failures") == 1
    assert isinstance(take(cli, "door", "bob", lease_ms=LEASE_MS), int), "it goes on"


def test_what_left_meanwhile_and_came_back_is_not_revoked(group):
    # G1: where the lock was, its owner may have received it.
    primary, _, second = group
    cli = primary.connect()
    with stuck(primary, second):
        primary.admin("CONFIG", "SET", "redislock.confirm-timeout", 2_000)
        request = primary.ask("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS)
        eventually(lambda: cli("LOCK.FENCE door") is not None, "it is held, and not yet confirmed")
        token = cli("LOCK.FENCE door")
        payload = dump(cli, "door")
        assert cli("DEL door") == 1
        assert cli("RESTORE", "door", 0, payload) == "OK"
        with refused("NOREPLICAS", "the grant"):
            request.answer()
        assert cli("LOCK.FENCE", "door", token) == 1
        assert owners_of(cli, "door") == ["alice"]


def test_a_pause_of_writes_delays_the_end_of_a_hold_and_not_the_answer(group):
    # G7; and F1: a write meanwhile would end the server
    with revoked_later(group) as cli:
        assert cli("EXISTS door") == 1
    assert isinstance(take(cli, "door", "bob", lease_ms=LEASE_MS), int)


def test_pending_revocations_happen_though_confirm_was_turned_off(group):
    # G8: it is unknown to all clients. A client that asks then receives its reply at once, also if it cannot wait.
    with revoked_later(group) as cli:
        cli("CONFIG SET redislock.confirm local")
    cli("MULTI")
    cli(f"LOCK.ACQUIRE door bob PX {LEASE_MS}")
    (token,) = cli("EXEC")
    assert cli("LOCK.FENCE door") == token


def test_what_was_held_before_outlives_a_failure(group):
    # G2: only an undelivered hold is revoked
    primary, _, second = group
    cli = primary.connect()
    kept = take(cli, "kept", "alice", lease_ms=LEASE_MS)
    take(cli, "read", "alice", "SHARED", lease_ms=LEASE_MS)
    with stuck(primary, second):
        requests = [
            ask(primary, "kept", "alice", lease_ms=LEASE_MS),
            ask(primary, "read", "alice", "SHARED", lease_ms=LEASE_MS),
            ask_all(primary, "one other", "alice", lease_ms=LEASE_MS),
        ]
        for request in requests:
            with refused("NOREPLICAS"):
                request.answer()
        eventually(lambda: cli("EXISTS one other") == 0, "what it did not hold before is revoked")
    assert hold_of(cli, "kept", "alice")["token"] == kept
    assert owners_of(cli, "read") == ["alice"]
    for replica in group[1:]:
        has_caught_up(primary, replica)
        assert replica.admin("DEBUG DIGEST") == cli("DEBUG DIGEST")


def test_a_renewal_that_is_not_confirmed_fails(group):
    primary, _, second = group
    cli = primary.connect()
    token = take(cli, "door", "alice", lease_ms=LEASE_MS)
    with stuck(primary, second), refused("NOREPLICAS", "the renewal", "the shorter"):
        primary.ask("LOCK.RENEW", "door", "alice", "PX", LEASE_MS).answer()
    assert cli("LOCK.FENCE door") == token


def test_the_next_in_line_is_granted_what_was_revoked(group):
    # G6; and its own grant is confirmed before it is delivered
    primary, _, second = group
    cli = primary.connect()
    take(cli, "door", "alice", lease_ms=LEASE_MS)
    bob = ask(primary, "door", "bob", lease_ms=LEASE_MS)
    carol = ask(primary, "door", "carol", lease_ms=LEASE_MS)
    with stuck(primary, second):
        release(cli, "door", "alice")
        with refused("NOREPLICAS"):
            bob.answer()
    token = carol.answer()
    assert hold_of(cli, "door", "carol")["token"] == token


def test_a_grant_out_of_the_line_waits_for_every_replica(group):
    primary, first, second = group
    cli = primary.connect()
    take(cli, "door", "alice", lease_ms=LEASE_MS)
    bob = ask(primary, "door", "bob", lease_ms=LEASE_MS)
    several = ask_all(primary, "gate door", "several", lease_ms=LEASE_MS)
    with frozen(second):
        release(cli, "door", "alice")
        has_caught_up(primary, first)
        assert owners_of(first.connect(), "door") == ["bob"]
        assert bob.waits()
    bob.answer()
    with frozen(second):
        release(cli, "door", "bob")
        assert several.waits()
    assert isinstance(several.answer(), int)


def test_a_release_hands_the_lock_on_in_the_same_step(group):
    # G5, G6: no other request comes in between, though bob is notified later
    primary = group[0]
    cli = primary.connect()
    take(cli, "door", "alice", lease_ms=LEASE_MS)
    bob = ask(primary, "door", "bob", lease_ms=LEASE_MS)
    cli("MULTI")
    cli("LOCK.RELEASE door alice")
    cli("LOCK.FENCE door")
    released, token = cli("EXEC")
    assert released == 1 and token == bob.answer()


def test_with_too_few_replicas_nothing_is_done(group):
    primary, first, second = group
    cli = primary.connect()
    held = take(cli, "held", "alice", lease_ms=LEASE_MS)
    waiter = ask(primary, "held", "waiter", lease_ms=LEASE_MS)
    second.admin("REPLICAOF NO ONE")
    has_replicas(primary, 1)
    before = cli("LOCK.INFO held")[7]
    for request in (
        f"LOCK.ACQUIRE door bob PX {LEASE_MS}", f"LOCK.ACQUIRE door bob PX {LEASE_MS} BLOCK 0",
        f"LOCK.ACQUIRE held alice PX {LEASE_MS}", f"LOCK.RENEW held alice PX {LEASE_MS}",
        f"LOCK.MACQUIRE 2 door gate bob PX {LEASE_MS}",
    ):  # fmt: skip
        with refused("NOREPLICAS", "too few replicas", "nothing was done"):
            cli(request)
    assert cli("LOCK.FENCE held") == held and cli("EXISTS door gate") == 0
    assert cli("LOCK.INFO held")[7][0][:4] == before[0][:4]
    # A client that waits already waits on, and is granted when that can be confirmed.
    release(cli, "held", "alice")
    assert waiter.waits()
    second.admin("REPLICAOF", "127.0.0.1", primary.port)
    is_linked(second)
    assert isinstance(waiter.answer(), int)


def test_a_replica_that_leaves_meanwhile_fails_the_grant_at_once(group):
    primary, _, second = group
    with frozen(second):
        request = primary.ask("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS)
        assert request.waits()
        assert primary.admin("CLIENT KILL TYPE replica") == 2
        with refused("NOREPLICAS"):
            request.answer()


def test_a_client_that_leaves_is_granted_nothing(group):
    # G8
    primary, _, second = group
    cli = primary.connect()
    with frozen(second):
        leaver = primary.ask("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS)
        killed = primary.ask("LOCK.ACQUIRE", "gate", "alice", "PX", LEASE_MS)
        leaver.crash()
        cli("CLIENT", "KILL", "ID", killed.client_id)
        eventually(lambda: cli("DBSIZE") == 0, "both are revoked")
        bob = ask(primary, "door", "bob", lease_ms=LEASE_MS)
        assert bob.waits()
    assert isinstance(bob.answer(), int)


def test_a_retry_keeps_what_its_first_request_began(group):
    # G9: the connection broke, and the owner asks again
    primary, _, second = group
    cli = primary.connect()
    with frozen(second):
        first = primary.ask("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS)
        token = cli("LOCK.FENCE door")
        retry = primary.ask("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS)
        first.crash()
        assert retry.waits()
        assert cli("LOCK.FENCE door") == token
    assert retry.answer() == token
    with frozen(second):
        retry = primary.ask("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS)
        retry.crash()
        eventually(lambda: counted(primary, "confirm_waits") == 0, "it has left")
        assert cli("LOCK.FENCE door") == token, "it began nothing"


def test_an_owner_that_asks_again_just_before_it_is_revoked_keeps_its_hold(group):
    # G9: and it does not receive a token that is dead a moment later, together with that of the next in line
    primary, _, second = group
    cli = primary.connect()
    with frozen(second):
        first = primary.ask("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS)
        token = cli("LOCK.FENCE door")
        bob = ask(primary, "door", "bob", lease_ms=LEASE_MS)
        # Both in one turn of the server's event loop.
        again = primary.connect()
        again.send_bytes(
            encode("CLIENT", "KILL", "ID", first.client_id)
            + encode("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS)
        )
        assert again.read() == 1
        assert bob.waits()
    assert again.read() == token == cli("LOCK.FENCE door")
    assert bob.waits()


def test_an_owner_that_asks_again_after_a_failure_receives_a_live_token(group):
    # Hundreds fail together, so that some ask again before the pump has come to theirs.
    primary, _, second = group
    cli = primary.connect()
    connections = [primary.connect() for _ in range(300)]
    requests = [f"LOCK.ACQUIRE door-{n} owner-{n} PX {LEASE_MS}" for n in range(300)]
    with stuck(primary, second):
        # All wait before the first one fails, however busy the machine is: a later one would wait for a minute.
        cli("CONFIG SET redislock.confirm-timeout 3000")
        for connection, request in zip(connections, requests):
            connection.send(*request.split())
        eventually(lambda: counted(primary, "confirm_waits") == 300, "all wait")
        for connection, request in zip(connections, requests):
            assert connection.read_any().line.startswith("NOREPLICAS")
            cli("CONFIG SET redislock.confirm-timeout 60000")
            connection.send(*request.split())
    tokens = [connection.read() for connection in connections]
    eventually(lambda: counted(primary, "confirm_waits") == 0, "all are answered")
    assert [cli(f"LOCK.FENCE door-{n}") for n in range(300)] == tokens


def test_no_request_waits_for_longer_than_its_lease(group):
    # A client that receives a hold has it.
    primary, _, second = group
    cli = primary.connect()
    take(cli, "held", "alice", lease_ms=LEASE_MS)
    with frozen(second):
        for request in ("LOCK.ACQUIRE door alice PX 100", "LOCK.RENEW held alice PX 100"):
            with refused("NOREPLICAS", "redislock.confirm-timeout or the lease"):
                primary.ask(*request.split()).answer()


def test_a_waiter_never_receives_an_expired_lease(group):
    primary, _, second = group
    cli = primary.connect()
    take(cli, "door", "alice", lease_ms=LEASE_MS)
    take(cli, "gate", "alice", lease_ms=LEASE_MS)
    waiters = [ask(primary, "door", "bob", lease_ms=100), ask_all(primary, "gate other", "bob", lease_ms=100)]
    with frozen(second):
        cli("LOCK.RELEASE door alice")
        cli("LOCK.RELEASE gate alice")
        for waiter in waiters:
            with refused("NOREPLICAS", "redislock.confirm-timeout or the lease"):
                waiter.answer()


@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR"])
def test_client_unblock_ends_the_wait_for_replicas(group, how):
    # G7
    primary, _, second = group
    cli = primary.connect()
    take(cli, "gate", "alice", lease_ms=LEASE_MS)
    with frozen(second):
        renewal = primary.ask("LOCK.RENEW", "gate", "alice", "PX", LEASE_MS)
        if cli("CLIENT", "UNBLOCK", renewal.client_id, how) == 1:
            with refused("NOREPLICAS" if how == "TIMEOUT" else "UNBLOCKED"):
                renewal.answer()
        cli("LOCK.RELEASE gate alice")
        request = primary.ask("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS)
        if cli("CLIENT", "UNBLOCK", request.client_id, how) == 0:
            pytest.skip("this server cannot unblock a module's client")
        with refused("NOREPLICAS" if how == "TIMEOUT" else "UNBLOCKED"):
            request.answer()
        eventually(lambda: cli("DBSIZE") == 0, "the grant is revoked")


def test_a_request_that_cannot_wait_for_replicas_is_refused(group):
    primary = group[0]
    cli = primary.connect()
    take(cli, "held", "alice", lease_ms=LEASE_MS)
    requests = [
        f"LOCK.ACQUIRE door bob PX {LEASE_MS}",
        f"LOCK.MACQUIRE 1 door bob PX {LEASE_MS}",
        f"LOCK.RENEW held alice PX {LEASE_MS}",
    ]
    cli("MULTI")
    for request in requests:
        assert cli(request) == "QUEUED"
    replies = cli("EXEC")
    assert [reply.line.split()[0] for reply in replies] == ["NOREPLICAS"] * 3
    for request in requests:
        call = "return redis.call(unpack(ARGV))"
        with refused("NOREPLICAS", "in MULTI, in a script"):
            cli("EVAL", call, 0, *request.split())
    assert cli("EXISTS door") == 0
    cli("MULTI")
    cli("LOCK.RELEASE held alice")
    assert cli("EXEC") == [1], "a release waits for nobody"


@pytest.mark.parametrize("how", ["", "BLOCK 0", "QUEUE 50000"])
@pytest.mark.parametrize("option", ["KEEPALIVE", "REENTRANT"])
def test_keepalive_and_reentrant_are_refused(group, option, how):
    cli = group[0].connect()
    with refused("ERR", option, "redislock.confirm"):
        take(cli, "door", "alice", option, how, lease_ms=LEASE_MS)
    with refused("ERR", option, "redislock.confirm"):
        cli("EVAL", "return redis.call(unpack(ARGV))", 0, "LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS, option)
    assert cli("DBSIZE") == 0


@pytest.mark.parametrize("option", ["KEEPALIVE", "REENTRANT"])
def test_a_waiter_whose_option_is_refused_leaves_when_its_turn_comes(group, option):
    primary = group[0]
    cli = primary.connect()
    cli("CONFIG SET redislock.confirm local")
    take(cli, "door", "alice", lease_ms=LEASE_MS)
    waiter = ask(primary, "door", "bob", option, lease_ms=LEASE_MS)
    plain = ask(primary, "door", "carol", lease_ms=LEASE_MS)
    cli("CONFIG SET redislock.confirm all")
    release(cli, "door", "alice")
    with refused("ERR", option, "redislock.confirm"):
        waiter.answer()
    assert isinstance(plain.answer(), int), "the next one is granted"


def test_a_token_is_not_raised(group):
    cli = group[0].connect()
    token = take(cli, "door", "alice", lease_ms=LEASE_MS)
    last = counted(group[0], "last_token")
    for wanted in (token + 5000, token, 1):
        with refused("ERR", "RAISE", "redislock.confirm"):
            cli("LOCK.RENEW", "door", "alice", "PX", 9, "RAISE", wanted)
    hold = hold_of(cli, "door", "alice")
    assert hold["token"] == token and hold["lease-left-ms"] > 9, "nothing is changed"
    assert counted(group[0], "last_token") == last


def test_a_count_from_before_stays(group):
    cli = group[0].connect()
    cli("CONFIG SET redislock.confirm local")
    tokens = [take(cli, "door", "alice", "REENTRANT", lease_ms=LEASE_MS) for _ in range(3)]
    cli("CONFIG SET redislock.confirm all")
    assert take(cli, "door", "alice", lease_ms=LEASE_MS) == tokens[0], "a retry is none"
    for left in (2, 1):
        release(cli, "door", "alice")
        assert hold_of(cli, "door", "alice")["count"] == left
    release(cli, "door", "alice")
    assert cli("DBSIZE") == 0


def test_commands_after_a_request_are_answered_in_order(group):
    # G7
    primary, _, second = group
    cli = primary.connect()
    with frozen(second):
        cli.send("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS)
        cli.send("PING")
        cli.send("LOCK.RELEASE", "door", "alice")
        assert not cli.has_input(0.1)
    assert isinstance(cli.read(SOON_SECONDS), int)
    assert [cli.read(SOON_SECONDS), cli.read(SOON_SECONDS)] == ["PONG", 1]


def test_requests_of_one_turn_share_one_round(group):
    primary, first, _ = group
    sockets = [primary.connect() for _ in range(50)]
    cli = primary.connect()
    cli(f"LOCK.ACQUIRE warm up PX {LEASE_MS}")
    before = acknowledgements(first)
    cli.send("DEBUG", "SLEEP", "0.5")
    for number, connection in enumerate(sockets):
        connection.send("LOCK.ACQUIRE", f"door-{number}", "alice", "PX", LEASE_MS)
    assert cli.read(SOON_SECONDS) == "OK"
    tokens = [connection.read(SOON_SECONDS) for connection in sockets]
    assert len(set(tokens)) == 50
    has_caught_up(primary, first)
    assert 1 <= acknowledgements(first) - before < 25


def acknowledgements(replica):
    """The number of times that the replica was asked for its offset, or reported it unprompted."""
    stats = replica.info("commandstats").get("cmdstat_replconf", "calls=0,")
    return int(stats.partition("calls=")[2].partition(",")[0])


def test_a_demoted_primary_answers_waits_for_replicas(group):
    # G7
    primary, first, second = group
    with frozen(second):
        request = primary.ask("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS)
        assert request.waits()
        primary.admin("REPLICAOF", "127.0.0.1", first.port)
        with pytest.raises((ServerError, Closed)) as told:
            request.answer()
        if isinstance(told.value, ServerError):
            assert told.value.line.startswith("UNBLOCKED")
    assert counted(primary, "confirm_waits") == 0
    assert primary.is_alive()


def test_what_was_revoked_stays_so_after_a_restart(group):
    primary, _, second = group
    cli = primary.connect()
    primary.admin("CONFIG SET appendonly yes")
    eventually(
        lambda: primary.info("persistence")["aof_rewrite_in_progress"] == "0", "the file is there"
    )
    token = take(cli, "kept", "alice", lease_ms=LEASE_MS)
    with stuck(primary, second), refused("NOREPLICAS"):
        primary.ask("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS).answer()
    eventually(lambda: cli("EXISTS door") == 0, "it is revoked")
    assert cli("DEBUG LOADAOF") == "OK"
    assert (cli("LOCK.FENCE kept"), cli("EXISTS door")) == (token, 0)


def test_a_group_size_that_is_too_small_is_logged(group):
    primary, *_ = group
    assert counted(primary, "confirm_replicas_too_many") == 0
    primary.admin("CONFIG SET redislock.group-size 2")
    assert counted(primary, "confirm_replicas_too_many") == 1
    assert "redislock.group-size is 2, and this shard has 3 nodes" in primary.log_text()
    # All is still all.
    with frozen(group[2]):
        assert primary.ask("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS).waits()


def test_a_tool_that_reads_the_stream_and_confirms_nothing_is_found_and_closed(group):
    primary, first, second = group
    command = [CLI, "-p", str(primary.port), "--replica"]
    tool = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        has_replicas(primary, 3)
        assert counted(primary, "confirm_replicas_missing") == 0
        assert counted(primary, "confirm_replicas_too_many") == 1
        request = primary.ask("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS)
        has_caught_up(primary, first)
        has_caught_up(primary, second)
        assert request.waits(), "the tool never confirms"
        assert [text for text in primary.info("replication").values() if "port=0,state=online" in text]
        replicas = primary.admin("CLIENT LIST TYPE replica").splitlines()
        newest = max(replicas, key=lambda text: int(re.match(r"id=(\d+) ", text)[1]))
        assert primary.admin("CLIENT", "KILL", "ID", re.match(r"id=(\d+) ", newest)[1]) == 1
        with refused("NOREPLICAS", "one left"):
            request.answer()
        has_replicas(primary, 2)
        assert primary.ask("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS).answer() > 0
    finally:
        tool.kill()
        tool.wait()


def test_replicas_that_are_missing_are_counted(group):
    primary, first, second = group
    assert counted(primary, "confirm_replicas_missing") == 0
    assert counted(first, "confirm_replicas_missing") == 0, "a replica confirms nothing"
    second.stop()
    eventually(lambda: counted(primary, "confirm_replicas_missing") == 1, "one is missing")
    failures = counted(primary, "confirm_failures")
    with refused("NOREPLICAS"):
        primary.admin("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS)
    assert counted(primary, "confirm_failures") == failures, "what is refused at once is not counted"
    primary.admin("CONFIG SET redislock.group-size 2")
    assert counted(primary, "confirm_replicas_missing") == 0
    assert primary.admin("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS) > 0


def test_a_group_of_one_waits_for_no_replica(start_server):
    server = start_server()
    set_rule(server, "all", 1, 60_000, 60_000)
    cli = server.connect()
    assert isinstance(take(cli, "door", "alice", lease_ms=LEASE_MS), int)
    assert cli(f"LOCK.RENEW door alice PX {LEASE_MS}") == 1


def test_confirmation_can_be_turned_off_and_on(group):
    primary, _, second = group
    cli = primary.connect()
    with frozen(second):
        waiting = primary.ask("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS)
        cli("CONFIG SET redislock.confirm local")
        assert isinstance(take(cli, "gate", "alice", lease_ms=LEASE_MS), int)
        token = waiting.answer()
        assert cli("LOCK.FENCE door") == token, "the waiter is told: nobody has to confirm it"
        cli("CONFIG SET redislock.confirm all")
        waiting = primary.ask("LOCK.ACQUIRE", "hatch", "alice", "PX", LEASE_MS)
        assert waiting.waits()
    assert isinstance(waiting.answer(), int)


def test_an_idle_client_is_answered_in_time(group):
    # The event loop is woken by nothing but the time-out.
    primary, first, second = group
    with stuck(primary, first, second):
        request = primary.ask("LOCK.ACQUIRE", "door", "alice", "PX", LEASE_MS)
        began = time.monotonic()
        with refused("NOREPLICAS"):
            request.answer()
        assert time.monotonic() - began < 10 * BRIEF_MS / 1000


# Settings that make no sense together


@pytest.mark.parametrize("rule", ["all", "majority"])
def test_confirmation_needs_a_group_and_a_quarantine(cli, start_server, rule):
    for given, missing in (("group-size", "quarantine"), ("quarantine", "group-size")):
        with refused("ERR", f"need redislock.{missing}"):
            cli("CONFIG", "SET", "redislock.confirm", rule, f"redislock.{given}", 10)
        assert cli("CONFIG", "GET", "redislock.confirm") == ["redislock.confirm", "local"]
        assert cli("CONFIG", "GET", f"redislock.{given}")[1] == "0"
        with pytest.raises(StartFailed, match=f"need redislock.{missing}"):
            start_server(module_arguments=("confirm", rule, given, "10"))


@pytest.mark.parametrize("name", ["group-size", "quarantine"])
def test_what_confirmation_needs_cannot_be_taken_away(group, name):
    cli = group[0].connect()
    before = cli("CONFIG", "GET", f"redislock.{name}")
    with refused("ERR", f"need redislock.{name}"):
        cli("CONFIG", "SET", f"redislock.{name}", 0)
    assert cli("CONFIG", "GET", f"redislock.{name}") == before


@pytest.mark.parametrize("rule", ["all", "majority"])
def test_strings_are_no_locks_where_grants_are_confirmed(start_server, rule):
    # no replica confirms a string
    cli = start_server().connect()
    needed = ("group-size", 3, "quarantine", 1000)
    names = [f"redislock.{word}" if n % 2 == 0 else word for n, word in enumerate(needed)]
    told = ("ERR", "redislock.legacy-strings must be no", "redislock.confirm")
    with refused(*told):
        cli("CONFIG", "SET", *names, "redislock.confirm", rule, "redislock.legacy-strings", "yes")
    cli("CONFIG", "SET", *names, "redislock.legacy-strings", "yes")
    with refused(*told):
        cli("CONFIG", "SET", "redislock.confirm", rule)
    cli("CONFIG", "SET", "redislock.legacy-strings", "no", "redislock.confirm", rule)
    with refused(*told):
        cli("CONFIG", "SET", "redislock.legacy-strings", "yes")
    assert cli("CONFIG GET redislock.legacy-strings")[1] == "no"
    with pytest.raises(StartFailed, match=told[1]):
        start_server(module_arguments=("confirm", rule, *needed, "legacy-strings", "yes"))


def test_a_rule_is_one_of_three_words(cli):
    for word in ("some", "", "1"):
        with refused("ERR"):
            cli("CONFIG", "SET", "redislock.confirm", word)
    assert cli("CONFIG", "GET", "redislock.confirm")[1] == "local"
