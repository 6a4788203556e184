"""LOCK.EXEC on replicas, in files, in clusters, with several threads (CONTRACT 2: its own effects)."""

import random

import pytest

from harness.cluster import Cluster
from harness.limits import eventually
from harness.replicas import AT_ONCE, is_linked
from harness.server import IS_VALKEY, at_least
from harness.wire import ServerError, refused

AOF = ("--appendonly", "yes", "--appendfsync", "always", "--aof-use-rdb-preamble", "no")


def run(cli, token, *words, door="door"):
    """Runs the command under the token. One text alone is split at its blanks."""
    if len(words) == 1:
        words = words[0].split()
    return cli("LOCK.EXEC", door, token, *words)


@pytest.fixture
def pair(start_server):
    """A primary and its replica, linked."""
    primary = start_server(*AT_ONCE)
    replica = start_server("--replicaof", f"127.0.0.1 {primary.port}")
    is_linked(replica)
    return primary, replica


def caught_up(primary, replica):
    """Waits until the replica has all that was written."""
    for server in (primary, replica):
        server.admin("PING")

    def is_level():
        return int(replica.info("replication")["slave_repl_offset"]) >= goal

    goal = int(primary.info("replication")["master_repl_offset"])
    eventually(is_level, "the replica catches up")


class Stream:
    """The commands that reach a replica, without those that keep the link alive."""

    def __init__(self, replica):
        self.connection = replica.connect()
        assert self.connection("MONITOR") == "OK"

    def until(self, last):
        """All commands up to this one, in lower case but for its arguments."""
        lines = []
        while not lines or lines[-1] != last:
            line = self.connection.read().partition("] ")[2].replace('"', "")
            name = line.split()[0].lower()
            if name not in ("ping", "select", "replconf", "info", "client", "monitor"):
                lines.append(" ".join([name, *line.split()[1:]]))
        return lines


# The stream


def test_only_what_the_command_did_is_replicated(pair):
    primary, replica = pair
    cli = primary.connect()
    stream = Stream(replica)
    token = cli("LOCK.ACQUIRE door alice PX 3600000")
    run(cli, token, "SET x 1")
    run(cli, token, "GET x")
    run(cli, token, "DEL nowhere")
    with refused("FENCED"):
        run(cli, token + 1, "SET x 2")
    with refused("ERR"):
        run(cli, token, "HSET x a b c")
    run(cli, token, "INCRBYFLOAT f 0.5")
    run(cli, token, "RPUSH l a")
    cli.pipeline("MULTI", ("LOCK.EXEC", "door", token, "INCR", "x"), "INCR y", "EXEC")
    script = "redis.call('LOCK.EXEC', KEYS[1], ARGV[1], 'INCR', 'x') redis.call('INCR', 'y')"
    cli("EVAL", script, 1, "door", token)
    cli("SET last 1")
    lines = stream.until("set last 1")
    assert not [line for line in lines if "exec " in line.lower()]
    assert lines[1:] == [
        "set x 1",
        "set f 0.5 KEEPTTL",
        "rpush l a",
        "multi",
        "incr x",
        "incr y",
        "exec",
        "multi",
        "incr x",
        "incr y",
        "exec",
        "set last 1",
    ]


def test_a_replica_agrees_whatever_the_command_does_to_the_lock(pair):
    # G13
    primary, replica = pair
    cli = primary.connect()
    chance = random.Random(20261121)
    lines = [
        "SET x {n}",
        "SET door {n}",
        "DEL door",
        "UNLINK door x",
        "RENAME door gate",
        "RENAME gate door",
        "MOVE door 1",
        "FLUSHDB",
        "SWAPDB 0 1",
        "PEXPIRE door 1",
        "PEXPIRE door {n}0000",
        "PERSIST door",
        "COPY x door REPLACE",
        "SUNIONSTORE door nothing",
        "INCR x",
        "GET door",
        "LPUSH door a",
        "NOPE",
    ]
    ran = 0
    for n in range(1, 400):
        door, lease = chance.choice(["door", "gate"]), chance.choice([1, 3600000])
        token, live = cli.pipeline(
            ("LOCK.ACQUIRE", door, f"owner-{n}", "PX", lease), ("LOCK.FENCE", door)
        )
        token = token if isinstance(token, int) else live
        if isinstance(token, int):
            line = chance.choice(lines).format(n=n)
            (reply,) = cli.pipeline(("LOCK.EXEC", door, token, *line.split()))
            ran += getattr(reply, "code", "") != "FENCED"
        else:
            cli("DEL door gate")
    assert ran > 100

    def agree():
        caught_up(primary, replica)
        return primary.admin("DEBUG DIGEST") == replica.admin("DEBUG DIGEST")

    eventually(agree, "both have the same data")
    assert "cmdstat_lock.exec" not in replica.info("commandstats")


