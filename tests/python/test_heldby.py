"""LOCK.HELDBY owner: all that an owner holds and waits for on this server (CONTRACT 2)."""

import pytest

from harness.kinds import ask, ask_all, give_up_places, held_by, release, take, take_all
from harness.limits import eventually
from harness.wire import refused


@pytest.fixture(autouse=True)
def no_place_stays(server):
    """Places outlive connections: without this they would outlive the test."""
    yield
    give_up_places(server)


@pytest.mark.parametrize("protocol", [2, 3])
def test_rows_of_locks_held_and_waited_for(server, protocol):
    cli = server.connect(protocol)
    door = take(cli, "door", "alice", lease_ms=50_000)
    take(cli, "gate", "bob")
    ask(server, "gate", "alice")
    rows = sorted(cli("LOCK.HELDBY alice"))
    assert len(rows) == 2
    assert rows[0][:4] == ["door", "held", "exclusive", door]
    assert 40_000 < rows[0][4] <= 50_000
    assert rows[1] == ["gate", "waiting", "exclusive", None, None]


def test_an_owner_without_locks_has_no_rows(cli):
    assert cli("LOCK.HELDBY nobody") == []
    take(cli, "door", "alice")
    assert cli("LOCK.HELDBY bob") == []
    release(cli, "door", "alice")
    assert cli("LOCK.HELDBY alice") == []


def test_all_kinds_are_told(server, cli):
    tokens = {
        "excl": take(cli, "excl", "alice"),
        "read": take(cli, "read", "alice", "SHARED"),
        "pool": take(cli, "pool", "alice", "LIMIT 3"),
        "many": take(cli, "many", "alice", "REENTRANT"),
    }
    take(cli, "pool", "bob", "LIMIT 3")
    take(cli, "read", "bob", "SHARED")
    all_token = take_all(cli, "x y", "alice")
    assert held_by(cli, "alice") == sorted([
        ("excl", "held", "exclusive", tokens["excl"]),
        ("many", "held", "exclusive", tokens["many"]),
        ("pool", "held", "limit", tokens["pool"]),
        ("read", "held", "shared", tokens["read"]),
        ("x", "held", "exclusive", all_token),
        ("y", "held", "exclusive", all_token),
    ])
    assert [row[0] for row in held_by(cli, "bob")] == ["pool", "read"]


def test_all_waits_are_told(server, cli):
    for key in ("a", "b", "c", "d"):
        take(cli, key, "h")
    take(cli, "pool", "h", "LIMIT 1")
    ask(server, "a", "alice")
    ask(server, "b", "alice", "SHARED")
    ask(server, "pool", "alice", "LIMIT 1")
    assert take(cli, "c", "alice", "QUEUE 3600000") is None
    ask_all(server, "d e", "alice")
    assert held_by(cli, "alice") == [
        ("a", "waiting", "exclusive", None),
        ("b", "waiting", "shared", None),
        ("c", "waiting", "exclusive", None),
        ("d", "waiting", "exclusive", None),
        ("e", "waiting", "exclusive", None),
        ("pool", "waiting", "limit", None),
    ]


def test_heldby_follows_what_happens(server, cli):
    take(cli, "door", "alice")
    bob = ask(server, "door", "bob")
    assert held_by(cli, "bob") == [("door", "waiting", "exclusive", None)]
    release(cli, "door", "alice")
    token = bob.answer()
    assert held_by(cli, "bob") == [("door", "held", "exclusive", token)]
    cli("LOCK.RENEW door bob PX 30")
    eventually(lambda: cli("LOCK.HELDBY bob") == [], "the lease ends")
    take(cli, "door", "bob")
    cli("DEL door")
    assert cli("LOCK.HELDBY bob") == []
    take(cli, "door", "bob")
    cli("RENAME door gate")
    assert cli("LOCK.HELDBY bob") == []


def test_waits_that_ended_are_not_listed(server, cli):
    take(cli, "door", "h")
    waiter = ask(server, "door", "alice")
    waiter.leave()
    eventually(lambda: cli("LOCK.HELDBY alice") == [], "the wait ended")
    assert ask(server, "door", "alice", block_ms=30).answer() is None
    assert cli("LOCK.HELDBY alice") == []


def test_many_owners_and_locks(server, cli):
    # an owner is found among thousands of locks
    cli.pipeline(*[f"LOCK.ACQUIRE lock:{n} owner:{n % 50} PX 3600000" for n in range(5000)])
    rows = held_by(cli, "owner:7")
    assert [row[0] for row in rows] == sorted(f"lock:{n}" for n in range(7, 5000, 50))
    cli.pipeline(*[f"LOCK.RELEASE lock:{n} owner:7" for n in range(7, 2500, 50)])
    assert len(held_by(cli, "owner:7")) == 50


def test_owners_of_any_bytes(cli):
    owner = bytes(range(256))
    cli("LOCK.ACQUIRE", b"\x00\r\n", owner, "PX", 60000)
    (row,) = cli("LOCK.HELDBY", owner)
    assert row[0] == "\x00\r\n"
    assert cli("LOCK.HELDBY", owner[:-1]) == []


def test_the_owner_star_holds_nothing(cli):
    owner, token = take(cli, "door", "*")
    assert held_by(cli, owner) == [("door", "held", "exclusive", token)]
    assert cli("LOCK.HELDBY *") == []


def test_other_databases(server, cli):
    # Whatever database is selected: the worker is asked for, and not a database
    other = server.connect(db=1)
    take(other, "door", "alice")
    take(cli, "gate", "alice")
    assert [row[0] for row in cli("LOCK.HELDBY", "alice")] == ["gate", "door"]
    here, there = cli("LOCK.HELDBY", "alice"), other("LOCK.HELDBY", "alice")
    # Without the remaining leases.
    assert [row[:4] for row in here] == [row[:4] for row in there]


@pytest.mark.parametrize("owner", ["", "x" * 257])
def test_an_invalid_owner_is_refused(cli, owner):
    # G14
    with refused("ERR", "owner", "1 to 256"):
        cli("LOCK.HELDBY", owner)


@pytest.mark.parametrize("line", ["LOCK.HELDBY", "LOCK.HELDBY alice bob"])
def test_arity(cli, line):
    with refused("ERR", "wrong number of arguments"):
        cli(line)


def test_heldby_works_on_a_replica_in_scripts_and_reads_only(start_server):
    server = start_server("--repl-diskless-sync-delay", "0")
    cli = server.connect()
    token = take(cli, "door", "alice", "SHARED")
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}")
    reader = replica.connect()
    eventually(lambda: reader("LOCK.HELDBY alice") != [], "the replica has it")
    assert held_by(reader, "alice") == [("door", "held", "shared", token)]
    script = "return redis.call('LOCK.HELDBY', 'alice')[1][1]"
    assert cli("EVAL_RO", script, 0) == "door"
    assert "readonly" in cli("COMMAND INFO LOCK.HELDBY")[0][2]
