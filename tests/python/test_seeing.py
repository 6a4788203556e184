"""Observation (CONTRACT 8): INFO redislock, the log, keyspace events, tracking, WATCH.
"""

import pytest

from harness.kinds import ask, ask_all, close_and_settle, release, take, take_all
from harness.limits import eventually
from harness.replies import module_info, waiters_of
from harness.samples import limited
from harness.wire import refused

# INFO redislock: a quantity -> the name of its field.
LOCKS = "locks"
HOLDS = "holds"
WAITERS = "waiters"
GRANTS = "grants"
CONTENDED = "contended_grants"
RELEASES = "releases"
EXPIRATIONS = "expirations"
BROKEN = "broken"
TIMEOUTS = "timeouts"
LAST_TOKEN = "last_token"
TOKEN_LEAD = "token_lead"
ROLE = "role"
VERSION = "version"
COMMIT = "commit"
COUNTERS = [GRANTS, CONTENDED, RELEASES, EXPIRATIONS, BROKEN, TIMEOUTS]


def field(info, name):
    """The one field that has this name, or this name and a unit (token_lead_us)."""
    found = [key for key in info if key == name or key.startswith(f"{name}_us")]
    found = found or [key for key in info if key.startswith(f"{name}_")]
    assert found, f"INFO redislock has no {name}: {sorted(info)}"
    return info[found[0]]


def count(cli, name):
    """A field as a number."""
    return int(field(module_info(cli), name))


# INFO


def test_info_has_a_section_of_the_module(cli):
    info = module_info(cli)
    for name in (LOCKS, HOLDS, WAITERS, LAST_TOKEN, TOKEN_LEAD, ROLE, VERSION, COMMIT):
        assert field(info, name) != "", name
    for name in COUNTERS:
        assert int(field(info, name)) >= 0, name
    for what in ("wait", "hold"):
        for which in ("p50", "p99", "max"):
            assert any(what in key and which in key for key in info), (what, which)


def test_info_everything_has_the_section_too(cli):
    assert "redislock_locks" in cli("INFO everything")


def test_module_list_shows_the_version_as_a_number(cli):
    major, minor, patch = field(module_info(cli), VERSION).split(".")
    number = int(major) * 10_000 + int(minor) * 100 + int(patch)
    assert f"'ver', {number}," in str(cli("MODULE LIST")), cli("MODULE LIST")


