"""Locks of all kinds that are dumped, restored, copied, renamed, moved or reloaded (CONTRACT 5)."""

import pytest

from harness.kinds import ask, count, owners_of, release, take
from harness.limits import eventually
from harness.payload import dump
from harness.replies import holder, lock_info, owner_of, queue_of
from harness.samples import LOCKS, limited
from harness.walk import locks_of
from harness.wire import ServerError, refused


@pytest.fixture(params=LOCKS)
def lock(request, cli):
    """A lock of some kind at `door`; returns the facts about it."""
    LOCKS[request.param](cli)
    return locks_of(cli)["door"]


def tokens_of(lock):
    """The tokens of its holders."""
    return [hold[1] for hold in lock[1]]


def assert_empty_lock(cli, name, *dead_tokens, owners=("alice",)):
    """A key of the type stands there, without a hold (CONTRACT 5, RENAME)."""
    assert cli("EXISTS", name) == 1
    assert cli("LOCK.INFO", name) is None
    assert cli("LOCK.INFO", name, "FULL") is None
    assert cli("LOCK.FENCE", name) is None
    for token in dead_tokens:
        assert cli("LOCK.FENCE", name, token) == 0
    for owner in owners:
        assert cli("LOCK.RENEW", name, owner, "PX", 60000) == 0
        assert cli("LOCK.RELEASE", name, owner) == 0


def assert_empty(cli, name, lock):
    """Asserts that a lock which was held elsewhere is empty here: none of its tokens lives."""
    assert_empty_lock(cli, name, *tokens_of(lock), owners=[hold[0] for hold in lock[1]])


# RENAME and MOVE


def test_renaming_a_lock_breaks_the_hold(cli):
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    cli("RENAME door gate")
    assert cli("LOCK.INFO door") is None
    assert_empty_lock(cli, "gate", token)


def test_a_renamed_lock_is_broken(server, cli, lock):
    cli("RENAME door elsewhere")
    assert owners_of(cli, "door") == []
    assert_empty(cli, "elsewhere", lock)
    for options in ("SHARED", "LIMIT 2", ""):
        assert take(cli, "elsewhere", "bob", options) > max(tokens_of(lock))
        release(cli, "elsewhere", "bob")
    assert cli("EXISTS elsewhere") == 0


def test_a_former_holder_can_take_an_empty_lock_with_a_new_token(cli):
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    cli("RENAME door gate")
    assert cli("LOCK.ACQUIRE gate alice PX 60000") > token