def test_a_replica_refuses_exec(pair):
    primary, replica = pair
    token = primary.connect()("LOCK.ACQUIRE door alice PX 3600000")
    caught_up(primary, replica)
    there = replica.connect()
    assert there("LOCK.FENCE", "door", token) == 1
    for line in ("SET x 1", "GET x"):
        with refused("READONLY"):
            run(there, token, line)
    # Also one that may be written to: it decides nothing about locks.
    replica.admin("CONFIG SET replica-read-only no")
    with refused("READONLY", "primary"):
        run(there, token, "SET x 1")
    assert there("EXISTS x") == 0


def test_a_promoted_replica_runs_exec(pair):
    primary, replica = pair
    token = primary.connect()("LOCK.ACQUIRE door alice PX 3600000")
    caught_up(primary, replica)
    replica.admin("REPLICAOF NO ONE")
    there = replica.connect()
    assert run(there, token, "SET x 1") == "OK"
    with refused("FENCED"):
        run(there, token - 1, "SET x 2")


def test_a_waiter_is_granted_after_what_the_command_did(pair):
    # The hand-over must not come before its cause, or a replica would delete the new hold.
    primary, replica = pair
    cli = primary.connect()
    token = cli("LOCK.ACQUIRE door alice PX 3600000")
    bob = primary.ask("LOCK.ACQUIRE door bob PX 3600000 BLOCK 0")
    caught_up(primary, replica)
    stream = Stream(replica)
    run(cli, token, "DEL door")
    second = bob.answer()
    cli("SET last 1")
    lines = stream.until("set last 1")
    assert lines[0] == "del door"
    assert lines[1].startswith(f"lock.apply door 1 HOLD {second} ")
    caught_up(primary, replica)
    assert replica.admin("LOCK.FENCE door") == second


# The file


def records(server):
    """The commands in the append-only file, each as a line."""
    (path,) = (server.directory / "appendonlydir").glob("*.incr.aof")
    lines = path.read_bytes().decode("utf-8", "surrogateescape").split("\r\n")
    found, at = [], 0
    while at < len(lines) and lines[at]:
        if not lines[at].startswith("*"):  # a remark of the server's
            at += 1
            continue
        size = int(lines[at][1:])
        found.append(" ".join(lines[at + 2 : at + 2 + 2 * size : 2]))
        at += 1 + 2 * size
    return found


def test_only_what_the_command_did_is_in_the_file(start_server):
    server = start_server(*AOF)
    cli = server.connect()
    token = cli("LOCK.ACQUIRE door alice PX 3600000")
    run(cli, token, "SET x 1")
    run(cli, token, "GET x")
    run(cli, token, "SADD s a b")
    with refused("FENCED"):
        run(cli, token + 1, "SET x 2")
    assert records(server)[-2:] == ["SET x 1", "SADD s a b"]
    assert "EXEC" not in "".join(records(server)).upper()
    run(cli, token, "DEL door")
    digest = cli("DEBUG DIGEST")
    server.kill()
    server.start()
    cli = server.connect()
    assert cli("DEBUG DIGEST") == digest
    with refused("FENCED"):
        run(cli, token, "SET x 3")


def test_a_token_lives_on_after_a_restart(start_server):
    server = start_server(*AOF)
    cli = server.connect()
    token = cli("LOCK.ACQUIRE door alice PX 3600000")
    run(cli, token, "SET x 1")
    server.kill()
    server.start()
    assert run(server.connect(), token, "INCR x") == 2


def test_exec_in_a_file_is_no_record_and_does_nothing(start_server):
    server = start_server(*AOF)
    token = server.connect()("LOCK.ACQUIRE door alice PX 3600000")
    server.stop()
    words = ["LOCK.EXEC", "door", str(token), "SET", "x", "1"]
    (path,) = (server.directory / "appendonlydir").glob("*.incr.aof")
    with path.open("a", newline="") as file:
        file.write(f"*{len(words)}\r\n" + "".join(f"${len(w)}\r\n{w}\r\n" for w in words))
    server.start()
    cli = server.connect()
    assert cli("EXISTS x") == 0
    assert run(cli, token, "SET x 2") == "OK"


# Clusters


@pytest.fixture
def cluster(start_server):
    """Two nodes with half of the slots each. "b" and "d" are on the first, "a" and "c" on the second."""
    return Cluster(start_server).nodes


def test_the_keys_are_in_one_slot(cluster):
    cli = cluster[0].connect()
    token = cli("LOCK.ACQUIRE {b}door alice PX 3600000")
    assert run(cli, token, "SET {b}x 1", door="{b}door") == "OK"
    assert run(cli, token, "MSET {b}x 1 {b}y 2", door="{b}door") == "OK"
    assert run(cli, token, "PING", door="{b}door") == "PONG"
    for line in ("SET a 1", "SET d 1", "MSET {b}x 1 d 2", "SORT {b}x STORE a", "DEL {b}x d"):
        with refused("CROSSSLOT"):
            run(cli, token, line, door="{b}door")
    assert cli("DBSIZE") == 3


