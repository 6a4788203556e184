"""Locks of old clients together with new ones during a migration: `SET key value NX PX` and `legacy-strings yes`."""

import pytest

from harness.limits import eventually
from harness.replicas import AT_ONCE, is_linked
from harness.replies import lock_info
from harness.server import IS_VALKEY, RELEASE
from harness.wire import refused

COMPARE_AND_DELETE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end"


@pytest.fixture
def server(start_server):
    """Not the shared one: a server that has listened to keyspace events once continues until it ends."""
    return start_server()


@pytest.fixture
def cli(server):
    cli = server.connect()
    cli("CONFIG SET redislock.legacy-strings yes")
    return cli


def old_takes(cli, key, owner, ms=60000):
    return cli("SET", key, owner, "NX", "PX", ms) == "OK"


def test_old_and_new_locks_exclude_each_other(cli):
    # G1
    assert old_takes(cli, "door", "old")
    assert cli("LOCK.ACQUIRE door new PX 60000") is None
    assert cli("LOCK.MACQUIRE 2 gate door new PX 60000") is None
    assert cli("EXISTS gate") == 0
    assert cli("EVAL", COMPARE_AND_DELETE, 1, "door", "old") == 1
    assert cli("LOCK.ACQUIRE door new PX 60000") > 0
    assert not old_takes(cli, "door", "old")
    assert cli("LOCK.RELEASE door new") == 1
    assert old_takes(cli, "door", "old")


def test_an_owner_of_the_same_name_is_not_taken_for_the_old_one(cli):
    # Many programs set the same value everywhere: a grant to one that names it would be a wrong one.
    assert old_takes(cli, "door", "1")
    assert cli("LOCK.ACQUIRE door 1 PX 60000") is None


def test_release_and_renew_work_with_the_right_owner(cli):
    # CONTRACT 7
    assert old_takes(cli, "door", "old", 5000)
    assert cli("LOCK.RELEASE door other") == 0
    assert cli("LOCK.RENEW door other PX 60000") == 0
    assert cli("LOCK.RENEW door old PX 60000 TOKEN 5") == 0
    assert cli("LOCK.RELEASE door old TOKEN 5") == 0
    assert cli("PTTL door") <= 5000
    assert cli("LOCK.RENEW door old PX 60000") == 1
    assert 50000 < cli("PTTL door") <= 60000
    assert cli("GET door") == "old"
    assert cli("LOCK.RELEASE door old") == 1
    assert cli("EXISTS door") == 0


