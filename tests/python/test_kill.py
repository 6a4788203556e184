"""kill -9 during load, with appendfsync always: no lock lost, no token twice.

G4 and G13 over a restart (CONTRACT 6, `local`: an answered command was written).
"""

import random
import threading
import time

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from harness.kinds import hold_of, take, take_all
from harness.limits import SLOW_FACTOR, eventually
from harness.replies import lock_info, owner_of
from harness.wire import Closed, NoReply

ROUNDS = 3
THREADS = 6
LEASE_SECONDS = 3600
# The grants of a round, at least.
TOKENS = 100


class Ledger:
    """The replies to one client before the server was killed."""

    def __init__(self):
        self.held = {}  # (lock, owner): token, answered and not released since
        self.released = {}  # (lock, owner): token, and the release was answered
        self.tokens = []


def load(port, name, ledger, until):
    """Takes locks of its own and one that all want, until the server is gone."""
    client = redis.Redis(port=port, socket_timeout=30, retry=Retry(NoBackoff(), 0))
    chance = random.Random(name)
    turn = 0
    try:
        while time.monotonic() < until:
            turn += 1
            owner = f"{name}.{turn}"
            common = turn % 4 == 0
            lock = f"common:{name[0]}" if common else f"lock:{owner}"
            block = ["BLOCK", 20] if common else []
            token = client.execute_command(
                "LOCK.ACQUIRE", lock, owner, "EX", LEASE_SECONDS, *block
            )
            if token is None:
                continue
            ledger.tokens.append(token)
            ledger.held[lock, owner] = token
            if common or chance.random() < 0.5:
                del ledger.held[lock, owner]  # from now on it may be either
                if client.execute_command("LOCK.RELEASE", lock, owner) == 1:
                    ledger.released[lock, owner] = token
    except RedisError:
        pass  # the server was killed; what it had answered is in the ledger
    finally:
        client.close()


def run_until_killed(server, round_number):
    """Load on the server, which is killed in the middle of it."""
    ledgers = [Ledger() for _ in range(THREADS)]
    until = time.monotonic() + 50
    threads = [
        threading.Thread(
            target=load, args=[server.port, f"{round_number}.{n}", ledgers[n], until]
        )
        for n in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: sum(len(ledger.tokens) for ledger in ledgers) > TOKENS, "there is load")
    time.sleep(0.4 + random.Random(round_number).random() * 0.4)
    server.kill()
    for thread in threads:
        thread.join(40)
        assert not thread.is_alive(), "a client hangs on a dead server"
    return ledgers


def assert_nothing_was_lost(cli, ledgers):
    """Checks that every answered grant holds, and every answered release."""
    for ledger in ledgers:
        for (lock, owner), token in ledger.held.items():
            assert cli("LOCK.FENCE", lock, token) == 1, (lock, owner, token)
            assert owner_of(cli, lock) == owner
        for (lock, owner), token in ledger.released.items():
            assert cli("LOCK.FENCE", lock, token) == 0, (lock, owner, token)


def test_kill_9_under_load_loses_no_lock_and_repeats_no_token(start_server):
    server = start_server("--appendonly", "yes", "--appendfsync", "always")
    highest = 0
    everything = []
    for round_number in range(ROUNDS):
        ledgers = run_until_killed(server, round_number)
        everything += ledgers
        tokens = [token for ledger in ledgers for token in ledger.tokens]
        assert len(set(tokens)) == len(tokens), "no token twice"
        assert min(tokens) > highest, "tokens go on above those before the restart"
        highest = max(tokens)
        cli = server.start().connect()
        assert_nothing_was_lost(cli, everything)
        assert cli("LOCK.ACQUIRE", f"after:{round_number}", "x", "EX", 3600) > highest
    held = sum(len(ledger.held) for ledger in everything)
    released = sum(len(ledger.released) for ledger in everything)
    assert held > 20 and released > 20, "both were put to the test"


def test_a_killed_server_forgets_who_waited_but_not_who_held(start_server):
    # CONTRACT 4: queues live in memory; G7: their connections are closed
    server = start_server("--appendonly", "yes", "--appendfsync", "always")
    cli = server.connect()
    token = cli("LOCK.ACQUIRE door alice PX 3600000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    assert bob.waits()
    server.kill()
    cli = server.start().connect()
    assert cli("LOCK.FENCE", "door", token) == 1
    assert cli("LOCK.ACQUIRE door carol PX 60000") is None
    assert cli("LOCK.RELEASE door alice") == 1
    assert cli("DBSIZE") == 0
    assert cli("LOCK.ACQUIRE door carol PX 60000") > token


def test_a_token_of_a_freed_lock_is_not_minted_again_after_a_kill(start_server):
    # G4: no key is left to remember it
    server = start_server("--appendonly", "yes", "--appendfsync", "always")
    cli = server.connect()
    tokens = []
    for n in range(200):
        tokens.append(cli("LOCK.ACQUIRE", f"door:{n}", "alice", "PX", 60000))
        cli("LOCK.RELEASE", f"door:{n}", "alice")
    server.kill()
    cli = server.start().connect()
    assert cli("DBSIZE") == 0
    assert cli("LOCK.ACQUIRE door alice PX 60000") > max(tokens)


def test_a_lease_that_ended_while_the_server_was_down_or_later_does_end(start_server):
    # G3 over a restart
    server = start_server("--appendonly", "yes", "--appendfsync", "always")
    cli = server.connect()
    cli("LOCK.ACQUIRE door alice PX 500")
    cli("LOCK.ACQUIRE gate alice PX 3600000")
    server.kill()
    cli = server.start().connect()
    deadline = time.monotonic() + 15
    while cli("LOCK.FENCE door") is not None:
        assert time.monotonic() < deadline, "the lease does not end"
        time.sleep(0.01)
    assert owner_of(cli, "gate") == "alice"


# Locks of all kinds


class Load(threading.Thread):
    """Takes locks of all kinds, one after the other, and notes the replies."""

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
            if turn % 2 and short in ("r", "e"):
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
    server = start_server("--appendonly", "yes", "--appendfsync", "always", "--aof-use-rdb-preamble", preamble)
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
                info = lock_info(cli, key, "FULL", "COUNT", 2_000)
                infos[key] = {hold["owner"]: hold for hold in info["holders"]} if info else {}
            if (key, owner) in load.unsure:
                continue
            hold = infos[key].get(owner)
            assert hold is not None, (key, owner, "is lost")
            assert (hold["token"], hold["count"]) == (token, times), (key, owner)
        for key, owner in load.ended:
            assert hold_of(cli, key, owner) is None, (key, "came back")
    assert take(cli, "fresh", "new") > highest
