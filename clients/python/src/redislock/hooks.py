"""Hooks are called for lock events: derive from Hooks, or use a class of this module.

A hook is called while the library works, so it must not block. With threads, most hooks run in the thread that renews
all locks; a call there that asks a server raises RuntimeError. An exception in a hook, even SystemExit, is logged and
otherwise ignored.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

logger = logging.getLogger("redislock")


class Hooks:
    """Hooks that do nothing. `name` is the name of the lock, or of the first of several; times are seconds."""

    def requested(self, name: str) -> None:
        """Called when an acquire begins. `granted`, `timed_out` or `failed` follows."""

    def failed(self, name: str, waited: float, error: BaseException) -> None:
        """Called when an acquire fails for another reason than a timeout, or is cancelled, after `waited`."""

    def waiting(self, name: str) -> None:
        """Called when an acquire has to wait."""

    def granted(self, name: str, waited: float) -> None:
        """Called when a lock is granted. The request waited for `waited`."""

    def timed_out(self, name: str, waited: float) -> None:
        """Called when a lock is not granted in time. The request waited for `waited`."""

    def released(self, name: str, held: float) -> None:
        """Called when a holder releases its hold. It lasted for `held`."""

    def detached(self, name: str, held: float) -> None:
        """Called when a hold is detached, for another process to adopt. It lasted for `held`."""

    def adopted(self, name: str) -> None:
        """Called when a hold is adopted that another process has detached."""

    def lost(self, name: str, held: float, reason: str) -> None:
        """Called when a hold is lost. It lasted for `held`."""

    def renewal_failed(self, name: str, error: Exception) -> None:
        """Called for each failed renewal. Renewals are retried until the hold's deadline."""

    def reconnected(self, address: str) -> None:
        """Called when a server (host:port) answers again over a new connection."""

    def forgotten(self, name: str, held: float) -> None:
        """Called when nothing refers to a hold that was not released. It is no longer renewed: its lease ends it."""


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
        # The hook may only have received it by chance: it is meant for the program.
        if threading.current_thread() is threading.main_thread():
            raise
        logger.exception("the hook %s failed", what)
    except BaseException:
        logger.exception("the hook %s failed", what)
