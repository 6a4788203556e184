"""`redislock.max-holders`, `max-waiters` and `max-waiters-per-lock`, changed while locks are held and waited for (CONTRACT 7)."""

from harness.kinds import ask, ask_all, count, line_of, owners_of, release, take, take_all
from harness.limits import eventually
from harness.wire import refused

# max-holders


def test_readers_are_limited_by_max_holders(server, cli):
    # CONTRACT 7
    cli("CONFIG SET redislock.max-holders 3")
    for n in range(3):
        assert isinstance(take(cli, "door", f"r{n}", "SHARED"), int)
    assert take(cli, "door", "r3", "SHARED") is None
    assert take(cli, "door", "r2", "SHARED") is not None, "a holder is not one more"
    waiter = ask(server, "door", "r3", "SHARED")
    assert waiter.waits()
    release(cli, "door", "r0")
    assert isinstance(waiter.answer(), int)
    assert len(owners_of(cli, "door")) == 3


def test_a_lower_max_holders_ends_no_hold(server, cli):
    # CONTRACT 7: concerns new requests only
    tokens = {f"r{n}": take(cli, "read", f"r{n}", "SHARED") for n in range(5)}
    cli("CONFIG SET redislock.max-holders 2")
    assert owners_of(cli, "read") == [*tokens]
    assert take(cli, "read", "new", "SHARED") is None
    assert take_all(cli, "free read", "new", "SHARED") is None
    waiter, second = ask(server, "read", "w1", "SHARED"), ask(server, "read", "w2", "SHARED")
    for owner, token in tokens.items():
        # A holder is not in its own way.
        assert take(cli, "read", owner, "SHARED") == token
        assert cli("LOCK.RENEW", "read", owner, "PX", 60_000) == 1
    for owner in ("r0", "r1", "r2"):
        release(cli, "read", owner)
        assert waiter.waits()
    release(cli, "read", "r3")
    assert isinstance(waiter.answer(), int)
    assert owners_of(cli, "read") == ["r4", "w1"]
    assert second.waits()
    release(cli, "read", "r4")
    assert isinstance(second.answer(), int)


def test_more_holders_allowed_lets_waiters_in_with_the_next_change(server, cli):
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


def test_a_downgrade_under_a_lowered_limit(server, cli):
    take(cli, "read", "r1", "SHARED")
    take(cli, "read", "r2", "SHARED")
    cli("CONFIG SET redislock.max-holders 1")
    for name in ("r1", "r2"):
        release(cli, "read", name)
    token = take(cli, "read", "r1")
    reader = ask(server, "read", "r3", "SHARED")
    assert take(cli, "read", "r1", "SHARED") == token
    assert reader.waits(), "there is room for one"
    release(cli, "read", "r1")
    assert isinstance(reader.answer(), int)


def test_the_limit_of_a_semaphore_is_not_bounded_by_max_holders(cli):
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
