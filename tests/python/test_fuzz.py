"""Payloads, streams and records that no correct peer would write, by the thousand, against a real server (G14).

REDISLOCK_FUZZ_RUNS says how many (scripts/fuzz server), REDISLOCK_FUZZ_SEED repeats them (1). A failure names its
number among them and shows the bytes. `scripts/fuzz server` runs more.
"""

import errno
import os
import random
import socket
import time

import pytest

from harness.false_primary import FalsePrimary
from harness.kinds import count
from harness.limits import SLOW_FACTOR, SOON_SECONDS, eventually
from harness.mutate import changed_block, changed_bytes, changed_words
from harness.payload import blocks_of, body, body_of, dump, seal
from harness.replies import lock_info, module_info
from harness.server import settle
from harness.wire import Closed, ServerError, encode

RUNS = int(os.environ.get("REDISLOCK_FUZZ_RUNS") or 0)
SEED = int(os.environ.get("REDISLOCK_FUZZ_SEED") or 1)
LEAD_MICROSECONDS = 60_000_000 + 1_000_000  # redislock.max-token-lead, and a second
DAY_MS = 86_400_000

# The origins of the locks of which the payloads are made.
KINDS = {
    "plain": ["LOCK.ACQUIRE {} alice PX 60000"],
    "long": ["LOCK.ACQUIRE {} " + "x" * 256 + " PX 3600000"],
    "counted": ["LOCK.ACQUIRE {} alice PX 60000 REENTRANT"] * 3,
    "kept": ["LOCK.ACQUIRE {} alice PX 60000 KEEPALIVE EPHEMERAL 50"],
    "shared": [f"LOCK.ACQUIRE {{}} reader{n} PX {n}0000 SHARED" for n in range(1, 6)],
    "limited": [f"LOCK.ACQUIRE {{}} worker{n} PX 9000{n} LIMIT 4" for n in range(4)],
    "tied": [
        "LOCK.ACQUIRE {} one PX 60000 REENTRANT",
        "LOCK.ACQUIRE {} one PX 60000 REENTRANT",
        "LOCK.ACQUIRE {} one PX 60000 SHARED",
        "LOCK.ACQUIRE {} two PX 60000 SHARED EPHEMERAL 0",
        "LOCK.ACQUIRE {} six PX 60000 SHARED KEEPALIVE",
    ],
}


@pytest.fixture
def recorded(start_server):
    """A server of its own, which writes an append-only file."""
    return start_server("--appendonly", "yes", "--appendfsync", "no", "--save", "3600 1000000", "--rdbcompression", "no")


def payloads(cli):
    """One payload of each kind, of a lock called door that is free again."""
    made = []
    for commands in KINDS.values():
        for command in commands:
            assert cli(command.format("door"))
        made.append(dump(cli, "door"))
        cli("DEL door")
    return made


def assert_lock(cli, key, ahead=LEAD_MICROSECONDS):
    """Checks that the value breaks no rule, whatever wrote it; returns the holders.

    A token may be so far ahead of the clock.
    """
    info = lock_info(cli, key, "FULL") if cli("TYPE", key) == "redislock" else None
    if info is None:
        return []
    holders = info["holders"]
    if not holders:
        assert info["waiters"] > 0, info
        return []
    most = {"exclusive": 1, "shared": 1_000_000}.get(info["kind"], info["limit"])
    assert len(holders) <= most, info
    tokens = [hold["token"] for hold in holders]
    assert tokens == sorted(set(tokens)), info
    assert len({hold["owner"] for hold in holders}) == len(holders), info
    for hold in holders:
        assert 1 <= len(hold["owner"].encode("utf-8", "surrogateescape")) <= 256
        assert 1 <= hold["token"] <= time.time() * 1e6 + ahead, info
        assert 0 <= hold["lease-left-ms"] <= DAY_MS and hold["count"] >= 1, info
        if hold["lease-left-ms"] > 0:
            live = cli("LOCK.FENCE", key, hold["token"])
            assert live == 1 or lock_info(cli, key) != info, info
    return holders


