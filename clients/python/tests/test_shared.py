"""One lock object that several threads or tasks use: each has a hold of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock
import redislock.redlock
from redislock import compat

from .servers import eventually
from .stories import play

KINDS: dict[str, Callable[[Any], Any]] = {
    "exclusive": lambda locks: locks.lock("k", wait=20),
    "write": lambda locks: locks.write("k", wait=20),
    "read": lambda locks: locks.read("k", wait=20),
    "semaphore": lambda locks: locks.semaphore("k", 3, wait=20),
    "many": lambda locks: locks.many(["k", "j"], wait=20),
    "many, shared": lambda locks: locks.read_many(["k", "j"], wait=20),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_thread_has_a_hold_of_its_own(kind: str, locks: redislock.Locks, client: redis.Redis) -> None:
    lock = KINDS[kind](locks)

    def work(number: int) -> Any:
        with lock as hold:
            time.sleep(0.03 * (1 + number % 3))
            return client.execute_command("LOCK.FENCE", "k", hold.token)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [1] * 8, "each has its hold at the end of its body"
    assert client.execute_command("LOCK.INFO", "k") in (None, [], {}), "nothing is left"


@pytest.mark.parametrize("kind", KINDS)
def test_each_task_has_a_hold_of_its_own(kind: str, server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        lock = KINDS[kind](locks)

        async def work(number: int) -> Any:
            async with lock as hold:
                await asyncio.sleep(0.03 * (1 + number % 3))
                return await client.execute_command("LOCK.FENCE", "k", hold.token)

        assert await asyncio.gather(*(work(number) for number in range(8))) == [1] * 8
        assert await client.execute_command("LOCK.INFO", "k") in (None, [], {}), "nothing is left"

    play(server, story)


def test_the_loss_of_one_thread_is_its_own(locks: redislock.Locks, client: redis.Redis) -> None:
    lock, ends, entered = locks.lock("k", wait=20), dict[str, Any](), list[str]()

    def work(name: str) -> None:
        try:
            with lock as hold:
                entered.append(name)
                time.sleep(0.5 if len(entered) == 1 else 1)
                ends[name] = client.execute_command("LOCK.FENCE", "k", hold.token)
        except redislock.LockLostError as lost:
            ends[name] = lost.reason

    with locks.lock("k"):  # so that both wait
        threads = [threading.Thread(target=work, args=[name]) for name in ("one", "other")]
        for thread in threads:
            thread.start()
            time.sleep(0.1)
    eventually(lambda: entered, "the first is inside")
    client.delete("k")
    for thread in threads:
        thread.join()
    assert ends == {entered[0]: "push", entered[1]: 1}


def test_the_loss_of_one_task_is_its_own(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        lock, entered = locks.lock("k", wait=20), list[int]()

        async def work(number: int) -> Any:
            async with lock as hold:
                entered.append(number)
                await asyncio.sleep(1)
                return await client.execute_command("LOCK.FENCE", "k", hold.token)

        async with locks.lock("k"):
            tasks = [asyncio.create_task(work(number)) for number in range(2)]
            await asyncio.sleep(0.1)
        while not entered:
            await asyncio.sleep(0.01)
        await client.delete("k")
        first, second = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(first, redislock.LockLostError) and second == 1 and entered == [0, 1]

    play(server, story)


def test_independent_servers(start_server: Any) -> None:
    servers = [start_server() for _ in range(3)]
    clients = [redis.Redis(port=server.port) for server in servers]
    with redislock.redlock.Redlock(clients, lease=3) as locks:
        lock, entered, ends = locks.lock("k", wait=20), list[int](), dict[int, Any]()

        def work(number: int) -> None:
            try:
                with lock as hold:
                    entered.append(number)
                    time.sleep(0.7)
                    locks.check_token("k", hold.token)
                    ends[number] = "held"
            except redislock.LockLostError:
                ends[number] = "lost"
            except redislock.FencedError:
                ends[number] = "lost"

        with locks.lock("k"):
            threads = [threading.Thread(target=work, args=[number]) for number in range(2)]
            for thread in threads:
                thread.start()
            time.sleep(0.2)
        eventually(lambda: entered, "the first is inside")
        for client in clients:
            client.delete("k")
        for thread in threads:
            thread.join()
        assert ends == {entered[0]: "lost", entered[1]: "held"}
    for client in clients:
        client.close()


def test_a_thread_enters_again_only_when_it_has_left(locks: redislock.Locks, client: redis.Redis) -> None:
    lock, other = locks.semaphore("s", 3, wait=0.2), locks.semaphore("s", 3)
    with lock as hold:
        with pytest.raises(RuntimeError, match="entered already"), lock:
            pass
        assert client.execute_command("LOCK.FENCE", "s", hold.token) == 1
        with ThreadPoolExecutor(1) as pool, other, other.acquire() as third:
            with pytest.raises(redislock.LockTimeoutError):
                pool.submit(lock.__enter__).result()
            third.release()
            its = pool.submit(lock.__enter__).result()
            pool.submit(lock.__exit__, None, None, None).result()
            assert not its.remaining and hold.check()
            lock.acquire().release()
            assert hold.check()


def test_a_lock_with_an_owner_is_entered_by_one_at_a_time(locks: redislock.Locks, server: Any) -> None:
    lock = locks.semaphore("k", 3, owner="ann")
    with ThreadPoolExecutor(1) as pool, lock as hold:
        with pytest.raises(RuntimeError, match="entered already: create another one, with another owner,"):
            pool.submit(lock.__enter__).result()
        assert hold.check()

    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        lock = locks.lock("k", owner="ann")

        async def enter() -> None:
            async with lock:
                raise AssertionError("two have one hold")

        async with lock as hold:
            with pytest.raises(RuntimeError, match="entered already"):
                await asyncio.create_task(enter())
            assert await client.execute_command("LOCK.FENCE", "k", hold.token) == 1

    play(server, story)


def test_a_block_that_ends_elsewhere(locks: redislock.Locks, client: redis.Redis) -> None:
    lock = locks.read("k", wait=5)
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        first.submit(lock.__enter__).result()
        lock.__exit__(None, None, None)
        assert not client.exists("k"), "only one was inside"
        holds = [pool.submit(lock.__enter__).result() for pool in (first, second)]
        with pytest.raises(RuntimeError, match="leave a lock in the block"):
            lock.__exit__(None, None, None)
        error = ZeroDivisionError()
        lock.__exit__(ZeroDivisionError, error, None)
        assert "several are inside" in error.__notes__[0]
        assert all(hold.check() for hold in holds)
        for pool in (first, second):
            pool.submit(lock.__exit__, None, None, None).result()
    assert not client.exists("k")
    lock.__exit__(None, None, None)  # there is nobody to leave


@pytest.mark.parametrize("is_told", [True, False])
def test_tasks_that_share_a_lock_of_redis_py_release_their_own(server: Any, is_told: bool) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        kind: Any = compat.AsyncLock
        lock: Any = client.lock("k", lock_class=kind, thread_local=is_told)
        first_has_it, first_may_end = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            await lock.acquire()
            first_has_it.set()
            await first_may_end.wait()
            assert not await lock.owned()
            await lock.release()

        async def second() -> int:
            async with lock:
                first_may_end.set()
                await asyncio.sleep(0.3)
                assert await lock.owned() and lock.local.token is not None
                return int(await client.execute_command("LOCK.FENCE", "k", lock.local.hold.token))

        one = asyncio.create_task(first())
        await first_has_it.wait()
        other = asyncio.create_task(second())
        await asyncio.sleep(0.1)
        await client.delete("k")
        lost, held = await asyncio.gather(one, other, return_exceptions=True)
        assert isinstance(lost, redislock.LockLostError) and held == 1
        assert lock.local.token is None and not await client.exists("k")
        # As there: another task may release it, and then it is free.
        one = asyncio.create_task(lock.acquire())
        await one
        await lock.release()
        with pytest.raises(compat.NotHeldError):
            await lock.release()
        await compat._async_locks.pop(client).close()

    play(server, story)


def test_threads_that_share_a_token_of_redis_py_release_their_own(client: redis.Redis) -> None:
    lock = client.lock("k", lock_class=compat.Lock, thread_local=False)
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(1))
        stack.callback(lambda: compat._locks.pop(client).close())
        assert lock.acquire()
        client.delete("k")
        assert pool.submit(lock.acquire).result()
        with pytest.raises(redislock.LockLostError):
            lock.release()
        assert pool.submit(lock.owned).result()
        # As there: a token that is shared is released by anyone.
        lock.release()
        with pytest.raises(compat.NotHeldError):
            pool.submit(lock.release).result()
    assert not client.exists("k")
