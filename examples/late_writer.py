"""A writer is stopped past its lease, and then still writes to Redis.

One process acquires the lock, reads a total, and is stopped (by SIGSTOP; a garbage collection or the migration of a
virtual machine has the same effect). Its lease ends, and another process acquires the lock and writes. Then the first
one continues, unaware of all that.

    python late_writer.py                   the late write is turned away: it goes by LOCK.EXEC
    python late_writer.py --without-exec    the late write, a plain SET, destroys the other one

paused_holder.py shows the same with a database, which must compare the tokens itself.
"""

import multiprocessing
import os
import signal
import sys
import uuid

import redis

from playground import REDIS_URL, may_write

TURNED_AWAY = 3  # exit code of a worker whose write was refused


def add(lock, total, amount, lease_ms, with_exec, is_stopped):
    """Adds to the total under the lock: a read, then a write."""
    server, owner = redis.from_url(REDIS_URL, socket_timeout=60), str(uuid.uuid4())
    token = server.execute_command(
        "LOCK.ACQUIRE", lock, owner, "PX", lease_ms, "BLOCK", 30_000
    )
    if token is None:
        sys.exit("no turn within 30 seconds")
    value = int(server.get(total))
    if is_stopped:
        os.kill(os.getpid(), signal.SIGSTOP)  # until somebody sends SIGCONT
    write, outcome = ["SET", total, value + amount], "written"
    if with_exec:
        write = ["LOCK.EXEC", lock, token, *write]
    try:
        server.execute_command(*write)
    except redis.ResponseError as error:
        if not str(error).startswith("FENCED"):
            raise
        outcome = "turned away"
    print(f"adds {amount} to {value} with token {token}: {outcome}", flush=True)
    server.execute_command("LOCK.RELEASE", lock, owner, "TOKEN", token)
    sys.exit(0 if outcome == "written" else TURNED_AWAY)


def start(*arguments):
    worker = multiprocessing.Process(target=add, args=arguments)
    worker.start()
    return worker


def main(with_exec):
    server = redis.from_url(REDIS_URL, socket_timeout=60)
    name = f"account:{{{uuid.uuid4()}}}"  # one hash tag: in a cluster, one slot
    lock, total = f"{name}:lock", f"{name}:total"
    server.execute_command("LOCK.FENCE", lock)  # is the module there?
    server.set(total, 100)

    paused = start(lock, total, 10, 500, with_exec, True)
    os.waitpid(paused.pid, os.WUNTRACED)  # it is stopped now, and holds the lock
    print(
        "the first worker is stopped; the second waits for the end of its lease",
        flush=True,
    )
    other = start(lock, total, 1, 30_000, with_exec, False)
    other.join()
    os.kill(paused.pid, signal.SIGCONT)
    paused.join()
    value = int(server.getdel(total))

    print(f"the total was 100, is {value}")
    if with_exec:
        # The late worker got an error, and can start again from the present value.
        return (value, other.exitcode, paused.exitcode) == (101, 0, TURNED_AWAY)
    return (value, other.exitcode, paused.exitcode) == (110, 0, 0)  # the 1 is lost


if __name__ == "__main__":
    may_write()
    sys.exit(0 if main(with_exec="--without-exec" not in sys.argv[1:]) else 1)
