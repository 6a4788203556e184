"""One lock over several independent servers (Redlock, with tokens that are raised to a common value)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from . import hooks as _hooks
from ._core import Core, too_late
from ._hold import BaseHold
from ._info import Info
from ._keeper import Keeper
from ._resp import Command
from ._rules import Address, Grant, Wanted, clock, deadline, is_overwritten, new_owner
from ._servers import Answer
from ._settings import Settings, named
from ._watch import Watch
from .errors import (
    ConnectionFailedError,
    NotConfirmedError,
    QuarantineError,
    QueueFullError,
    RedislockError,
    ServerRefusedError,
)

#: The share of a lease that each server has for its answer, and the upper limit in seconds.
_PART, _MOST = 0.1, 0.5
#: The upper limit of the random pause between two attempts.
_BACK_OFF = 0.2
#: Temporary refusals: a waiter asks again.
_PASSES = (NotConfirmedError, QuarantineError, QueueFullError)


class Group(Keeper):
    """Independent servers. A majority of them decides."""

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: Sequence[Settings], hooks: _hooks.Hooks) -> None:
        super().__init__(loop, hooks)
        self._cores = [Core(loop, each, _hooks.Hooks()) for each in settings]
        self._timeout = settings[0].server_timeout
        self._majority = len(self._cores) // 2 + 1
        #: Pairs that returned equal tokens by chance, and are known to be two servers.
        self._apart: set[tuple[Address | None, Address | None]] = set()
        for core in self._cores:
            core.keeper = self

    async def _ask(
        self, cores: Sequence[Core], lease: float, name: bytes, command: Command, wanted: Wanted | None = None
    ) -> dict[Core, Any]:
        """Returns each server's answer or exception, by a time limit.

        The answer is 0 if another value replaced a hold.
        """
        until, is_read = clock() + min(_MOST, _PART * lease), command[0] == "LOCK.FENCE"
        replies = await asyncio.gather(
            *(core.request(name, command, until, wanted, is_read=is_read) for core in cores), return_exceptions=True
        )
        for reply in replies:
            if isinstance(reply, asyncio.CancelledError):
                raise reply
        return dict(zip(cores, [_reply_of(reply, wanted is None) for reply in replies], strict=True))

    async def acquire(self, wanted: Wanted, wait: float | None, began: float) -> Grant:
        """Returns the grant of a majority. Retries at random intervals, since there is no queue here."""
        self._acquiring += 1
        watch = Watch(self, wanted, began)
        try:
            return await self._acquire(wanted, wait, began)
        finally:
            self._acquiring -= 1
            watch.end()

    async def _acquire(self, wanted: Wanted, wait: float | None, began: float) -> Grant:
        is_first = True
        reached = clock()  # when a majority could last have granted
        while True:
            self.refuse_if_closing()
            wanted.attempt = replace(wanted, owner=new_owner(wanted.label))
            grant, answers = await self._attempt(wanted.attempt)
            if grant is not None:
                if self._is_closing:
                    self.abandon(wanted)
                    self.refuse_if_closing()
                return grant
            away = [each for each in answers if isinstance(each, Exception) and not isinstance(each, _PASSES)]
            if len(answers) - len(away) >= self._majority:
                reached = clock()
            if refusal := self._refusal_of_most(away):
                raise refusal
            if clock() - began >= wait if wait is not None else clock() - reached > self._timeout:
                if sum(not isinstance(each, Exception) for each in answers) < self._majority:
                    raise self._too_few(answers)
                raise too_late(wanted, wait)
            if is_first:
                _hooks.call(self.hooks, "waiting", wanted.name)
            is_first = False
            await asyncio.sleep(random.uniform(0, _BACK_OFF))

    def _refusal_of_most(self, answers: Sequence[Any]) -> ServerRefusedError | None:
        """Returns the first refusal, if so few servers remain that they are no majority."""
        refusals = [each for each in answers if isinstance(each, ServerRefusedError)]
        return refusals[0] if len(refusals) > len(self._cores) - self._majority else None

    def _too_few(self, answers: Sequence[Any]) -> RedislockError:
        """Returns the error that says why too few servers granted the lock."""
        texts = sorted({str(each) for each in answers if isinstance(each, Exception)})
        few = f"too few of {len(self._cores)} servers answered: {'; '.join(texts)}"
        return self._refusal_of_most(answers) or ConnectionFailedError(few)

    async def _attempt(self, wanted: Wanted) -> tuple[Grant | None, list[Any]]:
        sent, (name,) = clock(), wanted.names
        token: int | None = None
        try:
            replies = await self._ask(self._cores, wanted.lease, name, wanted.acquire(), wanted)
            granted = {core: reply for core, reply in replies.items() if isinstance(reply, int)}
            if len(set(granted.values())) < len(granted):
                await self._tell_apart(wanted, granted)
            while token is None and len(granted) >= self._majority:
                highest = max(granted.values())
                raise_it = wanted.renew(name, highest, "RAISE")
                raised = await self._ask(list(granted), wanted.lease, name, raise_it)
                # A server's refusal is reported if it decides the outcome: it is neither a lost vote nor a timeout.
                replies |= {core: said for core, said in raised.items() if isinstance(said, ServerRefusedError)}
                if list(raised.values()).count(1) >= self._majority and clock() < deadline(sent, wanted.lease):
                    token = highest
                # The clock of a server may be so far ahead that the others refuse its token. Then that server is left
                # out.
                granted = {core: its for core, its in granted.items() if its < highest}
            return (None if token is None else Grant(token, sent)), list(replies.values())
        finally:
            if token is None:
                self.abandon(wanted)

    async def _tell_apart(self, wanted: Wanted, granted: dict[Core, int]) -> None:
        """Refuses one server that has two names: there, an owner gets one token for one lock.

        Two servers may return equal tokens by chance. So one token is raised: only the same server knows it by the
        other name. A server whose identity stays unknown grants nothing this time.
        """
        (name,) = wanted.names
        for core in list(granted):
            where, token = core.address(name), granted.get(core)
            alike = [each for each in granted if each is not core and granted[each] == token]
            others = [each for each in alike if (where, each.address(name)) not in self._apart]
            if token is None or not others:
                continue
            command = wanted.renew(name, token + 1, "RAISE")
            if (await self._ask([core], wanted.lease, name, command))[core] != 1:
                del granted[core]
                continue
            granted[core] = token + 1
            for other in others:
                there = other.address(name)
                if await self._lives(other, wanted, token):
                    self._apart |= {(where, there), (there, where)}
                elif await self._lives(other, wanted, token + 1):
                    text = f"independent servers must differ: {named(where)} and {named(there)} are one server"
                    raise ValueError(text)
                else:
                    del granted[other]

    async def _lives(self, core: Core, wanted: Wanted, token: int) -> bool:
        (name,) = wanted.names
        replies = await self._ask([core], wanted.lease, name, ("LOCK.FENCE", name, token))
        return bool(replies[core] == 1)

    def call_waiters(self) -> None:
        pass  # they look around at the end of their pause

    async def _renewed(self, hold: BaseHold, lease: float) -> float | None:
        (name,), sent = hold._wanted.names, clock()
        replies = await self._ask(self._cores, lease, name, hold._wanted.renew(name, hold.token, lease=lease))
        said = list(replies.values())
        if said.count(1) >= self._majority:
            return sent
        if said.count(0) > len(said) - self._majority:
            hold._cause = f"{said.count(0)} of {len(said)} servers answered 0 to LOCK.RENEW"
            return None
        raise self._too_few(said)

    async def look(self, hold: BaseHold) -> None:
        (name,) = hold._wanted.names
        command = ("LOCK.FENCE", name, hold.token)
        replies = await self._ask(self._cores, hold._wanted.lease, name, command)
        said = list(replies.values())
        if said.count(0) > len(said) - self._majority:
            hold._lose("push", f"{said.count(0)} of {len(said)} servers answered 0 to LOCK.FENCE")

    async def release(self, wanted: Wanted, token: int, is_repeated: bool = False) -> bool:
        """Returns whether a majority still held it."""
        (name,) = wanted.names
        command = wanted.release(name, token)
        try:
            replies = await self._ask(self._cores, wanted.lease, name, command)
        except BaseException:
            self.abandon(wanted, token)
            raise
        said = list(replies.values())
        if said.count(1) < len(said):
            self.abandon(wanted, token)
        if said.count(0) + said.count(1) < self._majority:
            raise self._too_few(said)
        return is_repeated or said.count(0) <= len(said) - self._majority

    def give_up(self, wanted: Wanted, error: BaseException) -> None:
        # Each attempt has its own owner, which holds nothing else.
        self.abandon(wanted)

    def abandon(self, wanted: Wanted, token: int | None = None) -> None:
        # Releases without the token: a server that could not raise it has a lower one.
        for core in self._cores:
            core.abandon(wanted.attempt or wanted, was_held=token is not None)

    async def fence(self, name: bytes, token: int) -> bool:
        """Returns whether a majority knows a live hold with this token."""
        said = await self._gather(core.fence(name, token) for core in self._cores)
        if said.count(True) >= self._majority:
            return True
        if said.count(False) <= len(said) - self._majority:
            raise self._too_few(said)
        return False

    async def info(self, name: bytes) -> Info | None:
        """Returns one server's information on the owner that a majority has; None if no owner has one."""
        said = await self._gather(core.info(name) for core in self._cores)
        found = [each for each in said if isinstance(each, Info | None)]
        if len(found) < self._majority:
            raise self._too_few(said)
        owners = [each.holders[0].owner if each and each.holders else "" for each in found]
        most = max(owners, key=owners.count)
        return found[owners.index(most)] if most and owners.count(most) >= self._majority else None

    async def ping(self, name: bytes) -> str:
        """Returns the oldest version among the servers, a majority of which must answer."""
        said = await self._gather(core.ping(name) for core in self._cores)
        if len(found := [each for each in said if isinstance(each, str)]) < self._majority:
            raise self._too_few(said)
        return min(found, key=lambda version: [int(part) for part in version.split(".")])

    @staticmethod
    async def _gather(asked: Iterable[Awaitable[Any]]) -> list[Any]:
        return await asyncio.gather(*asked, return_exceptions=True)

    async def disconnect(self, until: float) -> None:
        await super().disconnect(until)
        await asyncio.gather(*(core.close(until) for core in self._cores))


def _reply_of(reply: Any, is_of_hold: bool) -> Any:
    if is_of_hold and isinstance(reply, ServerRefusedError) and is_overwritten(reply.message):
        return 0
    return reply.reply if isinstance(reply, Answer) else reply
