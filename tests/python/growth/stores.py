"""Events of stored locks: flushes, swaps, deletions, copies, files. If the server does the whole at once, the same
happens for comparison to as many strings, or to a set of as many members."""

from bench.floor import floor

from .beside import locks, many_lines, permits
from .fit import Bound
from .rows import AS_SERVERS_OWN, LINEAR_TIME, RATIO, TO_100_000, TO_300_000, TURN, TURN_MS, Event, nothing_more
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


def empty_values(stage):
    """As many keys whose values are a module's and empty: the server's own work for such a value."""
    stage.fill("FLOOR.SET lock:#######")


def does(*words):
    """An act: this command."""
    return lambda stage: stage.call(*words)


def payload_of(build):
    """Builds, keeps the output of DUMP, and deletes it. Under another name all that comes of a lock is an empty one."""

    def built(stage):
        build(stage)
        stage.known["payload"] = stage.call("DUMP pool")
        stage.call("DEL pool")

    return built


def restores(stage):
    """The payload under its name."""
    stage.ok("RESTORE", "pool", 0, stage.known["payload"])


def unlinks_all(stage):
    """Unlinks all of them by one command."""
    stage.call("UNLINK", *(f"lock:{number:07}" for number in range(stage.count)))


def is_empty(stage):
    """Checks that there are no holds and no keys."""
    stage.expects(locks=0, holds=0)
    assert stage.call("DBSIZE") == b":0", "keys are left"


def has_no_keys(stage):
    """No key is there."""
    assert stage.call("DBSIZE") == b":0", "keys are left"


def nobody_holds(stage):
    """Nobody holds anything."""
    stage.expects(holds=0)


def all_hold(stage):
    """All holds are unchanged."""
    stage.expects_all()


def by_server(what, many, build, act, beside, then=nothing_more, **more):
    """Operations that the server does at once: only their cost relative to its own values has a bound."""
    bounds = {"exponent": LINEAR_TIME, "ratio": AS_SERVERS_OWN, **more.pop("bounds", {})}
    return Event(what, bounds, many, build, act, beside=(beside, act), then=then, **more)


def in_slices(what, many, build, act, then=nothing_more, **more):
    """Operations that the module does on its own account, a few at a time."""
    bounds = {"exponent": LINEAR_TIME, "turn": TURN, **more.pop("bounds", {})}
    return Event(what, bounds, many, build, act, then=then, **more)


AOF = ("--appendonly", "yes", "--appendfsync", "no", "--aof-use-rdb-preamble", "no")

COMPRESSED = (
    "the module takes 18 % of a save and 21 % of a reload; the server writes a module's value in several pieces, and "
    "tries to compress strings of more than 20 bytes: a lock has one"
)
VALUES = "beside what the server does for a value of a module (see the rows of empty values), each hold is ended for itself"
HOLDERS_COME = (
    "to read a holder, and give it a record and a place on the timing wheel, takes 64 % of the time; two indexes and the "
    "check for repeated owners 36 %"
)
PACKED = "a holder has 27 bytes, which the server tries to compress; a member of the set 14, which it does not"
RECORDS = "each record is a call of the module, where that of a string is one of the server"
BROKEN = "each hold is ended for itself: it is counted, told to watchers and taken off the timing wheel"
BUSY = "a busy machine takes ten times as long"
AT_ONCE = "the holds that are broken are not worked off in slices"


SERVERS = "it is the server alone that does it"


def with_floor(_):
    """The options of a server that has that other module, too."""
    return ("--loadmodule", str(floor()))


def ratio(limit, why, on_valkey=None):
    """A bound of the ratio above the goal."""
    return {"ratio": Bound(limit, RATIO, why, on_valkey)}


def turn(limit, why=AT_ONCE, wanted=TURN_MS):
    """A bound of the longest turn above the goal."""
    return {"turn": Bound(limit, wanted, why)}


PIECES = "this Valkey has the C library's allocator, which joins at once what a background thread freed"
LATER = {"turn": Bound(TURN_MS, TURN_MS, PIECES, on_valkey=25)}

