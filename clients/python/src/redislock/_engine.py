"""State that threads share: a background thread with an event loop, and connections for requests without waits."""

from __future__ import annotations

import asyncio
import atexit
import importlib
import logging
import os
import sys
import threading
import weakref
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from . import hooks as _hooks
from ._core import Core, too_late
from ._group import Group
from ._keeper import inherited
from ._link import Broken, Pool
from ._resp import Command, ReplyError
from ._rules import ATTEMPT, CLOSE, LONGEST_PAUSE, Grant, Step, Wanted, clock, deadline, judge
from ._servers import NOT_ME
from ._settings import Settings
from .errors import LockTimeoutError, RedislockError, ServerRefusedError, translate

T = TypeVar("T")
#: The engines of this process, and of its parents.
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
logger = logging.getLogger("redislock")


class _Background:
    """The event loop of the process for all that does not use asyncio, in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="redislock", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self.loop.is_closed():
            try:
                self.loop.run_forever()
            except BaseException:
                # The program's callbacks run here, too, such as a provider of passwords. Without this, all threads
                # would hang.
                logger.exception("a callback tried to end the thread that renews all locks")

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Returns or raises the work's outcome. An exception in the waiting thread, such as KeyboardInterrupt, cancels
        the work."""
        try:
            self.refuse_itself()
        except RuntimeError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout)
        except BaseException:
            if timeout is None:  # work with a time limit ends on its own
                future.cancel()
            raise

    def refuse_itself(self) -> None:
        """Refuses to let this thread wait for itself: renewals would stop for ever."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a hook must not ask a server: the thread that runs it would wait for itself")


_background: _Background | None = None
_guard = threading.RLock()


def the_background() -> _Background:
    """Returns the event loop of the process, which is created on first use."""
    global _background
    with _guard:
        if _background is None:
            _background = _Background()
        return _background


def _in_child() -> None:
    global _background, _guard
    _guard = threading.RLock()
    if _background is not None:
        inherited.append(_background)
        _background = None


os.register_at_fork(after_in_child=_in_child)


class Engine:
    """The connections to the servers, in this process."""

    def __init__(self, settings: Settings | list[Settings], hooks: _hooks.Hooks) -> None:
        self.pid = os.getpid()
        _engines.add(self)
        self.background = the_background()
        self.pool: Pool | None = None
        loop = self.background.loop
        self.core: Core | Group
        if isinstance(settings, list):
            self.core = Group(loop, settings, hooks)
        else:
            self.core = Core(loop, settings, hooks)
            self.pool = Pool(settings.login, settings.pool)
        self.taking = self.core.taking

    def once(self, name: bytes, command: Command) -> Any:
        """Returns the reply to the first attempt, from the server that is asked. Raises Broken otherwise."""
        address = self.core.address(name) if isinstance(self.core, Core) else None
        if self.pool is None or address is None:
            raise Broken("the server is unknown")
        try:
            reply = self.pool.call(address, command, clock() + ATTEMPT / 2)
        except Broken as error:
            error.was_sent = True
            raise
        except ReplyError as error:  # the login was refused
            raise translate(str(error), address) from None
        if isinstance(reply, ReplyError):
            is_left = str(reply).startswith(NOT_ME) and self.pool.leave(address)
            if judge(str(reply)).step is Step.FAIL and not is_left:
                raise translate(str(reply), address)
            raise Broken(str(reply))
        return reply

    def acquire(self, request: Wanted, wait: float | None) -> Grant:
        """Returns the grant. After an exception, nothing is left on the servers."""
        self.core.refuse_if_closing()
        began, waits = clock(), wait is None or wait > 0
        try:
            asks_first = isinstance(self.core, Core) and self.core.asks_first(request, waits)
            reply = self._try(request, waits) if asks_first else None
            if isinstance(reply, Grant):
                return reply
            if reply is False and not waits:
                raise too_late(request, wait)
            return self.background.run(self.core.acquire(request, wait, began))
        except BaseException as error:
            if request.is_doubtful or not isinstance(error, LockTimeoutError):
                self.core.soon(self.core.give_up, request, error)
            raise

    def _try(self, request: Wanted, waits: bool) -> Grant | bool | None:
        """Returns the grant, False if another owner holds the lock, or None if it is unknown or may ask again."""
        sent = clock()
        request.is_grantable = True
        try:
            token = self.once(request.names[0], request.acquire())
            request.hears(token)
        except Broken as error:
            if error.was_sent:
                request.doubt()
            return None
        except RedislockError:
            if waits:
                return None  # a waiter may get it all the same, as after a quarantine
            raise
        if waits and token is not None and clock() >= deadline(sent, request.lease):
            return None  # it came as late as the lease ends: it is asked for again
        return False if token is None else Grant(token, sent)

    def release(self, request: Wanted, token: int) -> bool:
        """Returns whether all locks were still held, as far as known."""
        replies: list[Any] = []
        try:
            for name in request.names:
                replies.append(self.once(name, request.release(name, token)))
        except (Broken, ServerRefusedError) as error:
            # A release that was done before, or sent and not answered, is answered 0 now, which means no loss.
            is_repeated = bool(replies) or (isinstance(error, Broken) and error.was_sent)
            is_rest_held = self.background.run(self.core.release(request, token, is_repeated))
            return is_rest_held and all(reply == 1 for reply in replies)
        except BaseException:
            self.core.soon(self.core.abandon, request, token)
            raise
        if request.is_doubtful:
            self.core.soon(self.core.abandon, request)
        elif isinstance(self.core, Core):
            self.core.is_over(request)
        return all(reply == 1 for reply in replies)


def close_all(engines: Sequence[Engine], timeout: float, by: tuple[int, int] | None = None) -> None:
    """Ends all holds, waits and connections in parallel, within `timeout` seconds.

    by: the thread and task that waits for the bodies of all others.
    """
    inherited.extend(engine for engine in engines if engine.pid != os.getpid())
    ours = [engine for engine in engines if engine.pid == os.getpid()]
    for engine in ours:
        if engine.pool is not None:
            engine.pool.close()
    if ours:
        until = clock() + timeout
        try:
            # A hook that blocks also blocks the event loop.
            ours[0].background.run(_close_each(ours, until, by), timeout + LONGEST_PAUSE)
        except TimeoutError:
            logger.warning("closing was cut short after %g s", timeout)


async def _close_each(engines: Sequence[Engine], until: float, by: tuple[int, int] | None) -> None:
    await asyncio.gather(*(engine.core.close(until, by) for engine in engines))


def close_later(engines: list[Engine]) -> None:
    """Ends the connections of locks that have no reference left. A body may still work under the rest of a lease."""
    for engine in engines:
        if engine.pid != os.getpid():
            inherited.append(engine)
            continue
        if engine.pool is not None:
            engine.pool.close()
        engine.core.close_later()


@atexit.register
def _close_all() -> None:
    """Releases what a program still holds or waits for when it exits."""
    try:
        close_all(list(_engines), CLOSE)
    except Exception:
        logger.debug("locks were not released", exc_info=True)


def _close_with_child() -> None:
    """Releases locks at the end of a forked multiprocessing process, which calls no atexit handler."""
    if (process := sys.modules.get("multiprocessing.process")) is None or process.parent_process() is None:
        return
    util = importlib.import_module("multiprocessing.util")
    util.Finalize(None, _close_all, exitpriority=0)


def current(engines: list[Engine], settings: Settings | list[Settings], hooks: _hooks.Hooks) -> Engine:
    """Returns the engine of this process, which is created on first use."""
    if not engines or engines[0].pid != os.getpid():
        with _guard:
            if engines and engines[0].pid != os.getpid():
                inherited.append(engines.pop())
            if not engines:
                engines.append(Engine(settings, hooks))
                _close_with_child()
    return engines[0]
