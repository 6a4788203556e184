"""One lock over several independent servers (Redlock, with tokens that are raised to be the group's own)."""

from __future__ import annotations

from .aio import AsyncLocks
from .sync import Locks


class Redlock(Locks):
    """Locks that a majority of independent servers grants: it takes a list, with a client for each of them."""

    _is_group = True


class AsyncRedlock(AsyncLocks):
    """Locks of asyncio that a majority of independent servers grants: it takes a list, with a client for each."""

    _is_group = True
