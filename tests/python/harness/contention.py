"""Clients of redis-py that contend for a few exclusive locks, and record the replies.

For all kinds of locks see mixture.py. The record is judged by `checker`.
"""

import random
import time
from math import inf

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from checkers import LOST, Request

from .together import run_together
from .wire import Connection


def run_clients(port, seed, threads, seconds, locks):
    """Several clients at once, each in a thread; returns the histories of all of them."""
    histories = [[] for _ in range(threads)]

    def run(number, name):
        LoadClient(port, name, locks, histories[number]).run_for(seconds)

    failures = run_together(seed, threads, run, seconds + 45)
    return [request for history in histories for request in history], failures


class LoadClient:
    """A client that takes, keeps, renews, loses and releases locks at random."""

    def __init__(self, port, name, locks, history):
        self.port = port
        self.name = name
        self.locks = locks
        self.history = history
        self.chance = random.Random(name)
        self.redis = redis.Redis(
            port=port, socket_timeout=30, retry=Retry(NoBackoff(), 0)
        )

    def run_for(self, seconds):
        """Takes locks until the time has passed."""
        end = time.monotonic() + seconds
        turn = 0
        while time.monotonic() < end:
            turn += 1
            lock = self.chance.choice(self.locks)
            if self.chance.random() < 0.05:
                self.vanish_while_waiting(lock, f"{self.name}.{turn}")
            else:
                self.take(lock, f"{self.name}.{turn}")
        self.redis.close()

    def take(self, lock, owner):
        """One attempt, and the actions of a holder."""
        chance = self.chance
        lease = chance.choice([5, 20, 50, 200])
        block = chance.choice([0, 1, 20, 100, 400])
        if self.request("acquire", lock, owner, lease, block) is None:
            return
        token = self.history[-1].reply
        for _ in range(chance.randrange(3)):
            time.sleep(chance.random() * lease / 1000 * chance.choice([0.1, 0.5, 1.2]))
            if chance.random() < 0.3:
                self.request("acquire", lock, owner, chance.choice([5, 50, 100]), 0)
                token = self.history[-1].reply
                if token is None:
                    return
            elif not self.request("renew", lock, owner, lease, 0, token):
                return
        if chance.random() < 0.8:
            self.request("release", lock, owner, 0, 0, token)

    def request(self, kind, lock, owner, lease, block, token=None):
        """Sends a command, records the reply, and returns it."""
        command = [f"LOCK.{kind.upper()}", lock, owner]
        if lease:
            command += ["PX", lease]
        if block:
            command += ["BLOCK", block]
        if token:
            command += ["TOKEN", token]
        sent = time.monotonic()
        reply = self.redis.execute_command(*command)
        answered = time.monotonic()
        asked = {"lease": lease / 1000, "block": block / 1000 or None, "token": token}
        self.history.append(Request(kind, (lock,), owner, sent, answered, reply, **asked))
        return reply

    def vanish_while_waiting(self, lock, owner):
        """Asks, and leaves without reading the answer. Proves no hold."""
        connection, sent = Connection(self.port), time.monotonic()
        connection.send("LOCK.ACQUIRE", lock, owner, "PX", 50, "BLOCK", 0)
        time.sleep(self.chance.random() * 0.01)
        connection.close()
        known = {"lease": 0.05, "block": inf, "error": LOST, "gone": time.monotonic()}
        self.history.append(Request("acquire", (lock,), owner, sent, inf, **known))
