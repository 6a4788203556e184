"""The needs of drivers for clusters, and their handling of LOCK.HELDBY, which names no key (docs/how-to/acl.md).

redis-py's RedisCluster, and ioredis' Cluster by drivers/cluster.js: scripts/prepare installs both.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import redis

from harness.cluster import Cluster
from harness.limits import SOON_SECONDS, VALGRIND
from harness.server import ROOT

DRIVERS = Path(__file__).parent / "drivers"
CACHE = Path(
    os.environ.get("REDISLOCK_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "redislock"
)
(RECIPE,) = re.findall(r"^ACL SETUSER cluster-app .*$", (ROOT / "docs" / "how-to" / "acl.md").read_text(), re.MULTILINE)
PASSWORD = re.search(r">(\S+)", RECIPE).group(1)
#: The further rights of the recipe, and the drivers that need each.
NEEDED = {
    "+cluster|slots": {"redis-py", "ioredis"},
    "+asking": {"redis-py", "ioredis"},
    "+command": {"redis-py"},
    "+cluster|info": {"ioredis"},
}
pytestmark = pytest.mark.skipif(VALGRIND, reason="the servers are slow, and the drivers are not patient")


@pytest.fixture
def cluster(start_server):
    """Two nodes, on which the user of the recipe takes locks."""
    return Cluster(start_server)


def allow(cluster, line):
    """Makes the user on all nodes."""
    for node in cluster.nodes:
        assert node.admin(*line.split()) == "OK"


def by_redis_py(port):
    """Takes and releases locks; "ok", or the refusal."""
    try:
        with redis.RedisCluster("127.0.0.1", port, username="cluster-app", password=PASSWORD) as client:
            for number in range(8):
                lock = f"lock:{number}"
                token = client.execute_command("LOCK.ACQUIRE", lock, "ann", "PX", 60_000)
                assert client.execute_command("LOCK.FENCE", lock) == token
                assert client.execute_command("LOCK.RELEASE", lock, "ann") == 1
            names = [f"lock:{{a}}{number}" for number in range(3)]
            assert client.execute_command("LOCK.MACQUIRE", 3, *names, "ann", "PX", 60_000) > token
            assert [client.execute_command("LOCK.RELEASE", name, "ann") for name in names] == [1, 1, 1]
        return "ok"
    except (redis.RedisError, redis.exceptions.RedisClusterException) as error:
        return f"refused: {error}"


def by_ioredis(port, *more):
    """Takes and releases locks by ioredis; with an owner: its holds."""
    node = shutil.which("node")
    assert node, "there is no node: scripts/prepare test installs it"
    environment = {**os.environ, "NODE_PATH": str(CACHE / "node-test" / "node_modules")}
    ran = subprocess.run(
        [node, DRIVERS / "cluster.js", str(port), "cluster-app", PASSWORD, *more],
        env=environment, capture_output=True, text=True, timeout=2 * SOON_SECONDS,
    )  # fmt: skip
    # An ASKING that is refused ends the whole process.
    return ran.stdout.strip() if ran.returncode == 0 else f"refused: {ran.stderr}"


WAYS = {"redis-py": by_redis_py, "ioredis": by_ioredis}


@pytest.mark.parametrize("driver", WAYS)
def test_the_recipe_is_enough_and_nothing_in_it_is_too_much(cluster, driver):
    port = cluster.nodes[0].port
    # Its first lock is in a slot that is on its way: a new key is made on the other node, after ASKING.
    slot = cluster.slot("lock:0")
    cluster.begin(slot, cluster.ids.index(cluster.owner_seen_by(cluster.nodes[0], slot)))
    allow(cluster, RECIPE)
    assert WAYS[driver](port) == "ok"
    for rule, drivers in NEEDED.items():
        assert rule in RECIPE.split()
        allow(cluster, RECIPE.replace(f" {rule}", ""))
        assert (WAYS[driver](port) == "ok") is (driver not in drivers), rule


def test_drivers_ask_all_shards_for_the_holds_of_an_owner(cluster):
    for command in ("lock.heldby", "keys"):
        (info,) = cluster.nodes[0].admin("COMMAND", "INFO", command)
        assert info[7] == ["request_policy:all_shards", "nondeterministic_output_order"], command


def test_what_an_owner_holds_in_a_cluster_by_redis_py(cluster):
    # docs/reference/commands/heldby.md
    with redis.RedisCluster("127.0.0.1", cluster.nodes[0].port, decode_responses=True) as client:
        for lock in ("{a}", "{b}"):
            assert client.execute_command("LOCK.ACQUIRE", lock, "ann", "PX", 60_000)
        by_node = client.execute_command("LOCK.HELDBY", "ann", target_nodes=client.get_primaries())
    assert len(by_node) == 2
    assert sorted(row[0] for rows in by_node.values() for row in rows) == ["{a}", "{b}"]


def test_ioredis_asks_one_node_by_default(cluster):
    # docs/reference/commands/heldby.md
    allow(cluster, f"{RECIPE} +lock.heldby")
    for node, lock in zip(cluster.nodes, ("{b}", "{a}")):
        assert node.admin("LOCK.ACQUIRE", lock, "ann", "PX", 60_000)
    one, each = json.loads(by_ioredis(cluster.nodes[0].port, "ann"))
    assert len(one) == 1
    assert sorted(row[0] for rows in each for row in rows) == ["{a}", "{b}"]
