"""A hold, as the sync and the asyncio client share it, and the scheduler that renews all holds."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NoReturn

from . import hooks as _hooks
from ._rules import (
    CLOSE,
    DOUBT,
    LONGEST_PAUSE,
    NAP,
    PAUSE,
    RENEW_AT,
    SHORTEST_LEASE,
    WAIT_MARGIN,
    WATCH_AFTER,
    Grant,
    Wanted,
    clock,
    deadline,
    may_pass,
)
from .errors import ConnectionFailed, LockLost, RedislockError, ServerRefused

logger = logging.getLogger("redislock")
_NEVER = math.inf
_numbers = itertools.count(1)
#: What a forked child has inherited. It is kept, for to end it would harm the parent.
inherited: list[object] = []
#: What is said of a hold that was forgotten: it may be the first that its user hears of it.
_FORGOTTEN = (
    "the hold of %s was forgotten: nothing refers to it any more, so it is renewed no more and ends with its lease. "
    "Keep what acquire() returns until you release it, or use a block."
)


class Local:
    """What belongs to one process."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled, for it belongs to this process. Give another process "
            "the address of the server and the name of the lock, and make Locks there"
        )


class BaseHold(Local):
    """One or several locks that are held together, until they are given up or lost."""

    #: What else is to be done when nobody holds it any more. It must not refer to the hold.
    _leave_busy: Callable[[], object] = staticmethod(lambda: None)

    def __init__(
        self, keeper: Keeper, wanted: Wanted, grant: Grant, *, renew: bool = True, longest: float | None = None
    ) -> None:
        self._keeper, self._wanted = keeper, wanted
        self._pid, self._number = os.getpid(), next(_numbers)
        self._alive = [True]  # popped by the thread that ends the hold: one of several
        self._renewing = asyncio.Lock()
        #: The shortest lease of a renewal that went unanswered, and until when it may still reach the server.
        self._stray = (_NEVER, 0.0)
        self._reason: str | None = None
        #: Why the server says that it is lost; and how many renewals have failed since the last one that did not, how.
        self._cause = ""
        self._failures = 0
        self._failure: RedislockError | None = None
        self._has_block = False
        self._listeners: list[Callable[[str], object]] = []
        self._longest_at = grant.sent + longest if longest is not None else _NEVER
        self._is_renewed = renew
        self.token = grant.token
        self._granted_at = clock()
        self._watch_at = self._granted_at + WATCH_AFTER
        self._count_from(grant.sent, wanted.lease)
        keeper.keep(self)
        if not renew:
            self._pin()  # its lease ends it, whether or not anybody has it

    def __repr__(self) -> str:
        state = "given up" if not self._alive and self._reason is None else self.lost or "held"
        return f"<{type(self).__name__} {self.name!r} token={self.token} {state}>"

    @property
    def name(self) -> str:
        """The name of the lock, or of the first of them."""
        return self._wanted.name

    @property
    def owner(self) -> str:
        """The owner that holds it, as LOCK.INFO tells: host, process, and an id of this hold."""
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
            self._lose("deadline", is_told=True)
        return self._reason

    @property
    def cause(self) -> str | None:
        """How the loss is known: what a server has answered, or why the last renewal failed. None if nothing did."""
        if self.lost is None:
            return None
        return self._cause or (None if self._failure is None else str(self._failure))

    def check(self) -> float:
        """The seconds that remain; raises LockLost if the hold is over. Asks no server."""
        if (reason := self.lost or (None if self._alive else "release")) is not None:
            raise self._error(reason)
        return self.remaining

    def _check_longest(self, lease: float) -> None:
        """Refuses a lease that would end after the longest hold."""
        if (most := self._longest_at - clock()) < lease:
            raise ValueError(
                f"a lease of {lease:g} seconds would exceed `longest`, of which {max(0.0, most):.1f} are left"
            )

    def _error(self, reason: str) -> LockLost:
        names = self._wanted.all_names
        why = f"{reason}: {self.cause}" if self.cause else reason
        error = LockLost(f"the lock {names} is held no more ({why})", reason=reason)
        error.__cause__ = self._failure if reason == "deadline" else None
        return error

    def _renewal_failed(self, failure: RedislockError) -> None:
        """Notes it, and says so the first time of an outage."""
        self._failures, self._failure = self._failures + 1, failure
        _hooks.call(self._keeper.hooks, "renewal_failed", self.name, failure)
        if self._failures == 1:
            logger.warning("%r could not be renewed, with %.1f s left: %s", self.name, self.remaining, failure)

    def _renewal_succeeded(self) -> None:
        if self._failures:
            logger.warning("%r is renewed again, after %d failed renewals", self.name, self._failures)
        self._failures, self._failure = 0, None

    def _is_heard(self) -> bool:
        """Whether something hears of a loss without asking."""
        return self._has_block or bool(self._listeners)

    def _is_ours(self) -> bool:
        """Whether this is the process that got the hold: a child that was forked has none."""
        return os.getpid() == self._pid

    def _count_from(self, sent: float, lease: float) -> None:
        """An older renewal that comes late may still cut the lease, so no more is sure than the lease of that."""
        stray, until = self._stray
        surely = min(lease, stray) if sent < until else lease
        self._wanted.lease, self._deadline = lease, deadline(sent, surely)
        self._renew_next(sent + surely * RENEW_AT)

    def _may_come_late(self, lease: float) -> None:
        """A renewal for this lease went unanswered."""
        stray, until = self._stray
        self._stray = (min(lease, stray) if clock() < until else lease, clock() + DOUBT)

    def _renew_next(self, at: float) -> None:
        # A last lease that is too short for the server adds nothing.
        is_last = self._longest_at - max(at, self._deadline) < SHORTEST_LEASE
        self._renew_at = at if self._is_renewed and not is_last else _NEVER

    def _run_out(self) -> None:
        """Renews it no more: nobody knows who works under it."""
        self._is_renewed, self._renew_at = False, _NEVER

    def _due(self) -> float:
        return min(self._watch_at, self._renew_at, self._deadline)

    def _finish(self, reason: str | None = None) -> bool:
        """Whether this call is the one that ended the hold, which is looked after no more."""
        try:
            self._alive.pop()
        except IndexError:
            return False
        self._reason = reason
        self._keeper.drop(self, is_lost=reason is not None)
        self._leave_busy()
        return True

    def _pin(self) -> None:
        """Lets it last although nothing may refer to it: somebody is to be told of its loss, or works under it."""
        self._keeper.pinned[self] = None
        if not self._alive:  # it ended in this moment, perhaps in another thread
            self._keeper.pinned.pop(self, None)

    def _unpin(self) -> None:
        """Lets it last only as long as something refers to it."""
        if self._is_renewed:
            self._keeper.pinned.pop(self, None)

    def _lose(self, reason: str, cause: str = "", *, is_told: bool = False) -> bool:
        """Whether this call is the one that ended the hold. Its holder is told, and may still work under what the
        server has: that ends when its holder gives it up, or with its lease."""
        if not self._finish(reason):
            return False
        self._cause = cause or self._cause
        self._log_loss(reason, is_told or self._is_heard())
        _hooks.call(self._keeper.hooks, "lost", self.name, clock() - self._granted_at, reason)
        self._tell(reason)
        return True

    def _log_loss(self, reason: str, is_told: bool) -> None:
        level = logging.INFO if reason == "close" else logging.WARNING if is_told else logging.ERROR
        held, cause = clock() - self._granted_at, self.cause or "no renewal has failed"
        nobody = "" if is_told else "; nothing in the program is told before it asks"
        logger.log(level, "lost %r after %.1f s (%s): %s%s", self.name, held, reason, cause, nobody)

    def _give_up(self) -> bool:
        """Whether the server has to be told now: not if it was told before. Raises LockLost if the hold is lost."""
        is_held = self.lost is None and self._finish()
        if self.lost is not None:
            if self._is_ours():
                self._keeper.give_up_left(self)
            raise self._error(self.lost)
        return is_held

    def _check_grant(self) -> None:
        """Raises LockLost if the reply took as long as the lease. Nobody works under it, so it is given up."""
        if self.lost is not None:
            self._give_up()

    def _given_up(self, was_there: bool) -> None:
        """The server has released it, unless it was lost before, which is told now."""
        hooks, held = self._keeper.hooks, clock() - self._granted_at
        if was_there:
            _hooks.call(hooks, "released", self.name, held)
            return
        self._reason, self._cause = "release", "the server answered 0 to LOCK.RELEASE"
        self._log_loss("release", is_told=True)
        _hooks.call(hooks, "lost", self.name, held, "release")
        raise self._error("release")

    def _not_given_up(self, failure: RedislockError) -> None:
        """Says in the log what becomes of it where no caller is told."""
        if isinstance(failure, ServerRefused) and not may_pass(failure.message):
            logger.warning("%s was not released, and is held until its lease is over: %s", self.name, failure)
        elif not isinstance(failure, LockLost):
            logger.warning("the release of %s goes on in the background: %s", self.name, failure)

    def _tell(self, reason: str) -> None:
        """Tells the holder of the loss."""


