"""Elections: one leader at a time, which is notified when its term begins and ends."""

import time

from . import case

#: The most by which the deposed leader may be notified after the next one is elected, on a busy machine.
LATE = 3.0


@case(3, 4, needs=("leader",))
def a_leader_is_elected_and_resigns(stage):
    """Of two one leads, beyond its lease; when it resigns the other leads, with a higher token."""
    first, second, door = two(stage)
    token = first.told("elected", leader="A")["token"]
    assert stage.server.admin("LOCK.FENCE", "job", token) == 1, "the token is not that of the hold"
    second("lead", leader="B", name="job", lease_ms=2500)
    stage.stays(lambda: not second.seen("elected"), "there is one leader", 5)
    first("resign", leader="A")
    assert second.told("elected", leader="B")["token"] > token
    time.sleep(0.3)
    assert not first.seen("deposed"), "the leader that resigned was told that it was deposed"
    second("resign", leader="B")
    stage.free_soon("job")


@case(4, needs=("leader",))
def a_leader_that_loses_its_lock_is_deposed(stage):
    """The leader's lock is broken: it is notified at once, before or while another leads, and stands again."""
    first, second, door = two(stage)
    token = first.told("elected", leader="A")["token"]
    second("lead", leader="B", name="job", lease_ms=2500)
    stage.waiting("job", 1)
    began = time.monotonic()
    stage.server.admin("DEL", "job")
    deposed = first.told("deposed", leader="A")["at"] - began
    elected = second.told("elected", leader="B")
    assert elected["token"] > token
    stage.note(f"deposed after {1000 * deposed:.1f} ms, the next elected after {1000 * (elected['at'] - began):.1f} ms")
    stage.waiting("job", 1)
    second("resign", leader="B")
    stage.eventually(lambda: len(first.seen("elected", leader="A")) == 2, "the first leads again")
    first("resign", leader="A")
    stage.free_soon("job")


@case(2, 4, needs=("leader",))
def a_leader_that_is_cut_off_deposes_itself(stage):
    """The leader cannot reach the server: it is deposed before the lease ends there, and another is elected."""
    server = stage.start()
    doors = [stage.door(server), stage.door(server)]
    first, second = [stage.adapter(door.address) for door in doors]
    first("lead", leader="A", name="job", lease_ms=3000)
    first.told("elected", leader="A")
    second("lead", leader="B", name="job", lease_ms=3000)
    stage.waiting("job", 1)
    time.sleep(0.8)
    doors[0].shut()
    doors[0].cut()
    deposed = first.told("deposed", leader="A", limit=20)["at"]
    elected = second.told("elected", leader="B", limit=20)["at"]
    assert deposed <= elected + LATE, f"deposed {deposed - elected:.3f} s after the next one was elected"
    stage.note(f"deposed {1000 * (elected - deposed):.0f} ms before the next one was elected")
    second("resign", leader="B")
    asked = first.ask("resign", leader="A")
    doors[0].open()
    asked.kind()
    stage.free_soon("job")


@case(6, needs=("leader",))
def a_leader_whose_work_fails_gives_the_lock_up(stage):
    """The leader's work fails: it releases the lock and says so, and another is elected. The process continues."""
    _, door, first = stage.single()
    first("lead", leader="A", name="job", lease_ms=60_000, fail=True)
    token = first.told("elected", leader="A")["token"]
    second = stage.adapter(door.address)
    second("lead", leader="B", name="job", lease_ms=60_000)
    assert second.told("elected", leader="B", limit=20)["token"] > token
    stage.eventually(lambda: first.seen("failed", leader="A") or first.seen("log", level="error"), "it says that its work failed")
    first("acquire", hold="h", name="other", wait_ms=0)
    first("release", hold="h")
    first("resign", leader="A")
    second("resign", leader="B")
    stage.free_soon("job")


@case(4, 6, needs=("leader",))
def a_leader_whose_work_ends_by_the_loss_stands_again(stage):
    """The work notices the loss and ends with its error: the leader is deposed, has not failed, and stands again."""
    _, door, first = stage.single()
    second = stage.adapter(door.address)
    for how in ("signal", "check"):
        first("lead", leader=how, name=how, lease_ms=2500, until_lost=how)
        for term in (1, 2):
            elected(stage, first, how, term)
            second("lead", leader=f"{how} {term}", name=how, lease_ms=2500)
            stage.waiting(how, 1)
            stage.server.admin("DEL", how)
            deposed(stage, first, how, term)
            second.told("elected", leader=f"{how} {term}")
            stage.waiting(how, 1)  # it stands again
            if term == 2:
                first("resign", leader=how)
            second("resign", leader=f"{how} {term}")
        stage.free_soon(how)
    assert len(first.seen("deposed")) == 4, first.seen("deposed")
    has_not_failed(first)
    first("acquire", hold="h", name="other", wait_ms=0)
    first("release", hold="h")


@case(4, 6, needs=("leader",))
def a_leader_whose_work_blocks_until_the_loss_stands_again(stage):
    """The work does nothing but check its hold: it throws the loss as early as it can, perhaps before it is reported."""
    first, second, door = two(stage, lease_ms=1000, until_lost="block")
    # A library may take the loss for a failure only now and then. If the work blocks its event loop, the lease ends.
    for term in range(1, 7):
        elected(stage, first, "A", term)
        if term == 6:
            second("lead", leader="B", name="job", lease_ms=1000)
            stage.waiting("job", 1)
        stage.server.admin("DEL", "job")
        deposed(stage, first, "A", term)
    second.told("elected", leader="B")
    stage.waiting("job", 1)
    first("resign", leader="A")
    second("resign", leader="B")
    stage.free_soon("job")
    has_not_failed(first)


def elected(stage, adapter, leader, term):
    """Waits until it leads in this term."""
    stage.eventually(lambda: len(adapter.seen("elected", leader=leader)) >= term, f"{leader} leads in term {term}")


def deposed(stage, adapter, leader, term):
    """Waits until the work of this term has ended by the loss, and the leader is deposed."""
    def is_so():
        has_not_failed(adapter)
        return all(len(adapter.seen(event, leader=leader)) >= term for event in ("ended", "deposed"))

    stage.eventually(is_so, f"the work of {leader} has ended and {leader} is deposed, in term {term}")


def has_not_failed(adapter):
    """Checks that no loss was reported as a failure of the leader's work."""
    for told in adapter.seen("failed") + adapter.seen("log", level="error"):
        raise AssertionError(f"the loss was taken for a failure of the work: {told['message']}")


def two(stage, **members):
    """Two processes, of which the first leads."""
    _, door, first = stage.single()
    second = stage.adapter(door.address)
    first("lead", **{"leader": "A", "name": "job", "lease_ms": 2500, **members})
    return first, second, door
