"""Twenty jobs of one event loop share a licence for three: a semaphore admits three at a time.

Many processes on many machines may share the licence; waiters are served in order.

    python semaphore.py                  never more than three at once, and three at times
    python semaphore.py --without-lock   more than three at once
"""

import asyncio
import contextlib
import os
import sys
import uuid

import redis.asyncio

import redislock

REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
JOBS, PLACES = 20, 3


class Licence:
    """Counts how many use it at once."""

    def __init__(self):
        self.now = self.most = 0

    async def use(self):
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.02)
        self.now -= 1


async def main(with_lock):
    name, licence = f"licence:{uuid.uuid4()}", Licence()
    async with redislock.AsyncLocks(redis.asyncio.Redis.from_url(REDIS_URL)) as locks:

        async def job():
            place = locks.semaphore(name, PLACES, wait=60)
            async with place if with_lock else contextlib.nullcontext():
                await licence.use()

        await asyncio.gather(*(job() for _ in range(JOBS)))
    how = "with" if with_lock else "without"
    print(f"{JOBS} jobs, {PLACES} places, {how} a lock: {licence.most} at once")
    return licence.most == PLACES if with_lock else licence.most > PLACES


if __name__ == "__main__":
    print(f"writes to {REDIS_URL.rpartition('@')[2]}", file=sys.stderr)
    if redis.Redis.from_url(REDIS_URL).dbsize() and os.environ.get("REDISLOCK_EXAMPLES") != "anywhere":
        sys.exit("it has keys already: name an empty server by REDIS_URL, or set REDISLOCK_EXAMPLES=anywhere")
    is_right = asyncio.run(main(with_lock="--without-lock" not in sys.argv[1:]))
    sys.exit(0 if is_right else 1)
