"""A wall clock that a test sets, for a server that runs. Its other clocks are unchanged.

The library that is preloaded into the server for that is tests/server/wall_clock.c.
"""

import struct
from pathlib import Path

from .preloaded import built

SOURCE = Path(__file__).resolve().parents[2] / "server" / "wall_clock.c"


def build(directory):
    """Compiles the library; its path."""
    return built(SOURCE, directory)


class WallClock:
    """The wall clock of one server: start it with `environment`."""

    def __init__(self, library, path):
        self.path = path
        self.path.write_bytes(bytes(8))
        self.environment = {"LD_PRELOAD": str(library), "WALL_CLOCK_FILE": str(path)}

    def set_ahead(self, seconds):
        """Steps it: so far ahead of the true time, or negative."""
        with self.path.open("r+b") as file:
            file.write(struct.pack("=q", round(seconds * 1_000_000)))
