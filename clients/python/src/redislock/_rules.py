"""The decisions, without I/O: commands, deadlines, and the consequences of a reply.

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
from typing import Literal, NamedTuple

from ._resp import Command, ReplyError

#: The oldest module that has everything this library needs, in the form that HELLO reports versions: 300 is 0.3.0.
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
#: The share of a lease that a holder does not rely on, because clocks run at different speeds.
DRIFT = 0.01
#: Additional seconds that it does not rely on.
MARGIN = 0.002
#: A hold is renewed after this share of its lease, or up to a tenth of that time earlier, at random.
RENEW_AT, EARLIER = 1 / 3, 0.1
#: The most waiters of a process in the server's queue of one lock. Further ones wait in the process, so a process with
#: a thousand waiters does not shut out another one. Also the most connections that wait (BLOCK).
WAITING = 16
#: The most seconds that closing takes, whatever is held.
CLOSE = 5.0
#: Seconds after the end of its wait at which an unanswered request fails.
WAIT_MARGIN = 2.0
#: Seconds for which a server may be unreachable during an unlimited wait.
PATIENCE = 10.0
#: Seconds after which an unanswered request is sent again, over a new connection.
ATTEMPT = 2.0
#: Seconds to find out who holds a lock, for an error that says so.
LOOK = 0.5
#: Seconds after which an unanswered request is no longer expected to reach the server.
DOUBT = 30.0
#: Milliseconds for which the server keeps a client's queue position, and the number of requests in that time.
KEEP_MS = 5000
ASKS_IN_KEEP = 3
#: Seconds for which an unlimited wait keeps its connections, or waits in its process without asking.
LONG = 60.0
#: A token that no hold ever has. A release with it ends a wait but no hold.
NOBODYS = 1
#: The first lease of a client that waited, in milliseconds: if the client dies before it renews, others wait no longer.
FIRST_LEASE_MS = 5000
#: Seconds from a grant until the client subscribes to its end: most holds end earlier.
WATCH_AFTER = 0.02
#: The longest sleep of the scheduler while something is held.
NAP = 1.0
#: Seconds after which a leader whose work has failed stands again, so that others come first.
AFTER_FAILURE = 1.0
#: The first pause between two attempts, and the longest, since pauses double.
PAUSE, LONGEST_PAUSE = 0.01, 0.25

Kind = Literal["exclusive", "read", "semaphore"]
Name = str | bytes
Address = tuple[str, int]


def clock() -> float:
    """Returns seconds on a clock that cannot be set and that counts the time of sleep, if there is one."""
    return time.clock_gettime(_CLOCK) + _ahead


def move_clock(seconds: float) -> None:
    """Advances the clock of all locks of this process, for tests."""
    global _ahead
    _ahead += seconds


_ahead = 0.0

_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", 1))
_HOST = socket.gethostname()


def new_owner(label: str = "") -> bytes:
    """Returns a new, unique owner that identifies the process for operators."""
    return f"{label or f'{_HOST}:{os.getpid()}'}:{uuid.uuid4()}".encode()[-OWNER_MOST:]


def running() -> tuple[int, int]:
    """Identifies the running thread and task, for as long as they live."""
    task = None if asyncio._get_running_loop() is None else asyncio.current_task()
    return threading.get_ident(), id(task)


def deadline(sent: float, lease: float) -> float:
    """Returns the time until which a hold certainly lasts, if the request was sent then."""
    return sent + lease - (lease * DRIFT + MARGIN)


def renewal(sent: float, lease: float) -> float:
    """Returns the time to renew a lease that started then. Random offsets spread holds that began together."""
    return sent + lease * RENEW_AT * (1 - EARLIER * random.random())


def left_of(wait: float | None, began: float) -> float:
    """Returns the seconds that are left of a wait that began then."""
    return math.inf if wait is None else began + wait - clock()


def ask_until(wait: float | None, began: float) -> float:
    """Returns the time until which a request of a wait that began then is repeated if no server answers."""
    return math.inf if wait is None else began + wait + WAIT_MARGIN


def check_seconds(name: str, value: object, least: float = 0.0) -> None:
    """Refuses anything but a number of seconds, with the argument's name in the error."""
    if isinstance(value, int | float) and not isinstance(value, bool) and least <= value < math.inf:
        return
    text = f"{name} must be a number of seconds, {least:g} or more and finite, not {value!r}"
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise TypeError(text)
    raise ValueError(text)


def check_lease(lease: float) -> None:
    """Refuses a lease that is not a number, or too short to be renewed."""
    check_seconds("lease", lease, SHORTEST_LEASE)


def check_whole(name: str, value: object, least: int, most: int) -> None:
    """Refuses anything but a whole number from `least` to `most`."""
    text = f"{name} must be a whole number from {least} to {most:,}, not {value!r}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(text)
    if not least <= value <= most:
        raise ValueError(text)


