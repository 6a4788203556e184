"""Locks of all kinds on replicas: over links that break, after a promotion, and when roles go to and fro.

G13 (all readers agree at any moment), G2, G3 and G7 (leases and waits there), G4. The steps are in harness/walk.py.
Files are in test_files.py, changes of role with sentinels or a frozen heir in test_role_changes.py.
"""

import pytest

from harness.kinds import ask, ask_all, count, owners_of, release, take, take_all
from harness.limits import eventually
from harness.replicas import AT_ONCE, is_linked
from harness.replies import module_info
from harness.walk import PARTS, assert_it_goes_on, assert_replica_agrees, assert_same_leases, leases_of, locks_of, walk
from harness.wire import Closed, ServerError, refused

ALWAYS = ["--appendonly", "yes", "--appendfsync", "always"]
PLAIN = ["--aof-use-rdb-preamble", "no"]


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
    # CONTRACT 4: no lease ends there, and no request is granted
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
def test_after_a_promotion_everything_continues(start_server, part):
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


def test_waiters_are_notified_of_a_demotion(start_server):
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
def test_tokens_agree_after_a_record_of_an_older_token(start_server, how):
    # G13, G4: readers count on from the newest token, not from the last one they received
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


# Links that break


def test_a_link_that_breaks_at_every_step(start_server):
    # G13: the stream continues where it broke off
    server = start_server(*AT_ONCE, "--repl-backlog-size", "10mb")
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}")
    is_linked(replica)
    cli, reader = server.connect(), replica.connect()
    breaks = 0
    for number, _ in enumerate(walk(server)):
        if number % 2:
            cli("CLIENT KILL TYPE replica")
            breaks += 1
        if number % 8 == 7:
            eventually(lambda: server.info("replication")["connected_slaves"] == "1")
            assert_replica_agrees(cli, reader)
    eventually(lambda: server.info("replication")["connected_slaves"] == "1")
    assert_replica_agrees(cli, reader)
    stats = server.info("stats")
    assert int(stats["sync_partial_ok"]) > 2 and stats["sync_full"] == "1", (breaks, stats)


def test_full_resynchronisations_while_everything_changes(start_server):
    # G13: changes while the data set is on its way follow it in the stream
    server = start_server(*AT_ONCE)
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}")
    cli, reader = server.connect(), replica.connect()
    for number, _ in enumerate(walk(server)):
        if number % 5 == 2:
            reader("REPLICAOF NO ONE")
            take(reader, "mine", f"o{number}", "SHARED")
            reader("REPLICAOF", "127.0.0.1", server.port)
        if number % 15 == 14:
            is_linked(replica)
            assert_replica_agrees(cli, reader)
    is_linked(replica)
    assert_replica_agrees(cli, reader)
    assert int(server.info("stats")["sync_full"]) > 3
    # The data that a full resynchronisation has replaced may be freed in the background.
    eventually(lambda: count(cli, "holds") == count(reader, "holds"), "nothing is left of the old data set")


# Roles that are handed over


def fail_over(old, new):
    """The primary hands its role over, without a loss."""
    # Up for the replica is not online yet for its primary.
    is_online = "state=online"
    eventually(lambda: is_online in str(old.info("replication")["slave0"]), "it can take over")
    old.admin("FAILOVER", "TO", "127.0.0.1", new.port)
    eventually(lambda: new.info("replication")["role"] == "master", "it is the primary now")
    is_linked(old)


@pytest.mark.parametrize("part", PARTS)
def test_roles_go_to_and_fro(start_server, part):
    # G13, G4
    first, second = start_server(*AT_ONCE), start_server(*AT_ONCE)
    second.admin("REPLICAOF", "127.0.0.1", first.port)
    is_linked(second)
    for _ in walk(first, part):
        pass
    eventually(lambda: count(first.connect(), "holds") > 0)
    before, leases = locks_of(first.connect(), with_ties=False), leases_of(first.connect())
    last = int(module_info(first.connect())["last_token"])
    old, new = first, second
    for _ in range(3):
        fail_over(old, new)
        cli = new.connect()
        assert_replica_agrees(cli, old.connect(), with_ties=False)
        assert locks_of(cli, with_ties=False) == before
        assert_same_leases(leases, leases_of(cli))
        token = take(cli, "fresh", "new", "LIMIT 2")
        assert token > last
        cli("LOCK.RELEASE fresh new")
        last, old, new = token, new, old


