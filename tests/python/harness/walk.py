"""A walk through everything that can happen to locks of all kinds, one step at a time.

    for step in walk(server):
        compare(step)

Between two steps nothing is under way: no connection waits, and no lease is about to end.
"""

from .kinds import ask, ask_all, close_and_settle, count, count_and_share, line_of, owners_of, release, take, take_all
from .limits import eventually
from .replies import lock_info

#: Leases are compared across files and replicas; nothing here lasts as long.
LEASE_SLACK_MS = 60_000


def comes_to(cli, key, *owners):
    """Waits until just these hold the lock, in the order of their tokens."""
    eventually(lambda: owners_of(cli, key) == list(owners), f"{key}: {owners}, not {owners_of(cli, key)}")


def readers(server, cli):
    """Shared locks: together, one by one, downgrade, batches."""
    for n in range(3):
        take(cli, "read", f"r{n}", "SHARED", lease_ms=3_000_000 + n * 100_000)
        yield f"reader {n} comes"
    take(cli, "read", "r1", "SHARED", lease_ms=3_600_000)
    yield "a reader's retry makes its lease longer"
    cli("LOCK.RENEW read r2 PX 2000000")
    yield "a reader renews"
    release(cli, "read", "r0")
    yield "a reader leaves"
    take(cli, "read", "brief", "SHARED", lease_ms=40)
    comes_to(cli, "read", "r1", "r2")
    yield "the lease of one reader ends"
    take(cli, "read", "brief", "SHARED")
    yield "the reader whose lease ended comes again"
    release(cli, "read", "brief")
    for name in ("r1", "r2"):
        release(cli, "read", name)
    take(cli, "read", "r1")
    yield "a reader that has left writes"
    waiters = [ask(server, "read", name, "SHARED") for name in ("b1", "b2")]
    take(cli, "read", "r1", "SHARED")
    comes_to(cli, "read", "r1", "b1", "b2")
    yield "a downgrade lets readers in"
    writer = ask(server, "read", "w")
    for name in ("r1", "b1", "b2"):
        release(cli, "read", name)
    writer.answer()
    waiters += [ask(server, "read", name, "SHARED", lease_ms=3_000_000) for name in ("c1", "c2", "c3")]
    release(cli, "read", "w")
    comes_to(cli, "read", "c1", "c2", "c3")
    yield "a batch of readers is let in"
    count_and_share(cli, "alone", "r", 2)
    yield "twice, and down again"


def permits(server, cli):
    """Semaphores: taken, freed, handed on, many."""
    for n in range(3):
        take(cli, "pool", f"p{n}", "LIMIT 3", lease_ms=3_000_000 + n * 100_000)
    yield "all permits are taken"
    ask(server, "pool", "next", "LIMIT 3")
    release(cli, "pool", "p1")
    comes_to(cli, "pool", "p0", "p2", "next")
    yield "a permit is handed on"
    take(cli, "large", "brief", "LIMIT 1000000", lease_ms=500)
    cli.pipeline(*[f"LOCK.ACQUIRE large m{n} PX 3600000 LIMIT 1000000" for n in range(30)])
    eventually(lambda: "brief" not in owners_of(cli, "large"), "the lease of one of many ends")
    yield "the lease of one of many ends"
    for n in range(0, 30, 2):
        release(cli, "large", f"m{n}")
    yield "half of many leave"
    take(cli, "one", "x", "LIMIT 1", lease_ms=40)
    ask(server, "one", "y", "LIMIT 1").answer()
    yield "the only permit is handed on when its lease ends"
    for n in range(4):
        take(cli, "gone", f"g{n}", "LIMIT 4")
    ask(server, "gone", "heir", "LIMIT 4")
    cli("DEL gone")
    comes_to(cli, "gone", "heir")
    yield "a full semaphore is broken, and the waiter comes in"


def several(server, cli):
    """LOCK.MACQUIRE: at once, after a wait, shared."""
    take_all(cli, "m1 m2 m3", "all")
    yield "three locks at once"
    take_all(cli, "m1 m2 m3", "all", lease_ms=3_600_000)
    release(cli, "m2", "all")
    yield "one of three is given up"
    waiter = ask_all(server, "m3 m4 m2", "next")
    release(cli, "m3", "all")
    waiter.answer()
    yield "three locks are granted after a wait"
    take_all(cli, "s1 s2", "r1", "SHARED")
    take_all(cli, "s2 s3", "r2", "SHARED")
    yield "shared locks of two"
    owner, _ = take_all(cli, "o1 o2", "*")
    assert owners_of(cli, "o1") == [owner]
    yield "several for an owner that the server made"
    take_all(cli, "t1 t2", "brief", lease_ms=40)
    comes_to(cli, "t1")
    comes_to(cli, "t2")
    yield "leases of several end"


