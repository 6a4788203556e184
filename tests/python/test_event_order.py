"""Events tell the story of a lock in order, whatever ended a hold (G15).

A hold that is broken from outside is published a moment later than the command that broke it. Whatever is published of
locks meanwhile comes behind it.
"""

import pytest

from harness.kinds import count, take
from harness.limits import eventually

#: Each of these breaks the lock `door`, and leaves it free.
WAYS = {
    "DEL": ["DEL door"],
    "UNLINK": ["UNLINK door"],
    "RENAME": ["RENAME door gate"],
    "MOVE": ["MOVE door 5"],
    "PEXPIRE": ["PEXPIRE door -1"],
    "SET": ["SET door x", "DEL door"],
    "SUNIONSTORE": ["SADD set x", "SUNIONSTORE door set", "UNLINK door"],
    "RESTORE": [("RESTORE", "door", 0, "PAYLOAD", "REPLACE"), "DEL door"],
    "FLUSHDB": ["FLUSHDB"],
    "FLUSHALL": ["FLUSHALL"],
    "SWAPDB": ["SWAPDB 0 6"],
}
every_way = pytest.mark.parametrize("way", WAYS)

KINDS = {"plain": "", "shared": "SHARED", "limit": "LIMIT 3", "reentrant": "REENTRANT", "kept": "KEEPALIVE"}


@pytest.fixture
def heard(server):
    """Everything that is published from here on: a call gives it, once a mark has come through."""
    cli, subscriber = server.connect(), server.connect()
    cli("CONFIG SET notify-keyspace-events KEd")
    subscriber("PSUBSCRIBE __keyevent@*__:lock.*")
    marks = []

    def events(only="door"):
        """(event, key) of what was published, in order."""
        marks.append(f"mark:{len(marks)}:{id(marks)}")
        # What is published now is published behind everything else.
        cli("LOCK.ACQUIRE", marks[-1], "x", "PX", 60_000)
        seen = []
        while not seen or seen[-1][1] != marks[-1]:
            _, _, channel, key = subscriber.read()
            seen.append((channel.partition(":lock.")[2], key))
        return [event for event, key in seen if key == only]

    # What the test before has broken may come late.
    events()
    return events


def commands_of(way, cli):
    """The commands of this way."""
    cli("SET", "a-string", "x")
    payload = cli.bytes_of("DUMP a-string").split(b"\r\n", 1)[1][:-2]
    cli("DEL a-string")
    commands = [
        tuple(payload if word == "PAYLOAD" else word for word in command)
        if isinstance(command, tuple) else command for command in WAYS[way]
    ]
    return commands


@every_way
@pytest.mark.parametrize("kind", KINDS)
def test_who_takes_a_broken_lock_at_once_is_heard_of_behind_its_end(cli, heard, way, kind):
    take(cli, "door", "alice", KINDS[kind])
    if kind in ("shared", "limit"):
        take(cli, "door", "cem", KINDS[kind])
    before = heard()
    assert set(before) == {"acquired"}
    broken = count(cli, "broken")
    *_, token = cli.pipeline(*commands_of(way, cli), "LOCK.ACQUIRE door bob PX 60000")
    assert token > 0
    assert heard() == ["broken", "acquired"], "one for the lock, and before the next hold"
    # The lock that marked what was heard of before goes with a flush.
    others = 1 if way.startswith(("FLUSH", "SWAP")) else 0
    eventually(lambda: count(cli, "broken") >= broken + len(before), "each hold is counted")
    assert count(cli, "broken") - broken - len(before) in (0, others, others + 1)


@every_way
def test_who_waits_for_a_broken_lock_is_heard_of_behind_its_end(server, cli, heard, way):
    take(cli, "door", "alice")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    assert heard() == ["acquired"]
    cli.pipeline(*commands_of(way, cli), "LOCK.RELEASE door nobody", "PING")
    assert bob.answer() > 0
    assert heard() == ["broken", "acquired"]
    assert cli("LOCK.RELEASE door bob") == 1
    assert heard() == ["released"]


@every_way
@pytest.mark.parametrize("around", ["MULTI", "EVAL"])
def test_in_one_step_of_the_server_too(cli, heard, way, around):
    take(cli, "door", "alice")
    assert heard() == ["acquired"]
    commands = ["LOCK.ACQUIRE door alice PX 90000", *commands_of(way, cli)]
    commands += ["LOCK.ACQUIRE door bob PX 60000", "LOCK.RELEASE door bob", "LOCK.ACQUIRE door cem PX 60000"]
    if around == "MULTI":
        cli.pipeline("MULTI", *commands, "EXEC")
    else:
        for command in commands:
            words = command.split() if isinstance(command, str) else command
            if words[0] == "RESTORE":
                cli(*words)
            else:
                cli("EVAL", "return redis.call(unpack(ARGV))", 0, *words)
    assert heard() == ["broken", "acquired", "released", "acquired"]


def test_a_lock_that_is_broken_over_and_over(cli, heard):
    rounds = 200
    commands = []
    for number in range(rounds):
        commands += [f"LOCK.ACQUIRE door owner-{number} PX 60000", ["DEL door", "UNLINK door"][number % 2]]
    cli.pipeline(*commands)
    assert heard() == ["acquired", "broken"] * rounds


def test_a_lease_that_nobody_has_ended_when_its_key_goes(cli, heard):
    take(cli, "door", "alice", lease_ms=20)
    assert heard() == ["acquired"]
    cli.pipeline("DEBUG SLEEP 0.05", "DEL door", "LOCK.ACQUIRE door bob PX 60000")
    assert heard() == ["expired", "acquired"]


def test_what_happens_to_other_locks_comes_behind_too(cli, heard):
    take(cli, "door", "alice")
    assert heard() == ["acquired"]
    cli.pipeline("DEL door", "LOCK.ACQUIRE other bob PX 60000", "LOCK.RELEASE other bob")
    assert heard("other") == ["acquired", "released"]
