"""The project's targets, and whether a run has shown them. Targets are ratios within a run, or limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from .floor import PROMISES, TOKEN
from .measure import OURS, Figure, Ratio
from .peers import turns
from .results import baseline, compared
from .scenarios import instructions, others, tool
from .subjects import CHEAPEST

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"

#: The bound for servers that are not named.
ELSE = ""


@dataclass(frozen=True)
class Target:
    """A bound on `metric` of what `picks` chooses: of the ratio to its baseline, or of our value itself."""

    what: str
    scenario: str
    metric: str
    picks: Callable[[Figure], bool]
    bounds: Mapping[str, float]  # by the beginning of a server's label: "Redis 7.0"
    is_at_least: bool = False
    is_ratio: bool = True

    def bound(self, server: str) -> float:
        named = (value for name, value in self.bounds.items() if name and f"{server}.".startswith(f"{name}."))
        return next(named, self.bounds[ELSE])

    def holds(self, value: float, server: str) -> bool:
        bound = self.bound(server)
        return value >= bound if self.is_at_least else value <= bound

    def told_bound(self, server: str) -> str:
        bound = self.bound(server)
        told = f"{bound:.2f}" if self.is_ratio or bound < 1 else f"{bound:g}"
        return f"{'at least' if self.is_at_least else 'at most'} {told}"


@dataclass(frozen=True)
class Judged:
    """A target on one server in one setting, against one subject."""

    target: Target
    server: str
    setting: str
    subject: str
    seen: Ratio

    @property
    def verdict(self) -> str:
        """Returns whether the true median is on the right side of the bound, as far as the rounds agree on that."""
        sides = {self.target.holds(value, self.server) for value in (self.seen.median, *self.seen.surely)}
        return UNDECIDED if len(sides) > 1 else HOLDS if sides == {True} else FAILS


def pair_against(subjects: tuple[str, ...], *endings: str) -> Callable[[Figure], bool]:
    return lambda f: f.subject in subjects and f.setting.endswith(endings)


def handed_over(subject: Callable[[str], bool]) -> Callable[[Figure], bool]:
    return lambda f: subject(f.subject) and f.setting.startswith("100 contenders, hold 0 ms")


def instructions_against(what: str, subjects: tuple[str, ...], bounds: Mapping[str, float], *endings: str) -> Target:
    picks = pair_against(subjects, *(endings or ("no persistence",)))
    return Target(f"instructions per pair, {what}", "instructions", instructions.METRIC, picks, bounds)


BLPOP = "BLPOP token"
A_BLPOP = handed_over(lambda name: name == BLPOP)
OURS_100 = handed_over(lambda name: name == OURS)
ANOTHER = handed_over(lambda name: name not in (OURS, BLPOP, TOKEN, PROMISES))
MILLION_END = "1,000,000 leases end within 1 s"

TARGETS = [
    instructions_against("against the cheapest", (CHEAPEST,), {"Redis 7.0": 1.00, ELSE: 0.90}),
    instructions_against("against compare-and-delete by script", ("SET NX PX + EVALSHA",), {ELSE: 0.43}),
    instructions_against(
        "against compare-and-delete by command", ("SET NX PX + DELEX IFEQ", "SET NX PX + DELIFEQ"), {ELSE: 0.85}
    ),
    instructions_against("against scripts with a fencing counter", ("EVALSHA with INCR + EVALSHA",), {ELSE: 0.25}),
    instructions_against("against the cheapest, kept", (CHEAPEST,), {ELSE: 1.00}, "AOF everysec", "one replica"),
    Target("hand-overs/s with 100 waiters, against a bare BLPOP token", "handover", turns.RATE, A_BLPOP, {ELSE: 0.90}, True),
    Target("server commands per hand-over", "handover", turns.COMMANDS, OURS_100, {ELSE: 2.05}, is_ratio=False),
    Target("fairness (Jain)", "handover", turns.FAIRNESS, OURS_100, {ELSE: 0.99}, True, is_ratio=False),
    Target("hand-overs/s with 100 waiters, against every other", "handover", turns.RATE, ANOTHER, {ELSE: 1.00}, True),
    Target("hand-over p50, against a bare BLPOP hand-over", "handover", turns.P50, A_BLPOP, {ELSE: 1.15}),
    Target(
        "memory per held lock, against the SET string with PX",
        "memory",
        "bytes per held lock",
        lambda f: f.subject == "SET NX PX" and f.setting.startswith("1,000,000 locks"),
        {"Redis 8.6": 1.10, ELSE: 1.00},
    ),
    Target(
        "PING p99.9 while 1 M leases end in one second, ms",
        "scale",
        "PING p99.9, ms",
        lambda f: f.subject == OURS and f.setting.startswith(MILLION_END),
        {ELSE: 10},
        is_ratio=False,
    ),
    Target(
        "SET/GET throughput with the module loaded and idle",
        "others",
        "pairs per second",
        lambda f: f.subject == others.IDLE,
        {ELSE: 0.99},
        True,
    ),
    Target(
        "the same, by instructions (their inverse)",
        "others",
        instructions.METRIC,
        lambda f: f.subject == others.IDLE,
        {ELSE: 0.99},
        True,
    ),
    Target(
        "an acquire and its release by a client library, against the bare commands",
        "clients",
        "microseconds for an acquire and its release",
        lambda f: f.subject == "the bare commands",
        {ELSE: 1.25},
    ),
    Target("start-up of `redislock run`, ms", "tool", tool.START, lambda f: f.subject == OURS, {ELSE: 15}, is_ratio=False),
]


def judged(target: Target, figures: Iterable[Figure]) -> Iterator[Judged]:
    """Wherever the run has measured it; nowhere, if it has not."""
    block = [f for f in figures if (f.scenario, f.metric) == (target.scenario, target.metric)]
    for figure in filter(target.picks, block):
        if not target.is_ratio:
            yield Judged(target, figure.server, figure.setting, "", Ratio.of(figure.values))
            continue
        other = baseline(figure, block)
        if other is None:
            continue
        seen = compared(figure, other)
        if target.scenario == "others" and not figure.is_more_better:
            seen = seen.inverse()  # less work is more throughput
        # A peer's own server tells nothing about our bound there.
        server = other.server if other.subject == OURS else figure.server
        yield Judged(target, server, figure.setting, figure.subject, seen)
