"""The commands, in the presence of many locks, holders, waiters, reservations, bindings, keys of a request,
databases."""

from bench.servers import encode

from .fit import Bound
from .rows import LINEAR, TO_100_000, TURN_MS, Scene, command
from .stage import HOLDERS_MAX, LEASE_MS

LEASE = f"PX {LEASE_MS}"
PLACE = f"{LEASE} QUEUE {LEASE_MS}"

#: Commands that are independent of the large number, and cost the same in its presence.
PAIR = command("ACQUIRE + RELEASE", f"LOCK.ACQUIRE free:{{i}} me {LEASE} -> :", "LOCK.RELEASE free:{i} me -> :1")
PING = command("PING", "PING -> +")
#: An operator's command, which goes through all holds of the server.
HELDBY = command(
    "HELDBY of an owner", "LOCK.HELDBY owner:0000005 -> *", times=5,
    exponent=LINEAR,
    turn=Bound(25, TURN_MS, "it reads the record of every hold, 50 bytes each; an index of owners would cost every acquire"),
)
#: Of a thousand, a thousand are shown, of more, two thousand.
SHOWN = Bound(0.3)
INFO_ALL = command("INFO redislock", "INFO redislock -> $", times=50)

OF_ONE = (
    command("ACQUIRE, refused", "LOCK.ACQUIRE lock:0000005 me PX 1000 -> $-1"),
    command("RENEW", f"LOCK.RENEW lock:0000005 owner:0000005 {LEASE} -> :1"),
    command("FENCE", "LOCK.FENCE lock:0000005 -> :"),
    command("FENCE with a token", "LOCK.FENCE lock:0000000 {token} -> :1"),
    command("EXEC", "LOCK.EXEC lock:0000000 {token} PING -> +"),
    command("INFO", "LOCK.INFO lock:0000005 -> *", times=100),
)
KINDS = (
    command("ACQUIRE SHARED + RELEASE", f"LOCK.ACQUIRE s:{{i}} me {LEASE} SHARED -> :", "LOCK.RELEASE s:{i} me -> :1"),
    command("ACQUIRE LIMIT + RELEASE", f"LOCK.ACQUIRE l:{{i}} me {LEASE} LIMIT 5 -> :", "LOCK.RELEASE l:{i} me -> :1"),
    command(
        "ACQUIRE REENTRANT twice + RELEASE twice", f"LOCK.ACQUIRE r:{{i}} me {LEASE} REENTRANT -> :",
        f"LOCK.ACQUIRE r:{{i}} me {LEASE} REENTRANT -> :", "LOCK.RELEASE r:{i} me -> :1", "LOCK.RELEASE r:{i} me -> :1",
    ),
    command(
        "ACQUIRE EPHEMERAL KEEPALIVE + RELEASE", f"LOCK.ACQUIRE e:{{i}} me {LEASE} EPHEMERAL 0 KEEPALIVE -> :",
        "LOCK.RELEASE e:{i} me -> :1",
    ),
    command(
        "MACQUIRE of 2 + RELEASE", f"LOCK.MACQUIRE 2 a:{{i}} b:{{i}} me {LEASE} -> :", "LOCK.RELEASE a:{i} me -> :1",
        "LOCK.RELEASE b:{i} me -> :1",
    ),
    command("QUEUE, joined and left", f"LOCK.ACQUIRE lock:0000005 me {PLACE} -> $-1", "LOCK.RELEASE lock:0000005 me -> :0"),
)
KEYS = (
    command("ACQUIRE + DEL", f"LOCK.ACQUIRE d:{{i}} me {LEASE} -> :", "DEL d:{i} -> :1"),
    command("ACQUIRE + UNLINK", f"LOCK.ACQUIRE d:{{i}} me {LEASE} -> :", "UNLINK d:{i} -> :1"),
    command("ACQUIRE + SET over it + DEL", f"LOCK.ACQUIRE d:{{i}} me {LEASE} -> :", "SET d:{i} x -> +", "DEL d:{i} -> :1"),
    command("ACQUIRE + RENAME + DEL", f"LOCK.ACQUIRE d:{{i}} me {LEASE} -> :", "RENAME d:{i} x -> +", "DEL x -> :1"),
    command(
        "ACQUIRE + MOVE + DEL", f"LOCK.ACQUIRE d:{{i}} me {LEASE} -> :", "MOVE d:{i} 3 -> :1", "SELECT 3 -> +",
        "DEL d:{i} -> :1", "SELECT 0 -> +",
    ),
    command("DUMP", "DUMP lock:0000005 -> $", times=100),
)
DATABASES = (
    command("SWAPDB of two empty databases", "SWAPDB 5 6 -> +"),
    command("FLUSHDB of an empty database", "SELECT 7 -> +", "FLUSHDB SYNC -> +", "SELECT 0 -> +"),
)


