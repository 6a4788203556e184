"""LOCK.MACQUIRE: several locks or none.

G12 (never a part, no deadlock between two, no starvation), G5 on every line it is in, G7, G8, G9. Deadlocks with others
are in test_deadlock.py.
"""

import random
import threading

import pytest

from harness.kinds import (
    ask, ask_all, count, gone, hold_of, kind_of, line_of, owners_of, release, take, take_all,
)  # fmt: skip
from harness.limits import eventually
from harness.replies import lock_info
from harness.wire import ServerError, refused


def assert_free(cli, keys):
    """Checks that these locks have no holders and no waiters."""
    for key in keys.split():
        assert cli("LOCK.INFO", key) is None, key
        assert cli("EXISTS", key) == 0, key


def test_all_locks_are_taken_under_one_token(cli):
    # G12
    token = take_all(cli, "a b c", "alice", lease_ms=50_000)
    for key in "abc":
        assert owners_of(cli, key) == ["alice"]
        assert kind_of(cli, key) == ("exclusive", None)
        assert cli("LOCK.FENCE", key) == token
        assert 40_000 < hold_of(cli, key, "alice")["lease-left-ms"] <= 50_000
    assert (count(cli, "locks"), count(cli, "holds")) == (3, 3)
    assert take(cli, "d", "alice") > token


def test_none_is_taken_if_one_is_held(cli):
    # G12
    take(cli, "b", "bob")
    assert take_all(cli, "a b c", "alice") is None
    assert_free(cli, "a c")
    assert owners_of(cli, "b") == ["bob"]


def test_the_locks_are_given_up_one_by_one(cli):
    token = take_all(cli, "a b c", "alice")
    release(cli, "b", "alice")
    assert isinstance(take(cli, "b", "bob"), int)
    assert cli("LOCK.RENEW", "a", "alice", "PX", 9000, "TOKEN", token) == 1
    release(cli, "a", "alice", "TOKEN", token)
    release(cli, "c", "alice")
    assert cli("DBSIZE") == 1


def test_the_leases_end(cli):
    # G3
    take_all(cli, "a b c", "alice", lease_ms=100)
    eventually(lambda: cli("DBSIZE") == 0, "all leases end")


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_request_for_several_can_ask_for_an_owner(server, cli, protocol):
    asker = server.connect(protocol)
    owner, token = take_all(asker, "a b", "*")
    assert owners_of(cli, "a") == owners_of(cli, "b") == [owner]
    waiter = ask_all(server, "b a", "*", protocol=protocol)
    release(cli, "a", owner)
    assert waiter.waits()
    release(cli, "b", owner)
    name, second = waiter.answer()
    assert second > token
    assert owners_of(cli, "a") == owners_of(cli, "b") == [name]


def test_one_key_and_64_keys(cli):
    one = take_all(cli, "a", "alice")
    assert cli("LOCK.FENCE", "a", one) == 1
    many = take_all(cli, " ".join(f"k{n}" for n in range(64)), "alice")
    assert many > one
    assert all(cli("LOCK.FENCE", f"k{n}", many) == 1 for n in range(64))


# Waiting


def test_a_request_for_several_waits_for_all_and_holds_none_meanwhile(server, cli):
    # G12, G6
    take(cli, "a", "bob")
    newest = take(cli, "c", "carol")
    alice = ask_all(server, "a b c", "alice", lease_ms=50_000)
    assert alice.waits()
    assert cli("EXISTS a b c") == 2
    assert cli("LOCK.FENCE b") is None
    assert owners_of(cli, "b") == []
    assert [line_of(cli, key) for key in "abc"] == [["alice"]] * 3
    release(cli, "a", "bob")
    assert alice.waits()
    assert cli("EXISTS a") == 0
    release(cli, "c", "carol")
    token = alice.answer()
    assert token > newest
    for key in "abc":
        assert cli("LOCK.FENCE", key) == token
        assert hold_of(cli, key, "alice")["lease-left-ms"] > 40_000
        assert line_of(cli, key) == []


def test_a_request_for_several_is_granted_when_the_last_lease_ends(server, cli):
    # G3, G6
    take(cli, "a", "bob", lease_ms=60)
    take(cli, "b", "carol", lease_ms=120)
    assert isinstance(ask_all(server, "a b", "alice").answer(), int)


