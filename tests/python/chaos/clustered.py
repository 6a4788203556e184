"""A cluster of three primaries with a replica each, between which slots move.

As `replicated`, with `confirm all` or `majority`. Every node reaches the others through
doors. A slot is moved only while all nodes are as they should be. To finish a move after one
of the two sides has changed hands would give away what the new one has granted since.
"""

import time
from itertools import cycle

from harness.cluster import WAYS, Cluster, epochs_seen_by, is_up, try_to_move
from harness.group import follows, is_primary, settings
from harness.limits import eventually
from harness.proxy import Proxy
from harness.roamers import Load
from harness.shards import Shards
from harness.wire import ServerError

from .acts import TROUBLE
from .faults import WITH_FILE, WITHOUT_FILE
from .replicated import ALL, MAJORITY
from .topology import HEALING_SECONDS, KEPT, LIMITS, LOCKS, Topology

#: The limit on the time that a move waits until all is well.
STEADY_SECONDS = 6.0
#: The ways in which a replica takes over: with its primary, without it, without a vote.
ORDERS = {"ask": (), "order": ("FORCE",), "force": ("TAKEOVER",)}
#: A replica that was ordered to take over gives up after 5 seconds; one more for a busy machine.
TAKING_OVER_SECONDS = 6.0
CLIENTS, PATIENT = 3, 1


class Clustered(Topology):
    """Six nodes; clients ask any of them."""

    name = "cluster"
    modes = (ALL, MAJORITY)
    kinds = {
        "move": 6, "pause": 3, "kill": 4, "cut": 2, "stall": 3, "lag": 2, "failover": 3,
        "memory": 2, "disk": 1, "storm": 1, "flush": 1, "delete": 2,
    }  # fmt: skip
    details = {"kill": (WITH_FILE, WITHOUT_FILE), "move": WAYS}
    size = 6

    def started(self):
        options = (*KEPT, "--cluster-allow-replica-migration", "no")
        cluster = Shards(self.start_node, *options, module_arguments=settings(self.mode, group_size=2))
        self.pairs = [shard.nodes for shard in cluster.shards]
        self.tags = [shard.tag for shard in cluster.shards]
        self.locks = [lock for tag in self.tags for lock in locks_of(tag)]
        self.next_tag = cycle(self.tags)
        self.taking_over = {}
        return cluster.nodes

    def start_node(self, *options, **more):
        """A node that the others reach through doors only."""
        node = self.start(*options, **more)
        doors = self.doors[node] = [Proxy(node.port), Proxy(node.bus)]
        for name, door in zip(("cluster-announce-port", "cluster-announce-bus-port"), doors):
            node.options += [f"--{name}", str(door.port)]
            node.admin("CONFIG", "SET", name, door.port)
        return node

    def made_loads(self):
        return [self.load_of(tag) for tag in self.tags]

    def load_of(self, tag):
        """Clients of one slot."""
        limits = {name_of(tag, lock): limit for lock, limit in LIMITS.items()}
        locks = [name_of(tag, lock) for lock in LOCKS]
        return Load(self.nodes, CLIENTS, locks, 0, PATIENT, f"{self.seed}.{tag}", limits)

    def more_acts(self):
        return {"failover": self.failover, "move": self.move}

    def is_primary(self, node):
        return is_primary(node)

    def heal(self):
        eventually(self.is_steady, "all nodes are as they should be", HEALING_SECONDS, 0.05)

    def granting(self):
        return [(primary, self.locks_at(primary), [replica]) for primary, replica in self.roles() or []]

    def locks_at(self, primary):
        """The locks whose slots this one has."""
        return [lock for tag in self.tags if has_slot(primary, tag) for lock in locks_of(tag)]

    # Roles and slots

    def roles(self):
        """The primary and the replica of each pair; None if there is not one of each."""
        found = [sorted(pair, key=is_primary, reverse=True) for pair in self.pairs]
        is_well = all(is_primary(one) and follows(two, self.doors[one][0].port) for one, two in found)
        return found if is_well else None

    def is_steady(self):
        """Returns whether all have their roles, and agree on who has which slot, since when."""
        try:
            roles = self.roles()
            if not roles or not all(is_up(node) for node in self.nodes):
                return False
            ids = [primary.admin("CLUSTER MYID") for primary, _ in roles]
            owners = [{owner_seen_by(node, tag) for node in self.nodes} for tag in self.tags]
            ages = [claims(node, ids) for node in self.nodes]
        except TROUBLE:
            return False
        return all(len(each) == 1 for each in owners) and agree(ages)

    def is_settled(self):
        """Returns whether each replica that was ordered to take over has done so, or given up: it acknowledges the
        order at once, and acts later."""
        now = time.monotonic()
        return all(until < now or is_primary(replica) for replica, until in self.taking_over.items())

    # The faults

    def failover(self, fault, node):
        """Orders a replica to take over."""
        pair = next(pair for pair in self.pairs if node in pair)
        replica = next(other for other in pair if other is not node) if is_primary(node) else node
        if self.injector.is_deaf(replica):
            raise ServerError("DEAF is the replica")
        self.taking_over[replica] = time.monotonic() + TAKING_OVER_SECONDS
        replica.admin("CLUSTER", "FAILOVER", *ORDERS[fault.detail])

    def move(self, fault, node):
        """A slot that is used goes to the next pair."""
        self.injector.end_all()
        tag = next(self.next_tag)
        try:
            eventually(self.is_settled, "nobody takes over any more", TAKING_OVER_SECONDS, 0.05)
            eventually(self.is_steady, "all is well", STEADY_SECONDS, 0.05)
        except AssertionError:
            raise ServerError("NOTYET are all nodes as they should be") from None
        primaries = [primary for primary, _ in self.roles() or []]
        source = next((node for node in primaries if has_slot(node, tag)), None)
        if source is None:
            raise ServerError("NOMORE are all nodes as they should be")
        target = primaries[(primaries.index(source) + 1) % len(primaries)]
        try_to_move(Two([source, target]), fault.detail, f"{{{tag}}}", 0)


