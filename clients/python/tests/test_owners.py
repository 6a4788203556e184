"""Owners that the program names, and uses again: a release of the request before must not end the next hold."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock
from redislock import compat

from .servers import eventually


def asks(call: Any) -> bool:
    return bool(call.name == "LOCK.ACQUIRE")


def asyncio_locks(port: int, **options: Any) -> redislock.AsyncLocks:
    return redislock.AsyncLocks(redis.asyncio.Redis(port=port), **options)


def releases_without_a_token(meddler: Any) -> list[Any]:
    return [call for call in meddler.calls("LOCK.RELEASE") if not call.has("TOKEN")]


def waiting(client: redis.Redis) -> list[str]:
    """The owners that wait for `k`."""
    info = client.execute_command("LOCK.INFO", "k", "FULL")
    return [waiter["owner"] for waiter in info["queue"]]


@pytest.mark.parametrize("wait", [0, 5])
@pytest.mark.parametrize("is_awaited", [True, False])
def test_a_task_that_was_cancelled_is_tried_again_at_once(
    wait: float, is_awaited: bool, client: redis.Redis, meddler: Any
) -> None:
    async def run() -> None:
        async with asyncio_locks(meddler.port) as locks:
            async with locks.lock("other"):
                pass  # from now on there is a connection
            meddler.delay = lambda call: 0.2 if asks(call) else 0
            first = asyncio.create_task(locks.lock("k", owner="task-7", wait=wait).acquire())
            while len(meddler.calls("LOCK.ACQUIRE")) < 2:
                await asyncio.sleep(0.001)
            first.cancel()
            if is_awaited:
                await asyncio.gather(first, return_exceptions=True)
            hold = await locks.lock("k", owner="task-7", wait=5).acquire()
            await asyncio.sleep(1)
            assert client.execute_command("LOCK.FENCE", "k", hold.token) == 1 and hold.lost is None
            await hold.release()
            assert not client.exists("k")

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_request_in_doubt_is_not_given_up_after_the_next_of_the_same_owner(client: redis.Redis, meddler: Any) -> None:
    with redislock.Locks(redis.Redis(port=meddler.port), lease=60) as locks:
        fail_unheard(meddler, lambda: locks.lock("k", owner="task-7", wait=0.1).acquire())
        hold = locks.lock("k", owner="task-7", wait=5).acquire()
        time.sleep(2.5)
        assert client.execute_command("LOCK.FENCE", "k", hold.token) == 1 and hold.lost is None
        hold.release()
        eventually(lambda: meddler.calls("LOCK.RELEASE")[-1] in releases_without_a_token(meddler), "the doubt remains")
        with locks.lock("k", owner="task-7", wait=5) as hold:
            time.sleep(2)
            assert client.execute_command("LOCK.FENCE", "k", hold.token) == 1 and hold.lost is None


def test_a_token_of_redis_py_s_lock_can_be_used_again(client: redis.Redis, meddler: Any) -> None:
    mine = redis.Redis(port=meddler.port)
    lock = compat.Lock(mine, "k", timeout=60, blocking_timeout=0.1)
    fail_unheard(meddler, lambda: lock.acquire(token="task-7"))
    assert lock.acquire(token="task-7")
    time.sleep(2.5)
    assert lock.owned()
    lock.release()
    compat._locks.pop(mine).close()
    mine.close()


def test_asyncio_does_not_give_up_a_doubt_after_the_next_request(client: redis.Redis, meddler: Any) -> None:
    async def run() -> None:
        async with asyncio_locks(meddler.port, lease=60) as locks:
            meddler.drop(asks, then="silent")
            with pytest.raises(redislock.ConnectionFailedError):
                first = asyncio.create_task(locks.lock("k", owner="task-7", wait=0.1).acquire())
                while not meddler.has_dropped():
                    await asyncio.sleep(0.001)
                meddler.shut()
                await first
            meddler.open()
            hold = await locks.lock("k", owner="task-7", wait=5).acquire()
            await asyncio.sleep(2.5)
            assert client.execute_command("LOCK.FENCE", "k", hold.token) == 1 and hold.lost is None
            await hold.release()

    asyncio.run(asyncio.wait_for(run(), 20))


def fail_unheard(meddler: Any, acquire: Any) -> None:
    """The request arrives, but no reply comes back, and nothing else gets through."""

    def swallow(call: Any) -> bool:
        if asks(call):
            meddler.shut()
        return asks(call)

    meddler.drop(swallow, then="silent")
    with pytest.raises(redislock.ConnectionFailedError):
        acquire()
    meddler.open()


def test_a_request_does_not_overtake_the_release_of_the_one_before(client: redis.Redis, meddler: Any) -> None:
    client.execute_command("LOCK.ACQUIRE", "k", "somebody", "PX", 60_000)
    with redislock.Locks(redis.Redis(port=meddler.port)) as locks:
        meddler.delay = lambda call: 0.3 if call.name == "LOCK.RELEASE" else 0
        with pytest.raises(redislock.LockTimeoutError):
            locks.lock("k", owner="task-7", wait=0.1).acquire()
        client.delete("k")
        with locks.lock("k", owner="task-7", wait=0) as hold:
            release = meddler.calls("LOCK.RELEASE")[-1]
            calls = meddler.calls("LOCK.RELEASE", "LOCK.ACQUIRE")
            behind = calls[calls.index(release) + 1 :]
            assert behind and all(call.link is release.link for call in behind), "they go over one connection"
            assert client.execute_command("LOCK.FENCE", "k", hold.token) == 1


def release_fails(locks: redislock.Locks, meddler: Any, **options: Any) -> str:
    """The server cannot be reached while an owner releases what it holds. Returns the owner."""
    hold = locks.lock("k", **options).acquire()
    meddler.shut()
    meddler.cut()
    with pytest.raises(redislock.ConnectionFailedError):
        hold.release()
    meddler.open()
    return hold.owner


def test_a_release_that_fails_names_the_token(client: redis.Redis, meddler: Any) -> None:
    with redislock.Locks(redis.Redis(port=meddler.port), lease=60) as locks:
        release_fails(locks, meddler, owner="task-7")
        eventually(lambda: not client.exists("k"), "it is given up")
        assert not releases_without_a_token(meddler)


@pytest.mark.parametrize("options", [{"owner": "task-7"}, {}], ids=["named", "generated"])
def test_a_release_that_failed_does_not_end_the_next_hold_of_the_same_owner(
    options: Any, client: redis.Redis, meddler: Any
) -> None:
    with redislock.Locks(redis.Redis(port=meddler.port), lease=60) as locks:
        owner = release_fails(locks, meddler, **options)
        with locks.lock("k", owner=owner, wait=5) as hold:
            time.sleep(2)
            assert client.execute_command("LOCK.FENCE", "k", hold.token) == 1 and hold.lost is None


@pytest.mark.parametrize("wait", [0, 0.2, None])
def test_a_reader_that_asks_to_write_is_refused_and_keeps_reading(wait: float | None, client: redis.Redis) -> None:
    with redislock.Locks(client, lease=60) as locks:
        with locks.read("k").acquire(), locks.read("k", owner="task-7") as hold:
            with pytest.raises(redislock.AlreadyHeldError, match=r"LOCKHELD 'k' .* release every key"):
                locks.write("k", owner="task-7", wait=wait).acquire()
            time.sleep(0.2)
            assert waiting(client) == []
            hold.check()
            assert client.execute_command("LOCK.FENCE", "k", hold.token) == 1


def test_a_wait_that_is_refused_leaves_its_owner_what_it_holds(client: redis.Redis) -> None:
    with redislock.Locks(client, lease=60) as locks:
        with locks.lock("mine", owner="task-7") as hold, locks.lock("k", owner="task-8"):
            client.execute_command("LOCK.ACQUIRE", "mine", "task-8", "PX", 60_000, "QUEUE", 60_000)
            with pytest.raises(redislock.DeadlockError):
                locks.lock("k", owner="task-7", wait=5).acquire()
            time.sleep(0.2)
            hold.check()
            assert waiting(client) == []
            client.execute_command("LOCK.RELEASE", "mine", "task-8")


def test_a_request_for_several_locks_leaves_its_owner_what_it_holds_of_them(client: redis.Redis) -> None:
    with redislock.Locks(client, lease=60) as locks:
        with locks.lock("k", owner="task-7") as hold, locks.lock("other").acquire():
            with pytest.raises(redislock.AlreadyHeldError, match="LOCKHELD"):
                locks.many(["k", "other"], owner="task-7", wait=0.2).acquire()
            time.sleep(0.2)
            hold.check()
            assert client.execute_command("LOCK.FENCE", "k", hold.token) == 1


@pytest.mark.parametrize("kind", ["lock", "many"])
def test_the_server_sees_the_deadlock_of_an_owner_though_the_process_queues_all_it_may(
    kind: str, client: redis.Redis, server: Any
) -> None:
    names: Any = "theirs" if kind == "lock" else ["theirs", "free"]

    async def run() -> None:
        async with asyncio_locks(server.port, max_queued_per_lock=1) as locks:
            hold = await locks.lock("mine", owner="task-7").acquire()
            client.execute_command("LOCK.ACQUIRE", "theirs", "task-8", "PX", 60_000)
            client.execute_command("LOCK.ACQUIRE", "mine", "task-8", "PX", 60_000, "QUEUE", 60_000)
            others = [asyncio.create_task(getattr(locks, kind)(names).acquire()) for _ in range(3)]
            while client.execute_command("LOCK.INFO", "theirs", "FULL")["queue"] == []:
                await asyncio.sleep(0.01)
            with pytest.raises(redislock.DeadlockError):
                await getattr(locks, kind)(names, owner="task-7", wait=20).acquire()
            hold.check()
            assert len(client.execute_command("LOCK.INFO", "theirs", "FULL")["queue"]) == 1
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            for name in ("theirs", "mine"):
                client.execute_command("LOCK.RELEASE", name, "task-8")

    asyncio.run(asyncio.wait_for(run(), 50))
