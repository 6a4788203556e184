"""The cost to others: SET and GET on the same server without the module, with it idle, and with locks held.

A server that has run for a while is not one that has just begun, and what is measured behind another subject finds
another server. So every measurement has a fresh server of its own, in an order that gives no subject an advantage (see
measure.py). A module that does nothing (tests/server/floor.c) tells what any module costs. Keys make a server's table
longer, no matter who owns them: so the server without the module is also measured with as many strings as there are
locks.

Throughput and processor time are what others would measure first. Instructions do not depend on the load of the machine.
They depend on the server's random seed: keys and names of commands collide in the tables of one server and not in those
of another. So they need several servers as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ..context import Bench
from ..crowd import await_waiter
from ..floor import floor
from ..load import Load, Mode
from ..measure import Figure, in_turns
from ..servers import Connection, Release, Server, encode
from ..subjects import Pair, key, owner
from .instructions import AT_ONCE, BATCH_COMMANDS, CALLGRIND, METRIC, QUIET, Lengths, per_pair, require_callgrind

WITHOUT = "without the module"
EMPTY = "with a module that does nothing"
IDLE = "module loaded, idle"
WAITED_FOR = "module loaded, a lock held and waited for"

SET_GET = Pair("SET + GET", "SET other:{key} {owner}", "+OK", "GET other:{key}", "$36")

MODES = (Mode(4, 16), Mode(4, 1))
SECONDS = 0.3
WARM_UP_SECONDS = 0.1
#: Even: each subject is measured as often before another one as after it.
ROUNDS_MIN = 14

LOCKS = 100_000
LOCKS_QUICK = 1_000

#: Fewer under callgrind, where a lock takes fifty times as long.
LOCKS_COUNTED = 1_000
PIECE = 500

#: Longer than any measurement.
LEASE_MS = 3_000_000

LENGTHS = Lengths(200, 800, 200)

STRING = ("SET", "{key}", "{owner}")
LOCK = ("LOCK.ACQUIRE", "{key}", "{owner}", "PX", LEASE_MS)


def with_locks(count: int) -> str:
    return f"module loaded, {count:,} locks"


def with_strings(count: int) -> str:
    return f"without the module, {count:,} strings"


def fill(connection: Connection, count: int, *words: str | int) -> None:
    """Sends the command `count` times, each time with another key and owner for {key} and {owner}."""
    for start in range(0, count, PIECE):
        numbers = range(start, min(start + PIECE, count))
        commands = ([{"{key}": key(n), "{owner}": owner(n)}.get(word, word) for word in words] for n in numbers)
        connection.pipeline(b"".join(encode(*command) for command in commands), len(numbers))
    size = connection.call("DBSIZE")
    if size != b":%d" % count:
        raise RuntimeError(f"{count} keys should be there, and it is {size!r}")


def names_of(count: int) -> tuple[str, ...]:
    """All subjects; the first is what the others are compared with."""
    return WITHOUT, EMPTY, IDLE, WAITED_FOR, with_strings(count), with_locks(count)


@contextlib.contextmanager
def fresh(release: Release, name: str, count: int, *options: str, under: Iterable[str] = ()) -> Iterator[Server]:
    """A server that begins with what this subject has."""
    has_module = name in (IDLE, WAITED_FOR, with_locks(count))
    if name == EMPTY:
        options = (*options, "--loadmodule", str(floor()))
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server(release, *options, with_module=has_module, under=under))
        if name in (with_strings(count), with_locks(count)):
            with server.connect() as connection:
                fill(connection, count, *(STRING if name == with_strings(count) else LOCK))
        if name == WAITED_FOR:
            keep_waiting(stack.enter_context(server.connect()), stack.enter_context(server.connect()))
        yield server


def keep_waiting(holder: Connection, waiter: Connection) -> None:
    """One client holds a lock, and another one waits for it."""
    holder.call("LOCK.ACQUIRE", "door", owner(0), "PX", LEASE_MS)
    waiter.send("LOCK.ACQUIRE", "door", owner(1), "PX", LEASE_MS, "BLOCK", 0)
    await_waiter(holder, "door")


def timed_once(load: Load, release: Release, name: str, count: int) -> dict[tuple[str, str], float]:
    """All modes on one fresh server; values by mode and metric."""
    with fresh(release, name, count) as server:
        seen = {mode.label: load.measure(server, SET_GET, mode) for mode in MODES}
    return {(mode, metric): value for mode, found in seen.items() for metric, value in found.items()}


def timed(bench: Bench, release: Release) -> list[Figure]:
    load = Load(bench.load, SECONDS / 4 if bench.is_quick else SECONDS, WARM_UP_SECONDS)
    rounds, count = (bench.rounds, LOCKS_QUICK) if bench.is_quick else (max(bench.rounds, ROUNDS_MIN), LOCKS)
    turns = {name: partial(timed_once, load, release, name, count) for name in names_of(count)}
    figures = [
        Figure("others", release.label, f"SET + GET, {mode}", name, metric, values)
        for name, found in in_turns(rounds, turns).items()
        for (mode, metric), values in found.items()
    ]
    bench.say(f"others: {release.label}, timed")
    return figures


def counted_once(release: Release, name: str, count: int) -> float:
    """Instructions on one fresh server."""
    with fresh(release, name, count, *QUIET, under=CALLGRIND) as server, server.connect() as connection:
        return per_pair(server, connection, SET_GET, LENGTHS)


def counted(bench: Bench) -> list[Figure]:
    where = f"SET + GET, pipelined by {BATCH_COMMANDS}"
    count = LOCKS_QUICK if bench.is_quick else LOCKS_COUNTED
    wanted = [(release, name) for release in bench.releases for name in names_of(count)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda one: counted_once(*one, count), wanted * bench.rounds))
    bench.say("others: counted")
    return [
        Figure("others", release.label, where, name, METRIC, tuple(found[number :: len(wanted)]))
        for number, (release, name) in enumerate(wanted)
    ]


def run(bench: Bench) -> list[Figure]:
    require_callgrind()
    figures = [figure for release in bench.releases for figure in timed(bench, release)]
    return figures + counted(bench)
