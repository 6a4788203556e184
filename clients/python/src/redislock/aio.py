"""Locks for asyncio."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, Unpack

from . import hooks as _hooks
from ._core import Core
from ._group import Group
from ._hold import BaseHold
from ._info import Info
from ._keeper import inherited
from ._kinds import BaseLeader, Described, Kinds
from ._options import (
    Options,
    check_busy,
    check_calls,
    check_function,
    check_options,
    check_result,
    check_template,
    name_of,
    name_of_call,
)
from ._rules import (
    CLOSE,
    PING,
    TOKEN_MOST,
    Grant,
    Kind,
    Name,
    Wanted,
    check_lease,
    check_seconds,
    check_whole,
    clock,
    running,
    shown,
)
from .errors import FencedError, LockLostError, LocksClosedError, LockTimeoutError, RedislockError, about

logger = logging.getLogger("redislock")
P = ParamSpec("P")
R = TypeVar("R")
_ANOTHER_LOOP = "these locks belong to another event loop: create an AsyncLocks in each loop"


class AsyncHold(BaseHold):
    """A lock that is held. Keep a reference to it until you release it."""

    _body: asyncio.Task[Any] | None = None
    _cancelled_before = 0
    _has_cancelled = False

    def __init__(self, locks: AsyncLocks, core: Core | Group, request: Wanted, grant: Grant, **options: Any) -> None:
        self._locks = locks  # a hold keeps its locks alive: their end would end the hold
        super().__init__(core, request.attempt or request, grant, **options)

    async def release(self) -> None:
        """Releases the lock. Raises LockLostError if it was lost before, or the server's error.

        If the task is cancelled, the release continues.
        """
        await self._release()

    async def extend(self, lease: float) -> None:
        """Starts a new lease of `lease` seconds now; raises LockLostError if the hold has ended.

        After any other error, or a cancellation, the hold assumes the shorter of the old and the new lease.
        """
        self.check()
        check_lease(lease)
        self._check_extension(lease)
        with about(self.name):
            await self._keeper.renew(self, lease)

    async def until_lost(self) -> str:
        """Waits until the hold is lost, and returns the reason. If it is released, waits for ever."""
        reasons: asyncio.Queue[str] = asyncio.Queue()
        tell = reasons.put_nowait
        self.on_lost(tell)
        try:
            return await reasons.get()
        finally:
            if tell in self._listeners:
                self._listeners.remove(tell)
                self._unpin()

    async def detach(self, lease: float | None = None) -> str:
        """Ends the hold here, and returns a ticket with which another process takes it over: `locks.adopt(ticket)`.

        Renews it a last time, for `lease` seconds. Raises an error and keeps the hold if a renewal was not answered.
        """
        return await self._detach(lease)

    def on_lost(self, call: Callable[[str], object]) -> None:
        """Registers a function that is called with the reason when the hold is lost; at once if it is lost already."""
        if self.lost is not None:
            call(self.lost)
        else:
            self._listeners.append(call)
            self._pin()

    def _unpin(self) -> None:
        if self._body is None and not self._listeners:
            super()._unpin()

    def _tell(self, reason: str) -> None:
        for call in list(self._listeners):
            try:
                call(reason)
            except Exception:
                logger.exception("the function for the loss of %s failed", self.name)
        if reason == "close" and self._body is asyncio.current_task():
            return  # the body closes its own locks, which must come to an end
        # Not before the body next waits: it may be the body that has just noticed.
        self._keeper.soon(self._cancel_body)

    def _cancel_body(self) -> None:
        if self._body is not None and not self._body.done():
            self._has_cancelled = True
            self._body.cancel(f"lost lock {self.name!r} ({self._reason})")

    def _enter(self) -> None:
        """Makes the running task the body, which is cancelled if the lock is lost."""
        self._body, self._has_block = asyncio.current_task(), True
        self._cancelled_before = self._body.cancelling() if self._body is not None else 0
        self._pin()

    def _leave(self, kind: type[BaseException] | None) -> bool:
        """Ends the body. Returns whether the loss of the lock was the only reason for its cancellation."""
        body, self._body = self._body, None
        self._unpin()
        if body is None or not self._has_cancelled:
            return False
        is_alone = body.uncancel() <= self._cancelled_before
        return is_alone and kind is not None and issubclass(kind, asyncio.CancelledError)


class AsyncLock(Described[AsyncHold]):
    """Describes one lock, or several at once, for `async with` or acquire(). Each block has a hold of its own."""

    _locks: AsyncLocks

    async def acquire(self) -> AsyncHold:
        """Waits for the lock, and returns a new hold. Raises LockTimeoutError if it is not granted in time."""
        self._refuse_twice(asyncio.current_task())
        return await self._acquire(self._options.get("wait"))

    async def try_acquire(self) -> AsyncHold | None:
        """Takes the lock now if it is free. Returns None only if the server replied that another owner holds it."""
        self._refuse_twice(asyncio.current_task())
        try:
            return await self._acquire(0)
        except LockTimeoutError:
            return None

    async def _acquire(self, wait: float | None) -> AsyncHold:
        locks, request = self._locks, self._request()
        core = locks._core()
        with self._reported(request):
            grant = await core.acquire(request, wait, clock())
        hold = AsyncHold(locks, core, request, grant, **self._terms())
        hold._check_grant()
        return hold

    async def __aenter__(self) -> AsyncHold:
        task = asyncio.current_task()
        self._refuse_twice(task)
        block = self._inside.begin(task)
        try:
            hold = await self._acquire(self._options.get("wait"))
        except BaseException:
            self._inside.drop(block)
            raise
        self._inside.entered(block, hold)
        hold._enter()
        return hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hold = self._inside.end(asyncio.current_task(), error)
        if hold is None:
            return
        was_cancelled = hold._leave(kind)
        try:
            await hold.release()
        except LockLostError as lost:
            if kind is None:
                raise
            if was_cancelled:
                raise lost from error
            if error is not None:
                error.add_note(str(lost))
        except RedislockError as failure:
            hold._not_given_up(failure)


class AsyncLocks(Kinds[AsyncLock]):
    """A client for locks, on the servers of a redis.asyncio or valkey.asyncio client. It belongs to one event loop."""

    _is_async = True

    def _begin(self) -> None:
        self._kept: Core | Group | None = None
        # Weakly: an object without other references, like its event loop, has no connections.
        self._to_close: list[weakref.ref[Core | Group]] = []
        weakref.finalize(self, _close_later, self._to_close).atexit = False

    def _core(self) -> Core | Group:
        """The core of this event loop and process, which talks to the servers."""
        loop = asyncio.get_running_loop()
        if self._is_closed:
            raise LocksClosedError("these locks are closed")
        if (core := self._kept) is not None:
            if core.pid != os.getpid():
                inherited.append(core)
            elif core.loop is loop:
                return core
            elif not core.loop.is_closed():
                raise RuntimeError(_ANOTHER_LOOP)
        arguments = (loop, self._settings, self.hooks)
        made: Core | Group = Group(*arguments) if isinstance(self._settings, list) else Core(*arguments)  # type: ignore[arg-type]
        self._kept, self._to_close[:] = made, [weakref.ref(made)]
        return made

    def _lock(self, names: Sequence[Name], kind: Kind, limit: int | None, options: Options) -> AsyncLock:
        return AsyncLock(self, names, kind, limit, options)

    def leader(
        self,
        name: Name,
        *,
        on_elected: Callable[[AsyncHold], object] | None = None,
        on_deposed: Callable[[str], object] | None = None,
        on_error: Callable[[Exception], object] | None = None,
        lease: float | None = None,
    ) -> AsyncLeader:
        """Describes an election. It stands from `async with` or start() on, until it resigns.

        on_elected: the work of the leader, which is cancelled when the lock is lost. When it returns, the leader
        continues to lead. If it raises, the error is logged, the lock is released, and the candidate stands again after
        a second.

        on_deposed: called with the reason when the lock is lost. The candidate stands again when it has returned.

        on_error: called once with the error if it cannot ask for the lock for now. It keeps trying.

        All may be asynchronous or plain functions.
        """
        check_calls(on_elected=on_elected, on_deposed=on_deposed, on_error=on_error)
        lock = self.lock(name, lease=self.lease if lease is None else lease)
        return AsyncLeader(lock, on_elected, on_deposed, on_error)

    def locked(
        self, name: str, *, busy: str = "raise", **options: Unpack[Options]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R | None]]]:
        """Returns a decorator: each call runs under the lock. "{id}" in the name is replaced by its argument `id`.

        busy="skip": a call that does not get the lock does nothing and returns None.
        """
        check_busy(busy)
        check_options(options)

        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R | None]]:
            check_function(function)
            check_template(name, function)

            @functools.wraps(function)
            async def call(*arguments: P.args, **keywords: P.kwargs) -> R | None:
                lock = self.lock(name_of_call(name, function, arguments, keywords), **options)
                is_inside = False
                try:
                    async with lock:
                        is_inside = True
                        work = function(*arguments, **keywords)
                        if not inspect.isawaitable(work):
                            raise TypeError(f"{name_of(function)} has returned {work!r}, which cannot be awaited")
                        result = await work
                        check_result(function, result)
                        return result
                except LockTimeoutError:
                    if is_inside or busy == "raise":
                        raise
                    return None

            return call

        return decorate

    async def check_token(self, name: Name, token: int) -> None:
        """Raises FencedError unless the token belongs to a live hold of this lock."""
        key = self._key(name)
        check_whole("token", token, 1, TOKEN_MOST)
        with about(shown(name)):
            is_live = await self._core().fence(key, token)
        if not is_live:
            raise FencedError(f"the token {token} does not belong to a live hold of {shown(name)!r}", lock=shown(name))

    async def info(self, name: Name) -> Info | None:
        """Returns the holders and the waiters of this lock, or None if there are none."""
        key = self._key(name)
        with about(shown(name)):
            return await self._core().info(key)

    async def adopt(self, ticket: str, lease: float | None = None) -> AsyncHold:
        """Takes over a hold that another process has detached. Raises LockLostError if its lease has ended meanwhile.

        Hand a ticket to only one process: the server cannot distinguish two that adopt the same one.
        """
        request, token, terms = self._adopted(ticket, lease)
        core = self._core()
        grant = await core.adopt(request, token)  # type: ignore[union-attr]
        _hooks.call(self.hooks, "adopted", request.name)
        return AsyncHold(self, core, request, grant, **terms)

    async def ping(self) -> str:
        """Checks that a primary with the module answers, and returns the module's version.

        Raises ConnectionFailedError if no primary answers, ServerRefusedError if it refuses.
        """
        return await self._core().ping(self._key(PING))

    async def close(self, timeout: float = CLOSE) -> None:
        """Ends all holds, waits and connections within `timeout` seconds. Nothing can be acquired afterwards.

        Holds are lost, with the reason "close", and their locks are released. A lock that a block of another task uses
        is released when the block ends. If the block runs longer, no server answers, or the event loop has ended, the
        lease ends it.
        """
        check_seconds("timeout", timeout, 0.0)
        kept = self._kept
        is_ours = kept is not None and kept.pid == os.getpid()
        if kept is not None and is_ours and not kept.loop.is_closed() and kept.loop is not asyncio.get_running_loop():
            raise RuntimeError(_ANOTHER_LOOP)
        self._is_closed, self._kept = True, None
        if kept is None or not is_ours:
            return
        if kept.loop.is_closed():
            kept.end_holds()
        else:
            await kept.close(clock() + timeout, running())

    async def __aenter__(self) -> AsyncLocks:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _close_later(cores: list[weakref.ref[Core | Group]]) -> None:
    for each in cores:
        if (core := each()) is not None:
            core.close_later()


class AsyncLeader(BaseLeader[AsyncLock, AsyncHold]):
    """Leads while it holds the lock, and stands again when it is deposed."""

    _cancels = True

    def start(self) -> None:
        """Stands for election, in a task of its own."""
        if self._task is None:
            self._task = asyncio.create_task(self._stand())

    async def _acquire(self) -> AsyncHold:
        return await self._lock.acquire()

    async def _until_lost(self, hold: AsyncHold) -> object:
        return await hold.until_lost()

    async def _call(self, call: Callable[[Any], object] | None, what: object) -> None:
        if call is not None and inspect.isawaitable(result := call(what)):
            await result

    async def resign(self) -> None:
        """Ends the candidacy, cancels on_elected if it still runs, and releases the lock."""
        task, self._task = self._task, None
        if task is not None:
            await self._resign(task)

    async def __aenter__(self) -> AsyncLeader:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.resign()
