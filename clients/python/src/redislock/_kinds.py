"""What Locks and AsyncLocks have in common: what their locks begin with, and a lock of each kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, Unpack

from . import hooks as _hooks
from ._options import Options
from ._rules import LEASE, WAITING, Kind, Name, check_lease
from ._settings import Settings, settings_of, settings_of_all

L = TypeVar("L")


class Kinds(ABC, Generic[L]):
    """Makes locks, which are of the class L."""

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
        self.hooks = hooks or _hooks.Hooks()
        self._settings: Settings | list[Settings]
        is_many = isinstance(client, list | tuple)
        self._settings = settings_of_all(client) if is_many else settings_of(client)

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
        return self._lock([name], "semaphore", limit, options)

    def many(self, names: Sequence[Name], *, shared: bool = False, **options: Unpack[Options]) -> L:
        """All of these locks or none, with one token; `shared`: beside other readers."""
        if isinstance(names, str | bytes):
            raise TypeError(f"many takes several names, not {names!r} alone")
        return self._lock(list(names), "read" if shared else "exclusive", None, options)
