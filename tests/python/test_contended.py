"""The locks with the most requests while they are taken: `redislock.top-contended` and INFO."""

import pytest

from harness.limits import eventually
from harness.wire import refused


def told(server):
    """The entries in INFO: (database, name) and its count, in their order."""
    text = server.info("redislock")["redislock_top_contended"]
    entries = [dict(part.split("=", 1) for part in entry.split(",")) for entry in text.split(";") if entry]
    return [((int(entry["db"]), entry["name"]), int(entry["count"])) for entry in entries]


@pytest.fixture
def contended(server, cli):
    """A connection to a server that lists three names."""
    cli("CONFIG SET redislock.top-contended 3")
    return cli


def test_no_contended_lock_is_named_unless_that_is_asked_for(server, cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    assert cli("LOCK.ACQUIRE door bob PX 60000") is None
    assert told(server) == []
    cli("CONFIG SET redislock.top-contended 3")
    assert told(server) == []


def test_each_request_that_is_not_granted_at_once_counts(server, contended):
    contended("LOCK.ACQUIRE door alice PX 60000")
    contended("LOCK.ACQUIRE door alice PX 60000")
    assert told(server) == [], "a retry is granted"
    contended("LOCK.ACQUIRE door bob PX 60000")
    contended("LOCK.ACQUIRE door carol PX 60000 QUEUE 60000")
    server.ask(
        "LOCK.ACQUIRE", "door", "dave", "PX", 60000, "BLOCK", 0
    )
    eventually(lambda: told(server) == [((0, "door"), 3)], "one was refused, one has a place, one waits")
    contended("LOCK.MACQUIRE 2 door gate eve PX 60000")
    assert told(server) == [((0, "door"), 4), ((0, "gate"), 1)], "one for several counts at each of them"
    other = server.connect(db=1)
    other("LOCK.ACQUIRE door alice PX 60000")
    other("LOCK.ACQUIRE door bob PX 60000")
    assert told(server)[1:] == [((0, "gate"), 1), ((1, "door"), 1)]


def test_fewer_names_keep_the_highest_counts_and_none_forgets(server, contended):
    for number, name in enumerate(["a", "b", "c"]):
        contended("LOCK.ACQUIRE", name, "alice", "PX", 60000)
        for _ in range(number + 1):
            contended("LOCK.ACQUIRE", name, "bob", "PX", 60000)
    assert told(server) == [((0, "c"), 3), ((0, "b"), 2), ((0, "a"), 1)]
    contended("CONFIG SET redislock.top-contended 1")
    assert told(server) == [((0, "c"), 3)]
    contended("CONFIG SET redislock.top-contended 0")
    contended("CONFIG SET redislock.top-contended 3")
    assert told(server) == []


def test_no_name_breaks_the_line(server, contended):
    # G14
    name = b"a b;c=\r\nredislock_locks:7,\xff"
    contended("LOCK.ACQUIRE", name, "alice", "PX", 60000)
    contended("LOCK.ACQUIRE", name, "bob", "PX", 60000)
    assert told(server) == [((0, "a%20b%3Bc%3D%0D%0Aredislock_locks:7%2C%FF"), 1)]
    assert server.info("redislock")["redislock_locks"] == "1"


@pytest.mark.parametrize("value", ["-1", "101", "many"])
def test_another_number_is_refused(contended, value):
    # G14
    with refused("ERR"):
        contended("CONFIG", "SET", "redislock.top-contended", value)
    assert contended("CONFIG GET redislock.top-contended")[1] == "3"
