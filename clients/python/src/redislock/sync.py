"""Locks for threads.

Requests of a thread use a connection from a small pool. One background thread of the process does all waiting and
renewing, and receives the server's pushes.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, Unpack

from . import hooks as _hooks
from ._core import Core
from ._engine import Engine, close_all, close_later, current, the_background
from ._group import Group
from ._hold import BaseHold
from ._info import Info
from ._kinds import BaseLeader, Described, Kinds
from ._link import in_thread
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


class Hold(BaseHold):
    """A lock that is held. Any thread may use it. Keep a reference to it until you release it."""

    def __init__(self, locks: Locks, engine: Engine, request: Wanted, grant: Grant, **options: Any) -> None:
        # A hold keeps its locks object alive, whose end would end the hold.
        self._locks, self._engine = locks, engine
        self._waiting: list[threading.Event] = []
        super().__init__(engine.core, request.attempt or request, grant, **options)

    def release(self) -> None:
        """Releases the lock. Raises LockLostError if it was lost before, or the server's error."""
        if self._give_up():
            with about(self.name):
                self._given_up(self._engine.release(self._wanted, self.token))

    def __enter__(self) -> Hold:
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except LockLostError as lost:
            if error is None:
                raise
            error.add_note(str(lost))
        except RedislockError as failure:
            self._not_given_up(failure)

    def extend(self, lease: float) -> None:
        """Starts a new lease of `lease` seconds now; raises LockLostError if the hold has ended.

        After any other error the hold assumes the shorter of the old and the new lease.
        """
        self.check()
        check_lease(lease)
        self._check_extension(lease)
        with about(self.name):
            self._engine.background.run(self._engine.core.renew(self, lease))

    def detach(self, lease: float | None = None) -> str:
        """Ends the hold here, and returns a ticket with which another process takes it over: `locks.adopt(ticket)`.

        Renews it a last time, for `lease` seconds. Raises an error and keeps the hold if a renewal was not answered.
        """
        self.check()  # before the event loop is asked, which does not run after a fork
        return self._engine.background.run(self._detach(lease))

    def on_lost(self, call: Callable[[str], object]) -> None:
        """Registers a function that is called with the reason, in a thread of its own, when the hold is lost."""
        self._pin()
        self._listeners.append(call)
        if self.lost is not None and call in self._listeners:
            self._tell(self.lost)

    def wait_until_lost(self, timeout: float | None = None) -> str | None:
        """Waits until the hold is lost or released, or `timeout` has passed. Returns the reason, or None."""
        ended = threading.Event()
        self._waiting.append(ended)
        try:
            if self.lost is None and self._alive:
                ended.wait(timeout)
        finally:
            self._waiting.remove(ended)
        return self.lost

    def _is_heard(self) -> bool:
        return super()._is_heard() or bool(self._waiting)

    def _finish(self, reason: str | None = None) -> bool:
        is_first = super()._finish(reason)
        for ended in list(self._waiting):
            ended.set()
        return is_first

    def _tell(self, reason: str) -> None:
        listeners, self._listeners = self._listeners, []
        for call in listeners:
            self._keeper.soon(self._begin_call, call, reason)

    def _begin_call(self, call: Callable[[str], object], reason: str) -> None:
        try:
            # Not in a thread of the event loop's pool: it has few, and resolves host names in them.
            threading.Thread(target=self._call, args=[call, reason], name="redislock-lost").start()
        except RuntimeError:  # there are too many threads, or the program ends
            logger.exception("could not start a thread, so nothing is notified of the loss of %s", self.name)

    def _call(self, call: Callable[[str], object], reason: str) -> None:
        try:
            call(reason)
        except Exception:
            logger.exception("the function for the loss of %s failed", self.name)


