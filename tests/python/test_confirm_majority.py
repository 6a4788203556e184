"""redislock.confirm majority: only replicas count that have been connected for a quarantine (CONTRACT 6, T4)."""

import time

import pytest

from harness.confirming import confirming, frozen, has_caught_up, has_replicas, set_rule
from harness.kinds import ask, hold_of, release, take
from harness.limits import VALGRIND, eventually
from harness.replicas import AT_ONCE, is_linked
from harness.replies import module_info
from harness.wire import ServerError, refused

#: Long enough for a test to look at the state before it ends. Under valgrind a replica starts in seconds.
SEASON_MS = 10_000 if VALGRIND else 2500
#: A quarantine and a lease that are over at once, but not before a replica has confirmed the grant.
A_MOMENT_MS = 20 if VALGRIND else 1
ARGUMENTS = ("confirm", "majority", "group-size", 3, "quarantine", SEASON_MS)


@pytest.fixture
def group(start_server):
    """A primary and two replicas, all of them seasoned."""
    primary, replicas = confirming(start_server, "majority", quarantine_ms=SEASON_MS)
    has_replicas(primary, 2, seasoned=2)
    return primary, *replicas


def grants(server, key="door", owner="alice"):
    """Returns whether the server grants a free lock, and the code of the error if not."""
    cli = server.connect()
    try:
        token = take(cli, key, owner, lease_ms=SEASON_MS)
    except ServerError as error:
        return error.line.split()[0]
    release(cli, key, owner)
    return isinstance(token, int)


def is_granted(server, key="door"):
    """Waits until the server grants a lock, with nothing but NOREPLICAS before."""
    replies = []

    def comes():
        replies.append(grants(server, key))
        return replies[-1] is True

    eventually(comes, "a grant", pause=0.02)
    assert set(replies[:-1]) <= {"NOREPLICAS"}
    return len(replies) > 1


def test_one_of_two_replicas_is_enough(group):
    primary, first, second = group
    for away in (first, second):
        is_granted(primary)
        with frozen(away):
            assert grants(primary) is True
            cli = primary.connect()
            take(cli, "gate", "alice", lease_ms=SEASON_MS)
            assert cli(f"LOCK.RENEW gate alice PX {SEASON_MS}") == 1
    with frozen(first, second):
        assert primary.ask("LOCK.ACQUIRE", "door", "bob", "PX", SEASON_MS).waits()


def test_a_primary_that_has_just_started_confirms_nothing(start_server):
    # T4 (i): not even with replicas that are there at once; and a client that waits does so through all of it
    primary = start_server(*AT_ONCE, module_arguments=ARGUMENTS)
    assert grants(primary) == "QUARANTINE"
    waiter = ask(primary, "waited-for", "waiter", lease_ms=SEASON_MS)
    begun = time.monotonic()
    for _ in range(2):
        is_linked(start_server("--replicaof", f"127.0.0.1 {primary.port}"))
    has_replicas(primary, 2)
    seen = {"QUARANTINE"}

    def granted():
        seen.add(grants(primary))
        return True in seen

    eventually(granted, "a grant", pause=0.02)
    # The replicas came after the start, so the quarantine lasts until their season ends.
    assert time.monotonic() - begun >= SEASON_MS / 1000
    assert seen == {"QUARANTINE", True}
    assert isinstance(waiter.answer(), int)


@pytest.mark.parametrize("how", ["its link broke", "it followed another one", "it restarted"])
def test_a_replica_that_came_back_counts_after_a_quarantine(group, how):
    # T4 (ii): it may have been promoted meanwhile, and have granted what we grant
    primary, first, second = group
    if how == "its link broke":
        assert primary.admin("CLIENT KILL TYPE replica") == 2
    elif how == "it followed another one":
        for replica in (first, second):
            replica.admin("REPLICAOF NO ONE")
            replica.admin("REPLICAOF", "127.0.0.1", primary.port)
    else:
        for replica in (first, second):
            replica.kill()
            replica.start()
    for replica in (first, second):
        is_linked(replica)
    has_replicas(primary, 2)
    assert module_info(primary.admin)["confirm_replicas_seasoned"] == "0"
    assert grants(primary) == "NOREPLICAS"
    assert is_granted(primary)


