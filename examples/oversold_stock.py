"""Fifty buyers, ten items: a lock keeps a stock from being oversold.

Each buyer reads how many items are left, thinks for a moment, and writes one less. If two do so at once, both read the
same number, and one item is sold twice. With the lock, one buyer at a time does it, in order of arrival. (A single
UPDATE could replace the lock here, but not if there is a payment between the read and the write.)

    python oversold_stock.py                  exactly ten are sold
    python oversold_stock.py --without-lock   more are sold than there were
"""

import multiprocessing
import os
import sqlite3
import sys
import tempfile
import threading
import time
import uuid

import redis

from playground import REDIS_URL, may_write

ITEMS, PROCESSES, BUYERS_PER_PROCESS = 10, 5, 10
LEASE_MS, WAIT_MS = 10_000, 60_000


def connect_to_redis():
    # The answer to a waiting request may take WAIT_MS: the socket must not time out earlier.
    return redis.from_url(REDIS_URL, socket_timeout=WAIT_MS / 1000 + 5)


def read_and_write(database):
    """Reads and writes the stock, which only one buyer at a time may do."""
    (left,) = database.execute("SELECT count FROM stock").fetchone()
    time.sleep(0.005)  # a payment, a network, a busy machine
    if left > 0:
        database.execute("UPDATE stock SET count = ?", (left - 1,))
        database.execute("INSERT INTO sale DEFAULT VALUES")


def buy(path, lock, start):
    """Runs one buyer. Without a lock, the lock is None."""
    database = sqlite3.connect(path, timeout=60, isolation_level=None)
    start.wait()
    if lock is None:
        return read_and_write(database)
    server, owner = connect_to_redis(), str(uuid.uuid4())
    token = server.execute_command(
        "LOCK.ACQUIRE", lock, owner, "PX", LEASE_MS, "BLOCK", WAIT_MS
    )
    if token is None:
        raise TimeoutError(f"no turn within {WAIT_MS} ms")
    try:
        read_and_write(database)
    finally:
        server.execute_command("LOCK.RELEASE", lock, owner, "TOKEN", token)


def run_buyers(path, lock, start):
    """Runs the buyers of one process."""
    buyers = [
        threading.Thread(target=buy, args=(path, lock, start))
        for _ in range(BUYERS_PER_PROCESS)
    ]
    for buyer in buyers:
        buyer.start()
    for buyer in buyers:
        buyer.join()


def main(with_lock):
    lock = f"stock:{uuid.uuid4()}" if with_lock else None
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "shop.db")
        database = sqlite3.connect(path, isolation_level=None)
        database.execute("CREATE TABLE stock (count INTEGER)")
        database.execute("CREATE TABLE sale (id INTEGER PRIMARY KEY)")
        database.execute("INSERT INTO stock VALUES (?)", (ITEMS,))
        start = multiprocessing.Barrier(PROCESSES * BUYERS_PER_PROCESS)
        processes = [
            multiprocessing.Process(target=run_buyers, args=(path, lock, start))
            for _ in range(PROCESSES)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        (sold,) = database.execute("SELECT count(*) FROM sale").fetchone()
    buyers = PROCESSES * BUYERS_PER_PROCESS
    how = "with" if with_lock else "without"
    print(f"{buyers} buyers, {ITEMS} items, {how} a lock: {sold} sold")
    return sold == ITEMS if with_lock else sold > ITEMS


if __name__ == "__main__":
    may_write()
    sys.exit(0 if main(with_lock="--without-lock" not in sys.argv[1:]) else 1)
