"""One primary and two replicas, between which the network can fail.

Each server has a door in front of it, through which the other servers and the
sentinels reach it. Clients reach the servers themselves, so that a server that is cut
off from its group is not cut off from them.
"""

import signal

from .limits import ELECTED_SECONDS, eventually
from .proxy import Proxy
from .replicas import AT_ONCE, is_linked
from .roamers import LEASE_MS_MAX
from .sentinel import watched
from .stopped import stop
from .wire import Closed

SIZE = 3
QUARANTINE_MS = LEASE_MS_MAX
CONFIRM_TIMEOUT_MS = 300


def settings(confirm, quarantine_ms=QUARANTINE_MS, group_size=SIZE):
    """The arguments of the module for a group."""
    found = ["quarantine", quarantine_ms] if quarantine_ms else []
    if confirm != "local":
        found += ["group-size", group_size, "confirm", confirm, "confirm-timeout", CONFIRM_TIMEOUT_MS]
    return tuple(found)


class Group:
    """Three servers; the first is the primary at the start."""

    def __init__(self, start_server, confirm, *options, quarantine_ms=QUARANTINE_MS, has_sentinels=False):
        arguments = settings(confirm, quarantine_ms)
        self.nodes = [start_server(*AT_ONCE, *options, module_arguments=arguments) for _ in range(SIZE)]
        self.doors = [Proxy(node.port) for node in self.nodes]
        self.links = []
        for node, door in zip(self.nodes, self.doors):
            announced = ["--replica-announce-ip", "127.0.0.1", "--replica-announce-port", str(door.port)]
            node.options += announced
            node.admin("CONFIG", "SET", "replica-announce-ip", "127.0.0.1", "replica-announce-port", door.port)
        for node in self.nodes[1:]:
            node.admin("REPLICAOF", "127.0.0.1", self.doors[0].port)
        for node in self.nodes[1:]:
            is_linked(node)
        self.sentinels = watched(start_server, self.doors[0].port) if has_sentinels else []

    def close(self):
        """Ends the network."""
        for door in [*self.doors, *self.links]:
            door.close()

    def door(self, node):
        """The way to this server."""
        return self.doors[self.nodes.index(node)]

    def follow(self, replica, primary, door=None):
        """Makes it a replica, by a way of its own if one is given; returns when it has the data set."""
        replica.admin("REPLICAOF", "127.0.0.1", (door or self.door(primary)).port)
        is_linked(replica)

    def follow_by_own_link(self, replica, primary):
        """Makes it a replica with a link of its own; returns the link."""
        link = Proxy(primary.port)
        self.links.append(link)
        self.follow(replica, primary, link)
        return link

    def primary(self, besides=None, besides_sentinels=0):
        """The only node that takes itself for the primary, if all sentinels but `besides_sentinels` agree; or None."""
        ports = [sentinel.primary() for sentinel in self.sentinels]
        agreed = len(ports) - besides_sentinels
        others = [node for node in self.nodes if node is not besides and ports.count(self.door(node).port) >= agreed]
        found = [node for node in others if is_primary(node)]
        return found[0] if len(found) == 1 else None

    def promoted(self, old):
        """Waits until another one than `old` takes itself for the primary; returns it."""
        others = [node for node in self.nodes if node is not old]
        return eventually(
            lambda: next(filter(is_primary, others), None),
            "another one takes itself for the primary", ELECTED_SECONDS, pause=0.02,
        )  # fmt: skip

    def elected(self, besides):
        """Waits until the sentinels have made another one the primary; returns it."""
        return eventually(lambda: self.primary(besides), "another one is the primary", ELECTED_SECONDS, pause=0.02)

    def healed(self, limit=ELECTED_SECONDS):
        """Waits until there is one primary, and all others follow it; returns it.

        One sentinel may be wrong for good. It can take over the epoch of a failover that it
        hears of in the middle of its own, and then keeps its own result under that number.
        """
        def primary():
            found = self.primary(besides_sentinels=len(self.sentinels) // 2)
            others = [node for node in self.nodes if node is not found]
            return found and all(follows(node, self.door(found).port) for node in others) and found

        return eventually(primary, "all follow one primary", limit, pause=0.02)


def replication_of(node):
    """INFO replication; nothing if it is dead, or closes connections as at a change of roles."""
    try:
        return node.info("replication")
    except (Closed, OSError):
        return {}


def is_primary(node):
    """Returns whether it takes itself for the primary."""
    return replication_of(node).get("role") == "master"


def follows(node, port):
    """Returns whether it has the data set of the server at this port."""
    state = replication_of(node)
    return state.get("master_port") == str(port) and state["master_link_status"] == "up"


def freeze(server):
    """Stops it in the middle of its work, as a virtual machine is stopped."""
    stop(server.process.pid)


def thaw(server):
    """Lets it continue, as if no time had passed."""
    server.process.send_signal(signal.SIGCONT)
