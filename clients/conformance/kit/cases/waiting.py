"""Point 5, and the pitfalls of waiting: own connections, the time that is left, nothing left of dead clients."""

import time

from ..proxy import is_grant
from . import case
from .deadline import connect, never_more_than_the_server

#: The most by which a wait may exceed its time, on a busy machine.
SLACK = 6.0
#: The time limit for a client's leftovers to disappear. An abandoned queue position lasts 5 s.
LEFT = 4.5


@case(5, 6)
def waiters_do_not_starve_the_pool(stage):
    """More waiters than connections: the holder's release is answered, and all are served in order."""
    _, door, adapter = stage.single(pool=2, waiting_connections=4)
    adapter("acquire", hold="h", name="k", wait_ms=0)
    asked = [adapter.ask("acquire", hold=f"w{n}", name="k") for n in range(20)]
    stage.eventually(lambda: stage.waiters("k") >= 1, "they wait")
    time.sleep(0.5)
    released = adapter.ask("release", hold="h")
    released.result()
    served(adapter, {f"w{number}": each for number, each in enumerate(asked)})
    assert door.most <= 2 + 4 + 2, f"{door.most} connections, where 4 may wait and 2 are for all else"
    stage.note(f"release {1000 * released.seconds:.0f} ms, {door.most} connections")


@case(5)
def a_release_never_stands_behind_a_wait(stage):
    """One connection for everything but waits: a lock that is released while others wait is free at once."""
    _, _, adapter = stage.single(pool=1, waiting_connections=2)
    stage.hold("b")
    asked = [adapter.ask("acquire", hold=f"w{n}", name="b", wait_ms=60_000) for n in range(3)]
    stage.eventually(lambda: stage.waiters("b") >= 1, "they wait")
    longest = 0
    for number in range(5):
        adapter("acquire", hold=f"h{number}", name="a", wait_ms=0)
        released = adapter.ask("release", hold=f"h{number}")
        released.result()
        longest = max(longest, released.seconds)
    assert stage.is_free("a"), "it is held after its release"
    stage.note(f"longest release {1000 * longest:.0f} ms")
    stage.give_up("b")
    served(adapter, {f"w{number}": each for number, each in enumerate(asked)})


@case(5)
def a_wait_ends_in_time(stage):
    """A waiter that does not get the lock is notified soon after its time is up, and leaves the queue."""
    _, _, adapter = stage.single()
    connect(adapter)
    stage.hold("k")
    for wait_ms in (300, 1000):
        asked = adapter.ask("acquire", hold=f"h{wait_ms}", name="k", wait_ms=wait_ms)
        assert asked.kind() == "LockTimeout", f"answered with {asked.answer}"
        late = asked.seconds - wait_ms / 1000
        assert -0.02 <= late <= SLACK, f"a wait of {wait_ms} ms ended after {asked.seconds:.2f} s"
        stage.waiting("k", 0, LEFT)
    asked = adapter.ask("acquire", hold="h0", name="k", wait_ms=0)
    assert asked.kind() == "LockTimeout", f"answered with {asked.answer}"
    assert stage.waiters("k") == 0, "a request that would not wait waits"
    stage.give_up("k")


@case(5, seconds=60, weight=2)
def a_long_wait_is_one_wait(stage):
    """A wait that is longer than drivers' own timeouts continues, and ends with the grant."""
    _, door, adapter = stage.single()
    stage.hold("k")
    asked = adapter.ask("acquire", hold="h", name="k", wait_ms=20_000)
    stage.waiting("k", 1)
    (waiter,) = stage.info("k")["queue"]
    stage.stays(lambda: stage.waiters("k") == 1 and not asked.is_answered(), "it waits", 7)
    assert stage.info("k")["queue"][0][:2] == waiter[:2], "another owner waits now"
    blocking = [call for call in door.calls("LOCK.ACQUIRE") if call.has("BLOCK")]
    assert len(blocking) <= 1, f"the wait was begun anew: {blocking}"
    stage.give_up("k")
    asked.result()
    adapter("release", hold="h")


@case(5, 7)
def a_wait_whose_connection_is_cut_ends_when_it_should(stage):
    """Connections are cut during a wait: it continues with the time that is left, not with all of it."""
    _, door, adapter = stage.single()
    stage.hold("k")
    asked = adapter.ask("acquire", hold="h", name="k", wait_ms=8000)
    for _ in range(2):
        stage.waiting("k", 1)
        time.sleep(3)
        door.cut()
    assert asked.kind() == "LockTimeout", f"answered with {asked.answer}"
    assert 7.9 <= asked.seconds <= 8 + 4.5, f"a wait of 8 s ended after {asked.seconds:.2f} s"
    stage.note(f"a wait of 8 s took {asked.seconds:.2f} s, cut twice")
    stage.waiting("k", 0, LEFT)
    stage.give_up("k")


