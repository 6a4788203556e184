"""Servers that are killed, frozen, cut off and wrongly promoted, while clients use locks (CONTRACT 6).

With `confirm all` and `majority`, and a quarantine as long as the longest lease, no client ever receives a hold that
another may rely on. G1 and G4 hold over all servers, whichever is asked. With `local` it takes a dead old primary;
other outcomes are shown, too.
"""

import pytest

from checkers import MANY, faults
from harness.group import freeze, is_primary, thaw
from harness.limits import VALGRIND, eventually
from harness.proxy import BACK, ONWARD
from harness.roamers import LEASE_MS_MAX, Load, Roamer
from harness.sentinel import GROUP
from harness.wire import Closed, ServerError, refused

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(VALGRIND, reason="many servers at once, which watch each other's time"),
]

#: A promise kept by several servers.
CONFIRMED = pytest.mark.parametrize("confirm", ["all", "majority"])
KEPT = ("--appendonly", "yes")
LONG_MS = 60_000


def two_holders(history):
    """G1: the checker's findings about owners who both rely on one lock."""
    return [fault for fault in faults(history, MANY) if fault.startswith("two holders")]


def promote(server):
    """Makes it a primary, whatever it knows."""
    server.admin("REPLICAOF NO ONE")


def goes_on_without_all(load, confirm):
    """Locks are granted while a server is missing, if not all must confirm."""
    if confirm == "majority":
        load.goes_on()
    else:
        told = load.told["NOREPLICAS"]
        eventually(lambda: load.told["NOREPLICAS"] > told, "somebody is told that a replica is missing")


# A planned failover


def planned_failover(group):
    """Has the sentinels change over, as an operator does; returns the new primary as soon as it takes itself for one."""
    old = group.nodes[0]
    group.sentinels[0].admin("SENTINEL", "FAILOVER", GROUP)
    return group.promoted(old)


def takes(server, lock, owner, lease_ms=LONG_MS):
    """The token of a free lock; None if the server does not grant it."""
    try:
        return server.admin("LOCK.ACQUIRE", lock, owner, "PX", lease_ms)
    except (ServerError, Closed):
        return None


def test_a_planned_failover_grants_twice_by_default(start_group):
    # docs/reference/failover-guarantees.md: the old primary continues until the sentinels demote it
    group = start_group("local", quarantine_ms=0, has_sentinels=True)
    old = group.nodes[0]
    new = planned_failover(group)
    granted = [(takes(new, f"door:{n}", "new"), takes(old, f"door:{n}", "old")) for n in range(20)]
    twice = [tokens for tokens in granted if None not in tokens]
    assert twice, "both have granted one lock"
    assert any(tokens[1] > tokens[0] for tokens in twice), "and the old primary's token is the higher one"
    group.healed()


def test_a_planned_failover_grants_once_with_confirmations(start_group):
    group = start_group("majority", has_sentinels=True)
    old = group.nodes[0]
    eventually(lambda: takes(old, "door", "old", LEASE_MS_MAX), "the group has been there for a quarantine")
    new = planned_failover(group)
    for n in range(20):
        tokens = takes(new, f"door:{n}", "new", LEASE_MS_MAX), takes(old, f"door:{n}", "old", LEASE_MS_MAX)
        assert None in tokens
    group.healed()


# One after another


@pytest.mark.parametrize("confirm, persistence", [("all", KEPT), ("majority", ())], ids=["all-kept", "majority-empty"])
def test_a_primary_is_killed_and_comes_back_when_another_is_elected(start_group, confirm, persistence):
    # G1, G4
    group = start_group(confirm, *persistence, has_sentinels=True)
    old = group.nodes[0]
    with Load(group.nodes, stubborn=2) as load:
        load.goes_on()
        old.kill()
        group.elected(besides=old)
        goes_on_without_all(load, confirm)
        old.start()
        group.healed()
        load.goes_on()
    assert load.faults() == []


@CONFIRMED
def test_a_frozen_primary_wakes_up_next_to_its_heir(start_group, confirm):
    # G1, G4: the commands that were sent to it are carried out when it wakes up
    group = start_group(confirm, has_sentinels=True)
    old = group.nodes[0]
    with Load(group.nodes, stubborn=2) as load:
        load.goes_on()
        freeze(old)
        new = group.elected(besides=old)
        goes_on_without_all(load, confirm)
        group.door(old).cut()  # so that it stays a primary until the test says otherwise
        thaw(old)
        goes_on_without_all(load, confirm)
        assert is_primary(old) and is_primary(new)
        group.door(old).mend()
        group.healed()
        load.goes_on()
    assert load.faults() == []


