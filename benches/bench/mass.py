"""Locks by the million: encoded by the thousand, because one by one Python would take longer than the server."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from .floor import VALUE
from .measure import OURS
from .servers import Connection, Server, encode

#: Locks in one piece.
PIECE = 5_000

#: Longer than any measurement, and not longer than `redislock.max-lease`.
LEASE_MS = 3_000_000

SET = "SET NX PX"
REDISSON = "Redisson's hash"

KEY = b"$17\r\nlock:order:%06d\r\n"  # as `subjects.key` writes it
OWNER = b"$36\r\n%s\r\n"
MS = b"%s"  # a whole bulk, because leases differ in length

#: The commands that take a lock, as a template with the places of key, owner and lease in their order, and the number
#: of replies. Redisson's script leaves a hash of one field with a time to live.
TAKES = {
    OURS: (b"*5\r\n$12\r\nLOCK.ACQUIRE\r\n" + KEY + OWNER + b"$2\r\nPX\r\n" + MS, "kom", 1),
    SET: (b"*6\r\n$3\r\nSET\r\n" + KEY + OWNER + b"$2\r\nNX\r\n$2\r\nPX\r\n" + MS, "kom", 1),
    REDISSON: (
        b"*4\r\n$4\r\nHSET\r\n" + KEY + b"$38\r\n%s:1\r\n$1\r\n1\r\n" + b"*3\r\n$7\r\nPEXPIRE\r\n" + KEY + MS,
        "kokm",
        2,
    ),
    VALUE: (b"*2\r\n$9\r\nFLOOR.SET\r\n" + KEY, "k", 1),
}


@cache
def owners(count: int) -> list[bytes]:
    """UUIDs of version 4 in canonical text; the same ones in every run."""
    digits = random.Random(count).randbytes(16 * count).hex()
    texts = (digits[at : at + 32] for at in range(0, 32 * count, 32))
    return [f"{t[:8]}-{t[8:12]}-4{t[13:16]}-a{t[17:20]}-{t[20:]}".encode() for t in texts]


def pieces(subject: str, count: int, leases_ms: Callable[[range], Iterable[int]]) -> Iterator[tuple[bytes, int]]:
    """Commands that take `count` locks, in pieces, each with the number of its replies."""
    template, places, replies = TAKES[subject]
    bulks: dict[int, bytes] = {}
    for start in range(0, count, PIECE):
        numbers = range(start, min(start + PIECE, count))
        leases = list(leases_ms(numbers))
        for lease in set(leases) - bulks.keys():
            bulks[lease] = encode(lease)[4:]  # without the head of a command
        names = owners(count)[numbers.start : numbers.stop]
        columns = {"k": numbers, "o": names, "m": [bulks[lease] for lease in leases]}
        rows = zip(*(columns[place] for place in places), strict=True)
        yield template * len(numbers) % tuple(value for row in rows for value in row), replies * len(numbers)


def for_ever(numbers: range) -> Iterable[int]:
    """Leases that do not end while anybody measures."""
    return [LEASE_MS] * len(numbers)


def together(end: float, spread_ms: int) -> Callable[[range], Iterable[int]]:
    """Leases whose ends are spread over `spread_ms` milliseconds from `end` on, a moment of `time.monotonic`."""

    def leases_ms(numbers: range) -> Iterable[int]:
        left_ms = max(1, int((end - time.monotonic()) * 1e3))
        return [left_ms + number % spread_ms for number in numbers]

    return leases_ms


def take(server: Server, subject: str, count: int, leases_ms: Callable[[range], Iterable[int]]) -> None:
    """Takes `count` locks over a connection of its own."""
    with server.connect() as connection:
        pour(connection, pieces(subject, count, leases_ms))


def pour(connection: Connection, pieces: Iterable[tuple[bytes, int]], error: bytes = b"-") -> None:
    """Sends pieces of commands, each with the number of its replies, which have one line each. A reply that begins with
    `error` is an error."""
    sent = answered = 0
    for commands, replies in pieces:
        connection.socket.sendall(commands)
        # All but this piece: so that encoding and executing overlap.
        while answered < sent:
            answered += skim(connection, error)
        sent += replies
    while answered < sent:
        answered += skim(connection, error)


def skim(connection: Connection, error: bytes = b"-") -> int:
    """Reads replies of one line each, of which none may be an error or a nil, and tells how many."""
    seen = connection.socket.recv(1 << 18)
    if not seen:
        raise ConnectionError("the server closed the connection")
    if error in seen:
        raise RuntimeError(f"not taken: {seen[:300]!r}")
    return seen.count(b"\n")
