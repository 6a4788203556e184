"""Arguments that are refused before any server is asked, by an error that names the argument."""

from __future__ import annotations

import asyncio
import copy
import functools
import pickle
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock
import redislock.redlock


@pytest.mark.parametrize("options", [{"timeout": 5}, {"tiemout": 5}, {"blocking_timeout": 5}])
def test_an_option_that_there_is_not_is_refused(options: Any, locks: redislock.Locks) -> None:
    with pytest.raises(TypeError, match=f"no option '{next(iter(options))}'; it has wait, lease"):
        locks.lock("k", **options)
    with pytest.raises(TypeError, match="no option"):
        locks.locked("k", **options)


@pytest.mark.parametrize("name", ["wait", "lease", "max_hold"])
def test_an_invalid_time_is_refused_by_its_name(name: str, locks: redislock.Locks) -> None:
    for value in ("5", float("nan"), True, *([None] if name == "lease" else [])):
        with pytest.raises(TypeError, match=f"{name} must be a number of seconds, .*, not"):
            locks.lock("k", **{name: value})  # type: ignore[arg-type]
    for value in (float("inf"), *([] if name == "lease" else [-1])):
        with pytest.raises(ValueError, match=f"{name} must be a number of seconds, 0(.1)? or more"):
            locks.lock("k", **{name: value})  # type: ignore[arg-type]


def test_what_is_no_name_is_refused(locks: redislock.Locks) -> None:
    for name in (None, 42):
        with pytest.raises(TypeError, match="the name of a lock must be str or bytes, not"):
            locks.lock(name)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="many takes several names"):
        locks.many("account:1")
    with pytest.raises(TypeError, match="read_many takes several names"):
        locks.read_many(b"account:1")  # type: ignore[arg-type]


def test_a_function_that_cannot_run_under_the_lock_is_refused(locks: redislock.Locks) -> None:
    async def report(day: str) -> None:
        raise AssertionError(day)

    def rows(day: str) -> Iterator[str]:
        yield day

    async def pages(day: str) -> AsyncIterator[str]:
        yield day

    def plain(day: str) -> str:
        return day

    with pytest.raises(TypeError, match="report is asynchronous: use locked of AsyncLocks"):
        locks.locked("report:{day}")(report)
    for function, name in ((rows, "rows"), (functools.partial(rows), "rows"), (pages, "pages")):
        for each in (locks, redislock.AsyncLocks(redis.asyncio.Redis())):
            with pytest.raises(TypeError, match=f"{name} is a generator, which runs after the call"):
                each.locked("report:{day}")(function)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'dya', which is not an argument of plain"):
        locks.locked("report:{dya}")(plain)


def test_a_result_that_has_yet_to_run_is_refused(locks: redislock.Locks, client: redis.Redis, server: Any) -> None:
    async def work() -> None:
        raise AssertionError("it runs without the lock")

    async def pages() -> AsyncIterator[str]:
        yield "it runs without the lock"

    def rows() -> Iterator[str]:
        yield "it runs without the lock"

    made: list[Any] = [work, pages, rows]
    for make in made:
        with pytest.raises(TypeError, match=r"<lambda> has returned .*, which runs after the call"):
            locks.locked("k")(lambda make=make: make())()

    async def asynchronously() -> None:
        client = redis.asyncio.Redis(port=server.port)
        async with client, redislock.AsyncLocks(client) as others:
            for make in made:

                async def later(make: Any = make) -> Any:
                    return make()

                with pytest.raises(TypeError, match=r"later has returned .*, which runs after the call"):
                    await others.locked("k")(later)()
            wrong: Any = lambda: 1  # noqa: E731
            with pytest.raises(TypeError, match="<lambda> has returned 1, which cannot be awaited"):
                await others.locked("k")(wrong)()
            with pytest.raises(ZeroDivisionError):
                await others.locked("k")(lambda: 1 / 0)()  # type: ignore[arg-type, return-value]
            assert not await client.exists("k"), "it is released"

    asyncio.run(asynchronously())
    assert not client.exists("k")


