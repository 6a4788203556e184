"""Events of growth: many locks are taken one after the other, and no turn is long, though tables grow meanwhile."""

from .beside import LEASE, PLACE, locks
from .rows import TO_100_000
from .stage import HOLDERS_MAX
from .stores import all_hold, in_slices


def nothing(stage):
    """Nothing is there before."""


def taking(words):
    """An act: these words once for each number."""
    return lambda stage: stage.fill(words)


def all_are_there(stage):
    """All hold, and as many wait."""
    stage.expects(holds=stage.count, waiters=stage.count)


TAKEN = "taken one after the other"
#: Longer than a record has room for.
LONG = "lock:" + "x" * 200 + ":#######"

EVENTS = (
    in_slices(TAKEN, "locks", nothing, taking(f"LOCK.ACQUIRE lock:####### owner:####### {LEASE}"), all_hold),
    in_slices(f"{TAKEN}, with long names", "locks", nothing, taking(f"LOCK.ACQUIRE {LONG} owner:####### {LEASE}"), all_hold),
    in_slices(f"{TAKEN}, LIMIT", "holders of a semaphore", nothing,
              taking(f"LOCK.ACQUIRE pool owner:####### {LEASE} LIMIT {HOLDERS_MAX}"), all_hold),
    in_slices(f"{TAKEN}, EPHEMERAL 0", "bindings of a connection", nothing,
              taking(f"LOCK.ACQUIRE lock:####### owner:####### {LEASE} EPHEMERAL 0"), all_hold),
    in_slices(f"{TAKEN}, QUEUE", "waiters of all locks", locks, taking(f"LOCK.ACQUIRE lock:####### waiter:####### {PLACE}"),
              all_are_there, sizes=TO_100_000),
)
