"""Judges the measurements: the growth of a cost, and whether that and the longest turn are within their bounds.

Pure functions of figures, with no server.
"""

import math
from dataclasses import dataclass, field, replace


#: From this many things on, a ratio measures the work on them, and not the start.
LARGE = 100_000


@dataclass(frozen=True)
class Bound:
    """The limit of a figure, and its goal; a row that allows more says why."""

    limit: float
    wanted: float | None = None
    why: str = ""
    #: The limit for Valkey, where its own values cost so little that as much of ours is a larger ratio.
    on_valkey: float | None = None

    def __post_init__(self):
        if not self.is_wanted and not self.why:
            raise ValueError(f"a bound of {self.limit} where {self.wanted} is wanted needs a reason")

    def of(self, is_valkey):
        """The bound on such a server."""
        return replace(self, limit=self.on_valkey, on_valkey=None) if is_valkey and self.on_valkey else self

    @property
    def goal(self):
        """What is wanted."""
        return self.limit if self.wanted is None else self.wanted

    @property
    def is_wanted(self):
        """Returns whether it allows only the goal."""
        return self.limit <= self.goal


@dataclass(frozen=True)
class Point:
    """The measurement with `count` things."""

    count: int
    cost: float
    #: The longest turn of the event loop, in milliseconds; None where only instructions were counted.
    turn_ms: float | None = None
    #: The ratio to the server's own in the same run; None without a comparison.
    ratio: float | None = None


@dataclass
class Verdict:
    """The verdict on a row."""

    exponent: float | None
    turn_ms: float | None
    ratio: float | None
    largest_cost: float
    #: The figures above their bounds, in words.
    faults: list = field(default_factory=list)
    #: The figures within their bounds and above their goals.
    unmet: list = field(default_factory=list)


def exponent(points, floor=0.0):
    """The exponent e of cost = floor + a * count ** e that fits best, by least squares of the logarithms.

    A cost that is at most the floor says nothing of growth; with fewer than two others there is none.
    """
    above = [(math.log(p.count), math.log(p.cost - floor)) for p in points if p.cost > floor]
    if len(above) < 2:
        return 0.0
    x_mean = sum(x for x, _ in above) / len(above)
    y_mean = sum(y for _, y in above) / len(above)
    spread = sum((x - x_mean) ** 2 for x, _ in above)
    return sum((x - x_mean) * (y - y_mean) for x, y in above) / spread


def largest(values):
    """The largest of those that are there, or None."""
    there = [value for value in values if value is not None]
    return max(there) if there else None


def judged(row, points, floor=0.0):
    """The verdict on the measurements of a row, which has bounds by name: exponent, turn, ratio, cost.

    The longest turn is that of all sizes; the ratio is that of large ones, for in small ones a constant hides it; the
    cost is that of the largest.
    """
    points = sorted(points, key=lambda point: point.count)
    last = points[-1]
    fitted = exponent(points, floor) if len(points) > 1 else None
    ratios = [point.ratio for point in points if point is last or point.count >= LARGE]
    verdict = Verdict(fitted, largest(p.turn_ms for p in points), largest(ratios), last.cost)
    figures = {"exponent": fitted, "turn": verdict.turn_ms, "ratio": verdict.ratio, "cost": last.cost}
    for name, bound in row.bounds.items():
        value = figures[name]
        if value is None:
            continue
        if value > bound.limit:
            verdict.faults.append(f"{name} {value:.3g}, at most {bound.limit:g} is allowed")
        elif value > bound.goal:
            verdict.unmet.append(f"{name} {value:.3g}, {bound.goal:g} is wanted: {bound.why}")
    return verdict
