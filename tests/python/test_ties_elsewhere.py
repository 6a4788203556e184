"""Holds that are tied to a connection, in files and on replicas (G2, G3, G13).

A restart or a promotion closes all connections: a lease that was kept alive starts from
its full length (CONTRACT 2).
"""

import os
import time

import pytest

from harness.kinds import ask, close_and_settle, hold_of, owners_of, take
from harness.limits import SLOW_FACTOR, eventually
from harness.replicas import AT_ONCE, is_linked
from harness.replies import holder

KINDS = ["", "SHARED", "LIMIT 3"]


def is_free(cli, key):
    """Returns whether the lock has no holder, and nothing is left of it."""
    return owners_of(cli, key) == [] and cli("EXISTS", key) == 0


@pytest.mark.parametrize("options", [["--save", "3600 1"], ["--appendonly", "yes"], ["--appendonly", "yes", "--aof-use-rdb-preamble", "no"]])
@pytest.mark.parametrize("kind", KINDS)
def test_after_a_restart_a_kept_lease_starts_from_its_full_length(start_server, kind, options):
    # G2, G3, G13
    server = start_server(*options)
    cli = server.connect()
    token = take(cli, "door", "alice", kind, "KEEPALIVE", lease_ms=2000 * SLOW_FACTOR)
    take(cli, "gate", "alice", kind, "KEEPALIVE", lease_ms=50_000)
    take(cli, "cut", "alice", kind, "EPHEMERAL 0")
    timer = ask(server, "clock", "x")
    timer.answer()
    assert ask(server, "clock", "y", block_ms=300).answer() is None, "a part of the lease's time is over"
    digest = cli("DEBUG DIGEST")
    cli("CONFIG SET appendfsync always")
    if "--save" in options:
        cli("SAVE")
        digest = cli("DEBUG DIGEST")
    server.kill()
    cli = server.start().connect()
    assert cli("LOCK.FENCE", "door", token) in (0, 1)
    assert 45_000 < hold_of(cli, "gate", "alice")["lease-left-ms"] <= 50_000
    assert owners_of(cli, "gate") == ["alice"]
    eventually(lambda: is_free(cli, "door"), "it runs")
    assert cli("DEBUG DIGEST") != digest


@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_receives_a_cut_and_a_lease_that_starts(start_server, kind):
    # G13
    server = start_server(*AT_ONCE)
    cli, task = server.connect(), server.connect()
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}")
    is_linked(replica)
    reader = replica.connect()
    kept = take(task, "kept", "alice", kind, "KEEPALIVE", lease_ms=100)
    take(task, "cut", "alice", kind, "EPHEMERAL 20000")
    take(task, "gone", "alice", kind, "EPHEMERAL 0")
    take(cli, "clock", "x", lease_ms=400)
    eventually(lambda: is_free(cli, "clock"))
    assert cli("WAIT 1 10000") == 1
    assert reader("DEBUG DIGEST") == cli("DEBUG DIGEST")
    assert reader("LOCK.FENCE", "kept", kept) == 1, "it does not run there either"
    assert bool(hold_of(reader, "kept", "alice")["keepalive"])
    close_and_settle(server, task)
    eventually(lambda: is_free(cli, "gone") and is_free(cli, "kept"))
    assert cli("WAIT 1 10000") == 1
    eventually(lambda: reader("DEBUG DIGEST") == cli("DEBUG DIGEST"), "the replica follows")
    assert hold_of(reader, "cut", "alice")["lease-left-ms"] <= 20_000
    assert is_free(reader, "gone") and is_free(reader, "kept")


def test_at_a_promotion_a_kept_lease_starts_from_its_full_length(start_server):
    # CONTRACT 2
    server = start_server(*AT_ONCE)
    cli = server.connect()
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}")
    is_linked(replica)
    reader = replica.connect()
    take(cli, "short", "alice", "KEEPALIVE", lease_ms=1000 * SLOW_FACTOR)
    token = take(cli, "long", "alice", "KEEPALIVE", lease_ms=50_000)
    ask(server, "clock", "x").answer()
    assert ask(server, "clock", "y", block_ms=400).answer() is None
    assert cli("WAIT 1 10000") == 1
    server.kill()
    promoted = time.monotonic()
    reader("REPLICAOF NO ONE")
    assert 45_000 < hold_of(reader, "long", "alice")["lease-left-ms"] <= 50_000
    eventually(lambda: is_free(reader, "short"), "it runs")
    assert time.monotonic() - promoted >= 1.0 * SLOW_FACTOR
    task = replica.connect()
    assert take(task, "long", "alice", "KEEPALIVE") == token, "and can be tied again"
    assert holder(reader, "long")["lease-left-ms"] == 3_600_000


def test_an_ephemeral_hold_is_bound_again_after_a_restart(start_server):
    server = start_server("--appendonly", "yes")
    take(server.connect(), "door", "alice", "EPHEMERAL 0")
    server.kill()
    cli = server.start().connect()
    if owners_of(cli, "door") == ["alice"]:
        task = server.connect()
        assert task("LOCK.RENEW door alice PX 3600000") == 1
        close_and_settle(server, task)
        eventually(lambda: is_free(cli, "door"), "tied to the connection that renewed it")


def test_dump_and_restore_keep_the_tie(server, cli):
    # CONTRACT 5: the fields of the hold are replicated; the connection of the old server is not
    task = server.connect()
    take(task, "door", "alice", "KEEPALIVE EPHEMERAL 500", lease_ms=50_000)
    payload = cli("DUMP door")
    cli("DEL door")
    cli("RESTORE", "door", 0, payload)
    assert owners_of(cli, "door") == ["alice"]
    close_and_settle(server, task)
    assert 0 < holder(cli, "door")["lease-left-ms"] <= 50_000
    cli("LOCK.RENEW door alice PX 1")
    eventually(lambda: owners_of(cli, "door") in ([], ["alice"]))


# KEEPALIVE without its connection


def kept_alive(server, kind=""):
    """The payload of a lock that was kept alive by a closed connection, lease and all."""
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
