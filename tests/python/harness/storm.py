"""A crowd that waits for one lock or for many, and a look at each turn of the event loop."""

import time

from .kinds import count
from .limits import SLOW_FACTOR, eventually
from .wire import encode

LEASE_MS = 600_000

#: Longer than the bytes that a server reads of a connection in one turn, in two halves.
LONG_KEY = "k" * 9_000


def admit(server):
    """Lets a crowd in. It comes from several addresses, of which the server would take most for strangers."""
    server.admin("CONFIG SET protected-mode no")
    server.admin("ACL SETUSER crowd on nopass ~* +@all")


def look_in_a_turn(*command):
    """A command as bytes, after enough others that the server reads only one of them in a turn."""
    return encode("EXISTS", LONG_KEY) * 2 + encode(*command)


def read_look(connection):
    """The reply to that command."""
    assert connection.read() == connection.read() == 0
    return connection.read()


class Storm:
    """A server with a crowd of clients who wait for one lock, or for many."""

    def __init__(self, server, crowd, size, locks):
        self.server = server
        self.cli = server.connect()
        self.crowd = crowd
        self.size = size
        self.locks = locks

    def key(self, number):
        """The lock that a member waits for."""
        return f"lock:{number % self.locks}"

    def hold_all(self):
        """Takes every lock for another owner."""
        for start in range(0, self.locks, 1000):
            names = range(start, min(start + 1000, self.locks))
            taken = self.cli.pipeline(*(("LOCK.ACQUIRE", self.key(n), "first", "PX", LEASE_MS) for n in names))
            assert all(isinstance(token, int) for token in taken), taken[:3]

    def release_all(self):
        """Gives back the locks of that owner."""
        for start in range(0, self.locks, 1000):
            names = range(start, min(start + 1000, self.locks))
            assert set(self.cli.pipeline(*(("LOCK.RELEASE", self.key(n), "first") for n in names))) <= {0, 1}

    def wait_in_queue(self, words=lambda _: ("BLOCK", 0), end=float("inf")):
        """Every member asks for its lock, one after the other; returns when all wait, or at that moment."""

        def ask(number):
            return encode("LOCK.ACQUIRE", self.key(number), f"w{number}", "PX", LEASE_MS, *words(number))

        self.crowd.fill(range(self.size))
        self.crowd.say(range(self.size), ask)
        all_wait = lambda: count(self.cli, "waiters") == self.size or time.monotonic() > end
        eventually(all_wait, "all wait", 60 * SLOW_FACTOR, 0.02)

    def release(self, number):
        """A member gives its lock to the next."""
        self.crowd.say([number], lambda n: encode("LOCK.RELEASE", self.key(n), f"w{n}"))

    def calm_down(self):
        """Checks that no client waits, no other hold is left, and every lock can be taken."""
        eventually(lambda: count(self.cli, "waiters") == 0, "nobody waits", 60 * SLOW_FACTOR, 0.02)
        keys = [self.key(n) for n in range(self.locks)]
        for start in range(0, len(keys), 1000):
            self.cli("DEL", *keys[start : start + 1000])
        eventually(lambda: count(self.cli, "locks") == 0, "nobody holds", 60 * SLOW_FACTOR, 0.02)
        self.hold_all()
        self.release_all()
        assert (count(self.cli, "locks"), count(self.cli, "holds")) == (0, 0)
