"""Acquires locks on Redis and Valkey servers that run the redislock module.

locks = redislock.Locks(redis.Redis())
with locks.lock("invoice:42", wait=5) as hold:
    print(hold.token)
"""

from ._info import Holder, Info, Waiter
from .aio import AsyncHold, AsyncLeader, AsyncLock, AsyncLocks
from .errors import (
    AlreadyHeldError,
    ConnectionFailedError,
    DeadlockError,
    FencedError,
    LockKindMismatchError,
    LockLostError,
    LocksClosedError,
    LockTimeoutError,
    ModuleMissingError,
    NotConfirmedError,
    QuarantineError,
    QueueFullError,
    RedislockError,
    ServerRefusedError,
)
from .hooks import Counters, Hooks
from .sync import Hold, Leader, Lock, Locks

__version__ = "0.3.0"
__all__ = [
    "AlreadyHeldError",
    "AsyncHold",
    "AsyncLeader",
    "AsyncLock",
    "AsyncLocks",
    "ConnectionFailedError",
    "Counters",
    "DeadlockError",
    "FencedError",
    "Hold",
    "Holder",
    "Hooks",
    "Info",
    "Leader",
    "Lock",
    "LockKindMismatchError",
    "LockLostError",
    "LockTimeoutError",
    "Locks",
    "LocksClosedError",
    "ModuleMissingError",
    "NotConfirmedError",
    "QuarantineError",
    "QueueFullError",
    "RedislockError",
    "ServerRefusedError",
    "Waiter",
]
