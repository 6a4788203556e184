"""Locks of all kinds in files, on replicas and after a promotion.

G13 (all readers agree at any moment), G2 and G3 (leases there), G4. The steps are in
harness/walk.py; what keys and commands of the server do to the locks is in
test_kinds_keys.py.
"""

import pytest

from harness.kinds import ask, count, owners_of, release, take, take_all
from harness.limits import eventually
from harness.replicas import AT_ONCE, is_linked
from harness.replies import module_info
from harness.walk import PARTS, leases_of, locks_of, walk

ALWAYS = ["--appendonly", "yes", "--appendfsync", "always"]
PLAIN = ["--aof-use-rdb-preamble", "no"]

# Leases are compared across files and replicas; nothing here lasts as long.
LEASE_SLACK_MS = 60_000


def assert_same_leases(before, after):
    """Within what a test takes; each holder has its own."""
    assert before.keys() == after.keys()
    for key, left in before.items():
        assert abs(left - after[key]) < LEASE_SLACK_MS, (key, left, after[key])


def assert_it_goes_on(cli, holders):
    """G4, and every hold can be given up: counts, kinds and owners are really there."""
    highest = max(hold[1] for _, holds in holders.values() for hold in holds)
    assert take(cli, "fresh", "new") > highest
    release(cli, "fresh", "new")
    for key, (kind, holds) in holders.items():
        for owner, token, times, *_ in holds:
            assert cli("LOCK.FENCE", key, token) == 1
            for _ in range(times):
                release(cli, key, owner, "TOKEN", token)
            assert cli("LOCK.RELEASE", key, owner) == 0
        assert owners_of(cli, key) == []
        assert cli("EXISTS", key) == (0 if holds else 1), "empty locks stay"


def rewrite(server):
    """A new append-only file; returns when it is in use."""
    server.admin("BGREWRITEAOF")
    for field in ("aof_rewrite_in_progress", "aof_rewrite_scheduled"):
        eventually(lambda: server.info("persistence")[field] == "0", "the file is rewritten")
    assert server.info("persistence")["aof_last_bgrewrite_status"] == "ok"


# Replicas


@pytest.mark.parametrize("part", PARTS)
def test_a_replica_agrees_after_every_step(start_server, part):
    # G13
    server = start_server(*AT_ONCE)
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}")
    is_linked(replica)
    cli, reader = server.connect(), replica.connect()
    for step in walk(server, part):
        assert cli("WAIT 1 10000") == 1, step
        eventually(lambda: reader("DEBUG DIGEST") == cli("DEBUG DIGEST"), f"the same digest: {step}")
        assert locks_of(reader) == locks_of(cli), step
    assert_same_leases(leases_of(cli), leases_of(reader))
    assert module_info(cli)["last_token"] == module_info(reader)["last_token"]
    for name in ("locks", "holds"):
        assert count(cli, name) == count(reader, name)


def test_a_replica_of_a_replica_agrees(start_server):
    # G13: facts travel on as they came
    server = start_server(*AT_ONCE)
    middle = start_server(*AT_ONCE, "--replicaof", f"127.0.0.1 {server.port}")
    is_linked(middle)
    last = start_server("--replicaof", f"127.0.0.1 {middle.port}")
    is_linked(last)
    for _ in walk(server):
        pass
    cli, reader = server.connect(), last.connect()
    assert cli("WAIT 1 10000") == 1
    eventually(lambda: reader("DEBUG DIGEST") == cli("DEBUG DIGEST"), "the same digest")
    assert locks_of(reader) == locks_of(cli)


def test_a_full_resync_brings_everything(start_server):
    # G13
    server = start_server(*AT_ONCE)
    for _ in walk(server):
        pass
    cli = server.connect()
    ask(server, "pool", "later", "LIMIT 3")
    replica = start_server()
    reader = replica.connect()
    take(reader, "its", "own", "SHARED")
    reader("REPLICAOF", "127.0.0.1", server.port)
    is_linked(replica)
    assert cli("WAIT 1 10000") == 1
    assert reader("DEBUG DIGEST") == cli("DEBUG DIGEST")
    assert locks_of(reader) == locks_of(cli)
    assert_same_leases(leases_of(cli), leases_of(reader))
    release(cli, "pool", "p0")
    eventually(lambda: "later" in owners_of(cli, "pool"))
    take(cli, "read", "one more", "SHARED")
    assert cli("WAIT 1 10000") == 1
    eventually(lambda: reader("DEBUG DIGEST") == cli("DEBUG DIGEST"), "the same digest")
    assert locks_of(reader) == locks_of(cli)


