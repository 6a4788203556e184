"""What people use: the pairs of commands that take and free a lock, word for word."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from .measure import OURS
from .servers import Connection, Release, encode

#: A lease that does not end during a measurement.
LEASE_MS = 30_000

COMPARE_AND_DELETE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

SET_AND_COUNT = (
    "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end return nil"
)


def key(number: int) -> str:
    return f"lock:order:{number:06}"


def owner(number: int) -> str:
    return str(uuid.UUID(int=(0x9E3779B97F4A7C15F39CC0605CEDC834 * (number + 1)) % (1 << 128), version=4))


@dataclass(frozen=True)
class Pair:
    """Take and free, as commands for one key and one owner."""

    name: str
    take: Callable[[str, str], bytes]
    free: Callable[[str, str], bytes]

    def batch(self, start: int, count: int) -> bytes:
        """`count` pairs, each on a key of its own: take, free, take, free."""
        numbers = range(start, start + count)
        return b"".join(self.take(key(n), owner(n)) + self.free(key(n), owner(n)) for n in numbers)


def set_nx(name: str, value: str) -> bytes:
    return encode("SET", name, value, "NX", "PX", LEASE_MS)


def pairs(release: Release, connection: Connection) -> list[Pair]:
    """All pairs that this server can do; ours first. Loads the scripts."""
    load = lambda script: connection.call("SCRIPT", "LOAD", script)  # noqa: E731
    compare, count = load(COMPARE_AND_DELETE), load(SET_AND_COUNT)
    compare_and_delete = lambda k, v: encode("EVALSHA", compare, 1, k, v)  # noqa: E731
    found = [
        Pair(
            OURS,
            lambda k, v: encode("LOCK.ACQUIRE", k, v, "PX", LEASE_MS),
            lambda k, v: encode("LOCK.RELEASE", k, v),
        ),
        Pair("SET NX PX + DEL", set_nx, lambda k, v: encode("DEL", k)),
        Pair("SET NX PX + EVALSHA", set_nx, compare_and_delete),
        Pair(
            "EVALSHA with INCR + EVALSHA",
            lambda k, v: encode("EVALSHA", count, 2, k, f"{k}:fence", v, LEASE_MS),
            compare_and_delete,
        ),
    ]
    release_number = tuple(int(part) for part in release.version.split(".")[:2])
    if release.is_valkey and release_number >= (9, 0):
        found.append(Pair("SET NX PX + DELIFEQ", set_nx, lambda k, v: encode("DELIFEQ", k, v)))
    if not release.is_valkey and release_number >= (8, 4):
        found.append(Pair("SET NX PX + DELEX IFEQ", set_nx, lambda k, v: encode("DELEX", k, "IFEQ", v)))
    return found
