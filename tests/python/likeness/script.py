"""The steps, and the way in which a round's are drawn from its seed.

A step is a line: a word, and further words after tabs. `send CLIENT DB COMMAND` may have several commands with ';;'
between them, which go in one packet. A word that begins with '@' names a value that is known only when it is played:

    @holder:KEY   an owner that holds the lock now      @token:KEY   the token of a hold
    @waiter:KEY   an owner that waits for it now        @dump:SLOT   what the last DUMP into this slot gave
"""

import random

from differ.draws import Draws

LOCKS = ("a", "b", "c")
NAMES = ("a", "b", "c", "d", "x")
OWNERS = tuple(f"o{number}" for number in range(7))
DBS = (0, 1, 2)
CLIENTS = 7
SLOTS = 3
LONG_MS = (600_000, 900_000)
#: Odd, and time advances by two: nothing ends at the very moment of a step.
SHORT_MS = range(3, 160, 2)
SETTINGS = {
    "max-waiters-per-lock": (1, 2, 10_000),
    "max-waiters": (2, 3, 20_000),
    "max-holders": (2, 3, 10_000),
    "max-lease": (151, 86_400_000),
    "quarantine": (51, 0),
}
#: The requests whose answer waits for replicas.
HELD_BACK = ("LOCK.ACQUIRE", "LOCK.MACQUIRE", "LOCK.RENEW")
#: The beginning of a round with a node of a cluster.
CLUSTER = "round\tcluster"
#: Calls the commands between the ';' after the key one after the other, and returns all replies.
SCRIPT = (
    "local all, one = {}, {} for n = 1, #ARGV + 1 do if n > #ARGV or ARGV[n] == ';' then "
    "local reply = redis.pcall(unpack(one)) all[#all + 1] = reply or false one = {} "
    "else one[#one + 1] = ARGV[n] end end return all"
)


def line(*words):
    """A step as a line."""
    return "\t".join(str(word) for word in words)


