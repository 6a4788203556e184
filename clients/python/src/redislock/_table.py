"""The locks of an in-process server, and its commands: the core of redislock.testing."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from ._resp import Parser, Push, ReplyError
from ._rules import clock

#: The longest lease, in milliseconds: the default of redislock.max-lease.
_LEASE_MOST = 3_600_000
#: The mode of a hold or a wait, and the number of permits of a semaphore.
_Mode = tuple[str, int | None]
_LATER = object()


@dataclass(eq=False)
class _Hold:
    owner: bytes
    mode: _Mode
    token: int
    granted: float
    until: float


@dataclass(eq=False)
class _Wait:
    """A position in the queues of some locks; `connection` is the one that is blocked (BLOCK)."""

    owner: bytes
    mode: _Mode
    names: list[bytes]
    lease: float
    since: float
    until: float
    connection: Connection | None = None


@dataclass(eq=False)
class _Lock:
    holds: dict[bytes, _Hold] = field(default_factory=dict)
    queue: list[_Wait] = field(default_factory=list)

    @property
    def modes(self) -> list[_Mode]:
        return [hold.mode for hold in self.holds.values()] + [wait.mode for wait in self.queue]

    def blockers(self, owner: bytes) -> list[_Hold | _Wait]:
        """Returns the holds of other owners, and the waits ahead of this owner's wait."""
        holds = [hold for hold in self.holds.values() if hold.owner != owner]
        return [*holds, *takewhile(lambda wait: wait.owner != owner, self.queue)]

    def fits(self, owner: bytes, mode: _Mode) -> bool:
        """True if this owner may have the lock now: holders and earlier waiters leave room for it."""
        others, (kind, limit) = [each.mode for each in self.blockers(owner)], mode
        if limit is not None:
            return len(others) < limit
        return not others if kind == "exclusive" else ("exclusive", None) not in others


