"""Events of what is stored: flushes, swaps, deletions, copies, files. Where the server does the whole at once, the same
happens beside it to as many strings, or to a set of as many members."""

from .beside import locks, many_lines, permits
from .rows import AS_SERVERS_OWN, CONSTANT_TIME, LINEAR_TIME, TO_100_000, TURN, Event
from .stage import LEASE_MS

#: A string that lasts as a lock does.
STRING = f"SET lock:####### owner:####### PX {LEASE_MS}"
MEMBER = "SADD pool owner:#######"


def strings(stage):
    """As many strings, each with a time to live."""
    stage.fill(STRING)


def members(stage):
    """A set of as many members."""
    stage.fill(MEMBER)


def does(*words):
    """An act: this command."""
    return lambda stage: stage.call(*words)


def payload_of(build):
    """Builds, and keeps what DUMP gives."""

    def built(stage):
        build(stage)
        stage.known["payload"] = stage.call("DUMP pool")

    return built


def restores(stage):
    """The payload under another name."""
    stage.ok("RESTORE", "other", 0, stage.known["payload"])


def unlinks_all(stage):
    """All of them by one command."""
    stage.call("UNLINK", *(f"lock:{number:07}" for number in range(stage.count)))


def is_empty(stage):
    """Nobody holds anything, and no key is there."""
    stage.expects(locks=0, holds=0)
    return stage.call("DBSIZE") == b":0"


def nobody_holds(stage):
    """Nobody holds anything."""
    stage.expects(holds=0)
    return True


def all_hold(stage):
    """All hold what they held."""
    stage.expects_all()
    return True


def by_server(what, many, build, act, beside, then=lambda stage: True, **more):
    """What the server does at once: only what it costs beside its own things has a bound."""
    bounds = {"exponent": LINEAR_TIME, "ratio": AS_SERVERS_OWN, **more.pop("bounds", {})}
    return Event(what, bounds, many, build, act, beside=(beside, act), then=then, **more)


def in_slices(what, many, build, act, then=lambda stage: True, **more):
    """What the module does on its own account, a few at a time."""
    bounds = {"exponent": LINEAR_TIME, "turn": TURN, **more.pop("bounds", {})}
    return Event(what, bounds, many, build, act, then=then, **more)


AOF = ("--appendonly", "yes", "--appendfsync", "no", "--aof-use-rdb-preamble", "no")

EVENTS = (
    by_server("FLUSHALL SYNC, and of strings", "locks", locks, does("FLUSHALL SYNC"), strings, is_empty),
    by_server("FLUSHDB SYNC, and of strings", "locks", locks, does("FLUSHDB SYNC"), strings, is_empty),
    by_server("FLUSHALL SYNC, and of a set", "holders of a semaphore", permits, does("FLUSHALL SYNC"), members, is_empty),
    by_server("SAVE, and of strings", "locks", locks, does("SAVE"), strings, all_hold),
    by_server("DEBUG RELOAD, and of strings", "locks", locks, does("DEBUG RELOAD"), strings, all_hold),
    by_server(
        "DEBUG LOADAOF, and of strings", "locks", locks, does("DEBUG LOADAOF"), strings, all_hold,
        sizes=TO_100_000, options=lambda count: AOF,
    ),
    by_server(
        "UNLINK of all by one command, and of strings", "locks", locks, unlinks_all, strings, is_empty, sizes=TO_100_000,
    ),
    by_server("SAVE, and of a set", "holders of a semaphore", permits, does("SAVE"), members, all_hold),
    by_server("DEBUG RELOAD, and of a set", "holders of a semaphore", permits, does("DEBUG RELOAD"), members, all_hold),
    by_server("DUMP, and of a set", "holders of a semaphore", permits, does("DUMP pool"), members),
    by_server("RESTORE, and of a set", "holders of a semaphore", payload_of(permits), restores, payload_of(members)),
    by_server("DEL, and of a set", "holders of a semaphore", permits, does("DEL pool"), members, is_empty),
    in_slices("FLUSHALL ASYNC", "locks", locks, does("FLUSHALL ASYNC"), is_empty),
    in_slices("FLUSHDB ASYNC", "locks", locks, does("FLUSHDB ASYNC"), is_empty),
    in_slices("FLUSHALL ASYNC", "waiters of all locks", many_lines, does("FLUSHALL ASYNC"), nobody_holds, sizes=TO_100_000),
    in_slices("SWAPDB of the database with them", "locks", locks, does("SWAPDB 0 1"), nobody_holds),
    in_slices("SWAPDB of the database with it", "holders of a semaphore", permits, does("SWAPDB 0 1"), nobody_holds),
    in_slices("UNLINK", "holders of a semaphore", permits, does("UNLINK pool"), is_empty),
    in_slices("RENAME", "holders of a semaphore", permits, does("RENAME pool other"), nobody_holds),
    in_slices("MOVE", "holders of a semaphore", permits, does("MOVE pool 1"), nobody_holds),
    in_slices("SET over it", "holders of a semaphore", permits, does("SET pool x"), nobody_holds),
    in_slices(
        "a fork for BGSAVE", "locks", locks, does("BGSAVE"), all_hold, bounds={"exponent": CONSTANT_TIME},
    ),
)
