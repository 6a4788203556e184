"""Puts the last run into the documentation. The run, the targets and the short tables go into docs/BENCHMARKS.md, where
marks say what belongs where. The whole report, all figures and the plots go beside it.

A run of some scenarios (`scripts/bench --only`) replaces their tables alone, with a note of when and where it was.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from .measure import Figure
from .options import SCENARIOS
from .report import HOW_TO_READ, head, section, targets
from .results import blocks, read_csv
from .servers import ROOT

LATEST = ROOT / "results" / "bench" / "latest"
PAGE = ROOT / "docs" / "BENCHMARKS.md"
BESIDE = ROOT / "docs" / "benchmarks"

MARK = "<!-- measured: {} -->"
END = "<!-- end -->"
PLACE = re.compile(rf"({MARK.format('([a-z]+)')}\n).*?({END}\n)", re.DOTALL)

#: What `scripts/growth publish` puts there, and the files that it puts beside.
GROWTH = "growth"
GROWTH_FILES = ("growth.csv", "growth.svg")


def tables(figures: list[Figure], scenario: str) -> Iterator[str]:
    for name, metric, block in blocks(figures):
        if name == scenario:
            yield section(scenario, metric, block)


def part(name: str, figures: list[Figure], facts: dict[str, str]) -> str:
    if name == "run":
        return f"{head(facts)}\n\n{HOW_TO_READ}"
    if name == "targets":
        return targets(figures).partition("\n\n")[2]
    found = list(tables(figures, name))
    if not found:
        raise RuntimeError(f"docs/BENCHMARKS.md wants {name}, which the last run has not measured")
    return "\n\n".join(found)


def is_whole(facts: dict[str, str]) -> bool:
    return set(facts["scenarios"].split(", ")) == set(SCENARIOS)


def filled(page: str, figures: list[Figure], facts: dict[str, str]) -> str:
    measured = set(facts["scenarios"].split(", ")) | ({"run", "targets"} if is_whole(facts) else set())
    apart = "" if is_whole(facts) else f"Measured apart from the rest:\n\n{head(facts)}\n\n"

    def text(name: str) -> str | None:
        if name == GROWTH or (name not in measured and not is_whole(facts)):
            return None
        return f"{apart}{part(name, figures, facts)}"

    return placed(page, text)


def placed(page: str, text: Callable[[str], str | None]) -> str:
    """The page with a text in each place that there is one for, by its name."""

    def fill(place: re.Match[str]) -> str:
        found = text(place[2])
        return place[0] if found is None else f"{place[1]}\n{found}\n\n{place[3]}"

    return PLACE.sub(fill, page)


def publish(latest: Path) -> str:
    figures = read_csv(latest / "figures.csv")
    facts = json.loads((latest / "facts.json").read_text())
    PAGE.write_text(filled(PAGE.read_text(), figures, facts))
    if not is_whole(facts):
        return f"{PAGE.relative_to(ROOT)} shows {facts['scenarios']} of the run of {facts['date']}"
    BESIDE.mkdir(exist_ok=True)
    for file in BESIDE.iterdir():
        if file.name not in GROWTH_FILES:
            file.unlink()
    copied = [latest / "report.md", latest / "figures.csv", *sorted(latest.glob("*.svg"))]
    for file in copied:
        shutil.copy(file, BESIDE)
    return f"{PAGE.relative_to(ROOT)} shows the run of {facts['date']}, with {len(copied)} files beside it"


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit("usage: scripts/bench publish")
    try:
        print(f"bench: {publish(LATEST)}")
    except (OSError, RuntimeError, ValueError) as reason:
        sys.exit(f"bench: there is no full run to show: {reason}")
