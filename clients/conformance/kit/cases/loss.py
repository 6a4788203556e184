"""Point 4: a loss is reported once, by whichever notices first: the server's push, a renewal, the deadline."""

import statistics
import time

from . import case

#: The time limit of a push on a busy machine; usually it takes a millisecond or less. A renewal would notice after 18 s
#: or more.
PUSHED = 10.0


@case(4, needs=("push",))
def a_loss_is_told_by_push(stage):
    """DEL breaks the lock of a holder with a long lease: the server's push reports it at once."""
    _, _, adapter = stage.single()
    times = []
    for number in range(15):
        hold = f"h{number}"
        adapter("acquire", hold=hold, name=f"k{number % 3}", wait_ms=0)
        time.sleep(0.02)
        times.append(told_after(stage, adapter, hold, "DEL", f"k{number % 3}"))
        assert adapter.refusal("check", hold=hold).kind == "LockLost"
        adapter.ask("release", hold=hold).kind()
    median, longest = 1000 * statistics.median(times), 1000 * max(times)
    stage.note(f"from DEL to the event: median {median:.1f} ms, longest {longest:.1f} ms")


@case(4, needs=("push",))
def each_way_to_lose_is_told_by_push(stage):
    """A release by an operator, a flush, and a value that is written over the lock are reported like DEL."""
    _, _, adapter = stage.single()
    owner = adapter("acquire", hold="h1", name="a", wait_ms=0)["owner"]
    told_after(stage, adapter, "h1", "LOCK.RELEASE", "a", owner)
    adapter("acquire", hold="h2", name="b", wait_ms=0)
    told_after(stage, adapter, "h2", "SET", "b", "a value")
    stage.server.admin("DEL", "b")
    adapter("acquire", hold="h3", name="c", wait_ms=0)
    told_after(stage, adapter, "h3", "FLUSHALL")
    got = adapter("acquire", hold="h4", names=["d", "e"], wait_ms=0)
    told_after(stage, adapter, "h4", "DEL", "e")
    for hold in ("h1", "h2", "h3", "h4"):
        adapter.ask("release", hold=hold).kind()
    stage.eventually(lambda: is_dead(stage, "d", got["token"]), "the rest of a broken hold is given up")


@case(4, needs=("push",))
def a_loss_that_passes_the_lock_on_is_told(stage):
    """The lock is broken and passes to another owner at once: the old holder is notified, the new one keeps it."""
    _, _, adapter = stage.single()
    adapter("acquire", hold="h1", name="k", wait_ms=0)
    asked = adapter.ask("acquire", hold="h2", name="k", wait_ms=20_000)
    stage.waiting("k", 1)
    told_after(stage, adapter, "h1", "DEL", "k")
    token = asked.result()["token"]
    adapter.ask("release", hold="h1").kind()
    time.sleep(0.3)
    assert stage.server.admin("LOCK.FENCE", "k", token) == 1, "the new holder lost it"
    assert not adapter.seen("lost", hold="h2"), "a loss of the new holder was told"
    adapter("release", hold="h2")


@case(4, needs=("push",))
def a_push_is_heard_after_the_connections_were_cut(stage):
    """The connection for pushes is lost and comes back: a loss is reported as soon as before."""
    _, door, adapter = stage.single()
    adapter("acquire", hold="h1", name="k", wait_ms=0)
    door.cut()
    time.sleep(2)
    took = told_after(stage, adapter, "h1", "DEL", "k")
    stage.note(f"{1000 * took:.1f} ms")
    adapter.ask("release", hold="h1").kind()


@case(4)
def a_loss_that_no_push_tells_is_told_by_renewal(stage):
    """The server refuses client tracking: locks work, and a renewal detects the loss."""
    server = stage.start()
    server.admin("ACL", "SETUSER", "default", "-client|tracking")
    door = stage.door(server)
    adapter = stage.adapter(door.address)
    adapter("acquire", hold="h1", name="k", lease_ms=1500, wait_ms=0)
    time.sleep(0.1)
    took = told_after(stage, adapter, "h1", "DEL", "k", limit=15)
    assert took <= 1.5 + PUSHED, f"told after {took:.2f} s, with a lease of 1.5 s"
    stage.note(f"told after {1000 * took:.0f} ms, with a lease of 1500")
    adapter.ask("release", hold="h1").kind()


