"""A hold that a block has entered, that block leaves, whatever thread or task it is in."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fastapi
import pytest
import redis
import redis.asyncio

import redislock
from redislock import compat

from .servers import eventually
from .stories import play


async def get(app: fastapi.FastAPI, path: str) -> int:
    """The status with which the application answers."""
    said: list[int] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            said.append(message["status"])

    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http"}
    of_this = {"path": path, "raw_path": path.encode(), "query_string": b"", "headers": [], "root_path": ""}
    await app({**scope, **of_this}, receive, send)
    return said[0]


def test_fastapi_s_plain_dependencies_leave_what_they_entered(locks: redislock.Locks, client: redis.Redis) -> None:
    """It enters and leaves a plain generator in whatever threads of its pool are idle."""
    app, most = fastapi.FastAPI(), 2
    inside: list[int] = []
    crowds: list[int] = []
    permits = locks.semaphore("permits", most, wait=30)

    def permit() -> Iterator[redislock.Hold]:
        with permits as hold:
            yield hold

    @app.get("/")
    def work(hold: redislock.Hold = fastapi.Depends(permit)) -> None:  # noqa: B008
        inside.append(hold.token)
        crowds.append(len(inside))
        time.sleep(random.uniform(0.001, 0.03))
        assert client.execute_command("LOCK.FENCE", "permits", hold.token) == 1, "it is held to the end"
        inside.remove(hold.token)

    async def run() -> list[int]:
        few = asyncio.Semaphore(12)  # each waits in one of the pool's 40 threads

        async def one() -> int:
            async with few:
                return await get(app, "/")

        return await asyncio.gather(*(one() for _ in range(60)))

    assert asyncio.run(asyncio.wait_for(run(), 50)) == [200] * 60
    assert max(crowds) <= most
    assert not client.exists("permits"), "no permit is left"


def test_fastapi_s_asynchronous_dependencies_leave_what_they_entered(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        app, permits = fastapi.FastAPI(), locks.semaphore("permits", 2, wait=30)

        async def permit() -> AsyncIterator[redislock.AsyncHold]:
            async with permits as hold:
                yield hold

        @app.get("/")
        async def work(hold: redislock.AsyncHold = fastapi.Depends(permit)) -> None:  # noqa: B008
            await asyncio.sleep(random.uniform(0.001, 0.03))
            assert await client.execute_command("LOCK.FENCE", "permits", hold.token) == 1, "it is held to the end"

        assert await asyncio.gather(*(get(app, "/") for _ in range(30))) == [200] * 30
        assert not await client.exists("permits"), "no permit is left"

    play(server, story)


def generators(lock: redislock.Lock) -> Any:
    """Enters in one call, and leaves in another one."""

    def block() -> Iterator[redislock.Hold]:
        with lock as hold:
            yield hold

    made: Any = block()
    return next(made), made.close


def managers(lock: redislock.Lock) -> Any:
    @contextlib.contextmanager
    def block() -> Iterator[redislock.Hold]:
        with lock as hold:
            yield hold

    made = block()
    return made.__enter__(), lambda: made.__exit__(None, None, None)


def stacks(lock: redislock.Lock) -> Any:
    stack = contextlib.ExitStack()
    return stack.enter_context(lock), stack.close


def stacks_that_are_handed_on(lock: redislock.Lock) -> Any:
    with contextlib.ExitStack() as stack:
        hold = stack.enter_context(lock)
        return hold, stack.pop_all().close
    raise AssertionError


def wrapped(lock: redislock.Lock) -> Any:
    class Guard:
        def __enter__(self) -> redislock.Hold:
            return lock.__enter__()

        def __exit__(self, *how: Any) -> None:
            lock.__exit__(*how)

    def block() -> Iterator[redislock.Hold]:
        with Guard() as hold:
            yield hold

    made: Any = block()
    return next(made), made.close


WAYS = [generators, managers, stacks, stacks_that_are_handed_on, wrapped]


@pytest.mark.parametrize("enter", WAYS)
def test_each_block_leaves_its_own_in_any_thread(enter: Any, locks: redislock.Locks, client: redis.Redis) -> None:
    lock = locks.semaphore("k", 3, wait=5)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        entered = [pool.submit(enter, lock).result() for pool in (one, one, other)]
        holds, leaves = [hold for hold, _ in entered], [leave for _, leave in entered]
        other.submit(leaves[1]).result()
        assert not holds[1].remaining and holds[0].check() and holds[2].check()
        one.submit(leaves[2]).result()
        assert not holds[2].remaining and holds[0].check()
        leaves[0]()
    assert not client.exists("k")
    gc.collect()
    assert not lock._inside.blocks


def test_an_unreferenced_stack_of_contexts_ends_with_the_lease(locks: redislock.Locks, client: redis.Redis) -> None:
    contextlib.ExitStack().enter_context(locks.lock("k", lease=0.5))
    gc.collect()
    eventually(lambda: not client.exists("k"), "its lease is over")


def test_leases_of_indistinguishable_blocks_expire(locks: redislock.Locks, client: redis.Redis) -> None:
    lock = locks.semaphore("k", 3, lease=1, wait=20)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        holds = [pool.submit(lock.__enter__).result() for pool in (one, other)]
        with pytest.raises(RuntimeError, match="leave a lock in the block"):
            lock.__exit__(None, None, None)
        assert all(hold.check() for hold in holds), "somebody works still under one of them"
        eventually(lambda: not client.exists("k"), "both leases are over")
        for pool in (one, other):  # whose next blocks are no worse for it
            again = pool.submit(lock.__enter__).result()
            assert again.check()
            pool.submit(lock.__exit__, None, None, None).result()
        assert not client.exists("k")


def test_a_generator_that_runs_is_not_entered_again(locks: redislock.Locks) -> None:
    lock = locks.lock("k")

    def block() -> Iterator[None]:
        with lock:
            with pytest.raises(redislock.AlreadyHeldError):
                lock.__enter__()
            yield

    assert list(block()) == [None]


@pytest.mark.parametrize("is_told", [True, False])
def test_a_block_of_redis_py_s_lock_leaves_its_own_in_any_thread(is_told: bool, client: redis.Redis) -> None:
    made: Any = client.lock("k", lock_class=compat.Lock, thread_local=is_told)

    def block() -> Iterator[None]:
        with made:
            yield

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        for _ in range(2):
            entered: Any = block()
            one.submit(next, entered).result()
            assert client.exists("k")
            other.submit(entered.close).result()
            assert not client.exists("k")
    with pytest.raises(compat.NotHeldError):
        made.release()
    compat._locks.pop(client).close()


def test_a_block_of_redis_py_s_asynchronous_lock_leaves_its_own_in_any_task(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        kind: Any = compat.AsyncLock
        made: Any = client.lock("k", lock_class=kind)

        async def block() -> AsyncIterator[None]:
            async with made:
                yield

        async def enter(entered: Any) -> None:
            await anext(entered)

        for _ in range(2):
            entered: Any = block()
            await asyncio.create_task(enter(entered))
            assert await client.exists("k")
            await asyncio.create_task(entered.aclose())
            assert not await client.exists("k")
        await compat._async_locks.pop(client).close()

    play(server, story)
