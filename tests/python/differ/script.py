"""The steps, and the way in which a round's are drawn from its seed.

A step names a value that is known only when it is played by a word that begins with '@':

    @holder:KEY   an owner that holds the lock now      @token:KEY   the token of a hold
    @waiter:KEY   an owner that waits for it now        @dump:SLOT   what the last DUMP into this slot gave

Each round draws which groups of steps it has at all, and which lock most of them are for. So rounds differ more than
they would if each had a little of everything.
"""

import random
from typing import NamedTuple

from .draws import Draws

LOCKS = ("a", "b", "c")
#: The targets of renames, and of the writes of LOCK.EXEC.
OTHERS = ("x", "d")
NAMES = LOCKS + OTHERS
OWNERS = tuple(f"o{number}" for number in range(8))
DBS = (0, 1, 2)
CLIENTS = 8
SLOTS = 3

#: A lease, a time to live or a wait ends before servers are quiet, or lasts longer than any round.
SHORT_MS, LONG_MS = (3, 10, 20), (600_000, 900_000)
#: More owners than any small bound.
CROWD = 70
#: Values that a setting is given, and its default, by which each round begins.
SETTINGS = {
    "max-waiters-per-lock": (1, 2, 10_000),
    "max-waiters": (2, 3, 20_000),
    "max-holders": (2, 3, 10_000),
}
TAKE = "return redis.pcall('LOCK.ACQUIRE', KEYS[1], ARGV[1], 'PX', 600000)"


class Step(NamedTuple):
    """One step: `send` writes these commands by this client in one packet; the others are what they are called."""

    act: str
    client: int = 0
    commands: tuple = ()