ENDS = {
    "the script of old clients": lambda cli: cli("EVAL", COMPARE_AND_DELETE, 1, "door", "old"),
    "a new release": lambda cli: cli("LOCK.RELEASE door old"),
    "DEL": lambda cli: cli("DEL door"),
    "UNLINK": lambda cli: cli("UNLINK door"),
    "FLUSHALL": lambda cli: cli("FLUSHALL"),
    "RENAME": lambda cli: cli("RENAME door elsewhere"),
    "a short time to live": lambda cli: cli("PEXPIRE door 1"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_waiter_for_an_old_lock_is_granted_when_it_goes(server, cli, end):
    # G6
    assert old_takes(cli, "door", "old")
    new = server.ask("LOCK.ACQUIRE door new PX 60000 BLOCK 0")
    eventually(lambda: lock_info(cli, "door")["waiters"] == 1, "it waits")
    ENDS[end](cli)
    assert new.answer() > 0
    assert cli("TYPE door") == "redislock"


def test_a_waiter_is_granted_when_the_old_lock_expires(server, cli):
    # G3, without any access to the key
    assert old_takes(cli, "door", "old", 200)
    assert server.ask("LOCK.ACQUIRE door new PX 60000 BLOCK 0").answer() > 0


def test_a_renewed_old_lock_is_waited_for_to_its_new_end(server, cli):
    # G2
    assert old_takes(cli, "door", "old", 300)
    new = server.ask("LOCK.ACQUIRE door new PX 60000 BLOCK 0")
    eventually(lambda: lock_info(cli, "door")["waiters"] == 1, "it waits")
    assert cli("LOCK.RENEW door old PX 60000") == 1
    assert lock_info(cli, "door")["holders"][0]["lease-left-ms"] > 50000
    cli("PEXPIRE door 500")
    assert new.answer() > 0


def test_new_requests_wait_in_order_behind_an_old_lock(server, cli):
    # G5
    assert old_takes(cli, "door", "old")
    first = server.ask("LOCK.ACQUIRE door first PX 60000 BLOCK 0")
    eventually(lambda: lock_info(cli, "door")["waiters"] == 1, "it waits")
    second = server.ask("LOCK.ACQUIRE door second PX 60000 BLOCK 0")
    eventually(lambda: lock_info(cli, "door")["waiters"] == 2, "both wait")
    cli("DEL door")
    assert first.answer() > 0
    assert not old_takes(cli, "door", "old")
    assert cli("LOCK.RELEASE door first") == 1
    assert second.answer() > 0


def test_info_and_fence_show_an_old_lock(cli):
    assert old_takes(cli, "door", "old")
    info = lock_info(cli, "door")
    (holder,) = info["holders"]
    assert (info["kind"], holder["owner"], holder["token"]) == ("exclusive", "old", None)
    assert 50000 < holder["lease-left-ms"] <= 60000
    # It has no token.
    assert cli("LOCK.FENCE door") is None
    assert cli("LOCK.FENCE door 5") == 0


@pytest.mark.parametrize("make", ["SET door old", "LPUSH door old", "HSET door a b"])
def test_what_is_no_lock_stays_a_wrong_type(cli, make):
    # A string without a time to live was not made by SET NX PX.
    cli(make)
    for command in ("ACQUIRE door new PX 60000", "RELEASE door old", "RENEW door old PX 60000", "FENCE door"):
        with refused("WRONGTYPE"):
            cli(f"LOCK.{command}")


def test_values_that_are_no_owner_are_held_by_somebody_all_the_same(cli):
    assert old_takes(cli, "door", "x" * 100_000)
    assert cli("LOCK.ACQUIRE door new PX 60000") is None
    assert cli("LOCK.RELEASE", "door", "x" * 256) == 0
    assert len(lock_info(cli, "door")["holders"][0]["owner"]) == 257
    assert old_takes(cli, "gate", "12345")
    assert cli("LOCK.RELEASE gate 12345") == 1


def test_a_semaphore_does_not_fit_an_old_lock(cli):
    assert old_takes(cli, "door", "old")
    with refused("LOCKKIND"):
        cli("LOCK.ACQUIRE door new PX 60000 LIMIT 2")


def test_without_the_setting_a_string_is_no_lock(cli):
    cli("CONFIG SET redislock.legacy-strings no")
    assert old_takes(cli, "door", "old")
    with refused("WRONGTYPE"):
        cli("LOCK.ACQUIRE door new PX 60000")


def test_replicas_and_files_follow(start_server):
    # G13: the changes of the string are replicated in the server's own words.
    primary = start_server(*AT_ONCE, "--appendonly", "yes", "--appendfsync", "always", module_arguments=("legacy-strings", "yes"))
    replica = start_server("--replicaof", f"127.0.0.1 {primary.port}")
    is_linked(replica)
    cli, there = primary.connect(), replica.connect()
    for key in ("gone", "renewed", "taken"):
        assert old_takes(cli, key, "old", 30000)
    assert cli("LOCK.RELEASE gone old") == 1
    assert cli("LOCK.RENEW renewed old PX 600000") == 1
    new = primary.ask("LOCK.ACQUIRE taken new PX 600000 BLOCK 0")
    eventually(lambda: lock_info(cli, "taken")["waiters"] == 1, "it waits")
    assert cli("LOCK.RELEASE taken old") == 1
    token = new.answer()
    assert cli("WAIT 1 10000") == 1
    assert there("DEBUG DIGEST") == cli("DEBUG DIGEST")
    assert there("EXISTS gone") == 0
    assert there("PEXPIRETIME renewed") == cli("PEXPIRETIME renewed")
    assert there("LOCK.FENCE taken") == token
    digest = cli("DEBUG DIGEST")
    primary.kill()
    cli = primary.start().connect()
    assert cli("DEBUG DIGEST") == digest


@pytest.mark.parametrize("is_asked", [False, True])
def test_waiters_learn_of_a_string_that_lost_its_time_to_live(server, cli, is_asked):
    # CONTRACT 5: it is no lock any more, and a grant would overwrite it
    assert old_takes(cli, "door", "old", 60000 if is_asked else 300)
    new = server.ask("LOCK.ACQUIRE door new PX 60000 BLOCK 0")
    assert cli("PERSIST door") == 1
    if is_asked:
        with refused("WRONGTYPE"):
            cli("LOCK.ACQUIRE door other PX 60000")
    with refused("WRONGTYPE"):
        new.answer()
    assert cli("GET door") == "old"


def test_waiters_are_answered_when_strings_stop_being_locks(server, cli):
    # CONTRACT 5, G6: as a request that comes later is, and not when the string has expired
    assert old_takes(cli, "door", "old", 60000)
    new = server.ask("LOCK.ACQUIRE door new PX 60000 BLOCK 0")
    several = server.ask("LOCK.MACQUIRE 2 door window other PX 60000 BLOCK 0")
    assert new.waits() and several.waits()
    cli("CONFIG SET redislock.legacy-strings no")
    for waiter in (new, several):
        with refused("WRONGTYPE"):
            waiter.answer()
    assert cli("GET door") == "old"


@pytest.mark.parametrize("command", ["MOVE plain 2", "COPY plain other DB 2"])
def test_a_client_that_writes_into_another_database_stays_in_its_own(cli, command):
    # docs/how-to/migrate.md says which servers get this wrong, for any module that listens to keyspace events.
    cli("SET plain x")
    assert cli(command) == 1
    info = dict(part.split("=", 1) for part in cli("CLIENT INFO").split())
    is_left_there = IS_VALKEY and RELEASE == (8, 1)
    assert info["db"] == ("2" if is_left_there else "0")