def locks(stage):
    """`stage.count` exclusive locks, each of another owner."""
    stage.fill(f"LOCK.ACQUIRE lock:####### owner:####### {LEASE}")
    stage.expects(locks=stage.count, holds=stage.count)
    stage.known["token"] = int(stage.call("LOCK.FENCE lock:0000000")[1:])


def permits(stage):
    """All permits of one semaphore but one are held."""
    stage.fill(f"LOCK.ACQUIRE pool owner:####### {LEASE} LIMIT {HOLDERS_MAX}", range(min(stage.count, HOLDERS_MAX - 1)))
    stage.expects_all()
    stage.known["token"] = int(stage.call("LOCK.FENCE pool")[1:])


def readers(stage):
    """`stage.count` readers of one lock; there is room for another."""
    stage.fill(f"LOCK.ACQUIRE pool owner:####### {LEASE} SHARED", range(min(stage.count, HOLDERS_MAX - 1)))
    stage.known["token"] = int(stage.call("LOCK.FENCE pool")[1:])
    stage.expects_all()


def readers_and_writer(stage):
    """`stage.count` readers, and a writer that waits for them."""
    readers(stage)
    stage.call(f"LOCK.ACQUIRE pool first {PLACE}")


def places(stage):
    """`stage.count` places in the line of one lock, which is held."""
    stage.call(f"LOCK.ACQUIRE gate waiter:first {LEASE}")
    stage.fill(f"LOCK.ACQUIRE gate waiter:####### {PLACE}")
    stage.expects(holds=1, waiters=stage.count)


def many_lines(stage):
    """`stage.count` locks, with a place in the line of each."""
    locks(stage)
    stage.fill(f"LOCK.ACQUIRE lock:####### waiter:####### {PLACE}")
    stage.expects(holds=stage.count, waiters=stage.count)


def reservations(stage):
    """`stage.count` locks, each of which is reserved for the first of its line."""
    many_lines(stage)
    stage.fill("LOCK.RELEASE lock:####### owner:#######")
    stage.expects(holds=0, waiters=stage.count)


def places_of_readers(stage):
    """`stage.count` readers wait in the line of one lock, which a writer holds."""
    stage.call(f"LOCK.ACQUIRE gate writer {LEASE}")
    stage.fill(f"LOCK.ACQUIRE gate waiter:####### {PLACE} SHARED")
    stage.expects(holds=1, waiters=stage.count)


def reservations_of_one(stage):
    """`stage.count` readers have one lock reserved: the writer whom they waited for has released it."""
    places_of_readers(stage)
    stage.call("LOCK.RELEASE gate writer")


def bindings(stage):
    """`stage.count` holds are tied to one connection, which is the one that asks."""
    stage.fill(f"LOCK.ACQUIRE lock:####### owner:####### {LEASE} EPHEMERAL 1000")
    stage.expects(holds=stage.count)


def chain(stage):
    """`stage.count` owners in a chain: each waits for the one before. Outside of it, another owner waits for `me`."""
    stage.fill(f"LOCK.ACQUIRE lock:####### owner:####### {LEASE}")
    stage.call(f"LOCK.ACQUIRE mine me {LEASE}")
    stage.call(f"LOCK.ACQUIRE mine another {PLACE}")
    stage.known["end"] = stage.count - 1
    stage.admin.pipeline(b"".join(encode(*link(number).split()) for number in range(1, stage.count)), stage.count - 1)


def link(number):
    """The words by which one owner waits for the one before."""
    return f"LOCK.ACQUIRE lock:{number - 1:07} owner:{number:07} {PLACE}"


def nothing(stage):
    """Nothing is there."""


