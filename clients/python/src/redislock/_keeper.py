"""The scheduler that renews all holds of a process or of an event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from . import hooks as _hooks
from ._hold import BaseHold
from ._info import Info
from ._rules import CLOSE, LONGEST_PAUSE, LOOK, NAP, PAUSE, RENEW_AT, WAIT_MARGIN, WATCH_AFTER, Wanted, clock, deadline
from .errors import ConnectionFailedError, LockLostError, LocksClosedError, RedislockError

logger = logging.getLogger("redislock")
_NEVER = math.inf
#: Objects that a forked child has inherited. They are kept, because closing them would harm the parent.
inherited: list[object] = []
#: All keepers of the process, for tests that move the clock.
keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()
#: The warning for a forgotten hold, which may be the first that its user learns of it.
_FORGOTTEN = (
    "the hold of %s was forgotten: nothing refers to it any more, so it is renewed no more and ends with its lease. "
    "Keep what acquire() returns until you release it, or use a block."
)


@dataclass(eq=False, slots=True)
class _Kept:
    """The keeper's record of a hold.

    It refers to the hold weakly, and without a finalizer, which could run in any thread at any time. The keeper notices
    that the hold was garbage-collected, at the latest when its renewal is due.
    """

    number: int
    hold: weakref.ref[BaseHold]
    wanted: Wanted
    token: int
    granted_at: float
    #: The time until which the server may have it, after it was forgotten or lost.
    left_until: float = _NEVER

    def is_worked_under(self, by: tuple[int, int]) -> bool:
        """Returns whether a body of another thread or task works under it."""
        hold = self.hold()
        return hold is not None and hold._has_block and self.wanted.by != by


class Keeper(ABC):
    """Renews all holds of a process or of an event loop, and ends those whose deadline has passed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hooks: _hooks.Hooks) -> None:
        self.loop, self.hooks, self.pid = loop, hooks, os.getpid()
        keepers.add(self)
        self._kept: dict[int, _Kept] = {}
        #: Holds that must stay alive although nothing else refers to them.
        self.pinned: dict[BaseHold, None] = {}
        #: Holds that were forgotten, or lost and not released: the server may have each until its lease expires.
        self._left: dict[int, _Kept] = {}
        self._wake_at = _NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._acquiring = 0
        #: The number of callers that wait for a release.
        self.releasing = 0
        #: Threads that are acquiring a lock, until its hold is registered.
        self.taking: set[object] = set()
        self._is_closing = self._is_over = False
        #: The waits that were logged, and when.
        self.said: dict[str, float] = {}

    async def renew(self, hold: BaseHold, lease: float | None = None) -> None:
        """Starts a lease of `lease` seconds, or of the hold's own length. Raises LockLostError if the hold has ended.

        Renewals run one at a time: a repeated older one would shorten the lease that a newer one has started.
        """
        async with hold._renewing:
            hold.check()
            asked = hold._lease if lease is None else lease
            lease = min(max(asked, hold._wanted.parked_until - clock()), hold._over_at - clock())
            # From now on the server may end it this early, whether or not the client receives the reply.
            hold._deadline = min(hold._deadline, deadline(clock(), lease))
            self._alarm(hold)
            try:
                sent = await self._renewed(hold, lease)
                if sent is None:
                    hold._lose("renewal")
                    hold.check()
                else:
                    hold._lease = asked
                    hold._count_from(sent, lease)
                    hold._renewal_succeeded()
            except BaseException as error:
                is_new = error is not hold._failure and not isinstance(error, LockLostError)
                if is_new and isinstance(error, RedislockError):
                    hold._renewal_failed(error)
                # The failure may be temporary, such as a lack of replicas. If it is not, the deadline ends the hold.
                hold._renew_next(clock() + LONGEST_PAUSE)
                if isinstance(error, ConnectionFailedError | LocksClosedError):
                    hold.check()  # it was tried until the deadline
                raise
            finally:
                self._alarm(hold)

    @abstractmethod
    async def _renewed(self, hold: BaseHold, lease: float) -> float | None:
        """Renews the lease. Returns its start; None if the hold is lost. Raises if neither is certain."""

    @abstractmethod
    async def look(self, hold: BaseHold) -> None:
        """Asks the servers whether the hold lasts, and subscribes to changes."""

    @abstractmethod
    async def info(self, name: bytes) -> Info | None:
        """Returns the servers' information on this lock."""

    async def holders(self, wanted: Wanted) -> Info | None:
        """Returns the holders of one of these locks, if the server can be asked at once."""
        try:
            async with asyncio.timeout(LOOK):
                for name in wanted.names:
                    if (info := await self.info(name)) is not None and info.holders:
                        return info
        except (RedislockError, TimeoutError):  # it need not be allowed
            logger.debug("who holds %s is not known", wanted.all_names, exc_info=True)
        return None

    @abstractmethod
    def abandon(self, wanted: Wanted, token: int | None = None) -> None:
        """Releases all that this request got or may still get; with a token, the hold that has it."""

    @abstractmethod
    def call_waiters(self) -> None:
        """Makes all waiters check again."""

    @abstractmethod
    async def release(self, wanted: Wanted, token: int) -> bool:
        """Returns whether all locks were still held, as far as known. If it fails or is cancelled, it is retried in the
        background if possible."""

    def close_later(self) -> None:
        """Ends the connections of locks that have no reference left. A body may still work under a lease."""
        if self.pid == os.getpid():
            self.soon(lambda: self.begin(self.close(clock() + CLOSE, gives_up=False)))
        else:
            inherited.append(self)

    def refuse_if_closing(self) -> None:
        if self._is_closing:
            raise LocksClosedError("these locks are closed")

    async def _stop_waiting(self, until: float) -> None:
        """Fails all waiters, and waits until each has returned, with its grant if it has one."""
        self._is_closing = True
        self._find_forgotten()
        while (self._acquiring or self.taking) and clock() < until:
            self.call_waiters()
            await asyncio.sleep(PAUSE)

    def end_holds(self) -> list[_Kept]:
        """Ends all holds. Returns all that the servers may still have, including forgotten and lost holds."""
        for hold in self.holds:
            hold._lose("close")
        return [kept for kept in list(self._left.values()) if clock() < kept.left_until]

    async def close(self, until: float, by: tuple[int, int] | None = None, *, gives_up: bool = True) -> None:
        """Ends all holds, waits, tasks and connections by then, whatever the servers do.

        If `gives_up`, all locks that the servers may still have are released in parallel. A lock that a body works
        under is released when the body ends, or ends with its lease.

        by: the thread and task that waits for the bodies of all others. Without it, no bodies are awaited.
        """
        if self._is_over:
            return
        bodies_until = until - (until - clock()) / 5
        await self._stop_waiting(min(until, clock() + WAIT_MARGIN))
        left = self.end_holds()
        working = {kept.number: kept for kept in left if by is not None and kept.is_worked_under(by)}
        if gives_up and clock() < until:
            idle = [kept for kept in left if kept.number not in working]
            await asyncio.gather(*(self._release_at_end(kept.wanted, kept.token, until) for kept in idle))
        while True:
            late = working.keys() & self._left.keys()
            if not late or clock() >= bodies_until:
                break
            await asyncio.sleep(PAUSE)
        if late:
            names = ", ".join(working[number].wanted.all_names for number in sorted(late))
            logger.warning("closed while a block still works under %s: it stays taken until its lease expires", names)
        await self._stop(until)
        if late:
            self.begin(self._end_late(late))
        else:
            await self.disconnect(until)

    async def _end_late(self, late: set[int]) -> None:
        """Keeps the connections while a body works, or until its lease has expired. The end of the body, or of the
        program, releases the lock."""
        while any(number in self._left and clock() < self._left[number].left_until for number in late):  # noqa: ASYNC110
            await asyncio.sleep(LONGEST_PAUSE)
        await self.disconnect(clock() + WAIT_MARGIN)

    async def disconnect(self, until: float) -> None:
        """Ends all connections, and makes no new ones."""
        self._is_over = True

    async def _release_at_end(self, wanted: Wanted, token: int, until: float) -> None:
        failure = "no time was left"
        try:
            async with asyncio.timeout(until - clock()):
                await self.release(wanted, token)
                return
        except RedislockError as error:
            failure = str(error)
        except TimeoutError:
            pass
        logger.warning("%s was not released: %s", wanted.name, failure)

    def keep(self, hold: BaseHold) -> None:
        """Tracks the hold from now on. Any thread may call this."""
        kept = _Kept(hold._number, weakref.ref(hold), hold._wanted, hold.token, hold._granted_at)
        self._kept[hold._number] = kept
        self._alarm(hold)

    def drop(self, hold: BaseHold, *, is_lost: bool) -> None:
        """Stops tracking the hold, which has ended. Any thread may call this."""
        kept = self._kept.pop(hold._number, None)
        self.pinned.pop(hold, None)
        if is_lost and kept is not None:
            self._leave(kept)

    def _leave(self, kept: _Kept) -> None:
        """Leaves the server's hold to its user, who may still work under it, and to its lease."""
        now = clock()
        kept.left_until = now + kept.wanted.lease
        for each in list(self._left.values()):
            if each.left_until <= now:
                self._left.pop(each.number, None)
        self._left[kept.number] = kept

    def give_up_left(self, hold: BaseHold) -> None:
        """Releases what the server may still have of a lost hold, whose user has stopped. Any thread may call this."""
        if not self._is_over and hold._number in self._left:
            self.soon(self._abandon_left, hold._number)

    def _abandon_left(self, number: int) -> None:
        # In one step: close() ends the connections when nothing is left and no release is in flight.
        if (kept := self._left.pop(number, None)) is not None:
            self.abandon(kept.wanted, kept.token)

    @property
    def holds(self) -> list[BaseHold]:
        """Returns all holds, without the forgotten ones."""
        holds = [kept.hold() for kept in list(self._kept.values())]
        return [hold for hold in holds if hold is not None]

    def _find_forgotten(self) -> list[BaseHold]:
        """Reports each hold that was garbage-collected; returns the others. Only the event loop calls this."""
        holds = []
        for kept in list(self._kept.values()):
            if (hold := kept.hold()) is not None:
                holds.append(hold)
            # A hold that another thread has just released is not here any longer.
            elif self._kept.pop(kept.number, None) is not None:
                self._forget(kept)
        return holds

    def _forget(self, kept: _Kept) -> None:
        """Forgets a hold without a release: its user may still work under the lease."""
        now, name = clock(), kept.wanted.name
        self._leave(kept)
        logger.warning(_FORGOTTEN, name)
        _hooks.call(self.hooks, "forgotten", name, now - kept.granted_at)
        try:
            warnings.warn(_FORGOTTEN % name, ResourceWarning, stacklevel=2)
        except Exception:
            logger.debug("the program wants no such warning", exc_info=True)

    def soon(self, what: Callable[..., object], *arguments: Any) -> None:
        """Calls this in the event loop, unless that is closed. Any thread may call this."""
        try:
            self.loop.call_soon_threadsafe(what, *arguments)
        except RuntimeError:
            logger.debug("the event loop is closed")

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs this as a background task."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A server that does not answer is expected: the caller has the error, or the hold's deadline reports it.
            level = logging.DEBUG if isinstance(error, RedislockError) else logging.ERROR
            logger.log(level, "work in the background failed: %s", error, exc_info=error)

    def _alarm(self, hold: BaseHold) -> None:
        if hold._due() < self._wake_at:
            self.soon(self._arm, hold._due())

    def _arm(self, at: float) -> None:
        if at >= self._wake_at:
            return
        self._wake_at = at
        self._nap()

    def _nap(self) -> None:
        """Sleeps until something is due, and reads the clock each second: the event loop's timer stops while the
        machine sleeps."""
        if self._timer is not None:
            self._timer.cancel()
        left = self._wake_at - clock()
        self._timer = self.loop.call_later(min(max(0.0, left), NAP), self._tick if left <= NAP else self._nap)

    def _tick(self) -> None:
        # From here on, a new hold sets an alarm, which is handled after this turn.
        self._wake_at, now, first = _NEVER, clock(), _NEVER
        for hold in self._find_forgotten():
            if now >= hold._deadline:
                hold._lose("deadline")
                continue
            # Holds that are due a little later are renewed in the same turn.
            if hold._renew_at <= now + hold._wanted.lease * RENEW_AT / 20:
                hold._renew_at = _NEVER
                self.begin(self.renew(hold))
            if hold._watch_at <= now + WATCH_AFTER / 2:
                hold._watch_at = _NEVER
                self.begin(self._then_alarm(self.look(hold), hold))
            first = min(first, hold._due())
        if first < _NEVER:
            self._arm(first)

    async def _then_alarm(self, work: Coroutine[Any, Any, object], hold: BaseHold) -> None:
        await work
        if hold._alive:
            self._alarm(hold)

    async def _stop(self, until: float) -> None:
        """Ends the scheduler, after all releases and all tasks that it has started."""
        if self._timer is not None:
            self._timer.cancel()
        until = min(until, clock() + WAIT_MARGIN)
        while self.releasing and clock() < until:  # noqa: ASYNC110
            await asyncio.sleep(PAUSE)
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=max(0.0, until - clock()))
            for task in late:
                task.cancel()
