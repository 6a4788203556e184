"""Point 7: a cluster of three nodes."""

from harness.cluster import NODE, is_up, meet, share_slots
from harness.limits import eventually

from . import case


class Three:
    """Three primaries with a third of the slots each."""

    def __init__(self, stage):
        self.stage = stage
        self.nodes = [stage.start(*NODE) for _ in range(3)]
        share_slots(self.nodes)
        meet(self.nodes)
        for node in self.nodes:
            eventually(lambda node=node: is_up(node), "the cluster is up")
        self.ids = [node.admin("CLUSTER", "MYID") for node in self.nodes]
        self.adapter = stage.adapter(*(f"127.0.0.1:{node.port}" for node in self.nodes[:2]), mode="cluster")

    def slot(self, name):
        """The slot of a name."""
        return self.nodes[0].admin("CLUSTER", "KEYSLOT", name)

    def use(self, name):
        """Sends the kit's own requests to the node that has this name from now on. Returns the node's number."""
        number = self.slot(name) * 3 // 16384
        self.stage.server = self.nodes[number]
        return number

    def move(self, name, source, target):
        """The slot of this name goes to another node, with what is in it."""
        slot = self.slot(name)
        self.nodes[target].admin("CLUSTER", "SETSLOT", slot, "IMPORTING", self.ids[source])
        self.nodes[source].admin("CLUSTER", "SETSLOT", slot, "MIGRATING", self.ids[target])
        for _ in range(100):
            names = self.nodes[source].admin("CLUSTER", "GETKEYSINSLOT", slot, 100)
            if not names:
                break
            self.nodes[source].admin("MIGRATE", "127.0.0.1", self.nodes[target].port, "", 0, 5000, "KEYS", *names)
        for node in (self.nodes[target], self.nodes[source], *self.nodes):
            node.admin("CLUSTER", "SETSLOT", slot, "NODE", self.ids[target])
        self.stage.server = self.nodes[target]


@case(7, needs=("cluster",), weight=3)
def locks_all_over_a_cluster(stage):
    """Locks in slots of all three nodes are acquired, waited for, renewed, lost and released."""
    three = Three(stage)
    adapter = three.adapter
    names = [f"k{number}" for number in range(12)]
    assert {three.slot(name) * 3 // 16384 for name in names} == {0, 1, 2}
    for name in names:
        adapter("acquire", hold=name, name=name, lease_ms=6000, wait_ms=0)
    asked = {name: adapter.ask("acquire", hold=f"w{name}", name=name, wait_ms=20_000) for name in names[:4]}
    for name in asked:
        three.use(name)
        stage.waiting(name, 1)
    three.use("k11")
    stage.stays(lambda: stage.info("k11")["holders"], "it is renewed", 7)
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')}"
    stage.server.admin("DEL", "k11")
    adapter.told("lost", hold="k11")
    adapter.ask("release", hold="k11").kind()
    for name in names[:-1]:
        adapter("release", hold=name)
    for name, each in asked.items():
        each.result()
        adapter("release", hold=f"w{name}")


@case(7, needs=("cluster",), weight=3)
def several_locks_in_one_slot(stage):
    """Names with the same hash tag are acquired together; names in different slots are refused with an error."""
    three = Three(stage)
    adapter = three.adapter
    names = ["{tag}a", "{tag}b", "{tag}c"]
    three.use(names[0])
    token = adapter("acquire", hold="h", names=names, wait_ms=0)["token"]
    assert all(stage.server.admin("LOCK.FENCE", name, token) == 1 for name in names)
    refused = adapter.refusal("acquire", hold="no", names=["k1", "k2", "k3"], wait_ms=0)
    assert refused.kind == "Other", f"answered with {refused}"
    adapter("release", hold="h")


@case(7, needs=("cluster", "held"), weight=3)
def an_owners_locks_are_listed_from_every_node_of_a_cluster(stage):
    """LOCK.HELDBY names no key, so no driver knows where to send it: the library asks each primary."""
    three = Three(stage)
    adapter = three.adapter
    owner = "kit-ann"
    for number in range(6):
        adapter("acquire", hold=f"h{number}", name=f"k{number}", owner=owner, wait_ms=0)
    assert len({three.slot(f"k{number}") * 3 // 16384 for number in range(6)}) == 3
    assert sorted(adapter("held", owner=owner)["names"]) == [f"k{number}" for number in range(6)]
    for number in range(6):
        adapter("release", hold=f"h{number}")


@case(7, needs=("cluster",), weight=3)
def a_slot_moves(stage):
    """The slot of a lock moves to another node: the hold moves with it, and a waiter is granted the lock there."""
    three = Three(stage)
    adapter = three.adapter
    source = three.use("k")
    token = adapter("acquire", hold="h", name="k", lease_ms=6000, wait_ms=0)["token"]
    asked = adapter.ask("acquire", hold="w", name="k", wait_ms=30_000)
    stage.waiting("k", 1)
    three.move("k", source, (source + 1) % 3)
    stage.stays(lambda: stage.server.admin("LOCK.FENCE", "k", token) == 1, "it is renewed on the new node", 7)
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')}"
    assert not asked.is_answered(), f"the slot has moved, and the waiter is answered with {asked.answer}"
    stage.waiting("k", 1)
    adapter("release", hold="h")
    assert asked.result()["token"] != token
    adapter("release", hold="w")
