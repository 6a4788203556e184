"""Instructions of the server for each pair of acquire and release: repeatable where time is not.

The server runs under callgrind, which counts the instructions of its process. Each subject is run twice a
round, for a few and for many pairs. The difference, divided by the difference in pairs, is what one more
pair costs, without what is done once. Pairs are sent in batches of 16 commands. The counter is read between
runs, so one process serves all subjects, in turns.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ..context import Bench
from ..measure import OURS, Figure, in_turns
from ..servers import SETTINGS, Connection, Release, Server, cleared, started
from ..subjects import Pair, floor, pairs

METRIC = "instructions per pair"
BATCH_COMMANDS = 16
BATCH_PAIRS = BATCH_COMMANDS // 2

#: Work that the server, and the module in its cron, do at least once a second depends on the machine's speed more than
#: on the pair: it is not counted.
HOUSEKEEPING = ("serverCron", "clientsTimeProc")
OUR_HOUSEKEEPING = "redislock::engine::cron::look_at_queues"

CALLGRIND = (
    *("valgrind", "--tool=callgrind", "--callgrind-out-file=callgrind.out.%p", "--quiet"),
    *(f"--toggle-collect={name}" for name in (*HOUSEKEEPING, OUR_HOUSEKEEPING + "*")),
    "--collect-atstart=yes",  # behind what would turn it off
)

#: The servers that run at once: counts do not depend on time, and half of it is waiting for callgrind.
AT_ONCE = 4

#: As seldom as it goes.
QUIET = ("--hz", "1", "--dynamic-hz", "no")


@dataclass(frozen=True)
class Lengths:
    """The numbers of pairs in the two runs of a round, and of keys."""

    few: int
    many: int
    keys: int

    @property
    def difference(self) -> int:
        return self.many - self.few


LENGTHS = Lengths(40, 280, 40)


def require_callgrind() -> None:
    for program in ("valgrind", "callgrind_control"):
        if shutil.which(program) is None:
            raise RuntimeError(f"counting instructions needs {program}: apt-get install valgrind")


def dumped(server: Server) -> Path:
    """Returns callgrind's counts since the last look; resets its counters."""
    before = set(server.folder.glob("callgrind.out.*"))
    command = ["callgrind_control", "--dump", str(server.process.pid)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (dump,) = set(server.folder.glob("callgrind.out.*")) - before
    return dump


def counted(server: Server) -> int:
    """Instructions since the last look; resets the counter."""
    dump = dumped(server)
    total = total_of(dump)
    dump.unlink()
    return total


def total_of(dump: Path) -> int:
    found = re.search(r"^(?:totals|summary): (\d+)", dump.read_text(), re.MULTILINE)
    if not found:
        raise RuntimeError(f"{dump} has no total")
    return int(found.group(1))


def run_pairs(connection: Connection, pair: Pair, count: int, keys: int) -> None:
    for done in range(0, count, BATCH_PAIRS):
        pair.run(connection, done % keys, BATCH_PAIRS)


def per_pair(server: Server, connection: Connection, pair: Pair, lengths: Lengths = LENGTHS) -> float:
    """Instructions that one more pair costs."""
    run_pairs(connection, pair, lengths.keys, lengths.keys)  # tables grow to their size
    counted(server)
    totals = []
    for count in (lengths.few, lengths.many):
        run_pairs(connection, pair, count, lengths.keys)
        totals.append(counted(server))
    return (totals[1] - totals[0]) / lengths.difference


def measure_pairs(
    server: Server, connection: Connection, subjects: list[Pair], rounds: int, lengths: Lengths = LENGTHS
) -> dict[str, tuple[float, ...]]:
    """The counts of these pairs on a server that runs under callgrind, a value a round."""

    def once(pair: Pair) -> Mapping[str, float]:
        count = per_pair(server, connection, pair, lengths)
        cleared(connection)  # counters of tokens stay behind
        return {METRIC: count}

    seen = in_turns(rounds, {pair.name: lambda pair=pair: once(pair) for pair in subjects})
    return {name: values[METRIC] for name, values in seen.items()}


def measure(
    release: Release, setting: str, only: tuple[str, ...] = (), rounds: int = 1, lengths: Lengths = LENGTHS
) -> list[Figure]:
    """One release in one setting; `only` names the subjects, all if empty."""
    require_callgrind()
    with started(release, setting, *QUIET, under=CALLGRIND) as server, server.connect() as connection:
        # A pair without writes costs the same in all settings.
        floors = [floor()] if setting == "no persistence" else []
        subjects = [pair for pair in [*pairs(release, connection), *floors] if not only or pair.name in only]
        seen = measure_pairs(server, connection, subjects, rounds, lengths)
    setting = f"pipelined by {BATCH_COMMANDS}, {setting}"
    return [Figure("instructions", release.label, setting, name, METRIC, values) for name, values in seen.items()]


def run(bench: Bench) -> list[Figure]:
    require_callgrind()
    wanted = [(release, setting) for release in bench.releases for setting in SETTINGS]

    def one(release: Release, setting: str) -> list[Figure]:
        figures = measure(release, setting, rounds=bench.rounds)
        bench.say(f"instructions: {release.label}, {setting}")
        return figures

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda pair: one(*pair), wanted))
    return [figure for figures in found for figure in figures]


def show(figures: list[Figure]) -> None:
    ours = next(figure for figure in figures if figure.subject == OURS)
    for figure in figures:
        ratio = ours.over(figure).median
        print(f"{figure.server:14} {figure.setting:32} {figure.subject:30} {figure.median:9.0f}  ours / it {ratio:.3f}")
