"""LOCK.ACQUIRE ... REENTRANT: a repeated acquire of an exclusive lock counts, a release takes one off.

Without the option an acquire is idempotent (G9).
"""

import pytest

from harness.kinds import ask, count_and_share, hold_of, owners_of, release, take, take_all
from harness.limits import eventually
from harness.replicas import AT_ONCE, is_linked
from harness.replies import holder
from harness.wire import refused


def count_of(cli, key, owner):
    """The number of releases that the hold takes; 0 if there is none."""
    hold = hold_of(cli, key, owner)
    return 0 if hold is None else hold["count"]


@pytest.mark.parametrize("kind", ["SHARED", "LIMIT 3"])
@pytest.mark.parametrize("held", [False, True])
def test_only_an_exclusive_hold_counts(cli, kind, held):
    if held:
        take(cli, "door", "alice", kind)
    for options in (f"{kind} REENTRANT", f"REENTRANT {kind}", f"{kind} REENTRANT BLOCK 0", f"REENTRANT QUEUE 100 {kind}"):
        with refused("ERR", "REENTRANT", kind.split()[0], "not both"):
            take(cli, "door", "alice", options)
    assert count_of(cli, "door", "alice") == int(held)


def test_a_hold_takes_as_many_releases_as_acquires(server, cli):
    token = take(cli, "door", "alice", "REENTRANT")
    assert count_of(cli, "door", "alice") == 1
    for n in range(2, 6):
        assert take(cli, "door", "alice", "REENTRANT") == token
        assert count_of(cli, "door", "alice") == n
    for n in (4, 3, 2, 1):
        release(cli, "door", "alice")
        assert count_of(cli, "door", "alice") == n
        assert cli("LOCK.FENCE", "door", token) == 1
    release(cli, "door", "alice")
    assert cli("LOCK.RELEASE door alice") == 0
    assert cli("DBSIZE") == 0


def test_a_plain_retry_does_not_count(cli):
    # G9
    token = take(cli, "door", "alice")
    take(cli, "door", "alice", "REENTRANT")
    assert take(cli, "door", "alice") == token
    assert count_of(cli, "door", "alice") == 2
    release(cli, "door", "alice")
    assert take(cli, "door", "alice") == token
    release(cli, "door", "alice")
    assert cli("DBSIZE") == 0


def test_a_hold_taken_without_the_option_can_be_reentered(cli):
    token = take(cli, "door", "alice")
    assert take(cli, "door", "alice", "REENTRANT") == token
    assert holder(cli, "door")["count"] == 2


def test_the_waiter_gets_the_lock_at_the_last_release(server, cli):
    # G1, G6
    token = take(cli, "door", "alice", "REENTRANT")
    take(cli, "door", "alice", "REENTRANT")
    bob = ask(server, "door", "bob", "REENTRANT")
    release(cli, "door", "alice")
    assert bob.waits()
    assert owners_of(cli, "door") == ["alice"]
    release(cli, "door", "alice")
    assert bob.answer() > token
    assert count_of(cli, "door", "bob") == 1


def test_a_holder_reenters_although_others_wait(server, cli):
    # else it would wait for itself
    token = take(cli, "door", "alice", "REENTRANT")
    bob = ask(server, "door", "bob")
    assert take(cli, "door", "alice", "REENTRANT BLOCK 0") == token
    assert bob.waits()


def test_release_with_a_token_takes_one_off(cli):
    token = take(cli, "door", "alice", "REENTRANT")
    take(cli, "door", "alice", "REENTRANT")
    assert cli("LOCK.RELEASE", "door", "alice", "TOKEN", token + 1) == 0
    assert count_of(cli, "door", "alice") == 2
    release(cli, "door", "alice", "TOKEN", token)
    assert count_of(cli, "door", "alice") == 1
    release(cli, "door", "alice", "TOKEN", token)
    assert cli("DBSIZE") == 0


def test_a_lease_ends_whatever_the_count(cli):
    # G3
    take(cli, "door", "alice", "REENTRANT", lease_ms=100)
    take(cli, "door", "alice", "REENTRANT", lease_ms=100)
    eventually(lambda: cli("DBSIZE") == 0, "the lease ends")
    take(cli, "door", "alice", "REENTRANT")
    assert count_of(cli, "door", "alice") == 1, "a new hold counts from one"


