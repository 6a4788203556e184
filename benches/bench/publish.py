"""Puts the last run into the documentation. What a reader takes away, the run, and what does not hold go into
docs/BENCHMARKS.md, where marks say what belongs where. The whole report, all figures and the plots go beside it.

Only a run of all scenarios is shown: figures of several runs beside each other would be compared.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from .measure import Figure
from .options import SCENARIOS
from .report import HOW_TO_READ, head, unmet
from .results import read_csv
from .screen import screen
from .servers import ROOT

LATEST = ROOT / "results" / "bench" / "latest"
PAGE = ROOT / "docs" / "BENCHMARKS.md"
BESIDE = ROOT / "docs" / "benchmarks"

MARK = "<!-- measured: {} -->"
END = "<!-- end -->"
PLACE = re.compile(rf"({MARK.format('([a-z]+)')}\n).*?({END}\n)", re.DOTALL)

#: What `scripts/growth publish` puts there, and the files that it puts beside.
GROWTH = "growth"
GROWTH_FILES = ("growth.csv", "growth.md", "growth.svg")


def is_whole(facts: dict[str, str]) -> bool:
    return set(facts["scenarios"].split(", ")) == set(SCENARIOS)


def filled(page: str, figures: list[Figure], facts: dict[str, str]) -> str:
    """The page with this run."""
    texts = {
        "screen": lambda: screen(figures),
        "run": lambda: f"{head(facts)}\n\n{HOW_TO_READ}",
        "unmet": lambda: unmet(figures),
    }

    def text(name: str) -> str | None:
        if name == GROWTH:
            return None
        if name not in texts:
            raise RuntimeError(f"docs/BENCHMARKS.md wants {name}, which no run has")
        return texts[name]()

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
    if not is_whole(facts):
        raise RuntimeError(f"the last one measured {facts['scenarios']} only")
    PAGE.write_text(filled(PAGE.read_text(), figures, facts))
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
