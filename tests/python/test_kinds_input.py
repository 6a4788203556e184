"""Bad input to the options of all kinds (G14), and what others see of these locks (CONTRACT 8).

Each option's range, its repetition, what does not go together; nothing changes. Events,
WATCH and tracking for each hold.
"""

import pytest

from harness.kinds import (
    ask, ask_all, close_and_settle, count, line_of, release, snapshot, take, take_all,
)  # fmt: skip
from harness.limits import eventually
from harness.server import Server
from harness.wire import Connection
from test_bad_input import NOT_A_NUMBER, name_of, recorded_bytes
from test_seeing import let_old_events_pass

ACQUIRE = ["LOCK.ACQUIRE", "door", "alice"]
LEASE = ["PX", "9000"]

# option, accepted range, unit
RANGES = [
    ("QUEUE", "1 to 3600000", "milliseconds"),
    ("LIMIT", "1 to 1000000", "holders"),
    ("EPHEMERAL", "0 to 3600000", "milliseconds"),
]
FLAGS = ["SHARED", "REENTRANT", "KEEPALIVE"]
WITH_VALUE = [["QUEUE", "100"], ["LIMIT", "2"], ["EPHEMERAL", "5"], ["BLOCK", "0"]]
TOGETHER = [["BLOCK", "0"], ["QUEUE", "100"]], [["SHARED"], ["LIMIT", "2"]]


def range_cases():
    """(arguments, fragments): every wrong number for every option."""
    for option, span, unit in RANGES:
        low, high = span.split(" to ")
        wrong = [*NOT_A_NUMBER, str(int(high) + 1), *(["0"] if low == "1" else [])]
        for value in wrong:
            yield [*ACQUIRE, *LEASE, option, value], [option, span, unit]
            yield [*ACQUIRE, option, value, *LEASE], [option, span, unit]


def option_cases():
    """(arguments, fragments): incomplete, repeated, contradictory, unknown, without a lease."""
    for option, *_ in RANGES:
        yield [*ACQUIRE, *LEASE, option], ["syntax error", option]
    for flag in FLAGS:
        yield [*ACQUIRE, *LEASE, flag, flag], ["syntax error", flag]
        yield [*ACQUIRE, flag, *LEASE, flag.lower()], ["syntax error", flag]
        yield [*ACQUIRE, flag, "BLOCK", "0"], ["syntax error", "lease"]
        yield [*ACQUIRE, *LEASE, flag, "1"], ["syntax error"]
    for option in WITH_VALUE:
        yield [*ACQUIRE, *LEASE, *option, *option], ["syntax error", option[0]]
        yield [*ACQUIRE, *option, *LEASE, option[0].lower(), "7"], ["syntax error", option[0]]
        yield [*ACQUIRE, *option], ["syntax error", "lease"]
    for first, second in TOGETHER:
        for pair in ((first, second), (second, first)):
            words = [word for option in pair for word in option]
            yield [*ACQUIRE, *LEASE, *words], ["syntax error", first[0], second[0]]
            yield [*ACQUIRE, *words, *LEASE], ["syntax error", first[0], second[0]]
    for option in (*FLAGS, "LIMIT", "QUEUE", "EPHEMERAL"):
        yield ["LOCK.RENEW", "door", "alice", *LEASE, option], ["syntax error"]
        yield ["LOCK.RELEASE", "door", "alice", option], ["syntax error"]
        yield ["LOCK.INFO", "door", option], ["syntax error"]
    for foreign in ("NX", "WAIT", "SHARED\0", "SHARE", "EXCLUSIVE", "COUNT", "ALL"):
        yield [*ACQUIRE, *LEASE, foreign], ["syntax error", "SHARED", "LIMIT", "REENTRANT"]


CASES = [*range_cases(), *option_cases()]
STATES = {
    "free": [],
    "alice holds": [[*ACQUIRE, "PX", "600000"]],
    "alice reads": [[*ACQUIRE, "PX", "600000", "SHARED"], ["LOCK.ACQUIRE", "door", "bob", "PX", "600000", "SHARED"]],
    "alice has a permit": [[*ACQUIRE, "PX", "600000", "LIMIT", "2", "REENTRANT"]],
    "bob holds": [["LOCK.ACQUIRE", "door", "bob", "PX", "600000"]],
}


@pytest.fixture(scope="module")
def recorded():
    """A server that records every write, so that one can see that there was none."""
    server = Server("--appendonly", "yes", "--appendfsync", "no").start()
    yield server
    server.stop()
    server.finish()


