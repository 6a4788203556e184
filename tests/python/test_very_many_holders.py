"""Locks with so many holders that files and payloads have them in blocks (src/lock/codec/packed.rs)."""

import random

import pytest

from harness.kinds import count, release, take
from harness.limits import eventually
from harness.payload import body, dump, seal
from harness.replicas import AT_ONCE, is_linked
from harness.replies import lock_info
from harness.wire import ServerError

UNPACKED_MAX = 1000
KINDS = {"LIMIT": "LIMIT 5000", "SHARED": "SHARED"}


def fill(cli, options, holders=UNPACKED_MAX + 501, longest=256):
    """A lock with `holders` holders of all sorts, whose names have up to `longest` bytes."""
    more = ["", "EPHEMERAL 0 KEEPALIVE", "EPHEMERAL 60000", "KEEPALIVE"]
    cli.pipeline(*[
        ("LOCK.ACQUIRE", "door", f"{n}:".ljust(1 + n % longest, "o"), "PX", 3_600_000, *options.split(), *more[n % 4].split())
        for n in range(holders)
    ])
    assert lock_info(cli, "door")["holds"] == holders


def state(cli):
    """The lock as it is, without what time changes."""
    info = lock_info(cli, "door", "FULL", "COUNT", "2000")
    holders = [(hold["owner"], hold["token"], hold["count"]) for hold in info["holders"]]
    return info["holds"], holders, cli("DEBUG DIGEST-VALUE door")


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("is_compressed", ["yes", "no"])
def test_a_lock_of_very_many_holders_is_saved_in_blocks(start_server, options, is_compressed):
    server = start_server("--rdbcompression", is_compressed, "--appendonly", "yes")
    cli = server.connect()
    fill(cli, options)
    before = state(cli)
    payload = dump(cli, "door")
    # What the owners' names take alone, and in numbers.
    assert is_compressed == "yes" or 150_000 < len(payload) < 350_000, len(payload)
    cli("RESTORE", "door", 0, payload, "REPLACE")
    assert state(cli) == before
    cli("RESTORE", "window", 0, payload)
    assert lock_info(cli, "window") is None, "it is a lock under its own name only"
    cli("SAVE")
    server.admin("BGREWRITEAOF")
    eventually(lambda: server.info("persistence")["aof_rewrite_in_progress"] == "0", "it is rewritten")
    server.stop()
    server.start()
    cli = server.connect()
    assert state(cli) == before
    for owner, _, _ in before[1][:700]:
        release(cli, "door", owner)
    assert take(cli, "door", "newcomer", *options.split()) > before[1][-1][1]
    eventually(lambda: count(cli, "holds") == len(before[1]) - 700 + 1, "nothing is left of what was replaced")


def test_a_replica_gets_a_lock_of_very_many_holders(start_server):
    primary = start_server(*AT_ONCE)
    cli = primary.connect()
    fill(cli, "SHARED")
    replica = start_server(*AT_ONCE, "--replicaof", f"127.0.0.1 {primary.port}")
    is_linked(replica)
    assert state(replica.connect()) == state(cli)


def test_one_holder_more_is_one_string_more(start_server):
    cli = start_server("--rdbcompression", "no").connect()
    fill(cli, "SHARED", UNPACKED_MAX)
    unpacked = dump(cli, "door")
    take(cli, "door", "last", "SHARED")
    packed = dump(cli, "door")
    # A number of the row is two bytes longer than in a block.
    assert len(packed) < len(unpacked) - 2 * UNPACKED_MAX
    for payload, holds in ((unpacked, UNPACKED_MAX), (packed, UNPACKED_MAX + 1)):
        cli("RESTORE", "door", 0, payload, "REPLACE")
        assert lock_info(cli, "door")["holds"] == holds


@pytest.mark.parametrize("is_compressed", ["yes", "no"])
def test_bytes_changed_at_random_in_blocks_harm_nothing(start_server, is_compressed):
    # G14
    server = start_server("--rdbcompression", is_compressed)
    cli = server.connect()
    # A checksum of Python takes long.
    fill(cli, "SHARED", UNPACKED_MAX + 1, longest=1)
    payload = dump(cli, "door")
    good, rng, refusals = body(payload), random.Random(7), 0
    for number in range(400):
        bad = bytearray(good)
        # Half of them where the row begins.
        place = rng.randrange(60) if number % 2 else rng.randrange(len(bad))
        if number % 5 == 0:
            del bad[place:]
        else:
            bad[place] ^= 1 << rng.randrange(8)
        (reply,) = cli.pipeline(["RESTORE", "door", 0, seal(bytes(bad), payload), "REPLACE"])
        refusals += isinstance(reply, ServerError)
    assert server.is_alive(), server.log_tail()
    assert refusals > 130
    cli("DEL door")
    assert take(cli, "door", "alice") > 0
    eventually(lambda: count(cli, "holds") == 1, "no hold is left of them")
