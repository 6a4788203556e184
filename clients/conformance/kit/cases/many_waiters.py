"""Point 5, with many waiters: few connections, served in order."""

import itertools
import time

from . import case
from .waiting import served

THOUSAND = 1000


@case(5, needs=("tasks",), seconds=150, weight=9)
def a_thousand_tasks_wait_over_few_connections(stage):
    """A thousand tasks of one process wait for one lock: few connections, and served in order of arrival."""
    waiting, pool = 4, 4
    server, door, adapter = stage.single(pool=pool, waiting_connections=waiting)
    stage.hold("k")
    asked = [adapter.ask("acquire", hold=f"h{n}", name="k") for n in range(THOUSAND)]
    stage.eventually(lambda: stage.waiters("k") >= 1, "they wait")
    time.sleep(1)
    cpu = seconds_of_cpu(adapter)
    time.sleep(1)
    stage.note(f"waiting costs {100 * (seconds_of_cpu(adapter) - cpu):.0f} % of a core")
    began, cpu = time.monotonic(), seconds_of_cpu(adapter)
    stage.give_up("k")
    released, tokens = [], []
    for number, each in enumerate(asked):
        tokens.append(each.result(30)["token"])
        released.append(adapter.ask("release", hold=f"h{number}"))
    for each in released:
        each.result()
    took = time.monotonic() - began
    assert tokens == sorted(tokens), f"not in order: the first that was passed by is {first_passed(tokens)}"
    most = waiting + pool + 2
    assert door.most <= most, f"{door.most} connections, where {waiting} may wait and {pool} be for all else"
    used = seconds_of_cpu(adapter) - cpu
    stage.note(f"{THOUSAND} served in {took:.2f} s over {door.most} connections, {used:.2f} s of CPU")


@case(5)
def two_processes_are_served_in_order(stage):
    """Two processes wait for one lock, in turn: both are served in order of arrival."""
    _, _, first = stage.single()
    second = stage.adapter(stage.doors[0].address)
    stage.hold("k")
    asked = []
    for number, adapter in zip(range(12), itertools.cycle([first, second])):
        asked.append((adapter, f"h{number}", adapter.ask("acquire", hold=f"h{number}", name="k")))
        stage.waiting("k", number + 1)
    stage.give_up("k")
    tokens = []
    for adapter, hold, each in asked:
        tokens.append(each.result()["token"])
        adapter("release", hold=hold)
    assert tokens == sorted(tokens), "not in the order in which they came"


@case(5, seconds=60, weight=5)
def two_processes_with_many_waiters_take_turns(stage):
    """Two processes with more waiters than connections: each serves its own in order, and neither starves the other."""
    waiting, each_has = 4, 60
    _, _, first = stage.single(pool=2, waiting_connections=waiting)
    second = stage.adapter(stage.doors[0].address, pool=2, waiting_connections=waiting)
    for adapter in (first, second):  # what a process does once must not let the other's waiters pass
        for _ in range(5):
            adapter("cycle", name=f"warm{adapter is first}", wait_ms=5000, times=20)
    stage.hold("k")
    asked = []
    for number in range(each_has):
        for adapter in (first, second):
            asked.append((adapter, f"h{number}", adapter.ask("acquire", hold=f"h{number}", name="k")))
            time.sleep(0.01)
    stage.eventually(lambda: stage.waiters("k") >= 2, "they wait")
    time.sleep(0.7)
    stage.give_up("k")
    left, grants, end = list(asked), [], time.monotonic() + 40
    while left:
        assert time.monotonic() < end, f"{len(left)} of {len(asked)} were not served"
        for waiter in [waiter for waiter in left if waiter[2].is_answered()]:
            adapter, hold, each = waiter
            grants.append((each.result()["token"], adapter is first, int(hold[1:])))
            adapter("release", hold=hold)
            left.remove(waiter)
        time.sleep(0.001)
    grants.sort()
    if "tasks" in first.features:
        for is_first in (True, False):
            numbers = [number for _, whose, number in grants if whose is is_first]
            assert numbers == sorted(numbers), "a process did not serve its own in order"
    # While both have waiters: the longest series of grants to the same one.
    turns = [whose for _, whose, _ in grants]
    both = turns[: min(last(turns, True), last(turns, False)) + 1]
    longest = max(len(list(row)) for _, row in itertools.groupby(both))
    assert longest <= each_has // 2, f"{longest} grants in a row to one process, while the other waited"
    stage.note(f"at most {longest} in a row to one process")


@case(5)
def waiters_for_one_lock_do_not_starve_those_for_another(stage):
    """The most waiters wait for a lock that is not released: a waiter for another lock gets that one."""
    _, _, adapter = stage.single(waiting_connections=2)
    stage.hold("never")
    stage.hold("soon")
    stuck = [adapter.ask("acquire", hold=f"h{n}", name="never", wait_ms=60_000) for n in range(3)]
    stage.eventually(lambda: stage.waiters("never") >= 1, "they wait")
    time.sleep(0.3)
    asked = adapter.ask("acquire", hold="s", name="soon", wait_ms=60_000)
    time.sleep(0.3)
    stage.give_up("soon")
    asked.wait()
    adapter("release", hold="s")
    stage.give_up("never")
    served(adapter, {f"h{n}": each for n, each in enumerate(stuck)})


@case(5, 6)
def a_wait_in_vain_keeps_no_position(stage):
    """More waiters than connections, most of which time out: afterwards they block no other waiter."""
    _, _, adapter = stage.single(waiting_connections=1)
    stage.hold("k")
    first = adapter.ask("acquire", hold="first", name="k", wait_ms=60_000)
    stage.waiting("k", 1)
    asked = [adapter.ask("acquire", hold=f"h{n}", name="k", wait_ms=1000) for n in range(4)]
    for each in asked:
        assert each.kind() == "LockTimeout", f"answered with {each.answer}"
    # Well before a position ends on its own: until then no later waiter would get the lock, though it is free.
    stage.waiting("k", 1, 4)
    stage.give_up("k")
    served(adapter, {"first": first})


@case(5, weight=2)
def waiters_of_a_killed_process_delay_nobody(stage):
    """A process with many waiters is killed: a later waiter in another process is served soon."""
    _, door, first = stage.single(waiting_connections=4)
    second = stage.adapter(door.address)
    stage.hold("k")
    for number in range(30):
        first.ask("acquire", hold=f"h{number}", name="k", wait_ms=60_000)
    stage.eventually(lambda: stage.waiters("k") >= 1, "they wait")
    time.sleep(0.5)
    asked = second.ask("acquire", hold="s", name="k", wait_ms=60_000)
    time.sleep(0.3)
    first.kill()
    stage.give_up("k")
    began = time.monotonic()
    asked.result(20)
    stage.note(f"served {time.monotonic() - began:.1f} s after the others died")
    second("release", hold="s")


def last(turns, who):
    """Returns the last turn of this one."""
    return len(turns) - 1 - turns[::-1].index(who)


def first_passed(tokens):
    """Returns the first token that is higher than a later one."""
    return next(number for number, (one, next_one) in enumerate(zip(tokens, tokens[1:])) if one > next_one)


def seconds_of_cpu(adapter):
    """Returns the processor time that all its processes have used."""
    total = 0
    for pid in adapter.pids():
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / 100
