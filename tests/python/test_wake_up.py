"""Whatever frees a lock, the first waiter gets it (G6, and the table of CONTRACT 5).

alice holds the door, bob and carol wait for it, then something happens to the key.
"""

import time

import pytest

from harness.kinds import ask, ask_all, owners_of, release, take
from harness.limits import eventually
from harness.replies import holder, lock_info, module_info, owner_of, queue_of, waiters_of
from harness.wire import refused

SCRIPT_DEL = "return redis.call('DEL', KEYS[1])"
SCRIPT_RELEASE = "return redis.call('LOCK.RELEASE', KEYS[1], 'alice')"

# The value that a cause leaves in the place of the lock before the grant.
CAUSES = {
    # the lock is freed
    "release": ["LOCK.RELEASE door alice"],
    "release by token": [("LOCK.RELEASE", "door", "alice", "TOKEN", "ALICE'S")],
    "release in a transaction": ["MULTI", "LOCK.RELEASE door alice", "EXEC"],
    "release in a script": [("EVAL", SCRIPT_RELEASE, 1, "door")],
    "the lease ends": ["LOCK.RENEW door alice PX 1"],
    # the key is removed
    "DEL": ["DEL door"],
    "DEL of many": ["DEL a b door c"],
    "UNLINK": ["UNLINK door"],
    "DEL in a transaction": ["MULTI", "SET x y", "DEL door", "SET x z", "EXEC"],
    "DEL in a script": [("EVAL", SCRIPT_DEL, 1, "door")],
    "FLUSHDB": ["FLUSHDB"],
    "FLUSHDB ASYNC": ["FLUSHDB ASYNC"],
    "FLUSHDB SYNC": ["FLUSHDB SYNC"],
    "FLUSHALL": ["FLUSHALL"],
    "FLUSHALL ASYNC": ["FLUSHALL ASYNC"],
    "FLUSHALL SYNC": ["FLUSHALL SYNC"],
    "FLUSHALL in a transaction": ["MULTI", "FLUSHALL", "SET x y", "EXEC"],
    "FLUSHALL from another database": ["SELECT 3", "FLUSHALL", "SELECT 0"],
    "SWAPDB": ["SWAPDB 0 1"],
    "SWAPDB the other way round": ["SWAPDB 7 0"],
    "SWAPDB twice": ["SWAPDB 0 1", "SWAPDB 0 1"],
    "RENAME away": ["RENAME door elsewhere"],
    "RENAMENX away": ["RENAMENX door elsewhere"],
    "RENAME away and back": ["RENAME door elsewhere", "RENAME elsewhere door"],
    "MOVE": ["MOVE door 1"],
    "EXPIRE": ["PEXPIRE door 1"],
    "EXPIRE in the past": ["PEXPIRE door -1"],
    "EXPIREAT in the past": ["EXPIREAT door 1"],
    # nothing, or an empty lock, is put over it
    "SUNIONSTORE of nothing": ["SUNIONSTORE door nothing"],
    "RENAME a lock onto it": ["LOCK.ACQUIRE gate eve PX 60000", "RENAME gate door"],
    "SET and DEL": ["SET door value", "DEL door"],
    "SET and DEL in a transaction": ["MULTI", "SET door value", "DEL door", "EXEC"],
}

# Something else is written over the lock, and stays (CONTRACT 5).
OVERWRITES = {
    "SET": ["SET door value"],
    "SET with a TTL": ["SET door value EX 1000"],
    "MSET": ["MSET x y door value"],
    "GETSET-like SET": ["MULTI", "SET door value", "GET door", "EXEC"],
    "SUNIONSTORE": ["SADD s 1 2", "SUNIONSTORE door s"],
    "ZUNIONSTORE": ["ZADD z 1 a", "ZUNIONSTORE door 1 z"],
    "SORT STORE": ["RPUSH l 1 2", "SORT l STORE door"],
    "BITOP": ["SET s x", "BITOP NOT door s"],
    "RENAME a string onto it": ["SET junk value", "RENAME junk door"],
    "COPY REPLACE of a string": ["SET junk value", "COPY junk door REPLACE"],
    "RESTORE REPLACE": [("RESTORE", "door", 0, "A STRING", "REPLACE")],
}


