"""Events report the life of a lock in order, whatever ended a hold (G15).

A hold that is broken from outside is published a moment later than the command that broke it. Events of locks that are
published meanwhile come after it.
"""

import re

import pytest

from harness.kinds import ask, count, held_by, take
from harness.limits import VALGRIND, eventually
from harness.payload import dump
from harness.replicas import AT_ONCE, is_linked
from harness.replies import module_info
from harness.server import ROOT
from harness.wire import refused

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
    "FLUSHDB ASYNC": ["FLUSHDB ASYNC"],
    "FLUSHALL": ["FLUSHALL"],
    "FLUSHALL ASYNC": ["FLUSHALL ASYNC"],
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
        """(event, key) of all events, in order."""
        marks.append(f"mark:{len(marks)}:{id(marks)}")
        # An event that is published now comes after all others.
        cli("LOCK.ACQUIRE", marks[-1], "x", "PX", 60_000)
        seen = []
        while not seen or seen[-1][1] != marks[-1]:
            _, _, channel, key = subscriber.read()
            seen.append((channel.partition(":lock.")[2], key))
        return [event for event, key in seen if key == only]

    # The breaks of the test before may come late.
    events()
    return events


def commands_of(way, cli):
    """The commands of this way."""
    cli("SET", "a-string", "x")
    payload = dump(cli, "a-string")
    cli("DEL a-string")
    commands = [
        tuple(payload if word == "PAYLOAD" else word for word in command)
        if isinstance(command, tuple) else command for command in WAYS[way]
    ]
    return commands


@every_way
@pytest.mark.parametrize("kind", KINDS)
def test_a_grant_of_a_broken_lock_is_published_after_its_end(cli, heard, way, kind):
    take(cli, "door", "alice", KINDS[kind])
    if kind in ("shared", "limit"):
        take(cli, "door", "cem", KINDS[kind])
    before = heard()
    assert set(before) == {"acquired"}
    broken = count(cli, "broken")
    *_, token = cli.pipeline(*commands_of(way, cli), "LOCK.ACQUIRE door bob PX 60000")
    assert token > 0
    assert heard() == ["broken", "acquired"], "one for the lock, and before the next hold"
    # The lock that marked the earlier events goes with a flush.
    others = 1 if way.startswith(("FLUSH", "SWAP")) else 0
    eventually(lambda: count(cli, "broken") >= broken + len(before), "each hold is counted")
    assert count(cli, "broken") - broken - len(before) in (0, others, others + 1)


@every_way
def test_a_waiters_grant_of_a_broken_lock_is_published_after_its_end(server, cli, heard, way):
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
def test_events_keep_their_order_in_one_step_of_the_server(cli, heard, way, around):
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
        commands += [f"LOCK.ACQUIRE door owner-{number} PX 60000", ["DEL door", "FLUSHALL ASYNC"][number % 2]]
    cli.pipeline(*commands)
    assert heard() == ["acquired", "broken"] * rounds


def test_a_downgrade_and_a_refused_holder_are_published_as_nothing(cli, heard):
    take(cli, "door", "alice")
    take(cli, "door", "alice", "SHARED")
    with refused("LOCKHELD"):
        take(cli, "door", "alice")
    assert cli("LOCK.RELEASE door alice") == 1
    assert heard() == ["acquired", "released"]


def test_a_lease_that_has_not_been_ended_when_its_key_goes(cli, heard):
    take(cli, "door", "alice", lease_ms=20)
    assert heard() == ["acquired"]
    cli.pipeline("DEBUG SLEEP 0.05", "DEL door", "LOCK.ACQUIRE door bob PX 60000")
    assert heard() == ["expired", "acquired"]


def test_events_of_other_locks_are_published_after_a_break_too(cli, heard):
    take(cli, "door", "alice")
    assert heard() == ["acquired"]
    cli.pipeline("DEL door", "LOCK.ACQUIRE other bob PX 60000", "LOCK.RELEASE other bob")
    assert heard("other") == ["acquired", "released"]


# Flushes


def fill(cli, count, owner="alice", options=""):
    """This owner takes this many locks."""
    for start in range(0, count, 10_000):
        commands = [f"LOCK.ACQUIRE lock:{number} {owner} PX 3600000 {options}" for number in range(start, start + 10_000)]
        assert all(isinstance(token, int) for token in cli.pipeline(*commands))


