"""What Locks and AsyncLocks have in common: what their locks begin with, and a lock of each kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, Unpack

from . import hooks as _hooks
from ._hold import Local
from ._options import Options
from ._rules import LEASE, WAITING, Kind, Name, check_lease
from ._settings import Settings, settings_of, settings_of_all

L = TypeVar("L")
#: What the server takes as the most holders of a semaphore.
HIGHEST_LIMIT = 1_000_000


class Kinds(Local, ABC, Generic[L]):
    """Makes locks, which are of the class L."""

    #: Whether its clients are those of asyncio.
    _is_async = False

    def __init__(
        self,
        client: Any,
        *,
        lease: float = LEASE,
        waiting: int = WAITING,
        hooks: _hooks.Hooks | None = None,
    ) -> None:
        check_lease(lease)
        if isinstance(waiting, bool) or not isinstance(waiting, int):
            raise TypeError(f"waiting is a whole number, 1 or more, not {waiting!r}")
        if waiting < 1:
            raise ValueError(f"waiting is a whole number, 1 or more, not {waiting!r}")
        self.lease, self._waiting = lease, waiting
        if hooks is not None and not isinstance(hooks, _hooks.Hooks):
            raise TypeError(f"hooks is an object of a class that derives from redislock.Hooks, not {hooks!r}")
        self.hooks = hooks or _hooks.Hooks()
        self._settings: Settings | list[Settings]
        is_many = isinstance(client, list | tuple)
        self._settings = settings_of_all(client) if is_many else settings_of(client)
        for each in self._settings if isinstance(self._settings, list) else [self._settings]:
            if each.login.is_async != self._is_async:
                kind, other = ("an asyncio", "Locks") if self._is_async else ("a blocking", "AsyncLocks")
                raise TypeError(
                    f"{type(self).__name__} takes {kind} client of redis-py or valkey-py; {other} takes the other"
                )

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
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise TypeError(f"limit is a whole number from 1 to {HIGHEST_LIMIT:,}, not {limit!r}")
        if not 1 <= limit <= HIGHEST_LIMIT:
            raise ValueError(f"limit is a whole number from 1 to {HIGHEST_LIMIT:,}, not {limit!r}")
        return self._lock([name], "semaphore", limit, options)

    def many(self, names: Sequence[Name], *, shared: bool = False, **options: Unpack[Options]) -> L:
        """All of these locks or none, with one token; `shared`: beside other readers."""
        if isinstance(names, str | bytes):
            raise TypeError(f"many takes several names, not {names!r} alone")
        return self._lock(list(names), "read" if shared else "exclusive", None, options)
