"""A holder is stopped past its lease: this is why every write needs the token.

One process acquires the lock, reads a balance, and is stopped (by SIGSTOP; a garbage collection or the migration of a
virtual machine has the same effect). Its lease ends, and another process acquires the lock and writes. Then the first
one continues, unaware of all that.

    python paused_holder.py                   the late write is turned away
    python paused_holder.py --without-fence   the late write destroys the other one

The fence is a column: every write carries the token of its lock, and the row rejects a token that is not greater than
the last one. No lock server can do that for you.
"""

import multiprocessing
import os
import signal
import sqlite3
import sys
import tempfile
import uuid

import redis

from playground import REDIS_URL, may_write

TURNED_AWAY = 3  # exit code of a worker whose write was refused


def add(lock, path, amount, lease_ms, with_fence, is_stopped):
    """Adds to the balance under the lock: a read, then a write."""
    server, owner = redis.from_url(REDIS_URL, socket_timeout=60), str(uuid.uuid4())
    token = server.execute_command(
        "LOCK.ACQUIRE", lock, owner, "PX", lease_ms, "BLOCK", 30_000
    )
    if token is None:
        sys.exit("no turn within 30 seconds")
    database = sqlite3.connect(path, timeout=30, isolation_level=None)
    (balance,) = database.execute("SELECT balance FROM account").fetchone()
    if is_stopped:
        os.kill(os.getpid(), signal.SIGSTOP)  # until somebody sends SIGCONT
    if with_fence:
        written = database.execute(
            "UPDATE account SET balance = ?, fence = ? WHERE fence <= ?",
            (balance + amount, token, token),
        ).rowcount
    else:
        written = database.execute(
            "UPDATE account SET balance = ?", (balance + amount,)
        ).rowcount
    outcome = "written" if written else "turned away"
    print(f"adds {amount} to {balance} with token {token}: {outcome}", flush=True)
    server.execute_command("LOCK.RELEASE", lock, owner, "TOKEN", token)
    sys.exit(0 if written else TURNED_AWAY)


def start(*arguments):
    worker = multiprocessing.Process(target=add, args=arguments)
    worker.start()
    return worker


def main(with_fence):
    lock = f"account:{uuid.uuid4()}"
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "bank.db")
        database = sqlite3.connect(path, isolation_level=None)
        database.execute("CREATE TABLE account (balance INTEGER, fence INTEGER)")
        database.execute("INSERT INTO account VALUES (100, 0)")

        paused = start(lock, path, 10, 500, with_fence, True)
        os.waitpid(paused.pid, os.WUNTRACED)  # it is stopped now, and holds the lock
        print(
            "the first worker is stopped; the second waits for the end of its lease",
            flush=True,
        )
        other = start(lock, path, 1, 30_000, with_fence, False)
        other.join()
        os.kill(paused.pid, signal.SIGCONT)
        paused.join()
        (balance,) = database.execute("SELECT balance FROM account").fetchone()

    print(f"the balance was 100, is {balance}")
    if with_fence:
        # The late worker got an error, and can start again from the present balance.
        return (balance, other.exitcode, paused.exitcode) == (101, 0, TURNED_AWAY)
    return (balance, other.exitcode, paused.exitcode) == (110, 0, 0)  # the 1 is lost


if __name__ == "__main__":
    may_write()
    sys.exit(0 if main(with_fence="--without-fence" not in sys.argv[1:]) else 1)
