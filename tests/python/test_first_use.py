"""A server whose locks are used for the first time.

The module subscribes to the server's events only when the first lock is used. So all earlier changes must be known at
the first lock.
"""

import pytest

from harness.limits import eventually
from harness.payload import dump
from harness.replicas import AT_ONCE, is_linked
from harness.replies import holder, module_info
from harness.server import MODULE
from harness.wire import refused

FIRSTS = {
    "command": lambda cli: cli("LOCK.ACQUIRE door alice PX 60000"),
    "transaction": lambda cli: cli.pipeline("MULTI", "LOCK.ACQUIRE door alice PX 60000", "EXEC")[-1][0],
    "script": lambda cli: cli(
        "EVAL", "return redis.call('LOCK.ACQUIRE', KEYS[1], 'alice', 'PX', 60000)", 1, "door"
    ),
    "read-only and not": lambda cli: (cli("LOCK.INFO door"), cli("LOCK.ACQUIRE door alice PX 60000"))[1],
}


@pytest.mark.parametrize("first", FIRSTS)
def test_a_flush_after_the_first_lock_is_noticed(start_server, first):
    # G6: only a server event reveals the flush to a waiter for a key with another value
    server = start_server()
    cli = server.connect()
    cli("FLUSHALL")
    assert FIRSTS[first](cli) > 0
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    cli("FLUSHALL")
    assert bob.answer() > 0
    carol = server.ask("LOCK.ACQUIRE door carol PX 60000 BLOCK 0")
    cli("FLUSHALL ASYNC")
    assert carol.answer() > 0


@pytest.mark.parametrize("first", FIRSTS)
def test_the_policy_set_before_the_first_lock_counts_for_it(start_server, first):
    server = start_server()
    cli = server.connect()
    cli("CONFIG SET maxmemory 1gb")
    cli("CONFIG SET maxmemory-policy allkeys-lru")
    with refused("ERR", "evict"):
        reply = FIRSTS[first](cli)
        if not isinstance(reply, int):
            raise reply
    cli("CONFIG SET maxmemory-policy noeviction")
    assert cli("LOCK.ACQUIRE door alice PX 60000") > 0
    cli("CONFIG SET maxmemory-policy allkeys-lfu")
    with refused("ERR", "evict"):
        cli("LOCK.ACQUIRE gate alice PX 60000")
    cli("CONFIG SET maxmemory 0")
    assert cli("LOCK.ACQUIRE gate alice PX 60000") > 0


def test_who_waits_is_granted_nothing_that_might_be_evicted(start_server):
    # CONTRACT 5
    server = start_server()
    cli = server.connect()
    assert cli("LOCK.ACQUIRE door alice PX 60000") > 0
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    cli("CONFIG SET maxmemory 1gb")
    cli("CONFIG SET maxmemory-policy allkeys-lru")
    assert cli("LOCK.RELEASE door alice") == 1
    with refused("ERR", "evict"):
        bob.answer()
    assert cli("LOCK.INFO door") is None


def test_the_policy_of_the_start_may_be_taken_back_before_the_first_lock(start_server):
    cli = start_server("--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru").connect()
    cli("CONFIG SET maxmemory-policy noeviction")
    assert cli("LOCK.ACQUIRE door alice PX 60000") > 0


def test_a_policy_that_cannot_be_asked_for_is_not_taken_for_a_harmless_one(start_server):
    # README: where locks could be evicted, none is granted
    server = start_server(
        config='loadmodule MODULE\nrename-command CONFIG ""\nmaxmemory 1gb\nmaxmemory-policy allkeys-lru\n'
    )
    cli = server.connect()
    with refused("ERR", "evict"):
        cli("LOCK.ACQUIRE door alice PX 60000")


def test_the_role_is_shown_before_the_first_lock_too(start_server):
    # CONTRACT 8: INFO is the operator's view, also on a replica that has no lock yet
    primary, server = start_server(*AT_ONCE), start_server()
    cli = server.connect()
    assert module_info(cli)["role"] == "primary"
    cli("REPLICAOF", "127.0.0.1", primary.port)
    eventually(lambda: module_info(cli)["role"] == "replica", "it tells what it is")
    cli("REPLICAOF NO ONE")
    eventually(lambda: module_info(cli)["role"] == "primary", "it tells what it is")


def promote_before_the_end(there, cli, name, owner):
    """Promotes a server while a replicated lease is about to end; which of them ends it is open only if the machine is
    slow.
    """
    there("LOCK.RENEW", name, owner, "PX", 500)
    there("WAIT 1 10000")
    cli("REPLICAOF NO ONE")


