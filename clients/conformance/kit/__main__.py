"""Runs the cases against an adapter, side by side, and prints a verdict for each.

    python -m kit ADAPTER [WORD...] [--driver NAME] [--case PATTERN]... [--jobs N] [--may-lack FEATURE,...]

ADAPTER and the words behind it are a command. It ends with 0 if each case passed, or was unsupported for a feature
that may be lacking.
"""

import argparse
import fnmatch
import sys
import time

from harness.server import NAME

from .cases import load
from .runner import FAIL, PASS, UNSUPPORTED, run_all
from .stage import Stage

MAY_LACK = "fork"


def arguments():
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="kit", description="Tests a client library of redislock.")
    parser.add_argument("adapter", nargs="*", help="the command that starts the adapter")
    parser.add_argument("--driver", help="which of the library's drivers (open's answer lists them); all: each in turn")
    parser.add_argument("--case", action="append", help="only the cases of such a name: cancel-*")
    parser.add_argument("--jobs", type=int, default=12, help="how many cases run side by side")
    parser.add_argument("--may-lack", default=MAY_LACK, help="features that may be missing (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="show the cases")
    return parser.parse_args()


def chosen(patterns):
    """The cases of these names."""
    cases = load()
    names = [name for name in cases if not patterns or any(fnmatch.fnmatch(name, each) for each in patterns)]
    if not names:
        sys.exit(f"kit: no case is named {' or '.join(patterns)}")
    return [cases[name] for name in names]


def drivers_of(command):
    """The drivers that the adapter says it has."""
    stage = Stage(command, None, next(iter(load().values())))
    try:
        return list(stage.adapter(stage.door(stage.start()).address).drivers)
    finally:
        stage.clear()


def run(cases, asked, driver):
    """Runs the cases with this driver, prints verdicts; how many failed."""
    lacking = set(filter(None, asked.may_lack.split(",")))
    began = time.monotonic()
    counts = {PASS: 0, FAIL: 0, UNSUPPORTED: 0}
    for case, verdict in run_all(cases, asked.adapter, driver, asked.jobs):
        if verdict.word == UNSUPPORTED and not set(verdict.reason.split(", ")) <= lacking:
            verdict.word = FAIL
            verdict.reason = f"it lacks the feature {verdict.reason}"
        counts[verdict.word] += 1
        points = ",".join(map(str, case.points))
        notes = "".join(f"; {note}" for note in verdict.notes)
        print(f"{verdict.word:11} {case.name:50} point {points:5} {verdict.seconds:5.1f} s{notes}", flush=True)
        if verdict.reason:
            print("    " + verdict.reason.strip().replace("\n", "\n    "), flush=True)
    words = ", ".join(f"{number} {word}" for word, number in counts.items())
    print(f"{driver or 'the first driver'} on {NAME}: {words}; {time.monotonic() - began:.0f} s", flush=True)
    return counts[FAIL]


def main():
    """Runs what was asked for."""
    asked = arguments()
    cases = chosen(asked.case)
    if asked.list:
        for case in cases:
            print(f"{case.name:50} {','.join(map(str, case.points)):6} {','.join(case.needs):12} {case.title}")
        return 0
    if not asked.adapter:
        sys.exit("kit: which adapter? kit --help")
    drivers = drivers_of(asked.adapter) if asked.driver == "all" else [asked.driver]
    return 1 if sum(run(cases, asked, driver) for driver in drivers) else 0


if __name__ == "__main__":
    sys.exit(main())
