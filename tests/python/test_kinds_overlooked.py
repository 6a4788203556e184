"""Locks of all kinds where it is easily overlooked what should become of them.

KEEPALIVE without a connection; what its owner holds when it asks for more. G2, G3, G10,
G11.
"""

import os

import pytest

from harness.kinds import ask, close_and_settle, hold_of, release, take, take_all
from harness.limits import eventually
from harness.wire import refused

KINDS = ["", "SHARED", "LIMIT 2"]


def kept_alive(server, kind=""):
    """The payload of a lock that was kept alive by a connection that is gone, lease and all."""
    cli, holder = server.connect(), server.connect()
    take(holder, "door", "alice", kind, "KEEPALIVE", lease_ms=100)
    payload = os.fsencode(cli("DUMP door"))
    close_and_settle(server, holder)
    eventually(lambda: cli("EXISTS door") == 0, "the lease ends")
    return payload


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_hold_whose_connection_is_elsewhere_has_a_lease_that_ends(server, cli, kind):
    cli("RESTORE", "door", 0, kept_alive(server, kind))
    eventually(lambda: cli("LOCK.INFO door") is None, "its lease of 100 ms ends", limit=2)


def test_a_migrated_hold_has_a_lease_that_ends(server, cli, start_server):
    target = start_server()
    holder = server.connect()
    take(holder, "door", "alice", "KEEPALIVE", lease_ms=100)
    assert cli("MIGRATE", "127.0.0.1", target.port, "door", 0, 5000) == "OK"
    close_and_settle(server, holder)
    there = target.connect()
    eventually(lambda: there("LOCK.INFO door") is None, "its lease of 100 ms ends", limit=2)


def test_a_hold_whose_connection_closed_while_the_server_was_a_replica_ends(server, cli):
    holder = server.connect()
    take(holder, "door", "alice", "KEEPALIVE", lease_ms=100)
    cli("REPLICAOF 127.0.0.1 1")
    close_and_settle(server, holder)
    cli("REPLICAOF NO ONE")
    eventually(lambda: cli("LOCK.INFO door") is None, "its lease of 100 ms ends", limit=2)


def test_an_upgrade_that_waited_counts_as_one_at_once_does(server, cli):
    take(cli, "door", "alice", "SHARED REENTRANT")
    take(cli, "door", "bob", "SHARED")
    upgrade = ask(server, "door", "alice", "REENTRANT")
    release(cli, "door", "bob")
    upgrade.answer()
    assert hold_of(cli, "door", "alice")["count"] == 2


@pytest.mark.parametrize("kind", KINDS[:2])
def test_several_locks_at_once_leave_the_count_of_what_is_held_alone(cli, kind):
    for _ in range(2):
        take(cli, "a", "alice", kind, "REENTRANT")
    assert isinstance(take_all(cli, "a b", "alice", kind), int)
    assert hold_of(cli, "a", "alice")["count"] == 2, "as with one lock, and as by an upgrade"


def test_several_locks_at_once_do_not_shorten_a_lease(cli):
    take(cli, "a", "alice", lease_ms=60_000)
    take_all(cli, "a b", "alice", lease_ms=1000)
    assert hold_of(cli, "a", "alice")["lease-left-ms"] > 1000


def test_an_upgrade_stays_tied_to_its_connection(cli):
    take(cli, "door", "alice", "SHARED KEEPALIVE EPHEMERAL 0")
    take(cli, "door", "alice")
    hold = hold_of(cli, "door", "alice")
    assert (bool(hold["keepalive"]), hold["ephemeral-ms"]) == (True, 0)


def test_heldby_tells_of_all_databases(server, cli):
    take(cli, "door", "alice")
    assert len(server.connect(db=1)("LOCK.HELDBY alice")) == 1


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_users_expiry_stays_when_another_holder_joins(server, cli, kind):
    take(cli, "door", "alice", kind)
    cli("EXPIRE door 100")
    take(cli, "door", "bob", kind)
    assert cli("TTL door") > 0


def test_a_downgrade_of_several_locks_keeps_their_one_token(server, cli):
    token = cli("LOCK.MACQUIRE 2 a b alice PX 60000")
    assert cli("LOCK.MACQUIRE 2 a b alice PX 60000 SHARED") == token


def test_an_upgrade_does_not_shorten_the_lease(server, cli):
    take(cli, "door", "alice", "SHARED", lease_ms=60_000)
    take(cli, "door", "alice", lease_ms=1000)
    assert hold_of(cli, "door", "alice")["lease-left-ms"] > 1000


def test_a_second_upgrader_is_told_so_although_it_would_not_wait(server, cli):
    for owner in ("alice", "bob"):
        take(cli, "door", owner, "SHARED")
    ask(server, "door", "alice")
    with refused("DEADLOCK"):
        take(cli, "door", "bob")
