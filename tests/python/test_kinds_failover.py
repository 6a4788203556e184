"""Locks of all kinds when links break, servers are killed under load, and roles change (G13, G7, CONTRACT 5)."""

import threading

import pytest

from harness.kinds import ask, ask_all, count, hold_of, owners_of, take, take_all
from harness.limits import SLOW_FACTOR, eventually
from harness.replicas import AT_ONCE, is_linked
from harness.replies import lock_info, module_info
from harness.walk import PARTS, leases_of, locks_of, walk
from harness.wire import Closed, NoReply, ServerError, refused

ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")
PLAIN = ("--aof-use-rdb-preamble", "no")
LEASE_SLACK_MS = 60_000


def assert_same_leases(before, after):
    assert before.keys() == after.keys()
    for key, left in before.items():
        assert abs(left - after[key]) < LEASE_SLACK_MS, (key, left, after[key])


def agree(cli, reader, *, with_ties=True):
    """Waits until the replica has caught up; then all is the same."""
    def is_level():
        return cli("WAIT 1 1000") == 1 and reader("DEBUG DIGEST") == cli("DEBUG DIGEST")

    eventually(is_level, "the same digest")
    assert locks_of(reader, with_ties=with_ties) == locks_of(cli, with_ties=with_ties)
    assert_same_leases(leases_of(cli), leases_of(reader))


# Links


def test_a_link_that_breaks_at_every_step(start_server):
    # G13: the stream goes on where it broke off
    server = start_server(*AT_ONCE, "--repl-backlog-size", "10mb")
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}")
    is_linked(replica)
    cli, reader = server.connect(), replica.connect()
    breaks = 0
    for number, _ in enumerate(walk(server)):
        if number % 2:
            cli("CLIENT KILL TYPE replica")
            breaks += 1
        if number % 8 == 7:
            eventually(lambda: server.info("replication")["connected_slaves"] == "1")
            agree(cli, reader)
    eventually(lambda: server.info("replication")["connected_slaves"] == "1")
    agree(cli, reader)
    stats = server.info("stats")
    assert int(stats["sync_partial_ok"]) > 2 and stats["sync_full"] == "1", (breaks, stats)


def test_full_resynchronisations_while_everything_changes(start_server):
    # G13: what happens while the data set is on its way is behind it in the stream
    server = start_server(*AT_ONCE)
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}")
    cli, reader = server.connect(), replica.connect()
    for number, _ in enumerate(walk(server)):
        if number % 5 == 2:
            reader("REPLICAOF NO ONE")
            take(reader, "mine", f"o{number}", "SHARED")
            reader("REPLICAOF", "127.0.0.1", server.port)
        if number % 15 == 14:
            is_linked(replica)
            agree(cli, reader)
    is_linked(replica)
    agree(cli, reader)
    assert int(server.info("stats")["sync_full"]) > 3
    # What a full resynchronisation has replaced may be freed in the background.
    eventually(lambda: count(cli, "holds") == count(reader, "holds"), "nothing is left of the old data set")


# Changes of role


def fail_over(old, new):
    """The primary hands its role over, without a loss."""
    # Up for the replica is not online yet for its primary.
    is_online = "state=online"
    eventually(lambda: is_online in str(old.info("replication")["slave0"]), "it can take over")
    old.admin("FAILOVER", "TO", "127.0.0.1", new.port)
    eventually(lambda: new.info("replication")["role"] == "master", "it is the primary now")
    is_linked(old)


@pytest.mark.parametrize("part", PARTS)
def test_roles_go_to_and_fro(start_server, part):
    # G13, G4
    first, second = start_server(*AT_ONCE), start_server(*AT_ONCE)
    second.admin("REPLICAOF", "127.0.0.1", first.port)
    is_linked(second)
    for _ in walk(first, part):
        pass
    eventually(lambda: count(first.connect(), "holds") > 0)
    before, leases = locks_of(first.connect(), with_ties=False), leases_of(first.connect())
    last = int(module_info(first.connect())["last_token"])
    old, new = first, second
    for _ in range(3):
        fail_over(old, new)
        cli = new.connect()
        agree(cli, old.connect(), with_ties=False)
        assert locks_of(cli, with_ties=False) == before
        assert_same_leases(leases, leases_of(cli))
        token = take(cli, "fresh", "new", "LIMIT 2")
        assert token > last
        cli("LOCK.RELEASE fresh new")
        last, old, new = token, new, old