def test_a_lock_that_went_with_one_of_several_databases_is_not_counted_till_the_next_cron(start_server):
    # The server frees its value on a thread of its own
    server = start_server("--hz", "1")
    here, there = server.connect(), server.connect(db=2)
    for cli in (here, there):
        assert cli("LOCK.ACQUIRE door alice PX 60000") > 0
    for _ in range(5):
        assert here("LOCK.ACQUIRE door alice PX 60000") > 0
        here("FLUSHDB ASYNC")
        eventually(lambda: module_info(here)["locks"] == "1", "it is freed", limit=0.5)


@pytest.mark.parametrize("how", ["SYNC", "ASYNC"])
@pytest.mark.parametrize("options", ["", "SHARED"])
def test_a_lock_that_was_flushed_is_listed_nowhere(start_server, how, options):
    # G15: whenever the server frees the values
    server = start_server()
    cli = server.connect()
    fill(cli, 100_000, options=options)
    held, waiting = server.connect(), server.connect()
    held("SET something else")
    bob = server.ask("LOCK.ACQUIRE lock:7 bob PX 60000 BLOCK 0")
    flushed, listed, info = waiting.pipeline(f"FLUSHALL {how}", "LOCK.HELDBY alice", "INFO redislock")
    assert (flushed, listed) == ("OK", [])
    fields = dict(line.split(":") for line in info.splitlines() if ":" in line)
    assert fields["redislock_holds"] in ("0", "1"), "the waiter may have been granted"
    assert fields["redislock_locks"] in ("0", "1")
    assert bob.answer() > 0
    assert held_by(cli, "bob")[0][0] == "lock:7"
    eventually(lambda: "broken from outside" in server.log_text(), "the log tells of it")
    assert count(cli, "broken") == 100_000
    lines = [line for line in server.log_text().splitlines() if "broken from outside" in line]
    assert len(lines) == 1 and "and 99999 more" in lines[0]
    assert cli("LOCK.RELEASE lock:7 bob") == 1
    # The values that the server frees late do no harm to those that came after.
    fill(cli, 20_000, "carol", options)
    eventually(lambda: server.info("memory")["lazyfree_pending_objects"] == "0", "all is freed")
    assert count(cli, "holds") == 20_000
    assert len(cli("LOCK.HELDBY carol")) == 20_000


@pytest.mark.parametrize("how", ["SYNC", "ASYNC"])
def test_one_database_is_flushed_and_others_are_not(start_server, how):
    server = start_server("--notify-keyspace-events", "KEd")
    one, other, subscriber = server.connect(), server.connect(db=1), server.connect()
    for cli in (one, other):
        fill(cli, 10_000)
    for number in range(3):
        take(one, "shared", f"owner-{number}", "SHARED")
    subscriber("PSUBSCRIBE __keyevent@*__:lock.*")
    assert one(f"FLUSHDB {how}") == "OK"
    assert count(one, "holds") == 10_000
    assert {name[0] for name in other("LOCK.HELDBY alice")} == {f"lock:{number}" for number in range(10_000)}
    assert one("LOCK.HELDBY owner-1") == []
    seen = [subscriber.read()[2:] for _ in range(10_001)]
    assert {channel for channel, _ in seen} == {"__keyevent@0__:lock.broken"}
    assert len({key for _, key in seen}) == 10_001
    assert count(one, "broken") == 10_003
    # The locks that are left are all in one database now, or were.
    assert other(f"FLUSHDB {how}") == "OK"
    assert (count(one, "holds"), other("LOCK.HELDBY alice")) == (0, [])
    eventually(lambda: count(one, "broken") == 20_003 and count(one, "locks") == 0)


