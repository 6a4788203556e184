"""LOCK.RELEASE and LOCK.RENEW: only the holder's own, and exactly as asked.

CONTRACT 2, G10 (no owner is released by another).
"""

import pytest

from harness.limits import eventually
from harness.replies import holder, owner_of


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_replies_are_integers(server, protocol):
    cli = server.connect(protocol)
    cli("LOCK.ACQUIRE door alice PX 60000")
    assert cli.bytes_of("LOCK.RENEW door alice PX 60000") == b":1\r\n"
    assert cli.bytes_of("LOCK.RENEW door bob PX 60000") == b":0\r\n"
    assert cli.bytes_of("LOCK.RELEASE door bob") == b":0\r\n"
    assert cli.bytes_of("LOCK.RELEASE door alice") == b":1\r\n"
    assert cli.bytes_of("LOCK.RELEASE door alice") == b":0\r\n"
    assert cli.bytes_of("LOCK.RENEW door alice PX 60000") == b":0\r\n"


# LOCK.RELEASE


def test_the_holder_releases(cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    assert cli("LOCK.RELEASE door alice") == 1
    assert cli("LOCK.INFO door") is None
    assert isinstance(cli("LOCK.ACQUIRE door bob PX 60000"), int)


@pytest.mark.parametrize("owner", ["bob", "Alice", "alic", "alicee", "alice\0", "*"])
def test_no_other_owner_releases(cli, owner):
    # G10
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    assert cli("LOCK.RELEASE", "door", owner) == 0
    assert cli("LOCK.RELEASE", "door", owner, "TOKEN", token) == 0
    assert cli("LOCK.FENCE", "door", token) == 1


def test_the_holder_may_release_over_any_connection(server, cli):
    # CONTRACT 1: an owner is not a connection
    cli("LOCK.ACQUIRE door alice PX 60000")
    cli.close()
    other = server.connect()
    assert owner_of(other, "door") == "alice"
    assert other("LOCK.RELEASE door alice") == 1


def test_a_release_can_name_the_token(cli):
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    for wrong in (1, token - 1, token + 1, 2**53 - 1):
        assert cli("LOCK.RELEASE", "door", "alice", "TOKEN", wrong) == 0
    assert cli("LOCK.FENCE door") == token
    assert cli("LOCK.RELEASE", "door", "alice", "token", token) == 1
    assert cli("LOCK.FENCE door") is None


def test_a_late_release_by_token_does_not_end_the_owners_next_hold(cli):
    # G10
    first = cli("LOCK.ACQUIRE door alice PX 60000")
    cli("LOCK.RELEASE door alice")
    second = cli("LOCK.ACQUIRE door alice PX 60000")
    assert cli("LOCK.RELEASE", "door", "alice", "TOKEN", first) == 0
    assert cli("LOCK.FENCE door") == second


def test_a_release_ends_one_lock_only(cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    cli("LOCK.ACQUIRE gate alice PX 60000")
    assert cli("LOCK.RELEASE door alice") == 1
    assert owner_of(cli, "gate") == "alice"


# LOCK.RENEW


def test_a_renewal_lengthens_the_lease(cli):
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    assert cli("LOCK.RENEW door alice PX 600000") == 1
    hold = holder(cli, "door")
    assert 500_000 < hold["lease-left-ms"] <= 600_000
    assert hold["token"] == token, "a renewal mints no token"


def test_a_renewal_shortens_the_lease(cli):
    # CONTRACT 2: exactly this long from now
    cli("LOCK.ACQUIRE door alice PX 600000")
    assert cli("LOCK.RENEW door alice PX 60000") == 1
    assert 30_000 < holder(cli, "door")["lease-left-ms"] <= 60_000


def test_a_renewal_in_seconds(cli):
    cli("LOCK.ACQUIRE door alice PX 1000000")
    assert cli("LOCK.RENEW door alice EX 60") == 1
    assert 30_000 < holder(cli, "door")["lease-left-ms"] <= 60_000


def test_a_renewal_to_a_moment_ends_the_lease_then(cli):
    # G3: the new deadline counts, not the old one
    cli("LOCK.ACQUIRE door alice PX 3600000")
    assert cli("LOCK.RENEW door alice PX 1") == 1
    eventually(lambda: cli("DBSIZE") == 0, "the lease ends")


def test_a_renewed_lease_does_not_end_when_the_old_one_would_have(cli):
    # G2
    token = cli("LOCK.ACQUIRE door alice PX 1500")
    assert cli("LOCK.RENEW door alice PX 600000") == 1
    eventually(lambda: holder(cli, "door")["held-ms"] > 1700, "the old lease is over")
    assert cli("LOCK.FENCE", "door", token) == 1


def test_nobody_else_renews(cli):
    # G10
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    for owner in ("bob", "Alice", "alic", "*"):
        assert cli("LOCK.RENEW", "door", owner, "PX", 600000) == 0
        assert cli("LOCK.RENEW", "door", owner, "PX", 600000, "TOKEN", token) == 0
    hold = holder(cli, "door")
    assert (hold["owner"], hold["token"]) == ("alice", token)
    assert hold["lease-left-ms"] <= 60_000


def test_a_renewal_can_name_the_token(cli):
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    for wrong in (1, token - 1, token + 1, 2**53 - 1):
        assert cli("LOCK.RENEW", "door", "alice", "PX", 600000, "TOKEN", wrong) == 0
    assert holder(cli, "door")["lease-left-ms"] <= 60_000
    assert cli("LOCK.RENEW", "door", "alice", "TOKEN", token, "PX", 600000) == 1
    assert holder(cli, "door")["lease-left-ms"] > 60_000


def test_a_renewal_never_creates_a_hold(cli):
    # CONTRACT 2: 0: it holds nothing here; nothing is created
    assert cli("LOCK.RENEW door alice PX 60000") == 0
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    cli("LOCK.RELEASE door alice")
    assert cli("LOCK.RENEW", "door", "alice", "PX", 60000, "TOKEN", token) == 0
    assert cli("DBSIZE") == 0


def test_a_renewal_after_the_lease_ended_comes_too_late(cli):
    cli("LOCK.ACQUIRE door alice PX 1")
    eventually(lambda: cli("DBSIZE") == 0, "the lease ends")
    assert cli("LOCK.RENEW door alice PX 60000") == 0
    assert cli("DBSIZE") == 0


def test_a_waiter_holds_nothing_to_renew(server, cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    assert cli("LOCK.RENEW door bob PX 1000") == 0
    assert bob.waits()