@pytest.mark.parametrize("may_write", ["yes", "no"])
def test_a_server_without_locks_that_becomes_a_replica_decides_nothing(start_server, may_write):
    # G13
    primary = start_server(*AT_ONCE)
    server = start_server("--replica-read-only", may_write)
    cli, there = server.connect(), primary.connect()
    cli("REPLICAOF", "127.0.0.1", primary.port)
    for command in ("LOCK.ACQUIRE door alice PX 60000", "LOCK.RENEW door alice PX 5", "LOCK.RELEASE door alice"):
        with refused("READONLY"):
            cli(command)
    is_linked(server)
    # The first record that it receives is applied, without a question to the server.
    token = there("LOCK.ACQUIRE door bob PX 60000")
    tokens = [there(f"LOCK.ACQUIRE gate:{number} bob PX 60000") for number in range(20)]
    short = there("LOCK.ACQUIRE short carol PX 60000")
    eventually(lambda: cli("LOCK.FENCE", "short", short) == 1, "the stream arrives")
    assert cli("LOCK.FENCE", "door", token) == 1
    assert [cli(f"LOCK.FENCE gate:{number}") for number in range(20)] == tokens
    # Its leases are the primary's to end, until it is one itself.
    there("LOCK.RENEW short carol PX 200")
    eventually(lambda: cli("EXISTS short") == 0, "the primary ended it")
    last = there("LOCK.ACQUIRE last dave PX 60000")
    eventually(lambda: cli("LOCK.FENCE", "last", last) == 1, "the stream arrives")
    promote_before_the_end(there, cli, "last", "dave")
    eventually(lambda: cli("EXISTS last") == 0, "it ends leases by itself")
    assert cli("LOCK.ACQUIRE door alice PX 60000") is None
    bob = server.ask("LOCK.ACQUIRE door alice PX 60000 BLOCK 0")
    assert cli("LOCK.RELEASE door bob") == 1
    assert bob.answer() > last
    # And back: a client that waits is rejected.
    eve = server.ask("LOCK.ACQUIRE door eve PX 60000 BLOCK 0")
    cli("REPLICAOF", "127.0.0.1", primary.port)
    with refused("UNBLOCKED"):
        eve.answer()


def test_a_replica_promoted_before_its_first_lock_decides(start_server):
    primary = start_server(*AT_ONCE)
    server = start_server("--replicaof", f"127.0.0.1 {primary.port}")
    cli = server.connect()
    is_linked(server)
    cli("REPLICAOF NO ONE")
    assert cli("LOCK.ACQUIRE door alice PX 50") > 0
    eventually(lambda: cli("DBSIZE") == 0, "the lease ends")
    replies = cli.pipeline(
        "MULTI", f"REPLICAOF 127.0.0.1 {primary.port}", "REPLICAOF NO ONE", "LOCK.ACQUIRE door alice PX 60000", "EXEC"
    )
    assert replies[-1][-1] > 0


def test_a_replica_that_never_saw_a_lock_is_given_some_by_a_full_sync(start_server):
    # G13: the first values come from an RDB file, not from a command
    primary = start_server(*AT_ONCE)
    there = primary.connect()
    token = there("LOCK.ACQUIRE door bob PX 60000")
    server = start_server()
    cli = server.connect()
    cli("REPLICAOF", "127.0.0.1", primary.port)
    eventually(lambda: cli("LOCK.FENCE", "door", token) == 1, "the data set arrives")
    next_token = there("LOCK.ACQUIRE gate bob PX 60000")
    eventually(lambda: cli("LOCK.FENCE", "gate", next_token) == 1, "the stream arrives")
    after = there("LOCK.ACQUIRE last bob PX 60000")
    eventually(lambda: cli("LOCK.FENCE", "last", after) == 1, "the stream arrives")
    promote_before_the_end(there, cli, "last", "bob")
    eventually(lambda: cli("EXISTS last") == 0, "it ends leases by itself")
    assert cli("LOCK.ACQUIRE new alice PX 60000") > after


FILES = {
    "rdb": (["--save", "3600 1"], "SAVE"),
    "aof": (["--appendonly", "yes", "--appendfsync", "always"], None),
    "rewritten aof": (
        ["--appendonly", "yes", "--appendfsync", "always", "--aof-use-rdb-preamble", "no"],
        "BGREWRITEAOF",
    ),
}


@pytest.mark.parametrize("file", FILES)
def test_locks_that_a_server_starts_with_end_and_are_passed_on(start_server, file):
    # G2, G3, G13: nothing but the file has ever been used here
    options, command = FILES[file]
    server = start_server(*options)
    cli = server.connect()
    cli("LOCK.ACQUIRE short alice PX 1500")
    held = [cli(f"LOCK.ACQUIRE door:{number} alice PX 60000") for number in range(20)]
    if command:
        cli(command)
        eventually(lambda: server.info("persistence")["aof_rewrite_in_progress"] == "0", "it is written")
        eventually(lambda: server.info("persistence").get("aof_rewrite_scheduled") == "0", "it is written")
    held += [cli(f"LOCK.ACQUIRE gate:{number} alice PX 60000") for number in range(20)] if file != "rdb" else []
    names = [f"door:{number}" for number in range(20)] + [f"gate:{number}" for number in range(20)]
    server.kill()
    server.start()
    cli = server.connect()
    # To look is not to use: the lease ends although no command of ours was ever sent.
    eventually(lambda: cli("EXISTS short") == 0, "the lease ends")
    for name, token in zip(names, held):
        assert cli("LOCK.FENCE", name, token) == 1
    bob = server.ask("LOCK.ACQUIRE door:0 bob PX 60000 BLOCK 0")
    cli("DEL door:0")
    assert bob.answer() > held[-1]