def test_one_replica_that_came_back_does_not_count_for_a_grant_from_before(group):
    primary, first, second = group
    with frozen(first):
        second.admin("REPLICAOF NO ONE")
        second.admin("REPLICAOF", "127.0.0.1", primary.port)
        is_linked(second)
        has_replicas(primary, 2, seasoned=1)
        request = primary.ask("LOCK.ACQUIRE", "door", "alice", "PX", SEASON_MS)
        has_caught_up(primary, second)
        assert request.waits(), "the one that has it is new"
    assert isinstance(request.answer(), int), "the other one counts"


def test_after_a_promotion_nothing_is_confirmed_for_a_quarantine(group):
    # The table of CONTRACT 6: holders cannot renew during the quarantine after a failover.
    primary, first, second = group
    for server in (first, second):
        set_rule(server, "majority", 3, SEASON_MS, 60_000)
    cli = primary.connect()
    take(cli, "held", "alice", lease_ms=SEASON_MS)
    has_caught_up(primary, first)
    primary.kill()
    new = first.connect()
    first.admin("REPLICAOF NO ONE")
    waiter = ask(first, "held", "waiter", lease_ms=SEASON_MS)
    second.admin("REPLICAOF", "127.0.0.1", first.port)
    with refused("NOREPLICAS"):
        new(f"LOCK.RENEW held alice PX {SEASON_MS}")
    assert hold_of(new, "held", "alice"), "and it goes on"
    with refused("QUARANTINE"):
        take(new, "door", "bob", lease_ms=SEASON_MS)
    is_linked(second)
    assert isinstance(waiter.answer(), int)


def test_a_promoted_replica_knows_the_replicas_that_it_had_already(start_server):
    primary = start_server(*AT_ONCE)
    middle = start_server(*AT_ONCE, "--replicaof", f"127.0.0.1 {primary.port}")
    is_linked(middle)
    leaf = start_server("--replicaof", f"127.0.0.1 {middle.port}")
    is_linked(leaf)
    set_rule(middle, "majority", 2, A_MOMENT_MS, 60_000)
    primary.kill()
    middle.admin("REPLICAOF NO ONE")
    cli = middle.connect()
    eventually(lambda: grants_for_a_moment(cli), "a grant")


def grants_for_a_moment(cli):
    """Returns whether a lock is granted, for as long as the shortest quarantine allows."""
    try:
        return isinstance(take(cli, "door", "alice", lease_ms=A_MOMENT_MS), int)
    except ServerError as error:
        assert error.line.split()[0] in ("NOREPLICAS", "QUARANTINE")
        return False


def test_with_confirm_all_holders_renew_right_after_a_promotion(start_server):
    # T3: also in the quarantine
    primary, (first, second) = confirming(start_server, "all", quarantine_ms=60_000)
    cli = primary.connect()
    token = take(cli, "held", "alice", lease_ms=30_000)
    for server in (first, second):
        set_rule(server, "all", 3, 60_000, 60_000)
    has_caught_up(primary, first)
    primary.kill()
    first.admin("REPLICAOF NO ONE")
    second.admin("REPLICAOF", "127.0.0.1", first.port)
    third = start_server("--replicaof", f"127.0.0.1 {first.port}")
    is_linked(second)
    is_linked(third)
    has_replicas(first, 2)
    new = first.connect()
    assert new("LOCK.RENEW held alice PX 30000") == 1
    assert take(new, "held", "alice", lease_ms=30_000) == token
    with refused("QUARANTINE"):
        take(new, "door", "bob", lease_ms=30_000)
