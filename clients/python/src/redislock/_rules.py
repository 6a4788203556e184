"""The decisions, without input or output: commands, deadlines, and what follows from a reply.

The sync and the asyncio client share them.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import re
import socket
import threading
import time
import uuid
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from ._resp import Command, ReplyError

#: The oldest module that has all that this library asks for, as HELLO tells versions: 300 is 0.3.0.
MODULE_VERSION_MIN = 300

#: Seconds that a hold lasts unless it is renewed.
LEASE = 30.0
#: The shortest lease, in seconds: it leaves time for a renewal, and 0.03 is more likely a mistake.
SHORTEST_LEASE = 0.1
#: The lock that a ping reads.
PING = "redislock:ping"
#: The longest owner, in bytes.
OWNER_MOST = 256
#: The highest token.
TOKEN_MOST = 2**53 - 1
#: The part of a lease that a holder does not count on, for clocks that run at different speeds.
DRIFT = 0.01
#: Seconds that it does not count on beside that.
MARGIN = 0.002
#: A hold is renewed when this part of its lease is over, or up to a tenth of that time earlier, at random.
RENEW_AT, EARLIER = 1 / 3, 0.1
#: Most waiters of a process that stand in the line of one lock; the others stand behind them in the process. So a
#: process with a thousand waiters does not keep another one out. Also the most connections that wait (BLOCK).
WAITING = 16
#: Seconds that closing takes at most, whatever is held.
CLOSE = 5.0
#: Seconds beyond its wait after which a request that is not answered fails.
WAIT_MARGIN = 2.0
#: Seconds for which a server may be out of reach, where a wait has no end.
PATIENCE = 10.0
#: Seconds after which a request that is not answered is sent again, over a new connection.
ATTEMPT = 2.0
#: Seconds in which it must be told who holds a lock, for an error that says so.
LOOK = 0.5
#: Seconds after which a request that was not answered is no longer expected to reach the server.
DOUBT = 30.0
#: Milliseconds for which a place in line is kept for a client that does not ask again, and how often it asks in them.
KEEP_MS = 5000
ASKS_IN_KEEP = 3
#: How long a wait without an end keeps its connections, or stands behind others of its process without asking.
LONG = 60.0
#: A token that no hold ever has: a release with it ends a wait, and no hold.
NOBODYS = 1
#: Milliseconds of the first lease of a client that waited: one that dies before it renews holds up others no longer.
FIRST_LEASE_MS = 5000
#: Seconds from a grant until the server is asked to tell of its end: most holds are over before.
WATCH_AFTER = 0.02
#: The longest that the scheduler sleeps while something is held.
NAP = 1.0
#: Seconds after which a leader whose work has failed stands again: others come first.
AFTER_FAILURE = 1.0
#: Seconds between two attempts, and at most, for they double.
PAUSE, LONGEST_PAUSE = 0.01, 0.25

Kind = Literal["exclusive", "read", "semaphore"]
Name = str | bytes
Address = tuple[str, int]


def clock() -> float:
    """Seconds on a clock that nobody sets and that goes on while the machine sleeps, if there is one."""
    return time.clock_gettime(_CLOCK) + _ahead


def move_clock(seconds: float) -> None:
    """Lets the clock of all locks of this process be ahead by that, for tests."""
    global _ahead
    _ahead += seconds


_ahead = 0.0

_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", 1))
_HOST = socket.gethostname()


def new_owner(label: str = "") -> bytes:
    """An owner that nobody had before, and that tells an operator who it is."""
    return f"{label or f'{_HOST}:{os.getpid()}'}:{uuid.uuid4()}".encode()[-OWNER_MOST:]


def running() -> tuple[int, int]:
    """Something that tells threads, and tasks in them, from each other for as long as they last."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        task = None
    return threading.get_ident(), id(task)


def deadline(sent: float, lease: float) -> float:
    """Until when a hold is sure to last, if the request was sent then."""
    return sent + lease - (lease * DRIFT + MARGIN)


