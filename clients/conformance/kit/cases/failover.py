"""Point 7: the primary changes, which costs nothing but time."""

import time

from harness.replicas import AT_ONCE, is_linked
from harness.sentinel import GROUP, watched

from . import case

#: The time limit of a failover by sentinels.
FAILOVER = 25.0


class Pair:
    """A primary and a replica, which sentinels watch."""

    def __init__(self, stage):
        self.stage = stage
        self.primary, self.replica = (stage.start(*AT_ONCE) for _ in range(2))
        self.replica.admin("REPLICAOF", "127.0.0.1", self.primary.port)
        is_linked(self.replica)
        self.sentinels = watched(stage.yard, self.primary.port, replicas=1)
        stage.sentinels += self.sentinels

    def adapter(self, **members):
        """An adapter that knows only the sentinels."""
        addresses = [f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels]
        return self.stage.adapter(*addresses, mode="sentinel", service=GROUP, **members)

    def changed(self):
        """Waits until the replica is the primary, and all sentinels say so."""
        def has_changed():
            found = [sentinel.primary() for sentinel in self.sentinels]
            return found == [self.replica.port] * len(found) and role_of(self.replica) == "master"

        self.stage.eventually(has_changed, "the replica is the primary", FAILOVER)
        self.stage.server = self.replica


@case(7, needs=("sentinel",), seconds=75, weight=4)
def a_planned_failover(stage):
    """Sentinel promotes the replica: holds continue, and the new primary grants to a waiter."""
    pair = Pair(stage)
    adapter = pair.adapter()
    got, asked = hold_and_wait(stage, adapter)
    # Otherwise the new primary may not have the hold.
    stage.eventually(lambda: pair.replica.admin("LOCK.FENCE", "k") == got["token"], "the replica knows of the hold")
    began = time.monotonic()
    pair.sentinels[0].admin("SENTINEL", "FAILOVER", GROUP)
    pair.changed()
    # Until it is demoted, the old primary acts as the primary: no client can know better.
    stage.eventually(lambda: role_of(pair.primary) == "slave", "the old primary follows", FAILOVER)
    finish(stage, adapter, got, asked, began)


@case(7, needs=("sentinel",), seconds=75, weight=4)
def a_killed_primary(stage):
    """The primary is killed: holds that its replica has continue, and the new primary grants to a waiter."""
    pair = Pair(stage)
    adapter = pair.adapter()
    got, asked = hold_and_wait(stage, adapter)
    stage.eventually(lambda: pair.replica.admin("LOCK.FENCE", "k") == got["token"], "the replica knows of the hold")
    began = time.monotonic()
    pair.primary.kill()
    pair.changed()
    finish(stage, adapter, got, asked, began)


@case(4, 7)
def a_server_that_comes_back_empty(stage):
    """The server is killed and loses its data: the holder is notified, and the waiter is granted."""
    server, _, adapter = stage.single()
    adapter("acquire", hold="h", name="k", lease_ms=4000, wait_ms=0)
    asked = adapter.ask("acquire", hold="w", name="k", wait_ms=30_000)
    stage.waiting("k", 1)
    time.sleep(0.3)
    server.kill()
    time.sleep(0.3)
    server.start()
    adapter.told("lost", hold="h", limit=20)
    asked.result()
    adapter.ask("release", hold="h").kind()
    adapter("check", hold="w")
    adapter("release", hold="w")


@case(5, 7)
def a_wait_that_begins_while_the_server_is_away(stage):
    """A wait for one lock, and one for several, last as long as they may, and are granted when it is back."""
    _, door, adapter = stage.single()
    door.shut()
    door.cut()  # some have connected by now
    wanted = {"one": {"name": "k"}, "several": {"names": ["a", "b"]}}
    asked = {hold: adapter.ask("acquire", hold=hold, wait_ms=30_000, **names) for hold, names in wanted.items()}
    time.sleep(5)
    for hold, each in asked.items():
        assert not each.is_answered(), f"{hold}: 5 of its 30 s are over, and it is answered with {each.answer}"
    door.open()
    for hold, each in asked.items():
        each.result()
        adapter("release", hold=hold)


@case(3, 7, weight=2)
def a_server_that_restarts_with_its_file(stage):
    """The server restarts from its file: the hold continues, and no loss is reported."""
    # A write survives the server without fsync, too, which may take seconds on a busy disk.
    server, _, adapter = stage.single("--appendonly", "yes", "--appendfsync", "no")
    token = adapter("acquire", hold="h", name="k", lease_ms=8000, wait_ms=0)["token"]
    asked = adapter.ask("acquire", hold="w", name="k", wait_ms=30_000)
    stage.waiting("k", 1)
    server.kill()
    server.start()
    stage.waiting("k", 1)
    assert server.admin("LOCK.FENCE", "k", token) == 1
    time.sleep(4)
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')}"
    adapter("check", hold="h")
    adapter("release", hold="h")
    asked.result()
    adapter("release", hold="w")


def hold_and_wait(stage, adapter):
    """The adapter holds a lock, and another of its requests waits for it."""
    got = adapter("acquire", hold="h", name="k", lease_ms=30_000, wait_ms=10_000)
    asked = adapter.ask("acquire", hold="w", name="k", wait_ms=60_000)
    stage.waiting("k", 1)
    return got, asked


def finish(stage, adapter, got, asked, began):
    """The first still holds the lock; when it releases the lock, the new primary grants it to the waiter."""
    stage.note(f"failover {time.monotonic() - began:.1f} s")
    assert not asked.is_answered(), f"the waiter was answered with {asked.answer}, while the lock is held"
    assert stage.server.admin("LOCK.FENCE", "k", got["token"]) == 1, "the new primary does not know of the hold"
    again = time.monotonic()
    # A release that no server has answered in time reports that, and continues in the background.
    released = adapter.ask("release", hold="h")
    assert released.kind(25) in ("ok", "ConnectionFailed"), f"the release is answered with {released.answer}"
    token = asked.result(25)["token"]
    stage.note(f"released and granted anew in {time.monotonic() - again:.1f} s")
    assert token > got["token"]
    assert stage.server.admin("LOCK.FENCE", "k", token) == 1, "it was granted by another than the new primary"
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')}"
    adapter("release", hold="w")


def role_of(server):
    """Returns master or slave; nothing if the server does not answer, as at a change of roles."""
    try:
        return server.info("replication").get("role")
    except Exception:  # it closes connections when its role changes
        return None
