"""LOCK.FENCE and LOCK.INFO: the queries about a lock.

CONTRACT 2.
"""

import sqlite3

import pytest

from harness.limits import eventually
from harness.replies import as_map, holder, lock_info

HOLDER_FIELDS = {
    "owner",
    "token",
    "lease-left-ms",
    "held-ms",
    "count",
    "client-id",
    "keepalive",
    "ephemeral-ms",
}


# LOCK.FENCE


@pytest.mark.parametrize("protocol, nil", [(2, b"$-1\r\n"), (3, b"_\r\n")])
def test_the_fence_of_a_free_lock(server, protocol, nil):
    cli = server.connect(protocol)
    assert cli.bytes_of("LOCK.FENCE door") == nil
    assert cli.bytes_of("LOCK.FENCE door 1") == b":0\r\n"


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_fence_of_a_held_lock(server, protocol):
    cli = server.connect(protocol)
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    assert cli.bytes_of("LOCK.FENCE door") == b":%d\r\n" % token
    assert cli.bytes_of("LOCK.FENCE", "door", token) == b":1\r\n"
    assert cli.bytes_of("LOCK.FENCE", "door", token - 1) == b":0\r\n"
    assert cli.bytes_of("LOCK.FENCE", "door", token + 1) == b":0\r\n"
    assert cli.bytes_of("LOCK.FENCE", "door", 2**53 - 1) == b":0\r\n"


def test_the_fence_knows_the_lock_that_the_token_belongs_to(cli):
    door = cli("LOCK.ACQUIRE door alice PX 60000")
    gate = cli("LOCK.ACQUIRE gate alice PX 60000")
    assert cli("LOCK.FENCE", "door", gate) == 0
    assert cli("LOCK.FENCE", "gate", door) == 0


def test_the_fence_turns_an_old_token_away(cli):
    # The check of a resource before it lets a write through.
    old = cli("LOCK.ACQUIRE door alice PX 60000")
    cli("LOCK.RELEASE door alice")
    new = cli("LOCK.ACQUIRE door bob PX 60000")
    assert cli("LOCK.FENCE", "door", old) == 0
    assert cli("LOCK.FENCE", "door", new) == 1
    assert cli("LOCK.FENCE door") == new


def test_a_token_dies_with_its_lease(cli):
    token = cli("LOCK.ACQUIRE door alice PX 1")
    eventually(lambda: cli("LOCK.FENCE", "door", token) == 0, "the token dies")
    assert cli("LOCK.FENCE door") is None


# LOCK.INFO


@pytest.mark.parametrize("protocol, nil", [(2, b"$-1\r\n"), (3, b"_\r\n")])
def test_info_of_a_free_lock_is_nil(server, protocol, nil):
    cli = server.connect(protocol)
    assert cli.bytes_of("LOCK.INFO door") == nil
    assert cli.bytes_of("LOCK.INFO door FULL") == nil


@pytest.mark.parametrize("protocol", [2, 3])
def test_info_returns_the_kind_the_holder_and_the_waiters(server, protocol):
    cli = server.connect(protocol)
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    info = lock_info(cli, "door")
    assert set(info) == {"kind", "limit", "holds", "holders", "waiters", "queue"}
    assert info["kind"] == "exclusive"
    assert info["limit"] is None
    assert info["waiters"] == 0
    assert info["queue"] == []
    (hold,) = info["holders"]
    assert set(hold) == HOLDER_FIELDS
    assert hold["owner"] == "alice"
    assert hold["token"] == token
    assert 50_000 < hold["lease-left-ms"] <= 60_000
    assert 0 <= hold["held-ms"] < 10_000
    assert hold["count"] == 1
    assert hold["client-id"] == cli("CLIENT ID")
    assert hold["ephemeral-ms"] is None


def test_in_resp3_info_is_a_map_with_a_boolean(cli3):
    cli3("LOCK.ACQUIRE door alice PX 60000")
    data = cli3.bytes_of("LOCK.INFO door")
    assert data.startswith(b"%6\r\n")
    assert b"keepalive\r\n#f\r\n" in data
    assert b"limit\r\n_\r\n" in data
    assert b"%8\r\n" in data, "the holder is a map too"


