"""Logs long waits, with the holder of the lock."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ._rules import Wanted, clock

if TYPE_CHECKING:
    from ._keeper import Keeper

logger = logging.getLogger("redislock")
#: Seconds of a wait after which these same locks are checked for a hold, and after which it is logged.
_OWN, _LONG = 1.0, 30.0


class Watch:
    """Checks one wait after a second, after half a minute, and at each doubling of that."""

    def __init__(self, keeper: Keeper, wanted: Wanted, began: float) -> None:
        self._keeper, self._wanted, self._began = keeper, wanted, began
        self._timer = keeper.loop.call_later(began + _OWN - clock(), self._look)

    def end(self) -> None:
        """Ends the watch with the wait."""
        self._timer.cancel()

    def _next(self, seconds: float) -> None:
        self._timer = self._keeper.loop.call_later(self._began + seconds - clock(), self._tell, seconds)

    def _look(self) -> None:
        self._next(_LONG)
        wanted = self._wanted
        for hold in self._keeper.holds:
            if set(hold._wanted.names).isdisjoint(wanted.names):
                continue
            is_same = hold._wanted.by == wanted.by
            if is_same or self._is_first("its own"):
                what = "the very thread or task that waits for it" if is_same else "these very locks"
                level = logging.WARNING if is_same else logging.INFO
                logger.log(level, "waiting for %r, which %s hold, as %s", wanted.all_names, what, hold.owner)
            return

    def _tell(self, seconds: float) -> None:
        self._next(2 * seconds)
        if self._is_first(""):
            self._keeper.begin(self._say(seconds))

    def _is_first(self, what: str) -> bool:
        """Returns whether no waiter for this lock has logged this for a while."""
        said, key, now = self._keeper.said, f"{what} {self._wanted.names}", clock()
        for old in [name for name, at in said.items() if now >= at + _LONG * 0.9]:
            del said[old]
        is_first = key not in said
        said.setdefault(key, now)
        return is_first

    async def _say(self, seconds: float) -> None:
        info = await self._keeper.holders(self._wanted)
        held = f", held by {info}" if info else ""
        logger.warning("waiting for %r for %.0f s%s", self._wanted.all_names, seconds, held)
