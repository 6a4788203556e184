"""Locks of all kinds in files: RDB and append-only, written, rewritten, and loaded after a kill.

G13 (all readers agree at any moment), G2 and G3 (leases there), G4. The steps are in harness/walk.py; replicas
and changes of role are in test_replicas.py, kills under load in test_kill.py.
"""

import pytest

from harness.kinds import count, owners_of, take, take_all
from harness.limits import eventually
from harness.payload import dump
from harness.replies import module_info
from harness.walk import PARTS, assert_it_goes_on, assert_same_leases, leases_of, locks_of, walk

ALWAYS = ["--appendonly", "yes", "--appendfsync", "always"]
PLAIN = ["--aof-use-rdb-preamble", "no"]


def rewrite(server):
    """A new append-only file; returns when it is in use."""
    server.admin("BGREWRITEAOF")
    for field in ("aof_rewrite_in_progress", "aof_rewrite_scheduled"):
        eventually(lambda: server.info("persistence")[field] == "0", "the file is rewritten")
    assert server.info("persistence")["aof_last_bgrewrite_status"] == "ok"


def assert_a_load_agrees_after_every_step(server, part, load):
    cli = server.connect()
    for step in walk(server, part):
        before, digest, leases = locks_of(cli, with_ties=False), cli("DEBUG DIGEST"), leases_of(cli)
        cli(load)
        assert cli("DEBUG DIGEST") == digest, step
        assert locks_of(cli, with_ties=False) == before, step
        assert_same_leases(leases, leases_of(cli))


# Not the ties: a lock that was loaded is tied to no connection.
@pytest.mark.parametrize("part", [part for part in PARTS if part != "ties"])
def test_a_reload_agrees_after_every_step(start_server, part):
    # G13: RDB
    assert_a_load_agrees_after_every_step(start_server(), part, "DEBUG RELOAD")


@pytest.mark.parametrize("part", [part for part in PARTS if part != "ties"])
def test_the_append_only_file_agrees_after_every_step(start_server, part):
    # G13: replayed from the first command on
    assert_a_load_agrees_after_every_step(start_server(*ALWAYS, *PLAIN), part, "DEBUG LOADAOF")


@pytest.mark.parametrize("way", ["RDB", "AOF", "AOF plain", "AOF rewritten", "AOF plain rewritten", "AOF rewritten on the way"])
def test_everything_survives_a_kill(start_server, way):
    # G13, G2, G4
    options = ["--save", "3600 1"] if way == "RDB" else ALWAYS + (PLAIN if "plain" in way else [])
    server = start_server(*options)
    cli = server.connect()
    for number, _ in enumerate(walk(server)):
        if way == "AOF rewritten on the way" and number % 6 == 3:
            rewrite(server)
    if way == "RDB":
        cli("SAVE")
    if way.endswith("rewritten"):
        rewrite(server)
    before, digest, leases = locks_of(cli, with_ties=False), cli("DEBUG DIGEST"), leases_of(cli)
    last = int(module_info(cli)["last_token"])
    server.kill()
    cli = server.start().connect()
    assert cli("DEBUG DIGEST") == digest
    assert locks_of(cli, with_ties=False) == before
    assert_same_leases(leases, leases_of(cli))
    assert int(module_info(cli)["last_token"]) >= last
    assert_it_goes_on(cli, before)


@pytest.mark.parametrize("options", [["--save", "3600 1"], ALWAYS, ALWAYS + PLAIN], ids=["RDB", "AOF", "AOF plain"])
def test_leases_of_all_kinds_end_after_a_restart(start_server, options):
    # G3
    server = start_server(*options)
    cli = server.connect()
    take(cli, "read", "long", "SHARED")
    take(cli, "read", "short", "SHARED", lease_ms=1000)
    for n in range(12):
        take(cli, "pool", f"p{n}", "LIMIT 20", lease_ms=1000 if n % 2 else 3_600_000)
    take_all(cli, "a b", "short", lease_ms=1000)
    take(cli, "count", "short", "REENTRANT", lease_ms=1000)
    take(cli, "count", "short", "REENTRANT", lease_ms=1000)
    if "--save" in options:
        cli("SAVE")
    server.kill()
    cli = server.start().connect()
    eventually(lambda: owners_of(cli, "read") == ["long"])
    eventually(lambda: owners_of(cli, "pool") == [f"p{n}" for n in range(0, 12, 2)])
    eventually(lambda: cli("EXISTS a b count") == 0)


def test_a_file_with_broken_locks_is_not_needed_to_end_them(start_server):
    # G13: a hold that ended before the restart does not come back
    server = start_server(*ALWAYS, *PLAIN)
    cli = server.connect()
    for _ in walk(server):
        pass
    cli("FLUSHALL")
    server.kill()
    cli = server.start().connect()
    assert cli("DBSIZE") == 0
    assert (count(cli, "locks"), count(cli, "holds")) == (0, 0)


def test_a_file_that_a_client_sends_is_no_import(start_server):
    # OPERATIONS, "Copy locks to another server": redis-cli --pipe sends the bytes of the file, and nothing else
    server = start_server(*ALWAYS, *PLAIN)
    cli = server.connect()
    take(cli, "door", "alice", "SHARED")
    rewrite(server)
    rewritten = take(cli, "door", "bob", "SHARED")
    asked = take(cli, "gate", "alice")
    files = sorted((server.directory / "appendonlydir").glob("*.aof"))
    other = start_server()
    there = other.connect()
    for path in files:
        there.send_bytes(path.read_bytes())
    there.send("ECHO the-end")
    replies = []
    while (reply := there.read_any()) != "the-end":
        replies.append(reply)
    refusals = [str(reply) for reply in replies if "clients cannot use it" in str(reply)]
    assert refusals, replies
    assert owners_of(there, "door") != owners_of(cli, "door") == ["alice", "bob"]
    assert there("LOCK.FENCE", "gate") not in (0, asked) and asked > rewritten, "a new grant"
    # The alternative that OPERATIONS names.
    for name, owners in (("door", ["alice", "bob"]), ("gate", ["alice"])):
        token = cli("LOCK.FENCE", name)
        there("DEL", name)
        there("RESTORE", name, 0, dump(cli, name))
        assert owners_of(there, name) == owners and there("LOCK.FENCE", name) == token
    stopped = locks_of(cli)
    server.stop()
    assert locks_of(server.start().connect()) == stopped
