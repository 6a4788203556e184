"""The figures of a run, ordered so that what belongs together is found: a figure, and the one it is compared with."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from .measure import OURS, Figure, Ratio


def blocks(figures: Iterable[Figure]) -> Iterator[tuple[str, str, list[Figure]]]:
    """Scenario, metric and their figures, in the order in which they were measured."""
    figures = list(figures)
    order = list(dict.fromkeys((figure.scenario, figure.metric) for figure in figures))
    for scenario, metric in sorted(order, key=lambda pair: [s for s, _ in order].index(pair[0])):
        yield scenario, metric, [f for f in figures if (f.scenario, f.metric) == (scenario, metric)]


def baseline(figure: Figure, block: list[Figure]) -> Figure | None:
    """The figure that it is compared with: ours, on the same server if it is measured there, in the same setting.

    If ours is no subject (the cost to others), the first subject of the setting. The rounds must match, else the values
    are not neighbours in time.
    """
    beside = [f for f in block if f.setting == figure.setting and len(f.values) == len(figure.values)]
    ours = [f for f in beside if f.subject == OURS]
    here = [f for f in ours or beside if f.server == figure.server]
    found = (here or ours or [None])[0]
    return None if found is figure else found


def compared(figure: Figure, with_: Figure) -> Ratio:
    """Ours as a multiple of another; or a subject as a multiple of the first."""
    if with_.subject == OURS:
        return with_.over(figure)
    return figure.over(with_)


def write_csv(path: Path, figures: Iterable[Figure]) -> None:
    """Every figure with the value of every round."""
    figures = list(figures)
    rounds = max((len(figure.values) for figure in figures), default=0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = [f"round {number + 1}" for number in range(rounds)]
        writer.writerow(["scenario", "server", "setting", "subject", "metric", "median", "low", "high", *names])
        for f in figures:
            row = [f.scenario, f.server, f.setting, f.subject, f.metric, f.median, f.low, f.high, *f.values]
            writer.writerow([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row])


def read_csv(path: Path) -> list[Figure]:
    with path.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [Figure(*row[:5], tuple(float(cell) for cell in row[8:] if cell)) for row in rows]


def by_setting(block: list[Figure]) -> Iterator[tuple[str, str, list[Figure]]]:
    """Server and setting and their figures, where each stands together."""
    ordered = sorted(block, key=lambda f: ([g.server for g in block].index(f.server)))
    for (server, setting), found in groupby(ordered, key=lambda f: (f.server, f.setting)):
        yield server, setting, list(found)
