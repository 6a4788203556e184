"""The core of a client: acquires, waits in the queue, renews, detects losses and releases.

It runs in one event loop: the program's own for asyncio, that of one background thread otherwise.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import Any

from . import hooks as _hooks
from ._hold import BaseHold
from ._info import Info, info_of, version_of
from ._keeper import Keeper
from ._line import Line, Waiter
from ._link import Broken, Link
from ._many import Several
from ._resp import Command, ReplyError
from ._rules import (
    ASKS_IN_KEEP,
    ATTEMPT,
    DOUBT,
    KEEP_MS,
    LONG,
    LONGEST_PAUSE,
    NOBODYS,
    PATIENCE,
    PAUSE,
    WAIT_MARGIN,
    Grant,
    Step,
    Wanted,
    ask_until,
    clock,
    deadline,
    is_overwritten,
    judge,
    left_of,
    longest_wait_ms,
    may_pass,
    milliseconds,
)
from ._servers import Servers
from ._settings import Settings, named
from ._watch import Watch
from .errors import (
    ConnectionFailedError,
    DeadlockError,
    LockLostError,
    LocksClosedError,
    LockTimeoutError,
    NotConfirmedError,
    QuarantineError,
    RedislockError,
    ServerRefusedError,
)

#: The polling interval where the server may not notify the client of changes.
_POLL = 0.1


class Core(Keeper):
    """The locks on the servers of one client."""

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: Settings, hooks: _hooks.Hooks) -> None:
        super().__init__(loop, hooks)
        self.servers = Servers(settings)
        self.servers.on_change = self._on_change
        self.servers.on_return = lambda where: _hooks.call(self.keeper.hooks, "reconnected", where)
        self.request, self.address = self.servers.request, self.servers.address
        self.login = settings.login
        self._lines: dict[bytes, Line] = {}
        #: The latest request, by lock and owner: giving up an older one would end the hold of this one. A request with
        #: a generated owner is here only when it is given up, since the program cannot know its owner before.
        self._asked: weakref.WeakValueDictionary[tuple[bytes, bytes], Wanted] = weakref.WeakValueDictionary()
        self._most = settings.max_queued
        #: The waits for several locks. Each has connections of its own.
        self.several = Line(b"", settings.max_queued)
        self._keep_ms = KEEP_MS
        self.longest_block_ms = 0
        self.blocked: set[Link] = set()
        #: The keeper of the holds whose changes this server reports.
        self.keeper: Keeper = self

    def _on_change(self, names: list[bytes] | None) -> None:
        """Checks these locks again, because they have changed; without names, all locks, because any may have."""
        lines = list(self._lines.values()) if names is None else [self._lines.get(name) for name in names]
        for line in lines:
            if line is not None:
                line.is_watched = False
                line.call_first()
        changed = None if names is None else set(names)
        for hold in self.keeper.holds:
            if changed is None or not changed.isdisjoint(hold._wanted.names):
                hold._watch_at = clock()
                self.keeper._alarm(hold)

    def look_around(self, changed: bytes | None) -> None:
        """Reads the clock again, which a test has moved, and checks what has changed."""
        if self._timer is not None:
            self._nap()
        if changed is not None:
            self._on_change([changed])
        self._call_all()

    # Acquiring.

    async def acquire(self, wanted: Wanted, wait: float | None, began: float) -> Grant:
        """Returns the grant of a wait that began then. After an error, nothing is left on the servers."""
        self._acquiring += 1
        self._succeed(wanted)
        watch = Watch(self, wanted, began)
        try:
            is_waiting = wait is None or wait > 0
            while True:
                if not is_waiting:
                    grant = await self.ask(wanted, began + WAIT_MARGIN)
                elif len(wanted.names) > 1:
                    grant = await Several(self, wanted, wait, began).grant()
                else:
                    grant = await self._wait_in_line(wanted, wait, began)
                if grant is None and is_waiting:
                    grant = await self._try_last(wanted, ask_until(wait, began))
                if grant is None:
                    break
                self.refuse_if_closing()
                is_late = clock() >= deadline(grant.sent, wanted.lease)  # this process stood still, or the server
                if not (is_late and is_waiting and left_of(wait, began) > 0):
                    return grant
        except BaseException as error:
            self.give_up(wanted, error)
            raise
        finally:
            self._acquiring -= 1
            watch.end()
        late = too_late(wanted, wait)
        if is_waiting or wanted.is_doubtful:
            self.give_up(wanted, late)
        if is_waiting and (info := await self.holders(wanted)) is not None:
            late.info, late.message = info, f"{late.message}: held by {info}"
        raise late

    def give_up(self, wanted: Wanted, error: BaseException) -> None:
        """Gives up a request that ended with this error. If it cannot have been granted, the owner keeps what it holds
        by another request, even after a cancellation."""
        is_refused = isinstance(error, LockTimeoutError | ServerRefusedError | DeadlockError) and not isinstance(
            error, NotConfirmedError
        )
        got_nothing = (is_refused or not wanted.is_grantable) and not wanted.is_doubtful
        self.abandon(wanted, NOBODYS if got_nothing else None)

    def asks_first(self, wanted: Wanted, waits: bool) -> bool:
        """Returns whether no older request of this owner can be in flight for these locks. If this one may wait, there
        must also be no waiter here yet. Any thread may call this."""
        if waits and any(name in self._lines for name in wanted.names):
            return False
        if wanted.is_named:
            if any((name, wanted.owner) in self._asked for name in wanted.names):
                return False
            self._succeed(wanted)
        return True

    def _succeed(self, wanted: Wanted) -> None:
        """Stops giving up older requests of this owner.

        This one inherits their doubt, and is given up in their place.
        """
        for name in wanted.names if wanted.is_named else ():
            older = self._asked.get((name, wanted.owner), wanted)
            wanted.inherit_doubt(older)
            for its_name, task in older.given_up:
                if older is not wanted and its_name == name:
                    task.cancel()
            self._asked[name, wanted.owner] = wanted

    def is_over(self, wanted: Wanted) -> None:
        """Records that nothing of this request is left, so that its owner's next one need not care. Any thread may call
        this."""
        for name in wanted.names if wanted.is_named else ():
            if self._asked.get((name, wanted.owner)) is wanted:
                self._asked.pop((name, wanted.owner), None)

    async def ask(self, wanted: Wanted, until: float) -> Grant | None:
        """Asks without a wait."""
        answer = await self.request(wanted.names[0], wanted.acquire(), until, wanted)
        return Grant(answer.reply, answer.sent) if isinstance(answer.reply, int) else None

    async def _try_last(self, wanted: Wanted, until: float) -> Grant | None:
        """Asks once without a wait.

        Only such a request learns of a quarantine, by an error that says how long it lasts; or that no server answers.
        """
        try:
            return await self.ask(wanted, until)
        except (QuarantineError, ConnectionFailedError):
            raise
        except RedislockError:
            return None  # the time is over, whatever else is wrong now

    async def _wait_in_line(self, wanted: Wanted, wait: float | None, began: float) -> Grant | None:
        """Keeps a queue position over the shared connection, and asks when the server reports a change."""
        (name,) = wanted.names
        line = self._lines.setdefault(name, Line(name, self._most))
        waiter = Waiter(wanted.is_named)
        turn = waiter.turn
        line.join(waiter)
        try:
            lease_ms = milliseconds(wanted.lease)
            times = 0
            while True:
                turn.clear()
                self.refuse_if_closing()
                if (seconds := self._stands_behind(line, waiter)) > 0:
                    if (left := left_of(wait, began)) <= 0:
                        return None
                    self._told_of_waiting(wanted, times)
                    times = max(times, 1)
                    await self.sleep(turn, min(left, seconds))
                    continue
                waiter.behind_until = 0.0
                until = ask_until(wait, began)
                before = line.watch if times else None
                try:
                    command = wanted.acquire(lease_ms=lease_ms, queue_ms=self._keep_ms)
                    answer = await self.request(name, command, until, wanted, before)
                except ServerRefusedError as error:
                    await self._bear(error, wait, began)
                    continue
                line.asked(waiter, answer.link)
                if isinstance(answer.reply, int):
                    if lease_ms >= milliseconds(wanted.lease):
                        return Grant(answer.reply, answer.sent)
                    grant = await self.begin_hold(wanted, answer.reply, deadline(answer.sent, lease_ms / 1000))
                    if grant is not None:
                        return grant
                if (left := left_of(wait, began)) <= 0:
                    return None
                times += 1
                lease_ms = min(lease_ms, wanted.first_ms)
                self._told_of_waiting(wanted, times - 1)
                if times > 1 or line.is_watched or line.waiters[0] is not waiter:
                    await self.sleep(turn, min(left, self._asks_again_after(line, waiter)))
        finally:
            line.leave(waiter)
            if not line.waiters:
                del self._lines[name]

    def _stands_behind(self, line: Line, waiter: Waiter) -> float:
        """Returns the seconds for which it may not ask the server, unless it is called earlier; 0 if it may."""
        if not line.may_stand(waiter):
            return LONG
        if not line.is_behind(waiter):
            return 0.0
        # A waiter that is not called in time asks anyway, because its position may lapse.
        waiter.behind_until = waiter.behind_until or clock() + self._between
        return waiter.behind_until - clock()

    def _asks_again_after(self, line: Line, waiter: Waiter) -> float:
        """Returns the seconds after which a waiter in the queue asks again, unless it is called earlier."""
        if line.waiters[0] is not waiter:
            return 2 * self._between  # the one before calls it earlier: so all ask in their order
        return self._between if line.is_watched else _POLL  # the server does not tell

    @property
    def _between(self) -> float:
        """Returns the seconds after which the first waiter asks again, to keep its position."""
        return self._keep_ms / 1000 / ASKS_IN_KEEP

    def _told_of_waiting(self, wanted: Wanted, times: int) -> None:
        """Calls the hook the first time."""
        if times == 0:
            _hooks.call(self.hooks, "waiting", wanted.name)

    async def sleep(self, turn: asyncio.Event, seconds: float) -> None:
        """Waits until it is called, for at most `seconds` seconds."""
        alarm = self.loop.call_later(seconds, turn.set)
        try:
            await turn.wait()
        finally:
            alarm.cancel()

    async def _bear(self, error: ServerRefusedError, wait: float | None, began: float) -> None:
        """Waits after temporary errors, and learns the server's limits from others; raises all other errors."""
        if isinstance(error, QuarantineError) and error.left < left_of(wait, began):
            await asyncio.sleep(min(error.left + PAUSE, ATTEMPT))  # and asks: the address may lead to another by then
        elif (most := longest_wait_ms(error.message)) is not None:
            self._keep_ms = min(most, self._keep_ms)  # another request may have learned it first
        else:
            raise error

    async def begin_hold(self, wanted: Wanted, token: int, until: float) -> Grant | None:
        """Renews once after a wait, and starts the lease there. Returns None if the lock was already lost."""
        try:
            renewed = await self._renew_all(wanted, wanted.lease, token, until)
        except ServerRefusedError:
            wanted.doubt()  # it was granted all the same
            raise
        return None if renewed is None else Grant(token, renewed[0])

    async def adopt(self, wanted: Wanted, token: int) -> Grant:
        """Renews a hold that another process has detached; raises LockLostError if it has ended."""
        if (grant := await self.begin_hold(wanted, token, clock() + WAIT_MARGIN)) is None:
            name = wanted.all_names
            raise LockLostError(f"lost lock {name!r} (renewal)", reason="renewal", lock=name, token=token)
        return grant

    async def _renew_all(
        self,
        wanted: Wanted,
        lease: float,
        token: int,
        until: float,
        failed: Callable[[RedislockError], object] | None = None,
    ) -> tuple[float, bool] | None:
        """Renews the leases.

        Returns the time they start at and whether an older request may arrive late; None if lost.
        """
        commands = [(name, wanted.renew(name, token, lease=lease)) for name in wanted.names]
        work = [self.request(name, command, until, failed=failed) for name, command in commands]
        answers = [await work[0]] if len(work) == 1 else await asyncio.gather(*work)
        if any(answer.reply != 1 for answer in answers):
            return None
        return min(answer.sent for answer in answers), any(answer.may_come_late for answer in answers)

    def call_waiters(self) -> None:
        for link in list(self.blocked):
            link.close()
        self._call_all()

    def _call_all(self) -> None:
        for line in (*self._lines.values(), self.several):
            for waiter in line.waiters:
                waiter.turn.set()

    # Holding.

    def keep(self, hold: BaseHold) -> None:
        super().keep(hold)
        if hold._wanted.is_named and self.several.waiters:
            self.soon(self._call_all)  # its owner's waits for several locks need no place any more

    async def _renewed(self, hold: BaseHold, lease: float) -> float | None:
        where = named(self.address(hold._wanted.names[0]))
        try:
            renewed = await self._renew_all(hold._wanted, lease, hold.token, hold._deadline, hold._renewal_failed)
        except ServerRefusedError as error:
            if is_overwritten(error.message):
                hold._cause = f"{where} answered {error.message}"
                return None
            raise
        if renewed is None:
            hold._cause = f"{where} answered 0 to LOCK.RENEW"
            return None
        sent, may_come_late = renewed
        if may_come_late:
            hold._may_come_late(lease)
        return sent

    async def look(self, hold: BaseHold) -> None:
        for name in hold._wanted.names:
            command = ("LOCK.FENCE", name, hold.token)
            try:
                reply = await (await self.servers.link(name)).call(command, ATTEMPT)
                if reply == 0:  # a replica says so, too, while it is filled
                    reply = (await self.request(name, command, hold._deadline, is_read=True)).reply
            except (Broken, ReplyError, RedislockError):
                reply = None
            if reply == 0 or (isinstance(reply, ReplyError) and is_overwritten(str(reply))):
                hold._lose("push", f"{named(self.address(name))} answered {reply} to LOCK.FENCE")
                return
            if reply is None or (isinstance(reply, ReplyError) and judge(str(reply)).step is not Step.FAIL):
                self.servers.forget(self.address(name))
                hold._watch_at = clock() + LONGEST_PAUSE
                return

    # Releasing.

    async def release(self, wanted: Wanted, token: int, is_repeated: bool = False) -> bool:
        """Returns whether all locks were still held, as far as known. Failed releases are retried in the background if
        possible."""
        until = clock() + WAIT_MARGIN
        work = [self._release(name, wanted.release(name, token), until, is_repeated) for name in wanted.names]
        try:
            held = [await work[0]] if len(work) == 1 else await asyncio.gather(*work)
        except BaseException:
            self.abandon(wanted, token)
            raise
        finally:
            if wanted.is_doubtful:
                self.abandon(wanted)
        if not wanted.is_doubtful:
            self.is_over(wanted)
        return all(held)

    async def _release(self, name: bytes, command: Command, until: float, is_repeated: bool) -> bool:
        try:
            answer = await self.request(name, command, until)
        except ServerRefusedError as error:
            if is_overwritten(error.message):
                return False
            raise
        return is_repeated or answer.reply == 1 or answer.is_repeated

    def abandon(self, wanted: Wanted, token: int | None = None, *, was_held: bool = False) -> None:
        longest = wanted.lease if was_held or token is not None else min(wanted.lease, DOUBT)
        for name in wanted.names:
            if (newest := self._asked.setdefault((name, wanted.owner), wanted)) is not wanted:
                newest.inherit_doubt(wanted)
                continue
            # Sends it at once, after all earlier requests on this connection: the event loop may be about to end.
            link = self.servers.ready(self.address(name))
            sent = None if link is None else link.send(*wanted.release(name, token))
            wanted.given_up.append((name, self.begin(self._abandon(wanted, name, token, sent, longest))))

    async def _abandon(
        self, wanted: Wanted, name: bytes, token: int | None, sent: asyncio.Future[Any] | None, longest: float
    ) -> None:
        """Waits until a server has done it, for at most `longest` seconds. Repeats it on failure, or while in doubt."""
        reply = None
        try:
            async with asyncio.timeout(ATTEMPT):  # wait_for of Python 3.11 may swallow the end of this
                reply = None if sent is None else await sent
        except (Broken, TimeoutError):
            if token is None:  # its request may have been in flight, too
                wanted.doubt()
        if isinstance(reply, int) and not (token is None and wanted.is_doubtful):
            return
        if isinstance(reply, ReplyError) and judge(str(reply)).step is Step.FAIL and not may_pass(str(reply)):
            return  # there is nothing that could be given up
        began, pause = clock(), 2 * LONGEST_PAUSE
        while (age := clock() - began) < longest:
            try:
                await self.request(name, wanted.release(name, token), clock() + min(longest - age, PATIENCE))
                # An unanswered request may still arrive: then its grant is released a little later.
                if not (token is None and wanted.is_doubtful) or self._is_closing:
                    return
            except ServerRefusedError as error:
                if self._is_closing or not may_pass(error.message):
                    return
            except LocksClosedError:
                return
            except ConnectionFailedError:
                pass
            await asyncio.sleep(pause)
            pause = min(2 * pause, PATIENCE)

    # Queries.

    async def fence(self, name: bytes, token: int) -> bool:
        """Returns whether the token is that of a live hold."""
        until = clock() + WAIT_MARGIN
        return bool((await self.request(name, ("LOCK.FENCE", name, token), until, is_read=True)).reply == 1)

    async def info(self, name: bytes) -> Info | None:
        return info_of((await self.request(name, ("LOCK.INFO", name), clock() + WAIT_MARGIN)).reply)

    async def ping(self, name: bytes) -> str:
        """Returns the version of the module on the server of this lock, if that is a primary and answers a read."""
        try:
            link = (await self.request(name, ("LOCK.FENCE", name), clock() + WAIT_MARGIN, is_read=True)).link
        except ServerRefusedError as error:
            if not error.message.startswith("MOVED"):  # else another node has this name, and this one is healthy
                error.message += f" ({named(self.address(name))}, asked by LOCK.FENCE)"
                raise
            link = self.servers.ready(self.address(name))
        return version_of(link and link.hello, named(self.address(name)))

    async def disconnect(self, until: float) -> None:
        await super().disconnect(until)
        self.servers.close()


def too_late(wanted: Wanted, wait: float | None) -> LockTimeoutError:
    """Returns the error for a caller that did not get the lock."""
    names = wanted.all_names
    if wait:
        return LockTimeoutError(f"{names} could not be acquired within {wait:g} s", lock=names)
    which = names if len(wanted.names) == 1 else f"one of {names}"
    return LockTimeoutError(f"{which} is held by another owner, and the request does not wait", lock=names)