class Lock(Described[Hold]):
    """Describes one lock, or several at once, for `with` or acquire(). Each block has a hold of its own."""

    _locks: Locks

    def acquire(self) -> Hold:
        """Waits for the lock, and returns a new hold. Raises LockTimeoutError if it is not granted in time."""
        self._refuse_twice(threading.current_thread())
        return self._acquire(self._options.get("wait"))

    def try_acquire(self) -> Hold | None:
        """Takes the lock now if it is free. Returns None only if the server replied that another owner holds it."""
        self._refuse_twice(threading.current_thread())
        try:
            return self._acquire(0)
        except LockTimeoutError:
            return None

    def _acquire(self, wait: float | None) -> Hold:
        locks, request = self._locks, self._request()
        engine = locks._engine()
        grant: Grant | None = None
        engine.taking.add(request)
        try:
            with self._reported(request):
                grant = engine.acquire(request, wait)
            hold = Hold(locks, engine, request, grant, **self._terms())
        except BaseException:
            if grant is not None:  # an interruption came just behind it
                engine.core.soon(engine.core.abandon, request, grant.token)
            raise
        finally:
            engine.taking.discard(request)
        hold._check_grant()
        return hold

    def __enter__(self) -> Hold:
        thread = threading.current_thread()
        self._refuse_twice(thread)
        block = self._inside.begin(thread)
        try:
            hold = self._acquire(self._options.get("wait"))
            hold._has_block = True
            self._inside.entered(block, hold)
        except BaseException:
            self._inside.drop(block)
            raise
        return hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hold = self._inside.end(threading.current_thread(), error)
        if hold is not None:
            hold.__exit__(kind, error, trace)


