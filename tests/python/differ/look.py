"""What one server shows of all its locks at one moment."""

from typing import NamedTuple

from harness.kinds import held_by
from harness.replies import as_map
from harness.server import parse_info
from harness.wire import Closed, ServerError

from .script import DBS, NAMES, OWNERS

#: What INFO counts: how much there is now, and what happened.
NOW = ("locks", "holds", "waiters")
TOTALS = ("grants", "releases", "expirations", "broken")


class Place(NamedTuple):
    """A name in a database: its type, its time to live, and what LOCK.INFO FULL lists."""

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
        """Whether nothing but time has passed between the two."""
        return outline(self) == outline(other)


def outline(view):
    """A view without what only ages."""
    holds = [(place, hold["owner"], hold["token"], hold["count"]) for place, hold in view.holders()]
    waiters = [(place, waiter["owner"], waiter["state"]) for place, waiter in view.waiters()]
    kinds = {place: (seen.type, seen.kind, seen.ttl >= 0) for place, seen in view.places.items()}
    return view.digest, holds, waiters, kinds, view.held_by, [view.info[name] for name in NOW + TOTALS]


class Eye:
    """Looks at a server, over a connection of its own."""

    def __init__(self, server):
        self.server, self.connection = server, None

    def ask(self, *commands):
        """Replies to commands that are sent in one packet, errors too."""
        for _ in range(2):  # a change of roles closes connections
            if self.connection is None:
                self.connection = self.server.connect(protocol=3)
            try:
                return self.connection.pipeline(*commands)
            except Closed:
                self.connection = None
        raise AssertionError("the server closes every connection")

    def view(self):
        """All that can be seen, with one packet for the locks and one for the owners."""
        # The server notices that a key's time is over when somebody looks at it.
        places = [(db, name) for db in DBS for name in NAMES]
        commands = [("SELECT", DBS[0])]
        for db in DBS:
            commands.append(("SELECT", db))
            for name in NAMES:
                commands += [("TYPE", name), ("PTTL", name), ("LOCK.INFO", name, "FULL")]
        replies = iter(self.ask(*commands, ("INFO", "redislock"), ("DEBUG", "DIGEST")))
        next(replies)
        seen = {}
        for number, place in enumerate(places):
            if number % len(NAMES) == 0:
                next(replies)
            seen[place] = place_of(next(replies), next(replies), next(replies))
        info = {name.removeprefix("redislock_"): text for name, text in parse_info(next(replies)).items()}
        info = {name: int(info[name]) for name in NOW + TOTALS}
        digest, view = next(replies), View(seen, info, {}, "")
        owners = {each["owner"] for _, each in view.holders() + view.waiters()} | set(OWNERS)
        lists = {owner: held_by(lambda *words: self.ask(words)[0], owner) for owner in sorted(owners)}
        return View(seen, info, lists, digest)


def place_of(kind, ttl, info):
    """What the replies to TYPE, PTTL and LOCK.INFO FULL say."""
    if info is None or isinstance(info, ServerError):
        return Place(kind, ttl)
    info = as_map(info)
    holders, queue = (tuple(as_map(each) for each in info[name]) for name in ("holders", "queue"))
    return Place(kind, ttl, info["kind"], info["limit"], holders, queue)
