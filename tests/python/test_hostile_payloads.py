"""RESTORE of handmade payloads (G14).

The checksum is right, the value is not. The server must live, must not allocate
without bound, and must not get a token that is far ahead of the clock.
"""

import random
import struct
import time

import pytest

from harness.kinds import count
from harness.limits import SLOW_FACTOR
from harness.payload import body, crc64, dump, seal
from harness.replies import lock_info
from harness.samples import LOCKS
from harness.wire import ServerError

MAX_TOKEN_LEAD_MICROSECONDS = 60_000_000  # redislock.max-token-lead, as it starts


@pytest.fixture
def server(start_server):
    """A server of its own: a token that got in would stay with the tests after it."""
    return start_server()


@pytest.fixture
def payload(cli):
    """The dump of a lock called door, which is free again."""
    cli("LOCK.ACQUIRE door alice PX 60000")
    dumped = dump(cli, "door")
    cli("DEL door")
    return dumped


def restore(cli, changed_body, payload, key="door"):
    """Restores a body with a right checksum; returns the reply or the error."""
    (reply,) = cli.pipeline(("RESTORE", key, 0, seal(changed_body, payload), "REPLACE"))
    return reply


def assert_works(server, cli, key="door"):
    """Whatever was restored, the lock can be asked, freed and taken."""
    assert server.is_alive(), server.log_tail()
    highest = time.time() * 1e6 + MAX_TOKEN_LEAD_MICROSECONDS + 1e6
    for option in ([], ["FULL"]):
        info = lock_info(cli, key, *option)
    if info is not None:
        assert len(info["holders"]) == 1
        hold = info["holders"][0]
        assert 1 <= len(hold["owner"].encode("utf-8", "surrogateescape")) <= 256
        assert 0 < hold["token"] <= highest
        assert 0 <= hold["lease-left-ms"] <= 86_400_000
        assert cli("LOCK.FENCE", key, hold["token"]) == 1
    cli("DEBUG DIGEST")
    if cli("EXISTS", key):
        cli("DUMP", key)
        cli("MEMORY", "USAGE", key)
    cli("DEL", key)
    token = cli("LOCK.ACQUIRE", key, "zoe", "PX", 60000)
    assert 0 < token <= highest
    assert cli("LOCK.RELEASE", key, "zoe") == 1


def test_the_checksum_of_these_tests_is_the_servers(cli):
    # Else all that follows would be refused for its checksum and prove nothing.
    assert crc64(b"123456789") == 0xE9C6D914C4B8D9CA
    cli("LOCK.ACQUIRE door alice PX 60000")
    payload = dump(cli, "door")
    assert seal(body(payload), payload) == payload
    cli("DEL door")
    assert restore(cli, body(payload), payload) == "OK"
    assert lock_info(cli, "door")["holders"][0]["owner"] == "alice"


def test_every_bit_flipped(server, cli, payload):
    accepted = 0
    original = body(payload)
    for index in range(len(original)):
        for bit in range(8):
            changed = bytearray(original)
            changed[index] ^= 1 << bit
            accepted += restore(cli, bytes(changed), payload) == "OK"
            if index * 8 % 16 == 0 or bit == 7:
                assert_works(server, cli)
    assert_works(server, cli)
    assert accepted > 0, "some flips give another lock, as of the owner's name"


def test_every_byte_set_to_the_extremes(server, cli, payload):
    original = body(payload)
    for index in range(len(original)):
        for value in (0x00, 0x7F, 0x80, 0x81, 0xC0, 0xFF):
            changed = bytearray(original)
            changed[index] = value
            restore(cli, bytes(changed), payload)
        assert_works(server, cli)


def test_every_truncation(server, cli, payload):
    # The server reads on into its own footer, so that some pieces are whole again.
    original = body(payload)
    refused = 0
    for size in range(len(original)):
        refused += restore(cli, original[:size], payload) != "OK"
        assert_works(server, cli)
    assert refused >= len(original) - 4


def test_bytes_too_many(server, cli, payload):
    original = body(payload)
    for size in (1, 2, 8, 1000):
        for filler in (b"\0", b"\xff", b"\x02\x01"):
            restore(cli, original + filler * size, payload)
            assert_works(server, cli)


def test_bytes_at_random(server, cli, payload):
    chance = random.Random(20)
    original = body(payload)
    for _ in range(2000):
        changed = bytearray(original)
        for _ in range(chance.randint(1, 6)):
            where = chance.randrange(len(changed))
            if chance.random() < 0.3:
                del changed[where]
            elif chance.random() < 0.5:
                changed.insert(where, chance.randrange(256))
            else:
                changed[where] = chance.randrange(256)
        restore(cli, bytes(changed), payload)
    assert_works(server, cli)


def test_a_length_that_promises_too_much_costs_no_memory(server, cli, payload):
    # G14: the server asks for as many bytes as a string claims, as for a string of its own, and none is written to
    peak_before = server.resident_peak()
    original = body(payload)
    huge = b"\x81" + struct.pack(">Q", 2**40)
    for index in range(1, len(original)):
        restore(cli, original[:index] + huge + original[index:], payload)
        restore(cli, original[:index] + huge + original[index + 1 :], payload)
        restore(cli, original[:index] + huge + original[index + 9 :], payload)
    assert server.resident_peak() < peak_before + 50_000_000 * SLOW_FACTOR
    assert_works(server, cli)


