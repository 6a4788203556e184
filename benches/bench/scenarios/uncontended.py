"""Acquire and release of a lock without contention: the number of pairs a second, and their cost for the server.

Throughput and latency are those of a machine that client and server share, and of its kernel. Most of a pair
that is sent one command at a time is the sending. The processor time of the server is steadier.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..context import Bench
from ..load import Load, Mode
from ..measure import Figure, in_turns
from ..servers import SETTINGS, Connection, Release, Server, cleared, started
from ..subjects import Pair, floor, pairs

MODES = tuple(Mode(connections, depth) for depth in (16, 1) for connections in (1, 50))
SECONDS = 0.12
WARM_UP_SECONDS = 0.015

#: A rewrite of the append-only file, on one of two cores, would hit the server that is measured.
OPTIONS = ("--auto-aof-rewrite-percentage", "0")

CATCH_UP_MS = 20_000


def settle(connection: Connection, setting: str) -> None:
    """Waits until a replica has all that it was sent, and an empty keyspace is left."""
    cleared(connection)
    if setting == "one replica":
        connection.call("INCR", "settled")  # WAIT is for what this connection wrote
        connection.call("DEL", "settled")
        if connection.call("WAIT", 1, CATCH_UP_MS) != b":1":
            raise RuntimeError("the replica does not catch up")


def once(load: Load, server: Server, setting: str, pair: Pair, mode: Mode) -> Mapping[str, float]:
    seen = load.measure(server, pair, mode)
    with server.connect() as connection:
        settle(connection, setting)
    return seen


def measure(load: Load, release: Release, setting: str, rounds: int) -> list[Figure]:
    """One release in one setting: all its pairs, in all modes."""
    figures = []
    with started(release, setting, *OPTIONS) as server:
        with server.connect() as connection:
            # A pair without writes costs the same in all settings.
            floors = [floor()] if setting == "no persistence" else []
            subjects = [*pairs(release, connection), *floors]
        for mode in MODES:
            turns = {pair.name: lambda pair=pair: once(load, server, setting, pair, mode) for pair in subjects}
            for name, metrics in in_turns(rounds, turns).items():
                where = f"{mode.label}, {setting}"
                found = metrics.items()
                figures += [Figure("uncontended", release.label, where, name, metric, values) for metric, values in found]
    return figures


def run(bench: Bench) -> list[Figure]:
    load = Load(bench.load, SECONDS / 4 if bench.is_quick else SECONDS, WARM_UP_SECONDS)
    figures = []
    for release in bench.releases:
        for setting in SETTINGS:
            figures += measure(load, release, setting, bench.rounds)
            bench.say(f"uncontended: {release.label}, {setting}")
    return figures