class Author(Draws):
    """Draws the steps of one round."""

    LOCKS, NAMES, OWNERS, CLIENTS = LOCKS, NAMES, OWNERS, CLIENTS
    #: The weight of each group of steps, in a round that has it.
    GROUPS = {
        "keys": 6,
        "floods": 2,
        "dumps": 4,
        "bundles": 4,
        "scripts": 3,
        "watches": 4,
        "settings": 2,
        "pauses": 1,
        "leaving": 5,
        "rights": 2,
        "roles": 1,
        "confirms": 6,
        "loading": 2,
        "strings": 6,
        "failovers": 1,
        "slots": 5,
        "nonsense": 2,
    }

    #: The groups of a node of a cluster in addition to slots: each of the names is in a slot of its own.
    OF_CLUSTER = ("keys", "dumps", "bundles", "settings", "pauses", "leaving", "rights", "loading", "strings", "slots")

    def __init__(self, seed, groups=None):
        self.chance = random.Random(seed)
        names = self.chance.sample(list(self.GROUPS), self.chance.choice([1, 2, 2, 3, 5]))
        self.groups = {name: self.GROUPS[name] for name in groups or names}
        self.is_cluster = "slots" in self.groups
        if self.is_cluster:
            self.groups = {name: self.GROUPS[name] for name in self.groups if name in self.OF_CLUSTER}
        self.has_replica = "confirms" in self.groups or "failovers" in self.groups
        if self.has_replica:
            # A server that follows another one lets its own replicas go. No replica confirms a string.
            self.groups.pop("roles", None)
            self.groups.pop("strings", None)
        self.favourite = self.chance.choice(LOCKS)
        dbs = DBS[:1] if self.is_cluster else DBS
        self.dbs = [self.chance.choice(dbs) if self.chance.random() < 0.25 else 0 for _ in range(CLIENTS)]
        self.kinds = {key: self.chance.choice(["", "", "", "LIMIT 2", "LIMIT 50"]) for key in LOCKS}
        self.waiting = self.chance.choice([0.3, 0.6, 0.9])
        self.giving = self.chance.choice([1, 2, 4])
        self.tied = self.chance.choice([0.1, 0.5])
        self.hurry = self.chance.choice([0.1, 0.3, 0.6])
        #: The name that all is about now, if it is one alone.
        self.only = None

    def steps(self, number):
        """This many steps, as lines."""
        weights = {"locking": 10, "gathering": 6, "passing": 5, **self.groups}
        found = [CLUSTER if self.is_cluster else "round", *(["attach"] if self.has_replica else [])]
        found += [line("set", "legacy-strings", "yes")] if "strings" in self.groups else []
        while len(found) <= number:
            group = self.chance.choices(list(weights), list(weights.values()))[0]
            drawn = getattr(self, group)()
            found += drawn if isinstance(drawn, list) else [drawn]
        return found

    # What is drawn

    def duration(self):
        return self.chance.choice(SHORT_MS) if self.chance.random() < self.hurry else self.chance.choice(LONG_MS)

    def patience(self):
        return self.duration() if self.chance.random() < 0.5 else 0

    def send(self, *commands):
        """One packet of a client. Nothing comes after a request that a replica has to confirm."""
        client, words = self.client(), []
        is_transaction = commands[0] == ["MULTI"]
        for command in commands:
            words += [*([";;"] if words else []), *command]
            if self.has_replica and command[0] in HELD_BACK and not is_transaction:
                break
        return line("send", client, self.dbs[client], *words)

    def lock(self):
        return self.only or super().lock()

    def name(self):
        return self.only or super().name()

    # Locks

    def acquire(self, waiting):
        lock = self.lock()
        owner = "*" if self.chance.random() < 0.04 else self.owner(lock)
        mode = self.mode(lock)
        words = ["LOCK.ACQUIRE", lock, owner, "PX", self.duration(), *mode]
        words += ["REENTRANT"] if not mode and self.chance.random() < 0.2 else []
        words += ["KEEPALIVE"] if self.chance.random() < self.tied / 2 else []
        if self.chance.random() < self.tied:
            words += ["EPHEMERAL", self.chance.choice([0, 11, 77, 300_000])]
        dice = self.chance.random()
        if dice < waiting:
            words += ["BLOCK", self.patience()]
        elif dice < waiting + 0.15 and owner != "*":
            words += ["QUEUE", self.duration()]
        return words

    def renew(self):
        lock = self.lock()
        extra = self.chance.choice([[], [], ["TOKEN", f"@token:{lock}"], ["RAISE", f"@token:{lock}"]])
        return ["LOCK.RENEW", lock, f"@holder:{lock}", "PX", self.duration(), *extra]

    def macquire(self, waiting):
        # In a cluster, for locks of one slot only.
        return self.acquire(waiting) if self.is_cluster else super().macquire(waiting)

    def question(self):
        lock = self.lock()
        return self.chance.choice([
            ["LOCK.FENCE", lock],
            ["LOCK.FENCE", lock, f"@token:{lock}"],
            ["LOCK.INFO", lock],
            ["LOCK.HELDBY", self.owner(lock)],
            ["GET", self.name()],
        ] if self.is_cluster or self.chance.random() < 0.7 else [
            ["LOCK.EXEC", lock, f"@token:{lock}", "SET", "d", f"v{self.chance.randrange(100)}"],
            ["LOCK.EXEC", lock, f"@token:{lock}", "DEL", "d", lock],
        ])

    def lock_command(self, waiting):
        draws = [lambda: self.acquire(waiting), lambda: self.macquire(waiting), self.release, self.renew, self.question]
        return self.chance.choices(draws, [8, 1.5, self.giving, 1, 1.5])[0]()

    def locking(self):
        before = [self.lock_command(0) for _ in range(self.chance.choice([0, 0, 0, 1, 2]))]
        behind = [self.lock_command(0)] if self.chance.random() < 0.1 else []
        return self.send(*before, self.lock_command(self.waiting), *behind)

    def gathering(self):
        return self.send(self.macquire(1.0) if self.chance.random() < 0.1 else self.acquire(1.0))

    def passing(self):
        return line("pass", 2 * self.chance.randrange(5, 60))

    # Keys

    def key_command(self):
        name, other = self.name(), self.chance.choice(NAMES)
        value = f"v{self.chance.randrange(1000)}"
        return self.chance.choice([
            ["DEL", name],
            ["UNLINK", name],
            ["SET", name, value],
            ["SET", name, value, "PX", self.duration()],
            ["PEXPIRE", name, self.duration()],
            ["PEXPIRE", name, self.duration()],
            ["PERSIST", name],
        ] if self.is_cluster or self.chance.random() < 0.7 else [
            ["DEL", name, other],
            ["RENAME", name, other],
            ["MOVE", name, self.chance.choice(DBS)],
            ["COPY", name, other, *self.chance.choice([["REPLACE"], []])],
        ])

    def strings(self):
        """The actions of old clients: their locks are strings, as a setting says. Now and then it does not."""
        if self.chance.random() < 0.1:
            return [line("set", "legacy-strings", "no"), self.locking(), line("set", "legacy-strings", "yes")]
        lock = self.lock()
        taken = ["SET", lock, self.owner(lock), "NX", "PX", self.duration()]
        if self.chance.random() < 0.5:
            return self.with_more(taken)
        return self.with_more(self.chance.choice([
            ["DEL", lock],
            ["GET", lock],
            ["PEXPIRE", lock, self.duration()],
            ["PERSIST", lock],
            ["LOCK.RELEASE", lock, f"@holder:{lock}"],
            ["LOCK.RENEW", lock, f"@holder:{lock}", "PX", self.duration()],
            ["LOCK.ACQUIRE", lock, f"@holder:{lock}", "PX", self.duration(), *self.mode(lock)],
        ]))

    def floods(self):
        a, b = self.chance.sample(DBS, 2)
        if self.chance.random() < 0.4:
            # Redis 8 blocks its client until a thread has freed all, and others come first: so no command follows it.
            return self.send(self.acquire(0), [self.chance.choice(["FLUSHALL", "FLUSHDB"]), "SYNC"])
        return self.with_more(self.chance.choice([["FLUSHALL", "ASYNC"], ["FLUSHDB", "ASYNC"], ["SWAPDB", a, b]]))

    def dumps(self):
        name, slot = self.lock(), self.chance.randrange(SLOTS)
        dump = ["DUMP", name, f"@slot:{slot}"]
        target = name if self.chance.random() < 0.8 else self.chance.choice(NAMES)
        ttl = 0 if self.chance.random() < 0.8 else self.duration()
        restore = ["RESTORE", target, ttl, f"@dump:{slot}", *(["REPLACE"] if self.chance.random() < 0.8 else [])]
        end = self.chance.choice([["DEL", name], ["LOCK.RELEASE", name, f"@holder:{name}"]])
        return self.chance.choice([self.send(dump), self.send(restore), self.send(restore), self.send(dump, end)])

    # Several in one step

    def several(self, waiting):
        draws = [lambda: self.lock_command(waiting), self.key_command]
        return [self.chance.choices(draws, [2, 1])[0]() for _ in range(self.chance.randint(1, 4))]

    def script(self):
        words = []
        for command in self.several(0.3):
            # In the protocol of a script a map is a list.
            words += [";", *(command if command[0] != "LOCK.INFO" else self.release())]
        return ["EVAL", SCRIPT, 1, self.lock(), *words[1:]]

    def bundles(self):
        if self.is_cluster:
            self.only = self.lock()
            several, self.only = self.several(0.3), None
            return self.send(["MULTI"], *several, ["EXEC"])
        end = ["EXEC"] if self.chance.random() < 0.95 else ["DISCARD"]
        more = [self.script()] if self.chance.random() < 0.1 else []
        return self.send(["MULTI"], *self.several(0.3), *more, end)

    def scripts(self):
        return self.send(self.script())

    def watches(self):
        """A key is watched; in between others change it; then EXEC."""
        client = self.client()
        db, sends = self.dbs[client], []
        sends.append(line("send", client, db, "WATCH", self.lock(), self.name()))
        others = [self.locking, self.keys, self.floods, self.passing]
        sends += [self.chance.choice(others)() for _ in range(self.chance.randrange(3))]
        words = ["MULTI"]
        for command in self.several(0):
            words += [";;", *command]
        return [*sends, line("send", client, db, *words, ";;", "EXEC")]

    # Everything else

    def nonsense(self):
        """Refused commands, and their reasons."""
        lock, owner = self.lock(), self.owner()
        words = self.chance.choice(["SHARE", "LIMIT 0", "BLOCK", "BLOCK 9 QUEUE 9"])
        wrong = [
            ["LOCK.ACQUIRE", lock, owner, "PX", self.chance.choice([0, -1, "x", 10**18])],
            ["LOCK.ACQUIRE", lock, owner, "PX", 9, words],
            ["LOCK.ACQUIRE", lock, self.chance.choice(["", "x" * 300]), "PX", 9],
            ["LOCK.ACQUIRE", lock, owner, "EX", 1, "SHARED", "LIMIT", 2],
            ["LOCK.MACQUIRE", self.chance.choice([0, 3, 99]), lock, owner, "PX", 9],
            ["LOCK.RELEASE", lock, owner, "TOKEN", self.chance.choice([0, "x", 2**53])],
            ["LOCK.RENEW", lock, f"@holder:{lock}", "PX", 9, "RAISE", self.chance.choice([1, 2**53 - 1])],
            ["LOCK.FENCE", lock, self.chance.choice([0, "x"])],
            ["LOCK.INFO", lock, "FULLY"],
            ["LOCK.EXEC", lock, f"@token:{lock}", "LOCK.RELEASE", lock, owner],
            ["LOCK.APPLY", lock, "HOLD", 1, 9, owner],
            ["LOCK.TICK", 1, 1],
        ]
        words = self.chance.choice(wrong)
        return self.send([word for each in words for word in (str(each).split(" ") if each != "" else [""])])

    def leaving(self):
        return line(self.chance.choice(["close", "kill", "unblock", "unblock-error"]), self.client())

    def settings(self):
        # Confirmation has a quarantine of its own, and leases that fit it.
        names = [name for name in SETTINGS if name not in ("quarantine", "max-lease") or not self.has_replica]
        name = self.chance.choice(names)
        return line("set", name, self.chance.choice(SETTINGS[name]))

    def pauses(self):
        """A pause, and its end: two never overlap."""
        pause = self.send(["CLIENT", "PAUSE", self.chance.choice([41, 100_001]), "WRITE"])
        return [pause, *self.meanwhile(), line("unpause")]

    def slots(self):
        """A slot begins to leave, or leaves and comes back."""
        lock = self.lock()
        leaves, left, ours = (line("slot", lock, what) for what in ("leaves", "left", "ours"))
        others = [self.locking, self.gathering, self.passing, self.keys, self.loading]
        meanwhile = [self.chance.choice(others)() for _ in range(self.chance.randrange(4))]
        all_goes = [leaves, *meanwhile, self.send(["DEL", lock]), left]
        return self.chance.choice([[leaves], [*all_goes, *meanwhile, ours], all_goes, [ours], [ours], [ours]])

    def failovers(self):
        """A failover that never comes about: nothing is acknowledged."""
        return [line("failover"), *self.meanwhile(), line("failover-abort")]

    def meanwhile(self):
        """Actions while writers wait."""
        others = [self.locking, self.gathering, self.leaving, self.passing, self.loading]
        return [self.chance.choice(others)() for _ in range(3)]

    def confirms(self):
        return line("ack")

    def loading(self):
        return line(self.chance.choice(["reload", "load-file"]))

    def rights(self):
        return line("forbid", self.client()) if self.chance.random() < 0.6 else line("allow")

    def roles(self):
        meanwhile = [self.chance.choice([self.locking, self.keys, self.passing, self.loading])() for _ in range(3)]
        return [line("demote"), *meanwhile, line("promote")]