def test_the_lease_is_never_shortened(cli):
    # G2
    take(cli, "door", "alice", "REENTRANT", lease_ms=50_000)
    take(cli, "door", "alice", "REENTRANT", lease_ms=1000)
    assert holder(cli, "door")["lease-left-ms"] > 1000
    take(cli, "door", "alice", "REENTRANT", lease_ms=60_000)
    assert holder(cli, "door")["lease-left-ms"] > 50_000


def test_a_new_holder_counts_from_one_after_a_deletion(cli):
    take(cli, "door", "alice", "REENTRANT")
    take(cli, "door", "alice", "REENTRANT")
    cli("DEL door")
    assert cli("LOCK.RELEASE door alice") == 0
    take(cli, "door", "alice", "REENTRANT")
    assert holder(cli, "door")["count"] == 1


def test_acquires_count_in_scripts_and_transactions(cli):
    script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'alice', 'PX', 60000, 'REENTRANT')"
    token = cli("EVAL", script, 1, "door")
    assert cli("EVAL", script, 1, "door") == token
    command = "LOCK.ACQUIRE door alice PX 60000 REENTRANT"
    assert cli.pipeline("MULTI", command, command, "EXEC")[-1] == [token, token]
    assert holder(cli, "door")["count"] == 4


def test_renew_and_macquire_do_not_count(cli):
    token = take(cli, "door", "alice", "REENTRANT")
    take(cli, "door", "alice", "REENTRANT")
    assert cli("LOCK.RENEW door alice PX 60000") == 1
    assert take_all(cli, "door", "alice") == token
    assert holder(cli, "door")["count"] == 2


def test_a_downgrade_keeps_the_count(cli):
    # the holder has two releases to come
    take(cli, "door", "alice", "REENTRANT")
    take(cli, "door", "alice", "REENTRANT")
    take(cli, "door", "alice", "SHARED")
    assert count_of(cli, "door", "alice") == 2
    release(cli, "door", "alice")
    release(cli, "door", "alice")
    assert cli("DBSIZE") == 0


@pytest.mark.parametrize("kind", ["", "SHARED"])
@pytest.mark.parametrize("way", ["RDB", "AOF", "AOF without preamble", "AOF rewritten"])
def test_the_count_survives_a_restart(start_server, kind, way):
    # G13
    options = {
        "RDB": ["--save", "3600 1"],
        "AOF": ["--appendonly", "yes"],
        "AOF without preamble": ["--appendonly", "yes", "--aof-use-rdb-preamble", "no"],
        "AOF rewritten": ["--appendonly", "yes", "--aof-use-rdb-preamble", "no"],
    }[way]
    server = start_server(*options)
    cli = server.connect()
    for _ in range(4):
        token = take(cli, "door", "alice", "REENTRANT")
    if kind:
        assert take(cli, "door", "alice", kind) == token, "a downgrade keeps the count"
    release(cli, "door", "alice")
    take(cli, "gate", "bob", "REENTRANT")
    if way == "AOF rewritten":
        cli("BGREWRITEAOF")
        eventually(lambda: server.info("persistence")["aof_rewrite_in_progress"] == "0")
        eventually(lambda: server.info("persistence")["aof_rewrite_scheduled"] == "0")
    digest = cli("DEBUG DIGEST")
    server.stop()
    cli = server.start().connect()
    assert cli("DEBUG DIGEST") == digest
    assert hold_of(cli, "door", "alice")["token"] == token
    assert count_of(cli, "door", "alice") == 3
    assert count_of(cli, "gate", "bob") == 1
    for _ in range(3):
        release(cli, "door", "alice")
    assert cli("LOCK.RELEASE door alice") == 0


def test_the_count_travels_to_a_replica(start_server):
    # G13
    server = start_server(*AT_ONCE)
    cli = server.connect()
    take(cli, "before", "alice", "REENTRANT")
    take(cli, "before", "alice", "REENTRANT")
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}")
    is_linked(replica)
    reader = replica.connect()
    for n in range(3):
        take(cli, "door", "alice", "REENTRANT")
    count_and_share(cli, "book", "alice", 2)
    release(cli, "door", "alice")
    release(cli, "before", "alice")
    assert cli("WAIT 1 10000") == 1
    assert reader("DEBUG DIGEST") == cli("DEBUG DIGEST")
    assert [count_of(reader, key, "alice") for key in ("door", "book", "before")] == [2, 2, 1]
