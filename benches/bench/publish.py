"""Puts the last run into the documentation: the run, the targets and the short tables into docs/BENCHMARKS.md, where
marks say what belongs where; the whole report, all figures and the plots beside it.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from .measure import Figure
from .report import HOW_TO_READ, head, section, targets
from .results import blocks, read_csv
from .servers import ROOT

LATEST = ROOT / "results" / "bench" / "latest"
PAGE = ROOT / "docs" / "BENCHMARKS.md"
BESIDE = ROOT / "docs" / "benchmarks"

MARK = "<!-- measured: {} -->"
END = "<!-- end -->"
PLACE = re.compile(rf"({MARK.format('([a-z]+)')}\n).*?({END}\n)", re.DOTALL)


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


def filled(page: str, figures: list[Figure], facts: dict[str, str]) -> str:
    return PLACE.sub(lambda place: f"{place[1]}\n{part(place[2], figures, facts)}\n\n{place[3]}", page)


def publish(latest: Path) -> str:
    figures = read_csv(latest / "figures.csv")
    facts = json.loads((latest / "facts.json").read_text())
    PAGE.write_text(filled(PAGE.read_text(), figures, facts))
    shutil.rmtree(BESIDE, ignore_errors=True)
    BESIDE.mkdir()
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
