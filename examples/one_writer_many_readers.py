"""A writer changes two rows, and no reader sees one of them old and one new.

Readers share the lock (SHARED) and read in parallel; the writer has it alone. They are served in order, so a stream of
readers does not shut out the writer.

    python one_writer_many_readers.py                  no reader sees a half
    python one_writer_many_readers.py --without-lock   readers see halves
"""

import multiprocessing
import sqlite3
import sys
import tempfile
import time
import uuid

import redis

from playground import REDIS_URL, may_write

READERS, WRITES = 4, 30
LEASE_MS, WAIT_MS = 10_000, 60_000


class Lock:
    """A lock for a with statement. Without a name it does nothing."""

    def __init__(self, name, *mode):
        self.name, self.mode, self.owner = name, mode, str(uuid.uuid4())
        self.server = redis.from_url(REDIS_URL, socket_timeout=WAIT_MS / 1000 + 5)

    def __enter__(self):
        if self.name is not None:
            options = ["PX", LEASE_MS, "BLOCK", WAIT_MS, *self.mode]
            command = ["LOCK.ACQUIRE", self.name, self.owner, *options]
            if self.server.execute_command(*command) is None:
                raise TimeoutError(f"no turn within {WAIT_MS} ms")

    def __exit__(self, *_):
        if self.name is not None:
            self.server.execute_command("LOCK.RELEASE", self.name, self.owner)


def write(path, name, start, is_over):
    """Changes both rows, again and again."""
    database = sqlite3.connect(path, timeout=60, isolation_level=None)
    lock = Lock(name)
    start.wait()
    for number in range(1, WRITES + 1):
        with lock:
            database.execute("UPDATE half SET value = ? WHERE id = 1", (number,))
            time.sleep(0.002)  # a second database, a file, a service
            database.execute("UPDATE half SET value = ? WHERE id = 2", (number,))
    is_over.set()


def read(path, name, start, is_over, halves):
    """Reads both rows, again and again, and counts the times that they differ."""
    database = sqlite3.connect(path, timeout=60, isolation_level=None)
    lock, query = Lock(name, "SHARED"), "SELECT value FROM half WHERE id = ?"
    start.wait()
    while not is_over.is_set():
        with lock:
            first, second = (database.execute(query, (n,)).fetchone() for n in (1, 2))
        if first != second:
            with halves.get_lock():
                halves.value += 1


def main(with_lock):
    name = f"book:{uuid.uuid4()}" if with_lock else None
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/book.db"
        database = sqlite3.connect(path, isolation_level=None)
        database.execute("CREATE TABLE half (id INTEGER PRIMARY KEY, value INTEGER)")
        database.execute("INSERT INTO half VALUES (1, 0), (2, 0)")
        is_over, halves = multiprocessing.Event(), multiprocessing.Value("i", 0)
        start = multiprocessing.Barrier(READERS + 1)
        arguments = (path, name, start, is_over)
        writer = multiprocessing.Process(target=write, args=arguments)
        readers = [
            multiprocessing.Process(target=read, args=(*arguments, halves), daemon=True)
            for _ in range(READERS)
        ]
        for process in [*readers, writer]:
            process.start()
        writer.join()
        is_over.set()
        for reader in readers:
            reader.join()
        rows = database.execute("SELECT value FROM half").fetchall()
    how = "with" if with_lock else "without"
    print(f"{WRITES} writes, {how} a lock: a half was seen {halves.value} times")
    return rows == [(WRITES,)] * 2 and (halves.value == 0) == with_lock


if __name__ == "__main__":
    may_write()
    sys.exit(0 if main(with_lock="--without-lock" not in sys.argv[1:]) else 1)
