"""The state of all locks of one server at one moment."""

from typing import NamedTuple

#: The counts in INFO: the current numbers, and the totals, by the event that is published for each.
NOW = ("locks", "holds", "waiters")
COUNTED = {
    "lock.acquired": "grants",
    "lock.released": "releases",
    "lock.expired": "expirations",
    "lock.broken": "broken",
}
TOTALS = tuple(COUNTED.values())
#: The ends of holds: the events, and the counters.
END_EVENTS, ENDS = set(COUNTED) - {"lock.acquired"}, TOTALS[1:]


class Place(NamedTuple):
    """A name in a database: its type, its time to live, and its LOCK.INFO FULL."""

    type: str
    ttl: int
    kind: str | None = None
    limit: int | None = None
    holders: tuple = ()
    queue: tuple = ()


NOTHING = Place("none", -2)


class View(NamedTuple):
    """All of it."""

    places: dict
    info: dict
    held_by: dict
    digest: str

    def holders(self):
        """Every hold, as (db, name) and a map."""
        return [(place, hold) for place, seen in self.places.items() for hold in seen.holders]

    def waiters(self):
        """Everybody in a line, as (db, name) and a map."""
        return [(place, waiter) for place, seen in self.places.items() for waiter in seen.queue]

    def is_like(self, other):
        """Returns whether nothing but time has passed between the two."""
        return outline(self) == outline(other)


def outline(view):
    """A view without the fields that age."""
    holds = [(place, hold["owner"], hold["token"], hold["count"]) for place, hold in view.holders()]
    waiters = [(place, waiter["owner"], waiter["state"]) for place, waiter in view.waiters()]
    kinds = {place: (seen.type, seen.kind, seen.ttl >= 0) for place, seen in view.places.items()}
    return view.digest, holds, waiters, kinds, view.held_by, [view.info[name] for name in NOW + TOTALS]
