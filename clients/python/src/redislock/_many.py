"""A wait for several locks at once, over connections of its own, since LOCK.MACQUIRE has no QUEUE."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from . import hooks as _hooks
from ._line import Waiter
from ._link import Broken, Link, unreached
from ._resp import ReplyError
from ._rules import (
    ASKS_IN_KEEP,
    KEEP_MS,
    LONG,
    LONGEST_PAUSE,
    WAIT_MARGIN,
    Address,
    Grant,
    Step,
    Wanted,
    ask_until,
    clock,
    judge,
    left_of,
    longest_wait_ms,
    milliseconds,
)
from .errors import QuarantineError, translate

if TYPE_CHECKING:
    from ._core import Core

#: Seconds after which the request is sent again.
_BETWEEN = KEEP_MS / 1000 / ASKS_IN_KEEP


class Several:
    """One such wait.

    The request is repeated over two connections in turn. The newer request takes over the position of the older one,
    which is answered then. So each connection proves that it works, and a grant whose reply was lost is found.
    """

    def __init__(self, core: Core, wanted: Wanted, wait: float | None, began: float) -> None:
        self._core, self._wanted, self._wait, self._began = core, wanted, wait, began
        self._lease_ms = min(milliseconds(wanted.lease), wanted.first_ms)
        self._reached = clock()  # when a server has replied last
        self._links: list[Link] = []

    async def grant(self) -> Grant | None:
        """Returns the grant; None if the time is up."""
        core, wanted, wait, began = self._core, self._wanted, self._wait, self._began
        try:
            if (grant := await core.ask(wanted, ask_until(wait, began))) is not None:
                return grant
        except QuarantineError:
            pass  # a waiter is let in when it is over
        _hooks.call(core.hooks, "waiting", wanted.name)
        self._reached = clock()
        while left_of(wait, began) > 0:
            waiter = Waiter(self._is_holding())
            core.several.join(waiter)
            try:
                if not await self._may_connect(waiter):
                    break
                reply = await self._stay(clock() + min(left_of(wait, began), LONG))
            except Broken as error:
                wanted.doubt()  # it may have been granted unheard
                address = core.address(wanted.names[0])
                core.servers.forget(address)
                if wait is None and clock() - self._reached > core.servers.timeout:
                    raise unreached(error, address, core.login) from error.__cause__
                await asyncio.sleep(min(LONGEST_PAUSE, max(0.0, left_of(wait, began))))
                continue
            finally:
                core.several.leave(waiter)
                self._close()
            if isinstance(reply, int):
                # It was granted at some time during the wait, and may last for this much longer. If it is lost, asks
                # again.
                grant = await core.begin_hold(wanted, reply, clock() + self._lease_ms / 1000)
                if grant is not None:
                    return grant
        return None

    def _is_holding(self) -> bool:
        """Returns whether the owner, which the program names, holds a lock: the server must see its deadlocks."""
        wanted = self._wanted
        return wanted.is_named and any(hold._wanted.owner == wanted.owner for hold in self._core.keeper.holds)

    async def _may_connect(self, waiter: Waiter) -> bool:
        """Waits for one of the waiting connections, unless the owner holds a lock. Returns False if the time is up."""
        core = self._core
        while True:
            core.refuse_if_closing()
            if core.several.may_stand(waiter) or self._is_holding():
                return True
            if (left := left_of(self._wait, self._began)) <= 0:
                return False
            waiter.turn.clear()
            await core.sleep(waiter.turn, min(left, LONG))

    async def _stay(self, until: float) -> Any:
        """Keeps the queue positions until then. Also returns nil if the server redirected the request."""
        core, wanted = self._core, self._wanted
        await core.servers.find_for(wanted.names[0])
        address = core.address(wanted.names[0])
        if address is None:
            raise core.servers.unknown()
        while True:
            link = await self._next_link(address)
            left = max(until - clock(), 0.001)
            block_ms = min(milliseconds(left), core.longest_block_ms or KEEP_MS, KEEP_MS)
            wanted.is_grantable = True
            future = link.send(*wanted.acquire(lease_ms=self._lease_ms, block_ms=block_ms))
            is_last = left < 2 * _BETWEEN
            await asyncio.wait({future}, timeout=left + WAIT_MARGIN if is_last else _BETWEEN)
            if future.done():
                wanted.hears(reply := future.result())
                self._reached = clock()
                return await self._heed(reply, address) if isinstance(reply, ReplyError) else reply
            if is_last:
                raise Broken(f"no reply from {link.name} for {left + WAIT_MARGIN:.1f} s")

    async def _next_link(self, address: Address) -> Link:
        if len(self._links) < 2:
            try:
                link = await Link.connect(address, self._core.login)
            except ReplyError as error:
                raise translate(str(error), address) from None
            self._core.blocked.add(link)
        else:
            link = self._links.pop(0)
            if link.is_busy or not link.is_open:
                link.close()
                self._core.blocked.discard(link)
                raise Broken(f"no reply from {link.name} for {2 * _BETWEEN:.1f} s")
            self._reached = clock()
        self._links.append(link)
        return link

    async def _heed(self, error: ReplyError, address: Address) -> None:
        """Learns from an error of the server; raises permanent ones."""
        core, text = self._core, str(error)
        verdict = judge(text)
        if (most := longest_wait_ms(text)) is not None:
            core.longest_block_ms = most
        elif core.servers.is_final(verdict):
            raise translate(text, address)
        else:
            core.servers.refusal(address, text, self._wanted)
            core.servers.leave(address)
            if verdict.step is Step.MOVED:
                core.servers.moved(verdict.slot, verdict.address, address)
            await asyncio.sleep(LONGEST_PAUSE)

    def _close(self) -> None:
        for link in self._links:
            link.close()
            self._core.blocked.discard(link)
        self._links.clear()
