"""The files that a version of the module has written, of each kind: made once for each release, and loaded for ever.

    cd tests/python && python -m harness.written ../samples/0.3.0      (with REDISLOCK_MODULE and REDISLOCK_SERVER)

The server that writes them is Redis 7.0, whose files all others read. Its wall clock is set to 2020, so that no server
takes the tokens for ones ahead of its clock.
"""

import json
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from .kinds import ask, close_and_settle, release, take, take_all
from .limits import eventually
from .payload import dump
from .replies import lock_info
from .server import ROOT, Yard
from .wall_clock import WallClock, build

SAMPLES = ROOT / "tests" / "samples"
AOF = ("--appendonly", "yes", "--appendfsync", "always", "--aof-use-rdb-preamble", "no")
#: The longest lease: it restarts with each load.
LEASE_MS = 3_600_000
#: Not whether a connection keeps it alive: after a load none does.
FIELDS = ("owner", "token", "count", "ephemeral-ms")


def several(server, cli, key, options, count=3):
    """Several holders, the last of them with more to say."""
    for number in range(count - 1):
        take(cli, key, f"m{number}", options, lease_ms=LEASE_MS - number)
    take(cli, key, "last", options, "EPHEMERAL 5000")


def tied(*options, closes=False):
    """Holds over a connection of its own."""

    def made(server, cli, key):
        connection = server.connect()
        take(connection, key, "alice", *options, lease_ms=LEASE_MS)
        if closes:
            close_and_settle(server, connection)

    return made


def renamed(server, cli, key):
    """An empty lock."""
    take(cli, f"{key}-before", "alice")
    cli("RENAME", f"{key}-before", key)


def of_many(server, cli, key):
    """More holders than one block has room for."""
    cli.pipeline(*[("LOCK.ACQUIRE", key, f"m{number}", "PX", LEASE_MS, "LIMIT", 2000) for number in range(1000)])


#: The origin of a lock of each kind.
KINDS = {
    "plain": lambda server, cli, key: take(cli, key, "alice", lease_ms=LEASE_MS),
    "uuid": lambda server, cli, key: cli("LOCK.ACQUIRE", key, "*", "PX", LEASE_MS),
    "longest-owner": lambda server, cli, key: take(cli, key, "o" * 256, lease_ms=LEASE_MS),
    "counted": lambda server, cli, key: [take(cli, key, "alice", "REENTRANT") for _ in range(3)],
    "cut": tied("EPHEMERAL 60000"),
    "kept": tied("KEEPALIVE"),
    "kept-and-closed": tied("KEEPALIVE EPHEMERAL 3600000", closes=True),
    "shared": lambda server, cli, key: several(server, cli, key, "SHARED"),
    "limited": lambda server, cli, key: several(server, cli, key, "LIMIT 7"),
    "together": lambda server, cli, key: take_all(cli, f"{key} {key}:other", "all"),
    "empty": renamed,
    "several-blocks": of_many,
}


def shown(cli, key):
    """The state of a lock that all readers must see: kind, limit, holders, and whether their leases are long; and its
    digest."""
    info = lock_info(cli, key, "FULL", "COUNT", 2000)
    holders = [] if info is None else info["holders"]
    holds = [[*(hold[name] for name in FIELDS), hold["lease-left-ms"] > LEASE_MS // 2] for hold in holders]
    kind = [info["kind"], info["limit"]] if holds else None
    return {"kind": kind, "holders": holds, "digest": cli("DEBUG", "DIGEST-VALUE", key)[0]}


def told(server, cli):
    """The further records of the stream: a hand-over, the end of a lease, renewals, releases; then the holds that
    remain."""
    take(cli, "handed-on", "alice", lease_ms=LEASE_MS)
    waiting = ask(server, "handed-on", "bob", lease_ms=LEASE_MS)
    release(cli, "handed-on", "alice")
    waiting.answer()
    take(cli, "brief", "alice", lease_ms=20)
    eventually(lambda: cli("EXISTS brief") == 0, "the lease has ended")
    take(cli, "renewed", "alice")
    assert cli(f"LOCK.RENEW renewed alice PX {LEASE_MS}") == 1
    take(cli, "raised", "alice")
    assert cli("LOCK.RENEW", "raised", "alice", "PX", LEASE_MS, "RAISE", cli("LOCK.FENCE raised") + 1000) == 1


def write(into):
    """Writes all samples into this directory."""
    into.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        clock = WallClock(build(Path(work)), Path(work) / "clock")
        clock.set_ahead((datetime(2020, 1, 1, tzinfo=UTC) - datetime.now(UTC)).total_seconds())
        yard = Yard()
        try:
            expected = {"payloads": payloads(yard, clock, into), "files": files(yard, clock, into)}
        finally:
            yard.close()
    (into / "expected.json").write_text(json.dumps(expected, sort_keys=True) + "\n")


def payloads(yard, clock, into):
    """One DUMP of each kind, and a snapshot of all."""
    server = yard(environment=clock.environment)
    cli = server.connect()
    expected = {}
    for key, make in KINDS.items():
        make(server, cli, key)
        (into / f"{key}.dump").write_bytes(dump(cli, key))
        expected[key] = shown(cli, key)
    cli("SAVE")
    shutil.copy(server.directory / "dump.rdb", into / "snapshot")
    return expected


def files(yard, clock, into):
    """An append-only file as it grows, and a rewritten one, which continues to grow."""
    server = yard(*AOF, environment=clock.environment)
    cli = server.connect()
    told(server, cli)
    for key, make in KINDS.items():
        if make is not of_many:
            make(server, cli, key)
    expected = {key: shown(cli, key) for key in sorted(cli("KEYS *"))}
    shutil.copytree(server.directory / "appendonlydir", into / "grown")
    cli("BGREWRITEAOF")
    eventually(lambda: server.info("persistence")["aof_rewrite_in_progress"] == "0", "it is rewritten")
    take(cli, "behind", "alice", lease_ms=LEASE_MS)
    shutil.copytree(server.directory / "appendonlydir", into / "rewritten")
    return {"grown": expected, "rewritten": {**expected, "behind": shown(cli, "behind")}}


if __name__ == "__main__":
    write(Path(sys.argv[1]))
