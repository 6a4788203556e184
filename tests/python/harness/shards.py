"""A cluster of three primaries with one replica each."""

from .cluster import NODE, is_up, meet, share_slots
from .group import follows, is_primary
from .limits import ELECTED_SECONDS, SLOW_FACTOR, eventually
from .replicas import is_linked
from .wire import ServerError

#: After this many milliseconds without an answer a node is taken for dead.
NODE_TIMEOUT_MS = 1000 * SLOW_FACTOR


class Shard:
    """The two servers of a third of the slots; their roles change places when they do."""

    def __init__(self, primary, replica, tag):
        self.primary, self.replica, self.tag = primary, replica, tag

    @property
    def nodes(self):
        """Both."""
        return [self.primary, self.replica]

    def key(self, name):
        """A key of this shard; all of them are in one slot."""
        return f"{{{self.tag}}}{name}"

    def has_changed(self):
        """Waits until the replica is the primary, and the primary its replica."""
        self.is_promoted()
        self.replica, self.primary = self.nodes
        eventually(lambda: follows(self.replica, self.primary.port), "the old primary follows", pause=0.02)

    def is_promoted(self):
        """Waits until the replica is a primary."""
        eventually(lambda: is_primary(self.replica), "the replica is promoted", ELECTED_SECONDS, pause=0.02)


class Shards:
    """Six nodes."""

    def __init__(self, start_server, *options, **more):
        options += ("--cluster-node-timeout", NODE_TIMEOUT_MS, "--cluster-replica-validity-factor", 0)
        self.nodes = [start_server(*NODE, *options, **more) for _ in range(6)]
        primaries, replicas = self.nodes[:3], self.nodes[3:]
        share_slots(primaries)
        meet(self.nodes)
        tags = [tag_of_third(primaries[0], third) for third in range(3)]
        for primary, replica in zip(primaries, replicas):
            follow(replica, primary)
        for node in self.nodes:
            eventually(lambda node=node: is_up(node), "the cluster is up")
        self.shards = [Shard(*shard) for shard in zip(primaries, replicas, tags)]


def follow(replica, primary):
    """Makes it a replica that can take over."""
    eventually(lambda: attach(replica, primary), "it knows its primary")
    is_linked(replica)
    eventually(lambda: "state=online" in primary.info("replication").get("slave0", ""), "it can take over")


def attach(replica, primary):
    """Returns whether it could be made a replica of a node that it may not know yet."""
    try:
        return replica.admin("CLUSTER", "REPLICATE", primary.admin("CLUSTER MYID")) == "OK"
    except ServerError:
        return False


def tag_of_third(node, third):
    """A name whose slot is in this third of all."""
    names = (f"shard-{number}" for number in range(1000))
    return next(name for name in names if node.admin("CLUSTER", "KEYSLOT", name) * 3 // 16384 == third)
