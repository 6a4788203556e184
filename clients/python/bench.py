"""Compares this library with the driver's bare commands, redis-py's own Lock and python-redis-lock.

    bench.py HOST:PORT [ROUNDS]

Prints a line of JSON for each figure: client, subject, metric, values. `make bench` reads them. The ways take short
turns in each round, so that what else the machine does falls on all of them.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import redis
import redis.asyncio
import redis_lock  # type: ignore[import-untyped]

import redislock

#: The turns of each way in a round, and the pairs of one turn.
TURNS, PAIRS = 10, 30
LOSSES = 50
TASKS = 1000
PAIR = "microseconds for an acquire and its release"


def tell(client: str, subject: str, metric: str, values: list[float]) -> None:
    """One figure."""
    print(json.dumps({"client": client, "subject": subject, "metric": metric, "values": values}), flush=True)


def processor_ms() -> float:
    """The processor time that this process has used so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return 1e3 * (used.ru_utime + used.ru_stime)


def sync_ways(host: str, port: int) -> dict[str, Callable[[], Any]]:
    """One acquire and release each."""
    client = redis.Redis(host=host, port=port)
    locks = redislock.Locks(redis.Redis(host=host, port=port))

    def bare() -> None:
        owner = str(uuid.uuid4())
        token = client.execute_command("LOCK.ACQUIRE", "bare", owner, "PX", 30_000)
        client.execute_command("LOCK.RELEASE", "bare", owner, "TOKEN", token)

    def ours() -> None:
        with locks.lock("ours", wait=5):
            pass

    def redis_py() -> None:
        with client.lock("redis-py", timeout=30):
            pass

    def python_redis_lock() -> None:
        with redis_lock.Lock(client, "python-redis-lock", expire=30):
            pass

    return {
        "redislock": ours,
        "the bare commands": bare,
        "redis-py's Lock": redis_py,
        "python-redis-lock": python_redis_lock,
    }


def async_ways(host: str, port: int) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Each way to take a lock and give it up, by asyncio."""
    client = redis.asyncio.Redis(host=host, port=port)
    locks = redislock.AsyncLocks(redis.asyncio.Redis(host=host, port=port))

    async def bare() -> None:
        owner = str(uuid.uuid4())
        token = await client.execute_command("LOCK.ACQUIRE", "bare", owner, "PX", 30_000)
        await client.execute_command("LOCK.RELEASE", "bare", owner, "TOKEN", token)

    async def ours() -> None:
        async with locks.lock("ours", wait=5):
            pass

    async def redis_py() -> None:
        async with client.lock("redis-py", timeout=30):
            pass

    return {"redislock": ours, "the bare commands": bare, "redis-py's Lock": redis_py}


def in_turn(ways: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The turns of a round, every other time from the last way to the first: none comes always before another one."""
    for number in range(TURNS):
        yield from list(ways.items())[:: -1 if number % 2 else 1]


def add(rounds: dict[str, list[float]], took: dict[str, float]) -> None:
    """Adds the round that took these seconds."""
    for way, seconds in took.items():
        rounds[way].append(1e6 * seconds / TURNS / PAIRS)


def run_sync(host: str, port: int, count: int) -> None:
    """Rounds of threads' pairs."""
    ways = sync_ways(host, port)
    rounds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(count + 1):
        took = dict.fromkeys(ways, 0.0)
        for way, work in in_turn(ways):
            began = time.perf_counter()
            for _ in range(PAIRS):
                work()
            took[way] += time.perf_counter() - began
        if number:  # the first round warms up
            add(rounds, took)
    for way, values in rounds.items():
        tell("Python", way, PAIR, values)


async def run_async(host: str, port: int, count: int) -> None:
    """Rounds of asyncio, a loss, and a crowd."""
    ways = async_ways(host, port)
    rounds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(count + 1):
        took = dict.fromkeys(ways, 0.0)
        for way, work in in_turn(ways):
            began = time.perf_counter()
            for _ in range(PAIRS):
                await work()
            took[way] += time.perf_counter() - began
        if number:  # the first round warms up
            add(rounds, took)
    for way, values in rounds.items():
        tell("Python, asyncio", way, PAIR, values)
    client = redis.asyncio.Redis(host=host, port=port)
    async with redislock.AsyncLocks(client) as locks:
        await losses(client, locks)
        await crowd(client, locks)
    await client.aclose()


async def losses(client: redis.asyncio.Redis, locks: redislock.AsyncLocks) -> None:
    """The time from DEL until the holder is notified."""
    values = []
    for _ in range(LOSSES):
        told = asyncio.Event()
        hold = await locks.lock("lost").acquire()
        hold.on_lost(lambda _, told=told: told.set())  # type: ignore[misc]
        await asyncio.sleep(0.05)
        began = time.perf_counter()
        await client.delete("lost")
        await asyncio.wait_for(told.wait(), 10)
        values.append(1e3 * (time.perf_counter() - began))
    tell("Python, asyncio", "redislock", "milliseconds from DEL until the holder is told", values)


async def crowd(client: redis.asyncio.Redis, locks: redislock.AsyncLocks) -> None:
    """Many tasks wait for one lock, and each gives it up at once."""

    async def one() -> None:
        async with locks.lock("crowd"):
            pass

    holder = await locks.lock("crowd").acquire()
    tasks = [asyncio.create_task(one()) for _ in range(TASKS)]
    await asyncio.sleep(2)
    tell("Python, asyncio", "redislock", f"connections while {TASKS} tasks wait", [len(await client.client_list())])
    idle = processor_ms()
    await asyncio.sleep(2)
    tell("Python, asyncio", "redislock", "per cent of a core while they wait", [(processor_ms() - idle) / 20])
    began, busy = time.perf_counter(), processor_ms()
    await holder.release()
    await asyncio.gather(*tasks)
    tell("Python, asyncio", "redislock", "milliseconds to serve them all", [1e3 * (time.perf_counter() - began)])
    tell("Python, asyncio", "redislock", "milliseconds of processor for it", [processor_ms() - busy])


def main() -> None:
    """Runs all."""
    host, _, port = sys.argv[1].partition(":")
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    run_sync(host, int(port), count)
    asyncio.run(run_async(host, int(port), count))


if __name__ == "__main__":
    main()
