"""Point 3: renewal at a third of the lease, by one scheduler, until the longest hold."""

import time

from ..proxy import Call
from . import case


@case(3, 4, weight=2)
def a_lock_is_held_far_beyond_its_lease(stage):
    """A hold of four leases is one hold, and no loss is reported."""
    _, door, adapter = stage.single()
    got = adapter("acquire", hold="h1", name="k", lease_ms=2400, wait_ms=0)
    began = time.monotonic()
    stage.stays(lambda: stage.server.admin("LOCK.FENCE", "k", got["token"]) == 1, "it is held", 9.6)
    seconds = time.monotonic() - began
    assert adapter("check", hold="h1")["remaining_ms"] > 0
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')}"
    renewals = len(door.calls("LOCK.RENEW"))
    thirds = seconds / 0.8
    assert thirds / 2 <= renewals <= 3 * thirds, f"{renewals} renewals in {seconds:.1f} s of a lease of 2.4 s"
    stage.note(f"{renewals} renewals in {thirds:.0f} thirds of the lease")
    adapter("release", hold="h1")
    stage.free_soon("k")
    count = len(door.calls("LOCK.RENEW"))
    time.sleep(1.6)
    assert len(door.calls("LOCK.RENEW")) == count, "it is renewed after its release"


@case(3)
def renewal_stops_at_the_longest_hold(stage):
    """With a longest hold the lock is free at most a lease after it, and the holder is notified."""
    _, _, adapter = stage.single()
    began = time.monotonic()
    adapter("acquire", hold="h1", name="k", lease_ms=2000, longest_ms=4000, wait_ms=0)
    stage.stays(lambda: stage.info("k").get("holders"), "it is held before", began + 3.4 - time.monotonic())
    at = adapter.told("lost", hold="h1", limit=10)["at"] - began
    assert 3.8 <= at <= 4 + 5, f"told after {at:.2f} s"
    stage.free_soon("k", limit=8)
    assert time.monotonic() - began <= 4 + 2 + 8, "it was renewed beyond the longest hold"
    assert adapter.refusal("check", hold="h1").kind == "LockLost"
    adapter.ask("release", hold="h1").kind()


@case(3, 7, weight=2)
def renewals_outlive_broken_connections(stage):
    """Connections are cut and replies to renewals are lost: the hold continues, and no loss is reported."""
    _, door, adapter = stage.single()
    got = adapter("acquire", hold="h1", name="k", lease_ms=3000, wait_ms=0)
    for number in range(6):
        if number % 2:
            door.cut()
        else:
            door.drop(is_renewal)
        stage.stays(lambda: stage.server.admin("LOCK.FENCE", "k", got["token"]) == 1, "it is held", 0.8)
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')}"
    assert adapter("check", hold="h1")["remaining_ms"] > 0
    adapter("release", hold="h1")


@case(3, 5, weight=2)
def a_hundred_holds_are_renewed_by_one_scheduler(stage):
    """A hundred holds need neither threads nor connections of their own, and all are renewed."""
    _, door, adapter = stage.single(pool=2, waiting_connections=2)
    adapter("acquire", hold="first", name="first", lease_ms=6000, wait_ms=0)
    before = adapter("threads")["threads"]
    asked = [adapter.ask("acquire", hold=f"h{n}", name=f"k{n}", lease_ms=6000, wait_ms=5000) for n in range(100)]
    for each in asked:
        each.result()
    # The threads that the adapter had for its requests may still be there for a moment.
    stage.eventually(lambda: adapter("threads")["threads"] <= before + 8, "no thread for each hold")
    time.sleep(8)
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')[:3]}"
    held = stage.server.info("redislock")["redislock_holds"]
    assert held == "101", f"{held} of 101 are held"
    assert door.most <= 6, f"{door.most} connections, with a pool of 2"
    stage.note(f"{adapter('threads')['threads']} threads, {door.most} connections")
    for each in [adapter.ask("release", hold=hold) for hold in ["first", *(f"h{n}" for n in range(100))]]:
        each.result()


@case(3, 5)
def a_wait_does_not_delay_renewals(stage):
    """While other requests of the process wait for long, a hold with a short lease is renewed."""
    _, _, adapter = stage.single(pool=1, waiting_connections=2)
    for name in ("a", "b"):
        stage.hold(name)
    got = adapter("acquire", hold="h1", name="k", lease_ms=2500, wait_ms=0)
    asked = [adapter.ask("acquire", hold=f"w{name}", name=name, wait_ms=20_000) for name in ("a", "b")]
    stage.waiting("a", 1)
    stage.waiting("b", 1)
    stage.stays(lambda: stage.server.admin("LOCK.FENCE", "k", got["token"]) == 1, "it is held", 5)
    for name, each in zip(("a", "b"), asked):
        stage.give_up(name)
        each.result()
        adapter("release", hold=f"w{name}")
    adapter("release", hold="h1")


def is_renewal(call: Call):
    """Returns whether a call is a renewal, for drop()."""
    return call.name == "LOCK.RENEW"
