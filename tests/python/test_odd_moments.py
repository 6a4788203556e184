"""Things that happen at the same moment, or in an unexpected order.

G1, G6, G7: one holder, no lost wake-up, one answer, whatever comes first.
"""

import time

import pytest

from harness.limits import SLOW_FACTOR, eventually
from harness.replies import module_info, owner_of, waiters_of
from harness.wire import encode

MAX = 2**53 - 1


def test_a_wait_that_ends_as_the_lock_is_freed_is_answered_once(server, cli):
    # G7: a token, and then the lock is bob's; or nil, and then it is not
    answers = set()
    for turn in range(60):
        lock = f"door:{turn}"
        cli("LOCK.ACQUIRE", lock, "alice", "PX", 60000)
        bob = server.ask("LOCK.ACQUIRE", lock, "bob", "PX", 60000, "BLOCK", 15)
        time.sleep((turn % 20) / 1000)
        assert cli("LOCK.RELEASE", lock, "alice") == 1
        token = bob.answer()
        answers.add(token is None)
        assert bob.connection("PING") == "PONG", "one answer, not two"
        assert cli("LOCK.FENCE", lock) == token
        bob.leave()
    assert False in answers


def test_a_lease_and_a_wait_that_end_together(server, cli):
    # G6, G7: the deadlines of the holder and of the waiter fall on one millisecond
    for turn in range(40):
        lock = f"door:{turn}"
        bob = server.connect()
        cli("LOCK.ACQUIRE", lock, "alice", "PX", 15)
        bob.send("LOCK.ACQUIRE", lock, "bob", "PX", 60000, "BLOCK", 15)
        token = bob.read()
        assert cli("LOCK.FENCE", lock) == token
        bob.close()


def test_two_clients_release_at_once(server, cli):
    # G10: one of them receives 1
    other = server.connect()
    for turn in range(50):
        cli("LOCK.ACQUIRE door alice PX 60000")
        cli.send("LOCK.RELEASE door alice")
        other.send("LOCK.RELEASE door alice")
        assert sorted([cli.read(), other.read()]) == [0, 1]


def test_many_clients_ask_at_once_and_one_gets_it(server):
    # G1
    clients = [server.connect() for _ in range(30)]
    for turn in range(20):
        for n, client in enumerate(clients):
            client.send("LOCK.ACQUIRE", f"door:{turn}", f"owner:{n}", "PX", 60000)
        tokens = [client.read() for client in clients]
        assert len([token for token in tokens if token is not None]) == 1


def test_the_longest_wait_does_not_wrap_around(server, cli):
    # G7: now + BLOCK must not overflow into the past
    cli("LOCK.ACQUIRE door alice PX 60000")
    for n, block in enumerate((MAX, MAX - 1, 2**52, 2**32, 2**31)):
        owner = f"waiter-{n}"
        assert server.ask("LOCK.ACQUIRE", "door", owner, "PX", 1, "BLOCK", block).waits()
    assert waiters_of(cli, "door") == 5


def test_the_longest_lease_does_not_wrap_around(cli):
    cli("CONFIG SET redislock.max-lease 86400000")
    token = cli("LOCK.ACQUIRE door alice PX 86400000")
    cli("LOCK.ACQUIRE gate alice PX 1")
    eventually(lambda: cli("EXISTS gate") == 0, "short leases end")
    assert cli("LOCK.FENCE", "door", token) == 1


# Values that are freed later


@pytest.mark.parametrize("command", ["FLUSHALL", "FLUSHALL ASYNC", "FLUSHDB ASYNC"])
def test_what_a_flush_frees_later_does_not_harm_what_was_taken_since(cli, command):
    # G10: the server may free flushed keys on a thread, when new locks are held
    names = [f"door:{n}" for n in range(500)]
    take = [encode("LOCK.ACQUIRE", name, "alice", "PX", 3600000) for name in names]
    for _ in range(5):
        cli.send_bytes(b"".join(take) + encode(command) + b"".join(take))
        before = [cli.read() for _ in names]
        assert cli.read() == "OK"
        after = [cli.read() for _ in names]
        assert min(after) > max(before), "new holds, not the flushed ones"
        eventually(lambda: module_info(cli)["locks"] == "500", "the flush is digested")
        for name, token in zip(names, after):
            assert cli("LOCK.FENCE", name, token) == 1
            assert cli("LOCK.RENEW", name, "alice", "PX", 3600000, "TOKEN", token) == 1
        cli("FLUSHALL")