@case(5, 7)
def a_wait_whose_connection_is_cut_ends_with_the_lock(stage):
    """Connections are cut or half closed during a wait: the lock is still granted to it."""
    _, door, adapter = stage.single()
    for number, harm in enumerate([door.cut, door.half_close]):
        stage.hold("k")
        asked = adapter.ask("acquire", hold=f"h{number}", name="k", wait_ms=20_000)
        stage.waiting("k", 1)
        harm()
        time.sleep(0.7)
        stage.waiting("k", 1)
        stage.give_up("k")
        asked.result()
        adapter("release", hold=f"h{number}")


@case(5, 6)
def a_reply_that_never_comes(stage):
    """The server falls silent: the wait ends by the client's own clock, and a late grant is released."""
    _, door, adapter = stage.single()
    stage.hold("k")
    asked = adapter.ask("acquire", hold="h", name="k", wait_ms=4000)
    stage.waiting("k", 1)
    door.stall()
    stage.give_up("k")  # it is granted, and is not told
    kind = asked.kind()
    door.flow()
    assert kind in ("LockTimeout", "ConnectionFailed"), f"answered with {asked.answer}"
    assert asked.seconds <= 4 + 2 + SLACK, f"a wait of 4 s ended after {asked.seconds:.1f} s"
    stage.note(f"a wait of 4 s ended after {asked.seconds:.1f} s")
    stage.free_soon("k", limit=8)


@case(5, weight=2)
def a_client_that_dies_while_it_waits_leaves_nothing(stage):
    """The process of a waiter is killed: the lock skips it."""
    _, _, adapter = stage.single()
    stage.hold("k")
    asked = [adapter.ask("acquire", hold=f"h{n}", name="k", wait_ms=30_000) for n in range(3)]
    stage.eventually(lambda: stage.waiters("k") >= 1, "they wait")
    adapter.kill()
    stage.waiting("k", 0)
    stage.give_up("k")
    stage.free_soon("k", limit=10)
    assert not any(each.is_answered() for each in asked)


@case(5, weight=2)
def a_client_that_dies_just_after_its_grant_leaves_nothing(stage):
    """The process is killed between the grant and the reply: the lease is shortened (EPHEMERAL)."""
    _, door, adapter = stage.single()
    stage.hold("k")
    adapter.ask("acquire", hold="h", name="k", lease_ms=60_000, wait_ms=30_000)
    stage.waiting("k", 1)
    door.drop(is_grant, then="silent")
    stage.give_up("k")
    stage.eventually(door.has_dropped, "the grant is on its way")
    adapter.kill()
    began = time.monotonic()
    stage.free_soon("k", limit=20)
    stage.note(f"free after {time.monotonic() - began:.2f} s, with a lease of 60")


@case(2, 5)
def a_hold_outlives_the_connection_that_waited_for_it(stage):
    """A hold that was granted after a wait does not depend on a connection: all are cut after the grant, and it
    continues."""
    _, door, adapter = stage.single()
    for number, kind in enumerate(["exclusive", "read"]):
        stage.hold("k")
        asked = adapter.ask("acquire", hold=f"h{number}", name="k", kind=kind, wait_ms=30_000)
        stage.waiting("k", 1)
        stage.give_up("k")
        token = asked.result()["token"]
        time.sleep(0.3)
        door.cut()
        held = f"it is held, by {stage.info('k')}"
        stage.stays(lambda: stage.server.admin("LOCK.FENCE", "k", token) == 1, held, 1)
        never_more_than_the_server(stage, adapter, f"h{number}", "k", times=2)
        assert not adapter.seen("lost"), "a loss was told"
        adapter("release", hold=f"h{number}")


def served(adapter, waiters):
    """Releases each lock as it is granted, until all are served. Checks the order if the adapter keeps it."""
    served_in_any_order(adapter, waiters)
    tokens = [each.result()["token"] for each in waiters.values()]
    # Threads of a process may overtake each other on their way to the library.
    assert "tasks" not in adapter.features or tokens == sorted(tokens), "not in the order in which they came"


def served_in_any_order(adapter, waiters):
    """Releases each lock as it is granted, until all are served."""
    left = dict(waiters)
    while left:
        adapter.until(lambda: any(each.is_answered() for each in left.values()), "the next one is served")
        for hold in [hold for hold, each in left.items() if each.is_answered()]:
            left.pop(hold).result()
            adapter("release", hold=hold)
