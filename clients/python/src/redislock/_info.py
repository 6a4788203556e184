"""Parses a server's information on a lock, on itself, and its version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .errors import ModuleMissingError


@dataclass(frozen=True)
class Holder:
    """An owner that holds a lock, with its token."""

    owner: str
    token: int
    #: The rest of the lease, and the time since the grant, in seconds.
    left: float
    held: float


@dataclass(frozen=True)
class Waiter:
    """An owner that waits for a lock, and its waiting time in seconds."""

    owner: str
    waited: float


@dataclass(frozen=True)
class Info:
    """The holders and the waiters of a lock."""

    kind: Literal["exclusive", "shared", "limit"]
    #: The number of permits of a semaphore; None for other kinds.
    limit: int | None
    #: The first ten holders, oldest token first, and the number of all holders.
    holders: tuple[Holder, ...]
    holds: int
    #: The first ten waiters, the next one first, and the number of all waiters.
    queue: tuple[Waiter, ...]
    waiters: int

    def __str__(self) -> str:
        owners = ", ".join(holder.owner for holder in self.holders[:3])
        return f"{owners} for {self.holders[0].held:.0f} s" if owners else "nobody"


def info_of(told: Any) -> Info | None:
    """Parses the reply of LOCK.INFO; None if the lock has neither holders nor waiters."""
    if not isinstance(told, dict):
        return None
    owner = [row[b"owner"].decode(errors="replace") for row in (*told[b"holders"], *told[b"queue"])]
    holders = tuple(
        Holder(owner.pop(0), row[b"token"], row[b"lease-left-ms"] / 1000, row[b"held-ms"] / 1000)
        for row in told[b"holders"]
    )
    queue = tuple(Waiter(owner.pop(0), row[b"waited-ms"] / 1000) for row in told[b"queue"])
    return Info(told[b"kind"].decode(), told[b"limit"], holders, told[b"holds"], queue, told[b"waiters"])


def module_version(told: Any) -> int | None:
    """Returns the module's version in the reply of HELLO, as 300 for 0.3.0; None if the server has no such module."""
    for module in told.get(b"modules", []) if isinstance(told, dict) else []:
        if module.get(b"name") == b"redislock":
            return int(module[b"ver"])
    return None


def shown_version(number: int) -> str:
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def version_of(told: Any, where: str) -> str:
    """Returns the module's version in the reply of HELLO."""
    if (number := module_version(told)) is None:
        raise ModuleMissingError(f"the module redislock is not loaded on {where}: start it with 'loadmodule'")
    return shown_version(number)
