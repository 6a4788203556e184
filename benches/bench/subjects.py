"""The alternatives that people use: the pairs of commands that take and free a lock, word for word."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import cache

from .measure import OURS
from .servers import Connection, Release, encode

#: A lease that does not end during a measurement.
LEASE_MS = 30_000

SET_NX = f"SET {{key}} {{owner}} NX PX {LEASE_MS}"

COMPARE_AND_DELETE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

SET_AND_COUNT = (
    "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end return nil"
)

#: The name of the pair that is no lock at all: what two commands cost that do nothing.
FLOOR = "PING + PING"

#: The name of the cheapest lock that people use. Its release is unsafe: it deletes another's lock, too.
CHEAPEST = "SET NX PX + DEL"


def key(number: int) -> str:
    return f"lock:order:{number:06}"


def owner(number: int) -> str:
    return str(uuid.UUID(int=(0x9E3779B97F4A7C15F39CC0605CEDC834 * (number + 1)) % (1 << 128), version=4))


@dataclass(frozen=True)
class Pair:
    """Take and free, as commands for one key and one owner.

    The words of a command stand with single blanks between them, and with {key} and {owner} where these
    go. A reply must begin as `took` and `freed` say, else the lock was not granted or not freed.
    """

    name: str
    take_words: str
    took: str
    free_words: str
    freed: str

    def take(self, key: str, owner: str) -> bytes:
        return spelled(self.take_words, key, owner)

    def free(self, key: str, owner: str) -> bytes:
        return spelled(self.free_words, key, owner)

    @cache
    def batch(self, start: int, count: int) -> bytes:
        """`count` pairs, each on a key of its own: take, free, take, free."""
        numbers = range(start, start + count)
        return b"".join(self.take(key(n), owner(n)) + self.free(key(n), owner(n)) for n in numbers)

    def run(self, connection: Connection, start: int, count: int) -> None:
        """Sends such a batch, and checks that every lock was taken and freed."""
        connection.socket.sendall(self.batch(start, count))
        for number in range(2 * count):
            wanted = (self.took, self.freed)[number % 2].encode()
            reply = connection.first_line()
            if not reply.startswith(wanted):
                raise RuntimeError(f"{self.name}: a reply should begin with {wanted!r}, and is {reply!r}")


def spelled(words: str, key: str, owner: str) -> bytes:
    return encode(*(word.format(key=key, owner=owner) for word in words.split(" ")))


def set_nx(name: str, value: str) -> bytes:
    return spelled(SET_NX, name, value)


def floor() -> Pair:
    return Pair(FLOOR, "PING", "+PONG", "PING", "+PONG")


def pairs(release: Release, connection: Connection) -> list[Pair]:
    """All pairs that this server can do; ours first. Loads the scripts."""

    def load(script: str) -> str:
        return connection.call("SCRIPT", "LOAD", script).decode()

    compare_and_delete = f"EVALSHA {load(COMPARE_AND_DELETE)} 1 {{key}} {{owner}}"
    set_and_count = f"EVALSHA {load(SET_AND_COUNT)} 2 {{key}} {{key}}:fence {{owner}} {LEASE_MS}"
    found = [
        Pair(OURS, f"LOCK.ACQUIRE {{key}} {{owner}} PX {LEASE_MS}", ":", "LOCK.RELEASE {key} {owner}", ":1"),
        Pair(CHEAPEST, SET_NX, "+OK", "DEL {key}", ":1"),
        Pair("SET NX PX + EVALSHA", SET_NX, "+OK", compare_and_delete, ":1"),
        Pair("EVALSHA with INCR + EVALSHA", set_and_count, ":", compare_and_delete, ":1"),
    ]
    if release.is_valkey and release.number >= (9, 0):
        found.append(Pair("SET NX PX + DELIFEQ", SET_NX, "+OK", "DELIFEQ {key} {owner}", ":1"))
    if not release.is_valkey and release.number >= (8, 4):
        found.append(Pair("SET NX PX + DELEX IFEQ", SET_NX, "+OK", "DELEX {key} IFEQ {owner}", ":1"))
    return found