def counts(server, cli):
    """REENTRANT, places in line, a lock that is renamed."""
    for _ in range(4):
        take(cli, "count", "alice", "REENTRANT")
    release(cli, "count", "alice")
    yield "held three times"
    count_and_share(cli, "counts", "r1", 3)
    take(cli, "counts", "r2", "SHARED")
    yield "held three times beside another"
    take(cli, "place", "alice")
    take(cli, "place", "bob", "QUEUE 3600000")
    release(cli, "place", "alice")
    yield "a lock is reserved"
    take(cli, "place", "bob", "QUEUE 3600000")
    yield "the reserved lock is taken"
    take(cli, "named", "alice", "LIMIT 2")
    cli("RENAME named renamed")
    yield "a semaphore is renamed"


def ties(server, cli):
    """EPHEMERAL and KEEPALIVE."""
    tied = server.connect()
    take(tied, "cut", "alice", "EPHEMERAL 3000000")
    take(tied, "freed", "alice", "EPHEMERAL 0")
    take(tied, "mixed", "tied", "LIMIT 5 EPHEMERAL 0")
    take(cli, "mixed", "free", "LIMIT 5")
    take(tied, "kept", "alice", "KEEPALIVE", lease_ms=3_000_000)
    yield "tied holds"
    close_and_settle(server, tied)
    comes_to(cli, "freed")
    comes_to(cli, "mixed", "free")
    yield "their connection closes"


PARTS = {part.__name__: part for part in (readers, permits, several, counts, ties)}


def walk(server, *parts):
    """All steps of the parts, all parts if none is named; yields the name of each."""
    cli = server.connect()
    for name in parts or PARTS:
        for step in PARTS[name](server, cli):
            # A hold whose lease has expired is hidden a moment before it is ended.
            eventually(lambda: count(cli, "holds") == len(leases_of(cli)), "nothing is about to end")
            yield step


def locks_of(cli, *, with_ties=True):
    """The state of all locks that all readers must agree on: {name: ((kind, limit), holders)}."""
    seen = {}
    names = ("owner", "token", "count") + (("keepalive", "ephemeral-ms") if with_ties else ())
    for key in sorted(cli("KEYS *")):
        info = lock_info(cli, key, "FULL")
        holds = [] if info is None else info["holders"]
        kind = (info["kind"], info["limit"]) if holds else None
        seen[key] = kind, [tuple(hold[name] for name in names) for hold in holds]
    return seen


def leases_of(cli):
    """The remaining time of each lease: {(name, owner): ms}."""
    left = {}
    for key in cli("KEYS *"):
        info = lock_info(cli, key, "FULL")
        for hold in info["holders"] if info else []:
            left[key, hold["owner"]] = hold["lease-left-ms"]
    return left


def nobody_waits(cli, *keys):
    """Returns whether all lines are empty."""
    return all(line_of(cli, key) == [] for key in keys)


def assert_same_leases(before, after):
    """Asserts that leases differ at most by the duration of a test; each holder has its own."""
    assert before.keys() == after.keys()
    for key, left in before.items():
        assert abs(left - after[key]) < LEASE_SLACK_MS, (key, left, after[key])


def give_up(cli, key, holds):
    """Each hold of a lock can be given up: owners, tokens and counts are really there."""
    for owner, token, times, *_ in holds:
        assert cli("LOCK.FENCE", key, token) == 1
        for _ in range(times):
            release(cli, key, owner, "TOKEN", token)
        assert cli("LOCK.RELEASE", key, owner) == 0


def assert_it_goes_on(cli, holders):
    """G4, and every hold can be given up: counts, kinds and owners are really there."""
    highest = max(hold[1] for _, holds in holders.values() for hold in holds)
    assert take(cli, "fresh", "new") > highest
    release(cli, "fresh", "new")
    for key, (kind, holds) in holders.items():
        give_up(cli, key, holds)
        assert owners_of(cli, key) == []
        assert cli("EXISTS", key) == (0 if holds else 1), "empty locks stay"


def assert_replica_agrees(cli, reader, *, with_ties=True):
    """Waits until the replica has caught up; then all is the same."""
    def is_level():
        return cli("WAIT 1 1000") == 1 and reader("DEBUG DIGEST") == cli("DEBUG DIGEST")

    eventually(is_level, "the same digest")
    assert locks_of(reader, with_ties=with_ties) == locks_of(cli, with_ties=with_ties)
    assert_same_leases(leases_of(cli), leases_of(reader))
