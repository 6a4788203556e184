"""A client that is stopped for too long while it has a lock, and writes afterwards.

    python -m harness.late_client DATABASE LEASE_MS ADDRESS...

It prints its token and stops itself, as a garbage collection or a virtual machine that moves would. When it continues
it does not look at the clock, but writes.
"""

import asyncio
import os
import signal
import sqlite3
import sys

import redis.asyncio

from .independent import Redlock


def make(path):
    """A storage that refuses a write whose token is lower than the last."""
    with sqlite3.connect(path, isolation_level=None) as database:
        database.execute("CREATE TABLE page (text TEXT, fence INTEGER)")
        database.execute("INSERT INTO page VALUES ('', 0)")


def write(path, text, token):
    """Returns whether the storage accepted it."""
    with sqlite3.connect(path, timeout=30, isolation_level=None) as database:
        command = "UPDATE page SET text = ?, fence = ? WHERE fence <= ?"
        return database.execute(command, (text, token, token)).rowcount == 1


def read(path):
    """The last written text."""
    with sqlite3.connect(path, timeout=30) as database:
        return database.execute("SELECT text FROM page").fetchone()[0]


async def main(path, lease_ms, *addresses):
    """Prints the token; then, after the stop, whether it could write and extend."""
    servers = [redis.asyncio.from_url(f"redis://{address}", retry=None) for address in addresses]
    async with Redlock(servers, "page", int(lease_ms), timeout_ms=10_000) as lock:
        print(lock.token, flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        print(write(path, "late", lock.token), await lock.extend(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
