"""The cost to others: SET and GET on the same server without the module, with it idle, and with locks held.

Keys make a server's table longer, no matter who owns them: so the server without the module is also measured with as
many strings as there are locks.

Instructions show differences of a percent, as they do not depend on the machine's moods. Throughput and
processor time are shown as well, with more rounds, because they are what others would measure first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from ..context import Bench
from ..load import Load, Mode
from ..measure import Figure, in_turns
from ..servers import Connection, Release, Server, encode, module
from ..subjects import Pair, key, owner
from .instructions import AT_ONCE, BATCH_COMMANDS, CALLGRIND, METRIC, QUIET, Lengths, per_pair, require_callgrind

WITHOUT = "without the module"
IDLE = "module loaded, idle"

SET_GET = Pair("SET + GET", "SET other:{key} {owner}", "+OK", "GET other:{key}", "$36")

MODES = (Mode(4, 16), Mode(4, 1))
SECONDS = 0.08
WARM_UP_SECONDS = 0.01
ROUNDS_MIN = 9

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

#: So that the module can be loaded into a server that runs.
LOADABLE = ("--enable-module-command", "local")


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


@contextlib.contextmanager
def alike(release: Release, count: int) -> Iterator[dict[str, Server]]:
    """The same server four times: without the module and with it, empty and with this many strings or locks."""
    with contextlib.ExitStack() as stack:

        def start(with_module: bool, *words: str | int) -> Server:
            server = stack.enter_context(Server(release, with_module=with_module))
            if words:
                with server.connect() as connection:
                    fill(connection, count, *words)
            return server

        yield {
            WITHOUT: start(False),
            IDLE: start(True),
            with_strings(count): start(False, *STRING),
            with_locks(count): start(True, *LOCK),
        }


def timed(bench: Bench, release: Release) -> list[Figure]:
    load = Load(bench.load, SECONDS, WARM_UP_SECONDS)
    rounds = bench.rounds if bench.is_quick else max(bench.rounds, ROUNDS_MIN)
    figures = []
    with alike(release, LOCKS_QUICK if bench.is_quick else LOCKS) as servers:
        for mode in MODES:

            def once(server: Server, mode: Mode = mode) -> dict[str, float]:
                return load.measure(server, SET_GET, mode)

            turns: dict[str, Callable] = {name: lambda server=server: once(server) for name, server in servers.items()}
            for name, metrics in in_turns(rounds, turns).items():
                where = f"SET + GET, {mode.label}"
                figures += [Figure("others", release.label, where, name, m, values) for m, values in metrics.items()]
    bench.say(f"others: {release.label}, timed")
    return figures


def counted_once(release: Release, count: int) -> dict[str, float]:
    """All subjects on one server, one after the other: what its chance makes dearer, it makes so for all of them."""
    with Server(release, *QUIET, *LOADABLE, with_module=False, under=CALLGRIND) as server, server.connect() as connection:

        def instructions() -> float:
            seen = per_pair(server, connection, SET_GET, LENGTHS)
            connection.call("FLUSHALL", "SYNC")
            return seen

        fill(connection, count, *STRING)
        seen = {with_strings(count): instructions()}
        # What the server has been through counts too: these two are neighbours.
        seen[WITHOUT] = instructions()
        if connection.call("MODULE", "LOAD", module()) != b"+OK":
            raise RuntimeError(f"{release.label} does not load {module()}")
        seen[IDLE] = instructions()
        fill(connection, count, *LOCK)
        seen[with_locks(count)] = instructions()
        return seen


def counted(bench: Bench) -> list[Figure]:
    """A server for each round: on one, the keys or names of commands collide in its tables; on another, they do not."""
    where = f"SET + GET, pipelined by {BATCH_COMMANDS}"
    count = LOCKS_QUICK if bench.is_quick else LOCKS_COUNTED
    turns = [release for _ in range(bench.rounds) for release in bench.releases]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda release: counted_once(release, count), turns))
    figures = []
    for number, release in enumerate(bench.releases):
        rounds = found[number :: len(bench.releases)]
        for name in (WITHOUT, IDLE, with_strings(count), with_locks(count)):
            values = tuple(seen[name] for seen in rounds)
            figures.append(Figure("others", release.label, where, name, METRIC, values))
    bench.say("others: counted")
    return figures


def run(bench: Bench) -> list[Figure]:
    require_callgrind()
    figures = [figure for release in bench.releases for figure in timed(bench, release)]
    return figures + counted(bench)