def test_an_empty_lock_can_be_deleted(cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    cli("RENAME door gate")
    assert cli("DEL gate") == 1
    assert cli("DBSIZE") == 0


def test_waiting_for_an_empty_lock_is_not_needed(server, cli):
    # It counts as free
    cli("LOCK.ACQUIRE door alice PX 60000")
    cli("RENAME door gate")
    assert isinstance(cli("LOCK.ACQUIRE gate bob PX 60000 BLOCK 0"), int)
    assert server.info("clients")["blocked_clients"] == "0"


def test_both_names_can_be_held_after_a_rename(cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    cli("RENAME door gate")
    door = cli("LOCK.ACQUIRE door bob PX 60000")
    gate = cli("LOCK.ACQUIRE gate carol PX 60000")
    assert door < gate
    assert (owner_of(cli, "door"), owner_of(cli, "gate")) == ("bob", "carol")


def test_the_old_lease_does_not_end_the_hold_under_the_new_name(cli):
    cli("LOCK.ACQUIRE door alice PX 200")
    cli("RENAME door gate")
    cli("LOCK.ACQUIRE gate bob PX 60000")
    eventually(lambda: holder(cli, "gate")["held-ms"] > 400, "the old lease is over")
    assert owner_of(cli, "gate") == "bob"


def test_a_moved_lock_is_broken(server, cli, lock):
    assert cli("MOVE door 1") == 1
    assert owners_of(cli, "door") == []
    other = server.connect(db=1)
    assert_empty(other, "door", lock)
    assert isinstance(take(other, "door", "bob"), int)


def test_swapped_databases_hold_nothing(server, cli, lock):
    cli("SWAPDB 0 1")
    assert owners_of(cli, "door") == []
    assert all(cli("LOCK.FENCE", "door", token) == 0 for token in tokens_of(lock))
    assert_empty(server.connect(db=1), "door", lock)
    eventually(lambda: count(cli, "holds") == 0)


def test_what_is_left_of_databases_that_changed_places_stays_empty(server, cli):
    # Their values find nothing, however many locks are taken under other names, and in a file they are empty, too.
    for turn in range(20):
        cli("LOCK.ACQUIRE", f"old:{turn}", "alice", "PX", 60000)
        take(cli, f"several:{turn}", "alice", "LIMIT 3")
        cli("SWAPDB 0 1")
        cli("SWAPDB 0 1")
        for number in range(5):
            cli("LOCK.ACQUIRE", f"new:{turn}:{number}", "bob", "PX", 60000)
        if turn == 10:
            cli("BGREWRITEAOF")
            cli("DEBUG RELOAD")
    for turn in range(20):
        assert_empty_lock(cli, f"old:{turn}", owners=("alice", "bob"))
        assert_empty_lock(cli, f"several:{turn}", owners=("alice", "bob"))
        assert cli("MEMORY", "USAGE", f"old:{turn}") > 0
    assert owner_of(cli, "new:19:4") == "bob"
    assert cli("LOCK.ACQUIRE old:0 carol PX 60000") > 0 and owner_of(cli, "old:0") == "carol"


# COPY


@pytest.mark.parametrize("command", ["COPY door elsewhere", "COPY door elsewhere REPLACE"])
def test_a_lock_cannot_be_copied(cli, lock, command):
    # Two locks never share a token
    with pytest.raises(ServerError):
        cli(command)
    assert cli("EXISTS elsewhere") == 0
    assert locks_of(cli)["door"] == lock
    assert all(cli("LOCK.FENCE", "door", token) == 1 for token in tokens_of(lock))


# DUMP and RESTORE


def test_a_lock_restored_under_its_name_is_held_as_before(cli):
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    payload = dump(cli, "door")
    cli("DEL door")
    cli("RESTORE", "door", 0, payload)
    hold = holder(cli, "door")
    assert (hold["owner"], hold["token"]) == ("alice", token)
    assert 0 < hold["lease-left-ms"] <= 60_000
    assert cli("LOCK.FENCE", "door", token) == 1
    assert cli("LOCK.ACQUIRE door bob PX 60000") is None
    assert cli("LOCK.ACQUIRE door alice PX 60000") == token
    assert cli("LOCK.RENEW", "door", "alice", "PX", 60000, "TOKEN", token) == 1
    assert cli("LOCK.RELEASE", "door", "alice", "TOKEN", token) == 1
    assert cli("DBSIZE") == 0


def test_a_restored_lease_ends(cli):
    # G3
    cli("LOCK.ACQUIRE door alice PX 300")
    payload = dump(cli, "door")
    cli("DEL door")
    cli("RESTORE", "door", 0, payload)
    assert cli("DBSIZE") == 1
    eventually(lambda: cli("DBSIZE") == 0, "the restored lease ends")


def test_a_waiter_for_a_restored_lock_is_granted_when_it_is_free(server, cli):
    # G6
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    payload = dump(cli, "door")
    cli("DEL door")
    cli("RESTORE", "door", 0, payload)
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    assert bob.waits()
    cli("LOCK.RELEASE", "door", "alice", "TOKEN", token)
    assert bob.answer() > token


def test_restore_replace_breaks_what_stood_there(cli, lock):
    payload = dump(cli, "door")
    cli("DEL door")
    broken = take(cli, "door", "bob", "SHARED")
    cli("RESTORE", "door", 0, payload, "REPLACE")
    assert cli("LOCK.FENCE", "door", broken) == 0
    assert cli("LOCK.RENEW door bob PX 60000") == 0
    assert locks_of(cli)["door"] == lock
    assert take(cli, "fresh", "new") > broken


def test_a_restored_lease_hands_the_lock_on_when_it_ends(server, cli):
    # G3, G6
    cli("LOCK.ACQUIRE door alice PX 300")
    payload = dump(cli, "door")
    cli("DEL door")
    cli("RESTORE", "door", 0, payload)
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    assert isinstance(bob.answer(), int)


ARRIVED = ("UNBLOCKED", "a lock came to this key")


def test_a_restored_lock_ends_all_waits_at_its_key(server, cli):
    # G1, G7, G9: all waiters there, and the holder now
    cli("LOCK.ACQUIRE door alice PX 60000")
    payload = dump(cli, "door")
    cli("DEL door")
    cli("LOCK.ACQUIRE door bob PX 60000")
    waiters = [server.ask(f"LOCK.ACQUIRE door {owner} PX 60000 BLOCK 0") for owner in ("carol", "alice")]
    both = server.ask("LOCK.MACQUIRE 2 door gate dave PX 60000 BLOCK 0")
    behind = server.ask("LOCK.ACQUIRE gate erin PX 60000 BLOCK 0")
    assert cli("LOCK.ACQUIRE door fay PX 60000 QUEUE 60000") is None
    assert behind.waits()
    cli("RESTORE", "door", 0, payload, "REPLACE")
    for waiter in (*waiters, both):
        with refused(*ARRIVED):
            waiter.answer()
    assert isinstance(behind.answer(), int), "it waited behind the one for both"
    assert owner_of(cli, "door") == "alice" and queue_of(cli, "door") == []
    # No position is kept.
    assert cli("LOCK.RELEASE door alice") == 1
    assert isinstance(cli("LOCK.ACQUIRE door carol PX 60000"), int)


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([("RESTORE", "REPLACE"), ("DEL",)], id="deleted in the same transaction"),
        pytest.param([("RESTORE", "REPLACE", "ABSTTL", "IN THE PAST")], id="with a time in the past"),
        pytest.param([("DEL",), ("RENAME", "elsewhere")], id="an empty lock"),
    ],
)
def test_no_wait_ends_where_no_held_lock_has_come_to_stay(server, cli, steps):
    # G6: the next waiter is granted
    cli("LOCK.ACQUIRE elsewhere alice PX 60000")
    cli("LOCK.ACQUIRE door alice PX 60000")
    payload = dump(cli, "door")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    words = {
        "RESTORE": lambda *options: ["RESTORE", "door", 0, payload, *options],
        "DEL": lambda: ["DEL", "door"],
        "RENAME": lambda key: ["RENAME", key, "door"],
    }
    commands = [words[step](*rest) for step, *rest in steps]
    for command in commands:
        if command[-1] == "IN THE PAST":
            command[2:] = [1, payload, "REPLACE", "ABSTTL"]
    cli.pipeline("MULTI", *commands, "EXEC")
    assert isinstance(bob.answer(), int)


