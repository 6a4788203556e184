"""LOCK.ACQUIRE: the holder of the lock, the reply, the token.

CONTRACT 2 (LOCK.ACQUIRE), G1, G4, G9.
"""

import re
import time
import uuid

import pytest

from harness.replies import holder, owner_of
from harness.wire import encode

MICROSECONDS = 1_000_000
A_TOKEN = re.compile(rb":[0-9]{16}\r\n")

# A token follows the wall clock unless tokens came faster than one a microsecond.
CLOCK_SLACK_MICROSECONDS = 60 * MICROSECONDS


def test_a_free_lock_is_granted_with_a_token(cli):
    # G4: token = max(last + 1, wall clock in microseconds)
    now = time.time() * MICROSECONDS
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    assert isinstance(token, int)
    assert abs(token - now) < CLOCK_SLACK_MICROSECONDS
    assert 0 < token < 2**53
    assert owner_of(cli, "door") == "alice"


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_reply_to_a_grant_is_an_integer(server, protocol):
    cli = server.connect(protocol)
    assert A_TOKEN.fullmatch(cli.bytes_of("LOCK.ACQUIRE door alice PX 60000"))


@pytest.mark.parametrize("protocol, nil", [(2, b"$-1\r\n"), (3, b"_\r\n")])
def test_not_granted_is_a_plain_nil(server, protocol, nil):
    # G1: one holder
    cli = server.connect(protocol)
    cli("LOCK.ACQUIRE door alice PX 60000")
    assert cli.bytes_of("LOCK.ACQUIRE door bob PX 60000") == nil
    assert cli.bytes_of("LOCK.ACQUIRE door * PX 60000") == nil, "never an array"
    assert cli.bytes_of("LOCK.ACQUIRE door bob PX 60000 BLOCK 1") == nil
    assert cli.bytes_of("LOCK.ACQUIRE door * PX 60000 BLOCK 1") == nil
    assert owner_of(cli, "door") == "alice"


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_owner_star_is_replaced_by_a_fresh_uuid(server, protocol):
    cli = server.connect(protocol)
    reply = cli.bytes_of("LOCK.ACQUIRE door * PX 60000")
    owner = re.fullmatch(rb"\*2\r\n\$36\r\n([0-9a-f-]{36})\r\n:[0-9]{16}\r\n", reply)[1]
    assert uuid.UUID(owner.decode()).version == 4
    assert owner_of(cli, "door") == owner.decode()
    assert cli("LOCK.RELEASE", "door", owner) == 1


def test_every_star_is_another_owner(cli):
    replies = [cli("LOCK.ACQUIRE", f"door:{n}", "*", "PX", 60000) for n in range(50)]
    assert len({owner for owner, _ in replies}) == 50
    assert cli("LOCK.ACQUIRE door:0 * PX 60000") is None


def test_a_star_among_other_bytes_is_an_owner_like_any_other(cli):
    assert isinstance(cli("LOCK.ACQUIRE door ** PX 60000"), int)
    assert owner_of(cli, "door") == "**"


def test_the_lease_can_be_given_in_seconds(cli):
    cli("LOCK.ACQUIRE door alice EX 60")
    assert 50_000 < holder(cli, "door")["lease-left-ms"] <= 60_000


@pytest.mark.parametrize(
    "command",
    [
        "lock.acquire door alice px 60000",
        "Lock.Acquire door alice eX 60",
        "LOCK.ACQUIRE door alice block 5 px 60000",
        "LOCK.ACQUIRE door alice PX 60000 Block 0",
        "LOCK.ACQUIRE door alice BLOCK 0 EX 60",
    ],
)
def test_options_come_in_any_order_and_any_case(cli, command):
    assert isinstance(cli(command), int)
    assert holder(cli, "door")["lease-left-ms"] <= 60_000


@pytest.mark.parametrize("owner", ["PX", "BLOCK", "0", "-1", "nil", "TOKEN", "a b", "ä"])
def test_an_owner_may_look_like_anything(cli, owner):
    assert isinstance(cli("LOCK.ACQUIRE", "door", owner, "PX", 60000), int)
    assert owner_of(cli, "door") == owner
    assert cli("LOCK.RELEASE", "door", owner) == 1


@pytest.mark.parametrize("protocol", [2, 3])
def test_keys_and_owners_are_any_bytes(server, protocol):
    cli = server.connect(protocol)
    key = bytes(range(256))
    owner = bytes(reversed(range(256)))
    token = cli("LOCK.ACQUIRE", key, owner, "PX", 60000)
    info = cli.bytes_of("LOCK.INFO", key)
    assert b"$256\r\n" + owner + b"\r\n" in info
    assert cli("LOCK.ACQUIRE", key, owner[:-1], "PX", 60000) is None
    assert cli("LOCK.ACQUIRE", key, owner, "PX", 60000) == token
    assert cli("LOCK.FENCE", key) == token
    assert cli("LOCK.RENEW", key, owner, "PX", 60000) == 1
    assert cli("LOCK.RELEASE", key, owner) == 1


def test_an_empty_key_and_a_long_key_are_locks_too(cli):
    long_key = "k" * 100_000
    first = cli("LOCK.ACQUIRE", "", "alice", "PX", 60000)
    second = cli("LOCK.ACQUIRE", long_key, "alice", "PX", 60000)
    assert first < second
    assert cli("LOCK.FENCE", "") == first
    assert cli("LOCK.FENCE", long_key) == second