@pytest.mark.parametrize("command", ["DEL b", "FLUSHALL", "RENAME b z", "SWAPDB 0 1", "PEXPIRE b 1"])
def test_a_request_for_several_is_granted_when_the_last_lock_is_broken(server, cli, command):
    # G6
    take(cli, "b", "bob")
    alice = ask_all(server, "a b", "alice")
    cli(command)
    token = alice.answer()
    assert [cli("LOCK.FENCE", key, token) for key in "ab"] == [1, 1]


def test_a_request_for_several_stands_in_every_line_in_order(server, cli):
    # G5
    take(cli, "a", "h")
    take(cli, "b", "h")
    before = ask(server, "a", "before")
    both = ask_all(server, "a b", "both")
    behind_a, behind_b = ask(server, "a", "behind"), ask(server, "b", "behind")
    release(cli, "b", "h")
    assert behind_b.waits(), "nobody passes it, although b is free"
    assert take(cli, "b", "late") is None
    release(cli, "a", "h")
    assert isinstance(before.answer(), int)
    assert both.waits()
    release(cli, "a", "before")
    token = both.answer()
    assert [cli("LOCK.FENCE", key) for key in "ab"] == [token, token]
    assert behind_a.waits() and behind_b.waits()
    release(cli, "b", "both")
    assert isinstance(behind_b.answer(), int)
    release(cli, "a", "both")
    assert isinstance(behind_a.answer(), int)


@pytest.mark.parametrize("end", ["close", "timeout", "withdraw", "withdraw by the last", "UNBLOCK", "UNBLOCK ERROR"])
def test_all_lines_continue_when_a_request_for_several_gives_up(server, cli, end):
    # G6, G7, G8
    take(cli, "a", "h")
    both = ask_all(server, "a b c", "both", block_ms=400 if end == "timeout" else 0)
    behind_b, behind_c = ask(server, "b", "next"), ask(server, "c", "other")
    if end == "close":
        both.leave()
        gone(server, both.client_id)
    elif end == "withdraw":
        assert cli("LOCK.RELEASE b both") == 0, "it held nothing"
    elif end == "withdraw by the last":
        assert cli("LOCK.RELEASE c both") == 0
    elif end.startswith("UNBLOCK"):
        cli("CLIENT", "UNBLOCK", both.client_id, *end.split()[1:])
    if end == "UNBLOCK ERROR":
        with refused("UNBLOCKED"):
            both.answer()
    elif end != "close":
        assert both.answer() is None
    assert isinstance(behind_b.answer(), int)
    assert isinstance(behind_c.answer(), int)
    assert line_of(cli, "a") == []
    release(cli, "a", "h")
    assert cli("EXISTS a") == 0, "a waiter that gave up is not granted"
    assert count(cli, "waiters") == 0


@pytest.mark.parametrize("end", ["timeout", "UNBLOCK"])
def test_the_connection_can_continue_afterwards(server, cli, end):
    # G7: one answer, not one for each key
    take(cli, "a", "h")
    both = ask_all(server, "a b", "both", block_ms=100 if end == "timeout" else 0)
    if end == "UNBLOCK":
        cli("CLIENT", "UNBLOCK", both.client_id)
    assert both.answer() is None
    assert both.connection("PING") == "PONG"
    assert take_all(both.connection, "b c", "both") is not None


def test_the_end_of_its_wait_is_counted_once(cli, server):
    before = count(cli, "timeouts")
    take(cli, "a", "h")
    assert ask_all(server, "a b c", "both", block_ms=20).answer() is None
    assert count(cli, "timeouts") == before + 1


@pytest.mark.parametrize("way", ["MULTI", "script"])
def test_where_one_cannot_wait_block_is_as_if_absent(cli, way):
    # CONTRACT 2
    take(cli, "b", "bob")
    if way == "MULTI":
        command = "LOCK.MACQUIRE 2 {} alice PX 60000 BLOCK 0"
        replies = cli.pipeline("MULTI", command.format("a b"), command.format("c d"), "EXEC")[-1]
    else:
        script = (
            "local take = function(a, b) return redis.call('LOCK.MACQUIRE', 2, a, b, 'alice', 'PX', 60000, 'BLOCK', 0) end"
            " return {take(KEYS[1], KEYS[2]) or 'nil', take(KEYS[3], KEYS[4])}"
        )
        replies = cli("EVAL", script, 4, "a", "b", "c", "d")
    assert replies[0] in (None, "nil")
    assert replies[1] == cli("LOCK.FENCE c") == cli("LOCK.FENCE d")
    assert_free(cli, "a")


