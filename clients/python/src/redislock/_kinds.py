"""The common base of Locks and AsyncLocks: their arguments, a lock of each kind, and a leader."""

from __future__ import annotations

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar, Unpack

from . import hooks as _hooks
from ._hold import BaseHold, Local
from ._inside import Inside, blocks_above
from ._options import Options, check_options, name_of
from ._rules import (
    AFTER_FAILURE,
    ATTEMPT,
    FIRST_LEASE_MS,
    LEASE,
    LONGEST_PAUSE,
    PATIENCE,
    TOKEN_MOST,
    WAITING,
    Kind,
    Name,
    Wanted,
    as_bytes,
    check_lease,
    check_seconds,
    check_whole,
    clock,
    milliseconds,
    new_owner,
)
from ._settings import Settings, settings_of, settings_of_all
from .errors import AlreadyHeldError, LockLostError, LockTimeoutError, RedislockError, add_lock

logger = logging.getLogger("redislock")
L = TypeVar("L", bound="Described[Any]")
H = TypeVar("H", bound=BaseHold)
#: The most permits of a semaphore and the most names at once that the server accepts.
HIGHEST_LIMIT, NAMES_MOST = 1_000_000, 64
#: The longest label, in bytes: the rest of an owner makes it unique.
LABEL_MOST = 215


class Kinds(Local, ABC, Generic[L]):
    """Makes locks of the class L."""

    #: True if its clients are asyncio clients, and if it takes several, of independent servers.
    _is_async, _is_group = False, False

    def __init__(
        self,
        client: Any,
        *,
        lease: float = LEASE,
        server_timeout: float = PATIENCE,
        max_queued_per_lock: int = WAITING,
        label: str = "",
        prefix: Name = b"",
        hooks: _hooks.Hooks | None = None,
    ) -> None:
        """
        client: one of redis-py or valkey-py. Its addresses and login are used; the connections are the library's own.

        lease: the lease of locks that set none, in seconds.

        server_timeout: a wait without a limit fails after no server has answered for this many seconds.

        max_queued_per_lock: how many requests of these locks the server queues for one lock. The others wait in the
        process, in order. Requests with an explicit owner do not count: the server must see them to detect deadlocks.
        It also limits the waits for several locks, which use two connections each. A wait of theirs
        counts only until the owner holds a lock.

        label: names this process for operators, as in LOCK.INFO; host:pid by default. The owner of each hold is the
        label and a UUID.

        prefix: prepended to each lock name on the server. `hold.name`, errors and logs omit it.

        hooks: an object whose methods are called for each event.
        """
        check_lease(lease)
        check_seconds("server_timeout", server_timeout, ATTEMPT)
        check_whole("max_queued_per_lock", max_queued_per_lock, 1, HIGHEST_LIMIT)
        if hooks is not None and not isinstance(hooks, _hooks.Hooks):
            raise TypeError(f"hooks must be an object of a class that derives from redislock.Hooks, not {hooks!r}")
        if not isinstance(label, str) or len(label.encode()) > LABEL_MOST:
            raise (ValueError if isinstance(label, str) else TypeError)(
                f"label must be a str of {LABEL_MOST} bytes at most, not {label!r}"
            )
        self._label, self._prefix = label, as_bytes(prefix, "prefix") if prefix else b""
        self.lease, self.hooks = lease, hooks or _hooks.Hooks()
        found = settings_of_all(client) if self._is_group else [settings_of(client)]
        for each in found:
            if each.login.is_async not in (None, self._is_async):
                kind, other = ("an asyncio", "Locks") if self._is_async else ("a blocking", "AsyncLocks")
                raise TypeError(
                    f"{type(self).__name__} takes {kind} client of redis-py or valkey-py; {other} takes the other"
                )
        made = [replace(each, server_timeout=server_timeout, max_queued=max_queued_per_lock) for each in found]
        self._settings: Settings | list[Settings] = made if self._is_group else made[0]
        self._is_closed = False
        self._begin()

    def _adopted(self, ticket: str, lease: float | None) -> tuple[Wanted, int, dict[str, Any]]:
        """Parses a ticket of detach(): the request, the token, and the terms of the hold."""
        if self._is_group:
            raise ValueError("a hold of Redlock cannot be adopted")
        lease = self.lease if lease is None else lease
        check_lease(lease)
        try:
            told = json.loads(ticket)
            names, owner = told["names"], told["owner"].encode(errors="surrogateescape")
            keys = tuple(self._prefix + name.encode(errors="surrogateescape") for name in names)
            request = Wanted(keys, lease, told["kind"], told["limit"], owner, self._label, len(self._prefix))
            check_whole("token", told["token"], 1, TOKEN_MOST)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError("ticket must be what detach() has returned") from error
        return request, told["token"], {"renew": True, "max_hold": None, "lease": lease, "min_hold": 0.0}

    def _key(self, name: Name) -> bytes:
        """Returns a name of the user's as the server knows it."""
        return self._prefix + as_bytes(name)

    @abstractmethod
    def _begin(self) -> None:
        """Prepares for the first request."""

    @abstractmethod
    def _lock(self, names: Sequence[Name], kind: Kind, limit: int | None, options: Options) -> L:
        """Returns a lock of these names."""

    def lock(self, name: Name, **options: Unpack[Options]) -> L:
        """Describes an exclusive lock. Nothing is sent until it is acquired."""
        return self._lock([name], "exclusive", None, options)

    def read(self, name: Name, **options: Unpack[Options]) -> L:
        """Describes a lock that readers share. `write` and `lock` exclude them."""
        return self._lock([name], "read", None, options)

    def write(self, name: Name, **options: Unpack[Options]) -> L:
        """Describes an exclusive lock, as the counterpart of `read`. It is the same as `lock`."""
        return self.lock(name, **options)

    def semaphore(self, name: Name, limit: int, **options: Unpack[Options]) -> L:
        """Describes one of `limit` permits of a semaphore. All clients must use the same limit for a name."""
        check_whole("limit", limit, 1, HIGHEST_LIMIT)
        return self._lock([name], "semaphore", limit, options)

    def many(self, names: Sequence[Name], **options: Unpack[Options]) -> L:
        """Describes several exclusive locks that are acquired together, all or none, with one token."""
        return self._lock(_several("many", names), "exclusive", None, options)

    def read_many(self, names: Sequence[Name], **options: Unpack[Options]) -> L:
        """Describes several locks that readers share, and that are acquired together, all or none, with one token."""
        return self._lock(_several("read_many", names), "read", None, options)


