"""Six nodes of a cluster change roles in every way that there is (CONTRACT 4, CONTRACT 6)."""

import pytest

from harness.cluster import NODE, WAYS as CLUSTER_WAYS, Cluster, meet, try_to_move
from harness.group import freeze, settings, thaw
from harness.kinds import take
from harness.limits import VALGRIND
from harness.roamers import Load
from harness.scene import Scene, agree
from harness.shards import Shards, follow
from harness.wire import refused

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(VALGRIND, reason="many servers at once, which watch each other's time"),
]

#: The ways in which a replica takes over: with its primary, without it, and without a vote.
WAYS = ["", "FORCE", "TAKEOVER"]


def test_holds_continue_and_waiters_are_notified_however_roles_change(start_server):
    # G2, G3, G7, G13; Valkey 9 does not notify the waiters of a module unprompted
    cluster = Shards(start_server)
    scenes = [Scene(shard.primary, key=shard.key, short_ms=6000) for shard in cluster.shards]
    for shard, way in zip(cluster.shards, WAYS):
        shard.replica.admin("CLUSTER", "FAILOVER", *way.split())
    for shard, scene in zip(cluster.shards, scenes):
        shard.has_changed()
        scene.waiters_are_told()
    for shard, scene in zip(cluster.shards, scenes):
        scene.goes_on_at(shard.primary)
        agree(shard.primary, shard.replica)
    # The first was asked to stop and to wait for its heir, so its data is the same up to the last byte.
    assert cluster.shards[0].primary.info("stats")["sync_full"] == "0", "something was written behind its heir's back"


@pytest.mark.parametrize("confirm, is_killed", [("all", True), ("majority", False)], ids=["all-killed", "majority-frozen"])
def test_one_holder_whichever_way_roles_change(start_server, confirm, is_killed):
    # G1, G4, T3, T4: a person decides, and then the nodes themselves
    cluster = Shards(start_server, module_arguments=settings(confirm, group_size=2))
    loads = [Load(shard.nodes, 2, [shard.key("door"), shard.key("gate")], stubborn=1) for shard in cluster.shards]
    with loads[0], loads[1], loads[2]:
        for shard, way, load in zip(cluster.shards, WAYS, loads):
            load.goes_on(5)
            shard.replica.admin("CLUSTER", "FAILOVER", *way.split())
        for shard, load in zip(cluster.shards, loads):
            shard.has_changed()
            assert "because this server was promoted" in shard.primary.log_text()
            load.goes_on(5)
        shard, load = cluster.shards[0], loads[0]
        lost = shard.primary
        lost.kill() if is_killed else freeze(lost)
        shard.is_promoted()
        lost.start() if is_killed else thaw(lost)
        shard.has_changed()
        load.goes_on(5)
    for load in loads:
        assert load.faults() == []


# Slots


@pytest.mark.parametrize("way", CLUSTER_WAYS)
def test_one_holder_while_a_slot_goes_to_and_fro(start_server, way):
    # G1, G4: a lock that one shard has confirmed is held at the other
    arguments = settings("all", group_size=2)
    cluster = Cluster(start_server, module_arguments=arguments)
    replicas = [start_server(*NODE, module_arguments=arguments) for _ in range(2)]
    meet(cluster.nodes + replicas)
    for replica, primary in zip(replicas, cluster.nodes):
        follow(replica, primary)
    with Load(cluster.nodes, locks=["{b}door", "{b}gate"], stubborn=1) as load:
        for turn in range(6):
            load.goes_on(5)
            try_to_move(cluster, way, "{b}", turn % 2)
        load.goes_on(5)
    assert load.faults() == []


# Where requests go

ELSEWHERE = [
    "LOCK.ACQUIRE {b}x alice PX 1000", "LOCK.ACQUIRE {b}x alice PX 1000 BLOCK 0", "LOCK.MACQUIRE 2 {b}x {b}y alice PX 1000",
    "LOCK.RELEASE {b}x alice", "LOCK.RENEW {b}x alice PX 1000", "LOCK.FENCE {b}x", "LOCK.FENCE {b}x 1", "LOCK.INFO {b}x",
    "LOCK.EXEC {b}x 1 SET {b}y 1",
]  # fmt: skip


def test_every_command_is_sent_to_the_node_of_its_key(start_server):
    # CONTRACT 4; HELDBY names no key, so every node lists its own holds
    cluster = Cluster(start_server)
    right, wrong = (node.connect() for node in cluster.nodes)
    wanted = f"{cluster.slot('{b}')} 127.0.0.1:{cluster.nodes[0].port}"
    for command in ELSEWHERE:
        with refused("MOVED", wanted):
            wrong(command)
    token = take(right, "{b}x", "alice")
    assert right("LOCK.EXEC", "{b}x", token, "SET", "{b}y", "1") == "OK"
    with refused("CROSSSLOT"):
        right("LOCK.EXEC", "{b}x", token, "SET", "{a}y", "1")
    with refused("CROSSSLOT"):
        right("LOCK.MACQUIRE 2 {b}1 {a}1 alice PX 1000")
    assert [row[0] for row in right("LOCK.HELDBY alice")] == ["{b}x"]
    assert wrong("LOCK.HELDBY alice") == []
