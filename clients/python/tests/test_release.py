"""Releases that the server refuses or does not answer, and those of locks that were lost before."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock
import redislock.redlock

from .servers import eventually


@pytest.fixture
def refusing(start_server: Any) -> Any:
    """A server, and what lets it refuse all writes from then on, or accept them again."""
    server = start_server()
    return server, lambda refuses: server.admin("CONFIG", "SET", "min-replicas-to-write", int(refuses))


@contextlib.contextmanager
def locks_of(port: int, **options: Any) -> Iterator[redislock.Locks]:
    with redis.Redis(port=port) as client, redislock.Locks(client, **options) as locks:
        yield locks


@contextlib.asynccontextmanager
async def async_locks_of(port: int, **options: Any) -> AsyncIterator[redislock.AsyncLocks]:
    client = redis.asyncio.Redis(port=port)
    async with client, redislock.AsyncLocks(client, **options) as locks, asyncio.timeout(30):
        yield locks


@pytest.mark.parametrize("is_heard_of", [True, False])
def test_a_lock_that_was_overwritten_is_lost(is_heard_of: bool, locks: redislock.Locks, client: redis.Redis) -> None:
    with pytest.raises(redislock.LockLostError, match="push" if is_heard_of else "push|release"):
        with locks.many(["k", "j"], lease=60) as hold:
            client.set("k", "v")
            if is_heard_of:
                assert hold.wait_until_lost(10)
    assert client.get("k") == "v"
    eventually(lambda: not client.exists("j"), "the other one is free")


@pytest.mark.parametrize("is_heard_of", [True, False])
def test_asyncio_loses_a_lock_that_was_overwritten(is_heard_of: bool, server: Any, client: redis.Redis) -> None:
    async def run() -> None:
        async with async_locks_of(server.port) as locks:
            with pytest.raises(redislock.LockLostError, match="push" if is_heard_of else "push|release"):
                async with locks.lock("k", lease=60):
                    client.set("k", "v")
                    await asyncio.sleep(10 if is_heard_of else 0)
            task = asyncio.current_task()
            assert task is not None and task.cancelling() == 0

    asyncio.run(run())


def test_independent_servers_lose_a_lock_that_was_overwritten(start_server: Any) -> None:
    clients = [redis.Redis(port=start_server().port) for _ in range(3)]
    with redislock.redlock.Redlock(clients, lease=60) as locks:
        for renews in (True, False):
            hold = locks.lock("k", wait=10).acquire()
            for client in clients[:2]:
                client.set("k", "v")
            with pytest.raises(redislock.LockLostError):
                hold.extend(60) if renews else hold.release()
            for client in clients:
                client.delete("k")
    for client in clients:
        client.close()


def test_a_loss_is_reported_though_the_server_refuses_the_release(refusing: Any) -> None:
    server, refuse = refusing
    with locks_of(server.port, lease=1) as locks:
        with pytest.raises(redislock.LockLostError, match="deadline"), locks.lock("k") as hold:
            refuse(True)
            assert hold.wait_until_lost(10) == "deadline"
        refuse(False)


def test_asyncio_tells_a_loss_though_the_server_refuses_the_release(refusing: Any) -> None:
    server, refuse = refusing

    async def run() -> None:
        async with async_locks_of(server.port, lease=1) as locks:
            with pytest.raises(redislock.LockLostError, match="deadline"):
                async with locks.lock("k"):
                    refuse(True)
                    await asyncio.sleep(10)
            task = asyncio.current_task()
            assert task is not None and task.cancelling() == 0
            refuse(False)

    asyncio.run(run())


def test_a_refused_release_is_repeated_until_it_is_done(refusing: Any, caplog: pytest.LogCaptureFixture) -> None:
    server, refuse = refusing
    with locks_of(server.port, lease=60) as locks:
        with locks.lock("block"):
            refuse(True)
        assert "the release of block continues in the background: NOREPLICAS" in caplog.text
        refuse(False)
        hold = locks.lock("k").acquire()
        refuse(True)
        with pytest.raises(redislock.NotConfirmedError):
            hold.release()
        time.sleep(1)
        refuse(False)
        eventually(lambda: server.info("redislock")["redislock_holds"] == "0", "both are given up")


def test_the_refused_release_of_an_adopted_hold_is_repeated(refusing: Any) -> None:
    server, refuse = refusing
    with locks_of(server.port, lease=60) as locks, redis.Redis(port=server.port) as client:
        detached = locks.lock("k").acquire()
        adopted = locks.adopt(detached.detach())
        refuse(True)
        with pytest.raises(redislock.ServerRefusedError, match="NOREPLICAS"):
            adopted.release()
        refuse(False)
        eventually(lambda: not client.exists("k"), "it is released")


def test_asyncio_repeats_a_refused_release_until_it_is_done(refusing: Any, caplog: pytest.LogCaptureFixture) -> None:
    server, refuse = refusing

    async def run() -> None:
        async with async_locks_of(server.port, lease=60) as locks:
            async with locks.lock("block"):
                refuse(True)
            assert "the release of block continues in the background: NOREPLICAS" in caplog.text
            await asyncio.sleep(1)
            refuse(False)
            while server.info("redislock")["redislock_holds"] != "0":
                await asyncio.sleep(0.02)

    asyncio.run(run())


def test_a_release_that_is_never_allowed_is_not_repeated(start_server: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = start_server()
    server.admin("ACL", "SETUSER", "ann", "on", ">word", "~*", "+@all", "-lock.release")
    with redis.Redis(port=server.port, username="ann", password="word") as client, caplog.at_level(logging.WARNING):
        with redislock.Locks(client, lease=60) as locks:
            with locks.lock("k"):
                pass
            assert "k was not released, and stays taken until its lease expires: NOPERM" in caplog.text
            before = rejected(server)
            time.sleep(2)
            assert rejected(server) == before


def rejected(server: Any) -> str:
    """The number of releases that this server was asked for and does not allow."""
    stats = {name.lower(): value for name, value in server.info("commandstats").items()}
    return str(stats["cmdstat_lock.release"].partition("rejected_calls=")[2].partition(",")[0])


@pytest.mark.parametrize("is_async", [True, False])
def test_a_leader_whose_release_is_refused_resigns(is_async: bool, refusing: Any) -> None:
    server, refuse = refusing

    async def run() -> None:
        async with async_locks_of(server.port, lease=60) as locks:
            with pytest.raises(ZeroDivisionError):
                async with locks.leader("k") as leader:
                    while leader.hold is None:
                        await asyncio.sleep(0.01)
                    refuse(True)
                    raise ZeroDivisionError
            refuse(False)
            while server.info("redislock")["redislock_holds"] != "0":
                await asyncio.sleep(0.02)

    def in_threads() -> None:
        with locks_of(server.port, lease=60) as locks:
            with pytest.raises(ZeroDivisionError), locks.leader("k") as leader:
                eventually(lambda: leader.hold is not None, "it leads")
                refuse(True)
                raise ZeroDivisionError
            refuse(False)
            eventually(lambda: server.info("redislock")["redislock_holds"] == "0", "it is given up")

    asyncio.run(run()) if is_async else in_threads()


def test_a_lease_that_ended_unnoticed_is_noticed_at_the_end_of_the_body(meddler: Any) -> None:
    with locks_of(meddler.port, lease=0.5) as locks, pytest.raises(redislock.LockLostError, match="deadline"):
        with locks.lock("k", renew=False) as hold:
            meddler.stall()
            hold._engine.background.loop.call_soon_threadsafe(time.sleep, 1)  # it stands still
            time.sleep(0.6)
    meddler.flow()


def test_asyncio_notices_at_the_end_of_the_body_that_the_lease_has_ended(meddler: Any) -> None:
    async def run() -> None:
        async with async_locks_of(meddler.port, lease=0.5) as locks:
            with pytest.raises(redislock.LockLostError, match="deadline"):
                async with locks.lock("k", renew=False):
                    meddler.stall()
                    time.sleep(0.6)  # the event loop stands still
            meddler.flow()

    asyncio.run(run())
