"""Points 5, 6 and 7: every request is answered, even if no server answers, or its client is closed."""

import signal
import time

from harness.stopped import stop

from ..adapter import Refused
from . import case
from .waiting import served_in_any_order

#: The time without an answer after which an unlimited wait fails.
SERVER_TIMEOUT = 10.0
#: The most by which a wait may exceed its time by PROTOCOL.md, and the extra allowance on a busy machine.
AFTER, SLACK = 2.0, 6.0
#: The time limit of a close, likewise.
CLOSES = 5.0 + SLACK
MANY = 20


@case(5, 7, weight=8)
def a_wait_without_an_end_has_none(stage):
    """Waits for one lock and for several outlast the timeouts of a connection, and the connections."""
    _, door, adapter = stage.single()
    for name in ("k", "b"):
        stage.hold(name)
    asked = {"one": adapter.ask("acquire", hold="one", name="k")}
    asked["several"] = adapter.ask("acquire", hold="several", names=["a", "b"])
    for name in ("k", "b"):
        stage.waiting(name, 1)

    def all_wait():
        for hold, each in asked.items():
            assert not each.is_answered(), f"{hold} may wait without end, and is answered with {each.answer}"
        return True

    stage.stays(all_wait, "all wait", SERVER_TIMEOUT + 2)
    door.cut()  # patience with a server that is away begins now, and not with the wait
    stage.stays(all_wait, "all wait", 1.5)
    for name in ("k", "b"):
        stage.waiting(name, 1)
        stage.give_up(name)
    for hold, each in asked.items():
        each.result()
        adapter("release", hold=hold)


@case(5, 7, weight=4)
def a_connection_that_goes_silent_ends_no_wait(stage):
    """The network silently forgets all connections: waiters are granted the lock over new ones."""
    _, door, adapter = stage.single()
    for name in ("k", "b"):
        stage.hold(name)
    asked = {
        "one": adapter.ask("acquire", hold="one", name="k", wait_ms=60_000),
        "several": adapter.ask("acquire", hold="several", names=["a", "b"], wait_ms=60_000),
    }
    for name in ("k", "b"):
        stage.waiting(name, 1)
    door.swallow()
    for name in ("k", "b"):
        stage.give_up(name)
    began = time.monotonic()
    for hold, each in asked.items():
        each.wait(25)
        assert each.kind() == "ok", f"{hold} is answered with {each.answer}"
        stage.note(f"{hold}: {time.monotonic() - began:.1f} s")
        adapter("check", hold=hold)
        adapter("release", hold=hold)
    adapter("acquire", hold="new", name="new", wait_ms=0)
    adapter("release", hold="new")


@case(7, 8, weight=7)
def no_server_answers(stage):
    """Connections are refused: each acquire fails in time, with an error that names host and port."""
    _, door, adapter = stage.single()
    adapter("acquire", hold="before", name="before", wait_ms=0)
    adapter("release", hold="before")
    door.shut()
    door.cut()
    each_fails_in_time(adapter, door)
    door.open()


@case(7, 8, weight=7)
def a_server_that_is_silent(stage):
    """All requests vanish: each acquire fails in time, with an error that names host and port."""
    _, door, adapter = stage.single()
    adapter("acquire", hold="before", name="before", wait_ms=0)
    adapter("release", hold="before")
    door.swallow(later=True)
    each_fails_in_time(adapter, door)


def each_fails_in_time(adapter, door):
    """Acquires with and without a wait, of one lock and of several."""
    asked = []
    for wait_ms in (0, 1000, 4000, None):
        for names in ({"name": "k"}, {"names": ["a", "b"]}):
            asked.append((wait_ms, adapter.ask("acquire", hold=f"h{len(asked)}", wait_ms=wait_ms, **names)))
    for wait_ms, each in asked:
        which = f"with {'no end' if wait_ms is None else f'{wait_ms} ms'} to wait"
        each.wait(25)
        kind = each.kind()
        # A wait that ends during a silence may also report another holder.
        kinds = ("ConnectionFailed",) if wait_ms in (0, None) else ("ConnectionFailed", "LockTimeout")
        assert kind in kinds, f"{which}: answered with {each.answer}"
        limit = SERVER_TIMEOUT + AFTER if wait_ms is None else wait_ms / 1000 + AFTER
        assert each.seconds <= limit + SLACK, f"{which}: answered after {each.seconds:.1f} s"
        message = each.answer["error"].get("message", "")
        assert kind == "LockTimeout" or door.address in message, f"{which}: it does not name {door.address}: {message}"


