"""Locks for threads.

What a thread asks goes over a connection of its own thread's choosing from a small pool. Waiting, renewals and
what the servers tell unasked are the work of one thread for the whole process.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, Unpack

from . import hooks as _hooks
from ._core import Core, too_late
from ._group import Group
from ._hold import BaseHold
from ._link import Broken, Pool
from ._options import Options, check_busy, name_of_call, wanted
from ._resp import Command, ReplyError
from ._rules import (
    ATTEMPT,
    LEASE,
    LONGEST_PAUSE,
    WAITING,
    Grant,
    Kind,
    Name,
    Step,
    Wanted,
    as_bytes,
    clock,
    judge,
)
from ._settings import Settings, settings_of
from .errors import ConnectionFailed, Fenced, LockLost, LockTimeout, RedislockError, translate

logger = logging.getLogger("redislock")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
#: What a forked child has inherited. It is kept, for to end it would harm the parent.
_inherited: list[object] = []


class _Background:
    """The event loop of the process for all that is not asyncio's own, in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, name="redislock", daemon=True).start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What this returns or raises. An exception in the thread that waits, as KeyboardInterrupt, cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


_background: _Background | None = None
_guard = threading.Lock()


def _the_background() -> _Background:
    global _background
    with _guard:
        if _background is None:
            _background = _Background()
        return _background


def _in_child() -> None:
    global _background, _guard
    _guard = threading.Lock()
    if _background is not None:
        _inherited.append(_background)
        _background = None


os.register_at_fork(after_in_child=_in_child)