def test_who_waits_is_told_when_roles_change_and_nobody_is_granted(start_server):
    # G7, G1: leases that end while writes are paused for the change are the new primary's to end
    first, second = start_server(*AT_ONCE), start_server(*AT_ONCE)
    second.admin("REPLICAOF", "127.0.0.1", first.port)
    is_linked(second)
    cli = first.connect()
    take(cli, "read", "r1", "SHARED")
    take(cli, "read", "r2", "SHARED", lease_ms=1500)
    take(cli, "pool", "p1", "LIMIT 1", lease_ms=1500)
    take_all(cli, "one two", "all", lease_ms=1500)
    task = first.connect()
    kept = take(task, "kept", "alice", "KEEPALIVE", lease_ms=2000)
    take(task, "cut", "alice", "EPHEMERAL 0", lease_ms=3_000_000)
    requests = [
        ask(first, "read", "r1"), ask(first, "read", "late", "SHARED"), ask(first, "pool", "p2", "LIMIT 1"),
        ask_all(first, "two three", "w"), ask(first, "three", "behind"),
    ]  # fmt: skip
    take(cli, "pool", "place", "LIMIT 1 QUEUE 3600000")
    fail_over(first, second)
    for request in requests:
        try:
            reply = request.answer()
        except (ServerError, Closed) as told:
            assert isinstance(told, Closed) or told.code == "UNBLOCKED", told
        else:
            raise AssertionError(f"granted: {reply}")
    cli = second.connect()
    assert cli("LOCK.FENCE", "kept", kept) == 1
    eventually(lambda: owners_of(cli, "read") == ["r1"])
    eventually(lambda: cli("EXISTS pool one two") == 0)
    assert owners_of(cli, "cut") == ["alice"], "its connection is not known here"
    # The lease that stood still runs from here.
    eventually(lambda: cli("EXISTS kept") == 0)
    agree(cli, first.connect(), with_ties=False)
    assert count(first.connect(), "waiters") == 0


# Kills under load


class Load(threading.Thread):
    """Takes locks of all kinds, one after the other, and notes what it was told."""

    def __init__(self, server, number):
        super().__init__()
        self.cli, self.number = server.connect(), number
        self.held, self.ended, self.unsure = {}, set(), set()

    def run(self):
        try:
            for turn in range(100_000):
                self.one(turn)
        except (Closed, NoReply, OSError):
            pass

    def one(self, turn):
        name, owner = f"{self.number}-{turn}", f"o{self.number}"
        kinds = {"s": "SHARED", "l": "LIMIT 1000000", "r": "REENTRANT", "e": "EPHEMERAL 3000000"}
        for short, options in kinds.items():
            key = "shared" if short == "s" and turn % 3 else f"{short}{name}"
            self.take(key, f"{owner}-{turn}", options)
            if turn % 2:
                self.take(key, f"{owner}-{turn}", options if short == "r" else f"{options} REENTRANT", again=True)
        keys = [f"m{name}", f"n{name}"]
        self.unsure.update((key, owner) for key in keys)
        token = take_all(self.cli, " ".join(keys), owner)
        self.held.update({(key, owner): (token, 1) for key in keys})
        self.unsure.difference_update((key, owner) for key in keys)
        gone = (f"m{name}", owner)
        self.unsure.add(gone)
        self.cli("LOCK.RELEASE", *gone)
        self.ended.add(gone)
        self.unsure.discard(gone)
        del self.held[gone]

    def take(self, key, owner, options, again=False):
        self.unsure.add((key, owner))
        token = take(self.cli, key, owner, options)
        self.held[key, owner] = (token, 2 if again else 1)
        self.unsure.discard((key, owner))