def test_a_replica_that_is_flushed_publishes_nothing_of_its_own(start_server):
    server = start_server(*AT_ONCE)
    cli = server.connect()
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}", "--notify-keyspace-events", "KEd")
    is_linked(replica)
    reader, subscriber = replica.connect(), replica.connect()
    fill(cli, 10_000)
    assert cli("WAIT 1 20000") == 1
    subscriber("PSUBSCRIBE __keyevent@*__:lock.*")
    cli.pipeline("FLUSHALL ASYNC", "LOCK.ACQUIRE door bob PX 60000")
    assert cli("WAIT 1 20000") == 1
    assert [hold[0] for hold in reader("LOCK.HELDBY bob")] == ["door"]
    assert (reader("LOCK.HELDBY alice"), count(reader, "holds"), count(reader, "broken")) == ([], 1, 0)
    assert subscriber.read()[2:] == ["__keyevent@0__:lock.acquired", "door"]
    assert "broken from outside" not in replica.log_text()


@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_publishes_how_a_hold_ended_before_the_next_one(start_server, kind):
    server = start_server(*AT_ONCE)
    cli = server.connect()
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}", "--notify-keyspace-events", "KEd")
    is_linked(replica)
    subscriber = replica.connect()
    subscriber("PSUBSCRIBE __keyevent@*__:lock.*")
    # One has to go for the other: of readers one is a writer, and a semaphore has room for one.
    first, second = {"shared": ("SHARED", ""), "limit": ("LIMIT 1", "LIMIT 1")}.get(kind, [KINDS[kind]] * 2)
    # A request must wait before it ends.
    take(cli, "door", "alice", first, lease_ms=6_000 if VALGRIND else 300)
    waiter = ask(server, "door", "bob", second)
    eventually(lambda: count(cli, "waiters") == 1)
    if kind == "kept":
        # Its lease is paused.
        assert cli("LOCK.RELEASE door alice") == 1
    assert waiter.answer() > 0
    assert cli("LOCK.RELEASE door bob") == 1
    seen = [subscriber.read()[2].partition(":lock.")[2] for _ in range(4)]
    assert seen == ["acquired", "released" if kind == "kept" else "expired", "acquired", "released"]


@pytest.mark.parametrize("command", ["DEBUG RELOAD", "DEBUG LOADAOF"])
def test_locks_that_are_reloaded_were_not_broken(start_server, command):
    server = start_server("--notify-keyspace-events", "KEd", "--appendonly", "yes")
    cli, subscriber = server.connect(), server.connect()
    fill(cli, 10_000)
    take(cli, "door", "bob", "SHARED")
    digest = cli("DEBUG DIGEST")
    subscriber("PSUBSCRIBE __keyevent@*__:lock.*")
    assert cli(command) == "OK"
    assert cli("DEBUG DIGEST") == digest
    cli("LOCK.RELEASE door bob")
    channels = []
    while not channels or "released" not in channels[-1]:
        channels.append(subscriber.read()[2])
    assert not any("broken" in channel for channel in channels), "a file that is replayed tells what began, at most"
    assert (count(cli, "holds"), count(cli, "broken")) == (10_000, 0)
    assert "broken from outside" not in server.log_text()


# Restored locks


RESTORED = ["FLUSHALL", "FLUSHALL ASYNC", "FLUSHDB", "FLUSHDB ASYNC", "SWAPDB 0 6", "DEL door", "UNLINK door", "RENAME door x"]


@pytest.mark.parametrize("is_renewed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", RESTORED)
def test_a_restored_lock_is_broken_as_any_other(server, cli, heard, command, kind, is_renewed):
    token = take(cli, "door", "alice", KINDS[kind])
    payload = dump(cli, "door")
    cli("DEL door")
    assert heard() == ["acquired", "broken"]
    cli("RESTORE", "door", 0, payload)
    assert cli("LOCK.FENCE door") == token
    if is_renewed:
        assert cli("LOCK.RENEW door alice PX 90000") == 1
    assert heard() == []
    broken, lines = count(cli, "broken"), server.log_text().count("broken from outside")
    others = count(cli, "holds") - 1
    cli(command)
    assert heard() == ["broken"]
    eventually(lambda: server.log_text().count("broken from outside") > lines, "the log tells of it")
    assert count(cli, "broken") - broken in (1, 1 + others)
    assert cli("LOCK.FENCE", "door", token) == 0