def after(chance, holders):
    """Actions that clients may do with the lock then."""
    owner = chance.choice([hold["owner"] for hold in holders] or ["nobody"])
    token = chance.choice([hold["token"] for hold in holders] or [1])
    lease = ("PX", chance.choice((1, 10, 1000, 3_600_000)))
    all_kinds = ((), ("SHARED",), ("LIMIT", chance.randint(1, 5)), ("REENTRANT",), ("KEEPALIVE",))
    commands = [
        ("LOCK.ACQUIRE", "door", owner, *lease, *chance.choice(all_kinds)),
        ("LOCK.ACQUIRE", "door", "zoe", *lease, *chance.choice(all_kinds)),
        ("LOCK.ACQUIRE", "door", "yan", *lease, "QUEUE", chance.choice((1, 20))),
        ("LOCK.ACQUIRE", "door", "xia", *lease, "BLOCK", 1),
        ("LOCK.MACQUIRE", 2, "door", "gate", owner, *lease),
        ("LOCK.MACQUIRE", 2, "gate", "door", "wim", *lease, "SHARED"),
        ("LOCK.RELEASE", "door", owner),
        ("LOCK.RELEASE", "door", owner, "TOKEN", token),
        ("LOCK.RENEW", "door", owner, *lease),
        ("LOCK.RENEW", "door", owner, *lease, "RAISE", min(2**53 - 1, token + 1)),
        ("LOCK.HELDBY", owner),
        ("LOCK.EXEC", "door", token, "SET", "written", "1"),
        ("DEBUG", "DIGEST-VALUE", "door"),
        ("DUMP", "door"),
        ("MEMORY", "USAGE", "door"),
        ("OBJECT", "ENCODING", "door"),
        ("RENAME", "door", "gate"),
        ("RENAME", "gate", "door"),
        ("COPY", "door", "copy", "REPLACE"),
        ("MOVE", "door", "1"),
        ("PEXPIRE", "door", chance.choice((1, 100_000))),
        ("PERSIST", "door"),
        ("SET", "door", "a string", "NX"),
        ("UNLINK", chance.choice(("door", "gate"))),
    ]
    return chance.sample(commands, 4)


def holds_told(cli):
    """The number of holds that are shown."""
    return sum(len(assert_lock(cli, key)) for key in cli("KEYS *"))


def assert_files_agree(cli):
    """G13: a snapshot and the append-only file, rewritten, bring the same locks back."""
    # Leases that are about to end, and that no connection keeps alive, are renewed or settled before.
    for key in cli("KEYS *"):
        for hold in assert_lock(cli, key):
            if hold["lease-left-ms"] < 30_000:
                cli("LOCK.RENEW", key, hold["owner"], "PX", 600_000)
        if cli("PTTL", key) >= 0:
            cli("DEL", key)
    # The lock that MOVE brought there, with whatever lease.
    cli("SELECT 1")
    cli("FLUSHDB")
    cli("SELECT 0")
    # An empty lock, as RENAME leaves it under the new name, is nothing that a file brings back.
    for key in cli("KEYS *"):
        if cli("TYPE", key) not in ("string", "none") and lock_info(cli, key) is None:
            cli("DEL", key)
    # An expired key is still part of the digest until a client looks for it; and an expired lease, for a moment.
    cli("EXISTS door gate copy")
    eventually(lambda: count(cli, "holds") == holds_told(cli), "no lease is over that has not ended")
    before = cli("DEBUG DIGEST")
    cli("DEBUG RELOAD")
    assert cli("DEBUG DIGEST") == before, "the snapshot brought something else back"
    cli("DEBUG LOADAOF")
    assert cli("DEBUG DIGEST") == before, "the append-only file brought something else back"


def assert_all_ends(server, cli):
    """Checks that no client waits, and that nothing is left when every key is gone."""
    server.close_connections()
    settle(server)
    admin = server.admin
    eventually(lambda: module_info(admin)["waiters"] == "0", "nobody waits any more")
    admin("FLUSHALL")
    eventually(lambda: module_info(admin)["locks"] == "0", "no lock is left")
    token = admin("LOCK.ACQUIRE door last PX 60000")
    assert 0 < token <= time.time() * 1e6 + LEAD_MICROSECONDS
    assert admin("LOCK.RELEASE door last") == 1
    assert server.is_alive(), server.log_tail()


