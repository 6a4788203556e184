"""redislock.quarantine: a server that may have forgotten locks grants none for a while (CONTRACT 6)."""

import time

import pytest

from harness.kinds import ask, ask_all, hold_of, line_of, owners_of, release, take, take_all
from harness.limits import eventually
from harness.replies import module_info
from harness.wire import ServerError, refused

#: Long enough for a test to be done before it ends.
LONG = ("quarantine", "600000")


def left_ms(cli):
    """The remaining quarantine."""
    return int(module_info(cli)["quarantine_left_ms"])


@pytest.fixture
def quarantined(start_server):
    """A server that has just started."""
    return start_server(module_arguments=LONG)


def test_a_server_that_has_just_started_grants_nothing_new(quarantined):
    # T1: also with an empty data set, for it may have had one
    cli = quarantined.connect()
    for options in ("", "SHARED", "LIMIT 3", "REENTRANT", "EPHEMERAL 5", "KEEPALIVE"):
        with pytest.raises(ServerError) as told:
            take(cli, "door", "alice", options, lease_ms=1000)
        code, left, *_ = told.value.line.split()
        assert code == "QUARANTINE" and 0 < int(left) <= 600_000
    with refused("QUARANTINE"):
        take_all(cli, "door gate", "alice", lease_ms=1000)
    with refused("QUARANTINE"):
        cli("EVAL", "return redis.call('LOCK.ACQUIRE', 'door', 'alice', 'PX', '1000')", 0)
    assert cli("DBSIZE") == 0
    assert 0 < left_ms(cli) <= 600_000
    assert "quarantine: no new lock is granted for 600000 milliseconds" in quarantined.log_text()


def test_requests_that_can_wait_do_so_in_order(quarantined):
    # G5, G6: the request that came first is first when it ends
    cli = quarantined.connect()
    first = ask(quarantined, "door", "first", lease_ms=1000)
    second = ask(quarantined, "door", "second", lease_ms=1000)
    both = ask_all(quarantined, "gate hatch", "both", lease_ms=1000)
    assert take(cli, "desk", "place", "QUEUE 60000", lease_ms=1000) is None
    assert line_of(cli, "door") == ["first", "second"]
    assert first.waits() and second.waits() and both.waits()
    late = ask(quarantined, "late", "late", lease_ms=1000, block_ms=50)
    assert late.answer() is None, "its time is over first"
    assert cli("CONFIG SET redislock.quarantine 0") == "OK"
    token = first.answer()
    assert isinstance(token, int)
    assert isinstance(both.answer(), int)
    assert second.waits()
    release(cli, "door", "first")
    assert second.answer() > token
    assert isinstance(take(cli, "desk", "place"), int)
    assert left_ms(cli) == 0
    eventually(lambda: "quarantine: it is over" in quarantined.log_text())


def test_a_quarantine_ends_on_its_own(start_server):
    server = start_server(module_arguments=("quarantine", "1000"))
    started = time.monotonic()
    cli = server.connect()
    waits = ask(server, "door", "alice", lease_ms=500)
    assert isinstance(waits.answer(), int)
    assert left_ms(cli) == 0
    assert isinstance(take(cli, "gate", "bob", lease_ms=500), int)
    assert time.monotonic() - started < 10
    eventually(lambda: "quarantine: it is over" in server.log_text())


def test_a_quarantine_lasts_as_long_as_it_says(start_server):
    begun = time.monotonic()
    server = start_server(module_arguments=("quarantine", "1500"))
    token = ask(server, "door", "alice", lease_ms=500).answer()
    assert isinstance(token, int)
    # It begins after the server was started, so it cannot end before that.
    assert time.monotonic() - begun >= 1.5


def test_no_lease_is_longer_than_the_quarantine(start_server):
    # a lease that may be forgotten must end before it does
    cli = start_server(module_arguments=("quarantine", "200")).connect()
    eventually(lambda: left_ms(cli) == 0)
    with refused("ERR", "PX", "1 to 200"):
        take(cli, "door", "alice", lease_ms=201)
    token = take(cli, "door", "alice", "KEEPALIVE", lease_ms=200)
    assert isinstance(token, int)
    with refused("ERR", "PX", "1 to 200"):
        cli("LOCK.RENEW door alice PX 201")
    with refused("ERR"):
        cli("LOCK.RENEW door alice EX 1")


