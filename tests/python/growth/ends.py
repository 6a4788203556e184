"""Events of ends: leases, places in line, connections, roles; and the grants that follow.

Leases with the same end expire while the server is stopped: when it continues, all of them are due.
"""

import time

from bench.crowd import field
from harness.group import freeze, thaw

from .beside import LEASE, locks, many_lines, places, places_of_readers
from .rows import TO_100_000
from .stage import HOLDERS_MAX, LEASE_MS
from .stores import AOF, BUSY, all_hold, in_slices, nobody_holds, turn

#: A lease lasts until all are built, on a slow machine too: `BUILD_MS`, and `BUILD_US` more for each.
BUILD_MS, BUILD_US = 2_000, 10


def lease_ms(stage):
    """A lease that ends soon after all are built."""
    return BUILD_MS + stage.count * BUILD_US // 1_000


def ending(*words, before=lambda stage: None, holds=True):
    """Builds leases (`{lease}`) that have expired when the server continues."""

    def built(stage):
        before(stage)
        ends = lease_ms(stage)
        for each in words:
            stage.fill(each.format(lease=ends))
        built_at = time.monotonic()
        if holds:
            stage.expects_all()
        else:
            stage.expects(waiters=stage.count)
        stage.meter.rest(is_brief=True)  # asleep, so that it is seen to do nothing while it is stopped
        freeze(stage.server)
        stage.on_close(lambda: thaw(stage.server))
        time.sleep(max(0.0, built_at + ends / 1e3 - time.monotonic()) + 0.1)

    return built


def goes_on(stage):
    """The server continues, and does all due work, until every expired hold and wait has ended."""
    thaw(stage.server)
    stage.call("PING")


def nobody_is_left(stage):
    """Checks that there are no holds and no waiters."""
    stage.expects(holds=0, waiters=0)


def all_wait(stage):
    """Checks that there are no holds; all waiters have a place."""
    stage.expects(holds=0, waiters=stage.count)


def tied(options, lease=LEASE):
    """Builds holds that are tied to a connection of their own."""

    def built(stage):
        connection = stage.connect()
        stage.clients.append(connection)
        stage.fill(f"LOCK.ACQUIRE lock:####### owner:####### {lease} {options}", connection=connection)
        stage.expects(holds=stage.count)

    return built


def closes(stage):
    """The connection closes to which all is tied."""
    stage.clients.pop().__exit__()


def becomes(*words):
    """An act: the server takes another role."""
    return lambda stage: stage.ok("REPLICAOF", *words)


#: A primary that is not there: no server listens at port 1.
NOWHERE = ("127.0.0.1", 1)


def as_replica(build):
    """Builds, and makes the server a replica of a primary that cannot be reached."""

    def built(stage):
        build(stage)
        becomes(*NOWHERE)(stage)
        stage.known["file"] = written(stage)

    return built


def written(stage):
    """The length of the file that records the commands."""
    return field(stage.admin, "persistence", "aof_current_size") if stage.call("CONFIG GET appendonly")[-1] == b"yes" else 0


def all_are_told_to_run(stage):
    """The file says of each lease that it runs."""
    all_hold(stage)
    assert written(stage) - stage.known["file"] >= RECORD * stage.count, "some are not told of"


def held(stage):
    """One holds the line's lock."""
    stage.call(f"LOCK.ACQUIRE gate holder {LEASE}")


def lapsed(stage):
    """Checks that one holds, and none wait."""
    stage.expects(holds=1, waiters=0)


CLOSING = turn(20, BUSY)
BINDINGS = ("EPHEMERAL 60000", "KEEPALIVE")
#: A record that a lease runs has more bytes than this.
RECORD = 120

EVENTS = (
    in_slices(
        "leases that end together", "locks",
        ending("LOCK.ACQUIRE lock:####### owner:####### PX {lease}"), goes_on, nobody_is_left,
    ),
    in_slices(
        "leases that end together", "holders of a semaphore",
        ending(f"LOCK.ACQUIRE pool owner:####### PX {{lease}} LIMIT {HOLDERS_MAX}"), goes_on, nobody_is_left, sizes=TO_100_000,
    ),
    in_slices(
        "leases that end together", "readers of a lock",
        ending("LOCK.ACQUIRE pool owner:####### PX {lease} SHARED"), goes_on, nobody_is_left, sizes=TO_100_000,
    ),
    in_slices(
        "leases that end together", "waiters of all locks",
        ending(
            "LOCK.ACQUIRE lock:####### owner:####### PX {lease}",
            f"LOCK.ACQUIRE lock:####### waiter:####### {LEASE} QUEUE {LEASE_MS}",
        ),
        goes_on, all_wait, sizes=TO_100_000,
    ),
    in_slices(
        "places that lapse together", "waiters of a lock",
        ending(f"LOCK.ACQUIRE gate waiter:####### {LEASE} QUEUE {{lease}}", before=held, holds=False), goes_on, lapsed,
        sizes=TO_100_000,
    ),
    in_slices(
        "places that lapse together", "waiters of all locks",
        ending(f"LOCK.ACQUIRE lock:####### waiter:####### {LEASE} QUEUE {{lease}}", before=locks, holds=False), goes_on,
        sizes=TO_100_000,
    ),
    in_slices("a connection closes, EPHEMERAL 0", "bindings of a connection", tied("EPHEMERAL 0"), closes, nobody_holds,
              bounds=CLOSING),
    in_slices("a connection closes, EPHEMERAL 60000", "bindings of a connection", tied("EPHEMERAL 60000"), closes, all_hold,
              bounds=CLOSING),
    in_slices("a connection closes, KEEPALIVE", "bindings of a connection", tied("KEEPALIVE"), closes, all_hold,
              bounds=CLOSING),
    in_slices("a writer releases to reservations", "waiting readers of a lock", places_of_readers,
              lambda stage: stage.call("LOCK.RELEASE gate writer"), all_wait, sizes=TO_100_000),
    in_slices("the primary becomes a replica", "locks", locks, becomes(*NOWHERE)),
    in_slices("the primary becomes a replica", "waiters of a lock", places, becomes(*NOWHERE), sizes=TO_100_000),
    in_slices("the primary becomes a replica", "waiters of all locks", many_lines, becomes(*NOWHERE), sizes=TO_100_000),
    in_slices("a replica becomes the primary", "locks", as_replica(locks), becomes("NO", "ONE"), all_hold),
    *(in_slices("the primary becomes a replica", f"bindings, {options}", tied(options), becomes(*NOWHERE), all_hold,
                bounds=CLOSING) for options in BINDINGS),
    in_slices("a replica becomes the primary", "bindings, KEEPALIVE", as_replica(tied("KEEPALIVE")), becomes("NO", "ONE"),
              all_are_told_to_run, bounds=CLOSING, options=lambda count: AOF),
)