@pytest.mark.parametrize("preamble", ["yes", "no"])
@pytest.mark.parametrize("is_rewritten", [False, True], ids=["", "rewritten"])
def test_no_answered_hold_is_lost_by_a_kill_under_load(start_server, preamble, is_rewritten):
    # G13: appendfsync always
    server = start_server(*ALWAYS, "--aof-use-rdb-preamble", preamble)
    loads = [Load(server, number) for number in range(3)]
    for load in loads:
        load.start()
    eventually(lambda: all(len(load.held) > 100 for load in loads))
    if is_rewritten:
        server.admin("BGREWRITEAOF")
        eventually(lambda: server.info("persistence")["aof_rewrite_in_progress"] == "0", "it is rewritten")
        marks = [len(load.held) for load in loads]
        eventually(lambda: all(len(load.held) > mark + 20 for load, mark in zip(loads, marks)))
    server.process.kill()
    for load in loads:
        load.join(60 * SLOW_FACTOR)
        assert not load.is_alive()
    server.kill()
    cli = server.start().connect()
    highest = 0
    infos = {}
    for load in loads:
        for (key, owner), (token, times) in load.held.items():
            highest = max(highest, token)
            if key not in infos:
                info = lock_info(cli, key)
                infos[key] = {hold["owner"]: hold for hold in info["holders"]} if info else {}
            if (key, owner) in load.unsure:
                continue
            hold = infos[key].get(owner)
            assert hold is not None, (key, owner, "is lost")
            assert (hold["token"], hold["count"]) == (token, times), (key, owner)
        for key, owner in load.ended:
            assert hold_of(cli, key, owner) is None, (key, "came back")
    assert take(cli, "fresh", "new") > highest


# Keys that come and go

COMMANDS = [
    "RENAME door away", "MOVE door 1", "SWAPDB 0 1", "DEL door", "SET door x", "COPY door other", "FLUSHDB",
    "PEXPIRE door 3000000", "RENAMENX door away", "UNLINK door gate",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_whatever_is_done_to_keys_everybody_agrees(start_server, command):
    # G13: replica, append-only file, RDB, each with waiters behind
    server = start_server(*AT_ONCE, *ALWAYS, *PLAIN)
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}")
    is_linked(replica)
    cli, reader = server.connect(), replica.connect()
    kinds = {"": ("", 1), "twice": ("REENTRANT", 1), "read": ("SHARED", 3), "pool": ("LIMIT 3", 3), "crowd": ("LIMIT 50", 20)}
    for name, (options, holders) in kinds.items():
        for n in range(holders):
            for _ in range(2):
                take(cli, "door", f"h{n}", options)
        waiter = ask(server, "door", "next", options if "LIMIT" in options else "") if name != "crowd" else None
        both = ask_all(server, "door gate", "both") if "LIMIT" not in options else None
        cli.pipeline(command)
        if waiter is not None and command not in ("COPY door other", "PEXPIRE door 3000000"):
            waiting = [each for each in (waiter, both) if each is not None]
            if command == "SET door x":
                # CONTRACT 5: what was written stays
                for each in waiting:
                    with refused("WRONGTYPE"):
                        each.answer()
            else:
                if name not in ("pool",):
                    assert isinstance(waiter.answer(), int)
                    cli("LOCK.RELEASE door next")
                if both is not None:
                    assert isinstance(both.answer(), int)
        eventually(lambda: cli("WAIT 1 1000") == 1)
        eventually(lambda: reader("DEBUG DIGEST") == cli("DEBUG DIGEST"), f"the same digest: {name}")
        assert locks_of(reader) == locks_of(cli) if cli("TYPE door") != "string" else True
        for connection in server.connections[1:]:
            connection.close()
        eventually(lambda: count(cli, "waiters") == 0)
        digest = cli("DEBUG DIGEST")
        cli("DEBUG LOADAOF")
        assert cli("DEBUG DIGEST") == digest, name
        cli("DEBUG RELOAD")
        assert cli("DEBUG DIGEST") == digest, name
        cli("FLUSHALL")
