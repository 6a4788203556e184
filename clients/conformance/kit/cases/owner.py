"""Point 1: an owner of its own for each acquire, and repeated requests with the same owner."""

import re
import socket

from ..proxy import is_grant
from ..stage import as_dictionary
from . import case

OWNER = re.compile(r"^(?P<host>[^:]+):(?P<pid>\d+):(?P<id>[0-9a-fA-F-]{32,36})$")


@case(1)
def each_acquire_has_an_owner_of_its_own(stage):
    """Each acquire has a new, unique owner, which names host and process."""
    _, _, adapter = stage.single()
    owners = []
    for number in range(20):
        owner = adapter("acquire", hold=f"h{number}", name="k", wait_ms=0)["owner"]
        (holder,) = stage.info("k")["holders"]
        assert as_dictionary(holder)["owner"] == owner, f"LOCK.INFO shows another owner than {owner}"
        adapter("release", hold=f"h{number}")
        owners.append(owner)
    assert len(set(owners)) == len(owners), "an owner came twice"
    for owner in owners:
        found = OWNER.match(owner)
        assert found, f"the owner is not host:pid:uuid: {owner}"
        assert found["host"] == socket.gethostname(), f"the host is {socket.gethostname()}: {owner}"
        assert int(found["pid"]) in adapter.pids(), f"the adapter's processes are {adapter.pids()}: {owner}"


@case(1, 7)
def a_reply_is_lost_after_the_grant(stage):
    """The reply to a grant is lost: the request is repeated with the same owner, and gets the same hold."""
    _, door, adapter = stage.single()
    door.drop(is_grant)
    got = adapter("acquire", hold="h1", name="k", wait_ms=5000)
    granted = [call for call in door.calls("LOCK.ACQUIRE") if call.is_granted()]
    assert len(granted) >= 2, "the request was not repeated"
    assert len({call.words[2] for call in granted}) == 1, f"repeated with another owner: {granted}"
    assert stage.server.info("redislock")["redislock_grants"] == "1", "it took more than one hold"
    assert got["token"] == int(granted[0].reply[1:]), "the token is not that of the grant"
    adapter("release", hold="h1")
    stage.free_soon("k")


@case(1, 6, 7)
def a_reply_is_lost_and_nobody_waits_for_it(stage):
    """Without a wait, the lock is held or released, and never forgotten."""
    _, door, adapter = stage.single()
    for number in range(5):
        door.drop(is_grant)
        kind = adapter.ask("acquire", hold=f"h{number}", name=f"k{number}", wait_ms=0).kind()
        assert kind in ("ok", "ConnectionFailed"), f"answered with {kind}"
        if kind == "ok":
            adapter("release", hold=f"h{number}")
        stage.free_soon(f"k{number}")


@case(1, 5, 7)
def a_reply_is_lost_after_a_wait(stage):
    """The grant to a waiter is lost on its way: the request is repeated, and the lock is acquired."""
    _, door, adapter = stage.single()
    stage.hold("k")
    asked = adapter.ask("acquire", hold="h1", name="k", wait_ms=15_000)
    stage.waiting("k", 1)
    door.drop(is_grant)
    stage.give_up("k")
    token = asked.result()["token"]
    assert stage.server.admin("LOCK.FENCE", "k", token) == 1, "the token is not that of the live hold"
    adapter("release", hold="h1")
    stage.free_soon("k")


@case(1)
def the_owner_that_means_anybody_is_refused(stage):
    """The user names the owner `*`, for which the server generates an owner: refused, and never sent."""
    _, door, adapter = stage.single()
    for number, wait_ms in enumerate((0, 500)):
        kind = adapter.ask("acquire", hold=f"h{number}", name="k", owner="*", wait_ms=wait_ms).kind()
        assert kind == "Other", f"answered with {kind}"
    assert not door.calls("LOCK.ACQUIRE"), f"it was sent: {door.calls('LOCK.ACQUIRE')}"