def test_a_server_that_only_reloads_before_its_first_lock(start_server):
    server = start_server()
    cli = server.connect()
    cli("SET note text")
    cli("DEBUG RELOAD")
    cli("SWAPDB 0 1")
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    cli("DEBUG RELOAD")
    assert cli("LOCK.FENCE", "door", token) == 1
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    cli("SWAPDB 0 1")
    assert bob.answer() > token
    other = server.connect(db=1)
    assert other("LOCK.FENCE door") is None


@pytest.mark.parametrize("way", ["command", "script"])
def test_a_lock_that_is_restored_first_ends_and_is_passed_on(start_server, server, cli, way):
    cli("LOCK.ACQUIRE door alice PX 700")
    payload = dump(cli, "door")
    fresh = start_server()
    there = fresh.connect()
    if way == "command":
        there("RESTORE", "door", 0, payload)
    else:
        there("EVAL", "return redis.call('RESTORE', KEYS[1], 0, ARGV[1])", 1, "door", payload)
    bob = fresh.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    assert bob.answer() > 0
    assert holder(there, "door")["owner"] == "bob"


def test_a_lock_restored_first_ends_without_any_command(start_server, cli):
    cli("LOCK.ACQUIRE door alice PX 300")
    payload = dump(cli, "door")
    there = start_server().connect()
    there("RESTORE", "door", 0, payload)
    eventually(lambda: there("DBSIZE") == 0, "the lease ends")


def test_locks_restored_first_and_flushed_elsewhere_are_forgotten(start_server, cli):
    # Only the server's cron says that something was freed on another thread.
    there = start_server().connect()
    for number in range(100):
        cli(f"LOCK.ACQUIRE door:{number} alice PX 60000")
        there("RESTORE", f"door:{number}", 0, dump(cli, f"door:{number}"))
    assert module_info(there)["holds"] == "100"
    there("FLUSHALL ASYNC")
    eventually(lambda: module_info(there)["locks"] == "0", "they are forgotten")
    assert module_info(there)["holds"] == "0"


def test_a_lease_known_from_one_record_ends_on_a_promoted_server(start_server):
    # The one record that this server has ever received
    primary = start_server(*AT_ONCE)
    server = start_server("--replicaof", f"127.0.0.1 {primary.port}")
    is_linked(server)
    cli = server.connect()
    there = primary.connect()
    there("LOCK.ACQUIRE door alice PX 1000")
    there("WAIT 1 10000")
    cli("REPLICAOF NO ONE")
    eventually(lambda: cli("DBSIZE") == 0, "it ends leases by itself")


def test_a_file_loaded_into_a_server_in_use_is_a_file_of_facts(start_server):
    # G13: the server is not asked about the file's content, although it had only clients to listen to before
    server = start_server("--appendonly", "yes", "--appendfsync", "always", "--aof-use-rdb-preamble", "no")
    cli = server.connect()
    for number in range(60):
        cli(f"LOCK.ACQUIRE door:{number} alice PX 60000")
        if number % 3 == 0:
            cli(f"LOCK.RELEASE door:{number} alice")
    tokens = [cli(f"LOCK.FENCE door:{number}") for number in range(60)]
    for _ in range(2):
        cli("DEBUG LOADAOF")
        assert [cli(f"LOCK.FENCE door:{number}") for number in range(60)] == tokens
        assert cli("LOCK.RENEW door:1 alice PX 50000") == 1
    new = cli("LOCK.ACQUIRE new alice PX 60000")
    assert new > max(token for token in tokens if token)
    assert cli("LOCK.ACQUIRE door:1 bob PX 60000") is None


def test_a_fork_before_the_first_lock_and_one_during_it(start_server):
    # G13: a file that was begun before the first lock was used records its token all the same
    server = start_server("--appendonly", "yes", "--appendfsync", "always", "--aof-use-rdb-preamble", "no")
    cli = server.connect()
    cli("BGREWRITEAOF")
    tokens = [cli(f"LOCK.ACQUIRE door:{number} alice PX 60000") for number in range(30)]
    eventually(lambda: server.info("persistence")["aof_rewrite_in_progress"] == "0", "it is written")
    tokens += [cli(f"LOCK.ACQUIRE door:{number} alice PX 60000") for number in range(30, 60)]
    server.kill()
    server.start()
    cli = server.connect()
    assert [cli(f"LOCK.FENCE door:{number}") for number in range(60)] == tokens


def test_events_know_nothing_of_config_that_cannot_be_asked(start_server):
    # Without CONFIG, it is better to publish without listeners than not to publish.
    server = start_server(config='loadmodule MODULE\nrename-command CONFIG ""\nnotify-keyspace-events Ed\n')
    cli, subscriber = server.connect(), server.connect()
    subscriber("PSUBSCRIBE __keyevent@0__:lock.*")
    cli("LOCK.ACQUIRE door alice PX 60000")
    assert subscriber.read()[2:] == ["__keyevent@0__:lock.acquired", "door"]
