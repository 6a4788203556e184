"""A primary, two replicas and three sentinels.

With `confirm all` or `majority`, and a quarantine as long as the longest lease, no client receives a hold that another
may rely on, no matter which server is promoted. `LOCAL` promises no such thing: it is there to show that the judge sees
it.
"""

from harness.group import Group, is_primary
from harness.sentinel import GROUP

from .topology import HEALING_SECONDS, KEPT, QUARANTINE_MS, Topology

ALL, MAJORITY, LOCAL = "all", "majority", "local, without quarantine"
FAILOVER_MS = 500


class Replicated(Topology):
    """Three servers that are watched; clients ask any of them."""

    name = "replicated"
    modes = (ALL, MAJORITY)
    kinds = {
        "pause": 3, "kill": 4, "cut": 3, "stall": 4, "lag": 2, "promote": 1, "failover": 2, "clock": 2,
        "memory": 2, "disk": 1, "storm": 1, "flush": 1, "delete": 2,
    }  # fmt: skip
    details = {"failover": ("ask", "order")}
    size = 3

    def started(self):
        confirm, quarantine_ms = (self.mode, QUARANTINE_MS) if self.mode != LOCAL else ("local", 0)
        self.group = Group(self.start, confirm, *KEPT, quarantine_ms=quarantine_ms, has_sentinels=True)
        self.doors = {node: [self.group.door(node)] for node in self.group.nodes}
        return self.group.nodes

    def stubborn(self):
        # With `all`, a server that is back with an old file believes owners that return for holds that they gave up.
        return 2 if self.mode == MAJORITY else 0

    def more_acts(self):
        return {"promote": promote, "failover": self.failover}

    def failover(self, fault, node):
        """Roles change on purpose: by the primary, or by a sentinel."""
        if fault.detail == "order":
            self.group.sentinels[0].admin("SENTINEL", "FAILOVER", GROUP)
        else:
            node.admin("FAILOVER", "TIMEOUT", FAILOVER_MS)

    def is_primary(self, node):
        return is_primary(node)

    def heal(self):
        self.group.healed(HEALING_SECONDS)

    def granting(self):
        primary = self.group.healed(HEALING_SECONDS)
        return [(primary, self.locks, [node for node in self.nodes if node is not primary])]


def promote(fault, node):
    """Makes it a primary, whatever it knows, in addition to the existing one."""
    node.admin("REPLICAOF NO ONE")
