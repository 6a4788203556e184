"""A cluster of two nodes, and slots that move between them.

The first node has the lower half of the slots, the second the upper half: "{b}..." and
"{d}..." are the first's, "{a}..." and "{c}..." the second's.
"""

import time

from .limits import SOON_SECONDS, eventually
from .server import IS_VALKEY, at_least
from .wire import Closed, ServerError

#: The ways in which a slot can go from one node to another on the server under test.
WAYS = ["by hand"] + (["atomically"] if at_least(redis=(8, 4), valkey=(9, 0)) else [])

#: The redirections for a waiting client when its slot leaves.
REDIRECTIONS = ("MOVED", "ASK", "TRYAGAIN")


#: A node on this machine, whose replicas are in no hurry to wait for others.
NODE = (
    "--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0",
)  # fmt: skip


class Cluster:
    """Two nodes with half of the slots each."""

    def __init__(self, start_server, *options, **more):
        self.nodes = [start_server(*NODE, *options, **more) for _ in range(2)]
        share_slots(self.nodes)
        meet(self.nodes)
        for node in self.nodes:
            eventually(lambda node=node: is_up(node), "the cluster is up")
        self.ids = [node.admin("CLUSTER MYID") for node in self.nodes]

    def slot(self, key):
        """The slot of a key."""
        return self.nodes[0].admin("CLUSTER", "KEYSLOT", key)

    def begin(self, slot, source=0):
        """Lets keys of the slot go from this node to the other from now on."""
        target = 1 - source
        self.nodes[target].admin("CLUSTER", "SETSLOT", slot, "IMPORTING", self.ids[source])
        self.nodes[source].admin("CLUSTER", "SETSLOT", slot, "MIGRATING", self.ids[target])

    def carry(self, *keys, source=0):
        """These keys go to the other node."""
        address = ("127.0.0.1", self.nodes[1 - source].port)
        admin = self.nodes[source].admin
        assert admin("MIGRATE", *address, "", 0, 10000, "KEYS", *keys) in ("OK", "NOKEY")

    def end(self, slot, source=0):
        """The slot is the other node's."""
        target = 1 - source
        for node in (self.nodes[target], self.nodes[source]):
            node.admin("CLUSTER", "SETSLOT", slot, "NODE", self.ids[target])

    def move(self, way, key, source=0):
        """The slot of this key goes to the other node with all that it has."""
        slot = self.slot(key)
        if way == "by hand":
            self.begin(slot, source)
            while keys := self.nodes[source].admin("CLUSTER", "GETKEYSINSLOT", slot, 100):
                self.carry(*keys, source=source)
            self.end(slot, source)
        else:
            self.order(slot, source)
        for node in self.nodes:
            eventually(lambda node=node: self.owner_seen_by(node, slot) == self.ids[1 - source], "it has moved")
        # A test that continues before both know of it may end up with two claims of one age, and the slot with either.
        eventually(self.agrees, "both nodes have heard of each other's claims")

    def order(self, slot, source=0):
        """Has the servers move the whole slot; does not wait for it."""
        if IS_VALKEY:
            words = ("SLOTSRANGE", slot, slot, "NODE", self.ids[1 - source])
            self.nodes[source].admin("CLUSTER", "MIGRATESLOTS", *words)
        else:
            self.nodes[1 - source].admin("CLUSTER", "MIGRATION", "IMPORT", slot, slot)

    def agrees(self):
        """Both nodes know how old the claims of each are, and they are not of one age."""
        views = [epochs_seen_by(node) for node in self.nodes]
        return views[0] == views[1] and len(set(views[0].values())) == len(self.nodes)

    def owner_seen_by(self, node, slot):
        """Whose the slot is, as this node knows it."""
        for first, last, primary, *_ in node.admin("CLUSTER SLOTS"):
            if first <= slot <= last:
                return primary[2]
        return None


def share_slots(primaries):
    """Each has as many slots, in their order, and the first is the one whose claims are the oldest."""
    bounds = [16384 * number // len(primaries) for number in range(len(primaries) + 1)]
    for number, node in enumerate(primaries):
        node.admin("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
        node.admin("CLUSTER", "SET-CONFIG-EPOCH", number + 1)


def meet(nodes):
    """Makes these nodes know each other."""
    for node in nodes[1:]:
        nodes[0].admin("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus)
    for node in nodes:
        eventually(lambda node=node: len(epochs_seen_by(node)) == len(nodes), "it knows all others")


def epochs_seen_by(node):
    """The ages of the claims of each node, as this one knows them."""
    lines = node.admin("CLUSTER NODES").splitlines()
    return {words[0]: words[6] for words in (line.split() for line in lines)}


def is_up(node):
    """Returns whether the node knows of all slots."""
    info = node.admin("CLUSTER INFO")
    return "cluster_state:ok" in info and "cluster_slots_assigned:16384" in info


def redirected(request):
    """The request is answered with the redirection that a client understands."""
    try:
        reply = request.answer()
    except ServerError as error:
        assert error.code in REDIRECTIONS, error.line
        return error
    raise AssertionError(f"answered with {reply}")


def try_to_move(cluster, way, key, source):
    """The slot goes over; a move of a whole slot is refused while the last one is tidied up."""
    refusals = []

    def move():
        try:
            cluster.move(way, key, source)
        except ServerError as error:
            refusals.append(error.line)
            return False
        return True

    try:
        eventually(move, "the slot moves")
    except AssertionError as failure:
        raise AssertionError(f"{failure}; refused: {refusals[:1] + refusals[-1:] or 'never'}") from None


class Follower:
    """A client that goes where it is sent, as libraries do."""

    def __init__(self, cluster):
        self.connections = [node.connect() for node in cluster.nodes]
        self.ports = [node.port for node in cluster.nodes]
        self.at = 0

    def __call__(self, *arguments):
        deadline = time.monotonic() + SOON_SECONDS
        while time.monotonic() < deadline:
            try:
                return self.connections[self.at](*arguments)
            except ServerError as error:
                if error.code == "MOVED":
                    self.at = self._index(error)
                elif error.code == "ASK":
                    replies = self.connections[self._index(error)].pipeline("ASKING", tuple(arguments))
                    if not isinstance(replies[1], ServerError):
                        return replies[1]
                elif error.code != "TRYAGAIN":
                    raise
            except Closed:
                raise AssertionError("the connection of a client was closed") from None
            time.sleep(0.001)
        raise AssertionError(f"sent on and on: {arguments}")

    def _index(self, error):
        return self.ports.index(int(error.line.rpartition(":")[2]))