@pytest.mark.parametrize("confirm, way", [("all", BACK), ("all", ONWARD), ("majority", BACK)])
def test_a_link_stalls_and_its_replica_is_promoted(start_group, confirm, way):
    # G1, G4: it lacks grants, or has some that were not delivered; clients ask both, and the replicas change over
    group = start_group(confirm)
    old, other, wrong = group.nodes
    link = group.follow_by_own_link(wrong, old)
    with Load(group.nodes, stubborn=2) as load:
        load.goes_on()
        link.stall(way)
        goes_on_without_all(load, confirm)
        promote(wrong)
        goes_on_without_all(load, confirm)
        assert is_primary(old) and is_primary(wrong)
        group.follow(other, wrong)
        goes_on_without_all(load, confirm)
        assert is_primary(old)
        group.follow(old, wrong)
        load.goes_on()
    assert load.faults() == []


@CONFIRMED
def test_a_network_goes_silent_and_the_primary_does_not_notice(start_group, confirm):
    # G1, G4: its connections stay, and nothing comes or goes
    group = start_group(confirm)
    old, other, new = group.nodes
    with Load(group.nodes, stubborn=2) as load:
        load.goes_on()
        group.door(old).stall(ONWARD, BACK)
        promote(new)
        group.follow(other, new)
        goes_on_without_all(load, confirm)
        assert old.info("replication")["connected_slaves"] == "2", "it thinks that they are there"
        group.door(old).mend()
        group.follow(old, new)
        load.goes_on()
    assert load.faults() == []


@CONFIRMED
def test_one_failure_after_another(start_group, confirm):
    # G1, G4
    group = start_group(confirm, has_sentinels=True)
    with Load(group.nodes, stubborn=2) as load:
        load.goes_on()
        first = group.healed()
        group.door(first).cut()
        second = group.elected(besides=first)
        goes_on_without_all(load, confirm)
        group.door(first).mend()
        assert group.healed() is not first
        load.goes_on()
        freeze(second)
        third = group.elected(besides=second)
        thaw(second)
        group.healed()
        load.goes_on()
        third.kill()
        third.start()
        group.healed()
        load.goes_on()
    assert load.faults() == []


# Alice has it, and Bob wants it

STORY_MS = 2500


@pytest.mark.parametrize("confirm, is_saved", [("all", False), ("majority", False), ("majority", True)])
def test_a_primary_starts_at_once_without_what_it_has_granted(start_group, confirm, is_saved):
    # G1, T3, T4: its replicas follow it and forget, too. In the file, Carol has the lock, and she does not give in
    group = start_group(confirm, quarantine_ms=STORY_MS)
    server = group.nodes[0]
    client = Asker(Load(group.nodes), 0)
    carols = [("acquire", server, "door", "carol", STORY_MS)]
    client.insists(*carols)
    if is_saved:
        server.admin("SAVE")
        carols.append(("renew", server, "door", "carol", STORY_MS))
    client.ask("release", server, "door", "carol")
    client.insists(("acquire", server, "door", "alice", STORY_MS))
    server.kill()
    server.start()
    client.insists(("acquire", server, "door", "bob", STORY_MS), *carols)
    assert faults(client.history, MANY) == []


def test_a_replica_that_has_just_come_over_vouches_for_nothing(start_group):
    # G1, T4: it has vouched for the old primary a moment ago
    group = start_group("majority", quarantine_ms=STORY_MS)
    old, other, wrong = group.nodes
    client = Asker(Load(group.nodes), 0)
    group.follow_by_own_link(wrong, old).stall(BACK)
    promote(wrong)
    eventually(lambda: wrong.info("redislock")["redislock_quarantine_left_ms"] == "0", "it may grant again")
    client.insists(("acquire", old, "door", "alice", STORY_MS))
    group.follow(other, wrong)
    client.insists(("acquire", wrong, "door", "bob", STORY_MS))
    assert faults(client.history, MANY) == []


