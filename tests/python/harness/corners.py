"""Actions of clients of a mixed load on locks of their own, where the outcome is known.

Other clients cannot interfere there, so a waiter that is not granted, or a deadlock that is not reported, is seen for
certain. And a resource outside of the server, which keeps the highest token that it has seen: the witness of the
purpose of tokens.
"""

import select
import threading
import time

from checkers.evidence import EXCLUSIVE, Request

from .wire import Connection

#: A lease that does not end in a corner, and waits that are long enough to be sure.
HELD_MS = 10_000
PATIENT_MS = 3_000


class Resource:
    """Something that holders write to, and that refuses tokens older than the newest it has seen."""

    def __init__(self, name):
        self.name = name
        self.guard = threading.Lock()
        self.highest = {}

    def accepts(self, lock, token):
        """One write under this token."""
        with self.guard:
            if token < self.highest.get(lock, 0):
                return False
            self.highest[lock] = token
            return True


def answered_first(sides):
    """Sides of a corner in the order in which their connections are answered. A connection is the second part of its side."""
    ready, _, _ = select.select([other.socket for _, other, *_ in sides], [], [], PATIENT_MS / 1000)
    return sorted(sides, key=lambda side: side[1].socket not in ready)


class Corners:
    """Turns of a client of `mixture`."""

    def use(self):
        """Writes to the resource, as the only holder."""
        key, token, mode, _ = self.any_held()
        if mode == EXCLUSIVE:
            sent = time.monotonic()
            reply = int(self.resource.accepts(key, token))
            known = {"token": token, "connection": self.resource.name}
            self.history.append(
                Request("use", (key,), self.owner, sent, time.monotonic(), reply, **known)
            )

    def own_lock(self, what):
        """A lock that no other client uses."""
        return f"{what}:{self.owner}"

    def corner_take(self, key, owner, block=None, other=None, **wanted):
        """Asks for the plain exclusive lock; on another connection only sends, and returns the request."""
        words, request = self.draw(
            [key], owner=owner, mode=EXCLUSIVE, block=block, reentrant=False,
            **{"lease": HELD_MS, "ephemeral": None, "keepalive": False} | wanted,
        )  # fmt: skip
        connection = other or self.connection
        request = request._replace(sent=time.monotonic())
        if other is not None:
            request = request._replace(connection=f"{owner}+")
        connection.send(*words)
        return request if other is not None else self.note(request, connection)

    def corner_release(self, key, owner):
        """Gives up a lock for one of the owners in a corner."""
        self.owner, before = owner, self.owner
        self.ask("release", ["LOCK.RELEASE", key, owner], key)
        self.owner = before

    def bell(self):
        """A request waits, and the lock is freed in one of many ways: then it is the waiter's."""
        key, waiter = self.own_lock("bell"), Connection(self.port)
        way = self.chance.choice(["del", "release", "close", "end", "del", "close"])
        holder, heir = f"{self.owner}.h", f"{self.owner}.w"
        other = Connection(self.port)
        tie = {"ephemeral": 0.0} if way == "close" else {}
        tie |= {"lease": 50} if way == "end" else {}
        first = self.note(self.corner_take(key, holder, other=other, **tie), other)
        asked = self.corner_take(key, heir, block=PATIENT_MS, other=waiter)
        time.sleep(self.chance.random() * 0.01)
        if way == "del":
            self.ask("del", ["DEL", key], key)
        elif way == "release":
            self.corner_release(key, holder)
        elif way == "close":
            self.close_other(other, first)
        self.note(asked, waiter)
        if way != "close":
            self.close_other(other, first)
        self.corner_release(key, heir)
        self.close_other(waiter, asked)

    def queue_up(self):
        """One request waits and is checked, then another one comes: they are granted in order."""
        key, owners = self.own_lock("line"), [f"{self.owner}.{number}" for number in range(3)]
        others = [Connection(self.port), Connection(self.port)]
        self.corner_take(key, owners[0])
        asked = []
        for owner, other in zip(owners[1:], others):
            asked.append(self.corner_take(key, owner, block=PATIENT_MS, other=other))
            self.info(key)
        self.corner_release(key, owners[0])
        for request, other, owner in answered_first([*zip(asked, others, owners[1:])]):
            self.note(request, other)
            self.corner_release(key, owner)
            self.close_other(other, request)

    def knot(self):
        """Two owners, each of which wants the other one's lock: the second is refused."""
        left, right = self.own_lock("left"), self.own_lock("right")
        one, two = f"{self.owner}.1", f"{self.owner}.2"
        others = Connection(self.port), Connection(self.port)
        self.corner_take(left, one)
        self.corner_take(right, two)
        first = self.corner_take(right, one, block=PATIENT_MS, other=others[0])
        time.sleep(self.chance.random() * 0.01)
        second = self.corner_take(left, two, block=PATIENT_MS, other=others[1])
        sides = [(first, others[0], left, one), (second, others[1], right, two)]
        # The one that is refused, which is answered at once, releases the lock of the other.
        sides = answered_first(sides)
        for request, other, own, owner in sides:
            self.note(request, other)
            self.corner_release(own, owner)
        for request, other, _, owner in sides:
            self.corner_release(request.lock, owner)
            self.close_other(other, request)
