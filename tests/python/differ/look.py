"""Asks a server for all that it shows of its locks at one moment."""

from checkers.view import NOW, TOTALS, Place, View
from harness.kinds import held_by
from harness.replies import as_map
from harness.server import parse_info
from harness.wire import Closed, ServerError

from .script import DBS, NAMES, OWNERS


class Eye:
    """Reads a server, over a connection of its own."""

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
        # The server notices that a key has expired when a client looks at it.
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
    """Parses the replies to TYPE, PTTL and LOCK.INFO FULL."""
    if info is None or isinstance(info, ServerError):
        return Place(kind, ttl)
    info = as_map(info)
    holders, queue = (tuple(as_map(each) for each in info[name]) for name in ("holders", "queue"))
    return Place(kind, ttl, info["kind"], info["limit"], holders, queue)