HOLDERS = (
    command("a permit, ACQUIRE + RELEASE", f"LOCK.ACQUIRE pool me {LEASE} LIMIT {HOLDERS_MAX} -> :", "LOCK.RELEASE pool me -> :1"),
    command("RENEW", f"LOCK.RENEW pool owner:0000005 {LEASE} -> :1"),
    command("FENCE", "LOCK.FENCE pool -> :"),
    command("FENCE with a token", "LOCK.FENCE pool {token} -> :1"),
    command("INFO", "LOCK.INFO pool -> *", times=100),
    command("INFO FULL COUNT 2000", "LOCK.INFO pool FULL COUNT 2000 -> *", times=5, exponent=SHOWN),
    PAIR, HELDBY, PING,
)
READERS = (
    command("a reader, ACQUIRE + RELEASE", f"LOCK.ACQUIRE pool me {LEASE} SHARED -> :", "LOCK.RELEASE pool me -> :1"),
    command("a writer joins and leaves", f"LOCK.ACQUIRE pool me {PLACE} -> $-1", "LOCK.RELEASE pool me -> :0"),
    *HOLDERS[1:3], HOLDERS[4],
)
WAITERS = (
    command("QUEUE, joined and left", f"LOCK.ACQUIRE gate me {PLACE} -> $-1", "LOCK.RELEASE gate me -> :0"),
    command("QUEUE, asked again", f"LOCK.ACQUIRE gate waiter:0000900 {PLACE} -> $-1"),
    command("QUEUE, left in the middle and joined", "LOCK.RELEASE gate waiter:0000900 -> :0",
            f"LOCK.ACQUIRE gate waiter:0000900 {PLACE} -> $-1"),
    command("ACQUIRE, refused", f"LOCK.ACQUIRE gate me {LEASE} -> $-1"),
    command("RENEW", f"LOCK.RENEW gate waiter:first {LEASE} -> :1"),
    command("INFO", "LOCK.INFO gate -> *", times=100),
    command("INFO FULL COUNT 2000", "LOCK.INFO gate FULL COUNT 2000 -> *", times=5, exponent=SHOWN),
    PAIR, PING,
)
HAND_OVER = command(
    "hand-over: RELEASE, and the next asks", "LOCK.RELEASE lock:{i:07} owner:{i:07} -> :1",
    f"LOCK.ACQUIRE lock:{{i:07}} waiter:{{i:07}} {PLACE} -> :",
)
TURN_BY_TURN = command(
    "hand-over: the next asks, and releases", f"LOCK.ACQUIRE gate waiter:{{i:07}} {PLACE} -> :",
    "LOCK.RELEASE gate waiter:{i:07} -> :1",
)


def released(stage):
    """`stage.count` wait in one line, and it is the first one's turn."""
    places(stage)
    stage.call("LOCK.RELEASE gate waiter:first")


def of_keys(stage):
    """`stage.count` keys of a request, and as many that are held by one owner."""
    stage.known["keys"] = " ".join(f"free:{number}" for number in range(stage.count))
    stage.known["held"] = " ".join(f"held:{number}" for number in range(stage.count))
    stage.call("LOCK.MACQUIRE", stage.count, *stage.known["held"].split(), "owner", "PX", LEASE_MS)


#: A request for many keys may cost as much as one request for each key.
REQUESTS = (
    command("MACQUIRE + DEL of all", f"LOCK.MACQUIRE {{n}} {{keys}} me {LEASE} -> :", "DEL {keys} -> :", times=50, exponent=LINEAR),
    command("MACQUIRE of the same owner again", f"LOCK.MACQUIRE {{n}} {{held}} owner {LEASE} -> :", times=50, exponent=LINEAR),
    command("MACQUIRE, refused", f"LOCK.MACQUIRE {{n}} {{held}} me {LEASE} -> $-1", times=50, exponent=LINEAR),
)
SEARCH = command(
    "QUEUE at the end of a chain, joined and left",
    f"LOCK.ACQUIRE lock:{{end:07}} me {PLACE} -> $-1", f"LOCK.RELEASE lock:{{end:07}} me -> :0",
    times=10, exponent=LINEAR, turn=Bound(TURN_MS, 1.0, "a search takes up to 4096 steps, of some 1 us each"),
)

SCENES = (
    Scene("locks", locks, (PAIR, *OF_ONE, *KINDS, *KEYS, *DATABASES, INFO_ALL, PING, HELDBY)),
    Scene("holders of a semaphore", permits, HOLDERS),
    Scene("readers of a lock", readers, READERS),
    Scene("readers, beside a waiting writer", readers_and_writer, READERS[1:2], TO_100_000),
    Scene("waiters of a lock", places, WAITERS, TO_100_000),
    Scene("waiters of a lock, in turn", released, (TURN_BY_TURN,), TO_100_000),
    Scene("waiting readers of a lock", places_of_readers, WAITERS[:1], TO_100_000),
    Scene("waiters of all locks", many_lines, (PAIR, KINDS[-1], HAND_OVER, INFO_ALL, PING, HELDBY), TO_100_000),
    Scene("reservations of all locks", reservations, (PAIR, PING, INFO_ALL), TO_100_000),
    Scene(
        "reservations of a lock", reservations_of_one,
        (command("ACQUIRE SHARED + RELEASE", f"LOCK.ACQUIRE gate me {LEASE} SHARED -> :", "LOCK.RELEASE gate me -> :1"),
         WAITERS[0], PAIR, PING),
        TO_100_000,
    ),
    Scene("bindings of a connection", bindings, (PAIR, OF_ONE[1], KINDS[3], KINDS[0], PING)),
    Scene("keys of a request", of_keys, REQUESTS, (1, 4, 16, 64)),
    Scene("links of a chain of owners", chain, (SEARCH,), (100, 1_000, 4_000)),
    Scene(
        "databases", nothing, (PAIR, DATABASES[0], DATABASES[1], KEYS[4]), (10, 100, 1_000, 10_000),
        lambda count: ("--databases", str(max(count, 10))),
    ),
)
