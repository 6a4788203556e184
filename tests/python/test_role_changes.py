"""Roles that a person or sentinels give to other servers, with locks held, waited for and ending (CONTRACT 4, 6)."""

import time

import pytest

from harness.group import freeze, is_primary, thaw
from harness.kinds import ask, take
from harness.limits import VALGRIND, eventually
from harness.replicas import AT_ONCE, is_linked
from harness.scene import Scene, agree
from harness.sentinel import GROUP
from harness.server import IS_VALKEY, RELEASE, parse_info

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(VALGRIND, reason="many servers at once, which watch each other's time"),
]

OVER_SECONDS = 0.5  # when the leases of a test are surely over


@pytest.fixture
def pair(start_server):
    """A primary, and a replica that can take over."""
    first, second = start_server(*AT_ONCE), start_server(*AT_ONCE)
    second.admin("REPLICAOF", "127.0.0.1", first.port)
    is_linked(second)
    eventually(lambda: "state=online" in first.info("replication")["slave0"], "it can take over")
    return first, second


def test_nothing_is_written_while_a_failover_waits_for_its_heir(pair):
    # G3, G7: no lease ends and no request is granted until it has ended; a write then would end the server
    old, new = pair
    cli = old.connect()
    scene = Scene(old)
    freeze(new)
    doors = [f"door:{n}" for n in range(20)]
    for door in doors:
        take(cli, door, "alice")
    waiters = [ask(old, door, "bob") for door in doors[::4]]
    # One packet: not even a slow machine gets between the leases and the pause.
    ends = [f"LOCK.RENEW {door} alice PX 50" for door in doors]
    *_, replication, size = cli.pipeline(*ends, f"FAILOVER TO 127.0.0.1 {new.port}", "INFO replication", "DBSIZE")
    assert "waiting-for-sync" in replication
    time.sleep(OVER_SECONDS)
    assert cli("DBSIZE") == size
    assert not any(waiter.connection.has_input() for waiter in waiters)
    assert offset_in(cli("INFO replication")) == offset_in(replication)
    thaw(new)
    eventually(lambda: is_primary(new), "the roles have changed")
    scene.waiters_are_told()
    is_linked(old)
    stats = new.info("stats")
    assert (stats["sync_full"], stats["sync_partial_ok"]) == ("0", "1"), "the old primary is where its heir was"
    cli = new.connect()
    eventually(lambda: cli("EXISTS", *doors) == 0, "the leases end")
    scene.goes_on_at(new)
    agree(new, old)


def offset_in(replication):
    """The offset of the primary's stream."""
    return parse_info(replication)["master_repl_offset"]


#: The ways of a role change, and the shortest lease that does not end before it.
WAYS = [("killed", 2500), ("FAILOVER", 6000)]
if IS_VALKEY and RELEASE >= (9, 1):
    WAYS.append(("FAILOVER COORDINATED", 4000))


@pytest.mark.parametrize("way, short_ms", WAYS)
def test_sentinels_give_the_role_to_another_server(start_group, way, short_ms):
    # G2, G3, G4, G7
    group = start_group("local", quarantine_ms=0, has_sentinels=True)
    old = group.nodes[0]
    scene = Scene(old, replicas=2, short_ms=short_ms)
    if way == "killed":
        old.process.kill()
    else:
        order, *options = way.split()
        group.sentinels[0].admin("SENTINEL", order, GROUP, *options)
    scene.waiters_are_told()
    scene.goes_on_at(group.elected(besides=old))
    if way == "killed":
        old.kill()
        old.start()
    new = group.healed()
    for node in group.nodes:
        agree(new, node)
