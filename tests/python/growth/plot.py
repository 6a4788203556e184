"""The plot of a run: the cost of commands, and the length of a turn, with ever more.

Drawn as `scripts/figures` draws: the colours follow what the reader's system prefers.
"""

import math
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

from bench.servers import ROOT

from .rows import TURN_MS

WIDTH, HEIGHT = 1_000, 470
LEFT, TOP, BOTTOM = 70, 80, 410
PANEL, NAMES, GAP = 270, 200, 30
#: The least distance of two names.
LINE = 15

#: The rows in the plot of commands: a name for each.
COSTS = {
    "HELDBY of an owner | locks": "HELDBY beside locks",
    "ACQUIRE + RELEASE | locks": "a pair beside locks",
    "a permit, ACQUIRE + RELEASE | holders of a semaphore": "a permit beside holders",
    "a writer joins and leaves | readers of a lock": "a writer behind readers",
    "hand-over: the next asks, and releases | waiters of a lock, in turn": "a hand-over beside waiters",
    "QUEUE, joined and left | waiters of a lock": "joining a long line",
    "INFO | holders of a semaphore": "INFO of a semaphore",
}
#: And of how long turns are.
TURNS = {
    "leases that end together | locks": "leases end together",
    "a connection closes, EPHEMERAL 0 | bindings of a connection": "a connection closes",
    "FLUSHALL ASYNC | locks": "FLUSHALL ASYNC",
    "SWAPDB of the database with them | locks": "SWAPDB",
    "UNLINK | holders of a semaphore": "UNLINK of a semaphore",
    "a replica becomes the primary | locks": "a promotion",
    "a writer releases to reservations | waiting readers of a lock": "readers are let in",
}


def drawing(*words):
    """An empty figure, as those of `scripts/figures`."""
    loader = SourceFileLoader("figures", str(ROOT / "scripts" / "figures"))
    figures = module_from_spec(spec_from_loader(loader.name, loader))
    loader.exec_module(figures)
    return figures.Figure(*words)


class Panel:
    """One plot with logarithms on both sides."""

    def __init__(self, figure, left, title, unit, lines):
        self.figure, self.left = figure, left
        values = [value for points in lines.values() for point in points for value in point]
        if not values:
            raise ValueError(f"nothing to draw of {title}")
        self.low, self.high = decades([y for points in lines.values() for _, y in points])
        self.first, self.last = decades([x for points in lines.values() for x, _ in points])
        figure.text(left, TOP - 24, f"{title}, {unit}", "ink")
        for power in range(self.low, self.high + 1):
            self._rule(power)
        for power in range(self.first, self.last + 1):
            figure.text(self.x(10**power), BOTTOM + 20, short(power), "faint small", "middle")

    def x(self, count):
        """The position of `count` on the axis."""
        return round(self.left + PANEL * (math.log10(count) - self.first) / max(1, self.last - self.first), 1)

    def y(self, value):
        """The position of `value` on the axis."""
        return round(BOTTOM - (BOTTOM - TOP) * (math.log10(value) - self.low) / max(1, self.high - self.low), 1)

    def _rule(self, power):
        at = self.y(10**power)
        self.figure.line(self.left, at, self.left + PANEL, at)
        self.figure.text(self.left - 8, at + 4, short(power), "faint small", "end")

    def draw(self, lines, is_bad):
        """A line each, with its name at its end; names keep their distance."""
        ends = sorted((self.y(points[-1][1]), name) for name, points in lines.items())
        places = apart([at for at, _ in ends], LINE, BOTTOM)
        for place, (_, name) in zip(places, ends, strict=True):
            points = lines[name]
            path = " L".join(f"{self.x(count)} {self.y(value)}" for count, value in points)
            kind = "bad" if is_bad(name, points) else "a"
            self.figure.parts.append(f'<path d="M{path}" class="{kind}" style="fill:none;stroke-width:2"/>')
            self.figure.text(self.left + PANEL + 8, round(place + 4, 1), name, "ink small")


def apart(places, least, end):
    """These places, in their order, moved as far as needed: `least` apart, and none beyond the end."""
    moved = []
    for place in places:
        moved.append(place if not moved else max(place, moved[-1] + least))
    for at in reversed(range(len(moved))):
        moved[at] = min(moved[at], end - (len(moved) - 1 - at) * least)
    return moved


def short(power):
    """A power of ten in few letters."""
    return f"{10 ** (power % 3)}{'kMG'[power // 3 - 1] if power >= 3 else ''}" if power >= 0 else f"{10**power:g}"


def decades(values):
    """The powers of ten around these."""
    return math.floor(math.log10(min(values)) + 1e-9), math.ceil(math.log10(max(values)) - 1e-9)


def lines_of(result, names, figure):
    """The points of the rows that are shown."""
    rows = {row["row"]: row for row in result["rows"]}
    found = {}
    for key, name in names.items():
        points = [(p["count"], p[figure]) for p in rows[key]["points"] if p[figure]]
        if points:
            found[name] = points
    return found


def svg(result):
    """The plot of a run."""
    title = f"What grows, and what does not: {result['facts']['measured']}"
    told = (
        "Two plots over how many there are. On the left the instructions of commands: most lines stay level. On the right "
        "the longest turn of the event loop after an event, and a line at 5 ms, which some events pass."
    )
    figure = drawing("growth", title, told, WIDTH, HEIGHT)
    costs, turns = lines_of(result, COSTS, "cost"), lines_of(result, TURNS, "turn_ms")
    panel = Panel(figure, LEFT, "what it costs", "instructions", costs)
    panel.draw(costs, lambda _, points: points[-1][1] > 2 * points[0][1])
    panel = Panel(figure, LEFT + PANEL + NAMES + GAP, "the longest turn", "ms", turns)
    panel.draw(turns, lambda _, points: max(value for _, value in points) > TURN_MS)
    at = panel.y(TURN_MS)
    figure.parts.append(f'<path d="M{panel.left} {at} H{panel.left + PANEL}" class="good" style="stroke-width:2"/>')
    figure.text(panel.left + 4, at - 5, f"{TURN_MS:g} ms", "faint small")
    figure.text(LEFT, HEIGHT - 14, "how many there are, to the right; both scales are logarithmic", "faint small")
    return figure.svg()
