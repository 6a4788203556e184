"""The figures of a run's turns: the same sums for every peer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

RATE = "hand-overs per second"
GRANTS = "acquisitions per second"
P50 = "hand-over p50, microseconds"
P99 = "hand-over p99, microseconds"
COMMANDS = "server commands per hand-over"
COMMANDS_PER_GRANT = "server commands per acquisition"
FAIRNESS = "fairness (Jain)"
LONGEST = "longest wait, milliseconds"

#: Below this many turns for each contender, an index of fairness measures the clock and not the lock.
TURNS_FOR_FAIRNESS = 3


@dataclass(frozen=True)
class Turn:
    """One contender's turn. Times are nanoseconds of CLOCK_MONOTONIC."""

    who: int
    asked: int
    granted: int  # when the reply was there; 0: never, the contender gave up
    freed: int  # when the release was sent


@dataclass(frozen=True)
class Run:
    contenders: int
    opening: int  # before, a line formed behind a holder who waited
    start: int  # what was granted before belongs to the start and is not counted
    end: int
    turns: Sequence[Turn]  # in the order of the grants
    given_up: Sequence[Turn]  # what was never granted

    def check(self) -> None:
        """No lock that is worth measuring has two holders."""
        for before, after in pairwise(self.turns):
            if after.granted < before.freed:
                raise RuntimeError(f"two holders: {before} and {after}")

    def hand_overs(self) -> int:
        """The number of hand-overs in the whole run, the first grant among them."""
        return 1 + sum(before.who != after.who for before, after in pairwise(self.turns))

    def figures(self) -> dict[str, float]:
        """All quantities of one run, by metric.

        A hand-over is a grant to another contender than the last. A contender that frees a lock and is granted it again
        has handed over nothing, and would look fast by blocking all others. A hand-over takes from the moment when the
        holder sends its release to that when the next one has its reply.
        """
        inside = [turn for turn in self.turns if self.start <= turn.granted < self.end]
        latencies = sorted(
            after.granted - before.freed
            for before, after in pairwise(self.turns)
            if before.who != after.who and self.start <= after.granted < self.end
        )
        seconds = (self.end - self.start) / 1e9
        found = {RATE: len(latencies) / seconds, GRANTS: len(inside) / seconds, LONGEST: self._longest() / 1e6}
        if latencies:
            found[P50] = latencies[len(latencies) // 2] / 1e3
            found[P99] = latencies[len(latencies) * 99 // 100] / 1e3
        if len(inside) >= TURNS_FOR_FAIRNESS * self.contenders:
            counts = Counter(turn.who for turn in inside).values()
            found[FAIRNESS] = sum(counts) ** 2 / (self.contenders * sum(count**2 for count in counts))
        return found

    def _longest(self) -> int:
        """The longest wait up to a moment of the window, whether it had ended by then or not."""
        over = [(turn.asked, min(turn.granted, self.end)) for turn in self.turns if turn.granted >= self.start]
        waits = over + [(turn.asked, self.end) for turn in self.given_up]
        return max((until - max(asked, self.opening) for asked, until in waits), default=0)