def test_an_owner_that_the_server_replaces_is_refused(locks: redislock.Locks) -> None:
    for owner in ("*", b"*", "x" * 257):
        with pytest.raises(ValueError, match=r"owner must be 1 to 256 bytes, and not \*"):
            locks.lock("k", owner=owner)
    with pytest.raises(ValueError, match="owner must not be empty"):
        locks.many(["k", "j"], owner="")
    with pytest.raises(TypeError, match="owner must be str or bytes"):
        locks.lock("k", owner=7)  # type: ignore[arg-type]


def test_what_is_no_client_is_refused() -> None:
    with pytest.raises(TypeError, match="a client of redis-py or valkey-py"):
        redislock.Locks("redis://127.0.0.1")


def test_a_lease_is_long_enough_to_be_renewed(locks: redislock.Locks, client: redis.Redis) -> None:
    refused = pytest.raises(ValueError, match=r"lease must be a number of seconds, 0\.1 or more and finite, not 0\.099")
    with refused:
        redislock.Locks(client, lease=0.099)
    with refused:
        locks.lock("k", lease=0.099).acquire()
    with locks.lock("k", lease=0.1) as hold, refused:
        hold.extend(0.099)


def test_a_name_is_not_empty(locks: redislock.Locks) -> None:
    asks: list[Any] = [locks.lock, locks.read, locks.info, lambda name: locks.many(["a", name]), locks.leader]
    for ask in (*asks, lambda name: locks.check_token(name, 1)):
        with pytest.raises(ValueError, match="the name of a lock must not be empty"):
            ask("")


def test_several_locks_are_1_to_64(locks: redislock.Locks) -> None:
    for names in ([], [str(number) for number in range(65)]):
        with pytest.raises(ValueError, match=r"many takes 1 to 64 names, not \d+"):
            locks.many(names)
        with pytest.raises(ValueError, match=r"read_many takes 1 to 64 names, not \d+"):
            locks.read_many(names)


def test_min_hold_a_token_a_label_and_a_prefix_are_checked(locks: redislock.Locks, client: redis.Redis) -> None:
    with pytest.raises(ValueError, match=r"min_hold must be a number of seconds, 0\.1 or more"):
        locks.lock("k", min_hold=0.05)
    with pytest.raises(ValueError, match=r"min_hold must be max_hold \(1 seconds\) or less, not 2"):
        locks.lock("k", min_hold=2, max_hold=1)
    makes: list[Any] = [lambda: locks.read("k", min_hold=1), lambda: locks.read_many(["k"], min_hold=1)]
    for make in makes:
        with pytest.raises(ValueError, match="min_hold must not be set for readers or Redlock"):
            make()
    with pytest.raises(TypeError):
        locks.leader("k", min_hold=1)  # type: ignore[call-arg]
    for token, error in ((0, ValueError), (2**53, ValueError), ("7", TypeError), (True, TypeError)):
        with pytest.raises(error, match="token must be a whole number from 1 to"):
            locks.check_token("k", token)  # type: ignore[arg-type]
    for label, error in (("x" * 216, ValueError), (b"x", TypeError), (7, TypeError)):
        with pytest.raises(error, match="label must be a str of 215 bytes at most"):
            redislock.Locks(client, label=label)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="prefix must be str or bytes"):
        redislock.Locks(client, prefix=7)  # type: ignore[arg-type]


def test_whether_to_renew_is_true_or_false(locks: redislock.Locks) -> None:
    for renew in (None, "no", 0):
        with pytest.raises(TypeError, match=f"renew must be True or False, not {renew!r}"):
            locks.lock("k", renew=renew)  # type: ignore[arg-type]


