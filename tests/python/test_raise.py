"""LOCK.RENEW ... RAISE token: the second phase of a lock over several servers (CONTRACT 2, 6)."""

import time

import pytest

from harness import wall_clock
from harness.kinds import hold_of, owners_of, take
from harness.limits import eventually
from harness.replies import module_info
from harness.wire import refused


def raised(cli, key, owner, token, lease_ms=60_000):
    """LOCK.RENEW with RAISE."""
    return cli("LOCK.RENEW", key, owner, "PX", lease_ms, "RAISE", token)


def test_the_token_becomes_no_lower_and_the_lease_is_as_asked(cli):
    token = take(cli, "door", "alice")
    higher = token + 5000
    assert raised(cli, "door", "alice", higher) == 1
    hold = hold_of(cli, "door", "alice")
    assert hold["token"] == higher and hold["lease-left-ms"] <= 60_000
    assert cli("LOCK.FENCE", "door", token) == 0, "the old one is dead"
    assert cli("LOCK.FENCE", "door", higher) == 1


def test_a_lower_token_changes_nothing_but_the_lease(cli):
    token = take(cli, "door", "alice")
    assert raised(cli, "door", "alice", token - 1) == 1
    assert raised(cli, "door", "alice", 1) == 1
    assert raised(cli, "door", "alice", token) == 1
    assert cli("LOCK.FENCE door") == token


def test_all_later_tokens_are_higher(cli):
    # G4
    higher = take(cli, "door", "alice") + 5000
    raised(cli, "door", "alice", higher)
    assert take(cli, "gate", "bob") > higher


def test_only_the_owner_raises_its_token(cli):
    # G10
    token = take(cli, "door", "alice")
    last = int(module_info(cli)["last_token"])
    assert raised(cli, "door", "bob", token + 1000) == 0
    assert raised(cli, "gate", "alice", token + 1000) == 0, "nothing is created"
    assert cli("LOCK.FENCE door") == token
    assert int(module_info(cli)["last_token"]) == last, "the clock neither"


@pytest.mark.parametrize("kind", ["SHARED", "LIMIT 3"])
def test_a_holder_that_may_be_one_of_several_cannot_raise_its_token(cli, kind):
    for others in (0, 1):
        token = take(cli, "door", "alice", kind)
        last = int(module_info(cli)["last_token"])
        for wanted in (token + 5000, token, 1):
            with refused("ERR", "RAISE", "exclusive locks", kind):
                raised(cli, "door", "alice", wanted, lease_ms=9)
        hold = hold_of(cli, "door", "alice")
        assert hold["token"] == token and hold["lease-left-ms"] > 60_000, "nothing is changed"
        assert int(module_info(cli)["last_token"]) == last, "the clock neither"
        assert raised(cli, "door", "carol", token + 5000) == 0, "who holds nothing learns that"
        take(cli, "door", "bob", kind)
    assert owners_of(cli, "door") == ["alice", "bob"]


def test_a_token_that_runs_away_with_the_clock_is_refused(start_server):
    # G14, max-token-lead
    cli = start_server().connect()
    token = take(cli, "door", "alice")
    now_us = int(time.time() * 1_000_000)
    for far in (now_us + 61_000_000, 2**53 - 1):
        with refused("ERR", "RAISE", "max-token-lead"):
            raised(cli, "door", "alice", far)
    cli("CONFIG SET redislock.max-token-lead 0")
    with refused("ERR", "RAISE"):
        raised(cli, "door", "alice", now_us + 30_000_000)
    cli("CONFIG SET redislock.max-token-lead 60000")
    assert cli("LOCK.FENCE door") == token
    # As far as the clock is already, it can always be raised again.
    assert raised(cli, "door", "alice", now_us + 50_000_000) == 1
    cli("CONFIG SET redislock.max-token-lead 0")
    assert raised(cli, "door", "alice", now_us + 50_000_000) == 1


@pytest.mark.parametrize("value", ["0", "-1", "x", "", "1.5", str(2**53), "+5"])
def test_bad_tokens(cli, value):
    # G14
    token = take(cli, "door", "alice")
    with refused("ERR", "RAISE"):
        raised(cli, "door", "alice", value)
    with refused("ERR", "TOKEN or RAISE"):
        cli("LOCK.RENEW", "door", "alice", "PX", 5, "RAISE", token, "TOKEN", token)
    with refused("ERR", "RAISE", "twice"):
        cli("LOCK.RENEW", "door", "alice", "PX", 5, "RAISE", token, "RAISE", token)
    assert hold_of(cli, "door", "alice")["lease-left-ms"] > 60_000


def test_replicas_and_files_follow(start_server):
    # G13
    server = start_server("--appendonly", "yes", "--appendfsync", "always")
    replica = start_server()
    replica.admin("REPLICAOF", "127.0.0.1", server.port)
    eventually(lambda: replica.info("replication").get("master_link_status") == "up")
    cli, reader = server.connect(), replica.connect()
    higher = take(cli, "door", "alice") + 20_000_000
    raised(cli, "door", "alice", higher, lease_ms=600_000)
    then = take(cli, "gate", "bob")
    eventually(lambda: reader("LOCK.FENCE gate") == then)
    assert reader("LOCK.FENCE door") == higher
    assert reader("DEBUG DIGEST") == cli("DEBUG DIGEST")
    server.kill()
    cli = server.start().connect()
    assert cli("LOCK.FENCE door") == higher
    assert take(cli, "hatch", "carol") > then


def test_a_wall_clock_that_cannot_be_right_leaves_tokens_for_all(start_server, tmp_path):
    # G4: 2^53 - 1 is the last token there is, so raising one to it would end all locks
    clock = wall_clock.WallClock(wall_clock.build(tmp_path), tmp_path / "clock")
    clock.set_ahead(200 * 365 * 86_400)
    cli = start_server(environment=clock.environment).connect()
    assert take(cli, "door", "alice") == 1
    for token in (2**53 - 1, 2**53 - 2**49):
        with refused("ERR", "max-token-lead"):
            raised(cli, "door", "alice", token)
    assert take(cli, "gate", "bob") == 2
    assert raised(cli, "door", "alice", 2**53 - 2**50 - 1) == 1
    assert take(cli, "hatch", "carol") == 2**53 - 2**50
