"""The inputs of every scenario: the servers, the number of runs, and a way to report progress."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from .servers import Release


@dataclass(frozen=True)
class Bench:
    """One run of the suite. `scenarios.<name>.run(bench)` measures with it and returns figures."""

    releases: list[Release]
    rounds: int
    is_quick: bool  # a smoke run: whether it works, not what it costs
    load: Path  # the load generator
    results: Path  # the folder of this run; nothing has to be written there
    started: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        """One line of progress, with the seconds since the start."""
        print(f"bench: {time.monotonic() - self.started:4.0f} s  {text}", file=sys.stderr, flush=True)
