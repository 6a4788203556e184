"""The waiters of this process for one lock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from ._resp import Command
from ._rules import ASKS_IN_KEEP, KEEP_MS, clock


@dataclass(eq=False)
class Waiter:
    """A waiter in the queue."""

    #: The server sees the deadlocks of an owner that the program names, so its request does not wait in the process.
    is_named: bool
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    #: The time of its last request, and the number of the line's connection then; 0: never.
    asked: float = 0.0
    change: int = 0
    #: The time until which it lets others ask first; 0: it does not.
    behind_until: float = 0.0


@dataclass(eq=False)
class Line:
    """The waiters of this process for one lock, in the order of the server's queue."""

    name: bytes
    #: The number of waiters that may stand in the server's queue.
    most: int
    waiters: list[Waiter] = field(default_factory=list)
    #: True if the server reports the next change of the lock.
    is_watched: bool = False
    #: The connection over which a waiter asked last, and how often that changed. A new server may have lost the queue,
    #: or never had it. So all who have asked over an earlier connection ask again, one after the other.
    link: object = None
    change: int = 0

    def join(self, waiter: Waiter) -> None:
        """Joins at the end, or at the end of those that are in the server's queue."""
        self.waiters.insert(self.most if waiter.is_named else len(self.waiters), waiter)
        self.most += waiter.is_named

    def watch(self) -> Command | None:
        """Returns the command that must be sent first, so that the server reports the next change."""
        if self.is_watched:
            return None
        self.is_watched = True
        return ("LOCK.FENCE", self.name)

    def may_stand(self, waiter: Waiter) -> bool:
        """Returns whether this waiter may stand in the server's queue."""
        return waiter in self.waiters[: self.most]

    def is_behind(self, waiter: Waiter) -> bool:
        """Returns whether waiters ahead of it must ask again first."""
        return any(self._is_stale(each) for each in self.waiters[: self.waiters.index(waiter)])

    def _is_stale(self, waiter: Waiter) -> bool:
        return 0 < waiter.change < self.change

    def asked(self, waiter: Waiter, link: object) -> None:
        """The server now has it in its queue. The next waiter asks again, if it must now or soon."""
        was_stale = False
        if link is not self.link:
            self.link, self.change, self.is_watched = link, self.change + 1, False
        else:
            was_stale = self._is_stale(waiter)
        waiter.change, waiter.asked = self.change, clock()
        self._call_behind(self.waiters.index(waiter) + 1, was_stale)

    def _call_behind(self, place: int, was_stale: bool) -> None:
        """Calls the next waiter from here on that must ask again.

        After the last one, calls all that have never asked.
        """
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
        """Leaves, and calls the waiters that move up: the new first one, and the one that may now ask the server."""
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
        """Calls the first waiter, because its turn may have come."""
        if self.waiters:
            self.waiters[0].turn.set()
