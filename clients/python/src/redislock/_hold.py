"""A hold, as the sync and the asyncio client share it, and the scheduler that renews all holds."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

from . import hooks as _hooks
from ._rules import PAUSE, RENEW_AT, WAIT_MARGIN, WATCH_AFTER, Grant, Wanted, clock, deadline
from .errors import ConnectionFailed, LockLost, RedislockError

logger = logging.getLogger("redislock")
_NEVER = math.inf


class BaseHold:
    """One or several locks that are held together, until they are given up or lost."""

    def __init__(
        self, keeper: Keeper, wanted: Wanted, grant: Grant, *, renew: bool = True, longest: float | None = None
    ) -> None:
        self._keeper, self._wanted = keeper, wanted
        self._pid = os.getpid()
        self._alive = [True]  # popped by who ends the hold: one of several threads
        self._reason: str | None = None
        self._listeners: list[Callable[[str], object]] = []
        self._longest_at = grant.sent + longest if longest is not None else _NEVER
        self._is_renewed = renew
        self.token = grant.token
        self._granted_at = clock()
        self._watch_at = self._granted_at + WATCH_AFTER
        self._count_from(grant.sent)
        keeper.keep(self)

    def __repr__(self) -> str:
        state = "given up" if not self._alive and self._reason is None else self.lost or "held"
        return f"<{type(self).__name__} {self.name!r} token={self.token} {state}>"

    @property
    def name(self) -> str:
        """The name of the lock, or of the first of them."""
        return self._wanted.names[0].decode(errors="replace")

    @property
    def owner(self) -> str:
        """Who holds it, as LOCK.INFO tells: host, process, and an id of this hold."""
        return self._wanted.owner.decode(errors="replace")

    @property
    def remaining(self) -> float:
        """For how many seconds the hold is sure to last, by this machine's own clock."""
        return max(0.0, self._deadline - clock()) if self._alive and self._is_ours() else 0.0

    @property
    def lost(self) -> str | None:
        """Why the hold was lost; None if it was not."""
        if not self._is_ours():
            return "fork"
        if self._alive and clock() >= self._deadline:
            self._lose("deadline")
        return self._reason

    def check(self) -> float:
        """The seconds that remain; raises LockLost if the hold is over. Asks no server."""
        if (reason := self.lost or (None if self._alive else "release")) is not None:
            raise self._error(reason)
        return self.remaining

    def _error(self, reason: str) -> LockLost:
        names = ", ".join(name.decode(errors="replace") for name in self._wanted.names)
        return LockLost(f"the lock {names} is held no more ({reason})", reason=reason)

    def _is_ours(self) -> bool:
        """Whether this is the process that got the hold: a child that was forked has none."""
        return os.getpid() == self._pid

    def _count_from(self, sent: float) -> None:
        self._deadline = deadline(sent, self._wanted.lease)
        due = sent + self._wanted.lease * RENEW_AT
        self._renew_at = due if self._is_renewed and due < self._longest_at else _NEVER

    def _due(self) -> float:
        return min(self._watch_at, self._renew_at, self._deadline)

    def _finish(self) -> bool:
        """Whether this call is the one that ended the hold."""
        try:
            self._alive.pop()
        except IndexError:
            return False
        self._keeper.drop(self)
        return True

    def _lose(self, reason: str) -> None:
        if self._end(reason):
            self._keeper.soon(self._keeper.abandon, self._wanted, self.token)

    def _end(self, reason: str) -> bool:
        """Whether this call is the one that ended the hold. Its holder is told; the server may still have it."""
        if not self._finish():
            return False
        self._reason = reason
        _hooks.call(self._keeper.hooks, "lost", self.name, clock() - self._granted_at, reason)
        self._tell(reason)
        return True

    def _tell(self, reason: str) -> None:
        """Tells the holder of the loss."""


class Keeper(ABC):
    """Renews all holds of a process or of an event loop, and ends those whose deadline is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hooks: _hooks.Hooks) -> None:
        self.loop, self.hooks = loop, hooks
        self.holds: dict[BaseHold, None] = {}
        self._wake_at = _NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._acquiring = 0
        self._is_closing = False

    @abstractmethod
    async def renew(self, hold: BaseHold) -> bool:
        """Begins the lease of the hold anew, or loses it; whether it was renewed."""

    @abstractmethod
    async def look(self, hold: BaseHold) -> None:
        """Asks the servers whether the hold lasts, and to tell when that changes."""

    @abstractmethod
    def abandon(self, wanted: Wanted, token: int | None = None) -> None:
        """Gives up whatever this request got or may still get, or, with a token, the hold that has it."""

    @abstractmethod
    def call_waiters(self) -> None:
        """Lets all who wait look around."""

    def _refuse_if_closing(self) -> None:
        if self._is_closing:
            raise ConnectionFailed("these locks were closed")

    async def stop_waiting(self) -> None:
        """Refuses all who wait, and waits until they have gone."""
        self._is_closing = True
        until = clock() + WAIT_MARGIN
        while self._acquiring and clock() < until:
            self.call_waiters()
            await asyncio.sleep(PAUSE)

    def keep(self, hold: BaseHold) -> None:
        """From now on the hold is looked after. Any thread may call this."""
        self.holds[hold] = None
        self._alarm(hold)

    def drop(self, hold: BaseHold) -> None:
        """The hold is over. Any thread may call this."""
        self.holds.pop(hold, None)

    def soon(self, what: Callable[..., object], *arguments: Any) -> None:
        """Calls this in the event loop, unless that is closed. Any thread may call this."""
        try:
            self.loop.call_soon_threadsafe(what, *arguments)
        except RuntimeError:
            logger.debug("the event loop is closed")

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs this beside all else."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A server that does not answer is no surprise: the caller was told, or the deadline of the hold tells.
            level = logging.DEBUG if isinstance(error, RedislockError) else logging.ERROR
            logger.log(level, "work in the background failed: %s", error, exc_info=error)

    def _alarm(self, hold: BaseHold) -> None:
        if hold._due() < self._wake_at:
            self.soon(self._arm, hold._due())

    def _arm(self, at: float) -> None:
        if at >= self._wake_at:
            return
        self._wake_at = at
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(max(0.0, at - clock()), self._tick)

    def _tick(self) -> None:
        # From here on who adds a hold raises an alarm, which is heard after this turn.
        self._wake_at, now, first = _NEVER, clock(), _NEVER
        for hold in list(self.holds):
            if now >= hold._deadline:
                hold._lose("deadline")
                continue
            # What is due a little later is done in the same turn.
            if hold._renew_at <= now + hold._wanted.lease * RENEW_AT / 20:
                hold._renew_at = _NEVER
                self.begin(self._then_alarm(self.renew(hold), hold))
            if hold._watch_at <= now + WATCH_AFTER / 2:
                hold._watch_at = _NEVER
                self.begin(self._then_alarm(self.look(hold), hold))
            first = min(first, hold._due())
        if first < _NEVER:
            self._arm(first)

    async def _then_alarm(self, work: Coroutine[Any, Any, object], hold: BaseHold) -> None:
        await work
        if hold in self.holds:
            self._alarm(hold)

    async def _stop(self) -> None:
        """Ends the scheduler, after all that has begun."""
        if self._timer is not None:
            self._timer.cancel()
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=2.0)
            for task in late:
                task.cancel()
