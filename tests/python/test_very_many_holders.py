"""Locks with enough holders to fill several blocks of files and payloads (src/lock/codec/blocks.rs)."""

import random

import pytest

from harness.kinds import count, release, take
from harness.limits import eventually
from harness.payload import blocks_of, body, body_of, dump, seal
from harness.replicas import AT_ONCE, is_linked
from harness.replies import lock_info
from harness.wire import ServerError

BLOCK_BYTES_MAX = 16 * 1024
KINDS = {"LIMIT": "LIMIT 5000", "SHARED": "SHARED"}


def fill(cli, options, holders=1501, longest=256):
    """A lock with `holders` holders of all sorts, whose names have up to `longest` bytes."""
    more = ["", "EPHEMERAL 0 KEEPALIVE", "EPHEMERAL 60000", "KEEPALIVE"]
    cli.pipeline(*[
        ("LOCK.ACQUIRE", "door", f"{n}:".ljust(1 + n % longest, "o"), "PX", 3_600_000, *options.split(), *more[n % 4].split())
        for n in range(holders)
    ])
    assert lock_info(cli, "door")["holds"] == holders


def state(cli):
    """The lock as it is, without the fields that time changes."""
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
    # The size of the owners' names alone, and with the data of each.
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


def test_blocks_are_full_and_no_row_lies_in_two(start_server):
    cli = start_server("--rdbcompression", "no").connect()
    fill(cli, "SHARED")
    payload = dump(cli, "door")
    module, blocks = blocks_of(body(payload))
    assert len(blocks) > 5 and max(map(len, blocks)) <= BLOCK_BYTES_MAX
    assert [block[:2] for block in blocks] == [b"\1\0"] * (len(blocks) - 1) + [b"\1\1"]
    for block, behind in zip(blocks, blocks[1:]):
        assert len(block) + 2 + int.from_bytes(behind[2:4], "little") > BLOCK_BYTES_MAX
    cli("DEL door")
    # Wherever they end.
    size = 4 + int.from_bytes(blocks[1][2:4], "little")
    split = [blocks[0], blocks[1][:size], b"\1\0" + blocks[1][size:], *blocks[2:]]
    cli("RESTORE", "door", 0, seal(body_of(module, split), payload))
    assert lock_info(cli, "door")["holds"] == 1501
    for bad in ([*blocks[:-1]], [*blocks, blocks[-1]], [blocks[0], *blocks[2:]], [blocks[0] + b"x" * BLOCK_BYTES_MAX, *blocks[1:]]):
        (reply,) = cli.pipeline(["RESTORE", "door", 0, seal(body_of(module, bad), payload), "REPLACE"])
        assert isinstance(reply, ServerError)
    assert lock_info(cli, "door")["holds"] == 1501, "it is as it was"


@pytest.mark.parametrize("is_compressed", ["yes", "no"])
def test_bytes_changed_at_random_in_blocks_harm_nothing(start_server, is_compressed):
    # G14
    server = start_server("--rdbcompression", is_compressed)
    cli = server.connect()
    # A checksum of Python takes long.
    fill(cli, "SHARED", 1001, longest=1)
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
