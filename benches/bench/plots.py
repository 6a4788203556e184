"""A plot of the headline figures of each scenario: the bar is the median of the rounds, the line goes from the lowest to the highest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import matplotlib

from .measure import OURS, Figure

matplotlib.use("Agg")
#: Text as text, and the same file from the same figures.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "redislock"})
from matplotlib import pyplot  # noqa: E402  (the kind of output comes first)

OURS_COLOR = "#c0392b"
OTHERS_COLOR = "#7f8c8d"
BAR_INCHES = 0.28
HEAD_INCHES = 1.1
WIDTH_INCHES = 9.0


@dataclass(frozen=True)
class Plot:
    """One picture: for each server and setting a group of bars."""

    name: str
    title: str
    scenario: str
    metric: str
    picks: Callable[[Figure], bool] = lambda _: True
    is_logarithmic: bool = False


PLOTS = [
    Plot("instructions", "Instructions of the server per acquire and release", "instructions", "instructions per pair"),
    Plot(
        "uncontended",
        "Acquire and release by 50 connections, pipelined by 16",
        "uncontended",
        "pairs per second",
        lambda f: f.setting.startswith("50 connections, pipelined"),
    ),
    Plot(
        "uncontended-cpu",
        "Processor time of the server per acquire and release, 1 connection, one command at a time",
        "uncontended",
        "server CPU per pair, us",
        lambda f: f.setting.startswith("1 connection, one command"),
    ),
    Plot(
        "handover",
        "Hand-overs with 100 contenders who do not hold the lock",
        "handover",
        "hand-overs per second",
        lambda f: f.setting.startswith("100 contenders, hold 0 ms"),
        True,
    ),
    Plot("memory", "Memory per held lock", "memory", "bytes per held lock"),
    Plot("scale", "An unrelated PING", "scale", "PING p99.9, ms", is_logarithmic=True),
    Plot("others", "SET and GET of a server with and without the module", "others", "instructions per pair"),
]


def draw(folder: Path, figures: Iterable[Figure]) -> list[Path]:
    """Draws what was measured."""
    figures = list(figures)
    drawn = []
    for plot in PLOTS:
        found = [f for f in figures if (f.scenario, f.metric) == (plot.scenario, plot.metric) and plot.picks(f)]
        if found:
            path = folder / f"{plot.name}.svg"
            bars(path, plot, found)
            drawn.append(path)
    return drawn


def bars(path: Path, plot: Plot, figures: list[Figure]) -> None:
    """One bar a figure from top to bottom, with a gap before each setting."""
    places, labels, at = [], [], 0.0
    group = None
    for figure in figures:
        if figure.setting != group:
            at += 1.4
            labels.append((at - 0.9, figure.setting))
            group = figure.setting
        places.append(at)
        at += 1
    picture, axes = pyplot.subplots(figsize=(WIDTH_INCHES, HEAD_INCHES + BAR_INCHES * (at + 1)), layout="constrained")
    medians = [figure.median for figure in figures]
    errors = [[f.median - f.low for f in figures], [f.high - f.median for f in figures]]
    colors = [OURS_COLOR if f.subject == OURS else OTHERS_COLOR for f in figures]
    axes.barh(places, medians, 0.8, xerr=errors, color=colors, error_kw={"elinewidth": 1, "capsize": 2})
    axes.set_yticks(places, [f"{f.subject}, {f.server}" for f in figures], fontsize=8)
    for place, setting in labels:
        axes.text(0, place, f" {setting}", va="center", fontsize=8, fontweight="bold", transform=axes.get_yaxis_transform())
    axes.set_ylim(at, 0)
    axes.set_xscale("log" if plot.is_logarithmic else "linear")
    axes.set_xlabel(f"{plot.metric} ({'more' if figures[0].is_more_better else 'less'} is better)")
    axes.set_title(plot.title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    picture.savefig(path, metadata={"Date": None})
    pyplot.close(picture)