def test_restore_without_replace_is_refused_while_the_lock_is_held(cli):
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    payload = dump(cli, "door")
    with refused("BUSYKEY"):
        cli("RESTORE", "door", 0, payload)
    assert cli("LOCK.FENCE", "door", token) == 1


def test_all_holders_travel_under_the_same_name(cli, lock, start_server):
    # CONTRACT 5: here and on another server; G4 there
    payload = dump(cli, "door")
    leases = {hold["owner"]: hold["lease-left-ms"] for hold in lock_info(cli, "door")["holders"]}
    cli("DEL door")
    other = start_server().connect()
    for target in (cli, other):
        target("RESTORE", "door", 0, payload)
        assert locks_of(target)["door"] == lock
        for hold in lock_info(target, "door")["holders"]:
            assert abs(hold["lease-left-ms"] - leases[hold["owner"]]) < 60_000
        assert all(target("LOCK.FENCE", "door", token) == 1 for token in tokens_of(lock))
        assert take(target, "fresh", "new") > max(tokens_of(lock))
        for owner, token, times, *_ in lock[1]:
            for _ in range(times):
                release(target, "door", owner, "TOKEN", token)
        assert target("EXISTS door") == 0


def test_a_lock_restored_under_another_name_is_empty(cli, lock):
    # CONTRACT 5: two locks never share a token
    cli("RESTORE", "elsewhere", 0, dump(cli, "door"))
    assert_empty(cli, "elsewhere", lock)
    assert locks_of(cli)["door"] == lock
    assert isinstance(take(cli, "elsewhere", "bob", "LIMIT 9"), int)