@dataclass(eq=False, slots=True)
class _Kept:
    """What the keeper has of a hold.

    It refers to the hold weakly, and has no finalizer: that would run in any thread, in the middle of anything. The
    keeper sees for itself that the hold is gone, at the latest when it wants to renew it.
    """

    number: int
    hold: weakref.ref[BaseHold]
    wanted: Wanted
    token: int
    granted_at: float
    leave_busy: Callable[[], object]
    #: Until when the server may have it, after it was forgotten or lost.
    left_until: float = _NEVER


class Keeper(ABC):
    """Renews all holds of a process or of an event loop, and ends those whose deadline is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hooks: _hooks.Hooks) -> None:
        self.loop, self.hooks, self.pid = loop, hooks, os.getpid()
        self._kept: dict[int, _Kept] = {}
        #: Holds that last although nothing else may refer to them.
        self.pinned: dict[BaseHold, None] = {}
        #: What was forgotten, or lost and not given up: the server may have it until its lease is over.
        self._left: dict[int, _Kept] = {}
        self._wake_at = _NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._acquiring = 0
        #: Threads that take a lock, until the hold is kept.
        self.taking: set[object] = set()
        self._is_closing = False
        #: What was said in the log of waits, and when.
        self.said: dict[str, float] = {}

    async def renew(self, hold: BaseHold, lease: float | None = None) -> None:
        """Begins a lease of `lease` seconds, or of the hold's own length. Raises LockLost if the hold is over.

        One after the other: an older one that is repeated would cut the lease that a newer one has begun.
        """
        async with hold._renewing:
            hold.check()
            lease = min(hold._wanted.lease if lease is None else lease, hold._longest_at - clock())
            # From now on the server may end it so early, whatever the client hears of that.
            hold._deadline = min(hold._deadline, deadline(clock(), lease))
            self._alarm(hold)
            try:
                sent = await self._renewed(hold, lease)
                if sent is None:
                    hold._lose("renewal")
                    hold.check()
                else:
                    hold._count_from(sent, lease)
                    hold._renewal_succeeded()
            except BaseException as error:
                is_new = error is not hold._failure and not isinstance(error, LockLost)
                if is_new and isinstance(error, RedislockError):
                    hold._renewal_failed(error)
                # It may pass, as a lack of replicas does; the deadline tells if it does not.
                hold._renew_next(clock() + LONGEST_PAUSE)
                if isinstance(error, ConnectionFailed):
                    hold.check()  # it was tried until the deadline
                raise
            finally:
                self._alarm(hold)

    @abstractmethod
    async def _renewed(self, hold: BaseHold, lease: float) -> float | None:
        """Renews the lease. Returns from when it counts; None if the hold is lost. Raises if neither is sure."""

    @abstractmethod
    async def look(self, hold: BaseHold) -> None:
        """Asks the servers whether the hold lasts, and to tell when that changes."""

    async def holder(self, name: bytes) -> str:
        """Returns who holds this lock, for people to read; nothing if that is not known."""
        return ""

    @abstractmethod
    def abandon(self, wanted: Wanted, token: int | None = None) -> None:
        """Gives up whatever this request got or may still get, or, with a token, the hold that has it."""

    @abstractmethod
    def call_waiters(self) -> None:
        """Lets all who wait look around."""

    @abstractmethod
    async def release(self, wanted: Wanted, token: int) -> bool:
        """Whether all was still held, as far as one knows. What fails goes on in the background, unless it cannot."""

    @abstractmethod
    async def close(self, until: float, *, gives_up: bool = True) -> None:
        """Gives up all holds and waits, ends all connections. It has ended by then, whatever the servers do."""

    def close_later(self) -> None:
        """Ends the connections of locks that nobody has any more. Somebody may still work under a lease."""
        if self.pid == os.getpid():
            self.soon(lambda: self.begin(self.close(clock() + CLOSE, gives_up=False)))
        else:
            inherited.append(self)

    def refuse_if_closing(self) -> None:
        if self._is_closing:
            raise ConnectionFailed("these locks were closed")

    async def _stop_waiting(self, until: float) -> None:
        """Refuses all who wait, and waits until they have gone, and until who was granted something has it."""
        self._is_closing = True
        self._find_forgotten()
        while (self._acquiring or self.taking) and clock() < until:
            self.call_waiters()
            await asyncio.sleep(PAUSE)

    def end_holds(self) -> list[tuple[Wanted, int]]:
        """Ends all holds; returns what the servers may still have, also of what was forgotten or lost before."""
        for hold in self.holds:
            hold._lose("close")
        return [(kept.wanted, kept.token) for kept in list(self._left.values()) if clock() < kept.left_until]

    async def _end_all(self, until: float, gives_up: bool) -> None:
        """Ends all holds, waits and work; gives up what the servers may still have if that is wanted, side by side."""
        await self._stop_waiting(min(until, clock() + WAIT_MARGIN))
        left = self.end_holds()
        if gives_up:
            await asyncio.gather(*(self._release_at_end(wanted, token, until) for wanted, token in left))
        await self._stop(until)

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
        logger.warning("%s was not given up: %s", wanted.name, failure)

    def keep(self, hold: BaseHold) -> None:
        """Looks after the hold from now on. Any thread may call this."""
        number, leave_busy = hold._number, hold._leave_busy
        self._kept[number] = _Kept(number, weakref.ref(hold), hold._wanted, hold.token, hold._granted_at, leave_busy)
        self._alarm(hold)

    def drop(self, hold: BaseHold, *, is_lost: bool) -> None:
        """Looks no more after the hold, which is over. Any thread may call this."""
        kept = self._kept.pop(hold._number, None)
        self.pinned.pop(hold, None)
        if is_lost and kept is not None:
            self._leave(kept)

    def _leave(self, kept: _Kept) -> None:
        """Leaves what the server may have to its user, who may still work under it, and to its lease."""
        now = clock()
        kept.left_until = now + kept.wanted.lease
        for each in list(self._left.values()):
            if each.left_until <= now:
                self._left.pop(each.number, None)
        self._left[kept.number] = kept

    def give_up_left(self, hold: BaseHold) -> None:
        """Gives up what the server may still have of a lost hold, whose user has stopped. Any thread may call this."""
        if not self._is_closing and self._left.pop(hold._number, None) is not None:
            self.soon(self.abandon, hold._wanted, hold.token)

    @property
    def holds(self) -> list[BaseHold]:
        """All that is held, without what was forgotten."""
        holds = [kept.hold() for kept in list(self._kept.values())]
        return [hold for hold in holds if hold is not None]

    def _find_forgotten(self) -> list[BaseHold]:
        """Tells of each hold that nobody has any more; returns the others. Only the event loop calls this."""
        holds = []
        for kept in list(self._kept.values()):
            if (hold := kept.hold()) is not None:
                holds.append(hold)
            # One that another thread has given up in this moment is here no more.
            elif self._kept.pop(kept.number, None) is not None:
                self._forget(kept)
        return holds

    def _forget(self, kept: _Kept) -> None:
        """Forgets a hold without giving it up: its user may still work under the lease that was asked for."""
        now, name = clock(), kept.wanted.name
        kept.leave_busy()
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
        self._nap()

    def _nap(self) -> None:
        """Sleeps until something is due, and looks at the clock each second: the timer of the event loop stands still
        while the machine sleeps."""
        if self._timer is not None:
            self._timer.cancel()
        left = self._wake_at - clock()
        self._timer = self.loop.call_later(min(max(0.0, left), NAP), self._tick if left <= NAP else self._nap)

    def _tick(self) -> None:
        # From here on a hold that is added raises an alarm, which is heard after this turn.
        self._wake_at, now, first = _NEVER, clock(), _NEVER
        for hold in self._find_forgotten():
            if now >= hold._deadline:
                hold._lose("deadline")
                continue
            # What is due a little later is done in the same turn.
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
        """Ends the scheduler, after all that has begun."""
        if self._timer is not None:
            self._timer.cancel()
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=max(0.0, min(until - clock(), WAIT_MARGIN)))
            for task in late:
                task.cancel()
