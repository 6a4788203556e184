"""Runs the cases against an adapter, side by side, and prints a verdict for each.

    python -m kit ADAPTER [WORD...] [--driver NAME] [--case PATTERN]... [--jobs N] [--may-lack FEATURE,...]

ADAPTER and the words after it are a command. The exit code is 0 if each case passed, or was unsupported for a feature
that may be lacking.
"""

import argparse
import fnmatch
import sys
import time

from harness.server import NAME

from .cases import Case, load
from .runner import FAIL, PASS, UNSUPPORTED, may_repeat, run_all
from .stage import Stage

MAY_LACK = "fork,client,provider,held,nested,ticket,stubborn"
#: The features that a driver for threads may lack, if another driver of the library has them.
NOT_FOR_THREADS = {"cancel", "body", "tasks"}
#: A part that is one driver. An adapter names its drivers in an order in which these two have as little in common as any.
ENDS = {"first": 0, "last": -1}


def arguments():
    """Parses the arguments."""
    parser = argparse.ArgumentParser(prog="kit", description="Tests a client library of redislock.")
    parser.add_argument("adapter", nargs="*", help="the command that starts the adapter")
    parser.add_argument("--driver", help="which of the library's drivers; all: each in turn")
    parser.add_argument("--part", type=part_of, default=(0, 1), help="with --driver all: I/N, each Nth of them from the Ith on; or: first, last")
    parser.add_argument("--case", action="append", help="only the cases of such a name: cancel-*")
    parser.add_argument("--jobs", type=int, default=12, help="how many cases run side by side")
    parser.add_argument("--may-lack", default=MAY_LACK, help="features that may be missing (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="show the cases")
    return parser.parse_args()


def part_of(text):
    """Parses the name of a part: the number of a driver, or (I, N)."""
    if text in ENDS:
        return ENDS[text]
    words = text.split("/")
    if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[0]) < int(words[1]):
        return int(words[0]), int(words[1])
    raise argparse.ArgumentTypeError("must be first, last, or I/N with I less than N")


def chosen(patterns):
    """The cases of these names."""
    cases = load()
    names = [name for name in cases if not patterns or any(fnmatch.fnmatch(name, each) for each in patterns)]
    if not names:
        sys.exit(f"kit: no case is named {' or '.join(patterns)}")
    return [cases[name] for name in names]


def drivers_of(command):
    """Returns the adapter's drivers, with the features of each."""
    stage = Stage(command, None, Case(drivers_of, (), (), 0, 0))
    try:
        address = stage.door(stage.start()).address
        return {driver: opened(stage, address, driver).features for driver in opened(stage, address, None).drivers}
    finally:
        stage.clear()


def of_this_part(drivers, part):
    """Returns the drivers of this part: (I, N) is each Nth, from the Ith on; a single one belongs to all parts."""
    if isinstance(part, int):
        driver = list(drivers)[part]
        return {driver: drivers[driver]}
    number, parts = part
    if len(drivers) == 1:
        return drivers
    return {driver: drivers[driver] for at, driver in enumerate(drivers) if at % parts == number % parts}


def opened(stage, address, driver):
    """Returns an adapter that has opened the server with this driver."""
    stage.driver = driver
    return stage.adapter(address)


def show(case, verdict, lacking):
    """Prints a verdict. A required feature that is missing makes it a failure."""
    if verdict.word == UNSUPPORTED and not set(verdict.reason.split(", ")) <= lacking:
        verdict.word = FAIL
        verdict.reason = f"it lacks the feature {verdict.reason}"
    points = ",".join(map(str, case.points))
    notes = "".join(f"; {note}" for note in verdict.notes)
    print(f"{verdict.word:11} {case.name:50} point {points:5} {verdict.seconds:5.1f} s{notes}", flush=True)
    if verdict.reason:
        print("    " + verdict.reason.strip().replace("\n", "\n    "), flush=True)
    return verdict


def run(cases, asked, driver, lacking):
    """Runs the cases with this driver and prints the verdicts; returns the number of failures."""
    began = time.monotonic()
    verdicts = {case: show(case, verdict, lacking) for case, verdict in run_all(cases, asked.adapter, driver, asked.jobs)}
    failed = [case for case, verdict in verdicts.items() if verdict.word == FAIL]
    if failed and may_repeat(f"{driver or 'the first driver'} on {NAME}: {', '.join(case.name for case in failed)}"):
        print(f"repeated, one after the other: {len(failed)}", flush=True)
        verdicts |= {case: show(case, verdict, lacking) for case, verdict in run_all(failed, asked.adapter, driver, 1)}
    counts = {PASS: 0, FAIL: 0, UNSUPPORTED: 0}
    for verdict in verdicts.values():
        counts[verdict.word] += 1
    for case in failed:
        print(f"{'had failed' if verdicts[case].word == PASS else 'failed':11} {case.name}", flush=True)
    words = ", ".join(f"{number} {word}" for word, number in counts.items())
    print(f"{driver or 'the first driver'} on {NAME}: {words}; {time.monotonic() - began:.0f} s", flush=True)
    return counts[FAIL]


def main():
    """Runs the requested cases."""
    asked = arguments()
    cases = chosen(asked.case)
    if asked.list:
        for case in cases:
            print(f"{case.name:50} {','.join(map(str, case.points)):6} {','.join(case.needs):12} {case.title}")
        return 0
    if not asked.adapter:
        sys.exit("kit: which adapter? kit --help")
    drivers = drivers_of(asked.adapter) if asked.driver == "all" else {asked.driver: frozenset()}
    lacking = set(filter(None, asked.may_lack.split(",")))
    failed = 0
    for driver, features in of_this_part(drivers, asked.part).items():
        others = set().union(*(has for other, has in drivers.items() if other != driver))
        failed += run(cases, asked, driver, lacking | (NOT_FOR_THREADS & others - features))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