def test_a_lock_restored_in_another_database_does_not_share_its_token(server, cli):
    # G1 for (db, name): the same owner and token may not be live twice
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    payload = dump(cli, "door")
    other = server.connect(db=1)
    other("RESTORE", "door", 0, payload)
    assert other("LOCK.ACQUIRE door bob PX 1000") is None or (
        other("LOCK.FENCE", "door", token) == 0
    )
    assert cli("LOCK.FENCE", "door", token) == 1


def test_restore_with_a_ttl_is_a_ttl_by_a_user(cli):
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    payload = dump(cli, "door")
    cli("DEL door")
    cli("RESTORE", "door", 100, payload)
    eventually(lambda: cli("DBSIZE") == 0, "the key goes when the server says")
    assert cli("LOCK.FENCE", "door", token) == 0


def test_a_restored_semaphore_has_room_for_its_waiters(server, cli):
    # G6, G1
    limited(cli)
    payload = dump(cli, "door")
    cli("DEL door")
    cli("RESTORE", "door", 0, payload)
    waiters = [ask(server, "door", f"w{n}", "LIMIT 4") for n in range(2)]
    assert isinstance(waiters[0].answer(), int), "the fourth permit"
    assert waiters[1].waits()
    release(cli, "door", "p0")
    assert isinstance(waiters[1].answer(), int)


def test_restored_leases_end_one_by_one(cli):
    # G3
    take(cli, "door", "short", "SHARED", lease_ms=500)
    take(cli, "door", "long", "SHARED")
    payload = dump(cli, "door")
    cli("DEL door")
    cli("RESTORE", "door", 0, payload)
    eventually(lambda: owners_of(cli, "door") == ["long"])


def test_migrate_carries_all_holders(cli, lock, start_server):
    target = start_server()
    other = target.connect()
    assert cli("MIGRATE", "127.0.0.1", target.port, "door", 0, 5000) == "OK"
    assert cli("EXISTS door") == 0
    assert locks_of(other)["door"] == lock
    for token in tokens_of(lock):
        assert (cli("LOCK.FENCE", "door", token), other("LOCK.FENCE", "door", token)) == (0, 1)
    assert take(other, "fresh", "new") > max(tokens_of(lock))


# DEBUG RELOAD


def test_holds_survive_a_reload(server, cli):
    # G13
    other = server.connect(db=3)
    tokens = [cli("LOCK.ACQUIRE", f"door:{n}", "alice", "PX", 60000) for n in range(50)]
    there = other("LOCK.ACQUIRE door bob EX 60")
    before = cli("DEBUG DIGEST")
    cli("DEBUG RELOAD")
    assert cli("DEBUG DIGEST") == before
    for n, token in enumerate(tokens):
        hold = holder(cli, f"door:{n}")
        assert (hold["owner"], hold["token"]) == ("alice", token)
        assert 0 < hold["lease-left-ms"] <= 60_000
    assert other("LOCK.FENCE", "door", there) == 1
    assert cli("LOCK.ACQUIRE gate alice PX 60000") > there


def test_tokens_go_up_over_a_reload_without_locks(cli):
    # G4: the clock of tokens is saved although no lock is
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    cli("LOCK.RELEASE door alice")
    cli("DEBUG RELOAD")
    assert cli("LOCK.ACQUIRE door alice PX 60000") > token


def test_a_reloaded_lease_ends(cli):
    # G3
    cli("LOCK.ACQUIRE door alice PX 500")
    cli("DEBUG RELOAD")
    eventually(lambda: cli("DBSIZE") == 0, "the reloaded lease ends")


@pytest.mark.parametrize("way", ["RELOAD", "LOADAOF"])
def test_a_wait_ends_where_a_file_brings_the_lock_back(start_server, way):
    # G1, G7: the keys are missing for a moment, but nothing is granted while loading
    server = start_server("--appendonly", "yes", "--aof-use-rdb-preamble", "no")
    cli = server.connect()
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    cli("DEBUG", way)
    with refused(*ARRIVED):
        bob.answer()
    assert cli("LOCK.FENCE", "door", token) == 1
    assert queue_of(cli, "door") == []


def test_an_empty_lock_is_empty_after_a_reload_too(cli):
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    cli("RENAME door gate")
    before = cli("DEBUG DIGEST")
    cli("DEBUG RELOAD")
    assert cli("DEBUG DIGEST") == before
    assert cli("LOCK.FENCE", "gate", token) == 0
    assert cli("LOCK.INFO gate") is None