@pytest.mark.parametrize("size", [1, 256])
def test_an_owner_has_1_to_256_bytes(cli, size):
    owner = "x" * size
    assert isinstance(cli("LOCK.ACQUIRE", "door", owner, "PX", 60000), int)
    assert owner_of(cli, "door") == owner


# The same owner again


def test_the_holder_who_asks_again_gets_the_same_token(server, cli):
    # G9: same owner, same answer
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    other = server.connect()
    assert cli("LOCK.ACQUIRE door alice PX 60000") == token
    assert other("LOCK.ACQUIRE door alice EX 1") == token
    assert other("LOCK.ACQUIRE door alice PX 60000 BLOCK 1000") == token
    assert holder(cli, "door")["count"] == 1
    assert cli("LOCK.RELEASE door alice") == 1, "asking again did not count"
    assert cli("LOCK.INFO door") is None


def test_asking_again_never_shortens_the_lease(cli):
    # G9, CONTRACT 2: lease = max(remaining, requested)
    cli("LOCK.ACQUIRE door alice PX 60000")
    cli("LOCK.ACQUIRE door alice PX 1")
    assert holder(cli, "door")["lease-left-ms"] > 30_000


def test_asking_again_may_lengthen_the_lease(cli):
    # G9
    cli("LOCK.ACQUIRE door alice PX 60000")
    cli("LOCK.ACQUIRE door alice PX 600000")
    assert 500_000 < holder(cli, "door")["lease-left-ms"] <= 600_000


def test_asking_again_mints_no_token(cli):
    # G9: a retry does not use up tokens; seen from the next grant in the same packet
    tokens = cli.pipeline(
        *["LOCK.ACQUIRE door alice PX 60000"] * 1000,
        "LOCK.ACQUIRE gate alice PX 60000",
    )
    assert len(set(tokens[:-1])) == 1
    assert tokens[-1] > tokens[0]


def test_an_owner_that_holds_again_after_a_release_has_a_new_token(cli):
    # G4
    first = cli("LOCK.ACQUIRE door alice PX 60000")
    cli("LOCK.RELEASE door alice")
    assert cli("LOCK.ACQUIRE door alice PX 60000") > first


# Tokens


def test_tokens_of_all_locks_only_go_up(server):
    # G4: strictly greater than every token minted before, for any lock
    clients = [server.connect(db=n % 3) for n in range(6)]
    tokens = [
        clients[n % 6]("LOCK.ACQUIRE", f"door:{n}", "alice", "PX", 60000)
        for n in range(300)
    ]
    assert all(a < b for a, b in zip(tokens, tokens[1:]))


def test_tokens_of_one_packet_only_go_up(cli):
    # G4: many grants within one microsecond tick
    packet = b"".join(
        encode("LOCK.ACQUIRE", f"door:{n}", "alice", "PX", 60000) for n in range(5000)
    )
    cli.send_bytes(packet)
    tokens = [cli.read() for _ in range(5000)]
    assert all(a < b for a, b in zip(tokens, tokens[1:]))


@pytest.mark.parametrize(
    "removal",
    ["LOCK.RELEASE door alice", "DEL door", "FLUSHALL", "FLUSHDB", "SET door x"],
)
def test_tokens_go_up_however_the_lock_ended(cli, removal):
    # G4: last is never lowered by DEL, FLUSHALL and the like
    before = cli("LOCK.ACQUIRE door alice PX 60000")
    cli(removal)
    cli("DEL door")
    assert cli("LOCK.ACQUIRE door alice PX 60000") > before


# Nothing is left behind


def test_a_lock_that_is_freed_leaves_nothing_behind(cli):
    # CONTRACT 1: the key exists if and only if the lock is held
    cli("LOCK.ACQUIRE door alice PX 60000")
    assert cli("DBSIZE") == 1
    assert cli("EXISTS door") == 1
    cli("LOCK.RELEASE door alice")
    assert cli("DBSIZE") == 0
    assert cli("EXISTS door") == 0


def test_asking_about_a_free_lock_makes_no_key(cli):
    cli("LOCK.FENCE door")
    cli("LOCK.FENCE door 17")
    cli("LOCK.INFO door FULL")
    assert cli("LOCK.RELEASE door alice") == 0
    assert cli("LOCK.RENEW door alice PX 1000") == 0
    assert cli("DBSIZE") == 0


def test_the_key_has_the_type_redislock_and_no_ttl(cli):
    # G2: no native TTL, so volatile-* policies never evict a lock
    cli("LOCK.ACQUIRE door alice PX 60000")
    assert cli("TYPE door") == "redislock"
    assert cli("TTL door") == -1
    cli("LOCK.RENEW door alice PX 50000")
    assert cli("PTTL door") == -1


def test_locks_of_one_name_in_two_databases_are_two_locks(server, cli):
    other = server.connect(db=5)
    assert isinstance(cli("LOCK.ACQUIRE door alice PX 60000"), int)
    assert isinstance(other("LOCK.ACQUIRE door bob PX 60000"), int)
    assert owner_of(cli, "door") == "alice"
    assert owner_of(other, "door") == "bob"
    assert other("LOCK.RELEASE door bob") == 1
    assert owner_of(cli, "door") == "alice"
