"""Locks over several independent servers: Redlock, with increasing fencing tokens."""

from __future__ import annotations

from .aio import AsyncLocks
from .sync import Locks


class Redlock(Locks):
    """Locks that a majority of independent servers grants. Takes a list with one client for each server."""

    _is_group = True


class AsyncRedlock(AsyncLocks):
    """Locks for asyncio that a majority of independent servers grants. Takes a list with one client for each server."""

    _is_group = True
