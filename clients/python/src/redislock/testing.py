"""An in-memory server for testing programs that use locks: `redislock.Locks(testing.Server())`.

It answers a client's requests as a server with the module does. The rest is the library's own code, so waits, renewals,
losses and errors are as with a real server. A test moves the clock with `advance`, and makes a client lose a lock with
`lose`. It has no quarantine, no replicas and no queue limits, and does not work with `redislock.redlock`.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any

from . import _rules
from ._core import Core
from ._engine import the_background
from ._keeper import keepers
from ._rules import Name, as_bytes, check_seconds, clock
from ._settings import Login, Settings
from ._table import Connection, Table, packed

if TYPE_CHECKING:
    from ._link import Link

__all__ = ["Server"]
#: The longest time in seconds that `advance` and `lose` wait for the client, and the shortest step of the clock.
_PATIENCE, _STEP = 10.0, 0.01


class Server(Table):
    """An in-memory server. Pass it to Locks or AsyncLocks as their client; any number of them may share it.

    `advance` moves the clock of all locks in the process. Code that runs in an event loop awaits `advance_async` and
    `lose_async` instead.
    """

    def __init__(self) -> None:
        super().__init__()
        login = Login(is_async=None, door=self)
        #: Read by Locks and AsyncLocks, like the settings of a client.
        self.redislock_settings = Settings("single", (("redislock.testing", 0),), login)

    def advance(self, seconds: float) -> None:
        """Moves the clock by `seconds` seconds. Holds that are renewed stay held; other leases and waits expire."""
        self._run(self.advance_async(seconds))

    async def advance_async(self, seconds: float) -> None:
        """`advance` for code that runs in an event loop."""
        check_seconds("seconds", seconds)
        left = seconds
        while left > 0:
            step = min(left, max(_STEP, self._next_due() - clock()))
            _rules.move_clock(step)
            left -= step
            await self._settle()

    def lose(self, name: Name) -> None:
        """Ends all holds of this lock, as an operator's DEL does. Returns when their holders have noticed it."""
        self._run(self.lose_async(name))

    async def lose_async(self, name: Name) -> None:
        """`lose` for code that runs in an event loop."""
        key = as_bytes(name)
        with self._guard:
            if (lock := self._locks.get(key)) is not None:
                lock.holds.clear()
            self._changed(key)
        await self._settle(key)

    # Runs the client's part.

    def _run(self, work: Any) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            the_background().run(work)
        else:
            work.close()
            raise RuntimeError("this thread runs an event loop: await advance_async or lose_async")

    def _keepers(self) -> list[Core]:
        found = [each for each in keepers if isinstance(each, Core) and each.login.door is self]
        return [keeper for keeper in found if keeper.loop.is_running()]

    def _next_due(self) -> float:
        return min([self.next_due(), *(hold._due() for keeper in self._keepers() for hold in keeper.holds)])

    async def _settle(self, lost: bytes | None = None) -> None:
        """Waits until each client of this server has done all that is due."""
        self.tick()
        for keeper in self._keepers():
            if keeper.loop is asyncio.get_running_loop():
                await self._settle_one(keeper, lost)
            else:
                work = self._settle_one(keeper, lost)
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, keeper.loop))

    async def _settle_one(self, keeper: Core, lost: bytes | None) -> None:
        keeper.look_around(lost)
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            for _ in range(3):
                await asyncio.sleep(0)
            holds = [hold for hold in keeper.holds if hold._alive]
            is_at_work = any(hold._renewing.locked() or hold._due() <= clock() for hold in holds)
            if not is_at_work and not any(self._is_lost(hold._wanted.names, hold.token, lost) for hold in holds):
                return
            await asyncio.sleep(0.001)

    def _is_lost(self, names: tuple[bytes, ...], token: int, lost: bytes | None) -> bool:
        return lost in names and self.fence(None, lost, token) == 0

    # The connections.

    def attach(self, link: Link) -> None:
        """Connects a shared connection."""
        link.connection_made(_Transport(self, link))  # type: ignore[arg-type]

    def socket(self) -> _Socket:
        """Returns a connection for a thread that blocks."""
        return _Socket(self)


class _Transport(Connection):
    """The part of asyncio's transports that Link uses."""

    def __init__(self, server: Server, link: Link) -> None:
        super().__init__(server)
        self._link, self._loop = link, asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def send(self, reply: Any) -> None:
        if not self._is_closed and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, packed(reply))

    def _deliver(self, data: bytes) -> None:
        if not self._is_closed:
            self._link.data_received(data)

    def write(self, data: bytes) -> None:
        self.feed(data)
        self._wake_at_the_next_end()

    def _wake_at_the_next_end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self.table.next_due()
        self._timer = None if due == math.inf else self._loop.call_later(max(0.0, due - clock()), self._wake)

    def _wake(self) -> None:
        self.table.tick()
        self._wake_at_the_next_end()

    def abort(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.table.detach(self)

    def is_closing(self) -> bool:
        return self._is_closed

    def get_extra_info(self, name: str) -> None:
        return None


class _Socket(Connection):
    """The part of sockets that BlockingLink uses."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._replies: list[bytes] = []
        self.sendall = self.feed

    def send(self, reply: Any) -> None:
        self._replies.append(packed(reply))

    def recv(self, most: int) -> bytes:
        return self._replies.pop(0)

    def settimeout(self, seconds: float) -> None:
        """Replies arrive at once."""

    def close(self) -> None:
        self.table.detach(self)