# The server's own commands on the key


def test_the_digest_tells_locks_apart(cli):
    # G13
    seen = {cli("DEBUG DIGEST-VALUE door")[0]}
    for owner in ("alice", "bob"):
        cli("LOCK.ACQUIRE", "door", owner, "PX", 60000)
        seen.add(cli("DEBUG DIGEST-VALUE door")[0])
        cli("LOCK.RELEASE", "door", owner)
    cli("LOCK.ACQUIRE door alice PX 60000")
    seen.add(cli("DEBUG DIGEST-VALUE door")[0])
    assert len(seen) == 4, "no key, alice, bob, alice with another token"


def test_memory_usage_and_object(cli, lock):
    usage = cli("MEMORY USAGE door")
    assert 0 < usage < 2000 * len(lock[1])
    assert cli("OBJECT ENCODING door") == "raw"
    assert cli("OBJECT REFCOUNT door") == 1
    assert cli("OBJECT IDLETIME door") >= 0
    assert cli("TYPE door") == "redislock"
    assert "door" in cli("SCAN 0 COUNT 1000 TYPE redislock")[1]


def test_memory_usage_grows_with_the_owner(cli):
    take(cli, "small", "a")
    take(cli, "large", "a" * 256)
    small, large = cli("MEMORY USAGE small"), cli("MEMORY USAGE large")
    assert 0 < small < 2000
    assert small < large < 4000


def test_memory_grows_with_the_holders_and_comes_back(cli):
    take(cli, "door", "h", "LIMIT 1000000")
    small = cli("MEMORY USAGE door")
    cli.pipeline(*[f"LOCK.ACQUIRE door m{n} PX 3600000 LIMIT 1000000" for n in range(1000)])
    large = cli("MEMORY USAGE door")
    assert large > small + 1000 * 16
    cli.pipeline(*[f"LOCK.RELEASE door m{n}" for n in range(1000)])
    assert cli("MEMORY USAGE door") < large / 4


def test_scan_finds_locks_by_type(cli):
    for n in range(30):
        cli("LOCK.ACQUIRE", f"door:{n}", "alice", "PX", 60000)
        cli("SET", f"note:{n}", "text")
    cursor, found = "0", []
    for _ in range(100):
        cursor, keys = cli("SCAN", cursor, "TYPE", "redislock", "COUNT", 10)
        found += keys
        if cursor == "0":
            break
    assert sorted(found) == sorted(f"door:{n}" for n in range(30))


def test_the_module_cannot_be_unloaded(server, cli):
    # CONTRACT 5: refused by the server while the type is in use
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    with refused("ERR"):
        cli("MODULE UNLOAD redislock")
    assert bob.waits()
    assert lock_info(cli, "door")["waiters"] == 1
    assert "redislock" in str(cli("MODULE LIST"))


def test_info_counts_locks_that_are_held_and_no_empty_ones(start_server):
    # CONTRACT 8: the same on a primary, on its replica, and when all is loaded again
    primary = start_server("--repl-diskless-sync-delay", 0)
    replica = start_server("--replicaof", f"127.0.0.1 {primary.port}")
    cli = primary.connect()
    for name, options in (("plain", ""), ("read", "SHARED"), ("pool", "LIMIT 2"), ("swapped", "")):
        take(cli, name, "alice", options)
        if name != "swapped":
            take(cli, f"{name}-stays", "alice", options)
            cli("RENAME", name, f"{name}-moved")
    cli("MOVE swapped 1")
    cli("SELECT 2")
    take(cli, "other", "alice")
    take(cli, "others", "alice", "SHARED")
    cli("SWAPDB 2 3")
    held = (3, 3)
    assert (count(cli, "locks"), count(cli, "holds")) == held
    assert cli("DBSIZE") == 0 and cli("DEBUG RELOAD") == "OK"
    assert (count(cli, "locks"), count(cli, "holds")) == held
    there = replica.connect()
    eventually(lambda: (count(there, "locks"), count(there, "holds")) == held, "the replica has them")
    there("DEBUG RELOAD")
    assert (count(there, "locks"), count(there, "holds")) == held
