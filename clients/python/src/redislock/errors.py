"""The errors of this library. They are also errors of the driver: of redis-py, and of valkey-py if it is installed."""

from __future__ import annotations

import re
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
        """Makes a class that derives from the error of this name of each installed driver."""
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

    #: The name of the lock, or of all locks that were asked for; and the server that replied, if any.
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
    """The lock was not granted in time. `info`: who holds it and since when, if it waited and the user may ask."""

    info: Info | None = None


class LockLostError(RedislockError, _NotOwned):
    """The hold ended before its release.

    `reason` says what noticed the loss: deadline, max_hold, renewal, push, release, close or fork.
    """

    reason: str = ""
    token: int = 0


class ConnectionFailedError(RedislockError, _ConnectionError):
    """No server answered in time."""


class LocksClosedError(RedislockError):
    """The locks are closed."""


class ServerRefusedError(RedislockError, _ResponseError):
    """Any other error of the server. The base class of the more specific ones."""


class DeadlockError(RedislockError, _ResponseError):
    """The wait would never end. `cycle`: which owner waits for which lock and holder, as the server reports it."""

    cycle: tuple[tuple[str, str, str], ...] = ()


class AlreadyHeldError(DeadlockError):
    """The thread or task that asks for the lock holds it itself."""


class FencedError(ServerRefusedError):
    """The token does not belong to a live hold of the lock."""


class LockKindMismatchError(ServerRefusedError):
    """The lock is of another kind now, or a semaphore with another limit."""


class QueueFullError(ServerRefusedError):
    """The queue of the lock, or of the server, is full."""


class QuarantineError(ServerRefusedError):
    """The server grants no new locks yet, because it may have lost some. `left`: for how many seconds more."""

    left: float = 0.0


class NotConfirmedError(ServerRefusedError):
    """Too few replicas confirmed the grant: the owner may or may not hold the lock."""


class ModuleMissingError(ServerRefusedError):
    """The server does not know the commands of the module."""


_CYCLE = re.compile(r"'(.*?)' waits for '(.*?)' and there for '(.*?)'")
_LEASE = re.compile(r"ERR PX must be an integer from \d+ to (\d+)")
#: The codes with an error of their own. Any other is a ServerRefusedError.
_KINDS: dict[str, type[ServerRefusedError | DeadlockError]] = {
    "LOCKKIND": LockKindMismatchError,
    "LOCKHELD": AlreadyHeldError,
    "LOCKQUEUE": QueueFullError,
    "DEADLOCK": DeadlockError,
    "FENCED": FencedError,
    "QUARANTINE": QuarantineError,
    "NOREPLICAS": NotConfirmedError,
}


class about:
    """Adds the name of the lock to an error that has none."""

    __slots__ = ("_lock",)

    def __init__(self, lock: str) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            add_lock(error, self._lock)


def add_lock(error: BaseException, lock: str) -> None:
    """Adds the name of the lock to an error of this library that has none."""
    if isinstance(error, RedislockError) and not error.lock:
        error.lock, error.message = lock, f"{error.message} (lock {lock!r})"


def translate(text: str, address: Address | None = None) -> ServerRefusedError | DeadlockError:
    """Returns the error for the text that this server replied."""
    error = _translate(text)
    error.host, error.port = address or ("", 0)
    return error


def _translate(text: str) -> ServerRefusedError | DeadlockError:
    code, _, rest = text.partition(" ")
    if code == "WRONGTYPE":
        text += (
            ": the key of this name holds another value, which is no lock. Choose another name, or a prefix; for locks "
        )
        text += "of older clients set redislock.legacy-strings"
    if code == "MOVED":
        return ServerRefusedError(f"{text}: this server is a node of a cluster. Pass a cluster client to the locks.")
    if text.lower().startswith("err unknown command"):
        known = text.partition(", with args")[0]  # the words of the request follow
        return ModuleMissingError(
            f"{known}. The module redislock is not loaded on this server: start it with "
            "'loadmodule /path/to/libredislock.so' in its configuration, or MODULE LOAD it once."
        )
    if found := _LEASE.match(text):  # the client has no other time with this name
        most = int(found.group(1)) / 1000
        text += (
            f". A lease and min_hold must be {SHORTEST_LEASE:g} to {most:g} seconds "
            "(the server's redislock.max-lease, or its redislock.quarantine if that is set and shorter)."
        )
    error = _KINDS.get(code, ServerRefusedError)(text)
    if isinstance(error, DeadlockError):
        error.cycle = tuple(_CYCLE.findall(rest))
    elif isinstance(error, QuarantineError):
        left = rest.partition(" ")[0]
        error.left = int(left) / 1000 if left.isdigit() else 0.0
    return error
