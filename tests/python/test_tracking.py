"""The messages of CLIENT TRACKING and WATCH about locks of all kinds (CONTRACT 8).

Exactly when something changes that LOCK.INFO or LOCK.FENCE shows of the holds; the waiters are no part of it. By
commands, and by changes of the module itself.
"""

import pytest

from harness.kinds import (
    ask, ask_all, close_and_settle, count, hold_of, owners_of, release, take, take_all,
)  # fmt: skip
from harness.limits import eventually
from harness.replicas import AT_ONCE, is_linked

NAMES = ["read", "alone", "door", "pool", "count", "one", "two", "free", "free2"]


def some_locks(cli):
    """One of each kind."""
    for owner in ("r1", "r2"):
        take(cli, "read", owner, "SHARED", lease_ms=600_000)
    take(cli, "alone", "r1", "SHARED", lease_ms=600_000)
    take(cli, "door", "alice", lease_ms=600_000)
    take(cli, "pool", "p1", "LIMIT 2", lease_ms=600_000)
    for _ in range(2):
        take(cli, "count", "alice", "REENTRANT", lease_ms=600_000)
    take_all(cli, "one two", "all", lease_ms=600_000)


class Watch:
    """A client that caches its reads."""

    def __init__(self, server, how, read="LOCK.INFO"):
        self.connection = server.connect(protocol=3)
        self.connection("CLIENT TRACKING ON" + (" BCAST" if how == "BCAST" else ""))
        self.read = read
        self.look()

    def look(self):
        """Reads everything again."""
        for name in NAMES:
            self.connection(self.read, name)
        self.told()

    def told(self):
        """The keys that were invalidated since the last look, each once."""
        # Messages to all go out at the end of a turn of the event loop.
        for _ in range(3):
            self.connection("PING")
        # A flush names no keys.
        keys = [key for _, names in self.connection.pushes for key in names or ["everything"]]
        self.connection.pushes.clear()
        return sorted(set(keys))

    def is_told(self, *wanted):
        """Waits until just these were invalidated."""
        seen = set()

        def is_complete():
            seen.update(self.told())
            return set(wanted) <= seen

        eventually(is_complete, f"told of {wanted}, not only of {seen}")
        seen.update(self.told())
        assert seen == set(wanted)


CHANGES = {
    "LOCK.ACQUIRE read new PX 9000 SHARED": ["read"],
    "LOCK.RELEASE read r1": ["read"],
    "LOCK.RENEW read r1 PX 9000": ["read"],
    "LOCK.RENEW read r2 PX 900000": ["read"],
    "LOCK.ACQUIRE read r1 PX 3600000 SHARED": ["read"],
    "LOCK.RELEASE alone r1": ["alone"],
    "LOCK.ACQUIRE door alice PX 9000 SHARED": ["door"],
    "LOCK.ACQUIRE pool new PX 9000 LIMIT 2": ["pool"],
    "LOCK.RELEASE pool p1": ["pool"],
    "LOCK.RELEASE count alice": ["count"],
    "LOCK.ACQUIRE count alice PX 9000 REENTRANT": ["count"],
    "LOCK.MACQUIRE 2 free free2 x PX 9000": ["free", "free2"],
    "LOCK.MACQUIRE 2 free free2 x PX 9000 SHARED": ["free", "free2"],
    "LOCK.MACQUIRE 2 free read x PX 9000 SHARED": ["free", "read"],
    "LOCK.MACQUIRE 2 one two all PX 3600000": ["one", "two"],
    "LOCK.ACQUIRE door alice PX 9000 KEEPALIVE": ["door"],
    "LOCK.ACQUIRE read r1 PX 9000 SHARED EPHEMERAL 10": ["read"],
    "LOCK.ACQUIRE free x PX 9000 EPHEMERAL 10": ["free"],
    "LOCK.ACQUIRE free x PX 9000 QUEUE 1000": ["free"],
    "DEL read pool": ["pool", "read"],
}  # fmt: skip
NO_CHANGES = [
    "LOCK.ACQUIRE read r1 PX 9000 SHARED", "LOCK.ACQUIRE read w PX 9000", "LOCK.ACQUIRE pool x PX 9000 LIMIT 4",
    "LOCK.ACQUIRE read w PX 9000 QUEUE 20", "LOCK.ACQUIRE read r1 PX 9000 QUEUE 20",
    "LOCK.MACQUIRE 2 free door x PX 9000", "LOCK.MACQUIRE 2 free door x PX 9000 BLOCK 5",
    "LOCK.MACQUIRE 2 one two all PX 9000", "LOCK.MACQUIRE 3 one two free all PX 9000",
    "LOCK.MACQUIRE 2 free read x PX 9000",
    "LOCK.ACQUIRE alone r1 PX 9000", "LOCK.RELEASE read nobody", "LOCK.RELEASE read r1 TOKEN 1", "LOCK.RENEW pool nobody PX 9",
    "LOCK.HELDBY r1", "LOCK.INFO read FULL", "LOCK.FENCE read 1", "LOCK.EXEC read 1 PING",
    "LOCK.ACQUIRE read r1 PX 9000 SHARED QUEUE 20", "LOCK.ACQUIRE free x PX 0 LIMIT 1",
]  # fmt: skip
both_modes = pytest.mark.parametrize("how", ["as read", "BCAST"])