class Table:
    """The locks of one server."""

    def __init__(self) -> None:
        self._guard = threading.RLock()
        self._locks: dict[bytes, _Lock] = {}
        self._tracking: dict[bytes, set[Connection]] = {}
        self._tokens = itertools.count(time.time_ns() // 1000)

    def detach(self, connection: Connection) -> None:
        """Ends the waits over this connection, which has ended."""
        with self._guard:
            for tracking in self._tracking.values():
                tracking.discard(connection)
            for wait in [wait for lock in self._locks.values() for wait in lock.queue]:
                if wait.connection is connection:
                    self._leave(wait)

    def answer(self, connection: Connection, words: list[bytes]) -> None:
        """Executes a command, and sends the reply unless the request waits."""
        with self._guard:
            self.tick()
            try:
                reply = self._do(connection, words[0].upper().decode(), words[1:])
            except ReplyError as error:
                reply = error
            if reply is not _LATER:
                connection.send(reply)

    def next_due(self) -> float:
        """Returns the next time at which a lease or a wait ends."""
        with self._guard:
            dues = [hold.until for lock in self._locks.values() for hold in lock.holds.values()]
            dues += [wait.until for lock in self._locks.values() for wait in lock.queue]
        return min(dues, default=math.inf)

    # The commands.

    def _do(self, connection: Connection, command: str, words: list[bytes]) -> Any:
        if command in ("HELLO", "SELECT", "CLIENT"):
            connection.tracks |= words[:2] == [b"TRACKING", b"ON"]
            modules = [{"name": "redislock", "ver": _version()}]
            return {"role": "master", "proto": 3, "modules": modules} if command == "HELLO" else "OK"
        if command == "LOCK.FENCE":
            return self.fence(connection, words[0], int(words[1]) if words[1:] else None)
        if command == "LOCK.INFO":
            return self._info(self._locks.get(words[0]))
        count = int(words.pop(0)) if command == "LOCK.MACQUIRE" else 1
        names, owner, options = words[:count], words[count], _options(words[count + 1 :])
        if options.get("PX", 0) > _LEASE_MOST:
            raise ReplyError(f"ERR PX must be an integer from 1 to {_LEASE_MOST} (milliseconds)")
        if command in ("LOCK.ACQUIRE", "LOCK.MACQUIRE"):
            return self._acquire(connection, names, owner, options)
        if command == "LOCK.RELEASE":
            return self._release(names[0], owner, options.get("TOKEN"))
        if command != "LOCK.RENEW" or "RAISE" in options:
            raise ReplyError(f"ERR redislock.testing has no {command} {' '.join(options)}")
        return self._renew(names[0], owner, options)

    def _acquire(self, connection: Connection, names: list[bytes], owner: bytes, options: dict[str, int]) -> Any:
        limit = options.get("LIMIT")
        mode: _Mode = ("shared" if "SHARED" in options else "limit" if limit else "exclusive", limit)
        locks, now, lease = [self._locks.setdefault(name, _Lock()) for name in names], clock(), options["PX"] / 1000
        for lock in locks:
            for other in lock.modes:
                if other[1] != limit:
                    kind = "exclusive or SHARED" if other[1] is None else f"LIMIT {other[1]}"
                    raise ReplyError(
                        f"LOCKKIND this lock is {kind} now; all its holders and waiters must use that kind"
                    )
        held = [lock.holds[owner] for lock in locks if owner in lock.holds]
        if held:
            return self._again(names, held, mode, now + lease)
        waits = bool({"QUEUE", "BLOCK"} & options.keys())
        its = [wait for lock in locks for wait in lock.queue if wait.owner == owner]
        is_another = any((wait.mode, set(wait.names)) != (mode, set(names)) for wait in its)
        if is_another and waits:
            self._drop_waits(names, owner)  # which loses the position
        # A request that does not wait stays behind its owner's wait in another mode.
        if (waits or not is_another) and all(lock.fits(owner, mode) for lock in locks):
            self._drop_waits(names, owner)
            return self._grant(names, owner, mode, lease)
        if not waits:
            return None
        until = now + options.get("QUEUE", options.get("BLOCK", 0)) / 1000
        wait = _Wait(owner, mode, names, lease, now, until, connection if "BLOCK" in options else None)
        self._refuse_deadlock(wait)
        self._queue(wait)
        return _LATER if wait.connection else None

    def _again(self, names: list[bytes], held: list[_Hold], mode: _Mode, until: float) -> int:
        """The same owner asks again: it gets the same token, and the longer lease."""
        had = {(hold.token, hold.mode) for hold in held}
        is_lowered = len(names) == 1 and held[0].mode[0] == "exclusive"  # a writer may go on as a reader
        if len(held) < len(names) or len(had) > 1 or not (held[0].mode == mode or is_lowered):
            raise ReplyError(
                f"LOCKHELD '{_text(names[0])}' is held by this owner already, but not in the requested way: release "
                "every key that this request names, then ask again"
            )
        for hold in held:
            hold.mode, hold.until = mode, max(hold.until, until)
        for name in names:
            self._changed(name)
        return held[0].token

    def _grant(self, names: list[bytes], owner: bytes, mode: _Mode, lease: float) -> int:
        token, now = next(self._tokens), clock()
        for name in names:
            self._locks[name].holds[owner] = _Hold(owner, mode, token, now, now + lease)
        for name in names:
            self._changed(name)
        return token

    def _queue(self, wait: _Wait) -> None:
        """Begins a wait, or takes over the position that its owner has."""
        older = [each for each in self._locks[wait.names[0]].queue if each.owner == wait.owner]
        for each in older[:1]:
            wait.since = each.since
            if each.connection is not None:
                text = "UNBLOCKED a newer request of the same owner took over this place in the queue"
                each.connection.send(ReplyError(text))
        for name in wait.names:
            queue = self._locks[name].queue
            at = next((place for place, each in enumerate(queue) if each.owner == wait.owner), len(queue))
            queue[at : at + 1] = [wait]

    def _refuse_deadlock(self, wait: _Wait) -> None:
        """Refuses a wait that would never end, because the owners that it waits for wait for its owner."""

        def chain(each: _Wait, seen: tuple[bytes, ...]) -> list[str]:
            for name in each.names:
                lock = self._locks[name]
                if each.mode[1] is not None or lock.fits(each.owner, each.mode):
                    continue
                for other in lock.blockers(each.owner):
                    told = f"'{_text(each.owner)}' waits for '{_text(name)}' and there for '{_text(other.owner)}'"
                    if other.owner == wait.owner:
                        return [told]
                    its = [] if other.owner in seen else self._waits_of(other.owner)
                    rests = [chain(one, (*seen, other.owner)) for one in its]
                    if rests and all(rests):  # it continues if any of its waits ends
                        return [told, *rests[0]]
            return []

        rest = [one for one in self._waits_of(wait.owner) if one.names != wait.names]
        if (cycle := chain(wait, (wait.owner,))) and all(chain(one, (wait.owner,)) for one in rest):
            raise ReplyError(f"DEADLOCK this wait would never end: {', '.join(cycle)}")

    def _waits_of(self, owner: bytes) -> list[_Wait]:
        return [wait for lock in self._locks.values() for wait in lock.queue if wait.owner == owner]

    def _renew(self, name: bytes, owner: bytes, options: dict[str, int]) -> int:
        hold = self._hold_of(name, owner, options.get("TOKEN"))
        if hold is None:
            return 0
        hold.until = clock() + options["PX"] / 1000
        self._changed(name)
        return 1

    def _release(self, name: bytes, owner: bytes, token: int | None) -> int:
        self._drop_waits([name], owner)
        if self._hold_of(name, owner, token) is None:
            return 0
        del self._locks[name].holds[owner]
        self._changed(name)
        return 1

    def _hold_of(self, name: bytes, owner: bytes, token: int | None) -> _Hold | None:
        lock = self._locks.get(name)
        hold = lock.holds.get(owner) if lock else None
        return hold if hold is not None and token in (None, hold.token) else None

    def fence(self, connection: Connection | None, name: bytes, token: int | None) -> int | None:
        with self._guard:
            if connection is not None and connection.tracks:
                self._tracking.setdefault(name, set()).add(connection)
            lock = self._locks.get(name)
            tokens = [hold.token for hold in lock.holds.values()] if lock else []
            return max(tokens, default=None) if token is None else int(token in tokens)

    def _info(self, lock: _Lock | None) -> dict[str, Any] | None:
        if lock is None or not lock.modes:
            return None
        now, (kind, limit) = clock(), lock.modes[0]
        holders = [
            {
                "owner": hold.owner,
                "token": hold.token,
                "lease-left-ms": math.ceil((hold.until - now) * 1000),
                "held-ms": int((now - hold.granted) * 1000),
            }
            for hold in itertools.islice(lock.holds.values(), 10)
        ]
        queue = [{"owner": wait.owner, "waited-ms": int((now - wait.since) * 1000)} for wait in lock.queue[:10]]
        counts = {"holds": len(lock.holds), "waiters": len(lock.queue)}
        return {"kind": kind, "limit": limit, "holders": holders, "queue": queue, **counts}

    # The consequences of a change.

    def tick(self) -> None:
        """Ends the leases and waits whose time is up."""
        with self._guard:
            now = clock()
            for name, lock in list(self._locks.items()):
                over = [hold for hold in lock.holds.values() if hold.until <= now]
                for hold in over:
                    del lock.holds[hold.owner]
                for wait in [wait for wait in lock.queue if wait.until <= now]:
                    self._leave(wait)
                if over:
                    self._changed(name)
                if not lock.modes:
                    self._locks.pop(name, None)

    def _drop_waits(self, names: list[bytes], owner: bytes) -> None:
        for wait in [wait for name in names if name in self._locks for wait in self._locks[name].queue]:
            if wait.owner == owner:
                self._leave(wait)

    def _leave(self, wait: _Wait) -> None:
        """Ends a wait without a grant, which may admit others."""
        self._unqueue(wait)
        if wait.connection is not None:
            wait.connection.send(None)
        for name in wait.names:
            self._changed(name)

    def _unqueue(self, wait: _Wait) -> None:
        for name in wait.names:
            if (lock := self._locks.get(name)) is not None and wait in lock.queue:
                lock.queue.remove(wait)

    def _changed(self, name: bytes) -> None:
        """Grants to blocked requests whose turn it is, and notifies the clients that track this lock."""
        for connection in self._tracking.pop(name, set()):
            connection.send(Push(["invalidate", [name]]))
        lock = self._locks.get(name)
        for wait in list(lock.queue) if lock else []:
            if wait.connection is not None and all(
                self._locks[each].fits(wait.owner, wait.mode) for each in wait.names
            ):
                self._unqueue(wait)
                wait.connection.send(self._grant(wait.names, wait.owner, wait.mode, wait.lease))
                return  # and has come here again


class Connection:
    """One end of a connection to an in-process server."""

    def __init__(self, table: Table) -> None:
        self.table, self._parser, self.tracks = table, Parser(), False

    def send(self, reply: Any) -> None:
        """Sends this to the client."""
        raise NotImplementedError

    def feed(self, data: bytes) -> None:
        for words in self._parser.feed(data):
            self.table.answer(self, words)


def _version() -> int:
    from . import __version__  # noqa: PLC0415  # which imports this package's modules itself

    major, minor, patch = (int(part) for part in __version__.split(".")[:3])
    return major * 10_000 + minor * 100 + patch


def _text(word: bytes) -> str:
    return word.decode(errors="replace")


def _options(words: list[bytes]) -> dict[str, int]:
    """The options of a command, with their numbers."""
    found, rest = {}, iter(words)
    for word in rest:
        name = word.decode()
        found[name] = 1 if name == "SHARED" else int(next(rest))
    return found


def _parts(value: Any) -> Iterator[Any]:
    return itertools.chain.from_iterable(value.items()) if isinstance(value, dict) else iter(value)


def packed(value: Any) -> bytes:
    """Encodes a reply in RESP3."""
    if value is None:
        return b"_\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, ReplyError):
        return b"-%b\r\n" % str(value).encode()
    if isinstance(value, str | bytes):
        data = value if isinstance(value, bytes) else value.encode()
        return b"$%d\r\n%b\r\n" % (len(data), data)
    sign = b"%" if isinstance(value, dict) else b">" if isinstance(value, Push) else b"*"
    return b"%b%d\r\n" % (sign, len(value)) + b"".join(packed(part) for part in _parts(value))
