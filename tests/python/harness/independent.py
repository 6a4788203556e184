"""Servers that know nothing of each other, and examples/redlock.py over all of them.

    servers = Independent(start_server, 5, "quarantine", 1000)
    async with servers.redlock("door", lease_ms=1000) as lock:
        assert servers.live("door", lock.token) == [1] * 5
"""

import asyncio
import functools
import importlib.util
import os
import signal
import socket

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from checkers import MANY, Request, faults

from .limits import SOON_SECONDS, eventually
from .replies import module_info
from .server import ROOT
from .stopped import stop

_SPEC = importlib.util.spec_from_file_location("redlock", ROOT / "examples" / "redlock.py")
example = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(example)
Redlock = example.Redlock
now = example.now

#: A lease that does not end while a test runs, and a time-out for servers that answer.
LONG_MS = 300_000
PATIENT_MS = 10_000


def on_a_loop(story):
    """A test that is a coroutine."""

    @functools.wraps(story)
    def test(*arguments, **more):
        asyncio.run(story(*arguments, **more))

    return test


async def until(condition, what):
    """Waits until it is so, while the other tasks continue."""
    end = now() + SOON_SECONDS
    while not condition():
        assert now() < end, f"not within {SOON_SECONDS:.0f} s: {what}"
        await asyncio.sleep(0.002)


class Independent:
    """Some servers, and their lives."""

    def __init__(self, start_server, size, *module_arguments, options=(), clocks=()):
        environments = [clock.environment for clock in clocks] or [None] * size
        self.nodes = [
            start_server(*options, module_arguments=module_arguments, environment=environment)
            for environment in environments
        ]
        # A port at which no server listens, and none can.
        self.nowhere = socket.socket()
        self.nowhere.bind(("127.0.0.1", 0))

    def redlock(self, key, reach=None, kind=Redlock, lease_ms=LONG_MS, timeout_ms=PATIENT_MS, **more):
        """A lock with connections of its own, for a client that reaches only these servers."""
        ports = [
            node.port if reach is None or number in reach else self.nowhere.getsockname()[1]
            for number, node in enumerate(self.nodes)
        ]
        # A server that was restarted has closed the connection, which may not have been seen yet.
        again = Retry(NoBackoff(), 1)
        clients = [redis.asyncio.Redis(host="127.0.0.1", port=port, retry=again) for port in ports]
        return kind(clients, key, lease_ms, timeout_ms, **more)

    def alive(self):
        """The servers that run."""
        return [node for node in self.nodes if node.is_alive()]

    def live(self, key, token):
        """LOCK.FENCE of the token on each that runs."""
        return [node.admin("LOCK.FENCE", key, token) for node in self.alive()]

    def sizes(self):
        """The number of keys of each server that runs."""
        return [node.admin("DBSIZE") for node in self.alive()]

    def sizes_of(self, *numbers):
        """The number of keys of each of these servers."""
        return [self.nodes[number].admin("DBSIZE") for number in numbers]

    def settle(self):
        """Waits until none is in quarantine."""
        for node in self.alive():
            eventually(lambda: module_info(node.admin)["quarantine_left_ms"] == "0")

    def kill(self, *numbers):
        """Ends these as a power cut would."""
        for number in numbers:
            self.nodes[number].kill()

    def restart(self, number):
        """The server comes back, with the data of its files."""
        self.nodes[number].kill()
        self.nodes[number].start()

    def freeze(self, *numbers):
        """Stops these processes: they keep their connections and do nothing."""
        stop(*(self.nodes[number].process.pid for number in numbers))

    def thaw(self, *numbers):
        """Lets them continue."""
        for number in numbers:
            os.kill(self.nodes[number].process.pid, signal.SIGCONT)


class Diary:
    """The replies to the holders of a Redlock, for `checker`."""

    def __init__(self):
        self.history = []

    def granted(self, lock):
        """The lock was just taken."""
        self._note("acquire", lock, lock.token)

    def extended(self, lock):
        """The lock was just extended."""
        self._note("renew", lock, 1)

    def given_up(self, lock):
        """The lock is about to be released. (The servers' replies to that are no proof of a hold.)"""
        moment = now()
        self.history.append(Request("release", (lock.key,), lock.owner, moment, moment, 0))

    def tokens(self):
        """The tokens of all grants, as they came."""
        return [request.reply for request in self.history if request.command == "acquire"]

    def faults(self, breaks=()):
        """G1, and G4: the tokens of each lock rise; those of two locks may come from two servers, and be the same."""
        by_lock = {}
        for request in list(self.history):
            by_lock.setdefault(request.lock, []).append(request)
        return [fault for each in by_lock.values() for fault in faults(each, MANY, breaks=breaks)]

    def _note(self, kind, lock, reply):
        lease = lock.lease_ms / 1000 * (1 - example.DRIFT)
        sent = lock.until - lease
        self.history.append(Request(kind, (lock.key,), lock.owner, sent, now(), reply, lease=lease))
