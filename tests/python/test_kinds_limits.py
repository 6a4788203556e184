"""Limits of all kinds while they are changed, LOCK.MACQUIRE of one and of 64 keys, and rights of those who wait."""

import pytest

from harness.kinds import (
    ask, ask_all, count, held_by, kind_of, line_of, owners_of, release, take, take_all,
)  # fmt: skip
from harness.limits import eventually
from harness.wire import refused

KEYS = [f"k{n}" for n in range(64)]
ALL = " ".join(KEYS)

# max-holders


def test_fewer_holders_allowed_sends_nobody_away(server, cli):
    # CONTRACT 7: concerns new requests only
    tokens = {f"r{n}": take(cli, "read", f"r{n}", "SHARED") for n in range(5)}
    cli("CONFIG SET redislock.max-holders 2")
    assert owners_of(cli, "read") == [*tokens]
    assert take(cli, "read", "new", "SHARED") is None
    assert take_all(cli, "free read", "new", "SHARED") is None
    waiter, second = ask(server, "read", "w1", "SHARED"), ask(server, "read", "w2", "SHARED")
    for owner, token in tokens.items():
        # Who holds is not in its own way.
        assert take(cli, "read", owner, "SHARED") == token
        assert take(cli, "read", owner, "SHARED REENTRANT") == token
        assert cli("LOCK.RENEW", "read", owner, "PX", 60_000) == 1
        release(cli, "read", owner)
    for owner in ("r0", "r1", "r2"):
        release(cli, "read", owner)
        assert waiter.waits()
    release(cli, "read", "r3")
    assert isinstance(waiter.answer(), int)
    assert owners_of(cli, "read") == ["r4", "w1"]
    assert second.waits()
    release(cli, "read", "r4")
    assert isinstance(second.answer(), int)


def test_more_holders_allowed_lets_in_who_waits_with_the_next_change(server, cli):
    cli("CONFIG SET redislock.max-holders 1")
    take(cli, "read", "r", "SHARED")
    waiters = [ask(server, "read", f"w{n}", "SHARED") for n in range(3)]
    both = ask_all(server, "read free", "both", "SHARED")
    cli("CONFIG SET redislock.max-holders 4")
    cli("LOCK.RENEW read r PX 60000")
    for waiter in waiters:
        assert isinstance(waiter.answer(), int)
    assert both.waits()
    release(cli, "read", "r")
    assert isinstance(both.answer(), int)


def test_leases_that_end_under_a_lowered_limit(server, cli):
    # G3
    for n in range(4):
        take(cli, "read", f"r{n}", "SHARED", lease_ms=200 + 100 * n)
    waiter = ask(server, "read", "w", "SHARED")
    assert isinstance(waiter.answer(), int)
    cli("CONFIG SET redislock.max-holders 1")
    waiter = ask(server, "read", "w2", "SHARED")
    assert waiter.waits()
    release(cli, "read", "w")
    eventually(lambda: owners_of(cli, "read") == ["w2"])


def test_an_upgrade_and_a_downgrade_under_a_lowered_limit(server, cli):
    take(cli, "read", "r1", "SHARED")
    take(cli, "read", "r2", "SHARED")
    cli("CONFIG SET redislock.max-holders 1")
    upgrade = ask(server, "read", "r1")
    release(cli, "read", "r2")
    token = upgrade.answer()
    reader = ask(server, "read", "r3", "SHARED")
    assert take(cli, "read", "r1", "SHARED") == token
    assert reader.waits(), "there is room for one"
    release(cli, "read", "r1")
    assert isinstance(reader.answer(), int)


def test_a_limit_of_its_own_is_not_bounded_by_max_holders(cli):
    # CONTRACT 7: per shared lock
    cli("CONFIG SET redislock.max-holders 1")
    for n in range(3):
        assert isinstance(take(cli, "pool", f"p{n}", "LIMIT 3"), int)


# max-waiters


def test_a_request_for_several_counts_once_for_each_of_its_lines(server, cli):
    # CONTRACT 4
    take_all(cli, "a b c", "h")
    cli("CONFIG SET redislock.max-waiters 5")
    first = ask_all(server, "a b c", "one")
    assert count(cli, "waiters") in (1, 3)
    with refused("LOCKQUEUE", "max-waiters"):
        take_all(cli, "a b c", "two", "BLOCK 0")
    assert line_of(cli, "a") == line_of(cli, "b") == ["one"], "G14: nothing is changed"
    first.leave()
    eventually(lambda: count(cli, "waiters") == 0)
    second = ask_all(server, "a b c", "two")
    assert second.waits()


def test_a_request_again_needs_no_new_places(server, cli):
    # G9
    take_all(cli, "a b c", "h")
    first = ask_all(server, "a b c", "one")
    for setting in ("max-waiters", "max-waiters-per-lock"):
        cli("CONFIG", "SET", f"redislock.{setting}", 1)
    again = ask_all(server, "a b c", "one")
    with refused("UNBLOCKED"):
        first.answer()
    assert again.waits()
    for key in "abc":
        release(cli, key, "h")
    assert isinstance(again.answer(), int)