@case(6, weight=5)
def a_close_with_many_holds_and_a_stopped_server(stage):
    """The server pauses: close and the end of the program take no longer for many holds than for one."""
    server, door, first = stage.single(lease_ms=8000)
    second = stage.adapter(door.address, lease_ms=8000)
    for number in range(MANY):
        for which, adapter in enumerate((first, second)):
            adapter("acquire", hold=f"h{number}", name=f"k{which}.{number}", wait_ms=0)
    stop(server.process.pid)
    try:
        closed = first.ask("close")
        began = time.monotonic()
        second.end()
        ended = time.monotonic() - began
        closed.result(40)
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert closed.seconds <= CLOSES, f"close has taken {closed.seconds:.1f} s with {MANY} holds"
    assert ended <= CLOSES, f"the end of the program has taken {ended:.1f} s with {MANY} holds"
    stage.note(f"close {closed.seconds:.1f} s, end {ended:.1f} s")
    stage.eventually(lambda: stage.server.info("redislock")["redislock_holds"] == "0", "all leases end", 20)


@case(6, 7, needs=("client",), weight=2)
def the_client_is_quit_before_the_locks(stage):
    """The user closes the driver's client too early: every request is answered, and the program continues."""
    _, _, adapter = stage.single(lease_ms=4000)
    adapter("acquire", hold="h", name="k", wait_ms=0)
    block = adapter.ask("run", hold="r", name="block", wait_ms=0, body_ms=1500)
    stage.eventually(lambda: stage.info("block").get("holders"), "the block has its lock")
    waits = adapter.ask("acquire", hold="w", name="k", wait_ms=2500)
    stage.waiting("k", 1)
    adapter("quit")
    asked = {
        "an acquire without a wait": adapter.ask("acquire", hold="a0", name="l", wait_ms=0),
        "an acquire": adapter.ask("acquire", hold="a1", name="m"),
        "a release": adapter.ask("release", hold="h"),
    }
    for what, each in asked.items():
        settles(each, what, AFTER)
    settles(waits, "a waiter", 2.5 + AFTER)
    settles(block, "a block", 1.5 + AFTER)
    for hold in ("w", "a0", "a1"):
        adapter.ask("release", hold=hold).kind(AFTER + SLACK)
    adapter("threads")
    stage.free_soon("k", "l", "m", "block", limit=10)


def settles(asked, what, seconds):
    """It is answered in time, whatever the answer."""
    try:
        asked.wait(seconds + SLACK)
    except AssertionError:
        raise AssertionError(f"{what} is not answered within {seconds:.1f} s, though the client is closed") from None


@case(7, 8, needs=("provider",), weight=2)
def a_login_that_fails_now_and_then(stage):
    """The provider of credentials fails at every second call: no waiter or holder notices."""
    _, door, adapter = with_login(stage, list(range(2, 400, 2)))
    adapter("acquire", hold="h", name="k", lease_ms=6000, wait_ms=15_000)
    asked = {"one": adapter.ask("acquire", hold="one", name="k", wait_ms=30_000)}
    stage.waiting("k", 1)
    asked["several"] = adapter.ask("acquire", hold="several", names=["j", "k"], wait_ms=30_000)

    def all_wait():
        for hold, each in asked.items():
            assert not each.is_answered(), f"{hold} is answered with {each.answer}"
        return stage.waiters("k") == 2

    for _ in range(3):
        stage.eventually(all_wait, "two wait")
        door.cut()
        time.sleep(1)
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')}"
    adapter("release", hold="h")
    served_in_any_order(adapter, asked)


@case(7, 8, needs=("provider",), weight=2)
def a_login_that_fails_from_now_on(stage):
    """The provider of credentials always fails: that is an error of the library's own, in time."""
    _, door, adapter = with_login(stage, "later")
    try:
        adapter("acquire", hold="h", name="k", wait_ms=2000)
        adapter("release", hold="h")
    except Refused as refused:  # it needed more than one connection
        assert refused.kind == "ConnectionFailed", f"answered with {refused}"
    door.cut()
    for wait_ms in (0, 1500):
        asked = adapter.ask("acquire", hold=f"h{wait_ms}", name="k", wait_ms=wait_ms)
        assert asked.kind() == "ConnectionFailed", f"answered with {asked.answer}"
        assert asked.seconds <= wait_ms / 1000 + AFTER + SLACK, f"after {asked.seconds:.1f} s"


def with_login(stage, fails):
    """A server, a door to it, and an adapter whose driver asks for credentials."""
    server, door, adapter = stage.single()
    adapter.end()  # it has a driver that can ask for them, else the case ends there
    # The server takes any password for the user `default`.
    return server, door, stage.adapter(door.address, login={"password": "any", "fails": fails})
