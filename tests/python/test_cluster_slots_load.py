"""Many clients use locks of all kinds while their slot goes to and fro between two nodes.

G1 (never more holders than may be), G10 (no hold is lost), G4, G7, G12. Judged by the clients' observations: a hold
lasts at least from its reply to the sending of its release.
"""

import random
import threading
import time
from typing import NamedTuple

import pytest

from harness.cluster import WAYS, Cluster, Follower, try_to_move
from harness.kinds import count, take, take_all
from harness.limits import SLOW_FACTOR, eventually
from harness.walk import locks_of
from harness.wire import ServerError

MOVES = 8
CLIENTS = 5
LEASE_MS = 60_000 * SLOW_FACTOR
BLOCK_MS = 500
# How often a lock may come to a node while one request waits there.
ARRIVALS_MAX = 10


class Hold(NamedTuple):
    """A client's knowledge of a hold that it had."""

    keys: list
    mode: str
    token: int
    since: float
    until: float


class Worker(threading.Thread):
    """One client after another: takes something, holds it for a moment, gives it up."""

    def __init__(self, cluster, number, stop):
        super().__init__()
        self.client, self.number, self.stop = Follower(cluster), number, stop
        self.chance = random.Random(number)
        self.holds, self.lost, self.failure = [], [], None

    def run(self):
        try:
            turn = 0
            while not self.stop.is_set():
                turn += 1
                self.use(f"w{self.number}-{turn}")
        except Exception as failure:
            self.failure = failure

    def use(self, owner):
        """One hold, perhaps of several locks, perhaps counted twice."""
        kind = self.chance.choice(["alone", "read", "write", "pool", "several", "twice"])
        keys, mode, times = {
            "alone": (["{b}alone"], "", 1),
            "read": (["{b}book"], "SHARED", 1),
            "write": (["{b}book"], "", 1),
            "pool": (["{b}pool"], "LIMIT 2", 1),
            "several": (self.chance.sample(["{b}1", "{b}2", "{b}3"], 2), "", 1),
            "twice": (["{b}twice"], "REENTRANT", 2),
        }[kind]
        token = None
        for _ in range(times):
            token = self.take(keys, owner, mode)
            if token is None:
                return
        since = time.monotonic()
        time.sleep(self.chance.random() * 0.004)
        until = time.monotonic()
        for key in keys:
            for _ in range(times):
                if self.client("LOCK.RELEASE", key, owner, "TOKEN", token) != 1:
                    self.lost.append((key, owner, token))
        self.holds.append(Hold(keys, mode, token, since, until))

    def take(self, keys, owner, mode):
        """The token; None if the wait was in vain."""
        for _ in range(ARRIVALS_MAX):
            try:
                if len(keys) > 1:
                    return take_all(self.client, " ".join(keys), owner, mode, "BLOCK", BLOCK_MS, lease_ms=LEASE_MS)
                return take(self.client, keys[0], owner, mode, "BLOCK", BLOCK_MS, lease_ms=LEASE_MS)
            except ServerError as error:
                # The lock came with its slot to a node where this client waited already. The error says to ask again.
                if error.code != "UNBLOCKED":
                    raise
        raise AssertionError(f"sent away from {keys} again and again")


def most_at_once(holds):
    """The highest number of these holds at one time."""
    steps = sorted([(hold.since, 1) for hold in holds] + [(hold.until, -1) for hold in holds])
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


def check(holds):
    """Checks that the clients' observations are possible."""
    by_key = {}
    for hold in holds:
        for key in hold.keys:
            by_key.setdefault(key, []).append(hold)
    for key, all_of_it in by_key.items():
        if key == "{b}pool":
            assert most_at_once(all_of_it) <= 2
            continue
        writers = [hold for hold in all_of_it if hold.mode != "SHARED"]
        assert most_at_once(writers) <= 1, f"G1: {key}"
        for reader in [hold for hold in all_of_it if hold.mode == "SHARED"]:
            beside = [w for w in writers if w.since < reader.until and reader.since < w.until]
            assert not beside, f"G1: {reader} and {beside}"
        # G4: one after the other, wherever they were granted
        writers.sort(key=lambda hold: hold.since)
        tokens = [hold.token for hold in writers]
        assert tokens == sorted(set(tokens)), key
    return by_key


@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", WAYS)
def test_no_hold_is_lost_and_none_is_given_out_twice(start_server, way):
    cluster = Cluster(start_server)
    stop = threading.Event()
    workers = [Worker(cluster, number, stop) for number in range(CLIENTS)]
    for worker in workers:
        worker.start()
    try:
        for number in range(MOVES):
            eventually(lambda: all(not worker.is_alive() or worker.holds for worker in workers), "they work")
            time.sleep(0.05)
            try_to_move(cluster, way, "{b}", number % 2)
    finally:
        stop.set()
        for worker in workers:
            worker.join(60 * SLOW_FACTOR)
    for worker in workers:
        assert not worker.is_alive(), "G7: everybody is answered"
        assert worker.failure is None, repr(worker.failure)
        assert not worker.lost, "G10"
    used = check([hold for worker in workers for hold in worker.holds])
    assert len(used) >= 6, "all kinds were used"
    for node in cluster.nodes:
        cli = node.connect()
        eventually(lambda cli=cli: count(cli, "waiters") == count(cli, "holds") == 0, "nothing is left")
        assert locks_of(cli) == {}
