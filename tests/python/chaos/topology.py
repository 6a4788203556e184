"""Servers under load: what all topologies have in common.

    with yard_of(Single, seed, number) as topology: ...
"""

import time
from contextlib import ExitStack

from checkers import Break
from checkers.liveness import idle
from checkers.view import View
from differ.look import place_of
from harness.limits import eventually
from harness.replies import module_info
from harness.roamers import LEASE_MS_MAX, Load

from . import acts

#: The time that servers may take to recover from all faults.
HEALING_SECONDS = 90.0
#: The time that a client may wait for a free lock when all is healed: longer than a quarantine, and than a busy
#: machine.
IDLE_SECONDS = 10.0
#: The most readers of one lock, by default.
HOLDERS_MAX = 10_000
#: A quarantine that is as long as the longest lease.
QUARANTINE_MS = LEASE_MS_MAX
#: A file that may lack the last writes. A replica whose disk is full continues without it, and does not exit.
KEPT = ("--appendonly", "yes", "--appendfsync", "everysec", "--replica-ignore-disk-write-errors", "yes")
#: The locks with one holder, and those with several.
LOCKS, LIMITS = ("door", "gate"), {"pool": 2}
#: Clients of one load. The last of them wait for each answer, however long it takes.
CLIENTS, PATIENT = 6, 2


class Topology:
    """Some servers, clients that use them, and the faults that they can have."""

    #: Its name on the command line.
    name = ""
    #: The ways in which it can be set up, one round after the other.
    modes = ()
    #: The weight of each kind of fault.
    kinds = {}
    #: The special details of its faults.
    details = {}
    #: The number of servers that the faults are for.
    size = 1
    #: All that clients take.
    locks = (*LOCKS, *LIMITS)
    #: The distance from the true time to which a wall clock is set. Tokens rise over a server's lost data if its clock,
    #: and the lead that its tokens had, differ by less than the quarantine.
    clock_seconds = 0.15

    def __init__(self, yard, library, mode, seed):
        self.yard, self.library, self.mode, self.seed = yard, library, mode, seed
        self.breaks, self.doors = [], {}
        self.injector = None
        self.nodes = self.started()
        self.loads = self.made_loads()
        self.acts = {
            "pause": acts.pause, "kill": acts.kill, "clock": acts.clock(self), "disk": acts.disk,
            "memory": acts.memory(self), "storm": acts.storm(self), "cut": acts.cut(self),
            "stall": acts.stall(self), "lag": acts.stall(self, acts.BACK),
            "flush": acts.flush(self),
            "delete": acts.delete(self),
            **self.more_acts(),
        }  # fmt: skip

    # The parts that each topology defines

    def started(self):
        """Starts the servers."""
        raise NotImplementedError

    def made_loads(self):
        """Clients that use the locks, not at work yet."""
        return [Load(self.nodes, CLIENTS, LOCKS, self.stubborn(), PATIENT, self.seed, LIMITS)]

    def stubborn(self):
        """The number of clients that return for holds that they may have given up, which not every mode allows."""
        return 0

    def more_acts(self):
        """Faults that only this topology can have."""
        return {}

    def is_primary(self, node):
        """Returns whether this one grants."""
        return True

    def heal(self):
        """Waits until the servers are healthy again, after all faults have ended."""

    def granting(self):
        """The servers that grant, each with its locks and its replicas, when all are healed."""
        return [(node, self.locks, []) for node in self.nodes]

    def more_faults(self):
        """Further violations."""
        return []

    # The parts that all share

    def start(self, *options, kind=acts.Target, **more):
        """Starts a server that can have faults, or one of another kind."""
        if kind is acts.Target:
            more["library"] = self.library
        return self.yard(*options, kind=kind, **more)

    def broken(self, lock, sent, answered):
        """Notes that the holds of this lock, or of all, were ended on purpose."""
        self.breaks.append(Break(lock, sent, answered))

    def doors_of(self, node):
        """The ways to this server."""
        return self.doors[node]

    def hearing(self):
        """The servers that are neither stopped nor dead."""
        return self.injector.hearing()

    def close(self):
        """Ends the network."""
        for doors in self.doors.values():
            for door in doors:
                door.close()

    def at_work(self):
        """All clients, from entering to leaving."""
        stack = ExitStack()
        for load in self.loads:
            stack.enter_context(load)
        return stack

    def grants(self):
        """The number of locks that were granted until now."""
        return sum(load.grants() for load in self.loads)

    def goes_on(self, grants=5):
        """Waits until each load was granted some more."""
        goals = [(load, load.grants() + grants) for load in self.loads]
        for load, goal in goals:
            eventually(lambda: load.grants() >= goal, "locks are granted", HEALING_SECONDS, pause=0.02)

    # In the end

    def comes_to_rest(self):
        """G7, G13: every lock can be taken, nothing is left, and replicas agree, whatever roles they have by then."""
        seen = []

        def rests():
            seen.append(self.unrest())
            return not seen[-1]

        try:
            eventually(rests, "all is at rest", HEALING_SECONDS, 0.05)
        except AssertionError as failure:
            raise AssertionError(f"{failure}: {seen[-1]}") from None

    def idles(self):
        """G6: the clients that could have their locks in every look of `IDLE_SECONDS`, while clients continue."""
        deadline = time.monotonic() + IDLE_SECONDS
        while (found := self.idles_now()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return found

    def idles_now(self):
        """G6: the clients that could be granted their locks at this moment."""
        try:
            return [text for node, locks, _ in self.granting() for text in idle_at(node, locks)]
        except acts.TROUBLE:
            return []  # What else is wrong is told when all is to come to rest.

    def unrest(self):
        """The current faults; empty if there are none."""
        try:
            groups = self.granting()
            found = [text for group in groups for text in unrest_of(*group)]
        except acts.TROUBLE as error:
            return [repr(error)]
        return found if groups else ["nobody grants"]


def unrest_of(node, locks, replicas):
    """The faults at a server that grants; empty if there are none."""
    found = [f"{lock} cannot be taken" for lock in locks if not is_taken(node, lock)]
    found += [] if is_empty(node) else ["somebody holds or waits"]
    return found + ["a replica has other locks" for replica in replicas if digest(node) != digest(replica)]


def idle_at(node, locks):
    """The clients that wait at this server, and could be granted."""
    places = {(0, lock): place_of("redislock", -1, node.admin("LOCK.INFO", lock, "FULL")) for lock in locks}
    return idle(View(places, {}, {}, ""), HOLDERS_MAX)


def is_taken(node, lock):
    """Returns whether a new owner can take the lock; releases it."""
    owner = f"last-{time.monotonic_ns()}"
    if node.admin("LOCK.ACQUIRE", lock, owner, "PX", LEASE_MS_MAX) is None:
        return False
    return node.admin("LOCK.RELEASE", lock, owner) == 1


def is_empty(node):
    """Returns whether the server has no holds and no waiters."""
    info = module_info(node.admin)
    return [info[name] for name in ("locks", "holds", "waiters")] == ["0", "0", "0"]


def digest(node):
    """The digest of the server's data."""
    return node.admin("DEBUG DIGEST")