def test_locks_holds_and_waiters_are_what_is_there(server, cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    cli("LOCK.ACQUIRE gate alice PX 60000")
    server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    assert count(cli, LOCKS) == 2
    assert count(cli, HOLDS) == 2
    assert count(cli, WAITERS) == 1
    cli("FLUSHALL")
    eventually(lambda: count(cli, WAITERS) == 0, "bob is granted")
    # The server may free flushed values on a thread, a moment later.
    eventually(
        lambda: (count(cli, LOCKS), count(cli, HOLDS)) == (1, 1), "one lock is left"
    )
    cli("LOCK.RELEASE door bob")
    assert (count(cli, LOCKS), count(cli, HOLDS)) == (0, 0)


def test_totals_count_what_happened(start_server):
    server = start_server()
    cli = server.connect()
    assert [count(cli, name) for name in COUNTERS] == [0] * 6
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    cli("LOCK.ACQUIRE door alice PX 60000")  # no grant: it held it already
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    assert server.ask("LOCK.ACQUIRE door carol PX 60000 BLOCK 1").answer() is None
    cli("LOCK.RELEASE door alice")
    bob.answer()
    cli("LOCK.RELEASE door carol")  # no release: she held nothing
    cli("DEL door")
    eventually(lambda: count(cli, BROKEN) == 1, "the broken hold is counted")
    last = cli("LOCK.ACQUIRE gate alice PX 1")
    eventually(lambda: cli("DBSIZE") == 0, "the lease ends")
    totals = {name: count(cli, name) for name in COUNTERS}
    assert totals == {
        GRANTS: 3,
        CONTENDED: 1,
        RELEASES: 1,
        EXPIRATIONS: 1,
        BROKEN: 1,
        TIMEOUTS: 1,
    }
    assert count(cli, LAST_TOKEN) == last > token


def test_each_lock_and_each_hold_is_counted_once(start_server):
    cli = start_server().connect()
    cli("LOCK.MACQUIRE", 3, "a", "b", "c", "alice", "PX", 9000)
    assert [count(cli, name) for name in (GRANTS, RELEASES)] == [3, 0]
    for name in "abc":
        cli("LOCK.RELEASE", name, "alice")
    for _ in range(2):
        cli("LOCK.ACQUIRE", "again", "alice", "PX", 9000, "REENTRANT")
    assert [count(cli, name) for name in (GRANTS, RELEASES)] == [4, 3]
    cli("LOCK.RELEASE", "again", "alice")
    assert count(cli, RELEASES) == 3, "it is held still"
    cli("LOCK.RELEASE", "again", "alice")
    cli("LOCK.ACQUIRE", "book", "alice", "PX", 9000)
    cli("LOCK.ACQUIRE", "book", "alice", "PX", 9000, "SHARED")
    assert [count(cli, name) for name in (GRANTS, RELEASES, HOLDS)] == [5, 4, 1]


def test_every_broken_hold_is_counted(cli):
    before = count(cli, "broken")
    limited(cli)
    take(cli, "gate", "r1", "SHARED")
    take(cli, "gate", "r2", "SHARED")
    cli("DEL door gate")
    eventually(lambda: count(cli, "broken") == before + 5)
    eventually(lambda: (count(cli, "locks"), count(cli, "holds")) == (0, 0))


def test_the_role_is_told(cli):
    assert field(module_info(cli), ROLE) in ("master", "primary")


def test_the_log_has_a_line_at_load(server):
    # CONTRACT 8: version, limits
    lines = [line for line in server.log_text().splitlines() if "redislock" in line]
    assert any(character.isdigit() for line in lines for character in line[30:]), lines


def test_the_log_tells_when_a_lock_is_broken_from_outside(server, cli):
    let_old_events_pass(server)
    cli("LOCK.ACQUIRE door:of:the:log alice PX 60000")
    cli("DEL door:of:the:log")
    eventually(lambda: "door:of:the:log" in server.log_text(), "a line about it")


# Keyspace events


def let_old_events_pass(server):
    """The end of the test before flushed its locks: the events of that may come late."""
    cli, subscriber = server.connect(), server.connect()
    cli("CONFIG SET notify-keyspace-events KEd")
    subscriber("SUBSCRIBE __keyevent@0__:lock.broken")
    cli("LOCK.ACQUIRE last:one alice PX 60000")
    cli("DEL last:one")
    eventually(lambda: subscriber.read()[2] == "last:one", "the last of the old events")


@pytest.fixture
def listener(server):
    """A subscriber to the module's events, of keys and of event names."""
    let_old_events_pass(server)
    subscriber = server.connect()
    subscriber("PSUBSCRIBE __keyevent@*__:lock.*")
    return subscriber


def next_event(subscriber):
    """(event, key, database) of the next message."""
    kind, _, channel, key = subscriber.read()
    assert kind == "pmessage"
    where, _, event = channel.partition(":")
    return event, key, int(where.partition("@")[2].strip("_"))


def test_acquired_and_released_are_events(listener, cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    assert next_event(listener) == ("lock.acquired", "door", 0)
    cli("LOCK.RELEASE door alice")
    assert next_event(listener) == ("lock.released", "door", 0)


def test_the_end_of_a_lease_is_an_event(listener, cli):
    cli("LOCK.ACQUIRE door alice PX 1")
    assert next_event(listener) == ("lock.acquired", "door", 0)
    assert next_event(listener) == ("lock.expired", "door", 0)


@pytest.mark.parametrize(
    "command",
    ["DEL door", "FLUSHALL", "SET door x", "RENAME door gate", "PEXPIRE door -1"],
)
def test_a_broken_hold_is_an_event(listener, cli, command):
    cli("LOCK.ACQUIRE door alice PX 60000")
    assert next_event(listener) == ("lock.acquired", "door", 0)
    cli(command)
    assert next_event(listener) == ("lock.broken", "door", 0)


def test_a_handover_is_two_events(listener, server, cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    cli("LOCK.RELEASE door alice")
    bob.answer()
    events = [next_event(listener)[0] for _ in range(3)]
    assert events == ["lock.acquired", "lock.released", "lock.acquired"]


def test_events_name_the_database(listener, server):
    other = server.connect(db=4)
    other("LOCK.ACQUIRE door alice PX 30")
    assert next_event(listener) == ("lock.acquired", "door", 4)
    assert next_event(listener) == ("lock.expired", "door", 4)


def test_nothing_happened_is_no_event(listener, cli):
    cli("LOCK.RELEASE door alice")
    cli("LOCK.RENEW door alice PX 60000")
    cli("LOCK.FENCE door")
    cli("LOCK.INFO door")
    cli("LOCK.ACQUIRE door alice PX 60000")
    assert next_event(listener)[0] == "lock.acquired"
    cli("LOCK.ACQUIRE door bob PX 60000")
    cli("LOCK.RELEASE door bob")
    cli("LOCK.RELEASE door alice")
    assert next_event(listener)[0] == "lock.released"


def test_events_are_silent_unless_asked_for(server, cli):
    cli("CONFIG SET notify-keyspace-events KE$")
    subscriber = server.connect()
    subscriber("PSUBSCRIBE __key*")
    cli("LOCK.ACQUIRE door alice PX 60000")
    cli("SET note text")
    assert subscriber.read()[3] in ("set", "note"), "the first event is of the note"


def test_key_channels_carry_the_event_name(server, cli):
    cli("CONFIG SET notify-keyspace-events Kd")
    subscriber = server.connect()
    subscriber("SUBSCRIBE __keyspace@0__:door")
    cli("LOCK.ACQUIRE door alice PX 60000")
    assert subscriber.read() == ["message", "__keyspace@0__:door", "lock.acquired"]


# Events of all kinds of locks


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


def test_a_batch_of_readers_is_published_one_by_one(server, cli, heard):
    take(cli, "door", "w")
    readers = [ask(server, "door", f"r{n}", "SHARED") for n in range(3)]
    assert heard(1) == [("acquired", "door")]
    release(cli, "door", "w")
    for reader in readers:
        reader.answer()
    assert heard(4) == [("released", "door")] + [("acquired", "door")] * 3


def test_several_locks_are_published_each(server, cli, heard):
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


def test_a_broken_lock_of_many_holders_is_published_before_the_next_grant(server, cli, heard):
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


# CLIENT TRACKING


def invalidated(cli3):
    """The keys of the next invalidation push."""
    eventually(lambda: cli3("PING") and cli3.pushes, "an invalidation")
    kind, keys = cli3.pushes.pop(0)
    assert kind == "invalidate"
    return keys


CHANGES = {
    "release": "LOCK.RELEASE door alice",
    "renewal": "LOCK.RENEW door alice PX 50000",
    "end of the lease": "LOCK.RENEW door alice PX 1",
    "break": "DEL door",
    "rename": "RENAME door gate",
}


@pytest.mark.parametrize("read", ["LOCK.INFO door", "LOCK.FENCE door"])
@pytest.mark.parametrize("change", CHANGES)
def test_tracking_sees_every_change_of_a_held_lock(cli, cli3, read, change):
    # CONTRACT 8
    cli("LOCK.ACQUIRE door alice PX 60000")
    cli3("CLIENT TRACKING ON")
    cli3(read)
    cli(CHANGES[change])
    assert invalidated(cli3) == ["door"]


@pytest.mark.parametrize("read", ["LOCK.INFO door", "LOCK.FENCE door"])
def test_tracking_sees_a_free_lock_taken(cli, cli3, read):
    cli3("CLIENT TRACKING ON")
    assert cli3(read) is None
    cli("LOCK.ACQUIRE door alice PX 60000")
    assert invalidated(cli3) == ["door"]


def test_tracking_sees_a_lease_end_and_a_handover_by_the_module(server, cli, cli3):
    # Not a command of any client changes the key here
    cli("LOCK.ACQUIRE door alice PX 400")
    bob = server.ask("LOCK.ACQUIRE door bob PX 400 BLOCK 0")
    cli3("CLIENT TRACKING ON")
    cli3("LOCK.INFO door")
    bob.answer()
    assert invalidated(cli3) == ["door"]
    cli3("LOCK.INFO door")
    eventually(lambda: cli("DBSIZE") == 0, "bob's lease ends")
    assert invalidated(cli3) == ["door"]


# WATCH


@pytest.mark.parametrize("change", CHANGES)
def test_watch_sees_every_change_of_a_held_lock(server, cli, change):
    cli("LOCK.ACQUIRE door alice PX 60000")
    watcher = server.connect()
    watcher("WATCH door")
    cli(CHANGES[change])
    if change == "end of the lease":
        eventually(lambda: cli("DBSIZE") == 0, "the lease ends")
    assert watcher.pipeline("MULTI", "PING", "EXEC")[-1] is None


def test_watch_sees_a_lock_taken_and_a_handover(server, cli):
    watcher = server.connect()
    watcher("WATCH door")
    cli("LOCK.ACQUIRE door alice PX 60000")
    assert watcher.pipeline("MULTI", "PING", "EXEC")[-1] is None
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    cli("LOCK.RENEW door alice PX 400")
    watcher("WATCH door")
    bob.answer()
    assert watcher.pipeline("MULTI", "PING", "EXEC")[-1] is None


def test_watch_ignores_clients_that_only_look_or_wait_or_are_refused(server, cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    watcher = server.connect()
    watcher("WATCH door")
    cli("LOCK.INFO door")
    cli("LOCK.FENCE door")
    cli("LOCK.ACQUIRE door bob PX 60000")
    cli("LOCK.RELEASE door bob")
    with refused("ERR"):
        cli("LOCK.ACQUIRE door bob PX 0")
    server.ask("LOCK.ACQUIRE door carol PX 60000 BLOCK 0")
    assert waiters_of(cli, "door") == 1
    assert watcher.pipeline("MULTI", "PING", "EXEC")[-1] == ["PONG"]
