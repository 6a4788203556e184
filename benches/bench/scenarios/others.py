"""The cost to others: SET and GET on the same server without the module, with it idle, and with locks held.

Keys make a server's table longer, whoever owns them: so the server without the module is also measured with as
many strings as there are locks.

Instructions tell differences of a percent, as they do not depend on the machine's moods; throughput and
processor time are told as well, with more rounds, because they are what somebody would measure first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from ..context import Bench
from ..load import Load, Mode
from ..measure import Figure, in_turns
from ..servers import Connection, Release, Server, encode
from ..subjects import Pair, key, owner
from .instructions import BATCH_COMMANDS, CALLGRIND, METRIC, QUIET, Lengths, per_pair, require_callgrind

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
LOCKS_COUNTED = 5_000
PIECE = 500

#: Longer than any measurement.
LEASE_MS = 3_000_000

#: Where keys fall into the table is a matter of each server's chance: over many it evens out.
LENGTHS = Lengths(400, 1_200, 400)


def with_locks(count: int) -> str:
    return f"module loaded, {count:,} locks"


def with_strings(count: int) -> str:
    return f"without the module, {count:,} strings"


def fill(connection: Connection, count: int, *words: str | int) -> None:
    """Sends the command for so many keys and owners, which stand for {key} and {owner}."""
    for start in range(0, count, PIECE):
        numbers = range(start, min(start + PIECE, count))
        commands = ([{"{key}": key(n), "{owner}": owner(n)}.get(word, word) for word in words] for n in numbers)
        connection.pipeline(b"".join(encode(*command) for command in commands), len(numbers))
    size = connection.call("DBSIZE")
    if size != b":%d" % count:
        raise RuntimeError(f"{count} keys should be there, and it is {size!r}")


@contextlib.contextmanager
def alike(release: Release, count: int, *options: str, under: tuple[str, ...] = ()) -> Iterator[dict[str, Server]]:
    """The same server four times: without the module and with it, empty and with this many strings or locks."""
    with contextlib.ExitStack() as stack:

        def start(with_module: bool, *words: str | int) -> Server:
            server = stack.enter_context(Server(release, *options, with_module=with_module, under=under))
            if words:
                with server.connect() as connection:
                    fill(connection, count, *words)
            return server

        yield {
            WITHOUT: start(False),
            IDLE: start(True),
            with_strings(count): start(False, "SET", "{key}", "{owner}"),
            with_locks(count): start(True, "LOCK.ACQUIRE", "{key}", "{owner}", "PX", LEASE_MS),
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


def counted(bench: Bench, release: Release) -> list[Figure]:
    where = f"SET + GET, pipelined by {BATCH_COMMANDS}"
    with alike(release, LOCKS_QUICK if bench.is_quick else LOCKS_COUNTED, *QUIET, under=CALLGRIND) as servers:
        with contextlib.ExitStack() as stack:

            def turn(server: Server) -> Callable[[], dict[str, float]]:
                connection = stack.enter_context(server.connect())
                return lambda: {METRIC: per_pair(server, connection, SET_GET, LENGTHS)}

            turns = {name: turn(server) for name, server in servers.items()}
            seen = in_turns(bench.rounds, turns)
    bench.say(f"others: {release.label}, counted")
    return [Figure("others", release.label, where, name, METRIC, found[METRIC]) for name, found in seen.items()]


def run(bench: Bench) -> list[Figure]:
    require_callgrind()
    figures = [figure for release in bench.releases for figure in timed(bench, release)]
    with ThreadPoolExecutor(len(bench.releases)) as pool:
        for found in pool.map(lambda release: counted(bench, release), bench.releases):
            figures += found
    return figures