def test_in_resp2_info_is_a_flat_array_with_a_number(cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    data = cli.bytes_of("LOCK.INFO door")
    assert data.startswith(b"*12\r\n")
    assert b"keepalive\r\n:0\r\n" in data
    assert b"limit\r\n$-1\r\n" in data
    assert b"*16\r\n" in data, "the holder is a flat array too"


def test_info_follows_the_lease_and_the_hold(cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    first = holder(cli, "door")
    # The two need not change in the same instant.
    eventually(lambda: holder(cli, "door")["held-ms"] > first["held-ms"], "held-ms")
    eventually(lambda: holder(cli, "door")["lease-left-ms"] < first["lease-left-ms"], "lease-left-ms")
    second = holder(cli, "door")
    assert 59_000 <= second["lease-left-ms"] + second["held-ms"] <= 60_000
    cli("LOCK.RENEW door alice PX 600000")
    third = holder(cli, "door")
    assert third["lease-left-ms"] > 60_000
    assert third["held-ms"] >= second["held-ms"], "a renewal goes on with the hold"


def test_info_lists_the_waiters_in_order(server, cli):
    # G5
    cli("LOCK.ACQUIRE door alice PX 60000")
    waiters = [
        server.ask("LOCK.ACQUIRE", "door", name, "PX", 60000, "BLOCK", 0)
        for name in ("bob", "carol", "dave")
    ]
    info = lock_info(cli, "door")
    assert info["waiters"] == 3
    assert [waiter["owner"] for waiter in info["queue"]] == ["bob", "carol", "dave"]
    for waiter, request in zip(info["queue"], waiters):
        assert waiter["mode"] == "exclusive"
        assert waiter["waited-ms"] >= 0
        assert waiter["client-id"] == request.client_id
        assert "blocked" in waiter or "blocked" in waiter.values()


def test_waited_ms_counts_from_the_request(server, cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")

    def waited():
        return lock_info(cli, "door")["queue"][0]["waited-ms"]

    eventually(lambda: waited() >= 50, "waited-ms grows")


@pytest.mark.parametrize("protocol", [2, 3])
def test_info_shows_ten_waiters_and_with_full_all(server, protocol):
    cli = server.connect(protocol)
    cli("LOCK.ACQUIRE door alice PX 60000")
    names = [f"waiter-{n}" for n in range(13)]
    for name in names:
        server.ask("LOCK.ACQUIRE", "door", name, "PX", 60000, "BLOCK", 0)
    short = lock_info(cli, "door")
    assert short["waiters"] == 13
    assert [waiter["owner"] for waiter in short["queue"]] == names[:10]
    for options, shown in [(["FULL"], 13), (["full", "count", 12], 12), (["COUNT", 2_000, "FULL"], 13)]:
        long = lock_info(cli, "door", *options)
        assert long["waiters"] == 13
        assert [waiter["owner"] for waiter in long["queue"]] == names[:shown]


def test_info_shows_ten_holders_and_with_full_more(cli):
    names = [f"holder-{n:04}" for n in range(1_500)]
    for name in names:
        cli("LOCK.ACQUIRE", "pool", name, "PX", 600_000, "LIMIT", 2_000)
    for options, shown in [([], 10), (["FULL"], 1_000), (["FULL", "COUNT", 1], 1), (["FULL", "COUNT", 2_000], 1_500)]:
        info = lock_info(cli, "pool", *options)
        assert info["holds"] == 1_500
        assert [one["owner"] for one in info["holders"]] == names[:shown]
    cli("LOCK.RELEASE", "pool", names[0])
    info = lock_info(cli, "pool")
    assert (info["holds"], info["holders"][0]["owner"]) == (1_499, names[1])


def test_client_id_is_the_connection_that_the_hold_came_from(server, cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    cli("LOCK.RELEASE door alice")
    bob.answer()
    assert holder(cli, "door")["client-id"] == bob.client_id


def test_asking_changes_nothing(server, cli):
    server.ask("LOCK.ACQUIRE door alice PX 60000")
    before = cli("DEBUG DIGEST")
    for _ in range(3):
        cli("LOCK.FENCE door")
        cli("LOCK.FENCE door 17")
        as_map(cli("LOCK.INFO door"))
        as_map(cli("LOCK.INFO door FULL"))
    assert cli("DEBUG DIGEST") == before


@pytest.mark.parametrize("comparison, written", [("<=", [1, 1, 0]), ("<", [1, 0, 0])])
def test_a_database_turns_a_late_holder_away(cli, tmp_path, comparison, written):
    # docs/reference/commands/fence.md: <= lets one hold write often, < once; either turns a late holder away
    with sqlite3.connect(tmp_path / "db", isolation_level=None) as database:
        database.execute("CREATE TABLE account (balance INTEGER, fence INTEGER)")
        database.execute("INSERT INTO account VALUES (0, 0)")
        late = cli("LOCK.ACQUIRE door late PX 60000")
        cli("DEL door")
        live = cli("LOCK.ACQUIRE door live PX 60000")
        command = f"UPDATE account SET balance = balance + 1, fence = ? WHERE fence {comparison} ?"
        rows = [database.execute(command, (token, token)).rowcount for token in (live, live, late)]
    assert rows == written


def test_holders_that_hold_together_have_tokens_of_their_own(cli):
    # docs/reference/commands/fence.md: a resource that compares numbers turns one of them away, though both are live
    first, second = (cli("LOCK.ACQUIRE", "pool", owner, "PX", 60_000, "LIMIT", 2) for owner in ("a", "b"))
    assert first < second
    assert [cli("LOCK.FENCE", "pool", token) for token in (first, second)] == [1, 1]
    assert [cli("LOCK.EXEC", "pool", token, "INCR", "n") for token in (second, first)] == [1, 2]
