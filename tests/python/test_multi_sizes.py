"""LOCK.MACQUIRE of one key, which is a request like any other, and of 64, the most there can be (G12)."""

import pytest

from harness.kinds import ask, ask_all, count, held_by, kind_of, line_of, owners_of, release, take, take_all
from harness.wire import refused

KEYS = [f"k{n}" for n in range(64)]
ALL = " ".join(KEYS)


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
def test_either_way_to_ask_for_one_key_takes_over_the_others_place(server, cli, way):
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
    release(cli, "book", "r1")
    release(cli, "book", "r2")
    take(cli, "book", "r1")
    with refused("LOCKHELD"):
        take_all(cli, "book", "r1", "SHARED")


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


def test_64_keys_whose_request_leaves_unblock_all_waiters(server, cli):
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