class Locks(Kinds[Lock]):
    """A client for locks, on the servers of one client of redis-py or valkey-py. Threads may share it."""

    def _begin(self) -> None:
        self._engines: list[Engine] = []
        weakref.finalize(self, close_later, self._engines).atexit = False  # at the end all are closed

    def _engine(self) -> Engine:
        if self._is_closed:
            raise LocksClosedError("these locks are closed")
        return current(self._engines, self._settings, self.hooks)

    def _lock(self, names: Sequence[Name], kind: Kind, limit: int | None, options: Options) -> Lock:
        return Lock(self, names, kind, limit, options)

    def leader(
        self,
        name: Name,
        *,
        on_elected: Callable[[Hold], object] | None = None,
        on_deposed: Callable[[str], object] | None = None,
        on_error: Callable[[Exception], object] | None = None,
        lease: float | None = None,
    ) -> Leader:
        """Describes an election. It stands from `with` or start() on, until it resigns.

        on_elected: the work of the leader, in a thread of its own. When it returns, the leader continues to lead. If it
        raises, the error is logged, the lock is released, and the candidate stands again after a second.

        on_deposed: called with the reason when the lock is lost, even while on_elected still runs. The candidate stands
        again only when both have returned, so on_elected should call hold.check().

        on_error: called once with the error if it cannot ask for the lock for now. It keeps trying.
        """
        for call in (on_elected, on_deposed, on_error):
            if inspect.iscoroutinefunction(call):
                raise TypeError(f"{name_of(call)} is asynchronous: use leader of AsyncLocks")
        check_calls(on_elected=on_elected, on_deposed=on_deposed, on_error=on_error)
        lock = self.lock(name, lease=self.lease if lease is None else lease)
        return Leader(lock, on_elected, on_deposed, on_error)

    def locked(
        self, name: str, *, busy: str = "raise", **options: Unpack[Options]
    ) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
        """Returns a decorator: each call runs under the lock. "{id}" in the name is replaced by its argument `id`.

        busy="skip": a call that does not get the lock does nothing and returns None.
        """
        check_busy(busy)
        check_options(options)

        def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
            if inspect.iscoroutinefunction(function):
                raise TypeError(f"{name_of(function)} is asynchronous: use locked of AsyncLocks")
            check_function(function)
            check_template(name, function)

            @functools.wraps(function)
            def call(*arguments: P.args, **keywords: P.kwargs) -> R | None:
                lock = self.lock(name_of_call(name, function, arguments, keywords), **options)
                is_inside = False
                try:
                    with lock:
                        is_inside = True
                        result = function(*arguments, **keywords)
                        check_result(function, result)
                        return result
                except LockTimeoutError:
                    if is_inside or busy == "raise":
                        raise
                    return None

            return call

        return decorate

    def check_token(self, name: Name, token: int) -> None:
        """Raises FencedError unless the token belongs to a live hold of this lock."""
        key = self._key(name)
        check_whole("token", token, 1, TOKEN_MOST)
        with about(shown(name)):
            is_live = self._run(lambda core: core.fence(key, token))
        if not is_live:
            raise FencedError(f"the token {token} does not belong to a live hold of {shown(name)!r}", lock=shown(name))

    def info(self, name: Name) -> Info | None:
        """Returns the holders and the waiters of this lock, or None if there are none."""
        key = self._key(name)
        with about(shown(name)):
            return self._run(lambda core: core.info(key))

    def adopt(self, ticket: str, lease: float | None = None) -> Hold:
        """Takes over a hold that another process has detached. Raises LockLostError if its lease has ended meanwhile.

        Hand a ticket to only one process: the server cannot distinguish two that adopt the same one.
        """
        request, token, terms = self._adopted(ticket, lease)
        engine = self._engine()
        grant = engine.background.run(engine.core.adopt(request, token))  # type: ignore[union-attr]
        _hooks.call(self.hooks, "adopted", request.name)
        return Hold(self, engine, request, grant, **terms)

    def ping(self) -> str:
        """Checks that a primary with the module answers, and returns the module's version.

        Raises ConnectionFailedError if no primary answers, ServerRefusedError if it refuses.
        """
        key = self._key(PING)
        return self._run(lambda core: core.ping(key))

    def _run(self, ask: Callable[[Core | Group], Coroutine[Any, Any, R]]) -> R:
        """Runs this in the thread that talks to the servers, and returns its result."""
        engine = self._engine()
        engine.background.refuse_itself()
        return engine.background.run(ask(engine.core))

    def close(self, timeout: float = CLOSE) -> None:
        """Ends all holds, waits and connections within `timeout` seconds. Nothing can be acquired afterwards.

        Holds are lost, with the reason "close", and their locks are released. A lock that a block of another thread
        uses is released when the block ends. If the block runs longer, or no server answers, the lease ends it.
        """
        check_seconds("timeout", timeout, 0.0)
        for engine in self._engines:
            engine.background.refuse_itself()
        self._is_closed = True
        engines, self._engines[:] = list(self._engines), []
        close_all(engines, timeout, running())

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Leader(BaseLeader[Lock, Hold]):
    """Leads while it holds the lock, and stands again when it is deposed. Each callback runs in a thread of its own."""

    _cancels = False
    #: The previous task of the candidacy, which may not have ended yet.
    _last: asyncio.Task[None] | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        #: The threads in which its callbacks run.
        self._threads: set[threading.Thread] = set()

    def start(self) -> None:
        """Stands for election."""
        if self._task is None:
            if self._last is not None and not self._last.done():
                raise RuntimeError(f"the leader of {self._name!r} has resigned, but its callback still runs")
            the_background().run(self._start())

    async def _start(self) -> None:
        self._task = self._last = asyncio.create_task(self._stand())

    async def _acquire(self) -> Hold:
        engine, request = self._locks._engine(), self._lock._request()
        with self._lock._reported(request):
            grant = await engine.core.acquire(request, None, clock())
        return Hold(self._locks, engine, request, grant, **self._lock._terms())

    async def _until_lost(self, hold: Hold) -> object:
        return await asyncio.wrap_future(in_thread("redislock-leader", hold.wait_until_lost))

    async def _call(self, call: Callable[[Any], object] | None, what: object) -> None:
        if call is not None:
            await asyncio.wrap_future(in_thread("redislock-leads", functools.partial(self._run, call, what)))

    def _run(self, call: Callable[[Any], object], what: object) -> None:
        self._threads.add(threading.current_thread())
        try:
            check_result(call, call(what))
        except SystemExit as error:  # which would end the event loop
            raise RuntimeError(f"{name_of(call)} called sys.exit()") from error
        finally:
            self._threads.discard(threading.current_thread())

    def resign(self) -> None:
        """Ends the candidacy, and releases the lock. If on_elected still runs, waits until it has ended.

        If on_elected or on_deposed itself calls this, it does not wait: the lock is released when they have returned.
        """
        background = the_background()
        task, self._task = self._task, None
        if task is None or task.get_loop() is not background.loop:  # after a fork it is that of the parent
            return
        if threading.current_thread() in self._threads:
            asyncio.run_coroutine_threadsafe(self._resign(task), background.loop)
        else:
            background.run(self._resign(task))

    def __enter__(self) -> Leader:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.resign()