def perform(cli, cause, token, dumped):
    """Runs the commands of a cause, in one packet."""
    known = {"ALICE'S": token, "A STRING": dumped}
    steps = [
        step if isinstance(step, str) else [known.get(word, word) for word in step]
        for step in (CAUSES | OVERWRITES)[cause]
    ]
    for reply in cli.pipeline(*steps):
        assert not isinstance(reply, Exception), reply


def dump_of_a_string(cli):
    """The output of DUMP for a string, as text that goes back unchanged."""
    cli("SET some:string value")
    dumped = cli("DUMP some:string")
    cli("DEL some:string")
    return dumped


@pytest.mark.parametrize("cause", CAUSES)
def test_the_first_waiter_gets_the_lock(server, cli, cause):
    # G6
    dumped = dump_of_a_string(cli)
    first = cli("LOCK.ACQUIRE door alice PX 3600000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 3600000 BLOCK 0")
    carol = server.ask("LOCK.ACQUIRE door carol PX 3600000 BLOCK 0")
    perform(cli, cause, first, dumped)
    token = bob.answer()
    assert token > first
    assert cli("LOCK.FENCE", "door", first) == 0, "the old token is dead"
    assert cli("LOCK.FENCE", "door", token) == 1
    assert owner_of(cli, "door") == "bob"
    assert cli("TTL door") == -1
    assert queue_of(cli, "door") == ["carol"]
    assert carol.waits(), "one grant, not two"
    assert cli("LOCK.RELEASE door alice") == 0
    assert cli("LOCK.RELEASE door bob") == 1
    assert carol.answer() > token
    assert cli("LOCK.RELEASE door carol") == 1
    assert cli("EXISTS door") == 0


@pytest.mark.parametrize("cause", OVERWRITES)
def test_a_value_written_over_a_lock_stays_and_all_waiters_are_answered(server, cli, cause):
    # CONTRACT 5: a grant never overwrites a user's value
    dumped = dump_of_a_string(cli)
    cli("LOCK.ACQUIRE gate frank PX 3600000")
    first = cli("LOCK.ACQUIRE door alice PX 3600000")
    broken = int(module_info(cli)["broken"])
    waiters = [
        server.ask("LOCK.ACQUIRE door bob PX 3600000 BLOCK 0"),
        server.ask("LOCK.ACQUIRE door carol PX 3600000 BLOCK 0 SHARED"),
        server.ask("LOCK.MACQUIRE 2 door gate eve PX 3600000 BLOCK 0"),
        server.ask("LOCK.MACQUIRE 2 gate door gina PX 3600000 BLOCK 0"),
    ]
    cli("LOCK.ACQUIRE door dave PX 3600000 QUEUE 60000")
    gate = server.ask("LOCK.ACQUIRE gate bob PX 3600000 BLOCK 0")
    perform(cli, cause, first, dumped)
    for waiter in waiters:
        with refused("WRONGTYPE"):
            waiter.answer()
    for command in (
        "LOCK.ACQUIRE door dave PX 3600000 QUEUE 60000",
        "LOCK.ACQUIRE door bob PX 3600000 BLOCK 0",
        "LOCK.MACQUIRE 2 gate door hal PX 3600000 BLOCK 0",
        "LOCK.RELEASE door alice",
    ):
        with refused("WRONGTYPE"):
            cli(command)
    assert cli("TYPE door") != "redislock"
    assert int(module_info(cli)["broken"]) == broken + 1
    assert queue_of(cli, "gate") == ["bob"], "and nobody waits for the other lock"
    assert int(module_info(cli)["waiters"]) == 1
    assert cli("LOCK.RELEASE gate frank") == 1
    assert isinstance(gate.answer(), int)
    cli("DEL door")
    assert isinstance(cli("LOCK.ACQUIRE door bob PX 3600000"), int)


