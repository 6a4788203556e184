"""One server that is killed and comes back.

With `appendfsync always` no answered grant is ever lost, so nothing else is needed; and no
lease ends early (G2). With `everysec`, or without the file, it takes a quarantine, and
owners that come back for nothing that they gave up.
"""

from .faults import REWRITING, WITH_FILE, WITHOUT_FILE
from .topology import QUARANTINE_MS, Topology

ALWAYS, EVERYSEC = "appendfsync always", "appendfsync everysec, quarantine"


class Single(Topology):
    """One server."""

    name = "single"
    modes = (ALWAYS, EVERYSEC)
    kinds = {
        "pause": 3, "kill": 5, "clock": 3, "memory": 3, "disk": 3, "storm": 2,
        "flush": 1, "delete": 2,
    }  # fmt: skip

    @property
    def clock_seconds(self):
        """A server that forgets nothing does not need the time."""
        return 3600 if self.mode == ALWAYS else super().clock_seconds

    @property
    def details(self):
        """A file that must not be lost is not."""
        return {"kill": (WITH_FILE, REWRITING) + ((WITHOUT_FILE,) if self.mode == EVERYSEC else ())}

    def started(self):
        kept = ("--appendonly", "yes", "--appendfsync", "always" if self.mode == ALWAYS else "everysec")
        quarantine = ("quarantine", QUARANTINE_MS) if self.mode == EVERYSEC else ()
        return [self.start(*kept, module_arguments=quarantine)]

    def stubborn(self):
        return 2 if self.mode == ALWAYS else 0

    def made_loads(self):
        """G2 is asked of a server that forgets nothing."""
        loads = super().made_loads()
        for load in loads:
            load.forgets_nothing = self.mode == ALWAYS
        return loads