class Two(Cluster):
    """Two of the primaries, between which a slot moves."""

    def __init__(self, nodes):
        self.nodes, self.ids = nodes, [node.admin("CLUSTER MYID") for node in nodes]

    def move(self, way, key, source=0):
        """As before; also if it was refused at the very end, when the new owner's claim spreads on its own."""
        slot, target = self.slot(key), 1 - source
        if self.owner_seen_by(self.nodes[target], slot) != self.ids[target]:
            try:
                super().move(way, key, source)
            except TROUBLE as error:
                raise ServerError(f"TROUBLE {error}") from None  # to be tried again: nothing may be left half done
        for node in self.nodes:
            eventually(lambda: self.owner_seen_by(node, slot) == self.ids[target], "both know the new owner")

    def agrees(self):
        """Both know how old the claims of each are, and they are not of one age."""
        return agree([claims(node, self.ids) for node in self.nodes])


def locks_of(tag):
    """The locks of one slot."""
    return [name_of(tag, lock) for lock in (*LOCKS, *LIMITS)]


def name_of(tag, lock):
    """The name of a lock in this slot."""
    return f"{{{tag}}}{lock}"


def claims(node, ids):
    """The ages of the claims of these primaries, as this node knows them."""
    epochs = epochs_seen_by(node)
    return [epochs[each] for each in ids]


def agree(ages):
    """Returns whether all know the same, and no two claims are of one age."""
    return all(each == ages[0] and len(set(each)) == len(each) for each in ages)


def has_slot(node, tag):
    """Returns whether it has the slot of this tag, as it knows itself."""
    return owner_seen_by(node, tag) == node.admin("CLUSTER MYID")


def owner_seen_by(node, tag):
    """Whose the slot of this tag is, as this node knows it."""
    return Cluster.owner_seen_by(None, node, node.admin("CLUSTER", "KEYSLOT", tag))
