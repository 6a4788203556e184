"""What clients saw, and whether one lock can have done that.

Each client writes down every request: when it was sent, when the reply came, what it
was. All clients of one machine share a monotonic clock, so what must have been true
between two moments can be compared between clients:

    certain hold   from the reply of a grant to the moment that the holder sent its
                   release, or until its lease may have ended, counted from the moment
                   that the request was sent
    G1             certain holds of one lock do not overlap
    G2             nobody was told 0 before the lease can have ended
    G4             of two grants, one answered before the other was sent, the later has
                   the higher token; no token is given to two owners
    G7             every request was answered; nil not before the wait was over
"""

import random
import threading
import time
from typing import NamedTuple, Optional

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .wire import Connection


class Request(NamedTuple):
    """One request of one client, and its reply."""

    kind: str  # acquire, renew, release
    lock: str
    owner: str
    sent: float
    answered: float
    reply: Optional[int]
    lease: float = 0.0
    block: float = 0.0
    error: str = ""


class Hold(NamedTuple):
    """A stretch of time in which the lock was certainly held."""

    lock: str
    owner: str
    token: int
    start: float
    end: float


# Checking


def certain_holds(history):
    """The holds that the requests of each owner prove, oldest request first."""
    open_holds, done = {}, []
    for request in sorted(history, key=lambda request: request.sent):
        where = request.lock, request.owner
        hold = open_holds.get(where)
        if request.kind == "acquire" and request.reply is not None:
            until = request.sent + request.lease
            if hold is not None and hold.token == request.reply:
                open_holds[where] = hold._replace(end=max(hold.end, until))
                continue
            if hold is not None:
                done.append(hold)
            open_holds[where] = Hold(
                request.lock, request.owner, request.reply, request.answered, until
            )
        elif request.kind == "renew" and hold is not None and request.reply == 1:
            # Live when it was renewed, so live all the time before that.
            open_holds[where] = hold._replace(end=request.sent + request.lease)
        elif request.kind == "release" and hold is not None:
            end = request.sent if request.reply == 1 else min(hold.end, request.sent)
            done.append(open_holds.pop(where)._replace(end=end))
    return done + list(open_holds.values())


def overlaps(history):
    """G1: pairs of certain holds of one lock that overlap."""
    found, by_lock = [], {}
    for hold in certain_holds(history):
        if hold.end > hold.start:
            by_lock.setdefault(hold.lock, []).append(hold)
    for holds in by_lock.values():
        holds.sort(key=lambda hold: hold.start)
        latest = holds[0]
        for hold in holds[1:]:
            if hold.start < latest.end and hold.token != latest.token:
                found.append(f"two holders: {latest} and {hold}")
            if hold.end > latest.end:
                latest = hold
    return found


def early_ends(history):
    """G2: an owner was told that it holds nothing while its lease ran."""
    found, lease_ends = [], {}
    for request in sorted(history, key=lambda request: request.sent):
        where = request.lock, request.owner
        end = lease_ends.get(where)
        if request.kind == "acquire" and request.reply is not None:
            lease_ends[where] = max(end or 0, request.sent + request.lease)
        elif request.kind != "acquire" and request.reply == 0:
            if end is not None and request.answered < end:
                found.append(f"ended early: {request}")
            lease_ends.pop(where, None)
        elif request.kind == "renew":
            lease_ends[where] = request.sent + request.lease
        elif request.kind == "release":
            lease_ends.pop(where, None)
    return found


def token_faults(history):
    """G4: tokens that go down, or that two grants share."""
    grants = [r for r in history if r.kind == "acquire" and r.reply is not None]
    return twice_given(grants, lambda grant: (grant.lock, grant.owner)) + falling_tokens(grants)


def twice_given(grants, hold_of):
    """G4: tokens of two holds."""
    found, holds = [], {}
    for grant in grants:
        first = holds.setdefault(grant.reply, hold_of(grant))
        if first != hold_of(grant):
            found.append(f"one token, two holds: {first} and {grant}")
    return found


def falling_tokens(grants, asked=lambda grant: grant.sent):
    """G4: by the time that a grant was asked for, no token answered before may have been higher."""
    found = []
    answered = sorted(grants, key=lambda grant: grant.answered)
    highest, index = 0, 0
    seen = {}
    for grant in sorted(grants, key=asked):
        while index < len(answered) and answered[index].answered < asked(grant):
            highest = max(highest, answered[index].reply)
            seen.setdefault(answered[index].reply, answered[index])
            index += 1
        if grant.reply < highest and grant.reply not in seen:
            found.append(f"token went down: {grant} after {highest}")
    return found


def unfair_answers(history):
    """G7: nil before the wait was over."""
    return [
        f"nil too early: {request}"
        for request in history
        if request.kind == "acquire"
        and request.reply is None
        and request.answered - request.sent < request.block
    ]


def faults(history):
    """All that a lock which keeps its guarantees cannot have done."""
    return (
        overlaps(history)
        + early_ends(history)
        + token_faults(history)
        + unfair_answers(history)
    )


# Making a history


def run_clients(port, seed, threads, seconds, locks):
    """Several clients at once, each in a thread; returns what all of them saw."""
    histories = [[] for _ in range(threads)]
    failures = []

    def run(number):
        try:
            client = LoadClient(port, f"{seed}.{number}", locks, histories[number])
            client.run_for(seconds)
        except Exception as failure:  # a thread's failure would else be lost
            failures.append(f"client {seed}.{number}: {failure!r}")

    workers = [threading.Thread(target=run, args=[n]) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(seconds + 45)
    if any(worker.is_alive() for worker in workers):
        failures.append("a request was never answered")
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
        """Takes locks until the time is over."""
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
        """One attempt, and what a holder does."""
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
        """Sends a command, writes down what came back, and returns it."""
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
        self.history.append(
            Request(
                kind, lock, owner, sent, answered, reply, lease / 1000, block / 1000
            )
        )
        return reply

    def vanish_while_waiting(self, lock, owner):
        """Asks, and goes away without reading the answer. Proves no hold."""
        connection = Connection(self.port)
        connection.send("LOCK.ACQUIRE", lock, owner, "PX", 50, "BLOCK", 0)
        time.sleep(self.chance.random() * 0.01)
        connection.close()