class _Busy:
    """The locks that threads of this process hold, wait for or ask for."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._counts: dict[bytes, int] = {}

    def enter(self, names: Sequence[bytes]) -> bool:
        """Whether any of these was there already; from now on they are."""
        with self._guard:
            is_busy = False
            for name in names:
                count = self._counts.get(name, 0)
                is_busy = is_busy or count > 0
                self._counts[name] = count + 1
            return is_busy

    def leave(self, names: Sequence[bytes]) -> None:
        """One less asks for these or has them."""
        with self._guard:
            for name in names:
                self._counts[name] -= 1
                if not self._counts[name]:
                    del self._counts[name]


class _Engine:
    """What talks with the servers, in this process."""

    def __init__(self, settings: Settings | list[Settings], hooks: _hooks.Hooks, waiting: int) -> None:
        self.pid = os.getpid()
        self.background = _the_background()
        self.pool: Pool | None = None
        self.busy = _Busy()
        loop = self.background.loop
        self.core: Core | Group
        if isinstance(settings, list):
            self.core = Group(loop, settings, hooks, waiting)
        else:
            self.core = Core(loop, settings, hooks, waiting)
            self.pool = Pool(settings.login, settings.pool)

    def once(self, name: bytes, command: Command, request: Wanted) -> Any:
        """The reply, if it comes at the first attempt from the server that is asked; else Broken."""
        address = self.core.address(name) if isinstance(self.core, Core) else None
        if self.pool is None or address is None:
            raise Broken("the server is not known")
        try:
            reply = self.pool.call(address, command, ATTEMPT / 2)
        except Broken as error:
            request.is_doubtful = error.was_sent = True
            raise
        except ReplyError as error:  # the login was refused
            raise translate(str(error)) from None
        if isinstance(reply, ReplyError):
            if judge(str(reply)).step is Step.FAIL:
                raise translate(str(reply))
            raise Broken(str(reply))
        return reply

    def acquire(self, request: Wanted, wait: float | None) -> Grant:
        """The grant. Nothing is left behind after an exception."""
        began, waits = clock(), wait is None or wait > 0
        is_busy = self.busy.enter(request.names)
        try:
            # Behind others of this process who want to wait, for they came first.
            reply = None if is_busy and waits else self._try(request, waits)
            if isinstance(reply, Grant):
                return reply
            if reply is False and not waits:
                raise too_late(request, wait)
            left = None if wait is None else max(0.0, began + wait - clock())
            return self.background.run(self.core.acquire(request, left))
        except BaseException as error:
            self.busy.leave(request.names)
            if request.is_doubtful or not isinstance(error, LockTimeout):
                self.core.soon(self.core.abandon, request)
            raise

    def _try(self, request: Wanted, waits: bool) -> Grant | bool | None:
        """The grant; False if somebody else holds it; None if that could not be asked, or may be asked again."""
        sent = clock()
        try:
            token = self.once(request.names[0], request.acquire(), request)
        except Broken:
            return None
        except RedislockError:
            if waits:
                return None  # who waits may get it all the same, as after a quarantine
            raise
        return False if token is None else Grant(token, sent)

    def release(self, request: Wanted, token: int) -> bool:
        """Whether all was still held."""
        try:
            replies = [self.once(name, request.release(name, token), request) for name in request.names]
        except Broken as error:
            # What was sent may have been done, though its reply is lost: then 0 is no news.
            return self.background.run(self.core.release(request, token, error.was_sent))
        except BaseException:
            self.core.soon(self.core.abandon, request)
            raise
        if request.is_doubtful:
            self.core.soon(self.core.abandon, request)
        return all(reply == 1 for reply in replies)

    def close(self) -> None:
        """Gives up all holds and all waits, ends all connections."""
        if self.pid != os.getpid():
            _inherited.append(self)
            return
        self.background.run(self.core.close())
        if self.pool is not None:
            self.pool.close()


def _close_later(engines: list[_Engine]) -> None:
    """Ends the connections of locks that nobody has any more."""
    for engine in engines:
        if engine.pid != os.getpid():
            _inherited.append(engine)
            continue
        if engine.pool is not None:
            engine.pool.close()
        engine.core.soon(lambda engine=engine: engine.core.begin(engine.core.close()))


class Hold(BaseHold):
    """A lock that is held. Any thread may use it."""

    def __init__(self, locks: Locks, engine: _Engine, request: Wanted, grant: Grant, **options: Any) -> None:
        # A hold keeps its locks alive: their end would end the hold.
        self._locks, self._engine = locks, engine
        super().__init__(engine.core, grant.wanted or request, grant, **options)

    def _finish(self) -> bool:
        if not super()._finish():
            return False
        self._engine.busy.leave(self._wanted.names)
        return True

    def release(self) -> None:
        """Gives it up. Raises LockLost if it was lost before."""
        if not self._is_ours():
            raise self._error("fork")
        was_held = self._finish()
        if not was_held and self._reason is None:
            return  # it was given up before
        try:
            was_there = self._engine.release(self._wanted, self.token)
        except ConnectionFailed:
            if was_held:
                raise
            was_there = False
        hooks, held = self._keeper.hooks, clock() - self._granted_at
        if was_held and was_there:
            _hooks.call(hooks, "released", self.name, held)
            return
        if was_held:
            self._reason = "release"
            _hooks.call(hooks, "lost", self.name, held, "release")
        raise self._error(self._reason or "release")

    def extend(self, lease: float) -> None:
        """Begins a lease of so many seconds now; raises LockLost if the hold is over."""
        self.check()
        self._wanted.lease = lease
        self._engine.background.run(self._engine.core.renew(self))
        self.check()

    def on_lost(self, call: Callable[[str], object]) -> None:
        """Calls this with the reason, in a thread of its own, when the hold is lost."""
        self._listeners.append(call)
        if self.lost is not None and call in self._listeners:
            self._tell(self.lost)

    def wait_until_lost(self, timeout: float | None = None) -> str | None:
        """Waits until the hold is lost or given up or the time is over; the reason of the loss, or None."""
        lost = threading.Event()
        self.on_lost(lambda _: lost.set())
        lost.wait(timeout)
        return self.lost

    def _tell(self, reason: str) -> None:
        listeners, self._listeners = self._listeners, []
        for call in listeners:
            self._keeper.soon(self._keeper.loop.run_in_executor, None, self._call, call, reason)

    def _call(self, call: Callable[[str], object], reason: str) -> None:
        try:
            call(reason)
        except Exception:
            logger.exception("what was to be called at the loss of %s failed", self.name)


class Lock:
    """What `with` takes: one lock, or several at once."""

    def __init__(self, locks: Locks, names: Sequence[Name], kind: Kind, limit: int | None, options: Options) -> None:
        self._locks, self._names, self._kind, self._limit, self._options = locks, names, kind, limit, options
        self._hold: Hold | None = None

    def acquire(self) -> Hold:
        """Takes the lock; LockTimeout if it is not to be had in time."""
        options, locks = self._options, self._locks
        request = wanted(self._names, self._kind, self._limit, locks.lease, options)
        engine, began, name = locks._engine(), clock(), request.names[0].decode(errors="replace")
        try:
            grant = engine.acquire(request, options.get("wait"))
        except LockTimeout:
            _hooks.call(locks.hooks, "timed_out", name, clock() - began)
            raise
        _hooks.call(locks.hooks, "granted", name, clock() - began)
        renew, longest = options.get("renew", True), options.get("longest")
        return Hold(locks, engine, request, grant, renew=renew, longest=longest)

    def __enter__(self) -> Hold:
        if self._hold is not None:
            raise RuntimeError("this lock is entered already: make another one for each block")
        self._hold = self.acquire()
        return self._hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hold, self._hold = self._hold, None
        if hold is None:
            return
        try:
            hold.release()
        except LockLost:
            if kind is None:
                raise
        except RedislockError as failure:
            logger.warning("the release of %s goes on in the background: %s", hold.name, failure)


class Locks:
    """Locks of the servers of one client of redis-py or valkey-py; of several for independent servers.

    lease: seconds that a hold lasts unless it is renewed. waiting: how many waiters of this process stand in the
    server's line for a lock; the others stand behind them, in order. All of them share one connection to each server,
    but who waits for several locks at once has one of its own: so many at most.
    """

    def __init__(
        self,
        client: Any,
        *,
        lease: float = LEASE,
        waiting: int = WAITING,
        hooks: _hooks.Hooks | None = None,
    ) -> None:
        self.lease, self._waiting = lease, waiting
        self.hooks = hooks or _hooks.Hooks()
        self._settings: Settings | list[Settings]
        is_many = isinstance(client, list | tuple)
        self._settings = [settings_of(each) for each in client] if is_many else settings_of(client)
        self._engines: list[_Engine] = []
        weakref.finalize(self, _close_later, self._engines)

    def _engine(self) -> _Engine:
        engines = self._engines
        if not engines or engines[0].pid != os.getpid():
            with _guard:
                if engines and engines[0].pid != os.getpid():
                    _inherited.append(engines.pop())
            made = _Engine(self._settings, self.hooks, self._waiting)
            with _guard:
                if not engines:
                    engines.append(made)
        return engines[0]

    def lock(self, name: Name, **options: Unpack[Options]) -> Lock:
        """An exclusive lock."""
        return Lock(self, [name], "exclusive", None, options)

    def read(self, name: Name, **options: Unpack[Options]) -> Lock:
        """A lock that is shared with other readers."""
        return Lock(self, [name], "read", None, options)

    def write(self, name: Name, **options: Unpack[Options]) -> Lock:
        """The lock that readers share, for one alone."""
        return Lock(self, [name], "write", None, options)

    def semaphore(self, name: Name, limit: int, **options: Unpack[Options]) -> Lock:
        """One of so many permits."""
        return Lock(self, [name], "semaphore", limit, options)

    def many(self, names: Sequence[Name], *, shared: bool = False, **options: Unpack[Options]) -> Lock:
        """All of these locks or none, with one token."""
        return Lock(self, list(names), "read" if shared else "exclusive", None, options)

    def leader(
        self,
        name: Name,
        *,
        on_elected: Callable[[Hold], object] | None = None,
        on_lost: Callable[[str], object] | None = None,
        lease: float | None = None,
    ) -> Leader:
        """Stands for election from `with` or start() on, until it resigns."""
        return Leader(self, name, on_elected, on_lost, self.lease if lease is None else lease)

    def locked(
        self, name: str, *, busy: str = "raise", **options: Unpack[Options]
    ) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
        """A decorator: each call runs under the lock, as "report:{id}" with the call's argument `id`.

        busy="skip": a call that does not get the lock returns None and does nothing.
        """
        check_busy(busy)

        def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
            @functools.wraps(function)
            def call(*arguments: P.args, **keywords: P.kwargs) -> R | None:
                lock = self.lock(name_of_call(name, function, arguments, keywords), **options)
                try:
                    lock.__enter__()
                except LockTimeout:
                    if busy == "skip":
                        return None
                    raise
                try:
                    result = function(*arguments, **keywords)
                except BaseException as error:
                    lock.__exit__(type(error), error, error.__traceback__)
                    raise
                lock.__exit__(None, None, None)
                return result

            return call

        return decorate

    def fence(self, name: Name, token: int) -> None:
        """Raises Fenced if the token is not that of a live hold of this lock."""
        engine = self._engine()
        if not engine.background.run(engine.core.fence(as_bytes(name), token)):
            raise Fenced(f"the token {token} belongs to no live hold of {name!r}")

    def held(self, owner: Name) -> list[str]:
        """The names of all locks that this owner holds, on all servers."""
        engine = self._engine()
        names = engine.background.run(engine.core.held(as_bytes(owner)))
        return [name.decode(errors="replace") for name in names]

    def close(self) -> None:
        """Gives up all holds and all waits, ends all connections."""
        while self._engines:
            self._engines.pop().close()

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Redlock(Locks):
    """Locks that a majority of independent servers grants: one client for each of them."""

    def __init__(self, clients: Sequence[Any], **options: Any) -> None:
        super().__init__(list(clients), **options)


class Leader:
    """Leads while it holds the lock, and stands again when it was deposed. It has a thread of its own."""

    def __init__(
        self,
        locks: Locks,
        name: Name,
        on_elected: Callable[[Hold], object] | None,
        on_lost: Callable[[str], object] | None,
        lease: float,
    ) -> None:
        self._locks, self._name, self._lease = locks, name, lease
        self._on_elected, self._on_lost = on_elected, on_lost
        self._thread: threading.Thread | None = None
        self._has_resigned = False
        self._changed = threading.Event()
        self._hold: Hold | None = None

    @property
    def hold(self) -> Hold | None:
        """The hold by which it leads now."""
        return self._hold if self._hold is not None and self._hold.lost is None else None

    def start(self) -> None:
        """Stands for election."""
        if self._thread is None:
            self._has_resigned = False
            self._thread = threading.Thread(target=self._stand, name="redislock-leader", daemon=True)
            self._thread.start()

    def _stand(self) -> None:
        while not self._has_resigned:
            try:
                hold = self._wait()
            except RedislockError as failure:
                logger.warning("standing for %s: %s", self._name, failure)
                self._changed.wait(LONGEST_PAUSE)
                continue
            if hold is not None:
                self._lead(hold)

    def _wait(self) -> Hold | None:
        """Waits in line without an end; None if it resigned meanwhile."""
        engine = self._locks._engine()
        request = wanted([self._name], "exclusive", None, self._lease, {})
        self._changed.clear()
        future = asyncio.run_coroutine_threadsafe(engine.core.acquire(request, None), engine.background.loop)
        future.add_done_callback(lambda _: self._changed.set())
        while not future.done() and not self._has_resigned:
            self._changed.wait()
            self._changed.clear()
        if not future.done() and future.cancel():
            return None
        grant = future.result()
        engine.busy.enter(request.names)
        return Hold(self._locks, engine, request, grant)

    def _lead(self, hold: Hold) -> None:
        self._changed.clear()
        hold.on_lost(lambda _: self._changed.set())
        self._hold = hold
        self._tell(self._on_elected, hold)
        while hold.lost is None:
            if self._has_resigned:
                try:
                    hold.release()
                except (LockLost, ConnectionFailed):
                    pass  # it leads no more either way
                return
            self._changed.wait()
            self._changed.clear()
        self._tell(self._on_lost, hold.lost)

    def _tell(self, call: Callable[[Any], object] | None, what: object) -> None:
        if call is not None:
            try:
                call(what)
            except Exception:
                logger.exception("what the leader of %s does failed", self._name)

    def resign(self) -> None:
        """Stands no more, and gives up the lock. If on_elected runs still, waits until it has ended."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._has_resigned = True
            self._changed.set()
            thread.join()
            self._hold = None

    def __enter__(self) -> Leader:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.resign()