def test_fewer_waiters_allowed_sends_no_request_for_several_away(server, cli):
    take_all(cli, "a b", "h")
    requests = [ask_all(server, "a b", f"w{n}") for n in range(3)]
    for setting in ("max-waiters", "max-waiters-per-lock"):
        cli("CONFIG", "SET", f"redislock.{setting}", 0)
    with refused("LOCKQUEUE"):
        take_all(cli, "b c", "new", "BLOCK 0")
    with refused("LOCKQUEUE"):
        take(cli, "a", "new", "QUEUE 100")
    for key in "ab":
        release(cli, key, "h")
    for n, request in enumerate(requests):
        assert isinstance(request.answer(), int)
        for key in "ab":
            release(cli, key, f"w{n}")
    assert isinstance(take_all(cli, "a b", "new", "BLOCK 0"), int), "what is free needs no place"


# One key


def test_a_request_for_one_of_several_keys_is_one_like_any_other(server, cli):
    # G5, G9, G10
    token = take_all(cli, "door", "alice")
    assert take(cli, "door", "alice") == token, "the same owner, the same hold"
    assert take_all(cli, "door", "alice") == token
    assert take(cli, "door", "alice", "REENTRANT") == token
    release(cli, "door", "alice")
    requests = [
        ask(server, "door", "w1"), ask_all(server, "door", "w2"), ask(server, "door", "w3"), ask_all(server, "door", "w4"),
    ]  # fmt: skip
    assert line_of(cli, "door") == ["w1", "w2", "w3", "w4"]
    before = "alice"
    for n, request in enumerate(requests, 1):
        assert all(later.is_blocked() for later in requests[n - 1 :])
        release(cli, "door", before)
        assert request.answer() > token
        before = f"w{n}"
        assert held_by(cli, before) == [("door", "held", "exclusive", cli("LOCK.FENCE door"))]


@pytest.mark.parametrize("way", ["first single", "first several"])
def test_a_request_for_one_takes_over_the_place_of_the_other_way_to_ask(server, cli, way):
    # G9: one owner, one place
    take(cli, "door", "h")
    single, several = (lambda: ask(server, "door", "w")), (lambda: ask_all(server, "door", "w"))
    first = single() if way == "first single" else several()
    second = several() if way == "first single" else single()
    with refused("UNBLOCKED"):
        first.answer()
    assert line_of(cli, "door") == ["w"]
    release(cli, "door", "h")
    assert isinstance(second.answer(), int)


def test_readers_of_one_key_ask_either_way(server, cli):
    take_all(cli, "book", "r1", "SHARED")
    take(cli, "book", "r2", "SHARED")
    assert kind_of(cli, "book") == ("shared", None)
    upgrade = ask(server, "book", "r1")
    release(cli, "book", "r2")
    assert isinstance(upgrade.answer(), int)
    assert take_all(cli, "book", "r1", "SHARED") == cli("LOCK.FENCE book"), "a downgrade has the token that FENCE tells"


# 64 keys


def test_64_keys_are_handed_over_in_one_step(server, cli):
    # G12
    for key in KEYS:
        take(cli, key, "h")
    request = ask_all(server, ALL, "all")
    behind = [ask(server, key, "behind") for key in KEYS[::9]]
    for number, key in enumerate(KEYS[:-1]):
        release(cli, key, "h")
        if number % 21 == 0:
            assert request.is_blocked() and owners_of(cli, key) == []
    release(cli, KEYS[-1], "h")
    token = request.answer()
    assert {cli("LOCK.FENCE", key) for key in KEYS} == {token}
    assert all(waiter.waits() for waiter in behind[:2])
    assert len(cli("LOCK.HELDBY all")) == 64
    cli("DEL", *KEYS)
    for waiter in behind:
        assert waiter.answer() > token


def test_64_keys_whose_request_leaves_let_everybody_go_on(server, cli):
    # G8, G6
    take(cli, KEYS[63], "h")
    request = ask_all(server, ALL, "all")
    behind = [ask(server, key, f"b{key}") for key in KEYS[:10]]
    request.leave()
    for waiter in behind:
        assert isinstance(waiter.answer(), int)
    assert count(cli, "waiters") == 0


def test_64_leases_end_and_the_next_gets_all(server, cli):
    # G3
    take_all(cli, ALL, "first", lease_ms=300)
    request = ask_all(server, " ".join(reversed(KEYS)), "second", "SHARED")
    request2 = ask_all(server, ALL, "third", "SHARED")
    first, second = request.answer(), request2.answer()
    assert owners_of(cli, "k0") == owners_of(cli, "k63") == ["second", "third"]
    assert {cli("LOCK.FENCE", key) for key in KEYS} == {max(first, second)}


# Rights


def test_who_waits_for_several_needs_the_right_to_the_command_it_sent(server, cli):
    # CONTRACT 4: a grant out of the line asks what the server had asked
    cli("ACL SETUSER worker on >secret ~* +lock.macquire +client")
    take(cli, "a", "h")
    request = ask_all(server, "a b", "worker", user="worker")
    release(cli, "a", "h")
    assert isinstance(request.answer(), int)


def test_who_lost_the_right_to_ask_for_several_is_not_granted(server, cli):
    # CONTRACT 4
    cli("ACL SETUSER worker on >secret ~* +lock.macquire +lock.acquire +client")
    take(cli, "a", "h")
    request = ask_all(server, "a b", "worker", user="worker")
    cli("ACL SETUSER worker -lock.macquire")
    release(cli, "a", "h")
    with refused("NOPERM", "lock.macquire"):
        request.answer()
    assert owners_of(cli, "a") == owners_of(cli, "b") == []