@both_modes
@pytest.mark.parametrize("command", CHANGES)
def test_clients_that_read_a_lock_are_notified_of_its_change(server, cli, how, command):
    some_locks(cli)
    watches = [Watch(server, how, read) for read in ("LOCK.INFO", "LOCK.FENCE")]
    watcher = Changes(server, "WATCH")
    cli(command)
    watcher.are(*CHANGES[command])
    for watch in watches:
        watch.is_told(*CHANGES[command])


@both_modes
@pytest.mark.parametrize("command", NO_CHANGES)
def test_no_client_is_notified_without_a_change(server, cli, how, command):
    some_locks(cli)
    watch = Watch(server, how)
    watcher = Changes(server, "WATCH")
    cli.pipeline(command)
    eventually(lambda: count(cli, "waiters") == 0, "a place lapses")
    assert watch.told() == []
    watcher.are()


# Changes by the module itself

both = pytest.mark.parametrize("teller", ["tracking", "BCAST", "WATCH"])


class Changes:
    """Sees whether the locks have changed, in one of three ways."""

    def __init__(self, server, teller):
        self.is_watch = teller == "WATCH"
        if self.is_watch:
            self.connection = server.connect()
        else:
            self.watch = Watch(server, teller)
        self.begin()

    def begin(self):
        """Watches from now on."""
        if self.is_watch:
            self.connection("UNWATCH")
            self.connection("WATCH", *NAMES)
        else:
            self.watch.look()

    def are(self, *names):
        """Just these have changed. Begins anew."""
        if self.is_watch:
            reply = self.connection.pipeline("MULTI", "PING", "EXEC")[-1]
            assert (reply is None) == bool(names), reply
        else:
            self.watch.is_told(*names)
        self.begin()


@both
def test_leases_that_end_one_by_one(server, cli, teller):
    readers = ["r0", "r1", "r2"]
    for owner in ["long", *readers]:
        take(cli, "read", owner, "SHARED")
    changes = Changes(server, teller)
    for left, owner in zip((3, 2, 1), readers):
        # The lease must not end before a look, however slow the machine is.
        for lease_ms in (300, 1200, 4800):
            take(cli, "read", owner, "SHARED")
            cli("LOCK.RENEW", "read", owner, "PX", lease_ms)
            changes.begin()
            if owner in owners_of(cli, "read"):
                break
        eventually(lambda left=left: count(cli, "holds") == left, "not only over: ended")
        changes.are("read")
    assert owners_of(cli, "read") == ["long"]
    changes.are()


@both
def test_a_hand_over_of_several_locks(server, cli, teller):
    take(cli, "one", "h", lease_ms=300)
    take(cli, "two", "g")
    waiter = ask_all(server, "one two free", "all")
    changes = Changes(server, teller)
    eventually(lambda: count(cli, "holds") == 1, "not only over: ended")
    changes.are("one")
    changes.are()
    release(cli, "two", "g")
    waiter.answer()
    changes.are("one", "two", "free")


