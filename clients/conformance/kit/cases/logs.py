"""Point 9: the library is never silent. It logs its actions in an outage, with the reason."""

import re
import signal
import time

from harness.stopped import stop

from . import case
from .waiting import served_in_any_order

#: The wait after which it must be logged.
LONG_WAIT = 30.0
#: The time limit of a log line on a busy machine.
LATE = 20.0


@case(3, 9, needs=("log",), weight=4)
def a_renewal_that_fails_is_logged(stage):
    """The server pauses and continues: the first failed renewal is logged, and the first one that succeeds."""
    server, door, adapter = stage.single()
    adapter("acquire", hold="h", name="orders", lease_ms=15_000, wait_ms=0)
    time.sleep(0.2)
    stop(server.process.pid)
    try:
        (first,) = adapter.logged("orders", door.address, limit=14)[:1]
    finally:
        server.process.send_signal(signal.SIGCONT)
    count = len(adapter.seen("log", level="warning"))

    def recovered():
        later = [each["message"] for each in adapter.seen("log", level="warning")[1:]]
        named = [each for each in later if "orders" in each]
        return [each for each in named if re.search(r"\b[1-9]\d*\b", each.replace(door.address, ""))]

    adapter.until(recovered, "a warning with the number of renewals that failed", 10)
    assert count <= 4, f"an outage is logged again and again: {adapter.seen('log')}"
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')}"
    stage.note(first)
    stage.note(recovered()[-1])
    adapter("release", hold="h")


@case(4, 9, needs=("log",), weight=2)
def a_loss_is_told_with_its_cause(stage):
    """The server is killed: the loss has a cause, which names the server, and is logged."""
    server, door, adapter = stage.single()
    adapter("acquire", hold="h", name="orders", lease_ms=2500, wait_ms=0)
    time.sleep(0.2)
    server.kill()
    lost = adapter.told("lost", hold="h", limit=LATE)
    cause = lost.get("cause") or ""
    assert door.address in cause, f"the cause of the loss does not name {door.address}: {lost}"
    stage.note(cause)
    adapter.until(lambda: lines(adapter, "orders", lost["at"] - 1), "the loss stands in the log", LATE)
    adapter.ask("release", hold="h").kind()


@case(7, 9, needs=("log",))
def a_reconnect_is_logged(stage):
    """The connections are lost and made again: one log line says so, and names the server."""
    _, door, adapter = stage.single()
    adapter("acquire", hold="h", name="orders", lease_ms=9000, wait_ms=0)
    time.sleep(0.2)
    door.shut()
    door.cut()
    time.sleep(1.2)
    door.open()
    adapter.logged(door.address, level="info", limit=LATE)
    time.sleep(1.5)
    found = adapter.logged(door.address, level="info")
    assert len(found) <= 3, f"it is logged again and again: {found}"
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')}"
    stage.note(found[0])
    adapter("release", hold="h")


@case(5, 9, needs=("log",), seconds=100, weight=12)
def a_wait_for_long_is_logged(stage):
    """A wait of half a minute is logged, for one lock and for several, with the owner that holds it."""
    _, _, adapter = stage.single()
    owner = adapter("acquire", hold="h", name="invoices", wait_ms=0)["owner"]
    stage.hold("orders", owner="kit-ann")
    asked = {"again": adapter.ask("acquire", hold="again", name="invoices")}
    asked["one"] = adapter.ask("acquire", hold="one", name="orders")
    stage.waiting("orders", 1)
    asked["several"] = adapter.ask("acquire", hold="several", names=["accounts", "orders"], wait_ms=80_000)
    began = time.monotonic()
    # Each line is that of one waiter.
    adapter.logged("orders", "kit-ann", limit=LONG_WAIT + LATE)
    adapter.logged("accounts", "kit-ann", limit=LATE)
    adapter.logged("invoices", owner, limit=LATE)
    after = time.monotonic() - began
    assert after >= LONG_WAIT - 2, f"logged after {after:.1f} s"
    for hold, each in asked.items():
        assert not each.is_answered(), f"{hold} is answered with {each.answer}"
    stage.note(adapter.logged("orders", "kit-ann")[0])
    adapter("release", hold="h")
    stage.give_up("orders")
    served_in_any_order(adapter, asked)


def lines(adapter, word, since):
    """Returns the warnings with this word since a time."""
    found = [each for each in adapter.seen("log", level="warning") if each["at"] >= since]
    return [each["message"] for each in found if word in each["message"]]
