"""What can go wrong. All are errors of the driver, too: of redis-py, and of valkey-py where it is installed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ._rules import SHORTEST_LEASE, Address

if TYPE_CHECKING:
    from redis.exceptions import ConnectionError as _ConnectionError
    from redis.exceptions import LockError as _LockError
    from redis.exceptions import LockNotOwnedError as _NotOwned
    from redis.exceptions import ResponseError as _ResponseError

    from ._info import Info
else:

    def _of_drivers(name: str) -> type:
        """A class that is an error of this name of each driver that is installed."""
        found = []
        for driver in ("redis", "valkey"):
            try:
                module = __import__(f"{driver}.exceptions", fromlist=[name])
            except ImportError:
                continue
            found.append(getattr(module, name))
        return type(name, tuple(found), {})

    _LockError, _NotOwned = _of_drivers("LockError"), _of_drivers("LockNotOwnedError")
    _ConnectionError, _ResponseError = _of_drivers("ConnectionError"), _of_drivers("ResponseError")


class RedislockError(_LockError):
    """The base of all errors of this library."""

    #: The name of the lock, or the names of all; and the server that has said so, or nothing.
    lock: str = ""
    host: str = ""
    port: int = 0

    def __init__(self, message: str = "", **attributes: Any) -> None:
        Exception.__init__(self, message)
        self.message: str = message
        for name, value in attributes.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r})"


class LockTimeoutError(RedislockError):
    """The lock could not be acquired in time. `info`: who holds it and since when, where it waited and may ask."""

    info: Info | None = None


class LockLostError(RedislockError, _NotOwned):
    """The hold is over, though its holder did not give it up.

    `reason` is what noticed it: deadline, max_hold, renewal, push, release, close or fork.
    """

    reason: str = ""
    token: int = 0


class ConnectionFailedError(RedislockError, _ConnectionError):
    """No server answered in time."""


class LocksClosedError(RedislockError):
    """The locks were closed."""


class ServerRefusedError(RedislockError, _ResponseError):
    """The server refused the command, for a reason that has no class of its own."""


class DeadlockError(RedislockError, _ResponseError):
    """The wait would never end. `cycle`: who waits for which lock and there for whom, as the server says it."""

    cycle: tuple[tuple[str, str, str], ...] = ()


class AlreadyHeldError(DeadlockError):
    """The thread or task that asks for the lock holds it itself."""


class FencedError(ServerRefusedError):
    """The fencing token belongs to no live hold of the lock."""


class LockKindMismatchError(ServerRefusedError):
    """The lock is of another kind now: exclusive or shared, or a semaphore with another limit."""


class QueueFullError(ServerRefusedError):
    """Too many wait already."""


class QuarantineError(ServerRefusedError):
    """The server grants no new lock yet. `left`: for how many seconds it will not."""

    left: float = 0.0


class NotConfirmedError(ServerRefusedError):
    """Too few replicas confirmed the grant: the owner may or may not hold the lock."""


class ModuleMissingError(ServerRefusedError):
    """The server does not know the commands of redislock."""


_CYCLE = re.compile(r"'(.*?)' waits for '(.*?)' and there for '(.*?)'")
_LEASE = re.compile(r"ERR PX must be an integer from \d+ to (\d+)")
_KINDS: dict[str, type[ServerRefusedError]] = {
    "LOCKKIND": LockKindMismatchError,
    "LOCKQUEUE": QueueFullError,
    "FENCED": FencedError,
    "NOREPLICAS": NotConfirmedError,
}


@contextlib.contextmanager
def about(lock: str) -> Iterator[None]:
    """Adds the name of the lock to an error that has none."""
    try:
        yield
    except RedislockError as error:
        if not error.lock:
            error.lock, error.message = lock, f"{error.message} (lock {lock!r})"
        raise


def translate(text: str, address: Address | None = None) -> ServerRefusedError | DeadlockError:
    """The error whose text this server has replied."""
    error = _translate(text)
    error.host, error.port = address or ("", 0)
    return error


def _translate(text: str) -> ServerRefusedError | DeadlockError:
    code, _, rest = text.partition(" ")
    if code == "DEADLOCK":
        return DeadlockError(text, cycle=tuple(_CYCLE.findall(rest)))
    if code == "LOCKHELD":
        return AlreadyHeldError(text)
    if code == "WRONGTYPE":
        text += (
            ": another client's value stands under this name. Choose another one, or a prefix; for the locks of older "
        )
        text += "clients set redislock.legacy-strings"
    if code == "QUARANTINE":
        left = rest.partition(" ")[0]
        return QuarantineError(text, left=int(left) / 1000 if left.isdigit() else 0.0)
    if code == "MOVED":
        return ServerRefusedError(
            f"{text}: this server is a node of a cluster. Give the locks a client of the cluster."
        )
    if text.lower().startswith("err unknown command"):
        known = text.partition(", with args")[0]  # what was asked for says nothing about this
        return ModuleMissingError(
            f"{known}. The module redislock is not loaded on this server: start it with "
            "'loadmodule /path/to/libredislock.so' in its configuration, or MODULE LOAD it once."
        )
    if found := _LEASE.match(text):  # the client has no other time with this name
        most = int(found.group(1)) / 1000
        text += (
            f". So a lease and min_hold are {SHORTEST_LEASE:g} to {most:g} seconds (redislock.max-lease of the server)."
        )
    return _KINDS.get(code, ServerRefusedError)(text)
