"""The statements of docs/operations/failover*.md about failovers in addition to the steps that it shows. They do not always go
well; some end holds; and clients ask meanwhile. test_operations.py runs the steps themselves."""

import time

import pytest

from harness.confirming import has_replicas
from harness.group import freeze, is_primary, settings, thaw
from harness.limits import A_WHILE_SECONDS, VALGRIND, eventually
from harness.replicas import AT_ONCE, is_linked
from harness.sentinel import DOWN_AFTER_MS, GROUP
from harness.server import ROOT
from harness.wire import Closed, ServerError, refused

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(VALGRIND, reason="many servers at once, which watch each other's time"),
]

PAGES = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "operations").glob("failover*.md")))
QUARANTINE_MS = 3000


def line_of(start):
    """The words of the one command of the pages that begins so, without redis-cli."""
    (found,) = {line[line.index(start) :] for line in PAGES.splitlines() if start in line and "-p 6379" in line}
    return found.split("`")[0].split()


def three(start_server, *arguments):
    """A primary and its two replicas."""
    servers = [start_server(*AT_ONCE, module_arguments=arguments) for _ in range(3)]
    for replica in servers[1:]:
        follow(replica, servers[0])
    return servers


def follow(replica, primary):
    """Makes it a replica of that one."""
    assert replica.admin("REPLICAOF", "127.0.0.1", primary.port) == "OK"
    is_linked(replica)


def fail_over(old, new, *more):
    """FAILOVER as the page has it; by default it must go well."""
    assert old.admin("FAILOVER", "TO", "127.0.0.1", new.port, *more) == "OK"


def state_of(server):
    """The state of its failover."""
    return server.info("replication")["master_failover_state"]


def stopped(start_server, lacks_a_write):
    """A primary and its replica that does not answer any more, and may lack the last writes."""
    primary, replica, _ = three(start_server)
    token = primary.admin("LOCK.ACQUIRE gate alice PX 60000")
    eventually(lambda: replica.admin("LOCK.FENCE gate") == token, "the replica has the lock")
    settled = "offset=" + primary.info("replication")["master_repl_offset"] + ","
    eventually(lambda: settled in primary.info("replication")["slave0"], "and has said so")
    freeze(replica)
    if lacks_a_write:
        primary.admin("LOCK.RELEASE gate alice")
    return primary, replica


def test_a_failover_to_a_dead_replica_stops_writes_until_it_is_aborted(start_server):
    primary, replica = stopped(start_server, lacks_a_write=True)
    primary.admin("CONFIG SET redislock.quarantine 60000")
    fail_over(primary, replica)
    client = primary.connect()
    client.send("LOCK.ACQUIRE door alice PX 60000")
    assert not client.has_input(A_WHILE_SECONDS), "its writes are stopped"
    assert is_primary(primary) and state_of(primary) == "waiting-for-sync"
    assert primary.admin(*line_of("FAILOVER ABORT")) == "OK"
    assert isinstance(client.read(), int), "no quarantine begins: it was the primary all the time"
    assert is_primary(primary) and state_of(primary) == "no-failover"
    thaw(replica)


def test_with_a_timeout_a_failover_to_a_replica_that_lacks_something_is_given_up(start_server):
    words = line_of("FAILOVER TO 127.0.0.1 6380 TIMEOUT")
    assert words[-2] == "TIMEOUT" and int(words[-1]) <= 10_000
    primary, replica = stopped(start_server, lacks_a_write=True)
    fail_over(primary, replica, "TIMEOUT", 500)
    client = primary.connect()
    assert isinstance(client("LOCK.ACQUIRE door alice PX 60000"), int), "granted when it is given up"
    assert is_primary(primary) and state_of(primary) == "no-failover"
    thaw(replica)


def test_a_timeout_does_not_end_a_failover_to_a_replica_that_died_with_everything(start_server):
    primary, replica = stopped(start_server, lacks_a_write=False)
    primary.admin("CONFIG SET redislock.quarantine 60000")
    fail_over(primary, replica, "TIMEOUT", 300)
    eventually(lambda: state_of(primary) == "failover-in-progress", "it hands over")
    time.sleep(1)  # beyond the timeout
    assert state_of(primary) == "failover-in-progress" and not is_primary(primary)
    with refused("READONLY"):
        primary.admin("LOCK.ACQUIRE door alice PX 60000")
    assert primary.admin(*line_of("FAILOVER ABORT")) == "OK"
    assert is_primary(primary)
    with refused("QUARANTINE"):
        primary.admin("LOCK.ACQUIRE door alice PX 60000")
    thaw(replica)
    eventually(lambda: replica.info("replication")["master_link_status"] == "up", "it follows again")


