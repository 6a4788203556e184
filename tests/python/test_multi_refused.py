"""LOCK.MACQUIRE refused: bad input, other kinds, keys of several slots, missing rights.

G12 and G14: then none of the locks is taken.
"""

import pytest

from harness.kinds import ask, ask_all, line_of, release, take, take_all
from harness.limits import eventually
from harness.wire import refused


def assert_free(cli, keys):
    """Checks that these locks have no holders and no waiters."""
    for key in keys.split():
        assert cli("LOCK.INFO", key) is None, key
        assert cli("EXISTS", key) == 0, key


def test_a_key_of_another_type_among_them(cli):
    cli("SET b x")
    with refused("WRONGTYPE"):
        take_all(cli, "a b c", "alice", "BLOCK 0")
    assert_free(cli, "a c")
    assert cli("GET b") == "x"


@pytest.mark.parametrize("line, fragments", [
    ("LOCK.MACQUIRE", ["wrong number of arguments"]),
    ("LOCK.MACQUIRE 0 a alice PX 60000", ["numkeys", "1 to 64"]),
    ("LOCK.MACQUIRE -1 a alice PX 60000", ["numkeys"]),
    ("LOCK.MACQUIRE 01 a alice PX 60000", ["numkeys"]),
    ("LOCK.MACQUIRE x a alice PX 60000", ["numkeys"]),
    ("LOCK.MACQUIRE 65 a alice PX 60000", ["numkeys", "1 to 64"]),
    ("LOCK.MACQUIRE 18446744073709551617 a alice PX 60000", ["numkeys"]),
    ("LOCK.MACQUIRE 2 a a alice PX 60000", ["twice", "a"]),
    ("LOCK.MACQUIRE 3 a b a alice PX 60000", ["a"]),
    ("LOCK.MACQUIRE 9 a b c PX 60000", ["numkeys"]),
    ("LOCK.MACQUIRE 2 a b", []),
    ("LOCK.MACQUIRE 1 a", []),
    ("LOCK.MACQUIRE 1 a alice BLOCK 10", ["lease"]),
    ("LOCK.MACQUIRE 1 a alice PX 0", ["PX"]),
    ("LOCK.MACQUIRE 1 a alice PX 60000 EX 60", ["PX", "EX"]),
    ("LOCK.MACQUIRE 1 a alice PX 60000 PX 60000", ["PX"]),
    ("LOCK.MACQUIRE 1 a alice PX 60000 SHARED SHARED", ["SHARED"]),
    ("LOCK.MACQUIRE 1 a alice PX 60000 BLOCK", ["BLOCK"]),
    ("LOCK.MACQUIRE 1 a alice PX 60000 BLOCK -1", ["BLOCK"]),
    ("LOCK.MACQUIRE 1 a alice PX 60000 LIMIT 2", ["LIMIT"]),
    ("LOCK.MACQUIRE 1 a alice PX 60000 QUEUE 100", ["QUEUE"]),
    ("LOCK.MACQUIRE 1 a alice PX 60000 REENTRANT", ["REENTRANT"]),
    ("LOCK.MACQUIRE 1 a alice PX 60000 EPHEMERAL 0", ["EPHEMERAL"]),
    ("LOCK.MACQUIRE 1 a alice PX 60000 KEEPALIVE", ["KEEPALIVE"]),
])  # fmt: skip
def test_bad_input_takes_nothing(cli, line, fragments):
    # G14
    fragments = [fragment for fragment in fragments if fragment != "twice"]
    with refused("ERR", *fragments):
        cli(line)
    assert cli("DBSIZE") == 0


def test_an_invalid_owner_is_refused(cli):
    # G14
    for owner in ("", "x" * 257):
        with refused("ERR", "owner"):
            cli("LOCK.MACQUIRE", 2, "a", "b", owner, "PX", 60000)
    assert cli("DBSIZE") == 0


def test_a_full_line_among_them(server, cli):
    # CONTRACT 4
    cli("CONFIG SET redislock.max-waiters-per-lock 1")
    take(cli, "b", "h")
    ask(server, "b", "w")
    with refused("LOCKQUEUE"):
        take_all(cli, "a b", "alice", "BLOCK 0")
    assert_free(cli, "a")
    assert line_of(cli, "b") == ["w"]


def test_the_servers_tools_find_its_keys(cli):
    line = "LOCK.MACQUIRE 2 a b alice PX 60000 BLOCK 0 SHARED".split()
    assert cli("COMMAND", "GETKEYS", *line) == ["a", "b"]
    line = "LOCK.MACQUIRE 1 a alice EX 60".split()
    assert cli("COMMAND", "GETKEYS", *line) == ["a"]


def test_the_keys_of_one_request_are_in_one_slot(start_server):
    server = start_server("--cluster-enabled", "yes")
    cli = server.connect()
    cli("CLUSTER ADDSLOTSRANGE 0 16383")
    eventually(lambda: "cluster_state:ok" in cli("CLUSTER INFO"), "the cluster is up")
    with refused("CROSSSLOT"):
        take_all(cli, "a b", "alice")
    assert cli("DBSIZE") == 0
    token = take_all(cli, "{x}a {x}b", "alice")
    assert cli("LOCK.FENCE", "{x}b") == token
    waiter = ask_all(server, "{x}a {x}b {x}c", "bob")
    release(cli, "{x}a", "alice")
    release(cli, "{x}b", "alice")
    assert waiter.answer() > token
    assert_free(cli, "{x}d")


def test_a_user_needs_the_right_to_every_key(server, cli):
    cli("ACL SETUSER alice on >secret +@all ~a ~b")
    connection = server.connect()
    connection("AUTH alice secret")
    with refused("NOPERM"):
        take_all(connection, "a c", "alice")
    assert cli("DBSIZE") == 0
    assert isinstance(take_all(connection, "a b", "alice"), int)


def test_a_waiter_that_lost_the_right_to_one_key_is_not_granted(server, cli):
    # CONTRACT 4
    cli("ACL SETUSER alice on >secret +@all ~a ~b")
    take_all(cli, "a b", "h")
    alice = ask_all(server, "a b", "alice", user="alice")
    behind = ask(server, "b", "bob")
    cli("ACL SETUSER alice resetkeys ~a")
    release(cli, "a", "h")
    release(cli, "b", "h")
    with refused("NOPERM"):
        alice.answer()
    assert isinstance(behind.answer(), int)
    assert_free(cli, "a")