@pytest.mark.skipif(not RUNS, reason="scripts/fuzz server says how many")
@pytest.mark.timeout(60 + RUNS // 10)
def test_changed_payloads_of_all_kinds_and_commands_on_what_they_bring(recorded):
    cli = recorded.connect()
    chance = random.Random(SEED)
    dumped = payloads(cli)
    module = blocks_of(body(dumped[0]))[0]
    blocks = [block for payload in dumped for block in blocks_of(body(payload))[1]]
    assert len(blocks) == len(dumped)
    peak_before = recorded.resident_peak()
    taken = 0
    for run in range(RUNS):
        new_body = body_of(module, [changed_block(chance, *chance.choices(blocks, k=2))])
        if chance.random() < 0.2:
            new_body = changed_bytes(chance, new_body)
        try:
            (reply,) = cli.pipeline(("RESTORE", "door", 0, seal(new_body, dumped[0]), "REPLACE"))
            taken += reply == "OK"
            for command in after(chance, assert_lock(cli, "door")):
                cli.pipeline(command)
            assert_lock(cli, "door")
            assert_lock(cli, "gate")
            if run % 100 == 99:
                assert_files_agree(cli)
        except Exception as error:
            raise AssertionError(f"number {run}: {error!r}\n{new_body.hex()}\n{recorded.log_tail()}") from error
    # Some get in, or they prove nothing; and none takes the memory that it claims (G14).
    assert RUNS / 20 < taken < RUNS
    assert recorded.resident_peak() < peak_before + 100_000_000 * SLOW_FACTOR
    assert_all_ends(recorded, cli)


def stream(chance):
    """Commands as a client would send them in one go, on few keys and by few owners."""
    keys, owners = ("door", "gate", "hall", "loft"), ("alice", "bob", "*")
    options = ("SHARED", "LIMIT 2", "REENTRANT", "EPHEMERAL 0", "KEEPALIVE", "BLOCK 5", "QUEUE 5", "")
    sent = b""
    for _ in range(chance.randint(1, 12)):
        key, owner = chance.choice(keys), chance.choice(owners)
        lease = chance.choice(("PX 1", "PX 20", "EX 1"))
        some = " ".join(chance.sample(options, 2))
        commands = (
            f"LOCK.ACQUIRE {key} {owner} {lease} {some}",
            f"LOCK.MACQUIRE 2 {key} lobby {owner} {lease} BLOCK 5",
            f"LOCK.RELEASE {key} {owner}",
            f"LOCK.RENEW {key} {owner} {lease}",
            f"LOCK.INFO {key} FULL",
            f"LOCK.FENCE {key} 5",
            f"LOCK.EXEC {key} 5 GET x",
            f"LOCK.HELDBY {owner}",
            f"LOCK.APPLY {key} 1 HOLD 5 600000 eve",
            "LOCK.TICK 1 9007199254740991 9007199254740991",
            chance.choice(("MULTI", "EXEC", "DISCARD", "HELLO 3", "HELLO 2", "RESET")),
        )
        command = chance.choice((commands[0], *commands[:2], *commands))
        sent += encode(command) if chance.random() < 0.8 else command.encode() + b"\r\n"
    return sent


def pieces(chance, sent):
    """The bytes in one piece, or cut anywhere: in a word, in a length, before a line's end."""
    cuts = sorted(chance.choices(range(len(sent) + 1), k=chance.choice((0, 0, 0, 1, 3))))
    return [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)])]