# The same owner again


def test_the_same_request_again_gets_the_same_token(cli):
    # G9
    token = take_all(cli, "a b", "alice", lease_ms=50_000)
    assert take_all(cli, "b a", "alice", lease_ms=10_000) == token
    assert hold_of(cli, "a", "alice")["lease-left-ms"] > 10_000, "never shortened"
    assert take_all(cli, "a b", "alice") == token
    assert all(hold_of(cli, key, "alice")["lease-left-ms"] > 50_000 for key in "ab")
    assert take(cli, "a", "alice") == token
    assert count(cli, "holds") == 2


def test_a_waiting_request_again_takes_over_all_its_places(server, cli):
    # G9
    take(cli, "a", "h")
    old = ask_all(server, "a b", "alice")
    behind = ask(server, "b", "bob")
    new = ask_all(server, "b a", "alice")
    with refused("UNBLOCKED"):
        old.answer()
    assert line_of(cli, "a") == ["alice"]
    assert line_of(cli, "b") == ["alice", "bob"]
    old.leave()
    gone(server, old.client_id)
    assert new.waits()
    release(cli, "a", "h")
    assert isinstance(new.answer(), int)
    assert behind.waits()


def test_the_repeated_request_has_its_own_timeout(server, cli):
    # G7, G9
    take(cli, "a", "h")
    ask_all(server, "a b", "alice", block_ms=300)
    new = ask_all(server, "a b", "alice")
    assert ask(server, "b", "bob", block_ms=600).answer() is None, "the old timeout is over by now"
    assert new.waits()
    again = ask_all(server, "a b", "alice", block_ms=100)
    assert again.answer() is None
    assert count(cli, "waiters") == 0


HELD = [
    pytest.param(["LOCK.ACQUIRE b alice PX 60000"], "", "b", id="one of them alone"),
    pytest.param(["LOCK.ACQUIRE b alice PX 60000 SHARED"], "SHARED", "b", id="one of them, shared"),
    pytest.param(["LOCK.ACQUIRE a alice PX 60000", "LOCK.ACQUIRE b alice PX 60000"], "", "a", id="under two tokens"),
    pytest.param(["LOCK.MACQUIRE 2 a b alice PX 60000"], "SHARED", "a", id="all of them alone, to share them"),
    pytest.param(["LOCK.MACQUIRE 2 a b alice PX 60000 SHARED"], "", "a", id="all of them shared, to have them alone"),
]


@pytest.mark.parametrize(("commands", "mode", "key"), HELD)
@pytest.mark.parametrize("wait", ["", "BLOCK 0"])
def test_a_holder_of_some_is_refused_and_keeps_what_it_holds(cli, commands, mode, key, wait):
    # G9, G12: the first key that it holds otherwise is named
    for command in commands:
        cli(command)
    before = [hold_of(cli, name, "alice") and hold_of(cli, name, "alice")["token"] for name in "ab"]
    with refused("LOCKHELD", f"'{key}'", "release every key"):
        take_all(cli, "a b", "alice", mode, wait, lease_ms=600_000)
    for name, token in zip("ab", before, strict=True):
        own = hold_of(cli, name, "alice")
        assert token == (own and own["token"])
        assert own is None or own["lease-left-ms"] <= 60_000
    assert all(line_of(cli, name) == [] for name in "ab")
    # The remedy of the error helps.
    for name in "ab":
        cli("LOCK.RELEASE", name, "alice")
    assert isinstance(take_all(cli, "a b", "alice", mode, wait), int)


# Shared


def test_readers_of_several_locks_hold_together(server, cli):
    first = take_all(cli, "a b", "r1", "SHARED")
    second = take_all(cli, "b c", "r2", "SHARED")
    assert second > first
    assert owners_of(cli, "b") == ["r1", "r2"]
    assert kind_of(cli, "b") == ("shared", None)
    writer = ask_all(server, "b c", "w")
    assert writer.waits()
    assert take(cli, "a", "r3", "SHARED") is not None, "nobody waits for a"
    assert take(cli, "c", "r3", "SHARED") is None, "G5"
    late = ask_all(server, "a c", "late", "SHARED")
    release(cli, "b", "r1")
    release(cli, "b", "r2")
    assert writer.waits()
    release(cli, "c", "r2")
    token = writer.answer()
    assert [cli("LOCK.FENCE", key) for key in "bc"] == [token, token]
    release(cli, "c", "w")
    assert isinstance(late.answer(), int)


