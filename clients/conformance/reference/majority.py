"""One lock over independent servers (docs/concepts/redlock.md): a majority grants it, and has the highest of their tokens."""

import asyncio
import itertools
import math
import random
import time

from breaks import is_broken
from client import Hold, Locks, check_owner, new_owner
from errors import ConnectionFailed, LockError, LockTimeout, Other
from servers import SILENCE

#: The time limit of one server's answer.
EACH = 0.4
#: The longest pause between two attempts.
BACK_OFF = 0.2


class Majority(Locks):
    """Locks of a majority of servers."""

    def __init__(self, client, addresses, lease_ms=30_000, **more):
        super().__init__(client, "single", addresses, lease_ms, **more)
        self.nodes = [Locks(client, "single", [address], lease_ms, **more) for address in addresses]
        self.most = len(addresses) // 2 + 1
        #: Pairs of servers that are known to be two.
        self.are_two = set()

    async def acquire(self, names, wait_ms=None, owner=None, **options):
        """Tries until the lock is acquired, or the time is up."""
        check_owner(owner)
        if self.scheduler is None:
            self.scheduler = asyncio.create_task(self._schedule())
        heard = time.monotonic()
        until = math.inf if wait_ms is None else heard + wait_ms / 1000
        while True:
            hold = Hold(self, names, owner or new_owner(), options)
            try:
                if await self._attempt(hold):
                    break
            finally:
                if hold.token is None:
                    await self._shielded(self._give_up(hold))
            heard = time.monotonic() if hold.answered >= self.most else heard
            is_silent = until == math.inf and time.monotonic() - heard > SILENCE
            if time.monotonic() + BACK_OFF > until or is_silent:
                if hold.answered < self.most and not is_broken("too-few-are-a-timeout"):
                    failures = ", ".join(node.servers.failure for node in self.nodes if node.servers.was_lost)
                    raise ConnectionFailed(f"{names}: too few servers answered in time: {failures}")
                self.counts["timeouts"] += 1
                raise LockTimeout(f"{names}: no majority in time")
            await asyncio.sleep(random.uniform(0, BACK_OFF))
        self.counts["grants"] += 1
        hold.began = time.monotonic()
        self.holds.add(hold)
        self.changed.set()
        return hold

    async def _attempt(self, hold):
        sent = time.monotonic()
        replies = await self._each(self.nodes, *hold.words("ACQUIRE"))
        hold.answered = sum(not isinstance(reply, Exception) for reply in replies.values())
        granted = {node: token for node, token in replies.items() if isinstance(token, int)}
        for pair in itertools.combinations(granted, 2):
            await self._refuse_one_server(hold, granted, pair)
        while len(granted) >= self.most:
            highest = max(granted.values())
            words = ("LOCK.RENEW", hold.names[0], hold.owner, "PX", hold.lease, "RAISE", highest)
            if await self._count(granted, *words) >= self.most:
                hold.counts_from(sent)
                if time.monotonic() < hold.until:
                    hold.token = highest
                return hold.token is not None
            # A server's clock may be so far ahead that the others refuse its token. Then that server is left out.
            granted = {node: token for node, token in granted.items() if token < highest}
        return False

    async def _refuse_one_server(self, hold, granted, pair):
        """One server by two addresses would be a majority of its own. It gives an owner one token under both."""
        node, twin = pair
        if pair in self.are_two or granted[node] != granted[twin] or is_broken("counts-a-server-twice"):
            return
        # Two servers may return equal tokens, too. Only the same one knows under the other address that it was raised.
        raised = granted[node] + 1
        words = ("LOCK.RENEW", hold.names[0], hold.owner, "PX", hold.lease, "RAISE", raised)
        if await self._count([node], *words) == 1:
            granted[node] = raised
        (known,) = (await self._each([twin], "LOCK.FENCE", hold.names[0], raised)).values()
        if known == 1 or is_broken("equal-tokens-are-one-server"):
            raise Other("two of the addresses lead to one server")
        if known == 0 and granted[node] == raised:
            self.are_two.add(pair)

    async def _renew(self, hold):
        sent = time.monotonic()
        words = ("LOCK.RENEW", hold.names[0], hold.owner, "PX", hold.lease, "TOKEN", hold.token)
        replies = await self._each(self.nodes, *words)
        if list(replies.values()).count(1) >= self.most and hold in self.holds:
            hold.counts_from(sent)
            self.changed.set()
            self._renewed(hold)
        elif list(replies.values()).count(0) > len(self.nodes) - self.most:
            self.lose(hold, "renewal")
        else:
            self._renewal_failed(hold, f"of {len(self.nodes)} servers too few have answered: {list(replies.values())}")

    async def _follow(self, hold):
        """Renewals detect losses."""

    async def _give_up(self, hold):
        await self._each(self.nodes, "LOCK.RELEASE", hold.names[0], hold.owner)

    async def _count(self, nodes, *words):
        return list((await self._each(nodes, *words)).values()).count(1)

    async def _each(self, nodes, *words):
        """Returns each server's answer in time, or its error."""
        until = time.monotonic() + EACH
        async def ask(node):
            async with asyncio.timeout(2 * EACH):
                return await node.servers.ask(words[1], *words, until=until)

        replies = await asyncio.gather(*map(ask, nodes), return_exceptions=True)
        kinds = (LockError, asyncio.TimeoutError)
        assert all(not isinstance(each, Exception) or isinstance(each, kinds) for each in replies), replies
        return dict(zip(nodes, replies))

    async def close(self):
        """Releases all, and closes all connections."""
        if is_broken("closes-and-keeps"):
            self.holds.clear()
        await super().close()
        for node in self.nodes:
            await node.close()
