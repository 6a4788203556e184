"""A function that holds a lock calls another one that takes the same lock.

With REENTRANT, the second request of the same owner adds one to its count, and each release takes one off. So no other
owner gets the lock before the outermost function ends, and the inner function also works on its own. Without REENTRANT,
the inner release would release the outer function's lock.

    python nested_calls.py                       nobody comes in between
    python nested_calls.py --without-reentrant   somebody does
"""

import sys
import uuid
from contextlib import contextmanager

import redis

from playground import REDIS_URL, may_write

LEASE_MS = 60_000


class Tree:
    """A tree whose nodes are changed under one lock."""

    def __init__(self, lock, options):
        self.server = redis.from_url(REDIS_URL)
        self.lock, self.options, self.owner = lock, options, str(uuid.uuid4())
        self.intruders = 0

    @contextmanager
    def locked(self):
        """Holds the lock, whether or not the caller already holds it."""
        command = ["LOCK.ACQUIRE", self.lock, self.owner, "PX", LEASE_MS]
        if self.server.execute_command(*command, *self.options) is None:
            raise BlockingIOError("somebody else holds the lock")
        try:
            yield
        finally:
            self.server.execute_command("LOCK.RELEASE", self.lock, self.owner)

    def insert(self, depth):
        """Changes a node and its descendants."""
        with self.locked():
            if depth > 0:
                self.insert(depth - 1)
            self.somebody_else_tries()

    def somebody_else_tries(self):
        """After each change, another client has a moment to try."""
        other = f"other-{uuid.uuid4()}"
        command = ["LOCK.ACQUIRE", self.lock, other, "PX", LEASE_MS]
        if self.server.execute_command(*command) is not None:
            self.intruders += 1
            self.server.execute_command("LOCK.RELEASE", self.lock, other)


def main(options):
    tree = Tree(f"tree:{uuid.uuid4()}", options)
    tree.insert(depth=3)
    is_free = tree.server.execute_command("LOCK.FENCE", tree.lock) is None
    how = "with" if options else "without"
    print(f"4 calls within each other, {how} REENTRANT: {tree.intruders} came in between")
    return is_free and (tree.intruders == 0) == bool(options)


if __name__ == "__main__":
    may_write()
    without = "--without-reentrant" in sys.argv[1:]
    sys.exit(0 if main([] if without else ["REENTRANT"]) else 1)
