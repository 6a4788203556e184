"""A worker holds a lock as long as it lives, and not a moment longer.

It does not know how long its work takes. With KEEPALIVE, its lease of half a second is paused while its connection is
open. Then the worker is killed. The server sees the connection close, and because of EPHEMERAL 0 the next client gets
the lock at once.

    python killed_worker.py                the work is kept alone, and the next comes at once
    python killed_worker.py --without-tie  another comes in while the worker works
"""

import multiprocessing
import os
import signal
import sys
import time
import uuid

import redis

from playground import REDIS_URL, may_write

LEASE_MS, WORK_SECONDS, WAIT_MS = 500, 1.5, 30_000


def connect():
    return redis.from_url(REDIS_URL, socket_timeout=WAIT_MS / 1000 + 5)


def work(lock, options, has_begun):
    """Acquires the lock, and works for ever. The connection must stay open, and must not be shared."""
    server = connect().client()
    command = ["LOCK.ACQUIRE", lock, "worker", "PX", LEASE_MS, *options]
    assert server.execute_command(*command) is not None
    has_begun.set()
    time.sleep(3600)


def try_for(server, lock, seconds):
    """Returns whether another client gets the lock within this time."""
    command = ["LOCK.ACQUIRE", lock, "other", "PX", LEASE_MS]
    command += ["BLOCK", int(seconds * 1000)]
    return server.execute_command(*command) is not None


def main(options):
    server, lock = connect(), f"crane:{uuid.uuid4()}"
    server.execute_command("LOCK.FENCE", lock)  # is the module there?
    has_begun = multiprocessing.Event()
    worker = multiprocessing.Process(target=work, args=(lock, options, has_begun))
    worker.start()
    if not has_begun.wait(30):
        return False
    # This takes three leases.
    came_in = try_for(server, lock, WORK_SECONDS)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    came_after = came_in or try_for(server, lock, WAIT_MS / 1000)
    server.execute_command("LOCK.RELEASE", lock, "other")
    how = "with" if options else "without"
    during = "came in" if came_in else "waited"
    print(f"{how} a tie: while the worker lived, the other {during}")
    return came_after and came_in == (not options)


if __name__ == "__main__":
    may_write()
    without = "--without-tie" in sys.argv[1:]
    sys.exit(0 if main([] if without else ["KEEPALIVE", "EPHEMERAL", 0]) else 1)
