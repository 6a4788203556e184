"""A server with a given number of something, and the measurements of its work."""

import contextlib
import os
import time

from bench import mass
from bench.crowd import field
from bench.servers import Connection, Release, Server, encode

#: Longer than any measurement, and the longest that there is.
LEASE_MS = 3_600_000
#: Stands for the number of each of many, in as many digits.
NUMBER = b"#" * 7
PIECE = 5_000

#: As many hold one lock at most; of a million, there is one fewer, so that there is room for another.
HOLDERS_MAX = 1_000_000
#: Room for as many as anybody builds.
ROOM = {"max-waiters-per-lock": 1_000_000, "max-waiters": 10_000_000, "max-holders": HOLDERS_MAX}
WAIT_SECONDS = 60.0
#: The number of checks whether an event has ended, each time after the server has come to rest.
ASKED_MAX = 100


def release():
    """The server under test."""
    name, version, server, cli = os.environ["REDISLOCK_SERVER"].split(maxsplit=3)
    return Release(name, version, server, cli)


def commands(words, numbers):
    """These words once for each number, in pieces, each with the number of its replies."""
    template = encode(*words.split()).replace(b"%", b"%%").replace(NUMBER, b"%07d")
    places = template.count(b"%07d")
    for start in range(0, len(numbers), PIECE):
        piece = numbers[start : start + PIECE]
        values = tuple(number for number in piece for _ in range(places))
        yield template * len(piece) % values, len(piece)


class Stage:
    """A server, a connection to it, and functions that build and measure."""

    def __init__(self, count, meter, *options, under=(), start=Server):
        self.count, self.meter = count, meter
        self._life = contextlib.ExitStack()
        under = (*under, *(meter.under if meter else ()))
        self.server = self._life.enter_context(start(release(), "--enable-debug-command", "yes", *options, under=under))
        if meter:
            meter.pid = self.server.process.pid
        self.admin = self.connect()
        #: The values that commands may name: a token.
        self.known = {"n": count}
        #: The clients that act; and the parts of the build that an act needs.
        self.clients = []
        self._asked = 0
        for name, value in ROOM.items():
            self.ok("CONFIG", "SET", f"redislock.{name}", value)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._life.close()

    def connect(self):
        """A connection that closes with the server."""
        return self._life.enter_context(Connection(self.server.port))

    def enter(self, context):
        """Something that ends with the server."""
        return self._life.enter_context(context)

    def on_close(self, what):
        """Is done before the server ends."""
        self._life.callback(what)

    def call(self, *words):
        """A command, or its words in one text."""
        words = words[0].split() if len(words) == 1 else words
        reply = self.admin.call(*words)
        if isinstance(reply, bytes) and reply.startswith(b"-"):
            raise RuntimeError(f"{' '.join(map(str, words))[:200]}: {reply.decode(errors='replace')}")
        return reply

    def ok(self, *words):
        """A command that must be answered by OK."""
        reply = self.call(*words)
        assert reply == b"+OK", f"{words}: {reply!r}"

    def fill(self, words, numbers=None, connection=None):
        """These words once for each number; refusals that say nil are no errors."""
        numbers = range(self.count) if numbers is None else numbers
        mass.pour(connection or self.admin, commands(words, numbers), error=b"\n-")

    def figure(self, name):
        """A number of INFO redislock."""
        return field(self.admin, "redislock", f"redislock_{name}")

    def expects(self, **figures):
        """Checks numbers of INFO redislock."""
        for name, value in figures.items():
            seen = self.figure(name)
            assert seen == value, f"{name}: {seen} instead of {value} of {self.count}"

    def expects_all(self):
        """Checks that all owners hold that were to; of the most holders of one lock, one fewer."""
        seen = self.figure("holds")
        assert min(self.count, HOLDERS_MAX - 1) <= seen <= self.count, f"{seen} hold instead of {self.count}"

    def wait_until(self, condition, what):
        """Waits for it with a bound."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"it takes too long: {what}"
            time.sleep(0.005)

    def is_so(self, condition):
        """Returns whether it holds; a failure is an error only after too many attempts."""
        self._asked += 1
        try:
            condition(self)
        except AssertionError:
            if self._asked == ASKED_MAX:
                raise
            return False
        return True

    def turns(self, act, is_brief=False):
        """The server's work for it; briefly, if all is done when the reply comes."""
        self.meter.reset(is_brief)
        act(self)
        return self.meter.read(is_brief)
