"""Topologies side by side, round after round."""

import argparse
import multiprocessing
import random
import tempfile
import time
import traceback
from pathlib import Path

from harness import wall_clock
from harness.server import NAME, VERSION, Yard

from . import report
from .clustered import Clustered
from .independents import Independents
from .judge import Outcome, one_round
from .replicated import Replicated
from .single import Single

TOPOLOGIES = {kind.name: kind for kind in (Single, Replicated, Clustered, Independents)}
ROUND_SECONDS = 30.0


def main():
    """The command; its exit status."""
    words = arguments()
    each = f"{words.seconds:.0f} s of faults for each topology"
    print(f"chaos on {NAME} ({VERSION}), seed {words.seed}, {each}", flush=True)
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    names = words.topologies or TOPOLOGIES
    tasks = [(name, words) for name in names]
    with multiprocessing.get_context("spawn").Pool(1 if words.one_by_one else len(tasks)) as pool:
        lines = [told(line) for line in pool.imap(life, tasks, chunksize=1)]
    run = {"began": began, "server": NAME, "version": VERSION, "seed": words.seed, "command": command(words)}
    run["topologies"] = lines
    words.out.mkdir(parents=True, exist_ok=True)
    (words.out / f"{NAME}-{words.seed}.json").write_text(report.as_json(run))
    (words.out / f"{NAME}-{words.seed}.md").write_text(report.as_markdown(run))
    return 0 if report.is_good(lines) else 1


def arguments():
    """The arguments of the caller."""
    parser = argparse.ArgumentParser(prog="scripts/chaos", description="Faults at random against real servers.")
    parser.add_argument("topologies", nargs="*", metavar="topology", help=f"of {', '.join(TOPOLOGIES)} (all)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of faults for each topology (60)")
    parser.add_argument("--round-seconds", type=float, default=ROUND_SECONDS, help="then with new servers (30)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="repeats the faults of a run")
    parser.add_argument("--mode", help="this one instead of all, also one that promises too little")
    parser.add_argument("--out", type=Path, default=Path("target/chaos"), help="for what is known (target/chaos)")
    parser.add_argument("--one-by-one", action="store_true", help="not side by side")
    parser.add_argument("--notes", action="store_true", help="tell of every fault as it is made")
    words = parser.parse_args()
    if unknown := set(words.topologies) - set(TOPOLOGIES):
        parser.error(f"there is no topology {unknown}")
    return words


def command(words):
    """The command that repeats this run."""
    line = ["scripts/chaos", *words.topologies, f"--server {NAME} --seconds {words.seconds:.0f} --seed {words.seed}"]
    return " ".join(line + ([f"--mode '{words.mode}'"] if words.mode else []))


def told(line):
    """Reports a topology as soon as it is done."""
    print(report.as_text(line), flush=True)
    return line


def life(task):
    """All rounds of one topology."""
    name, words = task
    rounds = max(1, round(words.seconds / words.round_seconds))
    with tempfile.TemporaryDirectory(prefix="redislock-chaos-") as directory:
        library = wall_clock.build(Path(directory))
        numbers, seconds = range(rounds), words.seconds / rounds
        return report.summed([a_round(TOPOLOGIES[name], number, seconds, words, library) for number in numbers])


def a_round(kind, number, seconds, words, library):
    """One round, with servers of its own; every fault is in its result."""
    seed, mode = f"{words.seed}.{number}", words.mode or kind.modes[number % len(kind.modes)]
    notes, yard, topology = Notes(f"{kind.name} {seed}", words.notes), Yard(), None
    outcome = Outcome(kind.name, mode, seed, {}, {}, 0, {}, [], 0.0)
    try:
        topology = kind(yard, library, mode, seed)
        outcome = one_round(topology, seconds, notes)
    except Exception as failure:
        outcome.wrong.append(f"{type(failure).__name__}: {failure}")
        notes(traceback.format_exc())
    finally:
        if outcome.wrong:
            keep(words.out / f"{NAME}-{kind.name}-{seed}", outcome, notes, topology, yard)
        end(topology, yard, outcome)
    return outcome


def end(topology, yard, outcome):
    """Ends all servers; one that broke is something wrong, too."""
    if topology is not None:
        topology.close()
    try:
        yard.close()
    except AssertionError as failure:
        outcome.wrong.append(f"{failure}")


class Notes:
    """The actions and their times."""

    def __init__(self, name, is_told):
        self.name, self.is_told, self.lines = name, is_told, []

    def __call__(self, text):
        self.lines.append(f"{time.monotonic():.3f} {text}")
        if self.is_told:
            print(f"{self.name}: {self.lines[-1]}", flush=True)


def keep(directory, outcome, notes, topology, yard):
    """Leaves all that is known of a round in which something was wrong."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "wrong.txt").write_text("\n".join(outcome.wrong))
    (directory / "notes.txt").write_text("\n".join(notes.lines))
    for number, server in enumerate(yard.started):
        (directory / f"server-{number}-{server.port}.log").write_text(server.log_text())
    if topology is not None:
        requests = [request for load in topology.loads for request in load.history]
        lines = [*topology.breaks, *sorted(requests, key=lambda request: request.sent)]
        (directory / "history.txt").write_text("\n".join(map(str, lines)))