@CONFIRMED
def test_an_undelivered_hold_is_not_granted_under_its_old_token(start_group, confirm):
    # G4: the promoted server knows a hold that the old one has undone. Its owner asks on and on, and another is granted
    # the lock on the old one meanwhile
    group = start_group(confirm, quarantine_ms=STORY_MS)
    old, other, wrong = group.nodes
    client = Asker(Load(group.nodes), 0)
    links = [group.follow_by_own_link(replica, old) for replica in (other, wrong)]
    client.insists(("acquire", old, "door", "carol", STORY_MS))
    client.ask("release", old, "door", "carol")
    for link in links:
        link.stall(ONWARD)
    early = old.ask("LOCK.ACQUIRE", "door", "alice", "PX", STORY_MS)
    eventually(lambda: wrong.admin("EXISTS door"), "the replica has heard of it")
    links[1].stall(BACK)
    promote(wrong)
    with refused("NOREPLICAS"):
        early.answer()
    links[0].mend()
    if confirm == "majority":
        client.insists(("acquire", old, "door", "bob", STORY_MS))  # a busy replica may take longer than the time for it
    else:
        assert client.ask("acquire", old, "door", "bob", STORY_MS) is None
    group.follow(other, wrong)

    def asks_until_the_quarantine_ends():
        asked = client.ask("acquire", wrong, "door", "alice", STORY_MS)
        return asked or wrong.info("redislock")["redislock_quarantine_left_ms"] == "0"

    eventually(asks_until_the_quarantine_ends, "it may grant again", pause=0.02)
    if confirm == "all":
        group.follow(old, wrong)
    client.insists(("acquire", wrong, "gate", "carol", STORY_MS))
    client.insists(("acquire", wrong, "door", "alice", STORY_MS))
    assert faults(client.history, MANY) == []
    told = [request.reply for request in client.history if request.is_granted]
    told = list(dict.fromkeys(told))
    assert told == sorted(told)


# One server's word


def test_alone_a_promoted_replica_without_the_last_grants_makes_no_second_holder(start_group):
    # T1
    group = start_group("local")
    old, other, wrong = group.nodes
    with Load(group.nodes) as load:
        load.goes_on()
        group.door(old).stall(BACK)
        load.goes_on()
        old.kill()
        promote(wrong)
        load.goes_on()
        group.follow(other, wrong)
        load.goes_on()
    assert load.faults() == []


def test_alone_a_primary_is_killed_and_starts_at_once_with_nothing(start_group):
    # T1
    group = start_group("local")
    with Load(group.nodes) as load:
        for _ in range(2):
            load.goes_on()
            group.nodes[0].kill()
            group.nodes[0].start()
        load.goes_on()
    assert load.faults() == []


def test_alone_two_primaries_make_two_holders(start_group):
    # CONTRACT 6: the limits of a quarantine, and proof that these tests would see them
    group = start_group("local")
    old, _, new = group.nodes
    with Load(group.nodes) as load:
        load.goes_on()
        group.door(old).cut()
        promote(new)
        eventually(lambda: two_holders(load.history), "there are two holders", pause=0.05)
    assert is_primary(old) and is_primary(new)


def test_alone_an_owner_that_comes_back_for_what_it_gave_up_is_believed(start_group):
    # CONTRACT 6: the new primary's holds may be requested again in its quarantine: owners must not be used twice
    group = start_group("local", quarantine_ms=STORY_MS)
    old, _, new = group.nodes
    client = Asker(Load(group.nodes), 0)
    client.insists(("acquire", old, "door", "carol", STORY_MS))
    eventually(lambda: new.admin("EXISTS door"), "the replica has it")
    group.door(old).stall(BACK)
    client.ask("release", old, "door", "carol")
    client.ask("acquire", old, "door", "alice", STORY_MS)
    old.kill()
    promote(new)
    assert client.ask("acquire", new, "door", "bob", STORY_MS) is None
    assert client.ask("acquire", new, "door", "carol", STORY_MS) is not None
    assert len(two_holders(client.history)) == 1


def test_alone_and_without_quarantine_a_lost_grant_is_granted_again(start_group):
    # CONTRACT 6: the flaw that all locks have that are replicated later
    group = start_group("local", quarantine_ms=0)
    old, _, new = group.nodes
    client = Asker(Load(group.nodes), 0)
    group.door(old).stall(BACK)
    assert client.ask("acquire", old, "door", "alice", LONG_MS) is not None
    old.kill()
    promote(new)
    assert client.ask("acquire", new, "door", "bob", LONG_MS) is not None
    assert len(two_holders(client.history)) == 1


def test_alone_and_without_quarantine_a_restart_forgets(start_group):
    # CONTRACT 6: the classic flaw of a restart, to prove that these tests would see it
    group = start_group("local", quarantine_ms=0)
    client = Asker(Load(group.nodes), 0)
    server = group.nodes[0]
    assert client.ask("acquire", server, "door", "alice", LONG_MS) is not None
    server.kill()
    server.start()
    eventually(lambda: client.ask("acquire", server, "door", "bob", LONG_MS), "bob is granted the lock")
    assert len(two_holders(client.history)) == 1


class Asker(Roamer):
    """A client that asks when the test says so."""

    def insists(self, *requests):
        """Makes these requests again and again, until one of them is granted."""
        eventually(lambda: any(self.ask(*words) for words in requests), "one of them has it", pause=0.02)
