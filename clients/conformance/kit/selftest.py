"""Tests the kit itself: the reference passes, and each way to break it fails the case that is meant for it.

    python -m kit.selftest [--jobs N] [--only breaks]
"""

import argparse
import re
import sys
import time
from pathlib import Path

from .cases import Case, load
from .runner import FAIL, PASS, may_repeat, run_all

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
PAGE = REFERENCE.parents[2] / "docs" / "internals" / "clients-and-kit.md"
sys.path.insert(0, str(REFERENCE))
from breaks import BREAKS  # noqa: E402  (it is the reference's)


class Broken(Case):
    """A case that runs against the reference with one break."""

    def __init__(self, name, case):
        super().__init__(case.story, case.points, case.needs, case.seconds, case.weight + 1)
        self.broken, self.environment = name, {"REDISLOCK_BREAK": name}


def named_by_the_page():
    """The cases that docs/internals/clients-and-kit.md names in its table."""
    rows = re.findall(r"^\|.*\|.*\| (`[a-z-]+-[a-z-]+`.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    found = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}
    assert len(found) >= 12, f"the page names {sorted(found)}"
    return found


def judged(case, verdict):
    """Returns the fault of a verdict, or nothing."""
    if not isinstance(case, Broken):
        return "" if verdict.word == PASS else f"the reference: {case.name}: {verdict.word}: {verdict.reason}"
    point = BREAKS[case.broken][0]
    first = verdict.reason.partition("\n")[0]
    # A fault of the kit itself shows nothing about the break.
    is_caught = verdict.word == FAIL and not verdict.reason.startswith("Traceback")
    word = "caught" if is_caught else "MISSED"
    print(f"{word} point {point}: {case.broken:26} {case.name}: {first[:120]}", flush=True)
    return "" if is_caught else f"with {case.broken} the reference does not fail {case.name}: {verdict.reason or verdict.word}"


def main():
    """Runs all; returns 0 if the kit is right."""
    parser = argparse.ArgumentParser(prog="kit.selftest", description="Tests the conformance kit itself.")
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--only", choices=["reference", "breaks"])
    asked = parser.parse_args()
    began, faults = time.monotonic(), []
    cases = load()
    command = [str(REFERENCE / "adapter")]
    points = {point for point, _ in BREAKS.values()}
    assert points == set(range(1, 10)), f"breaks of points {sorted(points)} only"
    faults += [f"docs/internals/clients-and-kit.md names a case that is none: {name}" for name in named_by_the_page() - set(cases)]
    whole = [] if asked.only == "breaks" else list(cases.values())
    broken = [] if asked.only == "reference" else [Broken(name, cases[case]) for name, (_, case) in BREAKS.items()]
    # Broken ones first: some fail only at their time limit.
    wrong = {case: fault for case, verdict in run_all([*broken, *whole], command, None, asked.jobs) if (fault := judged(case, verdict))}
    if wrong and may_repeat(f"the reference: {', '.join(case.name for case in wrong)}"):
        print("\n".join(["repeated, one after the other:", *wrong.values()]), flush=True)
        wrong = {case: fault for case, verdict in run_all(list(wrong), command, None, 1) if (fault := judged(case, verdict))}
    faults += wrong.values()
    for fault in faults:
        print(f"FAULT {fault}")
    print(f"{len(cases)} cases, {len(BREAKS)} breaks, {len(faults)} faults; {time.monotonic() - began:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