@pytest.mark.parametrize("ask", ["LOCK.ACQUIRE", "LOCK.RELEASE", "LOCK.RENEW", "LOCK.MACQUIRE"])
def test_a_request_before_the_pump_has_seen_the_value_is_answered_as_well(server, cli, ask):
    # CONTRACT 5: in one packet with the SET
    cli("LOCK.ACQUIRE door alice PX 3600000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 3600000 BLOCK 0")
    command = {
        "LOCK.ACQUIRE": "LOCK.ACQUIRE door carol PX 3600000",
        "LOCK.RELEASE": "LOCK.RELEASE door bob",
        "LOCK.RENEW": "LOCK.RENEW door alice PX 3600000",
        "LOCK.MACQUIRE": "LOCK.MACQUIRE 2 gate door carol PX 3600000",
    }[ask]
    _, told, value = cli.pipeline("SET door value", command, "GET door")
    assert str(told).startswith("WRONGTYPE "), told
    assert value == "value"
    with refused("WRONGTYPE"):
        bob.answer()
    assert cli("GET door") == "value"


@pytest.mark.parametrize("cause", ["DEL", "FLUSHALL", "SET and DEL", "RENAME away", "SWAPDB"])
def test_each_break_serves_the_next_waiter(server, cli, cause):
    # G6: ten times over, the queue moves on by one each time
    cli("LOCK.ACQUIRE door w0 PX 3600000")
    waiters = [
        server.ask("LOCK.ACQUIRE", "door", f"w{n}", "PX", 3600000, "BLOCK", 0)
        for n in range(1, 11)
    ]
    last = cli("LOCK.FENCE door")
    for waiter in waiters:
        perform(cli, cause, None, None)
        token = waiter.answer()
        assert token > last
        last = token
    assert waiters_of(cli, "door") == 0


def test_the_lease_of_the_holder_hands_the_lock_on(server, cli):
    # G3: granted in the same step in which the lease ends
    start = time.monotonic()
    cli("LOCK.ACQUIRE door alice PX 150")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    assert isinstance(bob.answer(), int)
    assert time.monotonic() - start >= 0.150, "not before alice's lease ended"
    assert owner_of(cli, "door") == "bob"


def test_a_chain_of_short_leases_serves_everybody(server, cli):
    # G3, G5, G6: no owner ever releases
    cli("LOCK.ACQUIRE door w0 PX 20")
    waiters = [
        server.ask("LOCK.ACQUIRE", "door", f"w{n}", "PX", 20, "BLOCK", 0)
        for n in range(1, 21)
    ]
    tokens = [waiter.answer() for waiter in waiters]
    assert tokens == sorted(tokens)
    eventually(lambda: cli("DBSIZE") == 0, "the last lease ends")


# Databases


@pytest.mark.parametrize("command", ["FLUSHALL", "FLUSHALL ASYNC"])
def test_flushall_serves_the_waiters_of_every_database(server, cli, command):
    # G6
    waiters = {}
    for db in (0, 1, 5, 15):
        there = server.connect(db=db)
        for lock in ("door", "gate"):
            there("LOCK.ACQUIRE", lock, "alice", "PX", 3600000)
            waiters[db, lock] = server.ask(
                "LOCK.ACQUIRE", lock, "bob", "PX", 3600000, "BLOCK", 0, db=db
            )
    cli(command)
    for (db, lock), waiter in waiters.items():
        token = waiter.answer()
        assert server.connect(db=db)("LOCK.FENCE", lock, token) == 1


def test_flushdb_concerns_one_database(server, cli):
    # G10
    other = server.connect(db=1)
    token = other("LOCK.ACQUIRE door alice PX 3600000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 3600000 BLOCK 0", db=1)
    cli("FLUSHDB")
    assert bob.waits()
    assert other("LOCK.FENCE", "door", token) == 1


def test_swapdb_serves_the_waiters_where_they_wait(server, cli):
    # CONTRACT 5: waiters stay with their (db, name)
    other = server.connect(db=1)
    token_0 = cli("LOCK.ACQUIRE door alice PX 3600000")
    token_1 = other("LOCK.ACQUIRE door albert PX 3600000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 3600000 BLOCK 0")
    bert = server.ask("LOCK.ACQUIRE door bert PX 3600000 BLOCK 0", db=1)
    cli("SWAPDB 0 1")
    assert bob.answer() > token_1
    assert bert.answer() > token_1
    assert owner_of(cli, "door") == "bob"
    assert owner_of(other, "door") == "bert"
    for each in (cli, other):
        assert each("LOCK.FENCE", "door", token_0) == 0
        assert each("LOCK.FENCE", "door", token_1) == 0


