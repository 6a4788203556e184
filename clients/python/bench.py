"""Times acquire and release side by side: this library, redis-py's own Lock, and the two bare commands.

    bench.py PORT [ROUNDS]

Rounds of each way alternate, so that what else the machine does falls on all of them. Figures are the median of the
rounds, in microseconds for one pair.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import redis
import redis.asyncio

import redislock

PAIRS = 500


def sync_ways(port: int) -> dict[str, Callable[[], Any]]:
    """One acquire and release each."""
    client = redis.Redis(port=port)
    locks = redislock.Locks(redis.Redis(port=port))

    def bare() -> None:
        owner = str(uuid.uuid4())
        token = client.execute_command("LOCK.ACQUIRE", "bare", owner, "PX", 30_000)
        client.execute_command("LOCK.RELEASE", "bare", owner, "TOKEN", token)

    def redis_py() -> None:
        with client.lock("redis-py", timeout=30):
            pass

    def ours() -> None:
        with locks.lock("ours", wait=5):
            pass

    return {"bare commands": bare, "redis-py's Lock": redis_py, "redislock": ours}


def async_ways(port: int) -> dict[str, Callable[[], Awaitable[Any]]]:
    """The same by asyncio."""
    client = redis.asyncio.Redis(port=port)
    locks = redislock.AsyncLocks(redis.asyncio.Redis(port=port))

    async def bare() -> None:
        owner = str(uuid.uuid4())
        token = await client.execute_command("LOCK.ACQUIRE", "bare", owner, "PX", 30_000)
        await client.execute_command("LOCK.RELEASE", "bare", owner, "TOKEN", token)

    async def redis_py() -> None:
        async with client.lock("redis-py", timeout=30):
            pass

    async def ours() -> None:
        async with locks.lock("ours", wait=5):
            pass

    return {"bare commands": bare, "redis-py's Lock": redis_py, "redislock": ours}


def show(what: str, rounds: dict[str, list[float]]) -> None:
    """Prints the medians, and how they compare with the bare commands."""
    medians = {way: statistics.median(times) for way, times in rounds.items()}
    bare = medians["bare commands"]
    for way, median in medians.items():
        print(f"{what:8} {way:16} {1e6 * median:7.1f} us  {median / bare:5.2f} of the bare commands")


async def run_async(port: int, count: int) -> None:
    """Rounds of asyncio."""
    ways = async_ways(port)
    rounds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(count):
        for way, work in ways.items():
            began = time.perf_counter()
            for _ in range(PAIRS):
                await work()
            rounds[way].append((time.perf_counter() - began) / PAIRS)
    show("asyncio", rounds)


def main() -> None:
    """Runs all."""
    port, count = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 15
    sync = sync_ways(port)
    rounds: dict[str, list[float]] = {way: [] for way in sync}
    for _ in range(count):
        for way, work in sync.items():
            began = time.perf_counter()
            for _ in range(PAIRS):
                work()
            rounds[way].append((time.perf_counter() - began) / PAIRS)
    show("sync", rounds)
    asyncio.run(run_async(port, count))


if __name__ == "__main__":
    main()
