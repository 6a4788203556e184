"""Workers take payments from a queue, and never work for the same customer at the same time.

Each payment is a read, some work and a write. Without the lock two workers read the same
balance, and one of the two payments is lost.

    python worker.py                  every payment is in the balances
    python worker.py --without-lock   some are lost
"""

import contextlib
import multiprocessing
import os
import sys
import time
import uuid

import redis

import redislock

REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
WORKERS, PAYMENTS = 4, 40
CUSTOMERS = ["ann", "ben"]


def pay(server, balance, hold):
    """Adds one payment."""
    before = int(server.get(balance) or 0)
    time.sleep(0.005)
    if hold is not None:
        hold.check()  # raises LockLostError: somebody else may be at it
    server.set(balance, before + 1)


def be_a_worker(run, with_lock):
    """Works until the queue is empty."""
    server = redis.Redis.from_url(REDIS_URL, decode_responses=True)
    with redislock.Locks(server, lease=10) as locks:
        while customer := server.rpop(f"{run}:queue"):
            lock = locks.lock(f"{run}:customer:{customer}", wait=60)
            with lock if with_lock else contextlib.nullcontext() as hold:
                pay(server, f"{run}:balance:{customer}", hold)


def main(with_lock):
    run = uuid.uuid4()
    balances = [f"{run}:balance:{customer}" for customer in CUSTOMERS]
    server = redis.Redis.from_url(REDIS_URL, decode_responses=True)
    server.lpush(f"{run}:queue", *(CUSTOMERS * (PAYMENTS // len(CUSTOMERS))))
    workers = [
        multiprocessing.Process(target=be_a_worker, args=(run, with_lock))
        for _ in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    paid = sum(int(balance or 0) for balance in server.mget(balances))
    server.delete(f"{run}:queue", *balances)
    how = "with" if with_lock else "without"
    print(f"{PAYMENTS} payments, {how} a lock: {paid} are in the balances")
    return (paid == PAYMENTS) == with_lock


if __name__ == "__main__":
    print(f"writes to {REDIS_URL.rpartition('@')[2]}", file=sys.stderr)
    if redis.Redis.from_url(REDIS_URL).dbsize() and os.environ.get("REDISLOCK_EXAMPLES") != "anywhere":
        sys.exit("it has keys already: name an empty server by REDIS_URL, or set REDISLOCK_EXAMPLES=anywhere")
    sys.exit(0 if main(with_lock="--without-lock" not in sys.argv[1:]) else 1)