def test_swapdb_serves_waiters_where_no_lock_is_afterwards(server, cli):
    cli("LOCK.ACQUIRE door alice PX 3600000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 3600000 BLOCK 0")
    server.connect(db=9)("SWAPDB 0 1")
    bob.answer()
    assert owner_of(cli, "door") == "bob"


def test_swapdb_of_other_databases_leaves_the_lock_alone(server, cli):
    # G10
    token = cli("LOCK.ACQUIRE door alice PX 3600000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 3600000 BLOCK 0")
    cli("SWAPDB 3 4")
    assert bob.waits()
    assert cli("LOCK.FENCE", "door", token) == 1


def test_move_serves_the_waiters_where_they_wait(server, cli):
    other = server.connect(db=1)
    cli("LOCK.ACQUIRE door alice PX 3600000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 3600000 BLOCK 0")
    assert cli("MOVE door 1") == 1
    bob.answer()
    assert owner_of(cli, "door") == "bob"
    assert other("LOCK.INFO door") is None
    assert isinstance(other("LOCK.ACQUIRE door erin PX 3600000"), int)


def test_rename_onto_a_lock_serves_the_waiters_for_that_name(server, cli):
    door = cli("LOCK.ACQUIRE door alice PX 3600000")
    gate = cli("LOCK.ACQUIRE gate eve PX 3600000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 3600000 BLOCK 0")
    frank = server.ask("LOCK.ACQUIRE gate frank PX 3600000 BLOCK 0")
    cli("RENAME gate door")
    bob.answer()
    frank.answer()
    assert (owner_of(cli, "door"), owner_of(cli, "gate")) == ("bob", "frank")
    for name in ("door", "gate"):
        assert cli("LOCK.FENCE", name, door) == 0
        assert cli("LOCK.FENCE", name, gate) == 0


# Without a waiter


def test_a_value_put_over_a_lock_without_waiters_stays(cli):
    token = cli("LOCK.ACQUIRE door alice PX 1000")
    cli("SET door value")
    cli("LOCK.ACQUIRE gate alice PX 1")
    eventually(lambda: cli("EXISTS gate") == 0, "leases are looked after")
    assert cli("GET door") == "value"
    cli("DEL door")
    assert cli("LOCK.FENCE", "door", token) == 0


def test_the_lease_of_a_broken_hold_ends_nothing_later(cli):
    # The deadline of alice's hold must not apply to a later one.
    cli("LOCK.ACQUIRE door alice PX 100")
    cli("SET door value")
    cli("LOCK.ACQUIRE gate alice PX 100")
    cli("DEL gate")
    cli("LOCK.ACQUIRE gate bob PX 60000")
    eventually(lambda: holder(cli, "gate")["held-ms"] > 300, "the old leases are over")
    assert cli("GET door") == "value"
    assert owner_of(cli, "gate") == "bob"


def test_a_broken_holder_can_take_the_lock_again_with_a_new_token(cli):
    first = cli("LOCK.ACQUIRE door alice PX 60000")
    cli("DEL door")
    assert cli("LOCK.RENEW door alice PX 60000") == 0
    second = cli("LOCK.ACQUIRE door alice PX 60000")
    assert second > first
    assert lock_info(cli, "door")["holders"][0]["held-ms"] < 60_000


# A TTL that a user gave the key


def test_the_next_holder_does_not_inherit_a_ttl(server, cli):
    cli("LOCK.ACQUIRE door alice PX 3600000")
    cli("EXPIRE door 3000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 3600000 BLOCK 0")
    cli("LOCK.RELEASE door alice")
    bob.answer()
    assert cli("TTL door") == -1


def test_a_ttl_ends_the_hold_when_the_user_said(server, cli):
    # CONTRACT 5: the server removes the key when it says
    token = cli("LOCK.ACQUIRE door alice PX 3600000")
    cli("PEXPIRE door 100")
    eventually(lambda: cli("DBSIZE") == 0, "the key goes")
    assert cli("LOCK.FENCE", "door", token) == 0
    assert cli("LOCK.RENEW door alice PX 1000") == 0


