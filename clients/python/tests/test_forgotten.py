"""Holds without a reference, and those that only look so."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock
import redislock.redlock
from redislock import compat

from .servers import Yard, eventually

#: Seconds: long enough for a busy machine to renew it, short enough for a test to see its end.
LEASE = 2.0


class Told(redislock.Hooks):
    """The events of holds that end, as hooks receive them."""

    def __init__(self) -> None:
        self.all: list[tuple[str, ...]] = []

    def forgotten(self, name: str, held: float) -> None:
        self.all.append(("forgotten", name))

    def lost(self, name: str, held: float, reason: str) -> None:
        self.all.append(("lost", name, reason))

    def released(self, name: str, held: float) -> None:
        self.all.append(("released", name))


def releases(server: Any) -> int:
    """The number of releases that this server was asked for."""
    stats = {name.lower(): value for name, value in server.info("commandstats").items()}
    return (
        int(stats["cmdstat_lock.release"].partition("calls=")[2].partition(",")[0])
        if stats.get("cmdstat_lock.release")
        else 0
    )


def outlives_its_lease(client: redis.Redis, name: str, lease: float = LEASE) -> bool:
    """Returns whether the lock continues to be held for longer than its lease while garbage is collected."""
    (token, end) = client.execute_command("LOCK.FENCE", name), time.monotonic() + 1.5 * lease
    assert token is not None
    while time.monotonic() < end:
        gc.collect()
        time.sleep(0.05)
        if client.execute_command("LOCK.FENCE", name) != token:
            return False
    return True


def resource_warnings(said: list[warnings.WarningMessage]) -> list[str]:
    """The warnings about resources."""
    return [str(each.message) for each in said if each.category is ResourceWarning and "hold" in str(each.message)]


@pytest.fixture
def said() -> Any:
    """All warnings of the test, also those of other threads."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield said


def test_a_hold_that_is_forgotten_ends_with_its_lease(
    server: Any, client: redis.Redis, caplog: pytest.LogCaptureFixture, said: list[warnings.WarningMessage]
) -> None:
    told, before = Told(), releases(server)
    with redislock.Locks(client, lease=LEASE, hooks=told) as locks, caplog.at_level(logging.WARNING, "redislock"):
        locks.lock("k").acquire()
        gc.collect()
        eventually(lambda: told.all == [("forgotten", "k")], "it is told")
        eventually(lambda: resource_warnings(said), "it is warned of")
        assert "the hold of k was forgotten" in caplog.text  # ResourceWarning is not shown unless asked for
        assert releases(server) == before, "its user may still work under it"
        with locks.lock("k", wait=20):  # and this process may ask for it as before
            pass
        assert releases(server) == before + 1
    assert told.all == [("forgotten", "k"), ("released", "k")] and len(resource_warnings(said)) == 1


def test_a_hold_in_a_cycle_is_forgotten_too(server: Any, client: redis.Redis) -> None:
    told = Told()
    with redislock.Locks(client, lease=LEASE, hooks=told) as locks:
        cycle: dict[str, Any] = {"hold": locks.many(["a", "b"]).acquire()}
        cycle["self"] = cycle
        del cycle
        gc.collect()
        eventually(lambda: told.all == [("forgotten", "a")], "it is told")
        eventually(lambda: not client.exists("a", "b"), "both are free")


def test_a_hold_that_something_refers_to_is_renewed(
    locks: redislock.Locks, client: redis.Redis, said: list[warnings.WarningMessage]
) -> None:
    kept = [locks.lock("k", lease=LEASE).acquire()]
    assert outlives_its_lease(client, "k")
    kept.pop().release()
    assert resource_warnings(said) == []


def test_closing_gives_up_what_was_forgotten(server: Any, client: redis.Redis) -> None:
    with redislock.Locks(client, lease=60) as locks:
        locks.lock("k").acquire()
        gc.collect()
        assert client.exists("k")
    assert not client.exists("k")


