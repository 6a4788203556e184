"""What a program can be told about its locks: derive from Hooks, or use one that is here.

A hook is called in the middle of the work, so it must be quick, and not wait: with threads, most run in the thread that
renews all locks. There what would wait for a server raises RuntimeError. An exception in a hook is logged and does no
harm, not even that of sys.exit().
"""

from __future__ import annotations

import logging
import threading
from typing import Any

logger = logging.getLogger("redislock")


class Hooks:
    """Hooks that do nothing. `name` is the name of the lock, or of the first of several; times are seconds."""

    def requested(self, name: str) -> None:
        """An acquire begins. It ends by `granted`, `timed_out` or `failed`."""

    def failed(self, name: str, waited: float, error: BaseException) -> None:
        """An acquire ended in an error that is no time-out, or was cancelled, after `waited`."""

    def waiting(self, name: str) -> None:
        """An acquire waits in line."""

    def granted(self, name: str, waited: float) -> None:
        """A lock was granted. The request had waited for `waited`."""

    def timed_out(self, name: str, waited: float) -> None:
        """A lock was not to be had in time. The request had waited for `waited`."""

    def released(self, name: str, held: float) -> None:
        """A hold was given up by its holder. It had lasted for `held`."""

    def detached(self, name: str, held: float) -> None:
        """A hold was detached, for another process to adopt. It had lasted for `held`."""

    def adopted(self, name: str) -> None:
        """A hold was adopted that another process had detached."""

    def lost(self, name: str, held: float, reason: str) -> None:
        """A hold was lost. It had lasted for `held`."""

    def renewal_failed(self, name: str, error: Exception) -> None:
        """A renewal failed, and is tried again until the hold's deadline."""

    def reconnected(self, address: str) -> None:
        """A server (host:port) answers again, after its connection had ended."""

    def forgotten(self, name: str, held: float) -> None:
        """A hold was forgotten: nothing refers to it, and it was not given up. Its lease ends it, without a renewal."""


class Counters(Hooks):
    """Hooks that count."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.grants = self.timeouts = self.losses = self.releases = self.waits = 0

    def _add(self, which: str) -> None:
        with self._guard:
            setattr(self, which, getattr(self, which) + 1)

    def waiting(self, name: str) -> None:
        self._add("waits")

    def granted(self, name: str, waited: float) -> None:
        self._add("grants")

    def timed_out(self, name: str, waited: float) -> None:
        self._add("timeouts")

    def released(self, name: str, held: float) -> None:
        self._add("releases")

    def lost(self, name: str, held: float, reason: str) -> None:
        self._add("losses")


def call(hooks: Hooks, what: str, *arguments: Any) -> None:
    """Calls one of the hooks."""
    try:
        getattr(hooks, what)(*arguments)
    except KeyboardInterrupt:
        # It may have met the hook by chance, and is meant for the program.
        if threading.current_thread() is threading.main_thread():
            raise
        logger.exception("the hook %s failed", what)
    except BaseException:
        logger.exception("the hook %s failed", what)
