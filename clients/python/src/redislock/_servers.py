"""Finds the servers of locks, keeps a connection to each, and sends and repeats requests."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redis.crc import key_slot

from ._link import Broken, Link, is_old, unreached
from ._resp import Command, Push, ReplyError
from ._rules import ATTEMPT, LONGEST_PAUSE, PAUSE, Address, Step, Verdict, Wanted, clock, judge
from ._settings import Settings, named
from .errors import ConnectionFailedError, LocksClosedError, RedislockError, translate

logger = logging.getLogger("redislock")

#: The number of redirections that are followed without a pause. Two nodes may redirect to each other.
_HOPS = 2
#: Error codes of a server that is not a primary, or that may have ceased to be one.
NOT_ME = ("READONLY", "MASTERDOWN", "LOADING", "UNBLOCKED", "QUARANTINE")
#: Seconds after which the same message is logged again.
SILENT = 30.0


@dataclass(frozen=True)
class Answer:
    """A reply, and the time when its request was sent."""

    reply: Any
    sent: float
    #: True if the request was sent before and not answered: it may have been executed then.
    is_repeated: bool = False
    #: True if an earlier copy may still arrive, because the fate of an abandoned connection is unknown.
    may_come_late: bool = False
    #: The connection that delivered it.
    link: Link | None = None


class Servers:
    """The servers of one client, in one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._login, self.timeout = settings, settings.login, settings.server_timeout
        self._nodes, self._sentinels = list(settings.addresses), list(settings.sentinels)
        self._slots: dict[int, Address] = {}
        self._primary: Address | None = settings.addresses[0] if settings.mode == "single" else None
        self._last: Address | None = None  # the primary that a sentinel has named
        self._silence = ""  # why the server that was asked last did not say where the primary is
        self._links: dict[Address, Link] = {}
        self._gates: dict[Address | None, tuple[asyncio.Lock, list[None]]] = {}
        self._is_closed = False
        #: Servers whose connection has ended, and servers that others reported as no primaries, with the time.
        self._away: set[Address] = set()
        self._refused: dict[Address | None, tuple[str, float]] = {}
        #: Called with the address of a server that is connected again.
        self.on_return: Callable[[str], None] = lambda where: None
        #: Called with names that have changed, or with None if any may have.
        self.on_change: Callable[[list[bytes] | None], None] = lambda names: None

    # Addresses.

    def address(self, name: bytes) -> Address | None:
        """Returns the server of this lock, if known."""
        return self._slots.get(key_slot(name)) if self._settings.mode == "cluster" else self._primary

    def unknown(self) -> Broken:
        """Makes the error for a lock whose server is unknown."""
        asked = self._nodes or [address for address, _ in self._sentinels]
        names = ", ".join(named(each) for each in asked)
        return Broken(f"{names} did not say which server is the primary{self._silence}")

    def forget(self, address: Address | None) -> None:
        """Records that this server may have ceased to be the primary."""
        if self._settings.mode == "cluster":
            self._slots = {slot: at for slot, at in self._slots.items() if at != address}
        elif self._settings.mode == "sentinel" and self._primary == address:
            self._primary = None

    async def find_for(self, name: bytes) -> None:
        """Finds the server of this lock, unless another task has just done so."""
        if self.address(name) is None:
            await self._find()

    async def _find(self) -> None:
        """Looks up the primary, or the primaries of a cluster. Leaves it unknown if no server can tell."""
        self._silence = ""
        if self._settings.mode == "cluster":
            await self._find_cluster()
            return
        for address, login in list(self._sentinels):
            found = await self._ask(address, login, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._settings.service)
            if isinstance(found, list):
                before, self._primary = self._last, (found[0].decode(), int(found[1]))
                self._last = self._primary
                if before not in (None, self._primary):
                    logger.info("the primary of %s changed to %s", self._settings.service, named(self._primary))
                self._sentinels.sort(key=lambda each: each[0] != address)  # the one that answers is asked first
                return

    async def _find_cluster(self) -> None:
        for address in list(self._nodes):
            found = await self._ask(address, self._login, "CLUSTER", "SLOTS")
            if not isinstance(found, list) or not found:
                continue
            nodes: list[Address] = []
            for first, last, *servers in found:
                addresses = [(at[0].decode() if at[0] else address[0], int(at[1])) for at in servers]
                nodes += addresses
                self._slots.update(dict.fromkeys(range(first, last + 1), addresses[0]))
            self._nodes = list(dict.fromkeys([address, *nodes, *self._settings.addresses]))
            return

    async def _ask(self, address: Address, login: Any, *command: Any) -> Any:
        """Returns the reply of a server over a separate connection, or None."""
        link = None
        try:
            link = await Link.connect(address, login)
            return await link.call(command, ATTEMPT)
        except (Broken, ReplyError) as error:
            self._silence = f": {error}"
            return None
        finally:
            if link is not None:
                link.close()

    # Connections.

    def ready(self, address: Address | None) -> Link | None:
        """Returns the connection to this server, if there is one."""
        link = self._links.get(address) if address else None
        return link if link is not None and link.is_open else None

    async def _gate(self, address: Address | None, work: Callable[[], Any]) -> Any:
        """Lets tasks connect one at a time, in order of arrival."""
        lock, inside = self._gates.setdefault(address, (asyncio.Lock(), []))
        inside.append(None)
        try:
            async with lock:
                return await work()
        finally:
            inside.pop()

    async def link(self, name: bytes, at: Address | None = None, seconds: float | None = None) -> Link:
        """Returns the connection to the server of this lock, within this time. The first caller here sends first."""
        address = at or self.address(name)
        if (link := self._at_once(address)) is not None:
            return link
        async with asyncio.timeout(seconds):
            if address is None:
                await self._gate(None, lambda: self.find_for(name))
                address = self.address(name)
                if address is None:
                    raise self.unknown()
            return self._at_once(address) or await self._gate(address, lambda: self._connect(address))

    def _at_once(self, address: Address | None) -> Link | None:
        """Returns the connection to this server, unless other tasks wait for it."""
        waits = address in self._gates and self._gates[address][1]
        return None if waits else self.ready(address)

    async def _connect(self, address: Address) -> Link:
        link = self.ready(address)
        if link is None:
            if self._is_closed:
                raise LocksClosedError("these locks are closed")
            on_end = functools.partial(self._on_end, address)
            link = await Link.connect(address, self._login, self._on_push, on_end, is_told=True)
            self._links[address] = link
            if clock() > self._refused.get(address, ("", 0.0))[1] + SILENT:
                self._answers(address, link)
        return link

    def _answers(self, address: Address | None, link: Link) -> None:
        """Reports a server that answers again, or that answers in another one's place."""
        if address in self._away:
            self._away.discard(address)
            logger.info("reconnected to %s%s", link.name, link.peer)
            self.on_return(link.name)

    def _on_end(self, address: Address, link: Link) -> None:
        if self._links.get(address) is link:
            del self._links[address]
            self._away.add(address)
        self.on_change(None)

    def _on_push(self, push: Push) -> None:
        if push[:1] == [b"invalidate"]:
            self.on_change(push[1])

    def close(self) -> None:
        """Ends all connections, and makes no new ones."""
        self._is_closed = True
        for link in list(self._links.values()):
            link.close()

    # Requests.

    def is_final(self, verdict: Verdict) -> bool:
        """Returns whether the caller gets the error. With only one server, there is no other to try."""
        return verdict.step is Step.FAIL or (verdict.step is Step.MOVED and self._settings.mode == "single")

    def moved(self, slot: int, to: Address, by: Address | None) -> None:
        """Records that a server says another one has this slot."""
        self._slots[slot] = (to[0] or (by or to)[0], to[1])

    async def request(
        self,
        name: bytes,
        command: Command,
        until: float,
        wanted: Wanted | None = None,
        before: Callable[[], Command | None] | None = None,
        *,
        is_read: bool = False,
        failed: Callable[[RedislockError], object] | None = None,
    ) -> Answer:
        """Returns the reply of the server that has this lock. Repeats the request until then; raises refusals.

        until: without a time, until no server has replied for server_timeout.

        is_read: a replica would answer, too, but its answer does not count.

        failed: called after each failed attempt.
        """
        pause, hops, asking = PAUSE, 0, False
        failure: ConnectionFailedError | None = None
        is_repeated = may_come_late = False
        at: Address | None = None
        first: Command | None = None
        heard = clock()
        while (left := (until if until < math.inf else heard + self.timeout) - clock()) > 0 or failure is None:
            address = at or self.address(name)
            try:
                link = await self.link(name, at, max(left, 0.05))
                sent = clock()
                if before is not None and link.is_told:
                    first = before() or first  # sent again where another server has been asked before
                role = _send_ahead(link, first if link.is_told else None, asking, is_read)
                try:
                    reply = await _reply(link, command, min(ATTEMPT, max(left / 2, 0.05)), wanted, role)
                except Broken:
                    is_repeated = True
                    may_come_late |= link.is_given_up
                    raise
                if not isinstance(reply, ReplyError):
                    self._answers(address, link)
                    return Answer(reply, sent, is_repeated, may_come_late, link)
                raise reply
            except (Broken, TimeoutError) as error:
                at, asking = None, False
                self.forget(address)
                # The last try may have been cut short, so its error says nothing. The one before it says more.
                if failure is None or (error.args and clock() - heard > ATTEMPT):
                    failure = unreached(error, address, self._login)
            except ReplyError as error:
                verdict, text = judge(str(error)), str(error)
                failure, heard = self.refusal(address, text, wanted), clock()
                if text.startswith(NOT_ME) and self.leave(address):
                    at, asking = None, False
                    continue
                if self.is_final(verdict):
                    raise translate(text, address) from None
                asking = verdict.step is Step.ASK
                at = verdict.address if asking else None
                hops += self._heed(verdict, address)
                if verdict.step is not Step.AGAIN and hops <= _HOPS:
                    continue
            if failed is not None:
                failed(failure)
            await asyncio.sleep(min(pause, max(0.0, until - clock())))
            pause = min(2 * pause, LONGEST_PAUSE)
        raise failure

    def refusal(self, address: Address | None, text: str, wanted: Wanted | None) -> ConnectionFailedError:
        """Makes the error for a server's refusal. If a caller waits, logs it, once per interval."""
        where = named(address)
        if text.startswith("READONLY"):
            where += ": this address leads to a replica, not to the primary"
        said = text if where in text else f"{text} ({where})"
        if text.startswith(NOT_ME):
            known, since = self._refused.get(address, ("", 0.0))
            if known != text[:4] or clock() > since + SILENT:
                self._refused[address] = text[:4], clock()
                if wanted is not None:
                    logger.warning("waiting for %r: %s", wanted.all_names, said)
        host, port = address or ("", 0)
        return ConnectionFailedError(said, host=host, port=port)

    def _heed(self, verdict: Verdict, address: Address | None) -> bool:
        """Records a redirection, or that this server is not a primary. Returns whether it redirected the request."""
        if verdict.step is Step.AGAIN:
            self.forget(address)
            return False
        if verdict.step is Step.MOVED:
            self.moved(verdict.slot, verdict.address, address)
        return True

    def leave(self, address: Address | None) -> bool:
        """Ends the connection to a server that says it is not a primary, unless it is new.

        Returns whether it did. The address is then looked up again, since it may lead to another server by now.
        """
        self.forget(address)
        link = self.ready(address)
        if link is None or not is_old(link):
            return False
        link.close()
        return True