@pytest.mark.parametrize("case", CASES, ids=map(name_of, CASES))
def test_bad_input_is_refused_without_effect(recorded, case):
    # G14
    arguments, fragments = case
    cli = Connection(recorded.port)
    for state in STATES.values():
        cli("FLUSHALL")
        for line in state:
            cli(*line)
        before = snapshot(cli, "door"), cli("DEBUG DIGEST"), recorded_bytes(recorded)
        reply = cli.bytes_of(*arguments)
        assert reply.startswith(b"-ERR "), reply[:200]
        assert reply.count(b"\n") == 1 and len(reply) < 500, "a line that one can read"
        for fragment in fragments:
            assert fragment.lower() in reply.decode(errors="replace").lower()
        assert (snapshot(cli, "door"), cli("DEBUG DIGEST"), recorded_bytes(recorded)) == before
        assert line_of(cli, "door") == [], "it does not wait"
    cli.close()


@pytest.mark.parametrize("words", [
    "SHARED REENTRANT EPHEMERAL 0 KEEPALIVE QUEUE 1", "keepalive ephemeral 3600000 limit 1000000",
    "Limit 1 Block 9007199254740991", "queue 3600000", "EPHEMERAL 0 SHARED BLOCK 0",
])  # fmt: skip
def test_options_in_any_order_and_case(cli, words):
    assert isinstance(take(cli, "door", "alice", words), int)
    cli("DEL door")
    assert isinstance(cli("LOCK.ACQUIRE", "door", "alice", *words.split(), "px", 9000), int)


def test_max_lease_bounds_what_a_lease_is_cut_to(cli):
    cli("CONFIG SET redislock.max-lease 5000")
    reply = cli.bytes_of("LOCK.ACQUIRE door alice PX 5000 EPHEMERAL 5001")
    assert reply.startswith(b"-ERR EPHEMERAL must be an integer from 0 to 5000")
    assert isinstance(cli("LOCK.ACQUIRE door alice PX 5000 EPHEMERAL 5000"), int)


def test_numbers_of_holders_have_a_setting_with_a_range(cli):
    # CONTRACT 7
    for value in ("0", "1000001", "x"):
        assert cli.bytes_of("CONFIG", "SET", "redislock.max-holders", value).startswith(b"-ERR")
    assert cli("CONFIG GET redislock.max-holders")[1] == "10000"
    assert cli("CONFIG SET redislock.max-holders 1000000") == "OK"


# Events


@pytest.fixture
def heard(server, cli):
    """Reads the next events of some keys: heard(3) -> [(event, key), ...]."""
    let_old_events_pass(server)
    subscriber = server.connect()
    subscriber("PSUBSCRIBE __keyevent@*__:lock.*")
    mark = "mark"
    cli("LOCK.ACQUIRE", mark, "x", "PX", 60000)
    eventually(lambda: subscriber.read()[3] == mark, "it is heard")

    def read(number):
        events = []
        for _ in range(number):
            _, _, channel, key = subscriber.read()
            events.append((channel.partition(":lock.")[2], key))
        cli("LOCK.RELEASE", mark, "x")
        cli("LOCK.ACQUIRE", mark, "x", "PX", 60000)
        for event in ("released", "acquired"):
            _, _, channel, key = subscriber.read()
            assert (channel.partition(":lock.")[2], key) == (event, mark), "no more events than told"
        return events

    return read


@pytest.mark.parametrize("options", ["SHARED", "LIMIT 5"])
def test_every_hold_has_its_events(cli, heard, options):
    for n in range(3):
        take(cli, "door", f"h{n}", options, lease_ms=300 if n == 0 else 60_000)
    assert heard(3) == [("acquired", "door")] * 3
    take(cli, "door", "h1", options)
    cli("LOCK.RENEW door h2 PX 50000")
    assert heard(0) == [], "a retry and a renewal are no events"
    release(cli, "door", "h1")
    assert heard(1) == [("released", "door")]
    assert heard(1) == [("expired", "door")]
    release(cli, "door", "h2")
    assert heard(1) == [("released", "door")]


def test_a_count_is_one_hold(cli, heard):
    for _ in range(3):
        take(cli, "door", "alice", "REENTRANT")
    for _ in range(3):
        release(cli, "door", "alice")
    assert heard(2) == [("acquired", "door"), ("released", "door")]


def test_a_batch_of_readers_is_told_one_by_one(server, cli, heard):
    take(cli, "door", "w")
    readers = [ask(server, "door", f"r{n}", "SHARED") for n in range(3)]
    assert heard(1) == [("acquired", "door")]
    release(cli, "door", "w")
    for reader in readers:
        reader.answer()
    assert heard(4) == [("released", "door")] + [("acquired", "door")] * 3


def test_several_locks_are_told_each(server, cli, heard):
    take_all(cli, "a b", "alice")
    waiter = ask_all(server, "b c", "bob")
    assert sorted(heard(2)) == [("acquired", "a"), ("acquired", "b")]
    release(cli, "b", "alice")
    waiter.answer()
    events = heard(3)
    assert events[0] == ("released", "b")
    assert sorted(events[1:]) == [("acquired", "b"), ("acquired", "c")]


