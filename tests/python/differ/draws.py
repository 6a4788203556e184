"""The parts that random scripts for servers share: the choice of client, lock, owner, and request.

An author of scripts has `chance`, `favourite` (the lock that most steps are for) and `kinds` (how each lock is held).
It defines a duration, a patience, an acquire, a LOCK command, a command on keys, and a packet (`send`).
"""


class Draws:
    """The draws that are the same for every player."""

    #: The values to draw from.
    LOCKS = NAMES = OWNERS = ()
    CLIENTS = 0

    def client(self):
        return self.chance.randrange(self.CLIENTS)

    def lock(self):
        return self.favourite if self.chance.random() < 0.7 else self.chance.choice(self.LOCKS)

    def name(self):
        return self.lock() if self.chance.random() < 0.85 else self.chance.choice(self.NAMES)

    def owner(self, lock=None):
        dice = self.chance.random()
        if lock and dice < 0.2:
            return f"@{self.chance.choice(['holder', 'waiter', 'waiter'])}:{lock}"
        return self.chance.choice(self.OWNERS)

    def mode(self, lock):
        dice, kind = self.chance.random(), self.kinds.get(lock, "")
        if dice < 0.05:
            return self.chance.choice(["", "SHARED", "LIMIT 2"]).split()
        return (kind or self.chance.choice(["", "SHARED"])).split()

    def macquire(self, waiting):
        keys = self.chance.sample(self.LOCKS, self.chance.choice([2, 2, 3]))
        words = ["LOCK.MACQUIRE", len(keys), *keys, self.owner(keys[0]), "PX", self.duration()]
        words += ["SHARED"] if self.chance.random() < 0.4 else []
        words += ["BLOCK", self.patience()] if self.chance.random() < waiting else []
        return tuple(words)

    def release(self):
        lock = self.lock()
        owner = f"@holder:{lock}" if self.chance.random() < 0.7 else self.owner(lock)
        token = ["TOKEN", f"@token:{lock}"] if self.chance.random() < 0.1 else []
        return ("LOCK.RELEASE", lock, owner, *token)

    def with_more(self, *commands):
        """These, and perhaps in the same packet a LOCK command or another change of keys."""
        if self.chance.random() < 0.3:
            commands = (self.acquire(0), *commands)
        if self.chance.random() < 0.5:
            commands += (self.lock_command(0.3) if self.chance.random() < 0.8 else self.key_command(),)
        return self.send(*commands)

    def keys(self):
        return self.with_more(self.key_command())