@pytest.mark.parametrize(
    "command",
    [
        "DEL door",
        "UNLINK door",
        "FLUSHALL",
        "FLUSHALL ASYNC",
        "RENAME door gate",
        "MOVE door 1",
        "SWAPDB 0 1",
        "PEXPIRE door -1",
    ],
)
@pytest.mark.parametrize("way", ["packet", "MULTI"])
@pytest.mark.parametrize("next_owner", ["alice", "bob"])
def test_a_lock_broken_and_taken_again_at_once(cli, command, way, next_owner):
    # G4, G10: later events of the server are about the old hold
    steps = [
        "LOCK.ACQUIRE door alice PX 60000",
        command,
        f"LOCK.ACQUIRE door {next_owner} PX 60000",
        "LOCK.FENCE door",
    ]
    if way == "MULTI":
        first, _, second, fence = cli.pipeline("MULTI", *steps, "EXEC")[-1]
    else:
        first, _, second, fence = cli.pipeline(*steps)
    assert fence == second > first
    time.sleep(0.02)  # whatever is late has its chance
    assert cli("LOCK.FENCE", "door", second) == 1
    assert cli("LOCK.FENCE", "door", first) == 0
    assert owner_of(cli, "door") == next_owner
    assert cli("LOCK.RELEASE", "door", next_owner, "TOKEN", second) == 1


@pytest.mark.parametrize(
    "there_and_back",
    [
        ["RENAME door gate", "RENAME gate door"],
        ["SWAPDB 0 1", "SWAPDB 0 1"],
        ["MOVE door 1", "SELECT 1", "MOVE door 0", "SELECT 0"],
    ],
    ids=["RENAME", "SWAPDB", "MOVE"],
)
@pytest.mark.parametrize("way", ["commands", "packet", "MULTI"])
def test_a_broken_hold_does_not_come_back_with_its_key(cli, there_and_back, way):
    # CONTRACT 5: it is broken, for good
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    if way == "MULTI":
        cli.pipeline("MULTI", *there_and_back, "EXEC")
    elif way == "packet":
        cli.pipeline(*there_and_back)
    else:
        for step in there_and_back:
            cli(step)
    assert cli("EXISTS door") == 1
    assert cli("LOCK.FENCE", "door", token) == 0
    assert cli("LOCK.INFO door") is None
    assert cli("LOCK.RENEW door alice PX 60000") == 0
    assert cli("LOCK.ACQUIRE door bob PX 60000") > token


def test_keys_come_and_go_while_leases_end(server, cli):
    # G1, G3, G6: every way to break a lock, over and over, with short leases
    waiters = [server.connect() for _ in range(6)]
    breaks = ["DEL", "RENAME", "FLUSHALL", "SET", "SWAPDB", "MOVE", "RELEASE"]
    commands = {
        "DEL": "DEL door",
        "RENAME": "RENAMENX door gate",
        "FLUSHALL": "FLUSHALL ASYNC",
        "SET": "SET door x",
        "SWAPDB": "SWAPDB 0 1",
        "MOVE": "MOVE door 2",
        "RELEASE": "LOCK.RELEASE door w0",
    }
    tokens = []
    for turn in range(70):
        for n, waiter in enumerate(waiters):
            waiter.send("LOCK.ACQUIRE", "door", f"w{n}", "PX", 3, "BLOCK", 0)
        time.sleep(0.001)
        cli.pipeline(commands[breaks[turn % len(breaks)]])
        # A string at a key without waiters refuses the next request.
        answers = [waiter.read_any() for waiter in waiters]
        tokens += [answer for answer in answers if isinstance(answer, int)]
        cli.pipeline("DEL door gate", "LOCK.FENCE door")
    assert len(tokens) > 200
    assert len(set(tokens)) == len(tokens), "no token twice"
    eventually(lambda: cli("EXISTS door") == 0, "the last lease ends")
    assert int(server.info("clients")["blocked_clients"]) == 0


# Memory


def test_active_defragmentation_moves_no_lock_out_of_reach(start_server):
    # CONTRACT 5
    server = start_server()
    cli = server.connect()
    count = 20_000 // SLOW_FACTOR
    for start in range(0, count, 1000):
        cli.pipeline(
            *[
                ("LOCK.ACQUIRE", f"door:{n}", "alice" * 20, "PX", 3600000)
                for n in range(start, start + 1000)
            ]
        )
    tokens = {n: cli("LOCK.FENCE", f"door:{n}") for n in range(0, count, 7)}
    for start in range(0, count, 1000):
        cli.pipeline(
            *[("DEL", f"door:{n}") for n in range(start, start + 1000) if n % 7]
        )
    for setting in (
        "active-defrag-ignore-bytes 1",
        "active-defrag-threshold-lower 0",
        "active-defrag-cycle-min 50",
        "active-defrag-cycle-max 75",
    ):
        cli.pipeline(f"CONFIG SET {setting}")
    (reply,) = cli.pipeline("CONFIG SET activedefrag yes")
    if reply == "OK":  # not every build of a server can
        eventually(
            lambda: int(server.info("stats")["active_defrag_key_hits"])
            + int(server.info("stats")["active_defrag_key_misses"])
            > 0
            or int(server.info("memory")["allocator_frag_bytes"]) < 1_000_000,
            "keys are looked at",
        )
    for n, token in tokens.items():
        assert cli("LOCK.FENCE", f"door:{n}", token) == 1
        assert cli("LOCK.RELEASE", f"door:{n}", "alice" * 20) == 1
    assert cli("DBSIZE") == 0
