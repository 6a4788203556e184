"""The faults, and the way in which they are drawn from a seed.

The faults of a round are drawn before anything happens, and depend on nothing but the seed. So the draws are the same
each time; their moments are up to the machine.
"""

import random
from typing import NamedTuple

POLICIES = (
    "noeviction", "allkeys-lru", "allkeys-lfu", "allkeys-random",
    "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl",
)  # fmt: skip
WITH_FILE, WITHOUT_FILE, REWRITING = "with its file", "without its file", "while it rewrites its file"
WAYS = ("onward", "back", "both ways")
SLOT_WAYS = ("by hand", "atomically")

#: The details in which faults of a kind can differ.
DETAILS = {
    "kill": (WITH_FILE, WITHOUT_FILE, REWRITING),
    "stall": WAYS,
    "memory": POLICIES,
    "clock": (-1.0, -0.5, 0.0, 0.5, 1.0),
    "storm": (100, 200, 300),
    "failover": ("ask", "order", "force"),
    "move": SLOT_WAYS,
    "delete": range(6),
}

#: The duration of each kind, in seconds; others end at once.
LASTING = {
    "pause": (0.1, 2.5),
    "kill": (0.0, 2.5),
    "cut": (0.2, 3.0),
    "stall": (0.2, 3.0),
    "lag": (0.05, 0.4),
    "memory": (0.2, 1.0),
    "disk": (0.2, 1.0),
}

#: The rest before a fault, in seconds; now and then all have time to recover.
RESTS = (0.1, 0.2, 0.3, 0.5, 1.0)


class Fault(NamedTuple):
    """One fault, before the roles of the servers are known."""

    kind: str
    #: The index of the server in the topology.
    at: int
    #: Rather the one that grants at that moment.
    at_primary: bool
    detail: object
    seconds: float
    rest: float

    def __str__(self):
        where = "the primary" if self.at_primary else f"server {self.at}"
        detail = f" ({self.detail})" if self.detail is not None else ""
        lasting = f" for {self.seconds:.2f} s" if self.seconds else ""
        return f"{self.kind}{detail} at {where}{lasting}"


class Bag:
    """Things that are taken out in random order, and put back when all of them were."""

    def __init__(self, chance, things):
        self.chance, self.things, self.left = chance, list(things), []

    def take(self):
        """The next one."""
        if not self.left:
            self.left = self.chance.sample(self.things, len(self.things))
        return self.left.pop()


def drawn(seed, kinds, size, **details):
    """Endless faults for `size` servers; `kinds` has the weight of each kind, `details` the unusual ones."""
    chance = random.Random(seed)
    details = {**DETAILS, **details}
    bag = Bag(chance, [kind for kind, count in kinds.items() for _ in range(count)])
    bags = {kind: Bag(chance, things) for kind, things in sorted(details.items())}
    while True:
        kind = bag.take()
        detail = bags[kind].take() if kind in bags else None
        seconds = round(chance.uniform(*LASTING[kind]), 2) if kind in LASTING else 0.0
        yield Fault(kind, chance.randrange(size), chance.random() < 0.6, detail, seconds, chance.choice(RESTS))