def _send_ahead(link: Link, first: Command | None, asking: bool, is_read: bool) -> asyncio.Future[Any] | None:
    """Sends what must precede a request. Returns the server's reply on its role, if that is wanted."""
    role = link.send("HELLO") if is_read else None
    if first is not None:
        if asking:
            link.send("ASKING")
        link.send(*first)
    if asking:  # which counts for the next command alone
        link.send("ASKING")
    return role


async def _reply(
    link: Link, command: Command, seconds: float, wanted: Wanted | None, role: asyncio.Future[Any] | None
) -> Any:
    """Returns the reply to this command. Records the outcome in the request that it is sent for.

    role: the server's role, asked before the command. It is asked again afterwards, because a replica has no locks
    while it synchronizes, and roles may change in between.
    """
    if role is not None:
        answer = link.send(*command)
        link.hello = await link.call(("HELLO",), seconds)
        if not all(isinstance(said, dict) and said.get(b"role") == b"master" for said in (await role, link.hello)):
            return ReplyError("READONLY the server that was asked is a replica")
        return await answer
    if wanted is None:
        return await link.call(command, seconds)
    wanted.is_grantable = True
    try:
        reply = await link.call(command, seconds)
    except Broken:
        wanted.doubt()
        raise
    wanted.hears(reply)
    return reply