def test_a_lease_lasts_though_its_locks_were_forgotten_too(server: Any, client: redis.Redis) -> None:
    before = releases(server)

    def take() -> None:
        with redis.Redis(port=server.port) as other:
            redislock.Locks(other, lease=LEASE).lock("k").acquire()

    take()
    gc.collect()
    eventually(lambda: not client.exists("k"), "its lease is over")
    assert releases(server) == before


@pytest.mark.parametrize("action", ["error", "ignore"])
def test_a_warning_that_is_an_error_does_no_harm(server: Any, client: redis.Redis, action: Any) -> None:
    told = Told()
    with warnings.catch_warnings():
        warnings.simplefilter(action, ResourceWarning)
        with redislock.Locks(client, lease=LEASE, hooks=told) as locks:
            kept = locks.lock("kept").acquire()
            locks.lock("k").acquire()
            gc.collect()
            eventually(lambda: told.all, "it is told")
            assert outlives_its_lease(client, "kept")
            kept.release()


def test_nothing_is_said_of_holds_that_have_ended(
    locks: redislock.Locks, client: redis.Redis, said: list[warnings.WarningMessage]
) -> None:
    locks.lock("k").acquire().release()
    lost = locks.lock("lost").acquire()
    client.delete("lost")
    assert lost.wait_until_lost(10) is not None
    del lost
    gc.collect()
    with locks.lock("other", lease=0.3):
        time.sleep(0.5)  # the keeper has looked
    assert resource_warnings(said) == []


def test_a_hold_whose_loss_has_a_listener_is_not_forgotten(locks: redislock.Locks, client: redis.Redis) -> None:
    told: list[str] = []
    locks.lock("k", lease=LEASE).acquire().on_lost(told.append)
    assert outlives_its_lease(client, "k") and told == []
    client.delete("k")
    eventually(lambda: told, "it is told")


def test_a_hold_that_was_waited_for_in_vain_can_be_forgotten(locks: redislock.Locks, client: redis.Redis) -> None:
    hold = locks.lock("k", lease=LEASE).acquire()
    assert hold.wait_until_lost(0.01) is None
    del hold
    gc.collect()
    eventually(lambda: not client.exists("k"), "it is free")


def test_a_hold_that_is_not_renewed_reports_its_end(server: Any, client: redis.Redis) -> None:
    told = Told()
    with redislock.Locks(client, hooks=told) as locks:
        locks.lock("k", lease=LEASE, renew=False).acquire()
        gc.collect()
        eventually(lambda: not client.exists("k"), "its lease is over")
        eventually(lambda: told.all == [("lost", "k", "deadline")], "it is told as before")


def test_blocks_and_calls_that_name_no_hold_keep_it(locks: redislock.Locks, client: redis.Redis) -> None:
    with locks.lock("block", lease=LEASE):
        assert outlives_its_lease(client, "block")

    @locks.locked("call", lease=LEASE)
    def work() -> bool:
        return outlives_its_lease(client, "call")

    assert work()


def test_a_leader_that_nothing_refers_to_leads(server: Any, client: redis.Redis) -> None:
    elected = threading.Event()
    with redislock.Locks(client, lease=LEASE) as locks:
        locks.leader("leader", on_elected=lambda _: elected.set()).start()
        assert elected.wait(20) and outlives_its_lease(client, "leader")


def test_independent_servers_forget_alike() -> None:
    yard = Yard()
    try:
        clients = [redis.Redis(port=yard().port) for _ in range(3)]
        told = Told()
        with redislock.redlock.Redlock(clients, lease=LEASE, hooks=told) as locks:
            kept = locks.lock("kept").acquire()
            locks.lock("k").acquire()
            gc.collect()
            eventually(lambda: told.all == [("forgotten", "k")], "it is told")
            with locks.lock("k", wait=20):
                assert outlives_its_lease(clients[0], "kept")
            kept.release()
        for each in clients:
            each.close()
    finally:
        yard.close()


