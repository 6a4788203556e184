"""Rows that take connections: clients that wait, grants that replicas confirm, requests for many keys, replicas.

There are never more than 900 connections at once to one server.
"""

from functools import partial

from bench.crowd import Crowd, field
from bench.servers import encode
from harness.confirming import frozen
from harness.group import freeze, thaw

from .beside import LEASE, link, nothing
from .fit import Bound
from .rows import CLIENTS, CONSTANT_TIME, LINEAR_TIME, TURN, TURN_MS, Event
from .stores import in_slices

KEYS = 64
NAMES = [f"{{k}}{number}" for number in range(KEYS)]
TIMES = 20
PINGS = 300


def blocked(stage):
    """The number of the server's waiting clients."""
    return field(stage.admin, "clients", "blocked_clients")


def crowd(stage, words):
    """`stage.count` clients: each says this and waits."""
    members = stage.enter(Crowd(stage.server, stage.count))
    members.say(lambda number: encode(*words(number)))
    stage.wait_until(lambda: blocked(stage) == stage.count, "all wait")
    stage.clients = members


def waiting(*options, keys=1):
    """Builds clients who wait for one lock (or each for its own)."""

    def built(stage):
        for number in range(stage.count if keys > 1 else 1):
            stage.call(f"LOCK.ACQUIRE gate:{number} holder {LEASE}")
        crowd(stage, lambda number: ("LOCK.ACQUIRE", f"gate:{number if keys > 1 else 0}", f"w{number}", "PX", 60_000,
                                     "BLOCK", 0, *options))

    return built


def popping(stage):
    """Clients who wait for an element of a list."""
    crowd(stage, lambda number: ("BLPOP", "list", 0))


def leave_at_once(stage):
    """All close their connections while the server is stopped, so that it sees them go in as few turns as it can."""
    freeze(stage.server)
    stage.clients.leave()
    thaw(stage.server)
    stage.call("PING")


def let_in(stage):
    """The holder releases; all waiters are granted, and notified."""
    stage.call("LOCK.RELEASE gate:0 holder")
    stage.clients.hear()


def hand_over(stage):
    """The holder releases; the next one is granted, and notified; and so on."""
    stage.call("LOCK.RELEASE gate:0 holder")
    for number in range(TIMES - 1):
        stage.call(f"LOCK.RELEASE gate:0 w{number}")


def same_keys(stage):
    """Clients who wait for the same many keys."""
    stage.call("LOCK.MACQUIRE", KEYS, *NAMES, "holder", "PX", 3_600_000)
    crowd(stage, lambda number: ("LOCK.MACQUIRE", KEYS, *NAMES, f"w{number}", "PX", 60_000, "BLOCK", 0))
    more = stage.enter(Crowd(stage.server, TIMES))
    stage.known["more"] = more


def more_join(stage):
    """Some more clients wait for the same keys, one after the other."""
    for number in range(TIMES):
        words = ("LOCK.MACQUIRE", KEYS, *NAMES, f"w{stage.count + number}", "PX", 60_000, "BLOCK", 0)
        stage.known["more"].say(lambda _, words=words: encode(*words), number, number + 1)
        stage.wait_until(lambda wanted=stage.count + number + 1: blocked(stage) == wanted, "it waits, too")


def all_leave(stage):
    """All waiters are gone."""
    stage.expects(waiters=0)


def builds_chain(stage):
    """`stage.count` owners in a chain: each waits for the one before, from one connection."""
    for number in range(1, stage.count):
        stage.call(link(number))


def owners(stage):
    """`stage.count` owners, with a lock each."""
    stage.fill(f"LOCK.ACQUIRE lock:####### owner:####### {LEASE}")


def pending(stage):
    """`stage.count` grants wait for a replica that is stopped; another one continues."""
    confirms(stage, 2)
    replica = stage.server.replicas[-1]
    stage.enter(frozen(replica))
    crowd(stage, lambda number: ("LOCK.ACQUIRE", f"lock:{number}", f"w{number}", "PX", 60_000))


def nobody_confirms(stage):
    """Replicas leave, so that no pending grant can be confirmed."""
    stage.call("CLIENT KILL TYPE replica")


def all_are_undone(stage):
    """No grant waits for replicas any more, and no unconfirmed hold is left."""
    assert blocked(stage) == 0, "clients wait"
    stage.expects(holds=0)


def confirms(stage, replicas=None):
    """Grants are confirmed by all replicas."""
    count = replicas or stage.count
    pairs = {"confirm": "all", "group-size": count + 1, "quarantine": 3_600_000, "confirm-timeout": 60_000}
    stage.ok("CONFIG", "SET", *(part for name, value in pairs.items() for part in (f"redislock.{name}", value)))
    stage.wait_until(lambda: stage.figure("confirm_replicas") == count, "the replicas are known")


def pings(stage):
    """An unrelated client, one command in each turn."""
    for _ in range(PINGS):
        stage.call("PING")


def writes(stage):
    """An unrelated client writes, so that replicas have something to acknowledge."""
    for number in range(PINGS):
        stage.call(f"SET x {number}")


def pairs(stage):
    """Acquire and release, one after the other."""
    for number in range(PINGS):
        stage.call(f"LOCK.ACQUIRE free:{number} me PX 60000")
        stage.call(f"LOCK.RELEASE free:{number} me")


event = partial(in_slices, sizes=CLIENTS)


def leaving(many, build):
    """Clients that wait leave at once. The server's own account includes that it closes all connections in one turn."""
    bounds = {"exponent": LINEAR_TIME, "ratio": Bound(1.6)}
    return Event("clients that wait leave at once, and from BLPOP", bounds, many, build, leave_at_once, CLIENTS,
                 (popping, leave_at_once), all_leave)


EACH = {"exponent": CONSTANT_TIME, "turn": TURN}
#: The server itself writes to each of them.
REPLICAS = (1, 2, 4)

EVENTS = (
    event("clients let in by a writer's release", "waiting readers, connected", waiting("SHARED"), let_in),
    leaving("waiters of a lock, connected", waiting()),
    leaving("waiters of a lock each, connected", waiting(keys=2)),
    event("a hand-over", "waiters of a lock, connected", waiting(), hand_over, times=TIMES, bounds=EACH),
    event("one more MACQUIRE of the same 64 keys", "waiting requests for many keys", same_keys, more_join, times=TIMES,
          bounds=EACH),
    event("PING", "pending confirmations", pending, pings, times=PINGS, bounds=EACH, replicas=lambda count: 2),
    event("SET", "pending confirmations", pending, writes, times=PINGS, bounds=EACH, replicas=lambda count: 2),
    event("a replica leaves, and all fail", "pending confirmations", pending, nobody_confirms, all_are_undone,
          replicas=lambda count: 2),
    event("ACQUIRE + RELEASE, confirmed by all", "replicas", confirms, pairs, times=PINGS, sizes=REPLICAS,
          replicas=lambda count: count),
    event("ACQUIRE + RELEASE", "replicas", nothing, pairs, times=PINGS, sizes=REPLICAS, replicas=lambda count: count),
    Event("a chain of owners is built, each behind the one before",
          {"exponent": Bound(2.5), "turn": Bound(TURN_MS, 1.0, "a search takes up to 4096 steps"),
           "cost": Bound(4e6, 1e6, "each search goes through the whole chain")},
          "links of a chain of owners", owners, builds_chain, sizes=(500, 1_000, 2_000, 4_000)),
)