def test_readers_that_wait_for_several_come_in_together(server, cli):
    # G5
    take_all(cli, "a b", "w")
    readers = [
        ask_all(server, "a b", "r1", "SHARED"), ask(server, "a", "r2", "SHARED"),
        ask_all(server, "b a", "r3", "SHARED"), ask(server, "b", "r4", "SHARED"),
    ]  # fmt: skip
    writer = ask(server, "a", "w2")
    release(cli, "b", "w")
    release(cli, "a", "w")
    assert all(isinstance(reader.answer(), int) for reader in readers)
    assert sorted(owners_of(cli, "a")) == ["r1", "r2", "r3"]
    assert sorted(owners_of(cli, "b")) == ["r1", "r3", "r4"]
    assert writer.waits()


@pytest.mark.parametrize("shared", ["", "SHARED"])
def test_a_semaphore_among_several_locks_is_another_kind(cli, shared):
    take(cli, "b", "alice", "LIMIT 5")
    for owner in ("alice", "bob"):
        with refused("LOCKKIND"):
            take_all(cli, "a b c", owner, shared, "BLOCK 0")
    assert_free(cli, "a c")


# Many


def test_requests_for_single_locks_do_not_starve_one_for_several(server, cli):
    # G12: two clients for each of three locks keep them busy without a gap
    stop, failures = threading.Event(), []

    def keep_busy(key, name):
        try:
            client = server.connect()
            turn = 0
            while not stop.is_set():
                turn += 1
                owner = f"{name}.{turn}"
                if client("LOCK.ACQUIRE", key, owner, "PX", 60000, "BLOCK", 20000) is not None:
                    client("LOCK.RELEASE", key, owner)
        except Exception as failure:  # a thread's failure would else be lost
            failures.append(repr(failure))

    threads = [
        threading.Thread(target=keep_busy, args=[key, f"{key}{n}"]) for key in "abc" for n in range(2)
    ]
    for thread in threads:
        thread.start()
    try:
        for turn in range(10):
            assert isinstance(take_all(cli, "a b c", f"all{turn}", "BLOCK 0"), int)
            for key in "abc":
                release(cli, key, f"all{turn}")
    finally:
        stop.set()
        for thread in threads:
            thread.join(40)
    assert not failures


def test_overlapping_requests_in_any_order_never_deadlock(server, cli):
    # G12, G1: philosophers, with a check that no other holds
    failures, holding = [], {}
    guard = threading.Lock()
    refused_before = count(cli, "deadlocks")

    def philosophise(name):
        chance = random.Random(name)
        try:
            client = server.connect()
            for turn in range(30):
                owner, keys = f"{name}.{turn}", chance.sample("abcdef", chance.randint(1, 4))
                reply = client(
                    "LOCK.MACQUIRE", len(keys), *keys, owner, "PX", 60000, "BLOCK", 20000
                )
                if not isinstance(reply, int):
                    failures.append(f"{owner}: {reply}")
                    continue
                with guard:
                    failures.extend(f"{key}: {owner} beside {holding[key]}" for key in keys if key in holding)
                    holding.update(dict.fromkeys(keys, owner))
                client("PING")
                with guard:
                    for key in keys:
                        holding.pop(key, None)
                for key in keys:
                    if client("LOCK.RELEASE", key, owner, "TOKEN", reply) != 1:
                        failures.append(f"{owner} lost {key}")
        except (ServerError, AssertionError, OSError) as failure:
            failures.append(f"{name}: {failure!r}")

    threads = [threading.Thread(target=philosophise, args=[n]) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert not failures, failures[:5]
    assert count(cli, "deadlocks") == refused_before, "G11: no false alarm"
    assert cli("DBSIZE") == 0
    assert count(cli, "waiters") == 0


def test_info_shows_a_request_for_several_in_every_line(server, cli):
    take(cli, "a", "h")
    request = ask_all(server, "a b", "alice", "SHARED")
    for key in "ab":
        (waiter,) = lock_info(cli, key)["queue"]
        assert (waiter["owner"], waiter["mode"], waiter["state"]) == ("alice", "shared", "blocked")
        assert waiter["client-id"] == request.client_id
