"""Stories for asyncio: what happens with locks and a client of one server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import redis.asyncio

import redislock

Story = Callable[[redislock.AsyncLocks, "redis.asyncio.Redis"], Awaitable[None]]


def play(server: Any, story: Story, port: int | None = None, **options: Any) -> None:
    """Runs a story with locks and a client of this server."""

    async def run() -> None:
        client = redis.asyncio.Redis(port=port or server.port, decode_responses=True)
        plain = redis.asyncio.Redis(port=server.port, decode_responses=True)
        async with plain, client, redislock.AsyncLocks(client, **{"lease": 3, **options}) as locks:
            async with asyncio.timeout(40):
                await story(locks, plain)

    asyncio.run(run())
