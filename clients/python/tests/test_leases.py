"""Leases that begin after a wait, are extended, or cut: the client never counts on more than the server grants."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock
from redislock import _hold, _keeper, _rules, testing

from .servers import eventually

Meddled = Callable[..., redislock.Locks]


@pytest.fixture
def meddled(meddler: Any) -> Any:
    """Makes locks whose requests go through the network that a test meddles with."""
    made: list[Any] = []

    def make(lease: float) -> redislock.Locks:
        client = redis.Redis(port=meddler.port)
        made[:0] = [redislock.Locks(client, lease=lease), client]
        return made[0]  # type: ignore[no-any-return]

    yield make
    meddler.open()
    meddler.flow()
    for each in made:
        each.close()


def asks_for(ms: int) -> Callable[[Any], bool]:
    """Returns whether a call renews a lock for `ms` milliseconds."""
    return lambda call: call.name == "LOCK.RENEW" and call.words[4] == str(ms)


@pytest.mark.parametrize(("lease", "seconds"), [(1.5, 2.5), (30, 6)])
def test_many_that_waited_for_longer_than_their_first_lease(
    lease: float, seconds: float, client: redis.Redis, meddled: Meddled, meddler: Any
) -> None:
    meddler.delay = lambda call: 0.1 if call.name == "LOCK.RENEW" else 0
    client.execute_command("LOCK.ACQUIRE", "b", "somebody", "PX", int(1000 * seconds))
    with meddled(lease).many(["a", "b"], wait=20) as hold:
        assert hold.remaining > lease / 2


def test_a_renewal_that_comes_late_does_not_cut_a_longer_lease_unnoticed(
    client: redis.Redis, meddled: Meddled, meddler: Any
) -> None:
    hold = meddled(3).lock("k").acquire()
    eventually(lambda: meddler.calls("LOCK.FENCE"), "it is connected")
    meddler.drop(asks_for(3000), then="silent")
    eventually(lambda: len(meddler.calls("LOCK.RENEW")) > 1, "it is sent again")
    time.sleep(0.1)
    hold.extend(60)
    # The first one comes now, behind all others.
    late = ("LOCK.RENEW", "k", hold.owner, "PX", 3000, "TOKEN", hold.token)
    assert client.execute_command(*late) == 1
    for _ in range(50):
        time.sleep(0.1)
        assert client.execute_command("LOCK.FENCE", "k", hold.token) == 1, hold.remaining
        hold.check()
    hold.release()


def test_a_shorter_lease_counts_though_its_reply_is_lost(client: redis.Redis, meddled: Meddled, meddler: Any) -> None:
    hold = meddled(30).lock("k").acquire()
    eventually(lambda: meddler.calls("LOCK.FENCE"), "it is connected")
    meddler.drop(asks_for(1000), then="silent")
    meddler.shut()
    began = time.monotonic()
    with pytest.raises(redislock.LockLostError, match="deadline"):
        hold.extend(1)
    assert 0.9 < time.monotonic() - began < 5
    eventually(lambda: not client.exists("k"), "the server has ended it, too")


def test_asyncio_counts_a_shorter_lease_though_its_reply_is_lost(client: redis.Redis, meddler: Any) -> None:
    async def run() -> None:
        async with redislock.AsyncLocks(redis.asyncio.Redis(port=meddler.port), lease=30) as locks:
            hold = await locks.lock("k").acquire()
            meddler.drop(asks_for(1000), then="silent")
            meddler.shut()
            with pytest.raises(redislock.LockLostError, match="deadline"):
                await hold.extend(1)
            meddler.open()

    asyncio.run(asyncio.wait_for(run(), 20))
    eventually(lambda: not client.exists("k"), "the server has ended it, too")


def test_an_extension_that_the_server_does_not_confirm(start_server: Any) -> None:
    server = start_server()
    with redis.Redis(port=server.port) as client, redislock.Locks(client, lease=30) as locks, locks.lock("k") as hold:
        server.admin("CONFIG", "SET", "min-replicas-to-write", 1)
        with pytest.raises(redislock.NotConfirmedError):
            hold.extend(10)
        assert 5 < hold.check() < 10, "the server may have cut it, for all that one knows"
        server.admin("CONFIG", "SET", "min-replicas-to-write", 0)
        eventually(lambda: hold.check() > 20, "it is renewed for as long as before")


def test_a_renewal_under_way_is_not_counted_as_the_extension(meddled: Meddled, meddler: Any) -> None:
    hold = meddled(3).lock("k").acquire()

    def in_vain() -> None:
        with pytest.raises(redislock.LockLostError):
            hold.extend(600)

    meddler.delay = lambda call: 0.6 if asks_for(3000)(call) else 60 if asks_for(600_000)(call) else 0
    eventually(lambda: meddler.calls("LOCK.RENEW"), "it is renewed")
    meddler.shut()
    extending = threading.Thread(target=in_vain)
    extending.start()
    end = time.monotonic() + 5
    while hold.lost is None and time.monotonic() < end:
        assert hold.remaining <= 3
        time.sleep(0.01)
    assert hold.lost == "deadline"
    extending.join()


def test_a_renewal_that_is_repeated_does_not_cut_the_extension(
    client: redis.Redis, meddled: Meddled, meddler: Any
) -> None:
    hold = meddled(6).lock("k").acquire()
    meddler.drop(asks_for(6000))
    eventually(meddler.has_dropped, "a renewal is not answered")
    meddler.shut()
    meddler.cut()
    time.sleep(0.7)  # its pauses have become long
    extending = threading.Thread(target=hold.extend, args=[600])
    extending.start()
    meddler.open()
    extending.join()
    time.sleep(0.5)
    assert [call.words[4] for call in meddler.calls("LOCK.RENEW")][-1] == "600000"
    assert hold.check() > 500
    hold.release()


def test_a_cancelled_extension_leaves_the_lease_as_it_was(meddler: Any) -> None:
    async def run() -> None:
        async with redislock.AsyncLocks(redis.asyncio.Redis(port=meddler.port), lease=30) as locks:
            hold = await locks.lock("k").acquire()
            meddler.delay = lambda call: 0.5 if asks_for(5000)(call) else 0
            extending = asyncio.create_task(hold.extend(5))
            while not meddler.calls("LOCK.RENEW"):
                await asyncio.sleep(0.001)
            extending.cancel()
            await asyncio.gather(extending, return_exceptions=True)
            assert hold.check() < 5, "the server may have cut it"
            while hold.check() < 20:
                await asyncio.sleep(0.01)
            assert [call.words[4] for call in meddler.calls("LOCK.RENEW")] == ["5000", "30000"]
            await hold.release()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_lease_that_was_cut_is_renewed_in_time(locks: redislock.Locks) -> None:
    with locks.lock("k", lease=30) as hold:
        time.sleep(0.2)  # nothing is to be done for it before its first renewal
        hold.extend(0.8)
        time.sleep(2)
        assert 0 < hold.check() <= 0.8


def test_a_lease_beyond_the_longest_is_refused_with_the_range(meddled: Meddled, meddler: Any) -> None:
    hold = meddled(30).lock("k", renew=False).acquire()
    with pytest.raises(redislock.ServerRefusedError, match=r"PX must be .* 3600000"):
        hold.extend(7200)
    assert hold.check() > 20
    time.sleep(0.5)
    assert len(meddler.calls("LOCK.RENEW")) == 1, "it is renewed by its holder alone"
    hold.release()

    async def run() -> None:
        async with redislock.AsyncLocks(redis.asyncio.Redis(port=meddler.port)) as locks, locks.lock("k") as hold:
            with pytest.raises(redislock.ServerRefusedError, match=r"PX must be .* 3600000"):
                await hold.extend(7200)

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_machine_that_has_slept_tells_a_lost_lock_at_once(
    locks: redislock.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, real, told = locks.lock("k", lease=30).acquire(), _rules.clock, list[str]()
    hold.on_lost(told.append)
    time.sleep(0.1)
    # The timer of an event loop stops while the machine sleeps. The clock of deadlines continues.
    for module in (_hold, _keeper):
        monkeypatch.setattr(module, "clock", lambda: real() + 3600)
    eventually(lambda: told, "a loss is told", 3)
    assert told == ["deadline"]


def test_the_longest_hold_is_exceeded_by_no_lease_and_no_extension(meddled: Meddled, meddler: Any) -> None:
    with meddled(6).lock("k", max_hold=2) as hold:
        assert hold.remaining <= 2
        with pytest.raises(ValueError, match="a lease of 2 seconds would exceed max_hold"):
            hold.extend(2)
    began = time.monotonic()
    hold = meddled(1).lock("renewed", max_hold=2).acquire()
    eventually(lambda: hold.lost is not None, "it is over")
    assert time.monotonic() - began > 1.5 and hold.lost == "max_hold"
    last = meddler.calls("LOCK.RENEW")[-1]
    assert last.words[1] == "renewed" and int(last.words[4]) / 1000 + last.sent - began < 2.2


def test_the_longest_hold_is_not_exceeded_in_an_outage(meddled: Meddled, meddler: Any) -> None:
    hold = meddled(1.8).lock("k", max_hold=2).acquire()
    began = time.monotonic()  # not before: a busy machine can take milliseconds until the request is sent
    eventually(lambda: meddler.calls("LOCK.RENEW"), "it is renewed")
    time.sleep(0.2)
    meddler.swallow()
    rest = 2 - (time.monotonic() - began)
    assert hold.remaining <= rest
    eventually(lambda: hold.lost is not None, "it is over")


def test_renewals_are_spread_at_random_and_never_late() -> None:
    parts = []
    with redislock.Locks(testing.Server(), lease=30) as locks:
        holds = [locks.lock(f"k{number}").acquire() for number in range(100)]
        for hold in holds:
            sent = hold._deadline - _rules.deadline(0, 30)
            parts.append((hold._renew_at - sent) / 30)
    assert all(0.3 - 1e-6 <= part <= 1 / 3 + 1e-6 for part in parts)
    assert max(parts) - min(parts) > 0.01 and len(set(parts)) > 50