@both
def test_readers_that_come_in_together(server, cli, teller):
    take(cli, "read", "w")
    waiters = [ask(server, "read", f"r{n}", "SHARED") for n in range(3)]
    changes = Changes(server, teller)
    changes.are()
    release(cli, "read", "w")
    for waiter in waiters:
        waiter.answer()
    changes.are("read")


@both
def test_a_downgrade_that_lets_others_in(server, cli, teller):
    take(cli, "read", "r1")
    changes = Changes(server, teller)
    reader = ask(server, "read", "r3", "SHARED")
    changes.are()
    take(cli, "read", "r1", "SHARED")
    reader.answer()
    changes.are("read")


@both
def test_a_place_that_lapses_changes_nothing(server, cli, teller):
    take(cli, "pool", "p", "LIMIT 2")
    take(cli, "door", "h")
    take(cli, "door", "place", "QUEUE 100")
    release(cli, "door", "h")
    changes = Changes(server, teller)
    eventually(lambda: count(cli, "waiters") == 0)
    changes.are()


@both
@pytest.mark.parametrize("kind", ["", "SHARED", "LIMIT 3"])
@pytest.mark.parametrize("tie", ["EPHEMERAL 0", "EPHEMERAL 50000", "KEEPALIVE"])
def test_a_connection_that_closes(server, cli, teller, kind, tie):
    # The hold ends, its lease is cut, or its lease begins to run: as after a renewal, the cached reply is old.
    task = server.connect()
    take(task, "door", "alice", kind, tie, lease_ms=600_000)
    if kind:
        take(cli, "door", "other", kind)
    holds = count(cli, "holds")
    changes = Changes(server, teller)
    close_and_settle(server, task)
    if tie == "EPHEMERAL 0":
        eventually(lambda: count(cli, "holds") < holds)
    elif tie == "EPHEMERAL 50000":
        eventually(lambda: hold_of(cli, "door", "alice")["lease-left-ms"] <= 50_000)
    changes.are("door")


@pytest.mark.parametrize("how", ["as read", "BCAST"])
def test_readers_of_a_replica_are_notified_too(start_server, how):
    # CONTRACT 8: by the stream
    primary = start_server(*AT_ONCE)
    server = start_server("--replicaof", f"127.0.0.1 {primary.port}")
    is_linked(server)
    cli = primary.connect()
    some_locks(cli)
    assert cli("WAIT 1 10000") == 1
    watch = Watch(server, how)
    for command, names in CHANGES.items():
        cli("FLUSHALL")
        some_locks(cli)
        assert cli("WAIT 1 10000") == 1
        watch.look()
        cli(command)
        assert cli("WAIT 1 10000") == 1
        watch.is_told(*names)


# WATCH and MULTI


def test_a_transaction_guarded_by_a_watched_lock(server, cli):
    # The holder of a permit writes only if no other came or left since it looked.
    take(cli, "pool", "p1", "LIMIT 3")
    watcher = server.connect()
    for step, changes in (
        ("LOCK.ACQUIRE pool p2 PX 9000 LIMIT 3", True), ("LOCK.ACQUIRE pool p2 PX 1 LIMIT 3", False),
        ("LOCK.RELEASE pool p3", False), ("LOCK.RELEASE pool p2", True), ("LOCK.RELEASE pool p2", False),
        ("LOCK.MACQUIRE 2 pool2 pool3 x PX 9000", False), ("LOCK.RENEW pool p1 PX 9000", True),
    ):  # fmt: skip
        watcher("WATCH pool")
        cli(step)
        written = watcher.pipeline("MULTI", ("SET", "note", step), "EXEC")[-1]
        assert written == (None if changes else ["OK"]), step


def test_a_watching_clients_own_change_disturbs_it_only_before_multi(server, cli):
    token = take(cli, "read", "r1", "SHARED")
    cli("WATCH read")
    replies = cli.pipeline(
        "MULTI", "LOCK.ACQUIRE read r2 PX 9000 SHARED", "LOCK.RELEASE read r2", "LOCK.FENCE read", "EXEC"
    )
    assert replies[-1][1:] == [1, token]
    cli("WATCH read")
    take(cli, "read", "r2", "SHARED")
    assert cli.pipeline("MULTI", "PING", "EXEC")[-1] is None
