"""A replacement for redis.lock.Lock, with the same interface: r.lock("k", lock_class=redislock.compat.Lock).

It improves on redis.lock.Lock in two ways. Waiters are served in the order of their arrival, without polling, so
`sleep` is ignored. And a lock without a timeout is renewed as long as its process lives: if the process dies, the lock
is free after 30 seconds, not never.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
import weakref
from types import SimpleNamespace, TracebackType
from typing import Any, Literal, TypeVar

from ._inside import Block, Inside
from ._options import Options
from ._rules import LEASE, OWNER_MOST, as_bytes
from .aio import AsyncHold, AsyncLocks
from .errors import LockLostError, LockTimeoutError, RedislockError
from .sync import Hold, Locks

logger = logging.getLogger("redislock")
_locks: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_async_locks: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
AnyHold = TypeVar("AnyHold", Hold, AsyncHold)


class NotHeldError(RedislockError):
    """The operation needs a lock that is held, or a lock with a timeout."""


def _is_given_up(hold: Hold | AsyncHold) -> bool:
    return not hold._alive and hold.lost is None


class _Base:
    _kind: type[Locks | AsyncLocks]
    #: The locks objects made for each client.
    _made: weakref.WeakKeyDictionary[Any, Any]

    def __init__(
        self,
        redis: Any,
        name: str,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        self.redis, self.name, self.timeout, self.sleep = redis, name, timeout, sleep
        self.blocking, self.blocking_timeout = blocking, blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.local: Any = threading.local() if self.thread_local else SimpleNamespace()
        self.local.token = None
        #: The hold of each thread or task: one that lost the lock must not release the next holder's.
        self._own: weakref.WeakKeyDictionary[Any, Hold | AsyncHold] = weakref.WeakKeyDictionary()
        self._inside: Inside[Any] = Inside(has_owner=False)

    def _who(self) -> Any:
        """Returns the running thread or task."""
        return threading.current_thread()

    def _lock(self, blocking: bool | None, blocking_timeout: float | None, token: str | bytes | None) -> Any:
        """Makes a lock of this library for one acquire."""
        if self.redis not in self._made:
            self._made[self.redis] = self._kind(self.redis)
        waits = self.blocking if blocking is None else blocking
        limit = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        limit = None if limit is None else max(0, limit)
        options: Options = {"wait": limit if waits else 0, "lease": self.timeout or LEASE, "renew": not self.timeout}
        if token is not None:
            # As in redis.lock.Lock, a token cannot be used to share a lock: with one owner, the server would grant it
            # to both.
            tail = f":{uuid.uuid4()}".encode()
            options["owner"] = as_bytes(token)[: OWNER_MOST - len(tail)] + tail
        return self._made[self.redis].lock(self.name, **options)

    def _got(self, hold: Hold | AsyncHold, token: str | bytes | None) -> Literal[True]:
        self.local.hold, self.local.token = hold, hold._wanted.owner if token is None else as_bytes(token)
        self._own[self._who()] = hold
        hold._pin()  # as there: the lock outlives this object, and its thread
        return True

    def _known(self) -> Any:
        """Returns the hold that this thread or task has acquired, or else the one that it may use; None if there is
        none."""
        own = self._own.get(self._who())
        if own is not None or getattr(self.local, "token", None) is None:
            return own
        hold = getattr(self.local, "hold", None)
        return None if hold is None or _is_given_up(hold) else hold

    def _held(self, doing: str) -> Any:
        if (hold := self._known()) is None:
            raise NotHeldError(f"Cannot {doing} a lock that's not owned or is already unlocked.")
        return hold

    def _entered(self) -> None:
        """Records what a block has acquired, since it may end in another thread or task."""
        block = Block(self._inside, None)
        block.hold = self._known()
        self._inside.blocks[block] = block

    def _left(self) -> Any:
        """Returns the hold that the end of a block releases."""
        hold = self._inside.left()
        return self._held("release") if hold is None or _is_given_up(hold) else hold

    def _taken(self, hold: Any) -> Any:
        """Returns the hold to release now, and forgets it."""
        for who, its in list(self._own.items()):
            if its is hold:
                self._own.pop(who, None)
        if getattr(self.local, "hold", None) is hold:
            self.local.token = self.local.hold = None
        return hold

    def _held_for_a_while(self, doing: str) -> Any:
        hold = self._held(doing)
        if self.timeout is None:
            raise NotHeldError(f"Cannot {doing} a lock with no timeout")
        return hold

    def _comes_out(self, failure: RedislockError, kind: type[BaseException] | None) -> bool:
        """Returns whether a block raises this error of its release: not if it has one of its own."""
        is_loss = isinstance(failure, LockLostError | NotHeldError)
        if kind is None and (self.raise_on_release_error or not is_loss):
            return True
        said = "Lock was unlocked or no longer owned when exiting context manager."
        logger.warning(said if is_loss else failure)
        return False

    def _lease_after(self, hold: Hold | AsyncHold, additional_time: float, replace_ttl: bool) -> float:
        return additional_time if replace_ttl else additional_time + hold.remaining


class Lock(_Base):
    """redis.lock.Lock, implemented with the module."""

    _kind, _made = Locks, _locks

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Returns whether the lock was acquired."""
        try:
            return self._got(self._lock(blocking, blocking_timeout, token).acquire(), token)
        except LockTimeoutError:
            return False

    def __enter__(self) -> Lock:
        if self.acquire():
            self._entered()
            return self
        raise LockTimeoutError("Unable to acquire lock within the time specified")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._taken(self._left()).release()
        except RedislockError as failure:
            if self._comes_out(failure, kind):
                raise

    def locked(self) -> bool:
        """Returns whether any owner holds it."""
        return self.redis.execute_command("LOCK.FENCE", self.name) is not None

    def owned(self) -> bool:
        """Returns whether this lock object holds it."""
        hold = self._known()
        return hold is not None and self.redis.execute_command("LOCK.FENCE", self.name, hold.token) == 1

    def release(self) -> None:
        """Releases the lock."""
        hold: Hold = self._taken(self._held("release"))
        hold.release()

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Adds seconds to the lease, or with `replace_ttl` starts a lease of that length."""
        hold: Hold = self._held_for_a_while("extend")
        hold.extend(self._lease_after(hold, additional_time, replace_ttl))
        return True

    def reacquire(self) -> Literal[True]:
        """Starts a new lease."""
        hold: Hold = self._held_for_a_while("reacquire")
        hold.extend(float(self.timeout or LEASE))
        return True


class AsyncLock(_Base):
    """redis.asyncio.lock.Lock, implemented with the module."""

    _kind, _made = AsyncLocks, _async_locks

    def _who(self) -> Any:
        return asyncio.current_task() or self

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Returns whether the lock was acquired."""
        try:
            return self._got(await self._lock(blocking, blocking_timeout, token).acquire(), token)
        except LockTimeoutError:
            return False

    async def __aenter__(self) -> AsyncLock:
        if await self.acquire():
            self._entered()
            return self
        raise LockTimeoutError("Unable to acquire lock within the time specified")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._taken(self._left()).release()
        except RedislockError as failure:
            if self._comes_out(failure, kind):
                raise

    async def locked(self) -> bool:
        """Returns whether any owner holds it."""
        return await self.redis.execute_command("LOCK.FENCE", self.name) is not None

    async def owned(self) -> bool:
        """Returns whether this lock object holds it."""
        hold = self._known()
        return hold is not None and await self.redis.execute_command("LOCK.FENCE", self.name, hold.token) == 1

    async def release(self) -> None:
        """Releases the lock."""
        hold: AsyncHold = self._taken(self._held("release"))
        await hold.release()

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Adds seconds to the lease, or with `replace_ttl` starts a lease of that length."""
        hold: AsyncHold = self._held_for_a_while("extend")
        await hold.extend(self._lease_after(hold, additional_time, replace_ttl))
        return True

    async def reacquire(self) -> Literal[True]:
        """Starts a new lease."""
        hold: AsyncHold = self._held_for_a_while("reacquire")
        await hold.extend(float(self.timeout or LEASE))
        return True
