"""Locks that are held, waited for and about to end, while a server changes its role.

    scene = Scene(old)
    ...                         another server takes over
    scene.waiters_are_told()
    scene.goes_on_at(new)
"""

import time

from .kinds import ask, ask_all, line_of, owners_of, release, take, take_all
from .limits import eventually
from .wire import Closed, ServerError

class Scene:
    """The holds and waits of clients on one server with `replicas` replicas; `key` makes names of one slot.

    The short leases should last until the server is no primary any more.
    """

    def __init__(self, server, replicas=1, key=str, short_ms=2500):
        self.short_ms = short_ms
        self.held, self.short, self.one, self.two = (key(name) for name in ("held", "short", "one", "two"))
        cli = server.connect()
        self.token = take(cli, self.held, "alice")
        self.begun = time.monotonic()
        take(cli, self.short, "alice", lease_ms=short_ms)
        self.last = take_all(cli, f"{self.one} {self.two}", "alice", lease_ms=short_ms)
        take(cli, self.held, "place", "QUEUE 3600000")
        self.waiters = [
            ask(server, self.held, "bob"), ask(server, self.short, "bob"), ask_all(server, f"{self.two} {self.held}", "carol"),
        ]  # fmt: skip
        assert cli("WAIT", replicas, 10_000) == replicas

    def waiters_are_told(self):
        """G7: an error that sends them back, or the end of the connection."""
        for waiter in self.waiters:
            try:
                reply = waiter.answer()
            except ServerError as error:
                assert error.code in ("UNBLOCKED", "MOVED"), error.line
            except Closed:
                pass
            else:
                raise AssertionError(f"granted: {reply}")

    def goes_on_at(self, server):
        """G2, G3, G4: every lease ends in time and not before, and clients that come back are granted."""
        cli = server.connect()
        assert cli("LOCK.FENCE", self.held) == self.token
        heirs = [ask(server, key, "bob") for key in (self.short, self.one, self.two)]
        assert all(heir.answer() > self.last for heir in heirs)
        assert time.monotonic() - self.begun >= self.short_ms / 1000, "a lease was cut short"
        assert (owners_of(cli, self.held), line_of(cli, self.held)) == (["alice"], [])
        back = ask(server, self.held, "bob")
        release(cli, self.held, "alice")
        assert back.answer() > self.last


def agree(primary, replica):
    """G13: waits until both servers have the same locks."""
    cli, reader = primary.connect(), replica.connect()
    eventually(lambda: cli("DEBUG DIGEST") == reader("DEBUG DIGEST"), "the same digest")