def _several(what: str, names: Sequence[Name]) -> list[Name]:
    if isinstance(names, str | bytes):
        raise TypeError(f"{what} takes several names in a list, not {names!r} alone")
    if not 1 <= len(found := list(names)) <= NAMES_MOST:
        raise ValueError(f"{what} takes 1 to {NAMES_MOST} names, not {len(found)}")
    return found


class Described(Local, Generic[H]):
    """A lock of these names with these options. Nothing is sent before it is acquired."""

    def __init__(
        self, locks: Kinds[Any], names: Sequence[Name], kind: Kind, limit: int | None, options: Options
    ) -> None:
        check_options(options)
        min_hold, max_hold = options.get("min_hold"), options.get("max_hold")
        if locks._is_group and (kind != "exclusive" or len(names) > 1):
            raise ValueError("independent servers allow only exclusive locks, one at a time (docs/concepts/redlock.md)")
        if min_hold is not None and (locks._is_group or kind == "read"):
            raise ValueError("min_hold must not be set for readers or Redlock: only for exclusive locks and semaphores")
        self._locks = locks
        self._names = tuple(locks._key(name) for name in names)
        self._kind, self._limit, self._options = kind, limit, options
        lease = options.get("lease", locks.lease)
        #: The leases of a request, of a renewal, and of requests while min_hold lasts.
        self._lease = lease if max_hold is None else min(lease, max_hold)
        self._min_hold, self._first_ms = min_hold or 0.0, max(FIRST_LEASE_MS, milliseconds(min_hold or 0.0))
        self._label, self._prefixed = locks._label, len(locks._prefix)
        self._inside: Inside[H] = Inside(has_owner=options.get("owner") is not None)

    def _refuse_twice(self, who: Hashable) -> None:
        """Refuses to wait for a lock that this thread or task holds itself, in an enclosing block."""
        held, is_semaphore = 0, self._kind == "semaphore"
        for block in blocks_above(who):
            hold = block.hold
            if hold is None or not hold._alive or not hold._is_ours() or hold._locks is not self._locks:
                continue
            its, owner = hold._wanted, self._options.get("owner")
            is_other = owner is None or as_bytes(owner) != its.owner
            if is_other and (its.kind == "semaphore") == is_semaphore and not set(its.names).isdisjoint(self._names):
                held += 1
                if not is_semaphore or held == self._limit:
                    raise AlreadyHeldError(
                        f"{its.all_names}: the thread or task that asks for it already holds it, as {hold.owner}, and "
                        "would wait for itself. Pass the hold along"
                    )

    def _request(self) -> Wanted:
        """Returns the request of one acquire."""
        owner = self._options.get("owner")
        return Wanted(
            self._names,
            max(self._lease, self._min_hold),
            self._kind,
            self._limit,
            new_owner(self._label) if owner is None else as_bytes(owner),
            self._label,
            self._prefixed,
            self._first_ms,
            is_named=owner is not None,
        )

    def _reported(self, request: Wanted) -> _Reported:
        """Calls the hooks for this request, and adds its names to an error that has none."""
        return _Reported(self._locks.hooks, request)

    def _terms(self) -> dict[str, Any]:
        """Returns the options that a hold must know."""
        options = self._options
        renew, max_hold = options.get("renew", True), options.get("max_hold")
        return {"renew": renew, "max_hold": max_hold, "lease": self._lease, "min_hold": self._min_hold}