def send_and_leave(server, sent, waits):
    """Sends the pieces on a connection, shuts down its sending side, and reads the replies."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=SOON_SECONDS) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for number, piece in enumerate(sent):
                time.sleep(0.001 if number else 0)  # or the server would read it with the one before
                client.sendall(piece)
            if waits:
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass
        except OSError as error:
            # The server has closed it: it was no protocol.
            if not isinstance(error, ConnectionError) and error.errno != errno.ENOTCONN:
                raise


@pytest.mark.skipif(not RUNS, reason="scripts/fuzz server says how many")
@pytest.mark.timeout(60 + RUNS // 10)
def test_changed_streams_of_commands(start_server):
    # No users but the default one, and no command that ends or empties a server.
    server = start_server("--proto-max-bulk-len", "1mb", "--client-query-buffer-limit", "1mb")
    chance = random.Random(SEED)
    peak_before = int(server.info("memory")["used_memory_peak"])
    for run in range(RUNS):
        sent = stream(chance)
        # The unchanged commands keep the locks in use.
        if chance.random() < 0.5:
            sent = changed_bytes(chance, sent, changes=3)
        try:
            send_and_leave(server, pieces(chance, sent), waits=chance.random() < 0.5)
            if run % 20 == 19:
                for key in server.admin("KEYS *"):
                    assert_lock(server.admin, key)
        except (AssertionError, OSError, Closed, ServerError) as error:
            raise AssertionError(f"number {run}: {error!r}\n{sent!r}\n{server.log_tail()}") from error
    assert int(server.admin("LOCK.ACQUIRE", "fresh", "one", "PX", "9")) < time.time() * 1e6 + 1e6
    grants = int(module_info(server.admin)["grants"])
    assert grants > RUNS / 20, "hardly anything of it was understood"
    limit = 100_000_000 * SLOW_FACTOR
    assert int(server.info("memory")["used_memory_peak"]) < peak_before + limit
    assert_all_ends(server, server.admin)


def record(chance, token):
    """A command as a primary sends it to its replicas; the token is about the newest."""
    key, owner = chance.choice(("door", "gate", "hall")), chance.choice(("alice", "bob", "eve"))
    lease = chance.choice((1, 3_600_000, 86_400_000))
    mode = chance.choice(("EXCLUSIVE", "SHARED", "SHARED", "1", "3"))
    cut, kept = chance.choice(("NO", "0", "50")), chance.choice(("NO", "NO", "YES", "RUNS"))
    commands = (
        f"LOCK.APPLY {key} 1 HOLD {token} {lease} {owner}",
        f"LOCK.APPLY {key} 1 HOLD {token} {lease} {owner} {mode} {chance.randint(1, 3)} {cut} {kept}",
        f"LOCK.APPLY {key} 1 ENDED {token - chance.randint(0, 8)}",
        f"LOCK.APPLY {key} 1 EMPTY",
        f"LOCK.TICK 1 {token} {token}",
        f"LOCK.ACQUIRE {key} {owner} PX {lease}",
        f"LOCK.ACQUIRE {key} {owner} PX {lease} SHARED",
        f"LOCK.ACQUIRE {key} {owner} PX {lease} REENTRANT",
        f"LOCK.ACQUIRE {key} {owner} PX {lease} LIMIT 3",
        f"LOCK.MACQUIRE 2 {key} loft {owner} PX {lease}",
        f"LOCK.RELEASE {key} {owner}",
        f"LOCK.RENEW {key} {owner} PX {lease}",
        f"LOCK.RENEW {key} {owner} PX {lease} RAISE {token}",
        f"LOCK.EXEC {key} {token} SET x y",
        f"SET {key} string",
        f"RENAME {key} loft",
        f"COPY {key} loft REPLACE",
        f"DEL {key}",
    )
    return chance.choice((*commands[:3] * 4, *commands)).split()


def who_holds(cli):
    """The mode of each lock, and its holders for longer than a moment.

    Not with which tokens: LOCK.TICK is for files, and passed over in a stream.
    """
    parts = ("owner", "count", "keepalive", "ephemeral-ms")
    locks = {}
    for key in cli("KEYS *"):
        info = lock_info(cli, key, "FULL") if cli("TYPE", key) == "redislock" else None
        holders = [hold for hold in info["holders"] if hold["lease-left-ms"] > 1000] if info else []
        if holders:
            locks[key] = info["kind"], info["limit"], [[hold[part] for part in parts] for hold in holders]
    return locks


RECORD_WORDS = (
    "HOLD", "ENDED", "EMPTY", "EXCLUSIVE", "SHARED", "LIMIT", "REENTRANT", "EPHEMERAL", "KEEPALIVE",
    "PX", "EX", "BLOCK", "QUEUE", "TOKEN", "RAISE", "YES", "NO", "RUNS", "*", "", "-1", "x" * 257,
)  # fmt: skip


@pytest.fixture
def replica_of(request, recorded):
    """The server with a file, as the replica of a primary that sends the commands of a test."""
    primary = FalsePrimary()
    request.addfinalizer(primary.close)
    recorded.admin("REPLICAOF", "127.0.0.1", primary.port)
    primary.admit()
    # A replica that has got a snapshot begins a new file with it.
    done = {"aof_rewrite_in_progress": "0", "aof_rewrite_scheduled": "0", "aof_last_bgrewrite_status": "ok"}
    is_up = lambda: recorded.info("replication")["master_link_status"] == "up"
    eventually(lambda: is_up() and done.items() <= recorded.info("persistence").items(), "its file is new")
    return primary, recorded


@pytest.mark.skipif(not RUNS, reason="scripts/fuzz server says how many")
@pytest.mark.timeout(60 + RUNS // 10)
def test_changed_records_of_a_primary_and_of_a_file(replica_of):
    primary, replica = replica_of
    chance = random.Random(SEED)
    token = int(time.time() * 1e6)
    told, holds = [], 0
    for run in range(RUNS):
        token += chance.choice((-3, 1, 1, 1, 1000))
        words = changed_words(chance, record(chance, token), RECORD_WORDS)
        told.append(encode(*words))
        try:
            primary.tell(told[-1])
            if run % 20 == 19:
                primary.until_applied()
                for key in replica.admin("KEYS *"):
                    holds += len(assert_lock(replica.admin, key, ahead=2**53))
        except (AssertionError, OSError, Closed, ServerError) as error:
            raise AssertionError(f"up to {run}: {error!r}\n{told[-20:]}\n{replica.log_tail()}") from error
    assert holds > RUNS / 40, "hardly anything of it was understood"
    primary.until_applied()
    # G13: the replica's file has it all, and is read as the stream was.
    before = who_holds(replica.admin)
    replica.admin("DEBUG LOADAOF")
    assert who_holds(replica.admin) == before, "the append-only file brought something else back"
    replica.admin("REPLICAOF NO ONE")
    for key in replica.admin("KEYS *"):
        assert_lock(replica.admin, key, ahead=2**53)
    replica.admin("FLUSHALL")
    eventually(lambda: module_info(replica.admin)["locks"] == "0", "no lock is left")
