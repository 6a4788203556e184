"""Redlock: one lock over several independent servers, of which a minority may fail.

    python redlock.py 127.0.0.1:7001 127.0.0.1:7002 ...   (without addresses: 7001 to 7005)

The lock is held if a majority grants it. The lease counts from before the first request was sent. A second round
(RAISE) gives a majority the highest of their tokens, which is therefore higher than that of any earlier holder. See
docs/concepts/redlock.md for how to set up the servers, and for what this does not promise. LIMIT is left out on
purpose: with two permits on each of five servers, three owners would fit.
"""

import asyncio
import random
import sys
import time
import uuid

import redis.asyncio

DRIFT = 0.01  # of a lease: how much faster a server's clock may run than the client's
BACK_OFF_SECONDS = 0.2


def now():
    """Returns seconds on a clock that cannot be set and that keeps counting while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Redlock:
    """A lock for one task at a time: `async with` acquires and releases it."""

    def __init__(self, servers, key, lease_ms=10_000, timeout_ms=200, attempts=20):
        self.servers, self.majority = servers, len(servers) // 2 + 1
        self.key, self.lease_ms = key, lease_ms
        self.timeout, self.attempts = timeout_ms / 1000, attempts
        self.owner, self.token, self.until, self.said = None, None, 0.0, []

    async def __aenter__(self):
        for _ in range(self.attempts):
            if await self.attempt() is not None:
                return self
            await asyncio.sleep(random.uniform(0, BACK_OFF_SECONDS))
        raise TimeoutError(f"{self.key} was not to be had; the servers said {self.said}")

    async def __aexit__(self, *_):
        """Asks all servers: any of them may have granted it, with its reply lost."""
        self.token, self.until = None, 0.0
        await self._ask(self.servers, "RELEASE")

    async def attempt(self):
        """Returns the token, or None."""
        # A new owner: a late grant to an earlier attempt does not count for this one.
        self.owner, self.token, began = str(uuid.uuid4()), None, now()
        try:
            replies = await self._ask(self.servers, "ACQUIRE", "PX", self.lease_ms)
            self.said = [str(reply) or repr(reply) for reply in replies.values()]
            granted = {server: token for server, token in replies.items() if isinstance(token, int)}
            while self.token is None and len(granted) >= self.majority:
                highest = max(granted.values())
                if await self._renew(granted, began, "RAISE", highest):
                    self.token = highest
                # A server's clock may be so far ahead that the others refuse its token. Then that server is left out.
                granted = {server: token for server, token in granted.items() if token < highest}
            return self.token
        finally:
            if self.token is None:
                await self.__aexit__()

    async def extend(self):
        """Starts a new lease. Returns whether a majority still has this token."""
        return await self._renew(self.servers, now(), "TOKEN", self.token)

    async def _renew(self, servers, began, *which):
        replies = await self._ask(servers, "RENEW", "PX", self.lease_ms, *which)
        until = began + self.lease_ms / 1000 * (1 - DRIFT)
        is_held = list(replies.values()).count(1) >= self.majority and now() < until
        self.until = until if is_held else self.until
        return is_held

    async def _ask(self, servers, command, *options):
        """Returns each server's answer in time, or its exception."""
        line = f"LOCK.{command}", self.key, self.owner, *options
        asked = [asyncio.wait_for(server.execute_command(*line), self.timeout) for server in servers]
        return dict(zip(servers, await asyncio.gather(*asked, return_exceptions=True)))


async def main(addresses):
    servers = [redis.asyncio.from_url(f"redis://{address}", retry=None) for address in addresses]
    async with Redlock(servers, "report") as lock:
        token, other = lock.token, await Redlock(servers, "report").attempt()
        print(f"held with token {token} for {lock.until - now():.2f} s; another gets {other}")
    async with Redlock(servers, "report") as lock:
        print(f"released, and held with token {lock.token}")
    return other is None


if __name__ == "__main__":
    addresses = sys.argv[1:] or [f"127.0.0.1:{port}" for port in range(7001, 7006)]
    sys.exit(0 if asyncio.run(main(addresses)) else 1)
