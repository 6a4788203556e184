"""A hundred tasks of one program share one connection, and queue for one lock.

A blocking request would block the connection for all of them. QUEUE answers at once, with the token or with nil. After
nil, the task has a position in the queue, which it keeps by asking again. When its turn comes, the lock is reserved for
it. So the tasks run one at a time, in the order in which they first asked.
"""

import asyncio
import sys
import uuid

import redis.asyncio

from playground import REDIS_URL, may_write

TASKS = 100
LEASE_MS = 10_000
KEEP_MS = 5_000  # how long a place is kept for a task that does not ask again
PAUSE_SECONDS = 0.02  # between two questions, far less than that


class Record:
    """The order of events."""

    def __init__(self):
        self.asked, self.served = [], []
        self.now = self.most = 0


async def be_a_task(server, lock, number, record):
    """Asks until it is its turn, works, and releases the lock."""
    owner = f"task-{number}"
    command = ["LOCK.ACQUIRE", lock, owner, "PX", LEASE_MS, "QUEUE", KEEP_MS]
    record.asked.append(number)
    while (token := await server.execute_command(*command)) is None:
        await asyncio.sleep(PAUSE_SECONDS)
    record.served.append((token, number))
    record.now += 1
    record.most = max(record.most, record.now)
    await asyncio.sleep(0)  # others run, and find the lock taken
    record.now -= 1
    await server.execute_command("LOCK.RELEASE", lock, owner, "TOKEN", token)


async def run():
    lock, record = f"desk:{uuid.uuid4()}", Record()
    server = redis.asyncio.from_url(REDIS_URL, single_connection_client=True)
    async with server:
        await server.execute_command("LOCK.FENCE", lock)  # is the module there?
        tasks = []
        for number in range(TASKS):
            tasks.append(asyncio.create_task(be_a_task(server, lock, number, record)))
        await asyncio.gather(*tasks)
    # Tokens show the order in which the lock was granted.
    served = [number for _, number in sorted(record.served)]
    in_order = served == record.asked
    print(
        f"{TASKS} tasks over one connection, {record.most} at once, "
        f"{'in order' if in_order else 'out of order'}"
    )
    return in_order and record.most == 1


if __name__ == "__main__":
    may_write()
    sys.exit(0 if asyncio.run(run()) else 1)
