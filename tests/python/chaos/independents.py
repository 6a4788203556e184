"""Five servers that know nothing of each other, and examples/redlock.py over all of them.

Clients reach each server through a door of its own. Servers come back with or without their data, for they are in
quarantine then. A client that breaks a lock on one of them ends the promise to its owner, for a majority may rest on
that one.
"""

import asyncio
import random
import re
import threading
from collections import Counter

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from harness.independent import Diary, Redlock, now
from harness.limits import SOON_SECONDS
from harness.proxy import Proxy
from harness.roamers import LEASES_MS

from .faults import REWRITING, WITH_FILE, WITHOUT_FILE
from .topology import KEPT, LOCKS, QUARANTINE_MS, Topology

SIZE, WORKERS = 5, 4
TIMEOUT_MS = 80


class Independents(Topology):
    """Five servers."""

    name = "independent"
    modes = ("Redlock",)
    kinds = {
        "pause": 3, "kill": 4, "cut": 3, "stall": 4, "lag": 2, "clock": 3, "memory": 3, "disk": 2, "storm": 2,
        "flush": 1, "delete": 2,
    }  # fmt: skip
    details = {"kill": (WITH_FILE, WITHOUT_FILE, REWRITING)}
    size = SIZE
    locks = LOCKS

    def started(self):
        found = [self.start(*KEPT, module_arguments=("quarantine", QUARANTINE_MS)) for _ in range(SIZE)]
        self.doors = {node: [Proxy(node.port)] for node in found}
        return found

    def made_loads(self):
        return [RedlockLoad([self.doors[node][0].port for node in self.nodes], self.locks, self.seed)]


class RedlockLoad(Diary):
    """Clients that take locks on a majority, extend them and release them; the counterpart of `Load` for one server."""

    def __init__(self, ports, locks, seed):
        super().__init__()
        self.ports, self.locks, self.seed = ports, locks, seed
        self.stop, self.told, self.unanswered = threading.Event(), Counter(), []
        self.failure = None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(2 * SOON_SECONDS)
        assert not self.thread.is_alive(), "G7: a request was never answered"
        assert self.failure is None, repr(self.failure)

    def run(self):
        """Runs all of them, until they are stopped."""
        try:
            asyncio.run(self.all_work())
        except Exception as failure:  # a thread's failure would else be lost
            self.failure = failure

    async def all_work(self):
        """Side by side."""
        await asyncio.gather(*(self.work(random.Random(f"{self.seed}.{number}")) for number in range(WORKERS)))

    async def work(self, chance):
        """One client, with connections of its own."""
        again = Retry(NoBackoff(), 1)
        clients = [redis.asyncio.Redis(host="127.0.0.1", port=port, retry=again) for port in self.ports]
        while not self.stop.is_set():
            lock = Redlock(clients, chance.choice(self.locks), chance.choice(LEASES_MS[1:]), TIMEOUT_MS)
            if await lock.attempt() is not None:
                self.granted(lock)
                await self.hold(lock, chance)
            else:
                refusals = [said for said in lock.said if not said.isdigit() and said != "None"]
                self.told.update(re.match(r"\w*", refusal)[0] for refusal in refusals)
            await asyncio.sleep(chance.random() * 0.05)
        for client in clients:
            await client.aclose()

    async def hold(self, lock, chance):
        """The actions of a holder."""
        while chance.random() < 0.4:
            await asyncio.sleep(chance.random() * lock.lease_ms / 2000)
            if now() > lock.until or not await lock.extend():
                break
            self.extended(lock)
        if chance.random() < 0.85:
            self.given_up(lock)
            await lock.__aexit__()

    def grants(self):
        """The number of locks that were granted until now."""
        return len(self.tokens())
