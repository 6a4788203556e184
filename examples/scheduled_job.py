"""Several instances schedule a job, and exactly one runs it.

At the scheduled minute, every instance of a program asks for the lock of that minute. The one that gets it runs the
job; the others get nil at once and continue.

The lock is not released when the job is done: it marks the minute as handled, also for an instance whose clock is late.
Its lease is the longest such delay. If the instance dies in the middle, no instance runs the job for this minute. If a
job must be finished, release the lock when it fails, or use steps that can be repeated.
"""

import multiprocessing
import os
import sqlite3
import sys
import tempfile
import uuid
from datetime import datetime, timedelta

import redis

from playground import REDIS_URL, may_write

INSTANCES = 6
LEASE_SECONDS = 60  # longer than the clocks of two instances can differ


def at_the_scheduled_minute(job, minute, instance, database):
    """Runs the job in one instance, when its clock says that it is time."""
    server = redis.from_url(REDIS_URL)
    lock = f"job:{job}:{minute}"
    token = server.execute_command("LOCK.ACQUIRE", lock, instance, "EX", LEASE_SECONDS)
    if token is not None:
        run_the_job(minute, instance, token, database)


def run_the_job(minute, instance, token, database):
    print(f"{minute}: {instance} runs the job (token {token})", flush=True)
    database.execute("INSERT INTO run VALUES (?, ?, ?)", (minute, instance, token))


def be_an_instance(job, minutes, instance, path, start):
    """Runs one instance of the program, in a process of its own."""
    database = sqlite3.connect(path, timeout=60, isolation_level=None)
    start.wait()
    for minute in minutes:
        at_the_scheduled_minute(job, minute, instance, database)


def main():
    job = f"report-{uuid.uuid4()}"  # a real job has a name of its own, always the same
    now = datetime.now()
    minutes = [
        (now + timedelta(minutes=n)).strftime("%Y-%m-%dT%H:%M") for n in range(3)
    ]
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "runs.db")
        database = sqlite3.connect(path)
        database.execute("CREATE TABLE run (minute TEXT, instance TEXT, token INTEGER)")
        database.commit()
        start = multiprocessing.Barrier(INSTANCES)
        instances = [
            multiprocessing.Process(
                target=be_an_instance, args=(job, minutes, f"instance-{n}", path, start)
            )
            for n in range(INSTANCES)
        ]
        for instance in instances:
            instance.start()
        for instance in instances:
            instance.join()
        runs = database.execute(
            "SELECT minute, count(*) FROM run GROUP BY minute"
        ).fetchall()
    total = sum(count for _, count in runs)
    print(f"{INSTANCES} instances, {len(minutes)} minutes: the job ran {total} times")
    return runs == [(minute, 1) for minute in minutes]


if __name__ == "__main__":
    may_write()
    sys.exit(0 if main() else 1)