def test_a_lock_in_the_manner_of_redis_py_outlives_the_object_that_took_it(server: Any, client: redis.Redis) -> None:
    """There it has no end without a timeout."""
    mine = redis.Redis(port=server.port)
    thread = threading.Thread(target=lambda: compat.Lock(mine, "k").acquire())
    thread.start()
    thread.join()
    gc.collect()
    (kept,) = compat._locks[mine]._engines[0].core.holds
    assert kept.lost is None and client.execute_command("LOCK.FENCE", "k") == kept.token
    compat._locks.pop(mine).close()
    mine.close()
    assert not client.exists("k")


def test_holds_can_be_forgotten_anywhere(server: Any, client: redis.Redis) -> None:
    """The collector runs in the middle of everything, in many threads, and no thread blocks."""
    told = Told()
    before = gc.get_threshold()

    def churn(number: int) -> None:
        for turn in range(60):
            cycle: dict[str, Any] = {"hold": locks.lock(f"{number}.{turn}").acquire()}
            cycle["self"] = cycle
            if turn % 2:
                cycle["hold"].release()

    gc.set_threshold(5, 2, 2)
    try:
        with redislock.Locks(client, lease=3, hooks=told) as locks:
            threads = [threading.Thread(target=churn, args=[number]) for number in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive(), "it stands still"
            gc.collect()
            eventually(lambda: len(told.all) == 6 * 60, "all are told of")
    finally:
        gc.set_threshold(*before)
    assert sorted(each[0] for each in told.all) == ["forgotten"] * 180 + ["released"] * 180


def test_asyncio_renews_no_hold_that_is_forgotten(server: Any, client: redis.Redis) -> None:
    told, before = Told(), releases(server)

    async def run() -> None:
        made = redis.asyncio.Redis(port=server.port)
        async with made, redislock.AsyncLocks(made, lease=LEASE, hooks=told) as locks:
            await locks.lock("k").acquire()
            gc.collect()
            async with locks.lock("k", wait=20):
                assert told.all == [("forgotten", "k")] and releases(server) == before

            hold = await locks.lock("vain").acquire()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(hold.until_lost(), 0.01)
            del hold
            gc.collect()
            while client.exists("vain"):
                await asyncio.sleep(0.01)
            assert told.all[2:] == [("forgotten", "vain")]

            await locks.lock("at the end").acquire()
        assert not client.exists("at the end")

    asyncio.run(asyncio.wait_for(run(), 60))


def in_asyncio(take: Callable[[redislock.AsyncLocks], Any], server: Any, client: redis.Redis) -> bool:
    """Returns whether the lock "k", which this takes, outlives its lease."""

    async def run() -> bool:
        made = redis.asyncio.Redis(port=server.port)
        async with made, redislock.AsyncLocks(made, lease=LEASE) as locks:
            await take(locks)
            while not await asyncio.to_thread(client.exists, "k"):
                await asyncio.sleep(0.01)
            return await asyncio.to_thread(outlives_its_lease, client, "k")

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_asyncio_keeps_a_hold_whose_loss_has_a_listener(server: Any, client: redis.Redis) -> None:
    async def take(locks: redislock.AsyncLocks) -> None:
        (await locks.lock("k").acquire()).on_lost(lambda _: None)

    assert in_asyncio(take, server, client)


def test_asyncio_keeps_a_body_that_nothing_refers_to(server: Any, client: redis.Redis) -> None:
    async def body(locks: redislock.AsyncLocks) -> None:
        async with locks.lock("k"):
            # Nothing else refers to this, nor to the task: only the hold, whose loss is to end it.
            await asyncio.get_running_loop().create_future()

    async def take(locks: redislock.AsyncLocks) -> None:
        asyncio.create_task(body(locks))  # noqa: RUF006
        await asyncio.sleep(0)

    assert in_asyncio(take, server, client)


def test_asyncio_keeps_a_leader_that_nothing_refers_to(server: Any, client: redis.Redis) -> None:
    async def take(locks: redislock.AsyncLocks) -> None:
        locks.leader("k").start()

    assert in_asyncio(take, server, client)