def with_token(cli, shift):
    """A body like that of a new hold, with its token shifted; and the new token."""
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    payload = dump(cli, "door")
    cli("DEL door")
    forged = shift(token)
    before, after = (number.to_bytes(7, "little") for number in (token, forged))
    assert body(payload).count(before) == 1, f"the token {token:#x} is not in {payload.hex()}"
    return body(payload).replace(before, after), payload, forged


def test_a_token_somewhat_ahead_of_the_clock_is_kept_and_passed(server, cli):
    # G4, CONTRACT 5: last becomes at least that token
    changed, payload, forged = with_token(cli, lambda token: token + 30_000_000)
    assert restore(cli, changed, payload) == "OK"
    assert cli("LOCK.FENCE", "door", forged) == 1
    assert cli("LOCK.ACQUIRE gate bob PX 60000") > forged


@pytest.mark.parametrize(
    "shift",
    [
        lambda token: token + 3_600_000_000,
        lambda token: token + 10 * MAX_TOKEN_LEAD_MICROSECONDS,
        lambda token: 2**53 - 1,
        lambda token: 2**53,
        lambda token: 2**55,
        lambda token: 2**56 - 1,
        lambda token: 0,
    ],
    ids=["an hour", "ten leads", "2^53-1", "2^53", "2^55", "2^56-1", "0"],
)
def test_a_token_far_ahead_of_the_clock_does_not_get_in(server, cli, shift):
    # G14: no payload forges a token beyond max-token-lead
    changed, payload, forged = with_token(cli, shift)
    restore(cli, changed, payload)
    assert cli("LOCK.FENCE", "door", max(1, min(forged, 2**53 - 1))) == 0
    assert_works(server, cli)


def test_tokens_from_outside_do_not_climb_step_by_step(server, cli):
    # G14: max-token-lead is counted from the clock, not from the last accepted token
    for step in range(1, 11):
        changed, payload, forged = with_token(
            cli, lambda token: int(time.time() * 1e6) + step * 50_000_000
        )
        restore(cli, changed, payload)
        assert_works(server, cli)
    token = cli("LOCK.ACQUIRE gate alice PX 60000")
    assert token <= time.time() * 1e6 + MAX_TOKEN_LEAD_MICROSECONDS + 1e6


def test_a_token_that_the_server_has_seen_is_not_from_outside(server, cli):
    # A lead that is there already (an earlier primary's clock) refuses no own payload
    changed, payload, _ = with_token(cli, lambda token: token + 50_000_000)
    assert restore(cli, changed, payload) == "OK"
    cli("DEL door")
    cli("CONFIG SET redislock.max-token-lead 0")
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    own = dump(cli, "door")
    cli("DEL door")
    assert cli("RESTORE", "door", 0, own) == "OK"
    assert cli("LOCK.FENCE", "door", token) == 1


def test_an_older_snapshot_does_not_lower_the_clock_of_tokens(server, cli):
    # G4: last is never lowered by a load; seen where tokens lead the wall clock
    cli("LOCK.ACQUIRE gate alice PX 60000")
    cli("SAVE")
    changed, payload, forged = with_token(cli, lambda token: token + 30_000_000)
    assert restore(cli, changed, payload) == "OK"
    cli("DEBUG RELOAD NOSAVE")
    assert cli("LOCK.INFO door") is None, "the snapshot is older"
    assert cli("LOCK.ACQUIRE door bob PX 60000") > forged


def test_the_payload_of_another_type_is_not_taken_for_a_lock(server, cli, payload):
    for make in ("SET x 1", "RPUSH l 1 2 3", "HSET h f v", "ZADD z 1 a", "SADD s a b"):
        cli(make)
        other = dump(cli, make.split()[1])
        # The head of the lock's payload (its type) before another type's value.
        for head in range(1, 12):
            restore(cli, body(payload)[:head] + body(other)[1:], payload)
    assert_works(server, cli)


@pytest.mark.parametrize("make", LOCKS.values(), ids=LOCKS)
def test_every_changed_byte_of_a_payload_is_harmless(cli, make):
    # G14: no crash; a token is not forged beyond the lead
    make(cli)
    payload = dump(cli, "door")
    good = body(payload)
    highest = int(cli("TIME")[0]) + 120
    for index in range(0, len(good), max(1, len(good) // 150)):
        for change in (0x01, 0x80, 0xFF):
            bad = bytearray(good)
            bad[index] ^= change
            try:
                cli("RESTORE", "door", 0, seal(bytes(bad), payload), "REPLACE")
            except ServerError:
                continue
            info = lock_info(cli, "door")
            if info and info["holders"]:
                assert info["holders"][-1]["token"] < highest * 1_000_000
    assert cli("PING") == "PONG"
    cli("DEL door")
    assert count(cli, "holds") <= 1
