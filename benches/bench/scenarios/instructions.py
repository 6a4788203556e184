"""Instructions of the server for each pair of acquire and release: repeatable where time is not.

The server runs under callgrind, which counts the instructions of its process. Each subject is run twice,
for `PAIRS_FEW` and for `PAIRS_MANY` pairs; the difference, divided by the difference in pairs, is what
one more pair costs, without start, connection and reading of arguments. Pairs are sent in batches of 16
commands. callgrind_control reads the counter between runs, so one process serves all subjects.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from ..measure import OURS, Figure
from ..servers import Connection, Release, Server, replicated
from ..subjects import Pair, pairs

BATCH_COMMANDS = 16
BATCH_PAIRS = BATCH_COMMANDS // 2
PAIRS_FEW = 400
PAIRS_MANY = 2_000
KEYS = 200

CALLGRIND = ("valgrind", "--tool=callgrind", "--callgrind-out-file=callgrind.out.%p", "--quiet")

SETTINGS = {
    "no persistence": ((), False),
    "AOF everysec": (("--appendonly", "yes", "--appendfsync", "everysec"), False),
    "one replica": ((), True),
}


def counted(server: Server) -> int:
    """Instructions since the last look; resets the counter."""
    before = set(server.folder.glob("callgrind.out.*"))
    command = ["callgrind_control", "--dump", str(server.process.pid)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (dump,) = set(server.folder.glob("callgrind.out.*")) - before
    return total_of(dump)


def total_of(dump: Path) -> int:
    found = re.search(r"^(?:totals|summary): (\d+)", dump.read_text(), re.MULTILINE)
    if not found:
        raise RuntimeError(f"{dump} has no total")
    return int(found.group(1))


def run_pairs(connection: Connection, pair: Pair, count: int) -> None:
    for done in range(0, count, BATCH_PAIRS):
        connection.pipeline(pair.batch(done % KEYS, BATCH_PAIRS), BATCH_COMMANDS)


def per_pair(server: Server, connection: Connection, pair: Pair) -> float:
    """Instructions that one more pair costs."""
    run_pairs(connection, pair, PAIRS_FEW)  # tables grow to their size
    totals = []
    for count in (PAIRS_FEW, PAIRS_MANY):
        counted(server)
        run_pairs(connection, pair, count)
        totals.append(counted(server))
    return (totals[1] - totals[0]) / (PAIRS_MANY - PAIRS_FEW)


def measure(release: Release, setting: str, only: tuple[str, ...] = (), rounds: int = 1) -> list[Figure]:
    """One release in one setting; `only` names the subjects, all if empty."""
    options, has_replica = SETTINGS[setting]
    # Housekeeping once a second: it is not the pair's.
    options = (*options, "--hz", "1", "--dynamic-hz", "no")
    start = replicated if has_replica else Server
    seen: dict[str, list[float]] = {}
    with start(release, *options, under=CALLGRIND) as server, server.connect() as connection:
        for _ in range(rounds):
            for pair in pairs(release, connection):
                if not only or pair.name in only:
                    seen.setdefault(pair.name, []).append(per_pair(server, connection, pair))
    metric = "instructions per pair"
    setting = f"pipelined by {BATCH_COMMANDS}, {setting}"
    return [Figure("instructions", release.label, setting, name, metric, tuple(v)) for name, v in seen.items()]


def show(figures: list[Figure]) -> None:
    ours = next(figure for figure in figures if figure.subject == OURS)
    for figure in figures:
        ratio = ours.over(figure).median
        print(f"{figure.server:14} {figure.setting:32} {figure.subject:30} {figure.median:9.0f}  ours / it {ratio:.3f}")