def test_a_permit_that_is_handed_on(server, cli, heard):
    take(cli, "pool", "h", "LIMIT 1")
    waiter = ask(server, "pool", "w", "LIMIT 1")
    release(cli, "pool", "h")
    waiter.answer()
    assert heard(3) == [("acquired", "pool"), ("released", "pool"), ("acquired", "pool")]


def test_a_reserved_place_is_no_event(cli, heard):
    take(cli, "door", "alice")
    take(cli, "door", "bob", "QUEUE 60000")
    release(cli, "door", "alice")
    take(cli, "door", "bob", "QUEUE 60000")
    assert heard(3) == [("acquired", "door"), ("released", "door"), ("acquired", "door")]


def test_what_a_closed_connection_held_expires(server, cli, heard):
    tied = server.connect()
    take(tied, "door", "alice", "EPHEMERAL 0")
    close_and_settle(server, tied)
    assert heard(2) == [("acquired", "door"), ("expired", "door")]


def test_a_broken_crowd_is_told(server, cli, heard):
    # before the grant that follows
    for n in range(3):
        take(cli, "door", f"r{n}", "SHARED")
    writer = ask(server, "door", "w")
    assert heard(3) == [("acquired", "door")] * 3
    cli("DEL door")
    writer.answer()
    events = heard(2)
    assert events == [("broken", "door"), ("acquired", "door")]
    assert count(cli, "broken") >= 3


# WATCH, and with it what CLIENT TRACKING is told

CHANGES = [
    "LOCK.ACQUIRE read new PX 9000 SHARED", "LOCK.RELEASE read r1", "LOCK.RENEW read r1 PX 9000",
    "LOCK.ACQUIRE read r1 PX 3600000 SHARED", "LOCK.ACQUIRE read r1 PX 9000 SHARED REENTRANT",
    "LOCK.ACQUIRE alone r1 PX 9000", "LOCK.ACQUIRE door alice PX 9000 SHARED",
    "LOCK.ACQUIRE pool new PX 9000 LIMIT 3", "LOCK.RELEASE pool p1",
    "LOCK.RELEASE count alice", "LOCK.ACQUIRE count alice PX 9000 REENTRANT",
    "LOCK.MACQUIRE 2 free pair x PX 9000", "LOCK.ACQUIRE door alice PX 9000 KEEPALIVE",
]  # fmt: skip
NO_CHANGES = [
    "LOCK.ACQUIRE read r1 PX 9000 SHARED", "LOCK.ACQUIRE read w PX 9000", "LOCK.ACQUIRE pool x PX 9000 LIMIT 4",
    "LOCK.ACQUIRE read w PX 9000 QUEUE 20", "LOCK.MACQUIRE 2 free door x PX 9000",
    "LOCK.RELEASE read nobody", "LOCK.HELDBY r1", "LOCK.INFO read FULL", "LOCK.ACQUIRE read r1 PX 9000 SHARED QUEUE 20",
]  # fmt: skip


def some_locks(cli):
    """One of each kind; returns their names."""
    take(cli, "read", "r1", "SHARED", lease_ms=600_000)
    take(cli, "read", "r2", "SHARED", lease_ms=600_000)
    take(cli, "alone", "r1", "SHARED", lease_ms=600_000)
    take(cli, "door", "alice", lease_ms=600_000)
    take(cli, "pool", "p1", "LIMIT 3", lease_ms=600_000)
    take(cli, "count", "alice", "REENTRANT", lease_ms=600_000)
    take(cli, "count", "alice", "REENTRANT", lease_ms=600_000)
    return ["read", "alone", "door", "pool", "count", "free", "pair"]


@pytest.mark.parametrize("command", CHANGES)
def test_a_change_is_seen_by_who_watches(server, cli, command):
    names = some_locks(cli)
    watcher = server.connect()
    watcher("WATCH", *names)
    cli(command)
    assert watcher.pipeline("MULTI", "PING", "EXEC")[-1] is None


@pytest.mark.parametrize("command", NO_CHANGES)
def test_no_change_is_no_change(server, cli, command):
    names = some_locks(cli)
    watcher = server.connect()
    watcher("WATCH", *names)
    cli.pipeline(command)
    replies = watcher.pipeline("MULTI", "PING", "EXEC")
    eventually(lambda: count(cli, "waiters") == 0, "a place lapses")
    assert replies[-1] == ["PONG"]


def test_the_lease_of_one_holder_that_ends_is_a_change(server, cli):
    take(cli, "read", "long", "SHARED")
    take(cli, "read", "short", "SHARED", lease_ms=60)
    watcher = server.connect()
    watcher("WATCH read")
    eventually(lambda: count(cli, "holds") == 1)
    assert watcher.pipeline("MULTI", "PING", "EXEC")[-1] is None
