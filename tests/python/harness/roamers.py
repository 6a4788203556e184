"""Clients that ask every server of a group for one lock, and record the replies.

A client of a library asks the server that it knows as the primary. These trust no server: they ask any as long as it
answers, also one that was a primary once, and renew and release at another one than granted. The rules that they may
rely on are in checkers/many.py.
"""

import os
import random
import threading
import time
from collections import Counter

from checkers import MANY, UNANSWERED, Request, faults, keep
from checkers.many import may_have_begun

from .limits import SLOW_FACTOR, SOON_SECONDS, eventually
from .wire import Closed, Connection, NoReply, ServerError

#: The longest lease of a roamer. No quarantine may be shorter.
LEASE_MS_MAX = 600
LEASES_MS = [100, 300, LEASE_MS_MAX]
WAITS_MS = [0, 50, 300]
PATIENCE_SECONDS = 0.5 * SLOW_FACTOR
REST_SECONDS = 0.005
#: The time that a patient one waits beyond its timeout: longer than any failure lasts.
VERY_PATIENT_SECONDS = 60.0 * SLOW_FACTOR


# Asking


class Roamer(threading.Thread):
    """One client after another, each of which takes one lock or two, and perhaps keeps it."""

    def __init__(self, load, number, is_stubborn=False, is_patient=False, seed=""):
        super().__init__(daemon=True)
        self.load, self.number, self.is_stubborn, self.is_patient = load, number, is_stubborn, is_patient
        self.chance = random.Random(f"{seed}{number}")
        self.connections, self.losses = {}, 0
        self.history, self.told = [], Counter()
        self.failure = None

    def run(self):
        try:
            turn = 0
            while not self.load.stop.is_set():
                turn += 1
                # A request without a reply may be carried out late: to an owner of that name, so it changes its name.
                self.turn(f"{self.number}:{self.losses}" if self.is_stubborn else f"{self.number}.{turn}")
        except Exception as failure:  # a thread's failure would else be lost
            self.failure = failure

    def turn(self, owner):
        """One attempt at the servers, and the actions of a holder."""
        chance, lease_ms = self.chance, self.chance.choice(LEASES_MS)
        names = [*self.load.locks, *self.load.limits]
        locks = [chance.choice(names)] if chance.random() < 0.8 else self.load.locks
        wait_ms = chance.choice(WAITS_MS)
        until = time.monotonic() + lease_ms / 1000
        node = next((node for node in self.shuffled() if self.acquire(node, locks, owner, lease_ms, wait_ms)), None)
        if node is None:
            return time.sleep(REST_SECONDS)
        while chance.random() < 0.4:
            time.sleep(chance.random() * lease_ms / 3000)
            if time.monotonic() > until and not self.is_stubborn:
                return  # it knows that it is late
            until = time.monotonic() + lease_ms / 1000
            replies = [self.ask("renew", self.near(node), lock, owner, lease_ms) for lock in locks]
            if any(reply != 1 for reply in replies):
                return
        if chance.random() < 0.85:
            for lock in locks:
                self.ask("release", self.near(node), lock, owner)

    def shuffled(self):
        """All servers, in any order."""
        return self.chance.sample(self.load.nodes, len(self.load.nodes))

    def near(self, node):
        """The server that granted the lock, mostly, or another one."""
        return node if self.chance.random() < 0.8 else self.chance.choice(self.load.nodes)

    def acquire(self, node, locks, owner, lease_ms, wait_ms):
        """Returns whether it got the locks, at this server."""
        token = self.ask("acquire", node, locks[0], owner, lease_ms, wait_ms, locks[1:])
        return token is not None

    def ask(self, kind, node, lock, owner, lease_ms=0, wait_ms=0, others=()):
        """The reply; None also if there was none, or an error."""
        words = [f"LOCK.{kind.upper()}", lock, owner]
        if others:
            words = ["LOCK.MACQUIRE", 1 + len(others), lock, *others, owner]
        words += ["PX", lease_ms] if lease_ms else []
        words += ["LIMIT", self.load.limits[lock]] if kind == "acquire" and lock in self.load.limits else []
        words += ["BLOCK", wait_ms] if wait_ms else []
        sent = time.monotonic()
        patience = VERY_PATIENT_SECONDS if self.is_patient else PATIENCE_SECONDS
        reply, error = self.reply(node, words, patience + wait_ms / 1000)
        answered = time.monotonic()
        if kind != "acquire" or reply is not None or may_have_begun(error):
            # Replies that may prove something.
            command = "macquire" if others else kind
            asked = {"lease": lease_ms / 1000, "block": wait_ms / 1000 or None}
            self.history.append(Request(command, (lock, *others), owner, sent, answered, reply, error, **asked))
        return reply

    def reply(self, node, words, limit):
        """The reply of this server, and the error instead; errors are counted."""
        try:
            if node not in self.connections:
                self.connections[node] = Connection(node.port)
            return self.connections[node](*words, limit=limit), ""
        except ServerError as error:
            self.told[error.code] += 1
            return None, error.line
        except (Closed, NoReply, OSError) as error:
            self.told[type(error).__name__] += 1
            self.losses += 1
            if isinstance(error, NoReply) and self.is_patient:
                self.load.unanswered.append(" ".join(map(str, words)))
            if node in self.connections:
                self.connections.pop(node).close()
            return None, UNANSWERED


class Load:
    """Roamers at work, from entering to leaving.

    Stubborn ones are the same owner again and again, and renew holds that they know to have ended. Patient ones, the
    last of all, do not ask again: a request without a reply within a minute is `unanswered`. In addition to the locks
    with one holder there may be semaphores: `limits` has the limit of each.
    """

    #: True if the servers come back with all their data.
    forgets_nothing = False

    def __init__(self, nodes, clients=4, locks=("door", "gate"), stubborn=0, patient=0, seed="", limits=None):
        self.nodes, self.locks, self.limits = list(nodes), list(locks), limits or {}
        self.stop, self.unanswered = threading.Event(), []
        kinds = [(number < stubborn, number >= clients - patient) for number in range(clients)]
        self.roamers = [Roamer(self, number, *kind, seed=seed) for number, kind in enumerate(kinds)]

    def __enter__(self):
        for roamer in self.roamers:
            roamer.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for roamer in self.roamers:
            roamer.join(2 * SOON_SECONDS)
            assert not roamer.is_alive(), "G7: a request was never answered"
            assert roamer.failure is None, repr(roamer.failure)
            for connection in roamer.connections.values():
                connection.close()
        keep(self.history, f"roamers.{os.getpid()}.{id(self)}", MANY)

    @property
    def history(self):
        """The history of all of them until now."""
        return [request for roamer in self.roamers for request in list(roamer.history)]

    @property
    def told(self):
        """The errors that they received, and their counts."""
        return sum((roamer.told for roamer in self.roamers), Counter())

    def grants(self):
        """The number of locks that were granted until now."""
        return sum(request.is_granted for request in self.history)

    def goes_on(self, grants=10):
        """Waits until `grants` more locks were granted."""
        before = self.grants()
        eventually(lambda: self.grants() >= before + grants, "locks are granted", pause=0.02)

    def faults(self, breaks=()):
        """Violations that they cannot have seen."""
        known = {"breaks": breaks, "limits": self.limits, "forgets_nothing": self.forgets_nothing}
        return faults(self.history, MANY, **known)