def renewals(server, lease_ms, until):
    """The replies to the hold's renewals, one after the other, up to the first one of these."""
    answers = []

    def renew():
        try:
            answers.append(server.admin("LOCK.RENEW", "door", "alice", "PX", lease_ms))
        except ServerError as error:
            answers.append(error.code)
        return answers[-1] in until

    eventually(renew, "the renewal is answered so", pause=0.02)
    return answers


def test_with_majority_every_failover_ends_all_holds(start_server):
    old, new, third = three(start_server, *settings("majority", QUARANTINE_MS))

    def granted():
        try:
            return old.admin("LOCK.ACQUIRE", "door", "alice", "PX", QUARANTINE_MS)
        except ServerError:
            return None

    eventually(granted, "the group has been there for a quarantine")
    assert old.admin("LOCK.RENEW", "door", "alice", "PX", QUARANTINE_MS) == 1
    fail_over(old, new, "TIMEOUT", 5000)
    eventually(lambda: is_primary(new), "it is promoted")
    follow(third, new)
    assert set(renewals(new, QUARANTINE_MS, until=(0, 1))) == {"NOREPLICAS", 0}


def test_with_all_holds_continue_as_soon_as_every_replica_follows(start_server):
    old, new, third = servers = three(start_server)
    for server in servers:
        server.admin("CONFIG SET redislock.quarantine 60000 redislock.group-size 3 redislock.confirm all")
    has_replicas(old, 2)
    assert old.admin("LOCK.ACQUIRE door alice PX 60000") > 0
    fail_over(old, new, "TIMEOUT", 5000)
    eventually(lambda: is_primary(new), "it is promoted")
    with refused("NOREPLICAS"):
        new.admin("LOCK.RENEW door alice PX 60000")
    assert third.info("replication")["master_port"] == str(old.port), "it follows the old primary"
    follow(third, new)
    assert renewals(new, 60_000, until=(0, 1))[-1] == 1
    with refused("QUARANTINE"):
        new.admin("LOCK.ACQUIRE gate bob PX 60000")


def test_under_sentinel_a_primary_that_refuses_writes_grants_nothing(start_group):
    group = start_group("local", quarantine_ms=0, has_sentinels=True)
    old, sentinel = group.nodes[0], group.sentinels[0]
    old.admin("LOCK.ACQUIRE gate alice PX 60000")
    waiter = old.ask("LOCK.ACQUIRE gate erin PX 60000 BLOCK 0")
    assert old.admin(*line_of("CONFIG SET min-replicas-to-write 100")) == "OK"
    with refused("NOREPLICAS"):
        old.admin("LOCK.RENEW gate alice PX 60000")
    time.sleep(3 * DOWN_AFTER_MS / 1000)
    assert sentinel.flags("MASTERS") == ["master"], "they do not take it for dead"
    sentinel.admin("SENTINEL", "FAILOVER", GROUP)
    new = group.promoted(old)
    assert new.admin("LOCK.ACQUIRE door dave PX 60000") > 0
    with pytest.raises(ServerError, match="^(NOREPLICAS|READONLY)"):
        old.admin("LOCK.ACQUIRE door carl PX 60000")
    assert group.healed() is new
    with pytest.raises((ServerError, Closed), match="UNBLOCKED|closed"):
        waiter.answer()
    assert old.admin(*line_of("CONFIG SET min-replicas-to-write 0")) == "OK"
    with refused("READONLY"):
        old.admin("LOCK.ACQUIRE door carl PX 60000")


def test_under_sentinel_a_paused_primary_is_taken_for_dead(start_group):
    group = start_group("local", quarantine_ms=0, has_sentinels=True)
    for sentinel in group.sentinels:
        sentinel.keep_silent_links()
    old = group.nodes[0]
    assert old.admin("CLIENT PAUSE 60000 WRITE") == "OK"
    group.promoted(old)
    old.admin("CLIENT UNPAUSE")
    group.healed()
