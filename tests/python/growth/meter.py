"""Turns of the event loop of a server: how many there were, and how much processor time they took.

A library is preloaded into the server (`turns.c`), which reads the clock of the main thread before and after each wait
for events. So other processes at the same time do not count, and neither the server's version nor its own figures
matter.
"""

import mmap
import struct
import time
from pathlib import Path
from typing import NamedTuple

from harness.preloaded import built

SOURCE = Path(__file__).with_name("turns.c")
FIGURES = struct.Struct("=QQQQ")
#: A server that did at most this many turns between two looks has nothing more to do; its cron continues.
IDLE_TURNS_MAX = 4
IDLE_SECONDS = 0.03
IDLE_LOOKS = 3
SECONDS_MAX = 60.0


class Turns(NamedTuple):
    """A measurement: the sum of all turns, and the longest of them."""

    count: int
    total_us: float
    longest_ms: float


class Meter:
    """The meter of one server: start that with `under`."""

    def __init__(self, directory):
        library = Path(directory) / f"{SOURCE.stem}.so"
        if not library.exists():
            built(SOURCE, library.parent)
        path = Path(directory) / f"turns-{time.monotonic_ns()}"
        path.write_bytes(bytes(FIGURES.size))
        self._file = path.open("r+b")
        self._page = mmap.mmap(self._file.fileno(), FIGURES.size)
        #: Of the server, once it runs.
        self.pid = None
        self.under = ("env", f"LD_PRELOAD={library}", f"TURNS_FILE={path}")

    def close(self):
        """Ends the measurement."""
        self._page.close()
        self._file.close()

    def reset(self, is_brief=False):
        """Waits until the server has nothing to do, and resets the meter."""
        self.rest(is_brief)
        self._page[: FIGURES.size - 8] = bytes(FIGURES.size - 8)

    def read(self, is_brief=False):
        """Waits until the server has nothing to do; returns its work since `reset`."""
        self.rest(is_brief)
        count, total_ns, longest_ns, _ = FIGURES.unpack(self._page)
        return Turns(count, total_ns / 1e3, longest_ns / 1e6)

    def rest(self, is_brief=False):
        """Waits until the server has nothing to do; briefly, where nothing but a reply was waited for."""
        deadline = time.monotonic() + SECONDS_MAX
        looks, before = 0, None
        while looks < (1 if is_brief else IDLE_LOOKS):
            if time.monotonic() > deadline:
                raise TimeoutError("the server does not come to rest")
            time.sleep(IDLE_SECONDS / 30 if is_brief else IDLE_SECONDS)
            turns, *_, is_asleep = FIGURES.unpack(self._page)
            is_idle = is_asleep and not self._is_kept_waiting() and before is not None and turns - before <= IDLE_TURNS_MAX
            looks = looks + 1 if is_idle else 0
            before = turns

    def _is_kept_waiting(self):
        """Returns whether it would run if it had a processor."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "R"