def as_bytes(name: Name, what: str = "the name of a lock") -> bytes:
    """Returns a name as the server knows it."""
    if not isinstance(name, bytes | str):
        raise TypeError(f"{what} must be str or bytes, not {name!r}")
    if not name:
        raise ValueError(f"{what} must not be empty")
    return name if isinstance(name, bytes) else name.encode()


def shown(name: Name) -> str:
    """Returns a name for people to read."""
    return name if isinstance(name, str) else name.decode(errors="replace")


def milliseconds(seconds: float) -> int:
    """Converts a lease or a wait to whole milliseconds, at least one."""
    return max(1, round(seconds * 1000))


@dataclass(eq=False)
class Wanted:
    """The request of one acquire, with an owner of its own."""

    names: tuple[bytes, ...]
    lease: float = LEASE
    kind: Kind = "exclusive"
    limit: int | None = None
    owner: bytes = field(default_factory=new_owner)
    #: The label of its owner, and the length of the prefix that was added to each of the user's names.
    label: str = ""
    prefixed: int = 0
    #: The longest lease that a request asks for after a wait, in milliseconds.
    first_ms: int = FIRST_LEASE_MS
    #: True if the program names the owner, which may then hold other locks.
    is_named: bool = False
    #: The thread and the task that asks.
    by: tuple[int, int] = field(default_factory=running)
    #: The time until which an unanswered request may reach the server.
    doubtful_until: float = field(default=0.0, init=False)
    #: True if the latest request is in flight, or was granted.
    is_grantable: bool = field(default=False, init=False)
    #: The request that currently represents this one: each attempt at independent servers has its own owner.
    attempt: Wanted | None = field(default=None, init=False)
    #: The tasks that release, for a name, all that it got or may still get.
    given_up: list[tuple[bytes, asyncio.Task[None]]] = field(default_factory=list, init=False)
    #: The time until which the lock stays taken, whatever happens to the hold (min_hold).
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
        """True if an unanswered request may still reach the server."""
        return clock() < self.doubtful_until

    def hears(self, reply: object) -> None:
        """Records the answer to the latest request."""
        is_refused = isinstance(reply, ReplyError) and not str(reply).startswith("NOREPLICAS")  # then it may be held
        self.is_grantable = not (reply is None or is_refused)

    def doubt(self) -> None:
        """Records that a request was not answered."""
        self.doubtful_until = clock() + DOUBT

    def inherit_doubt(self, of: Wanted) -> None:
        """Inherits an older request's doubt: grants of that one which may still arrive are released with this one."""
        self.doubtful_until = max(self.doubtful_until, of.doubtful_until)

    def acquire(self, *, lease_ms: int = 0, queue_ms: int = 0, block_ms: int | None = None) -> Command:
        """Acquires the lock or all of the locks, waits, or keeps a queue position."""
        lease = ("PX", lease_ms or milliseconds(self.lease))
        wait: Command = ("QUEUE", queue_ms) if queue_ms else () if block_ms is None else ("BLOCK", block_ms)
        mode: Command = ("SHARED",) if self.kind == "read" else ()
        if len(self.names) > 1:
            return ("LOCK.MACQUIRE", len(self.names), *self.names, self.owner, *lease, *wait, *mode)
        if self.limit is not None:
            mode = ("LIMIT", self.limit)
        return ("LOCK.ACQUIRE", self.names[0], self.owner, *lease, *wait, *mode)

    def renew(self, name: bytes, token: int, which: str = "TOKEN", lease: float | None = None) -> Command:
        """Starts a new lease."""
        return ("LOCK.RENEW", name, self.owner, "PX", milliseconds(lease or self.lease), which, token)

    def release(self, name: bytes, token: int | None = None) -> Command:
        """Releases the hold; without a token, also ends the wait. Leaves it a lease for the rest of min_hold."""
        if token not in (None, NOBODYS) and (parked := self.parked_until - clock()) > 0:
            return ("LOCK.RENEW", name, self.owner, "PX", math.ceil(parked * 1000), "TOKEN", token)
        which: Command = () if token is None else ("TOKEN", token)
        return ("LOCK.RELEASE", name, self.owner, *which)


class Grant(NamedTuple):
    """A grant: the token, and the time when its request was sent."""

    token: int
    sent: float


class Step(Enum):
    """The client's next step after an error reply."""

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
    """Decides the next step after an error of the server."""
    if found := _REDIRECTION.match(text):
        word, slot, host, port = found.groups()
        return Verdict(Step.MOVED if word == "MOVED" else Step.ASK, int(slot), (host, int(port)))
    return Verdict(Step.AGAIN if text.partition(" ")[0] in _AGAIN else Step.FAIL)


def may_pass(text: str) -> bool:
    """Returns whether this error is temporary, so that the same request may succeed a little later."""
    return text.startswith(_PASSING)


def is_overwritten(text: str) -> bool:
    """Returns whether this error says that another value replaced a lock."""
    return text.startswith("WRONGTYPE")


def longest_wait_ms(text: str) -> int | None:
    """Returns the longest wait that this server allows (redislock.max-wait), if the error names it."""
    found = _RANGE.match(text)
    return int(found.group(2)) if found else None