class Author(Draws):
    """Draws the steps of one round."""

    LOCKS, NAMES, OWNERS, CLIENTS = LOCKS, NAMES, OWNERS, CLIENTS
    #: The weight of each group of steps, in a round that has it.
    GROUPS = {
        "keys": 6,
        "floods": 3,
        "dumps": 5,
        "bundles": 3,
        "crowds": 1,
        "settings": 3,
        "pauses": 1,
        "leaving": 5,
        "grand": 1,
    }

    def __init__(self, seed, groups=None):
        self.chance = random.Random(seed)
        # Few at a time: most others undo the effect of each of them.
        names = self.chance.sample(list(self.GROUPS), self.chance.choice([1, 1, 2, 2, 3, 5]))
        names += ["leaving"] if self.chance.random() < 0.4 else []
        self.groups = {name: self.GROUPS[name] for name in groups or names}
        self.favourite = self.chance.choice(LOCKS)
        self.dbs = [self.chance.choice(DBS) if self.chance.random() < 0.25 else DBS[0] for _ in range(CLIENTS)]
        self.kinds = {key: self.chance.choice(["", "", "", "LIMIT 2", "LIMIT 100"]) for key in LOCKS}
        # The shares of requests that wait, of releases, of holds that are tied to connections, and of short leases and
        # waits.
        self.waiting = self.chance.choice([0.3, 0.6, 0.9])
        self.giving = self.chance.choice([1, 2, 4])
        self.tied = self.chance.choice([0.1, 0.6])
        self.hurry = self.chance.choice([0.0, 0.05, 0.3])

    def send(self, *commands):
        """One packet of a client."""
        return Step("send", self.client(), commands)

    def steps(self, number):
        """This many steps, a rest after every few of them, and one at the end."""
        found, until_rest = [], self.chance.randint(1, 7)
        weights = {"locking": 8, "gathering": 6, **self.groups}
        for _ in range(number):
            group = self.chance.choices(list(weights), list(weights.values()))[0]
            found.append(getattr(self, group)())
            until_rest -= 1
            if not until_rest:
                found.append(Step(self.chance.choices(["rest", "copies"], [19, 1])[0]))
                until_rest = self.chance.randint(1, 7)
        return [*found, Step("rest")]

    # What is drawn

    def duration(self, short=None):
        short = self.hurry if short is None else short
        return self.chance.choice(SHORT_MS if self.chance.random() < short else LONG_MS)

    def patience(self):
        """The waiting time of a request."""
        return self.duration() if self.chance.random() < 0.3 else 0

    # Locks

    def acquire(self, waiting):
        lock = self.lock()
        owner = "*" if self.chance.random() < 0.04 else self.owner(lock)
        # A lease that is kept alive begins to run on a server that loads it: a short one would be over there.
        is_kept = self.chance.random() < self.tied / 2
        mode = self.mode(lock)
        words = ["LOCK.ACQUIRE", lock, owner, "PX", self.duration(0.0 if is_kept else None), *mode]
        words += ["REENTRANT"] if not mode and self.chance.random() < 0.2 else []
        words += ["KEEPALIVE"] if is_kept else []
        if self.chance.random() < self.tied:
            words += ["EPHEMERAL", self.chance.choice([0, 10, 300_000, 300_000])]
        dice = self.chance.random()
        if dice < waiting:
            words += ["BLOCK", self.patience()]
        elif dice < waiting + 0.15 and owner != "*":
            words += ["QUEUE", self.duration()]
        return tuple(words)

    def renew(self):
        lock = self.lock()
        extra = self.chance.choice([[], [], ["TOKEN", f"@token:{lock}"], ["RAISE", f"@token:{lock}"]])
        return ("LOCK.RENEW", lock, f"@holder:{lock}", "PX", self.duration(0.0), *extra)

    def question(self):
        lock = self.lock()
        return self.chance.choice([
            ("LOCK.FENCE", lock),
            ("LOCK.INFO", lock),
            ("LOCK.EXEC", lock, f"@token:{lock}", "SET", "d", f"v{self.chance.randrange(1000)}"),
            ("LOCK.EXEC", lock, f"@token:{lock}", "DEL", "d"),
        ])

    def lock_command(self, waiting):
        """One LOCK command; with `waiting` 0 one that does not wait."""
        draws = [lambda: self.acquire(waiting), lambda: self.macquire(waiting), self.release, self.renew, self.question]
        return self.chance.choices(draws, [8, 1.5, self.giving, 1, 1])[0]()

    def locking(self):
        before = [self.lock_command(0) for _ in range(self.chance.choice([0, 0, 0, 1, 2]))]
        return Step("send", self.client(), (*before, self.lock_command(self.waiting)))

    def gathering(self):
        """A request that waits: lines become long only if many come while nothing else is done."""
        return Step("send", self.client(), (self.macquire(1.0) if self.chance.random() < 0.1 else self.acquire(1.0),))

    # Keys

    def key_command(self):
        name, other = self.name(), self.chance.choice(NAMES)
        value = f"v{self.chance.randrange(1000)}"
        return self.chance.choice([
            ("DEL", name),
            ("UNLINK", name),
            ("SET", name, value),
            ("SET", name, value, "PX", self.duration()),
            ("SUNIONSTORE", name, "nothing"),
            ("PEXPIRE", name, self.duration()),
            ("PEXPIRE", name, self.duration(0.0)),
            ("PEXPIRE", name, self.duration(0.0)),
            ("PERSIST", name),
            ("RENAME", name, other),
            ("MOVE", name, self.chance.choice(DBS)),
            ("COPY", name, other, "REPLACE"),
        ])

    def floods(self):
        a, b = self.chance.sample(DBS, 2)
        how = self.chance.choice(["SYNC", "ASYNC"])
        return self.with_more(self.chance.choice([("FLUSHALL", how), ("FLUSHDB", how), ("SWAPDB", a, b)]))

    def dumps(self):
        name, slot = self.lock(), self.chance.randrange(SLOTS)
        dump = ("DUMP", name, f"@slot:{slot}")
        target = name if self.chance.random() < 0.8 else self.chance.choice(NAMES)
        ttl = 0 if self.chance.random() < 0.8 else self.duration(0.2)
        replace = ["REPLACE"] if self.chance.random() < 0.8 else []
        restore = ("RESTORE", target, ttl, f"@dump:{slot}", *replace)
        end = self.chance.choice([("DEL", name), ("LOCK.RELEASE", name, f"@holder:{name}")])
        return Step("send", self.client(), self.chance.choice([(dump,), (restore,), (dump, end), (dump, end, restore)]))

    def bundles(self):
        draws = [lambda: self.lock_command(0.3), self.key_command]
        some = [self.chance.choices(draws, [2, 1])[0]() for _ in range(self.chance.randint(1, 4))]
        lock = self.lock()
        first = self.chance.choice(["", "", "redis.call('DEL', KEYS[1]) "])
        script = ("EVAL", first + TAKE, 1, lock, self.owner(lock))
        if self.chance.random() < 0.3:
            return self.with_more(script)
        return Step("send", self.client(), (("MULTI",), *some, ("EXEC",)))

    # Many

    def crowds(self):
        lock = self.lock()
        mode = (self.kinds[lock] or self.chance.choice(["SHARED", "SHARED", ""])).split()
        taken = ("LOCK.ACQUIRE", lock, self.owner(), "PX", LONG_MS[0], *([] if "SHARED" in mode else mode))
        asked = [("LOCK.ACQUIRE", lock, f"r{n}", "PX", LONG_MS[0], *mode, "QUEUE", LONG_MS[0]) for n in range(CROWD)]
        return Step("send", self.client(), (taken, *asked))

    # Everything else

    def leaving(self):
        return Step(self.chance.choice(["close", "kill", "unblock", "unblock-error", "drop"]), self.client())

    def settings(self):
        name = self.chance.choice(list(SETTINGS))
        value = self.chance.choice(SETTINGS[name])
        return Step("send", self.client(), (("CONFIG", "SET", f"redislock.{name}", value),))

    def pauses(self):
        return Step("send", self.client(), (("CLIENT", "PAUSE", 20, self.chance.choice(["WRITE", "ALL"])),))

    def grand(self):
        return Step(self.chance.choices(["reload", "roles", "failover", "rewrite", "anew"], [4, 2, 1, 2, 4])[0])