# Eviction


def test_eviction_of_a_lock_serves_its_waiter(start_server):
    # G6; allow-eviction: the operator accepted that locks may be evicted
    server = start_server(
        "--maxmemory-policy", "allkeys-random", module_arguments=["allow-eviction", "yes"]
    )
    cli = server.connect()
    first = cli("LOCK.ACQUIRE door alice PX 3600000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 3600000 BLOCK 0")
    cli("CONFIG SET maxmemory 1")
    eventually(
        lambda: cli.bytes_of("SET x y").startswith(b"-OOM")
        and cli("LOCK.FENCE", "door", first) == 0,
        "the lock is evicted",
    )
    cli("CONFIG SET maxmemory 0")
    assert bob.answer() > first


# Waiters of all kinds

CAUSES_FOR_ALL = {
    "release": ["LOCK.RELEASE a h", "LOCK.RELEASE b h", "LOCK.RELEASE c h", "LOCK.RELEASE d h"],
    "DEL": ["DEL a b c d"],
    "UNLINK": ["UNLINK a b c d"],
    "FLUSHALL": ["FLUSHALL"],
    "FLUSHDB ASYNC": ["FLUSHDB ASYNC"],
    "SWAPDB": ["SWAPDB 0 1"],
    "RENAME": ["RENAME a a2", "RENAME b b2", "RENAME c c2", "RENAME d d2"],
    "EXPIRE": ["PEXPIRE a 1", "PEXPIRE b 1", "PEXPIRE c 1", "PEXPIRE d 1"],
    "leases end": [f"LOCK.RENEW {key} h PX 1" for key in "abcd"],
    "in a transaction": ["MULTI", "DEL a b", "SET x y", "DEL c d", "EXEC"],
}


@pytest.mark.parametrize("cause", CAUSES_FOR_ALL)
def test_waiters_of_all_kinds_are_granted(server, cli, cause):
    # G6
    take(cli, "a", "h")
    take(cli, "b", "h", "SHARED")
    take(cli, "c", "h", "LIMIT 2")
    take(cli, "c", "h2", "LIMIT 2")
    take(cli, "d", "h")
    last = cli("LOCK.FENCE d")
    waiters = [
        ask(server, "a", "r1", "SHARED"), ask(server, "a", "r2", "SHARED"),
        ask(server, "b", "w"),
        ask(server, "c", "p1", "LIMIT 2"),
        ask_all(server, "d e", "all"),
    ]  # fmt: skip
    late = ask(server, "d", "late")
    assert all(waiter.is_blocked() for waiter in waiters)
    for reply in cli.pipeline(*CAUSES_FOR_ALL[cause]):
        assert not isinstance(reply, Exception), reply
    tokens = [waiter.answer() for waiter in waiters]
    assert all(token > last for token in tokens) and len(set(tokens)) == 5
    assert owners_of(cli, "a") == ["r1", "r2"]
    assert owners_of(cli, "b") == ["w"]
    assert "p1" in owners_of(cli, "c")
    assert owners_of(cli, "d") == owners_of(cli, "e") == ["all"]
    assert late.waits()
    release(cli, "d", "all")
    assert isinstance(late.answer(), int)


def test_waiters_of_all_kinds_are_answered_when_a_value_is_written(server, cli):
    # CONTRACT 5: a written value stays
    take(cli, "a", "h")
    take(cli, "b", "h", "SHARED")
    take(cli, "b", "h2", "SHARED")
    take(cli, "c", "h", "LIMIT 1")
    take(cli, "d", "h")
    waiters = [
        ask(server, "a", "r", "SHARED"), ask(server, "b", "h3"), ask(server, "b", "w"),
        ask(server, "c", "p", "LIMIT 1"), ask_all(server, "e d", "all"),
    ]  # fmt: skip
    behind = ask(server, "e", "behind")
    assert cli("MSET a x b x c x d x") == "OK"
    for waiter in waiters:
        with refused("WRONGTYPE"):
            waiter.answer()
    assert isinstance(behind.answer(), int), "nobody is ahead of it any more"
    assert cli("MGET a b c d") == ["x"] * 4