def test_waiters_are_answered_and_not_granted_when_roles_change(start_server):
    # G7, G1: leases that end while writes are paused for the change are the new primary's to end
    first, second = start_server(*AT_ONCE), start_server(*AT_ONCE)
    second.admin("REPLICAOF", "127.0.0.1", first.port)
    is_linked(second)
    cli = first.connect()
    take(cli, "read", "r1", "SHARED")
    take(cli, "read", "r2", "SHARED", lease_ms=1500)
    take(cli, "pool", "p1", "LIMIT 1", lease_ms=1500)
    take_all(cli, "one two", "all", lease_ms=1500)
    task = first.connect()
    kept = take(task, "kept", "alice", "KEEPALIVE", lease_ms=2000)
    take(task, "cut", "alice", "EPHEMERAL 0", lease_ms=3_000_000)
    requests = [
        ask(first, "read", "w0"), ask(first, "read", "late", "SHARED"), ask(first, "pool", "p2", "LIMIT 1"),
        ask_all(first, "two three", "w"), ask(first, "three", "behind"),
    ]  # fmt: skip
    take(cli, "pool", "place", "LIMIT 1 QUEUE 3600000")
    fail_over(first, second)
    for request in requests:
        try:
            reply = request.answer()
        except (ServerError, Closed) as told:
            assert isinstance(told, Closed) or told.code == "UNBLOCKED", told
        else:
            raise AssertionError(f"granted: {reply}")
    cli = second.connect()
    assert cli("LOCK.FENCE", "kept", kept) == 1
    eventually(lambda: owners_of(cli, "read") == ["r1"])
    eventually(lambda: cli("EXISTS pool one two") == 0)
    assert owners_of(cli, "cut") == ["alice"], "its connection is not known here"
    # The lease that stood still runs from here.
    eventually(lambda: cli("EXISTS kept") == 0)
    assert_replica_agrees(cli, first.connect(), with_ties=False)
    assert count(first.connect(), "waiters") == 0


# Keys that come and go

COMMANDS = [
    "RENAME door away", "MOVE door 1", "SWAPDB 0 1", "DEL door", "SET door x", "COPY door other", "FLUSHDB",
    "PEXPIRE door 3000000", "RENAMENX door away", "UNLINK door gate",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_replicas_and_files_agree_whatever_is_done_to_keys(start_server, command):
    # G13: replica, append-only file, RDB, each with waiters
    server = start_server(*AT_ONCE, *ALWAYS, *PLAIN)
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}")
    is_linked(replica)
    cli, reader = server.connect(), replica.connect()
    kinds = {"": ("", 1), "twice": ("REENTRANT", 1), "read": ("SHARED", 3), "pool": ("LIMIT 3", 3), "crowd": ("LIMIT 50", 20)}
    for name, (options, holders) in kinds.items():
        for n in range(holders):
            for _ in range(2):
                take(cli, "door", f"h{n}", options)
        waiter = ask(server, "door", "next", options if "LIMIT" in options else "") if name != "crowd" else None
        both = ask_all(server, "door gate", "both") if "LIMIT" not in options else None
        cli.pipeline(command)
        if waiter is not None and command not in ("COPY door other", "PEXPIRE door 3000000"):
            waiting = [each for each in (waiter, both) if each is not None]
            if command == "SET door x":
                # CONTRACT 5: a written value stays
                for each in waiting:
                    with refused("WRONGTYPE"):
                        each.answer()
            else:
                if name not in ("pool",):
                    assert isinstance(waiter.answer(), int)
                    cli("LOCK.RELEASE door next")
                if both is not None:
                    assert isinstance(both.answer(), int)
        eventually(lambda: cli("WAIT 1 1000") == 1)
        eventually(lambda: reader("DEBUG DIGEST") == cli("DEBUG DIGEST"), f"the same digest: {name}")
        assert locks_of(reader) == locks_of(cli) if cli("TYPE door") != "string" else True
        for connection in server.connections[1:]:
            connection.close()
        eventually(lambda: count(cli, "waiters") == 0)
        digest = cli("DEBUG DIGEST")
        cli("DEBUG LOADAOF")
        assert cli("DEBUG DIGEST") == digest, name
        cli("DEBUG RELOAD")
        assert cli("DEBUG DIGEST") == digest, name
        cli("FLUSHALL")