def test_a_waiter_for_a_longer_lease_leaves_when_its_turn_comes(start_server):
    server = start_server()
    cli = server.connect()
    take(cli, "door", "alice")
    longer = [ask(server, "door", "bob"), ask_all(server, "gate door", "carol")]
    fit = ask(server, "door", "dave", lease_ms=30_000)
    cli("CONFIG SET redislock.quarantine 30000")
    release(cli, "door", "alice")
    for waiter in longer:
        with refused("ERR", "PX", "redislock.quarantine"):
            waiter.answer()
    assert isinstance(fit.answer(), int)
    assert cli("EXISTS gate") == 0


def test_known_holds_are_renewed_asked_for_again_and_released(start_server):
    server = start_server("--appendonly", "yes", "--appendfsync", "always")
    cli = server.connect()
    tokens = {}
    for key, options in (("door", ""), ("book", "SHARED"), ("pool", "LIMIT 2"), ("tree", "REENTRANT")):
        tokens[key] = take(cli, key, "alice", options, lease_ms=600_000)
    cli("CONFIG SET redislock.quarantine 600000")
    assert left_ms(cli) == 0, "a setting begins none"
    server.kill()
    server.module_arguments = LONG
    cli = server.start().connect()
    assert left_ms(cli) > 0
    assert cli("LOCK.FENCE", "door", tokens["door"]) == 1
    assert cli("LOCK.RENEW door alice PX 500000") == 1
    assert take(cli, "door", "alice", lease_ms=500_000) == tokens["door"]
    assert take(cli, "door", "alice", "SHARED", lease_ms=500_000) == tokens["door"], "a downgrade"
    take(cli, "tree", "alice", "REENTRANT", lease_ms=500_000)
    assert hold_of(cli, "tree", "alice")["count"] == 2
    with refused("QUARANTINE"):
        take(cli, "book", "bob", "SHARED", lease_ms=1000)
    with refused("LOCKHELD"):
        take(cli, "book", "alice", lease_ms=1000)
    release(cli, "pool", "alice")
    with refused("QUARANTINE"):
        take(cli, "pool", "alice", "LIMIT 2", lease_ms=1000)
    waits = ask(server, "book", "bob", lease_ms=1000)
    release(cli, "book", "alice")
    assert waits.waits(), "free, and still not granted"
    assert cli("LOCK.EXEC", "door", tokens["door"], "SET", "{x}", "1") == "OK"
    cli("CONFIG SET redislock.quarantine 0")
    assert waits.answer() > tokens["book"]


def test_a_promoted_replica_grants_nothing_new_though_it_never_saw_a_lock(start_server):
    # T1
    primary, replica = start_server(), start_server(module_arguments=LONG)
    replica.admin("REPLICAOF", "127.0.0.1", primary.port)
    eventually(lambda: replica.info("replication").get("master_link_status") == "up")
    replica.admin("REPLICAOF NO ONE")
    cli = replica.connect()
    with refused("QUARANTINE"):
        take(cli, "door", "alice", lease_ms=1000)
    assert "because this server was promoted" in replica.log_text()


def test_a_promotion_restarts_the_quarantine(start_server):
    primary = start_server()
    replica = start_server(module_arguments=("quarantine", "3000"))
    holder = primary.connect()
    token = take(holder, "door", "alice", lease_ms=600_000)
    replica.admin("REPLICAOF", "127.0.0.1", primary.port)
    cli = replica.connect()
    eventually(lambda: owners_of(cli, "door") == ["alice"])
    time.sleep(1.5)
    replica.admin("REPLICAOF NO ONE")
    assert left_ms(cli) > 1500, "not what was left of the first one"
    assert cli("LOCK.RENEW door alice PX 2000") == 1
    assert cli("LOCK.FENCE", "door", token) == 1
    with refused("QUARANTINE"):
        take(cli, "gate", "bob", lease_ms=1000)


@pytest.mark.parametrize("value", ["-1", "86400001", "long"])
def test_bad_values_are_refused(cli, value):
    # G14
    with refused("ERR"):
        cli("CONFIG", "SET", "redislock.quarantine", value)


def test_a_setting_on_a_running_server_begins_none_and_caps_leases(cli):
    cli("CONFIG SET redislock.quarantine 500")
    try:
        assert isinstance(take(cli, "door", "alice", lease_ms=500), int)
        with refused("ERR", "1 to 500"):
            take(cli, "gate", "alice", lease_ms=501)
    finally:
        cli("CONFIG SET redislock.quarantine 0")
