"""Memory of a held lock: a million of them, with UUIDs as owners, against what keeps a lock elsewhere.

A fresh server for each subject. `used_memory`, which is what the server has asked its allocator for, with
all locks held, less what it was without any, divided by their number. So everything counts that a lock
brings with it: its key, its value, its places in the server's tables, its place among the ends of leases.

Two things would distort it. One is the buffers of the connection that loads: it is closed before the second look. The
other is tables that grow, where an old one is kept until its last entry has moved: the second look waits for that. The
result is a count, which differs by less than 0.1 % from run to run, so one round is enough.

The same server takes more or less by its allocator. The C library's and the one bundled with Redis allocate in
steps of 8 bytes, the jemalloc that Debian builds Redis 7.0 with in steps of 16.

The table also has a module's empty value (tests/server/floor.c): the server's own memory for a key whose value is a
module's. It is what a lock of no bytes would take.
"""

from __future__ import annotations

import time

from .. import mass
from ..crowd import field
from ..floor import VALUE, floor
from ..measure import Figure
from ..servers import Connection, Release, Server

LOCKS = 1_000_000
LOCKS_QUICK = 50_000

SETTLE_SECONDS_MAX = 30.0

#: Room for DEBUG HTSTATS; tables without traffic grow a step at each tick, so the ticks come fast.
OPTIONS = ("--enable-debug-command", "local", "--hz", "500")

METRIC = "bytes per held lock"


def used_memory(connection: Connection) -> int:
    """The memory that the server has requested from its allocator, once no other client is connected and no table
    grows."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while time.monotonic() < deadline:
        is_alone = field(connection, "clients", "connected_clients") == 1
        # Mentions a second table as long as there is one.
        is_growing = b"Hash table 1" in bytes(connection.call("DEBUG", "HTSTATS", 0))
        if is_alone and not is_growing:
            return field(connection, "memory", "used_memory")
        time.sleep(0.05)
    raise TimeoutError("the tables of the server did not stop growing")


def per_lock(release: Release, subject: str, count: int) -> float:
    """Bytes that one held lock costs."""
    options = ("--loadmodule", str(floor())) if subject == VALUE else ()
    with Server(release, *OPTIONS, *options) as server, server.connect() as connection:
        before = used_memory(connection)
        mass.take(server, subject, count, mass.for_ever)
        if connection.call("DBSIZE") != b":%d" % count:
            raise RuntimeError(f"{subject}: not all of {count} locks are held")
        return (used_memory(connection) - before) / count


def run(bench) -> list[Figure]:
    count = LOCKS_QUICK if bench.is_quick else LOCKS
    figures = []
    for release in bench.releases:
        bench.say(f"memory: {release.label}")
        for subject in mass.TAKES:
            value = per_lock(release, subject, count)
            figures.append(Figure("memory", release.label, f"{count:,} locks, 1 round", subject, METRIC, (value,)))
    return figures
