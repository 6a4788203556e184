"""What Locks and AsyncLocks have in common: what their locks begin with, and a lock of each kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar, Unpack

from . import hooks as _hooks
from ._hold import Local
from ._options import Options
from ._rules import ATTEMPT, LEASE, PATIENCE, WAITING, Kind, Name, check_lease, check_seconds, check_whole
from ._settings import Settings, settings_of, settings_of_all

L = TypeVar("L")
#: What the server takes as the most holders of a semaphore.
HIGHEST_LIMIT = 1_000_000


class Kinds(Local, ABC, Generic[L]):
    """Makes locks, which are of the class L."""

    #: Whether its clients are those of asyncio, and whether it takes several, of independent servers.
    _is_async, _is_group = False, False

    def __init__(
        self,
        client: Any,
        *,
        lease: float = LEASE,
        server_timeout: float = PATIENCE,
        max_queued_per_lock: int = WAITING,
        hooks: _hooks.Hooks | None = None,
    ) -> None:
        """
        client: one of redis-py or valkey-py. It says where the servers are and how to log in.

        lease: seconds that a hold lasts unless it is renewed.

        server_timeout: seconds for which no server may answer where a wait has no end.

        max_queued_per_lock: how many waiters of this process stand in the server's queue for a lock. The others stand
        behind them, in order. All share one connection to each server, but a wait for several locks at once has two.
        No more than this number of such waits are asked for at once.
        """
        check_lease(lease)
        check_seconds("server_timeout", server_timeout, ATTEMPT)
        check_whole("max_queued_per_lock", max_queued_per_lock, 1, HIGHEST_LIMIT)
        if hooks is not None and not isinstance(hooks, _hooks.Hooks):
            raise TypeError(f"hooks is an object of a class that derives from redislock.Hooks, not {hooks!r}")
        self.lease, self.hooks = lease, hooks or _hooks.Hooks()
        found = settings_of_all(client) if self._is_group else [settings_of(client)]
        for each in found:
            if each.login.is_async != self._is_async:
                kind, other = ("an asyncio", "Locks") if self._is_async else ("a blocking", "AsyncLocks")
                raise TypeError(
                    f"{type(self).__name__} takes {kind} client of redis-py or valkey-py; {other} takes the other"
                )
        made = [replace(each, server_timeout=server_timeout, max_queued=max_queued_per_lock) for each in found]
        self._settings: Settings | list[Settings] = made if self._is_group else made[0]
        self._is_closed = False
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Prepares for the first request."""

    @abstractmethod
    def _lock(self, names: Sequence[Name], kind: Kind, limit: int | None, options: Options) -> L:
        """A lock of these names."""

    def lock(self, name: Name, **options: Unpack[Options]) -> L:
        """An exclusive lock."""
        return self._lock([name], "exclusive", None, options)

    def read(self, name: Name, **options: Unpack[Options]) -> L:
        """A lock that is shared with other readers."""
        return self._lock([name], "read", None, options)

    def write(self, name: Name, **options: Unpack[Options]) -> L:
        """The lock that readers share, for a writer: one owner holds it alone."""
        return self._lock([name], "write", None, options)

    def semaphore(self, name: Name, limit: int, **options: Unpack[Options]) -> L:
        """One of `limit` permits. All who use the name must say the same limit."""
        check_whole("limit", limit, 1, HIGHEST_LIMIT)
        return self._lock([name], "semaphore", limit, options)

    def many(self, names: Sequence[Name], *, shared: bool = False, **options: Unpack[Options]) -> L:
        """All of these locks or none, with one token; `shared`: beside other readers."""
        if isinstance(names, str | bytes):
            raise TypeError(f"many takes several names, not {names!r} alone")
        return self._lock(list(names), "read" if shared else "exclusive", None, options)
