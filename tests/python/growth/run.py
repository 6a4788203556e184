"""The command: measures all rows, judges them, and writes the results."""

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median

from bench import report as bench_report
from bench.servers import ROOT

from . import beside, crowds, ends, stores, takes
from .fit import Point, judged
from .measure import happened, instructions, turns
from .report import told
from .rows import Row, short
from .stage import Stage, release

SCENES = beside.SCENES
EVENTS = (*takes.EVENTS, *stores.EVENTS, *ends.EVENTS, *crowds.EVENTS)
RESULTS = ROOT / "results" / "growth"

#: With more things than this, one round is enough: disturbances are small compared with it.
SEVERAL_UP_TO = 10_000
ROUNDS = 3
#: A figure above its bound is measured again: disturbances can only add to a cost.
AGAIN = 2
#: A job that fails because the machine was too slow for it is restarted.
ATTEMPTS = 3
#: In the short form, the repetitions of a command are divided by this.
SHORT_PART = 2
INSTRUCTIONS, MICROSECONDS = "instructions", "us"


@dataclass(frozen=True)
class Job:
    """The work of one process: a scene or an event at one size."""

    kind: str
    number: int
    count: int
    #: The commands of the scene to measure.
    only: tuple = ()
    rounds: int = 1
    #: The share of a command's repetitions.
    part: int = 1

    def run(self):
        """The results: for each row of it, by its key."""
        if self.kind == "event":
            event = EVENTS[self.number]
            seen = [happened(event, self.count, number) for number in range(self.rounds)]
            return {key_of(event): middle(seen)}
        scene = SCENES[self.number]
        wanted = (command for command in scene.commands if not self.only or command.what in self.only)
        scene = replace(scene, commands=tuple(replace(each, times=-(-each.times // self.part)) for each in wanted))
        found = instructions(scene, self.count) if self.kind == "counts" else turns(scene, self.count, self.rounds)
        return {key_of(command, scene.many): found[command.what] for command in scene.commands}


def attempt(job):
    """Runs it, several times if needed; returns its duration, too."""
    for number in range(ATTEMPTS):
        try:
            start = time.monotonic()
            return job, job.run(), time.monotonic() - start
        except (AssertionError, OSError, RuntimeError) as reason:
            if number == ATTEMPTS - 1:
                raise RuntimeError(f"{job} could not be measured") from reason
    raise AssertionError("no attempt was made")


def key_of(row: Row, many=None):
    """The text by which a row is known."""
    return f"{row.what} | {many or row.many}"


def middle(points):
    """The medians of several rounds."""
    ratios = [point.ratio for point in points if point.ratio is not None]
    return Point(
        points[0].count, median(p.cost for p in points), median(p.turn_ms for p in points),
        median(ratios) if ratios else None,
    )


def lower(one, other):
    """The lower figures of two measurements of the same."""
    return Point(
        one.count, min(one.cost, other.cost),
        *(None if a is None else min(a, b) for a, b in ((one.turn_ms, other.turn_ms), (one.ratio, other.ratio))),
    )


def rows(only=""):
    """All rows by their keys, with the unit of their costs and their sizes."""
    found = {}
    for scene in SCENES:
        for command in scene.commands:
            found[key_of(command, scene.many)] = (command, INSTRUCTIONS, scene.sizes)
    for event in EVENTS:
        found[key_of(event)] = (event, MICROSECONDS, event.sizes)
    is_valkey = os.environ.get("REDISLOCK_SERVER", "").startswith("valkey")
    return {
        key: (replace(row, bounds={name: bound.of(is_valkey) for name, bound in row.bounds.items()}), *more)
        for key, (row, *more) in found.items()
        if only.lower() in key.lower()
    }


def jobs(wanted, is_short):
    """The measurements for these rows, the longest first."""
    found = []
    for number, scene in enumerate(SCENES):
        only = tuple(command.what for command in scene.commands if key_of(command, scene.many) in wanted)
        sizes = short(scene.sizes) if is_short else scene.sizes
        for count in (sizes[0], sizes[-1]) if is_short else sizes:
            if only:
                found.append(Job("counts", number, count, only, part=SHORT_PART if is_short else 1))
                found.append(Job("turns", number, count, only, ROUNDS))
    for number, event in enumerate(EVENTS):
        if key_of(event) in wanted:
            sizes = short(event.sizes) if is_short else event.sizes
            for count in sizes:
                found.append(Job("event", number, count, (), ROUNDS if count <= SEVERAL_UP_TO and not is_short else 1))
            if not is_short and has_floor(event, MICROSECONDS, sizes):
                found.append(Job("event", number, 1))
    return sorted(found, key=lambda job: -job.count)


def measured(todo, workers, tell, must=True):
    """Runs all jobs; points by row and size. Not all of them need succeed, if these were measured before."""
    counts, longest, points = defaultdict(dict), defaultdict(dict), defaultdict(dict)
    with ProcessPoolExecutor(workers) as pool:
        for done in as_completed([pool.submit(attempt, job) for job in todo]):
            try:
                job, found, seconds = done.result()
            except RuntimeError as reason:
                if must:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
                print(f"growth: {reason}", file=sys.stderr, flush=True)
                continue
            into = {"counts": counts, "turns": longest, "event": points}[job.kind]
            for key, value in found.items():
                into[key][job.count] = value
            tell(job, seconds)
    for key, by_count in counts.items():
        for count in by_count.keys() & longest[key].keys():
            points[key][count] = Point(count, by_count[count], longest[key][count])
    return points


def has_floor(row, unit, sizes):
    """Returns whether the constant in its cost is measured: with one. A cost that must not grow needs none."""
    return unit == MICROSECONDS and 1 not in sizes and row.bounds["exponent"].limit >= 1


def split(wanted, points, key):
    """The points of a row, and the constant in its cost: the cost with one."""
    row, unit, sizes = wanted[key]
    floor = points[key][1].cost if has_floor(row, unit, sizes) and 1 in points[key] else 0.0
    return [points[key][count] for count in sorted(points[key]) if count in sizes or count > 1], floor


def verdicts(wanted, points):
    """The verdict on each row."""
    return {key: judged(row, *split(wanted, points, key)) for key, (row, _, _) in wanted.items()}


def module_commit():
    """The commit that the module was built from, by its own account."""
    with Stage(1, None) as stage:
        lines = bytes(stage.call("INFO redislock")).decode().splitlines()
    return next(line.partition(":")[2] for line in lines if line.startswith("redislock_commit:"))


def facts(is_short):
    """Under which circumstances this was measured."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": f"`scripts/growth{' short' if is_short else ''}`",
        "commit": bench_report.commit(),
        "module": f"of commit {module_commit()}",
        **bench_report.machine(len(os.sched_getaffinity(0))),
        "measured": release().label,
    }


def judge(only, is_short, workers, again=AGAIN):
    """Measures and judges; a figure above its bound is measured again."""
    wanted = rows(only)
    start = time.monotonic()
    circumstances = facts(is_short)

    def tell(job, seconds):
        what = SCENES[job.number].many if job.kind != "event" else key_of(EVENTS[job.number])
        if seconds > 10 or os.environ.get("REDISLOCK_GROWTH_TALK"):
            print(f"growth: {what}, {job.count:,}: {seconds:.0f} s", file=sys.stderr, flush=True)

    points = measured(jobs(wanted, is_short), workers, tell)
    for _ in range(again):
        bad = {key: wanted[key] for key, verdict in verdicts(wanted, points).items() if verdict.faults}
        if not bad:
            break
        print(f"growth: once more: {'; '.join(bad)}", file=sys.stderr, flush=True)
        for key, by_count in measured(jobs(bad, is_short), workers, tell, must=False).items():
            for count, point in by_count.items():
                points[key][count] = lower(points[key][count], point) if count in points[key] else point
    circumstances["took"] = f"{time.monotonic() - start:.0f} s"
    return wanted, points, verdicts(wanted, points), circumstances


def arguments(words):
    """The arguments of the caller."""
    parser = argparse.ArgumentParser(prog="scripts/growth", description=__doc__)
    parser.add_argument("form", nargs="?", choices=["short"], help="at up to 30,000, and one round")
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--workers", type=int, choices=range(1, 9), help="processes that measure at once")
    again = f"how often what is above its bound is measured again ({AGAIN})"
    parser.add_argument("--again", type=int, default=AGAIN, choices=range(4), help=again)
    return parser.parse_args(words)


def main(words=None):
    """Measures, reports, and returns whether all is within its bounds."""
    asked = arguments(words)
    is_short = asked.form == "short"
    # Half of the time is waiting for a server to come to rest, or for leases to end.
    workers = asked.workers or (os.cpu_count() or 1) + (2 if is_short else 1)
    wanted, points, found, circumstances = judge(asked.only, is_short, workers, asked.again)
    if not wanted:
        print(f"growth: no row has {asked.only!r} in its name", file=sys.stderr)
        return 2
    result = {
        "facts": circumstances,
        "rows": [
            {
                "row": key, "unit": unit, "bounds": {name: [b.limit, b.goal, b.why] for name, b in row.bounds.items()},
                "points": [vars(point) for point in split(wanted, points, key)[0]], "verdict": vars(found[key]),
            }
            for key, (row, unit, _) in wanted.items()
        ],
    }  # fmt: skip
    if not asked.only:
        RESULTS.mkdir(parents=True, exist_ok=True)
        name = f"{release().name}{'-short' if is_short else ''}.json"
        (RESULTS / name).write_text(json.dumps(result, indent=1) + "\n")
    print(told(result, is_brief=is_short))
    return 1 if any(verdict.faults for verdict in found.values()) else 0
