"""Random requests of all kinds, as fast as they come: everybody agrees afterwards.

G13 (replica, append-only file), G1 (kinds and limits), G3, G7. A failure names its seed.
"""

import random

import pytest

from harness.kinds import count
from harness.limits import eventually
from harness.replicas import AT_ONCE, is_linked
from harness.replies import lock_info
from harness.walk import leases_of, locks_of
from harness.wire import ServerError

KEYS = [f"k{n}" for n in range(10)]
OWNERS = [f"o{n}" for n in range(5)]
EXPECTED_ERRORS = {"LOCKKIND", "LOCKHELD", "DEADLOCK", "UNBLOCKED"}
LEASES_MS = [5, 20, 50, 3_000_000, 3_600_000]
MODES = ["", "", "SHARED", "SHARED", "LIMIT 3"]


def request(chance, may_tie):
    """One random command in one line."""
    key, owner = chance.choice(KEYS), chance.choice(OWNERS)
    lease_ms = chance.choice(LEASES_MS)
    dice = chance.random()
    if dice < 0.45:
        # Each key is mostly used in one way, or all requests would disagree.
        mode = chance.choice(MODES) if key in ("k0", "k1") else {"k2": "LIMIT 3"}.get(key, chance.choice(MODES[:4]))
        line = f"LOCK.ACQUIRE {key} {owner} PX {lease_ms} {mode}"
        if not mode and chance.random() < 0.3:
            line += " REENTRANT"
        if may_tie and chance.random() < 0.3:
            line += chance.choice([" EPHEMERAL 0", " EPHEMERAL 30", " KEEPALIVE", " EPHEMERAL 10 KEEPALIVE"])
        if chance.random() < 0.3:
            line += f" QUEUE {chance.choice([1, 10, 100])}"
        return line
    if dice < 0.55:
        keys = chance.sample(KEYS, chance.randint(1, 4))
        shared = chance.choice(["", "SHARED"])
        return f"LOCK.MACQUIRE {len(keys)} {' '.join(keys)} {owner} PX {lease_ms} {shared}"
    if dice < 0.80:
        return f"LOCK.RELEASE {key} {owner}"
    if dice < 0.92:
        return f"LOCK.RENEW {key} {owner} PX {lease_ms}"
    return chance.choice([f"DEL {key}", f"RENAME {key} x", f"SET {key} x", f"PEXPIRE {key} 3", "DEL x"])


def waiting_request(chance):
    """A request that may wait, for a while."""
    owner, block_ms = chance.choice(OWNERS), chance.choice([1, 5, 30])
    if chance.random() < 0.3:
        keys = chance.sample(KEYS, chance.randint(2, 4))
        mode = chance.choice(["", "SHARED"])
        return f"LOCK.MACQUIRE {len(keys)} {' '.join(keys)} {owner} PX 20 BLOCK {block_ms} {mode}"
    key = chance.choice(KEYS)
    mode = "LIMIT 3" if key == "k2" else chance.choice(["", "SHARED"])
    return f"LOCK.ACQUIRE {key} {owner} PX 20 BLOCK {block_ms} {mode}"


def check_replies(replies):
    """Asserts that all replies are ones that a program can meet."""
    for reply in replies:
        if isinstance(reply, ServerError):
            known = reply.code in EXPECTED_ERRORS or "no such key" in reply.line or reply.code == "WRONGTYPE"
            assert known, reply.line


def check_limits(cli):
    """G1, G9"""
    for key in cli("KEYS *"):
        if cli("TYPE", key) != "redislock":
            continue
        info = lock_info(cli, key, "FULL")
        holders = info["holders"] if info else []
        owners = [hold["owner"] for hold in holders]
        assert len(set(owners)) == len(owners)
        most = {"exclusive": 1, "shared": len(OWNERS), "limit": info["limit"] if info else 0}
        assert not holders or len(holders) <= most[info["kind"]], info


def settle_down(cli):
    """Short leases end, places lapse; strings are removed, as LOCK.INFO does not show them."""
    eventually(lambda: count(cli, "waiters") == 0, "nobody waits")
    for key in cli("KEYS *"):
        if cli("TYPE", key) != "redislock":
            cli("DEL", key)

    def is_calm():
        leases = leases_of(cli)
        # Keys that a user gave a time to live are hidden a moment before they are removed.
        if cli("DBSIZE") != len(cli("KEYS *")) or any(cli("PTTL", key) >= 0 for key in cli("KEYS *")):
            return False
        return count(cli, "holds") == len(leases) and all(left > 1_000_000 for left in leases.values())

    eventually(is_calm, "short leases end")


def picture_of(cli):
    """All locks and the digest of the same moment: a lease may end between two questions."""
    for _ in range(50):
        before, digest = locks_of(cli, with_ties=False), cli("DEBUG DIGEST")
        if locks_of(cli, with_ties=False) == before:
            return before, digest
    raise AssertionError("leases end all the time")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(6))
def test_replica_and_file_agree_after_random_requests(start_server, seed):
    # G13
    chance = random.Random(seed)
    server = start_server(*AT_ONCE, "--appendonly", "yes", "--appendfsync", "no", "--aof-use-rdb-preamble", "no")
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}")
    is_linked(replica)
    cli, reader = server.connect(), replica.connect()
    for round_number in range(12):
        clients = [server.connect() for _ in range(3)]
        waiting = [server.connect() for _ in range(3)]
        for _ in range(8):
            for client in waiting:
                client.send(waiting_request(chance))
            for client in clients:
                check_replies(client.pipeline(*[request(chance, True) for _ in range(12)]))
            check_limits(cli)
            check_replies([client.read_any() for client in waiting])  # G7: one answer each
        for client in clients + waiting:
            client.close()
        eventually(lambda: server.info("clients")["connected_clients"] <= "4", "the clients are gone")
        settle_down(cli)
        what = f"seed {seed}, round {round_number}"
        assert cli("WAIT 1 10000") == 1
        here = locks_of(cli)
        assert locks_of(reader) == here, what
        assert reader("DEBUG DIGEST") == cli("DEBUG DIGEST"), what
        assert count(reader, "holds") == count(cli, "holds"), what
    before, digest = picture_of(cli)
    cli("CONFIG SET appendfsync always")
    server.kill()
    cli = server.start().connect()
    assert locks_of(cli, with_ties=False) == before, f"seed {seed}, after a restart"
    assert cli("DEBUG DIGEST") == digest


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_left_after_random_requests(server, cli, seed):
    # G3, G7: a waiter is answered, and no lock without a hold stays
    chance = random.Random(1000 + seed)
    for _ in range(10):
        waiting = [server.connect() for _ in range(4)]
        for client in waiting:
            client.send(waiting_request(chance))
        check_replies(cli.pipeline(*[request(chance, False) for _ in range(60)]))
        check_limits(cli)
        check_replies([client.read_any() for client in waiting])
    for key in [*KEYS, "x"]:
        for owner in OWNERS:
            while cli("LOCK.RELEASE", key, owner) == 1 if cli("TYPE", key) == "redislock" else False:
                pass
    eventually(lambda: count(cli, "waiters") == 0, "places lapse")
    cli("FLUSHALL")
    eventually(lambda: (count(cli, "locks"), count(cli, "holds")) == (0, 0), "nothing is left")