def renewal(sent: float, lease: float) -> float:
    """When a lease is renewed that counts from then. Holds that began together are not renewed together for ever."""
    return sent + lease * RENEW_AT * (1 - random.uniform(0, EARLIER))


def left_of(wait: float | None, began: float) -> float:
    """The seconds that are left of a wait that began then."""
    return math.inf if wait is None else began + wait - clock()


def ask_until(wait: float | None, began: float) -> float:
    """Until when a request of a wait that began then is repeated where no server answers."""
    return math.inf if wait is None else began + wait + WAIT_MARGIN


def check_seconds(name: str, value: object, least: float = 0.0) -> None:
    """Refuses what is no time, under this name."""
    text = f"{name} must be a number of seconds, {least:g} or more and finite, not {value!r}"
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise TypeError(text)
    if math.isinf(value) or value < least:
        raise ValueError(text)


def check_lease(lease: float) -> None:
    """Refuses a lease that is none, or too short to be renewed."""
    check_seconds("lease", lease, SHORTEST_LEASE)


def check_whole(name: str, value: object, least: int, most: int) -> None:
    """Refuses what is no whole number from `least` to `most`."""
    text = f"{name} must be a whole number from {least} to {most:,}, not {value!r}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(text)
    if not least <= value <= most:
        raise ValueError(text)


def as_bytes(name: Name, what: str = "the name of a lock") -> bytes:
    """A name as the server knows it."""
    if not isinstance(name, bytes | str):
        raise TypeError(f"{what} must be str or bytes, not {name!r}")
    if not name:
        raise ValueError(f"{what} must not be empty")
    return name if isinstance(name, bytes) else name.encode()


def shown(name: Name) -> str:
    """A name for people to read."""
    return name if isinstance(name, str) else name.decode(errors="replace")


def milliseconds(seconds: float) -> int:
    """A lease or a wait as the server wants it, at least one."""
    return max(1, round(seconds * 1000))