class _Reported:
    """A request whose begin and end are reported to hooks."""

    __slots__ = ("_began", "_hooks", "_name", "_request")

    def __init__(self, hooks: _hooks.Hooks, request: Wanted) -> None:
        self._hooks, self._request, self._name, self._began = hooks, request, request.name, clock()

    def __enter__(self) -> None:
        _hooks.call(self._hooks, "requested", self._name)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        waited = clock() - self._began
        if error is None:
            _hooks.call(self._hooks, "granted", self._name, waited)
            return
        add_lock(error, self._request.all_names)
        if isinstance(error, LockTimeoutError):
            _hooks.call(self._hooks, "timed_out", self._name, waited)
        else:
            _hooks.call(self._hooks, "failed", self._name, waited, error)


class BaseLeader(Local, ABC, Generic[L, H]):
    """Leads while it holds the lock, and stands again after a loss. It is a task of an event loop."""

    #: True if a loss cancels on_elected before on_deposed is called. Otherwise both may run at the same time.
    _cancels: bool
    _task: asyncio.Task[None] | None = None

    def __init__(
        self,
        lock: L,
        on_elected: Callable[[H], object] | None,
        on_deposed: Callable[[str], object] | None,
        on_error: Callable[[Exception], object] | None,
    ) -> None:
        self._locks: Any = lock._locks
        self._lock, self._name = lock, lock._request().name
        self._on_elected, self._on_deposed, self._on_error = on_elected, on_deposed, on_error
        #: The kind of error that was last reported to on_error.
        self._told: type[Exception] | None = None
        self._hold: H | None = None

    @property
    def hold(self) -> H | None:
        """The hold while it leads; otherwise None."""
        hold = self._hold
        return hold if hold is not None and hold.lost is None and hold._alive else None

    @abstractmethod
    async def _acquire(self) -> H:
        """Waits for the lock without a limit."""

    @abstractmethod
    async def _until_lost(self, hold: H) -> object:
        """Waits until the hold is lost."""

    @abstractmethod
    async def _call(self, call: Callable[[Any], object] | None, what: object) -> None:
        """Calls the user's function and waits for its end."""

    async def _stand(self) -> None:
        while not self._locks._is_closed:
            try:
                hold = await self._acquire()
            except RedislockError as failure:
                if not self._locks._is_closed:
                    if self._told is not type(failure):
                        self._told = type(failure)
                        logger.warning("could not stand for election for %s, will retry: %s", self._name, failure)
                        await self._tell(self._on_error, failure)
                    await asyncio.sleep(LONGEST_PAUSE)
                continue
            except Exception:
                logger.exception("the candidacy for %s ends, because of an error", self._name)
                return
            self._told = None
            await self._lead(hold)

    async def _lead(self, hold: H) -> None:
        self._hold, failed, hold._may_detach, hold._has_block = hold, False, False, True
        work = asyncio.ensure_future(self._call(self._on_elected, hold))
        loss = asyncio.ensure_future(self._until_lost(hold))
        called = [work]
        try:
            await asyncio.wait((work, loss), return_when=asyncio.FIRST_COMPLETED)
            if not work.done() or not (work.cancelled() or work.exception()):
                await asyncio.wait((loss,))
            failed = hold.lost is None
            if not failed and not self._cancels:
                called.append(asyncio.ensure_future(self._tell(self._on_deposed, hold.lost)))
        finally:
            loss.cancel()
            if self._cancels:
                work.cancel()
            await asyncio.wait((*called, loss))
            error = None if work.cancelled() else work.exception()
            if failed or (error is not None and not isinstance(error, LockLostError)):
                then = ", so the lock is released" if failed else ""
                logger.error("the work of the leader of %s failed%s", self._name, then, exc_info=error)
            await self._give_up()
        if failed:
            await asyncio.sleep(AFTER_FAILURE)
        elif self._cancels:
            await self._tell(self._on_deposed, hold.lost)

    async def _tell(self, call: Callable[[Any], object] | None, what: object) -> None:
        try:
            await self._call(call, what)
        except Exception:
            logger.exception("%s of the leader of %s failed", name_of(call or self._tell), self._name)

    async def _give_up(self) -> None:
        hold = self._hold
        if hold is not None:
            try:
                await hold._release()
            except RedislockError as failure:  # it leads no more either way
                hold._not_given_up(failure)
        self._hold = None

    async def _resign(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        # Not gather: on_elected may call this, and its end must not cancel the task again.
        await asyncio.wait((task,))
        await self._give_up()  # if its end was cut short
