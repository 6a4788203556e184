"""Threads that lock, for scenarios that were written for threads.

    with Stage(server) as stage:
        ann, ben = stage.actor("ann"), stage.actor("ben")
        ann.write()
        reply = stage.run(ben.read)     # on a thread of its own; waits in line
        ann.unlock()
        assert reply.result(SOON_SECONDS) > ann.token

An actor is the counterpart of a thread in those suites: one owner with a connection of its own, and one lock (`key`).
Its methods are those of their locks: try, wait, unlock, or learn that it holds nothing.
"""

import threading
from concurrent.futures import Future

from .kinds import LONG_MS, hold_of
from .limits import SOON_SECONDS, eventually
from .replies import lock_info

#: Wait as long as it takes.
FOREVER = "for ever"


class NotHeld(Exception):
    """A release without a hold."""


class Actor:
    """One owner, one connection, one lock."""

    def __init__(self, server, owner, key, *options, lease_ms=LONG_MS):
        self.cli = server.connect()
        self.server = server
        self.client_id = self.cli("CLIENT ID")
        self.owner, self.key = owner, key
        self.options = " ".join(options).split()
        self.lease_ms = lease_ms
        self.token = None

    def lock(self, *options, wait_ms=FOREVER):
        """The token, or None; waits in line unless wait_ms is 0."""
        command = ["LOCK.ACQUIRE", self.key, self.owner, "PX", self.lease_ms]
        command += [*" ".join(options).split(), *self.options]
        if wait_ms == FOREVER:
            command += ["BLOCK", 0]  # for the server 0 is without limit
        elif wait_ms > 0:
            command += ["BLOCK", wait_ms]
        patience = SOON_SECONDS + (0 if wait_ms == FOREVER else wait_ms / 1000)
        token = self.cli(*command, limit=patience)
        if token is not None:
            self.token = token
        return token

    def try_lock(self, *options):
        """The token, or None at once."""
        return self.lock(*options, wait_ms=0)

    def write(self, **more):
        """The lock for this actor alone."""
        return self.lock(**more)

    def read(self, **more):
        """The lock together with other readers."""
        return self.lock("SHARED", **more)

    def permit(self, limit, **more):
        """One of `limit` permits."""
        return self.lock(f"LIMIT {limit}", **more)

    def unlock(self):
        """Gives up one hold, or one count of it."""
        if self.cli("LOCK.RELEASE", self.key, self.owner) == 0:
            raise NotHeld(self.owner)

    def count(self):
        """The number of releases that it takes; 0 if this actor holds nothing."""
        hold = hold_of(self.cli, self.key, self.owner)
        return 0 if hold is None else hold["count"]

    def renew(self, lease_ms):
        """Returns whether there was a hold whose lease is now this long."""
        return self.cli("LOCK.RENEW", self.key, self.owner, "PX", lease_ms) == 1

    def killed(self):
        """The connection is cut as a crash would cut it; returns when the server knows."""
        self.server.admin("CLIENT", "KILL", "ID", self.client_id)
        eventually(
            lambda: not self.server.admin("CLIENT", "LIST", "ID", self.client_id).strip(),
            "the server has seen the connection end",
        )


class Stage:
    """Actors, and threads whose failures are not lost."""

    def __init__(self, server, key="stage", **options):
        self.server, self.key, self.options = server, key, options
        self.cli = server.connect()
        self.threads = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if any(thread.is_alive() for thread in self.threads) and self.server.is_alive():
            # Waits end with their connections, and their threads with them.
            self.server.admin("CLIENT KILL TYPE normal")
        for thread in self.threads:
            thread.join(SOON_SECONDS)

    def actor(self, owner, *options, key=None, **more):
        """Somebody who locks."""
        more = {**self.options, **more}
        return Actor(self.server, owner, key or self.key, *options, **more)

    def run(self, action, *arguments, **more):
        """Runs it on a thread of its own; result() gives the outcome, or raises it."""
        future = Future()

        def body():
            try:
                future.set_result(action(*arguments, **more))
            except BaseException as failure:
                future.set_exception(failure)

        thread = threading.Thread(target=body, daemon=True)
        self.threads.append(thread)
        thread.start()
        return future

    def crowd(self, size, action):
        """Calls `action(n)` on `size` threads at once; returns all outcomes."""
        start = threading.Barrier(size)

        def body(number):
            start.wait(SOON_SECONDS)
            return action(number)

        futures = [self.run(body, number) for number in range(size)]
        return [future.result(4 * SOON_SECONDS) for future in futures]

    def until(self, held=None, waiting=None, key=None):
        """Waits until `held` owners hold and `waiting` requests wait."""

        def reached():
            info = lock_info(self.cli, key or self.key)
            now = (0, 0) if info is None else (info["holds"], info["waiters"])
            return held in (None, now[0]) and waiting in (None, now[1])

        eventually(reached, f"{held} hold and {waiting} wait")

    def in_queue(self, action, *arguments, **more):
        """Runs it on a thread; returns when its request is in line."""
        info = lock_info(self.cli, self.key)
        before = 0 if info is None else info["waiters"]
        future = self.run(action, *arguments, **more)
        eventually(
            lambda: future.done() or (lock_info(self.cli, self.key) or {}).get("waiters") == before + 1,
            "the request stands in line",
        )
        return future


class Gauge:
    """The number of threads inside now, and the highest number."""

    def __init__(self):
        self.guard = threading.Lock()
        self.inside = self.highest = self.visits = 0

    def __enter__(self):
        with self.guard:
            self.inside += 1
            self.visits += 1
            self.highest = max(self.highest, self.inside)
            return self.inside

    def __exit__(self, *_):
        with self.guard:
            self.inside -= 1


def answer(future):
    """The result of a function that runs on a thread, soon."""
    return future.result(SOON_SECONDS)
