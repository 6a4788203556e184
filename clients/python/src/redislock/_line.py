"""The waiters of this process for one lock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from ._resp import Command
from ._rules import ASKS_IN_KEEP, KEEP_MS, clock


@dataclass(eq=False)
class Waiter:
    """Somebody in a line."""

    #: The server sees the deadlocks of an owner that the program names, so its request does not wait in the process.
    is_named: bool
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    #: When it has asked the server last, and at which change of the line's connection; 0: never.
    asked: float = 0.0
    change: int = 0
    #: Until when it lets others ask again first; 0: nobody.
    behind_until: float = 0.0


@dataclass(eq=False)
class Line:
    """The waiters of this process for one lock, in the order in which the server knows them."""

    name: bytes
    #: How many of them may stand in the line of the server.
    most: int
    waiters: list[Waiter] = field(default_factory=list)
    #: Whether the server tells of the next change of the lock.
    is_watched: bool = False
    #: The connection over which one of them has asked last, and how often that was another one than before. The server
    #: behind another one may have lost its line, or never had it: so all who have asked over an earlier one ask again,
    #: one after the other.
    link: object = None
    change: int = 0

    def join(self, waiter: Waiter) -> None:
        """Stands last, or last of those that the server has in its line."""
        self.waiters.insert(self.most if waiter.is_named else len(self.waiters), waiter)
        self.most += waiter.is_named

    def watch(self) -> Command | None:
        """What has to be asked before, so that the server tells of the next change."""
        if self.is_watched:
            return None
        self.is_watched = True
        return ("LOCK.FENCE", self.name)

    def may_stand(self, waiter: Waiter) -> bool:
        """Whether this waiter may stand in the line of the server."""
        return waiter in self.waiters[: self.most]

    def is_behind(self, waiter: Waiter) -> bool:
        """Whether others before it have to ask again first."""
        return any(self._is_stale(each) for each in self.waiters[: self.waiters.index(waiter)])

    def _is_stale(self, waiter: Waiter) -> bool:
        return 0 < waiter.change < self.change

    def asked(self, waiter: Waiter, link: object) -> None:
        """The server has it in its line since now; the next one asks again, if it has to or will have to soon."""
        was_stale = False
        if link is not self.link:
            self.link, self.change, self.is_watched = link, self.change + 1, False
        else:
            was_stale = self._is_stale(waiter)
        waiter.change, waiter.asked = self.change, clock()
        self._call_behind(self.waiters.index(waiter) + 1, was_stale)

    def _call_behind(self, place: int, was_stale: bool) -> None:
        """Calls the next one from here on that has to ask again, or behind the last all who have never asked."""
        behind = self.waiters[place : self.most]
        due = clock() - KEEP_MS / 1000 / ASKS_IN_KEEP / 2
        for waiter in behind:
            if waiter.change > 0 and (self._is_stale(waiter) or waiter.asked < due):
                waiter.turn.set()
                return
        if was_stale:
            for waiter in behind:
                if waiter.change == 0:
                    waiter.turn.set()

    def leave(self, waiter: Waiter) -> None:
        """Goes, and calls the waiters that move up: the next first one, and the one that may now ask the server."""
        place = self.waiters.index(waiter)
        del self.waiters[place]
        self.most -= waiter.is_named
        if place == 0:
            self.call_first()
        if self._is_stale(waiter):
            self._call_behind(place, was_stale=True)
        if not waiter.is_named and place < self.most <= len(self.waiters):
            self.waiters[self.most - 1].turn.set()

    def call_first(self) -> None:
        """Calls the first waiter: it may be its turn."""
        if self.waiters:
            self.waiters[0].turn.set()
