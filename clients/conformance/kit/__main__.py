"""Runs the cases against an adapter, side by side, and prints a verdict for each.

    python -m kit ADAPTER [WORD...] [--driver NAME] [--case PATTERN]... [--jobs N] [--may-lack FEATURE,...]

ADAPTER and the words behind it are a command. It ends with 0 if each case passed, or was unsupported for a feature
that may be lacking.
"""

import argparse
import fnmatch
import sys
import time

from .cases import load
from .runner import FAIL, PASS, UNSUPPORTED, run_all

MAY_LACK = "fork"


def arguments():
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="kit", description="Tests a client library of redislock.")
    parser.add_argument("adapter", nargs="*", help="the command that starts the adapter")
    parser.add_argument("--driver", help="which of the library's drivers (open's answer lists them)")
    parser.add_argument("--case", action="append", help="only the cases of such a name: cancel-*")
    parser.add_argument("--jobs", type=int, default=8, help="how many cases run side by side")
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


def main():
    """Runs what was asked for."""
    asked = arguments()
    cases = chosen(asked.case)
    if asked.list:
        for case in cases:
            print(f"{case.name:34} {','.join(map(str, case.points)):6} {','.join(case.needs):12} {case.title}")
        return 0
    if not asked.adapter:
        sys.exit("kit: which adapter? kit --help")
    lacking = set(filter(None, asked.may_lack.split(",")))
    began = time.monotonic()
    counts = {PASS: 0, FAIL: 0, UNSUPPORTED: 0}
    for case, verdict in run_all(cases, asked.adapter, asked.driver, asked.jobs):
        if verdict.word == UNSUPPORTED and not set(verdict.reason.split(", ")) <= lacking:
            verdict.word = FAIL
            verdict.reason = f"it lacks the feature {verdict.reason}"
        counts[verdict.word] += 1
        points = ",".join(map(str, case.points))
        notes = "".join(f"; {note}" for note in verdict.notes)
        print(f"{verdict.word:11} {case.name:34} point {points:5} {verdict.seconds:5.1f} s{notes}", flush=True)
        if verdict.reason:
            print("    " + verdict.reason.replace("\n", "\n    "), flush=True)
    words = ", ".join(f"{number} {word}" for word, number in counts.items())
    print(f"{len(cases)} cases: {words}; {time.monotonic() - began:.0f} s")
    return 1 if counts[FAIL] else 0


if __name__ == "__main__":
    sys.exit(main())