def test_a_restored_lock_that_migrates_is_broken_here(start_server):
    # Not in a cluster: there it moves with its slot, and lives on under its name.
    server, target = start_server("--notify-keyspace-events", "KEd"), start_server()
    cli, subscriber = server.connect(), server.connect()
    token = take(cli, "door", "alice")
    payload = dump(cli, "door")
    cli("DEL door")
    eventually(lambda: count(cli, "broken") == 1)
    cli("RESTORE", "door", 0, payload)
    subscriber("SUBSCRIBE __keyevent@0__:lock.broken")
    assert cli("MIGRATE", "127.0.0.1", target.port, "door", 0, 5000) == "OK"
    assert subscriber.read()[2] == "door"
    eventually(lambda: count(cli, "broken") == 2)
    assert (cli("LOCK.FENCE door"), target.admin("LOCK.FENCE door")) == (None, token)


@pytest.mark.parametrize("replaces", [False, True])
def test_a_lock_that_is_restored_past_its_time_is_not_published(server, cli, heard, replaces):
    take(cli, "door", "alice")
    payload = dump(cli, "door")
    if not replaces:
        cli("DEL door")
    heard()
    broken, lines = count(cli, "broken"), server.log_text().count("broken from outside")
    for _ in range(3):
        cli("RESTORE", "door", 1, payload, "ABSTTL", *(["REPLACE"] if replaces else []))
    assert cli("EXISTS door") == 0
    assert heard() == (["broken"] if replaces else []), "what was there, once"
    assert count(cli, "broken") - broken == int(replaces)
    assert server.log_text().count("broken from outside") - lines == int(replaces)
    assert take(cli, "door", "bob") > 0


# The page of events


def test_the_events_of_the_page_are_what_is_published(server, cli, heard, start_server):
    """docs/reference/events.md: each event by each of its causes, and what is no event."""
    page = (ROOT / "docs" / "reference" / "events.md").read_text()
    causes = dict(re.findall(r"^\| `lock\.(\w+)` \| (.*) \|$", page, re.MULTILINE))
    target = start_server()
    breaks = {
        "DEL": "DEL door", "SET": "SET door x", "RENAME": "RENAME door gate", "FLUSHALL": "FLUSHALL",
        "EXPIRE": "EXPIRE door -1", "MIGRATE": f"MIGRATE 127.0.0.1 {target.port} door 0 5000",
    }  # fmt: skip
    assert set(re.findall(r"`([A-Z]+)`", causes["broken"])) == set(breaks)
    seen = set()
    for command in [*breaks.values(), "EVAL redis.call('del',KEYS[1]) 1 door"]:
        take(cli, "door", "alice")
        cli(*command.split())
        events = heard()
        assert events == ["acquired", "broken"], command
        seen.update(events)
        cli("DEL door gate")
    for _ in range(2):
        take(cli, "door", "alice", "REENTRANT")
    assert heard() == ["acquired"]
    assert cli("LOCK.RELEASE door alice") == 1 and heard() == []
    assert cli("LOCK.RELEASE door alice") == 1 and heard() == ["released"]
    take(cli, "door", "alice", "SHARED")
    take(cli, "door", "bob", "SHARED")
    assert cli("LOCK.RELEASE door alice") == 1
    assert heard() == ["acquired", "acquired", "released"]
    # No hold begins or ends by these.
    take(cli, "door", "bob", "SHARED")
    assert cli("LOCK.RENEW door bob PX 90000") == 1
    assert cli("LOCK.ACQUIRE door cem PX 60000 BLOCK 1") is None
    assert cli("LOCK.ACQUIRE door cem PX 60000 QUEUE 60000") is None
    cli("LOCK.RELEASE door cem")
    payload = dump(cli, "door")
    assert heard() == []
    cli("DEL door")
    assert heard() == ["broken"]
    cli("RESTORE", "door", 0, payload)
    assert heard() == []
    assert cli("LOCK.RENEW door bob PX 1") == 1
    eventually(lambda: cli("EXISTS door") == 0, "the lease ends")
    assert heard() == ["expired"]
    tied = server.connect()
    take(tied, "door", "dora", "EPHEMERAL 0")
    tied.close()
    eventually(lambda: cli("EXISTS door") == 0, "the hold ends with its connection")
    assert heard() == ["acquired", "expired"]
    assert seen | {"released", "expired"} == set(causes)