def test_a_replica_decides_nothing(start_server):
    # CONTRACT 4: no lease ends there, nobody is granted
    server = start_server(*AT_ONCE)
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}", "--replica-read-only", "no")
    is_linked(replica)
    cli, reader = server.connect(), replica.connect()
    take(cli, "pool", "a", "LIMIT 2")
    assert cli("WAIT 1 10000") == 1
    for line in (
        "LOCK.ACQUIRE pool b PX 1000 LIMIT 2", "LOCK.ACQUIRE pool b PX 1000 LIMIT 2 QUEUE 100",
        "LOCK.MACQUIRE 2 x y b PX 1000", "LOCK.RELEASE pool a",
        "LOCK.ACQUIRE new b PX 1000 SHARED KEEPALIVE",
    ):  # fmt: skip
        reply = reader.bytes_of(line)
        assert reply.startswith(b"-READONLY "), (line, reply)
    assert reader("DEBUG DIGEST") == cli("DEBUG DIGEST")


@pytest.mark.parametrize("part", PARTS)
def test_after_a_promotion_everything_goes_on(start_server, part):
    # CONTRACT 5, G4
    server = start_server(*AT_ONCE)
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}")
    is_linked(replica)
    for _ in walk(server, part):
        pass
    cli, reader = server.connect(), replica.connect()
    assert cli("WAIT 1 10000") == 1
    eventually(lambda: reader("DEBUG DIGEST") == cli("DEBUG DIGEST"), "the same digest")
    before, leases = locks_of(cli, with_ties=False), leases_of(cli)
    server.kill()
    reader("REPLICAOF NO ONE")
    assert locks_of(reader, with_ties=False) == before
    assert_same_leases(leases, leases_of(reader))
    assert_it_goes_on(reader, before)


def test_after_a_promotion_leases_end_and_waiters_are_granted(start_server):
    # G3, G6
    server = start_server(*AT_ONCE)
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}")
    is_linked(replica)
    cli, reader = server.connect(), replica.connect()
    take(cli, "read", "long", "SHARED")
    take(cli, "read", "short", "SHARED", lease_ms=1500)
    take(cli, "pool", "short", "LIMIT 1", lease_ms=1500)
    take_all(cli, "a b", "short", lease_ms=1500)
    assert cli("WAIT 1 10000") == 1
    server.kill()
    reader("REPLICAOF NO ONE")
    waiter = ask(replica, "pool", "next", "LIMIT 1")
    assert isinstance(waiter.answer(), int)
    eventually(lambda: owners_of(reader, "read") == ["long"])
    eventually(lambda: reader("EXISTS a b") == 0)


def test_who_waits_is_told_of_a_demotion(start_server):
    # CONTRACT 4, G7: all kinds of waits
    server, other = start_server(*AT_ONCE), start_server()
    cli = server.connect()
    take(cli, "read", "r", "SHARED")
    take(cli, "pool", "p", "LIMIT 1")
    requests = [
        ask(server, "read", "w"), ask(server, "pool", "q", "LIMIT 1"),
        server.ask("LOCK.MACQUIRE 2 read new w2 PX 60000 BLOCK 0"),
    ]  # fmt: skip
    take(cli, "pool", "place", "LIMIT 1 QUEUE 3600000")
    cli("REPLICAOF", "127.0.0.1", other.port)
    for request in requests:
        with pytest.raises(Exception, match="UNBLOCKED"):
            request.answer()
    eventually(lambda: count(cli, "waiters") == 0)


def tell_an_older_token(server, cli, how):
    """Makes the stream name a token older than the last, and takes a lock within 10 ms of that; its name."""
    if how == "downgrade":
        cli.pipeline(
            "LOCK.ACQUIRE a alice PX 60000", "LOCK.ACQUIRE b bob PX 60000",
            "LOCK.ACQUIRE a alice PX 60000 SHARED", "LOCK.ACQUIRE c carol PX 60000",
        )  # fmt: skip
        return
    tied = server.connect()
    option = "KEEPALIVE" if how == "kept" else "EPHEMERAL 30000"
    tied("LOCK.ACQUIRE", "a", "alice", "PX", 60000, *option.split())
    client_id = tied("CLIENT ID")
    cli.pipeline("LOCK.ACQUIRE b bob PX 60000", f"CLIENT KILL ID {client_id}")
    cli("LOCK.ACQUIRE c carol PX 60000")


