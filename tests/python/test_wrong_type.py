"""A key that holds something else (CONTRACT 9: WRONGTYPE), and a lock where a command of
the server expects something else.
"""

import pytest

from harness.kinds import take
from harness.replies import owner_of
from harness.wire import refused

NATIVE = {
    "string": "SET door value",
    "list": "RPUSH door value",
    "set": "SADD door value",
    "sorted set": "ZADD door 1 value",
    "hash": "HSET door field value",
    "stream": "XADD door 1-1 field value",
    "bitmap": "SETBIT door 7 1",
    "hyperloglog": "PFADD door value",
    "geo": "GEOADD door 13 52 value",
}
COMMANDS = [
    "LOCK.ACQUIRE door alice PX 60000",
    "LOCK.ACQUIRE door alice PX 60000 BLOCK 0",
    "LOCK.ACQUIRE door * EX 60",
    "LOCK.RELEASE door alice",
    "LOCK.RELEASE door alice TOKEN 5",
    "LOCK.RENEW door alice PX 60000",
    "LOCK.RENEW door alice PX 60000 TOKEN 5",
    "LOCK.FENCE door",
    "LOCK.FENCE door 5",
    "LOCK.INFO door",
    "LOCK.INFO door FULL",
]


@pytest.mark.parametrize("make", NATIVE.values(), ids=NATIVE)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_key_that_holds_something_else_is_refused(server, cli, make, command):
    # G14
    cli(make)
    before = cli("DEBUG DIGEST")
    reply = cli.bytes_of(command)
    assert reply.startswith(b"-WRONGTYPE "), reply
    assert reply.count(b"\r\n") == 1
    assert cli("DEBUG DIGEST") == before
    assert int(server.info("clients")["blocked_clients"]) == 0, "it does not wait"


def test_bad_arguments_are_reported_before_the_wrong_type(cli):
    # CONTRACT 2: all arguments are checked before anything else
    cli("SET door value")
    with refused("ERR", "PX"):
        cli("LOCK.ACQUIRE door alice PX 0")


@pytest.mark.parametrize(
    "command",
    [
        "GET door",
        "APPEND door x",
        "INCR door",
        "GETDEL door",
        "RPUSH door x",
        "SADD door x",
        "ZADD door 1 x",
        "HSET door f v",
        "XADD door * f v",
        "GETRANGE door 0 -1",
    ],
)
def test_commands_of_other_types_are_refused_on_a_lock(cli, command):
    # G10
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    with refused("WRONGTYPE"):
        cli(command)
    assert cli("LOCK.FENCE", "door", token) == 1
    assert owner_of(cli, "door") == "alice"


@pytest.mark.parametrize("kind", ["SHARED", "LIMIT 2"])
def test_a_key_of_another_type_in_the_way(server, cli, kind):
    cli("SET door x")
    for options in (kind, f"{kind} BLOCK 0", f"{kind} QUEUE 100", "REENTRANT"):
        with refused("WRONGTYPE"):
            take(cli, "door", "alice", options)
    assert cli("GET door") == "x"
