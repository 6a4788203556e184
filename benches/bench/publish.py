"""Puts the last run into the documentation. The conclusions, the run, and the targets that it missed go into
docs/internals/benchmarks.md, at the marks for each. The whole report, all figures and the plots are written to the folder next to
it.

A run of all scenarios is shown, or some scenarios of a run take the place of the same ones of the run before. Then the
page says which they are: figures of one scenario can be compared, and figures of two runs cannot.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from .measure import Figure
from .options import SCENARIOS, names_of
from .report import HOW_TO_READ, head, report, unmet
from .results import read_csv, write_csv
from .screen import RIVALS, screen
from .servers import ROOT

LATEST = ROOT / "results" / "bench" / "latest"
PAGE = ROOT / "docs" / "internals" / "benchmarks.md"
BESIDE = ROOT / "docs" / "internals" / "benchmarks"

MARK = "<!-- measured: {} -->"
END = "<!-- end -->"
PLACE = re.compile(rf"({MARK.format('([a-z]+)')}\n).*?({END}\n)", re.DOTALL)

#: The part that `scripts/growth publish` writes, and its files.
GROWTH = "growth"
GROWTH_FILES = ("growth.csv", "growth.md", "growth.svg")


#: The row of the run that names scenarios of another run.
APART = "measured apart"
ROW = re.compile(r"^\| ([^|]+?) \| (.*) \|$", re.MULTILINE)


def facts_of(page: str) -> dict[str, str]:
    """The page's description of the run that it shows."""
    run = next(place[0] for place in PLACE.finditer(page) if place[2] == "run")
    return {name: told for name, told in ROW.findall(run) if name != "---"}


def put_in(
    shown: list[Figure], facts: dict[str, str], new: list[Figure], new_facts: dict[str, str], scenarios: list[str]
) -> tuple[list[Figure], dict[str, str]]:
    """The figures and facts that are shown, with these scenarios of another run in their place."""
    figures = [figure for figure in shown if figure.scenario not in scenarios] + new
    figures.sort(key=lambda figure: SCENARIOS.index(figure.scenario))
    told = [one for one in facts.get(APART, "").split("; ") if one and not set(one.split(": ")[0].split(", ")) <= set(scenarios)]
    told.append(f"{', '.join(scenarios)}: {new_facts['date']}, at {new_facts['commit']}")
    used = {name: all_of(facts.get(name, ""), new_facts[name]) for name in ("measured", "with") if name in new_facts}
    return figures, facts | used | {APART: "; ".join(told)}


def all_of(*lists: str) -> str:
    """Returns all items of these lists."""
    return ", ".join(dict.fromkeys(one for each in lists for one in each.split(", ") if one))


def filled(page: str, figures: list[Figure], facts: dict[str, str]) -> str:
    """The page with this run."""
    texts = {
        "screen": lambda: screen(figures),
        "rivals": lambda: screen(figures, RIVALS),
        "run": lambda: f"{head(facts)}\n\n{HOW_TO_READ}",
        "unmet": lambda: unmet(figures),
    }

    def text(name: str) -> str | None:
        if name == GROWTH:
            return None
        if name not in texts:
            raise RuntimeError(f"docs/internals/benchmarks.md wants {name}, which no run has")
        return texts[name]()

    return placed(page, text)


def placed(page: str, text: Callable[[str], str | None]) -> str:
    """The page with a text in each place that there is one for, by its name."""

    def fill(place: re.Match[str]) -> str:
        found = text(place[2])
        return place[0] if found is None else f"{place[1]}\n{found}\n\n{place[3]}"

    return PLACE.sub(fill, page)


def publish(latest: Path, scenarios: list[str]) -> str:
    figures = [figure for figure in read_csv(latest / "figures.csv") if figure.scenario in scenarios]
    facts = json.loads((latest / "facts.json").read_text())
    if not set(scenarios) <= set(facts["scenarios"].split(", ")):
        raise RuntimeError(f"the last one measured {facts['scenarios']} only")
    from . import plots  # it needs what the tests of the arithmetic have not

    page, date = PAGE.read_text(), facts["date"]
    if set(scenarios) != set(SCENARIOS):
        figures, facts = put_in(read_csv(BESIDE / "figures.csv"), facts_of(page), figures, facts, scenarios)
    PAGE.write_text(filled(page, figures, facts))
    BESIDE.mkdir(exist_ok=True)
    for file in BESIDE.iterdir():
        if file.name not in GROWTH_FILES:
            file.unlink()
    write_csv(BESIDE / "figures.csv", figures)
    (BESIDE / "report.md").write_text(report(figures, facts))
    drawn = plots.draw(BESIDE, figures)
    return f"{PAGE.relative_to(ROOT)} shows the run of {date}, with {len(drawn) + 2} files beside it"


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench publish", description=f"Puts the last run into {PAGE}.")
    told = "these scenarios of it alone; the others stay as they are shown"
    parser.add_argument(
        "--only", metavar="SCENARIO,...", type=names_of(SCENARIOS, "scenario"), default=list(SCENARIOS), help=told
    )
    asked = parser.parse_args()
    try:
        print(f"bench: {publish(LATEST, asked.only)}")
    except (OSError, RuntimeError, ValueError) as reason:
        sys.exit(f"bench: there is nothing to show: {reason}")


if __name__ == "__main__":
    main()
