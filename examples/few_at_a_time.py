"""Twenty jobs share a licence for three: a semaphore admits three at a time.

Each job takes one of three permits (LIMIT 3), works for a moment, and releases it. If a job dies, its permit is free
when its lease ends.

    python few_at_a_time.py                  never more than three at once, and three at times
    python few_at_a_time.py --without-lock   more than three at once
"""

import multiprocessing
import os
import sqlite3
import sys
import tempfile
import time
import uuid

import redis

from playground import REDIS_URL, may_write

JOBS, PLACES = 20, 3
LEASE_MS, WAIT_MS = 10_000, 60_000


def work(database):
    """Records when it began and when it ended, by one clock for all processes."""
    began = time.monotonic()
    time.sleep(0.05)
    database.execute("INSERT INTO job VALUES (?, ?)", (began, time.monotonic()))


def be_a_job(path, lock, start):
    """Runs one job. Without a lock, the lock is None."""
    database = sqlite3.connect(path, timeout=60, isolation_level=None)
    start.wait()
    if lock is None:
        return work(database)
    server = redis.from_url(REDIS_URL, socket_timeout=WAIT_MS / 1000 + 5)
    owner = str(uuid.uuid4())
    options = ["PX", LEASE_MS, "BLOCK", WAIT_MS, "LIMIT", PLACES]
    token = server.execute_command("LOCK.ACQUIRE", lock, owner, *options)
    if token is None:
        raise TimeoutError(f"no place within {WAIT_MS} ms")
    try:
        work(database)
    finally:
        server.execute_command("LOCK.RELEASE", lock, owner, "TOKEN", token)


def most_at_once(jobs):
    """Returns the largest number of jobs that worked at the same time."""
    steps = sorted(
        [(began, 1) for began, _ in jobs] + [(ended, -1) for _, ended in jobs]
    )
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


def main(with_lock):
    lock = f"licence:{uuid.uuid4()}" if with_lock else None
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "jobs.db")
        database = sqlite3.connect(path, isolation_level=None)
        database.execute("CREATE TABLE job (began REAL, ended REAL)")
        start = multiprocessing.Barrier(JOBS)
        jobs = [
            multiprocessing.Process(target=be_a_job, args=(path, lock, start))
            for _ in range(JOBS)
        ]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        done = database.execute("SELECT began, ended FROM job").fetchall()
    most = most_at_once(done)
    how = "with" if with_lock else "without"
    print(f"{len(done)} jobs, {PLACES} places, {how} a lock: {most} at once")
    return len(done) == JOBS and (most == PLACES if with_lock else most > PLACES)


if __name__ == "__main__":
    may_write()
    sys.exit(0 if main(with_lock="--without-lock" not in sys.argv[1:]) else 1)
