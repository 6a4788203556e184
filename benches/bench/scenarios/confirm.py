"""Grants that replicas confirm: the cost of `redislock.confirm` for an acquire and a release without contention.

A primary and two replicas on the same machine, so the way to them is as short as it can be: between machines a grant
takes their round trip longer. Releases are not confirmed, so the pair costs as much more as the grant does. With many
connections the grants of one turn of the server's event loop share a question to the replicas and an answer. All three
settings take turns on one group, whose quarantine has been over for long.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..context import Bench
from ..load import Load, Mode
from ..measure import OURS, Figure, in_turns
from ..servers import START_SECONDS_MAX, Release, Server, replicated
from ..subjects import Pair

MODES = (Mode(1, 1), Mode(50, 1))
SECONDS = 0.3
WARM_UP_SECONDS = 0.05
REPLICAS = 2

#: No lease is longer, and a replica that was connected for less does not count for a majority.
QUARANTINE_MS = 1_000
PAIR = Pair(OURS, f"LOCK.ACQUIRE {{key}} {{owner}} PX {QUARANTINE_MS}", ":", "LOCK.RELEASE {key} {owner}", ":1")

RULES = {OURS: "local", "confirmed by a majority": "majority", "confirmed by all": "all"}


def set_rule(server: Server, rule: str) -> None:
    with server.connect() as connection:
        pairs = {"confirm": rule, "quarantine": QUARANTINE_MS, "group-size": REPLICAS + 1}
        words = [word for name, value in pairs.items() for word in (f"redislock.{name}", value)]
        if connection.call("CONFIG", "SET", *words) != b"+OK":
            raise RuntimeError(f"redislock.confirm {rule} is refused")


def await_season(server: Server) -> None:
    """Until every replica counts for a majority."""
    deadline = time.monotonic() + START_SECONDS_MAX
    with server.connect() as connection:
        while f"replicas_seasoned:{REPLICAS}".encode() not in (connection.call("INFO", "redislock") or b""):
            if time.monotonic() > deadline:
                raise RuntimeError("the replicas are not there for long enough")
            time.sleep(0.05)


def once(load: Load, server: Server, rule: str, mode: Mode) -> Mapping[str, float]:
    set_rule(server, rule)
    if rule != "local":
        # When it is turned on again, it is unknown which replicas were connected all the time.
        await_season(server)
    return load.measure(server, PAIR, mode)


def measure(load: Load, release: Release, rounds: int) -> list[Figure]:
    figures = []
    with replicated(release, replicas=REPLICAS) as server:
        for mode in MODES:
            turns = {name: lambda rule=rule: once(load, server, rule, mode) for name, rule in RULES.items()}
            for name, metrics in in_turns(rounds, turns).items():
                where = f"{mode.label}, two replicas"
                figures += [Figure("confirm", release.label, where, name, *found) for found in metrics.items()]
    return figures


def run(bench: Bench) -> list[Figure]:
    load = Load(bench.load, SECONDS / 4 if bench.is_quick else SECONDS, WARM_UP_SECONDS)
    figures = []
    for release in bench.releases:
        figures += measure(load, release, bench.rounds)
        bench.say(f"confirm: {release.label}")
    return figures