LOCKS = (
    by_server("FLUSHALL SYNC, and of strings", "locks", locks, does("FLUSHALL SYNC"), strings, is_empty,
              bounds=ratio(1.6, VALUES, on_valkey=5)),
    by_server("FLUSHDB SYNC, and of strings", "locks", locks, does("FLUSHDB SYNC"), strings, is_empty,
              bounds=ratio(1.6, VALUES, on_valkey=5)),
    by_server("FLUSHALL SYNC of empty values, and of strings", "keys of another module", empty_values, does("FLUSHALL SYNC"),
              strings, has_no_keys, options=with_floor, bounds=ratio(5, SERVERS)),
    by_server("SAVE of empty values, and of strings", "keys of another module", empty_values, does("SAVE"), strings,
              options=with_floor, bounds=ratio(5, SERVERS)),
    by_server("SAVE, and of strings", "locks", locks, does("SAVE"), strings, all_hold, bounds=ratio(3, COMPRESSED, on_valkey=6)),
    by_server("DEBUG RELOAD, and of strings", "locks", locks, does("DEBUG RELOAD"), strings, all_hold,
              bounds=ratio(3, COMPRESSED)),
    by_server("DEBUG LOADAOF, and of strings", "locks", locks, does("DEBUG LOADAOF"), strings, all_hold, sizes=TO_100_000,
              options=lambda count: AOF, bounds=ratio(1.6, RECORDS)),
    by_server("UNLINK of all by one command, and of strings", "locks", locks, unlinks_all, strings, is_empty,
              sizes=TO_100_000, bounds=ratio(3, BROKEN)),
    by_server("a fork for BGSAVE, and of strings", "locks", locks, does("BGSAVE"), strings, all_hold,
              bounds={"ratio": Bound(2.0)}),
    in_slices("FLUSHALL ASYNC", "locks", locks, does("FLUSHALL ASYNC"), is_empty, bounds=LATER),
    in_slices("FLUSHDB ASYNC", "locks", locks, does("FLUSHDB ASYNC"), is_empty, bounds=LATER),
    in_slices("FLUSHALL ASYNC", "waiters of all locks", many_lines, does("FLUSHALL ASYNC"), nobody_holds,
              sizes=TO_100_000, bounds=turn(20, BUSY)),
    in_slices("SWAPDB of the database with them", "locks", locks, does("SWAPDB 0 1"), nobody_holds, bounds=turn(30, BUSY)),
)

A_SEMAPHORE = "holders of a semaphore"
HOLDERS = (
    by_server("FLUSHALL SYNC, and of a set", A_SEMAPHORE, permits, does("FLUSHALL SYNC"), members, is_empty,
              bounds=ratio(RATIO, "a set of Valkey ends faster", on_valkey=3)),
    by_server("SAVE, and of a set", A_SEMAPHORE, permits, does("SAVE"), members, all_hold, bounds=ratio(2, PACKED, on_valkey=6)),
    by_server("DEBUG RELOAD, and of a set", A_SEMAPHORE, permits, does("DEBUG RELOAD"), members, all_hold,
              bounds=ratio(2, HOLDERS_COME, on_valkey=6)),
    by_server("DUMP, and of a set", A_SEMAPHORE, permits, does("DUMP pool"), members, bounds=ratio(2, PACKED, on_valkey=8)),
    by_server("RESTORE, and of a set", A_SEMAPHORE, payload_of(permits), restores, payload_of(members),
              bounds=ratio(6, HOLDERS_COME)),
    by_server("DEL, and of a set", A_SEMAPHORE, permits, does("DEL pool"), members, is_empty,
              options=lambda count: ("--lazyfree-lazy-user-del", "no"),
              bounds=ratio(RATIO, "a set of Valkey ends faster", on_valkey=3)),
    in_slices("SWAPDB of the database with it", A_SEMAPHORE, permits, does("SWAPDB 0 1"), nobody_holds, bounds=turn(30, BUSY)),
    in_slices("UNLINK", A_SEMAPHORE, permits, does("UNLINK pool"), is_empty, bounds=turn(30, BUSY)),
    in_slices("UNLINK of fewer", A_SEMAPHORE, permits, does("UNLINK pool"), is_empty, sizes=TO_300_000,
              bounds=turn(20, BUSY, wanted=2.0)),
    in_slices("RENAME", A_SEMAPHORE, permits, does("RENAME pool other"), nobody_holds, bounds=turn(30, BUSY)),
    in_slices("MOVE", A_SEMAPHORE, permits, does("MOVE pool 1"), nobody_holds, bounds=turn(30, BUSY)),
    in_slices("SET over it", A_SEMAPHORE, permits, does("SET pool x"), nobody_holds, bounds=turn(30, BUSY)),
)

EVENTS = (*LOCKS, *HOLDERS)