@dataclass(eq=False)
class Wanted:
    """What one acquire asks for, with an owner of its own."""

    names: tuple[bytes, ...]
    lease: float = LEASE
    kind: Kind = "exclusive"
    limit: int | None = None
    owner: bytes = field(default_factory=new_owner)
    #: What an owner of its own begins with; and how long the part of each name is that the user did not give.
    label: str = ""
    prefixed: int = 0
    #: Milliseconds of the lease at most that a request asks for after a wait.
    first_ms: int = FIRST_LEASE_MS
    #: Whether the program names the owner, which may hold something besides.
    is_named: bool = False
    #: The thread and the task that asks.
    by: tuple[int, int] = field(default_factory=running)
    #: Until when a request that went unanswered may reach the server.
    doubtful_until: float = field(default=0.0, init=False)
    #: Whether the latest request is on its way, or was granted.
    is_grantable: bool = field(default=False, init=False)
    #: The request that stands for this one: each attempt at independent servers has an owner of its own.
    attempt: Wanted | None = field(default=None, init=False)
    #: What gives up, for a name, whatever it got or may still get.
    given_up: list[tuple[bytes, asyncio.Task[None]]] = field(default_factory=list, init=False)
    #: Until when the lock stays taken whatever becomes of the hold (min_hold).
    parked_until: float = field(default=0.0, init=False)

    @property
    def name(self) -> str:
        """The name of the lock, or of the first of several, for people to read."""
        return self.names[0][self.prefixed :].decode(errors="replace")

    @property
    def all_names(self) -> str:
        """The names of all locks, for people to read."""
        return ", ".join(name[self.prefixed :].decode(errors="replace") for name in self.names)

    @property
    def is_doubtful(self) -> bool:
        """Whether a request that went unanswered may reach the server still."""
        return clock() < self.doubtful_until

    def hears(self, reply: object) -> None:
        """Notes what was answered to the latest request."""
        is_refused = isinstance(reply, ReplyError) and not str(reply).startswith("NOREPLICAS")  # then it may be held
        self.is_grantable = not (reply is None or is_refused)

    def doubt(self) -> None:
        """Notes that a request was not answered."""
        self.doubtful_until = clock() + DOUBT

    def inherit_doubt(self, of: Wanted) -> None:
        """Takes over an older request's doubt: what may still arrive of that one is to be given up with this one."""
        self.doubtful_until = max(self.doubtful_until, of.doubtful_until)

    def acquire(self, *, lease_ms: int = 0, queue_ms: int = 0, block_ms: int | None = None) -> Command:
        """Takes the lock or all of the locks, waits, or keeps a place in line."""
        lease = ("PX", lease_ms or milliseconds(self.lease))
        wait: Command = ("QUEUE", queue_ms) if queue_ms else () if block_ms is None else ("BLOCK", block_ms)
        mode: Command = ("SHARED",) if self.kind == "read" else ()
        if len(self.names) > 1:
            return ("LOCK.MACQUIRE", len(self.names), *self.names, self.owner, *lease, *wait, *mode)
        if self.limit is not None:
            mode = ("LIMIT", self.limit)
        return ("LOCK.ACQUIRE", self.names[0], self.owner, *lease, *wait, *mode)

    def renew(self, name: bytes, token: int, which: str = "TOKEN", lease: float | None = None) -> Command:
        """Begins the lease anew."""
        return ("LOCK.RENEW", name, self.owner, "PX", milliseconds(lease or self.lease), which, token)

    def release(self, name: bytes, token: int | None = None) -> Command:
        """Gives up the hold; without a token, the place in line too. Leaves it a lease for the rest of min_hold."""
        if token not in (None, NOBODYS) and (parked := self.parked_until - clock()) > 0:
            return ("LOCK.RENEW", name, self.owner, "PX", math.ceil(parked * 1000), "TOKEN", token)
        which: Command = () if token is None else ("TOKEN", token)
        return ("LOCK.RELEASE", name, self.owner, *which)


@dataclass(frozen=True)
class Grant:
    """What was had: the token, and when the request that got it was sent."""

    token: int
    sent: float


class Step(Enum):
    """What a client does next when the server replied an error."""

    FAIL = "fail"
    AGAIN = "again"  # after a pause, at the server that is the primary then
    MOVED = "moved"
    ASK = "ask"


@dataclass(frozen=True)
class Verdict:
    """A step, and the address that the server named."""

    step: Step
    slot: int = -1
    address: Address = ("", 0)


_AGAIN = ("READONLY", "UNBLOCKED", "LOADING", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN")
_PASSING = ("NOREPLICAS", "MISCONF", "OOM", "BUSY ", "ERR max number of clients", *_AGAIN)
_REDIRECTION = re.compile(r"(MOVED|ASK) (\d+) (.*):(\d+)$")
_RANGE = re.compile(r"ERR (QUEUE|BLOCK) must be an integer from \d+ to (\d+)")


def judge(text: str) -> Verdict:
    """What follows from an error of the server."""
    if found := _REDIRECTION.match(text):
        word, slot, host, port = found.groups()
        return Verdict(Step.MOVED if word == "MOVED" else Step.ASK, int(slot), (host, int(port)))
    return Verdict(Step.AGAIN if text.partition(" ")[0] in _AGAIN else Step.FAIL)


def may_pass(text: str) -> bool:
    """Whether what is refused with this error may be done a little later, though nothing else is asked."""
    return text.startswith(_PASSING)


def is_overwritten(text: str) -> bool:
    """Whether this error says that another value stands where a lock was."""
    return text.startswith("WRONGTYPE")


def longest_wait_ms(text: str) -> int | None:
    """The longest wait that this server allows (redislock.max-wait), if this error tells it."""
    found = _RANGE.match(text)
    return int(found.group(2)) if found else None