def test_an_extension_is_a_number_of_seconds(locks: redislock.Locks) -> None:
    with locks.lock("k") as hold:
        for lease in ("5", None, float("nan"), True):
            with pytest.raises(TypeError, match=f"lease must be a number of seconds, .*, not {lease!r}"):
                hold.extend(lease)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="finite, not inf"):
            hold.extend(float("inf"))
        assert hold.check()


def test_a_lease_beyond_the_server_s_longest_is_explained(locks: redislock.Locks) -> None:
    longest = pytest.raises(
        redislock.ServerRefusedError, match=r"A lease and min_hold must be 0\.1 to 3600 seconds \(the server"
    )
    with longest:
        locks.lock("k", lease=30_000, wait=0).acquire()
    with longest:
        locks.lock("k", lease=30_000).acquire()
    with locks.lock("k") as hold, longest:
        hold.extend(30_000)


def test_a_lock_that_is_not_waited_for_is_said_to_be_held(locks: redislock.Locks) -> None:
    with locks.lock("k").acquire():
        for lock, who in ((locks.lock("k", wait=0), "k"), (locks.many(["j", "k"], wait=0), "one of j, k")):
            with pytest.raises(redislock.LockTimeoutError) as late:
                lock.acquire()
            assert str(late.value) == f"{who} is held by another owner, and the request does not wait"


def test_limits_clients_and_hooks_are_checked_where_they_are_given(locks: redislock.Locks, server: Any) -> None:
    blocking, asynchronous = redis.Redis(port=server.port), redis.asyncio.Redis(port=server.port)
    for each in (locks, redislock.AsyncLocks(asynchronous)):
        for limit, error in ((-1, ValueError), (0, ValueError), (1_000_001, ValueError), (1.5, TypeError)):
            with pytest.raises(error, match=r"limit must be a whole number from 1 to 1,000,000, not"):
                each.semaphore("k", limit)  # type: ignore[arg-type]
        for other in (True, "3", None):
            with pytest.raises(TypeError, match=r"limit must be a whole number from 1 to 1,000,000, not"):
                each.semaphore("k", other)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Locks takes a blocking client .*; AsyncLocks takes the other"):
        redislock.Locks(asynchronous)
    with pytest.raises(TypeError, match=r"AsyncLocks takes an asyncio client .*; Locks takes the other"):
        redislock.AsyncLocks(blocking)
    with pytest.raises(TypeError, match="Redlock takes a blocking client"):
        redislock.redlock.Redlock([redis.Redis(port=1), redis.asyncio.Redis(port=2), redis.Redis(port=3)])
    group = redislock.redlock.Redlock([redis.Redis(port=port) for port in (1, 2, 3)])
    makes: list[Any] = [lambda: group.read("k"), lambda: group.semaphore("k", 2), lambda: group.many(["k", "j"])]
    for make in makes:
        with pytest.raises(ValueError, match="independent servers allow only exclusive locks, one at a time"):
            make()
    with pytest.raises(ValueError, match="min_hold must not be set"):
        group.lock("k", min_hold=1)
    for hooks in (redislock.Counters, print, "counters"):
        with pytest.raises(TypeError, match=r"hooks must be an object of a class that derives"):
            redislock.Locks(blocking, hooks=hooks)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"max_hold must be a number of seconds, 0\.1 or more and finite, not 0\.05"):
        locks.lock("k", max_hold=0.05)
    blocking.close()


@pytest.mark.parametrize("pack", [pickle.dumps, copy.copy])
def test_what_belongs_to_a_process_says_so(pack: Any, locks: redislock.Locks) -> None:
    others = redislock.AsyncLocks(redis.asyncio.Redis())
    with locks.lock("k") as hold:
        leader = locks.leader("job", on_elected=lambda _: None)
        for each in (locks, locks.lock("k"), hold, leader, others, others.lock("k")):
            with pytest.raises(TypeError, match="cannot be copied or pickled, because it belongs to this process"):
                pack(each)