@case(4, 9)
def a_loss_is_told_once(stage):
    """Push, renewal and deadline may all notice; the holder is notified once."""
    _, _, adapter = stage.single()
    for number in range(5):
        adapter("acquire", hold=f"h{number}", name=f"k{number}", lease_ms=1200, wait_ms=0)
    time.sleep(0.5)
    for number in range(5):
        stage.server.admin("DEL", f"k{number}")
    for number in range(5):
        adapter.told("lost", hold=f"h{number}")
    time.sleep(1.5)
    for number in range(5):
        assert len(adapter.seen("lost", hold=f"h{number}")) == 1, "told more than once"
        adapter.ask("release", hold=f"h{number}").kind()


@case(4)
def what_a_holder_does_itself_is_no_loss(stage):
    """Releases, renewals, and other holders of the same lock before and after cause no report of a loss."""
    _, _, adapter = stage.single()
    stage.hold("pool", "LIMIT", 3)
    adapter("acquire", hold="p", name="pool", kind="semaphore", limit=3, lease_ms=4000, wait_ms=0)
    for number in range(30):
        adapter("acquire", hold=f"h{number}", name="k", lease_ms=4000, wait_ms=0)
        if number % 3 == 0:
            time.sleep(0.05)
        adapter("release", hold=f"h{number}")
    stage.give_up("pool")  # another permit of the same lock
    time.sleep(4.2)
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')[:3]}"
    adapter("check", hold="p")
    adapter("release", hold="p")


@case(4, 6, needs=("body",))
def a_loss_ends_the_body(stage):
    """The body of a block is ended when the lock is lost, and the block ends in LockLost."""
    _, _, adapter = stage.single()
    asked = adapter.ask("run", hold="r", name="k", lease_ms=3000, wait_ms=0, body_ms=40_000)
    stage.eventually(lambda: stage.info("k").get("holders"), "it is held")
    time.sleep(0.1)
    stage.server.admin("DEL", "k")
    assert asked.kind() == "LockLost", f"the block ended with {asked.answer}"
    assert asked.answer["error"].get("body") == "cancelled", f"the body was not cancelled: {asked.answer}"


@case(4)
def a_block_whose_lock_was_lost_does_not_end_well(stage):
    """If a body cannot be ended early, the block still ends in LockLost."""
    _, _, adapter = stage.single()
    asked = adapter.ask("run", hold="r", name="k", lease_ms=1000, wait_ms=0, body_ms=5000)
    stage.eventually(lambda: stage.info("k").get("holders"), "it is held")
    stage.server.admin("DEL", "k")
    assert asked.kind() == "LockLost", f"the block ended with {asked.answer}"


@case(4, 6)
def a_lock_that_was_written_over_ends_the_block(stage):
    """Another value is written over the lock: the block ends in LockLost, even if the release is refused, too."""
    _, _, adapter = stage.single()
    asked = adapter.ask("run", hold="r", name="k", wait_ms=0, body_ms=5000)
    stage.eventually(lambda: stage.info("k").get("holders"), "it is held")
    stage.server.admin("SET", "k", "a value")
    assert asked.kind() == "LockLost", f"the block ended with {asked.answer}"


def is_dead(stage, name, token):
    """Returns whether the server has no such hold."""
    return stage.server.admin("LOCK.FENCE", name, token) == 0


def told_after(stage, adapter, hold, *command, limit=PUSHED):
    """Sends this; returns the seconds until the loss is reported."""
    began = time.monotonic()
    stage.server.admin(*command)
    return adapter.told("lost", hold=hold, limit=limit)["at"] - began
