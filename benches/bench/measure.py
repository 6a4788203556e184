"""The order of measurements: figures, and rounds in which the subjects take turns.

A machine gets slower and faster while one looks. So nothing is measured once, and nothing is compared with a number of
another run. Within a run the subjects alternate: each round measures all of them, in a random order, and every other
round in the reverse of the order before. So each subject runs as often before another one as after it. The report gives
the median of the rounds, with the lowest and the highest, and ratios are taken within a round, between neighbours in
time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb, inf
from statistics import median

#: The subject that all others are compared with.
OURS = "redislock"

#: The minimum for a published figure.
ROUNDS = 5


@dataclass(frozen=True)
class Figure:
    """One quantity of one subject, a value a round."""

    scenario: str  # the file that measured it: "uncontended"
    server: str  # Release.label: "Redis 7.0.15"; a peer that is no Redis: its name and version
    setting: str  # "50 connections, pipelined by 16, AOF everysec"
    subject: str  # OURS or a peer: "SET NX PX + DEL"
    metric: str  # "pairs per second"
    values: tuple[float, ...]  # one a round, in the order of the rounds

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    @property
    def is_more_better(self) -> bool:
        """Returns whether a higher value is the better one: rates and fairness; time, work and memory are costs."""
        return self.metric.endswith("per second") or "fairness" in self.metric

    def over(self, other: Figure) -> Ratio:
        """This figure as a multiple of another one, round by round: without end of one that was 0."""
        if len(self.values) != len(other.values):
            raise ValueError(f"{self.subject} has {len(self.values)} rounds, {other.subject} {len(other.values)}")
        ratios = [mine / theirs if theirs else inf for mine, theirs in zip(self.values, other.values, strict=True)]
        return Ratio.of(ratios)


@dataclass(frozen=True)
class Ratio:
    """A ratio of two figures over the rounds."""

    median: float
    low: float
    high: float
    #: The rounds between which the true median lies, by chances of at least 93 in 100.
    surely: tuple[float, float]

    @classmethod
    def of(cls, values: Sequence[float]) -> Ratio:
        found = sorted(values)
        cut = cut_of(len(found))
        return cls(median(found), found[0], found[-1], (found[cut], found[-1 - cut]))

    def inverse(self) -> Ratio:
        least, most = self.surely
        return Ratio(1 / self.median, 1 / self.high, 1 / self.low, (1 / most, 1 / least))


def cut_of(rounds: int) -> int:
    """Returns how many of the lowest and of the highest rounds can be left out while the rest still spans the true
    median.

    The sign test: each round is as likely above the true median as below it. With five rounds none can be left out (94 in
    100), with 14 three can.
    """
    cut = 0
    while 2 * sum(comb(rounds, below) for below in range(cut + 2)) / 2**rounds <= 0.07:
        cut += 1
    return cut


def in_turns(rounds: int, subjects: Mapping[str, Callable[[], Mapping[str, float]]]) -> dict[str, dict[str, tuple[float, ...]]]:
    """Measures every subject once a round, in the orders of `orders`.

    Each subject is a function that measures once and returns values by metric. The result is
    `{subject: {metric: values}}`.
    """
    seen: dict[str, dict[str, list[float]]] = {name: {} for name in subjects}
    for order in orders(rounds, list(subjects)):
        for name in order:
            for metric, value in subjects[name]().items():
                seen[name].setdefault(metric, []).append(value)
    return {name: {metric: tuple(values) for metric, values in found.items()} for name, found in seen.items()}


def orders(rounds: int, names: list[str]) -> list[list[str]]:
    """An order of the names for each round: a random one, then its reverse. The same for the same names."""
    chance = random.Random(" ".join(names))
    found: list[list[str]] = []
    for number in range(rounds):
        found.append(found[-1][::-1] if number % 2 else chance.sample(names, len(names)))
    return found