def test_in_a_script_the_keys_are_in_its_slot_too(cluster):
    cli = cluster[0].connect()
    token = cli("LOCK.ACQUIRE {b}door alice PX 3600000")
    script = "return redis.call('LOCK.EXEC', KEYS[1], ARGV[1], 'SET', ARGV[2], '1')"
    assert cli("EVAL", script, 1, "{b}door", token, "{b}x") == "OK"
    for other in ("d", "a"):
        with pytest.raises(ServerError):
            cli("EVAL", script, 1, "{b}door", token, other)
    assert sorted(cli("KEYS *")) == ["{b}door", "{b}x"]


def test_another_nodes_lock_is_redirected(cluster):
    here, there = (node.connect() for node in cluster)
    slot = here("CLUSTER KEYSLOT {a}door")
    token = there("LOCK.ACQUIRE {a}door alice PX 3600000")
    with refused("MOVED", f"{slot} 127.0.0.1:{cluster[1].port}"):
        run(here, token, "SET {a}x 1", door="{a}door")
    with refused("MOVED"):
        run(here, token, "PING", door="{a}door")
    assert run(there, token, "SET {a}x 1", door="{a}door") == "OK"


def test_exec_is_redirected_while_the_slot_moves(cluster):
    source, target = (node.connect() for node in cluster)
    ids = [cli("CLUSTER MYID") for cli in (source, target)]
    slot = source("CLUSTER KEYSLOT {b}door")
    token = source("LOCK.ACQUIRE {b}door alice PX 3600000")
    source("SET {b}x 1")
    target("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
    source("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
    # All keys are here, then one is missing, then all of them.
    assert run(source, token, "INCR {b}x", door="{b}door") == 2
    with refused("TRYAGAIN"):
        run(source, token, "SET {b}new 1", door="{b}door")
    migrate = ("MIGRATE", "127.0.0.1", cluster[1].port)
    assert source(*migrate, "{b}x", 0, 10000) == "OK"
    with refused("TRYAGAIN"):
        run(source, token, "INCR {b}x", door="{b}door")
    assert source(*migrate, "{b}door", 0, 10000) == "OK"
    with refused("ASK", str(slot)):
        run(source, token, "INCR {b}x", door="{b}door")
    asking, answer = target.pipeline("ASKING", ("LOCK.EXEC", "{b}door", token, "INCR", "{b}x"))
    assert (asking, answer) == ("OK", 3)
    for node in (target, source):
        node("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
    with refused("MOVED"):
        run(source, token, "INCR {b}x", door="{b}door")
    assert run(target, token, "INCR {b}x", door="{b}door") == 4


# Threads


@pytest.mark.parametrize("is_cluster", [False, True])
def test_servers_with_threads_for_the_connections_live_on(start_server, is_cluster):
    # G14: newer servers ask on such a thread for the keys of a command. That ended in a crash, if the command answered.
    options = ["--io-threads", "4", "--appendonly", "yes", "--appendfsync", "no"]
    options += ["--cluster-enabled", "yes"] * is_cluster
    if not at_least(redis=(8, 6), valkey=(8, 1)):
        options += ["--io-threads-do-reads", "yes"]
    if IS_VALKEY:
        options += ["--events-per-io-thread", "0"]
    server = start_server(*options)
    if is_cluster:
        server.admin("CLUSTER ADDSLOTSRANGE 0 16383")
        eventually(lambda: "cluster_state:ok" in server.admin("CLUSTER INFO"), "the cluster is up")
    connections = [server.connect() for _ in range(16)]
    token = connections[0]("LOCK.ACQUIRE {b}door alice PX 3600000")
    for turn in range(20):
        command = ("LOCK.EXEC", "{b}door", token, "INCR", "{b}x")
        nested = ("LOCK.EXEC", "{b}door", token, "LOCK.EXEC", "{b}door", token, "INCR", "a")
        across = ("LOCK.EXEC", "{b}door", token, "INCR", "a")
        several = ("LOCK.MACQUIRE", 2, "{b}m", "{b}n", "alice", "PX", 1000)
        for connection in connections:
            for words in (command, nested, across, several) * 10:
                connection.send(*words)
        for connection in connections:
            replies = [connection.read_any() for _ in range(40)]
            assert all(isinstance(reply, int) for reply in replies[::4] + replies[3::4]), replies
            assert {reply.code for reply in replies[1::4]} == {"ERR"}
            if is_cluster:
                assert {reply.code for reply in replies[2::4]} == {"CROSSSLOT"}
    assert server.admin("GET {b}x") == "3200"
