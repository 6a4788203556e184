"""Locks of Redis and Valkey servers that have the module redislock.

locks = redislock.Locks(redis.Redis())
with locks.lock("invoice:42", wait=5) as hold:
    print(hold.token)
"""

from .aio import AsyncHold, AsyncLeader, AsyncLock, AsyncLocks, AsyncRedlock
from .errors import (
    ConnectionFailed,
    Deadlock,
    Fenced,
    LockKindMismatch,
    LockLost,
    LockTimeout,
    ModuleMissing,
    NotConfirmed,
    Quarantine,
    QueueFull,
    RedislockError,
    ServerRefused,
)
from .hooks import Counters, Hooks
from .sync import Hold, Leader, Lock, Locks, Redlock

__version__ = "0.1.0"
__all__ = [
    "AsyncHold",
    "AsyncLeader",
    "AsyncLock",
    "AsyncLocks",
    "AsyncRedlock",
    "ConnectionFailed",
    "Counters",
    "Deadlock",
    "Fenced",
    "Hold",
    "Hooks",
    "Leader",
    "Lock",
    "LockKindMismatch",
    "LockLost",
    "LockTimeout",
    "Locks",
    "ModuleMissing",
    "NotConfirmed",
    "Quarantine",
    "QueueFull",
    "RedislockError",
    "Redlock",
    "ServerRefused",
]