@pytest.mark.parametrize("how", ["downgrade", "cut", "kept"])
def test_tokens_agree_after_an_older_token_was_told(start_server, how):
    # G13, G4: readers count on from the newest token, not from the one they heard last
    server = start_server(*AT_ONCE, *ALWAYS, *PLAIN)
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}")
    is_linked(replica)
    cli, reader = server.connect(), replica.connect()
    for _ in range(10):
        tell_an_older_token(server, cli, how)
        assert cli("WAIT 1 10000") == 1
        before = locks_of(cli, with_ties=False)
        assert locks_of(reader, with_ties=False) == before
        cli("DEBUG LOADAOF")
        assert locks_of(cli, with_ties=False) == before
        cli("DEL a b c")


# Files


# Not the ties: a lock that was loaded is tied to no connection.
@pytest.mark.parametrize("part", [part for part in PARTS if part != "ties"])
def test_a_reload_agrees_after_every_step(start_server, part):
    # G13: RDB
    server = start_server()
    cli = server.connect()
    for step in walk(server, part):
        before, digest, leases = locks_of(cli, with_ties=False), cli("DEBUG DIGEST"), leases_of(cli)
        cli("DEBUG RELOAD")
        assert cli("DEBUG DIGEST") == digest, step
        assert locks_of(cli, with_ties=False) == before, step
        assert_same_leases(leases, leases_of(cli))


@pytest.mark.parametrize("part", [part for part in PARTS if part != "ties"])
def test_the_append_only_file_agrees_after_every_step(start_server, part):
    # G13: replayed from the first command on
    server = start_server(*ALWAYS, *PLAIN)
    cli = server.connect()
    for step in walk(server, part):
        before, digest, leases = locks_of(cli, with_ties=False), cli("DEBUG DIGEST"), leases_of(cli)
        cli("DEBUG LOADAOF")
        assert cli("DEBUG DIGEST") == digest, step
        assert locks_of(cli, with_ties=False) == before, step
        assert_same_leases(leases, leases_of(cli))


@pytest.mark.parametrize("way", ["RDB", "AOF", "AOF plain", "AOF rewritten", "AOF plain rewritten", "AOF rewritten on the way"])
def test_everything_survives_a_kill(start_server, way):
    # G13, G2, G4
    options = ["--save", "3600 1"] if way == "RDB" else ALWAYS + (PLAIN if "plain" in way else [])
    server = start_server(*options)
    cli = server.connect()
    for number, _ in enumerate(walk(server)):
        if way == "AOF rewritten on the way" and number % 6 == 3:
            rewrite(server)
    if way == "RDB":
        cli("SAVE")
    if way.endswith("rewritten"):
        rewrite(server)
    before, digest, leases = locks_of(cli, with_ties=False), cli("DEBUG DIGEST"), leases_of(cli)
    last = int(module_info(cli)["last_token"])
    server.kill()
    cli = server.start().connect()
    assert cli("DEBUG DIGEST") == digest
    assert locks_of(cli, with_ties=False) == before
    assert_same_leases(leases, leases_of(cli))
    assert int(module_info(cli)["last_token"]) >= last
    assert_it_goes_on(cli, before)


@pytest.mark.parametrize("options", [["--save", "3600 1"], ALWAYS, ALWAYS + PLAIN], ids=["RDB", "AOF", "AOF plain"])
def test_leases_of_all_kinds_end_after_a_restart(start_server, options):
    # G3
    server = start_server(*options)
    cli = server.connect()
    take(cli, "read", "long", "SHARED")
    take(cli, "read", "short", "SHARED", lease_ms=1000)
    for n in range(12):
        take(cli, "pool", f"p{n}", "LIMIT 20", lease_ms=1000 if n % 2 else 3_600_000)
    take_all(cli, "a b", "short", lease_ms=1000)
    take(cli, "count", "short", "REENTRANT", lease_ms=1000)
    take(cli, "count", "short", "REENTRANT", lease_ms=1000)
    if "--save" in options:
        cli("SAVE")
    server.kill()
    cli = server.start().connect()
    eventually(lambda: owners_of(cli, "read") == ["long"])
    eventually(lambda: owners_of(cli, "pool") == [f"p{n}" for n in range(0, 12, 2)])
    eventually(lambda: cli("EXISTS a b count") == 0)


def test_a_file_with_broken_locks_is_not_needed_to_end_them(start_server):
    # G13: what ended before the restart does not come back
    server = start_server(*ALWAYS, *PLAIN)
    cli = server.connect()
    for _ in walk(server):
        pass
    cli("FLUSHALL")
    server.kill()
    cli = server.start().connect()
    assert cli("DBSIZE") == 0
    assert (count(cli, "locks"), count(cli, "holds")) == (0, 0)
