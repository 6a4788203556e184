"""Point 6: every way to leave releases the lock, and hides no error."""

import random
import time

from ..proxy import Call
from . import case
from .deadline import connect

TIMES = 60
#: The time limit for a client's leftovers to disappear. An abandoned queue position lasts 5 s.
LEFT = 4.5


@case(6, needs=("cancel",))
def cancelled_just_after_the_grant(stage):
    """Many waits are cancelled around the moment of their grant: each lock is held and known, or free."""
    _, door, adapter = stage.single()
    chance = random.Random(20261123)
    door.delay = lambda call: chance.uniform(0, 0.004)
    outcomes = {"ok": 0, "Cancelled": 0}
    for number in range(TIMES):
        stage.hold("k")
        asked = adapter.ask("acquire", hold=f"h{number}", name="k", wait_ms=30_000)
        stage.waiting("k", 1)
        stage.give_up("k")
        time.sleep(chance.uniform(0, 0.006))
        adapter("cancel", of=asked.number)
        settle(stage, adapter, asked, f"h{number}", "k", outcomes)
    stage.note(f"of {TIMES}: {outcomes['ok']} granted, {outcomes['Cancelled']} cancelled")


@case(6, needs=("cancel",))
def cancelled_with_a_grant_on_its_way(stage):
    """The reply with the grant is in flight when the wait is cancelled: the lock is released at once."""
    _, door, adapter = stage.single()
    outcomes = {"ok": 0, "Cancelled": 0}
    for number in range(10):
        stage.hold("k")
        asked = adapter.ask("acquire", hold=f"h{number}", name="k", wait_ms=30_000)
        stage.waiting("k", 1)
        door.delay = lambda call: 0.15 if call.is_granted() else 0
        stage.give_up("k")
        stage.eventually(lambda: stage.info("k").get("holders"), "it is granted")
        adapter("cancel", of=asked.number)
        settle(stage, adapter, asked, f"h{number}", "k", outcomes)
        door.delay = None


@case(6, needs=("cancel",))
def cancelled_without_a_wait(stage):
    """Requests for free locks are cancelled before they are answered: each lock is held and known, or free."""
    _, door, adapter = stage.single()
    chance = random.Random(7)
    door.delay = lambda call: chance.uniform(0, 0.005)
    outcomes = {"ok": 0, "Cancelled": 0}
    for number in range(TIMES):
        asked = adapter.ask("acquire", hold=f"h{number}", name="k", wait_ms=[0, 30_000][number % 2])
        time.sleep(chance.uniform(0, 0.008))
        adapter("cancel", of=asked.number)
        settle(stage, adapter, asked, f"h{number}", "k", outcomes)
    stage.note(f"of {TIMES}: {outcomes['ok']} granted, {outcomes['Cancelled']} cancelled")


@case(6, needs=("cancel",))
def cancelled_while_it_waits(stage):
    """A cancelled waiter leaves the queue, and later waiters are served."""
    _, _, adapter = stage.single(waiting_connections=2)
    stage.hold("k")
    asked = [adapter.ask("acquire", hold=f"h{n}", name="k", wait_ms=30_000) for n in range(8)]
    stage.eventually(lambda: stage.waiters("k") >= 1, "they wait")
    time.sleep(0.3)
    # One that waits on the server, and some that wait in the process.
    for number in (0, 2, 5, 6):
        adapter("cancel", of=asked[number].number)
        assert asked[number].kind() == "Cancelled", f"answered with {asked[number].answer}"
    stage.give_up("k")
    for number in (1, 3, 4, 7):
        asked[number].result()
        adapter("release", hold=f"h{number}")
    stage.free_soon("k")


@case(6)
def a_refused_request_ends_nothing_that_its_owner_holds(stage):
    """A reader asks for the write lock, and is refused at once, however long it would wait (LOCKHELD). It keeps its
    read lock."""
    _, _, adapter = stage.single()
    token = adapter("acquire", hold="mine", name="k", kind="read", owner="task-7", wait_ms=0)["token"]
    for is_alone in (True, False):
        if not is_alone:
            adapter("acquire", hold="other", name="k", kind="read", wait_ms=0)
        for wait in (0, 300, 30_000):
            asked = adapter.ask("acquire", hold=f"w{wait}", name="k", kind="write", owner="task-7", wait_ms=wait)
            assert asked.kind() == "AlreadyHeld" and "LOCKHELD" in str(asked.answer), f"answered with {asked.answer}"
            time.sleep(0.3)
            assert stage.server.admin("LOCK.FENCE", "k", token) == 1, "the read has ended, too"
            stage.waiting("k", 0)
    adapter("release", hold="mine")
    adapter("release", hold="other")


@case(6, needs=("cancel",))
def a_cancelled_body_releases(stage):
    """A block that is cancelled in its body releases its lock."""
    _, door, adapter = stage.single()
    for number in range(5):
        asked = adapter.ask("run", hold=f"h{number}", name="k", wait_ms=0, body_ms=20_000)
        stage.eventually(lambda: stage.info("k").get("holders"), "it is held")
        time.sleep(0.02 * number)
        adapter("cancel", of=asked.number)
        assert asked.kind() == "Cancelled", f"answered with {asked.answer}"
        stage.free_soon("k")


@case(6)
def a_block_releases_when_its_body_ends(stage):
    """A body that finishes and a body that raises: the lock is free, and the body's error propagates."""
    _, _, adapter = stage.single()
    for raises, body in ((False, "finished"), (True, "raised")):
        got = adapter("run", hold=f"h{body}", name="k", wait_ms=0, body_ms=50, **{"raise": raises})
        assert got["body"] == body, f"the body {body}, and the answer is {got}"
        assert got["token"] > 0
        assert stage.is_free("k"), "it is held after the block"


@case(6)
def a_release_that_fails_hides_nothing(stage):
    """The server is down when the block ends: the body's error propagates, not that of the release."""
    _, door, adapter = stage.single()
    asked = adapter.ask("run", hold="h", name="k", lease_ms=4000, wait_ms=0, body_ms=800, **{"raise": True})
    stage.eventually(lambda: stage.info("k").get("holders"), "it is held")
    time.sleep(0.1)
    door.shut()
    door.cut()
    got = asked.result(25)
    assert got["body"] == "raised", f"the body raised, and the answer is {got}"
    door.open()
    stage.free_soon("k", limit=8)


@case(6)
def the_end_of_a_program_gives_up_all_locks(stage):
    """When the adapter's input ends, its holds and waits are released, though leases are long."""
    server, _, adapter = stage.single()
    stage.hold("busy")
    for number in range(3):
        adapter("acquire", hold=f"h{number}", name=f"k{number}", wait_ms=0)
    for number in range(3):
        adapter.ask("acquire", hold=f"w{number}", name="busy", wait_ms=30_000)
    adapter.ask("run", hold="r", name="block", wait_ms=0, body_ms=30_000)
    stage.eventually(lambda: stage.waiters("busy") >= 1 and stage.info("block"), "it holds and waits")
    adapter.end()
    stage.free_soon("k0", "k1", "k2", "block", limit=LEFT)
    stage.waiting("busy", 0, LEFT)
    stage.give_up("busy")


@case(6)
def close_gives_up_all_locks(stage):
    """After close there are no holds, waits or connections, while the process continues."""
    _, door, adapter = stage.single()
    stage.hold("busy")
    adapter("acquire", hold="h", name="k", wait_ms=0)
    waits = adapter.ask("acquire", hold="w", name="busy", wait_ms=30_000)
    stage.waiting("busy", 1)
    adapter("close")
    assert waits.kind() not in ("ok", "LockTimeout"), f"answered with {waits.answer}"
    stage.free_soon("k", limit=LEFT)
    stage.waiting("busy", 0, LEFT)
    stage.eventually(lambda: not door.links, "no connection is open")
    connections = adapter("threads")["connections"]
    assert connections == 0, f"the library counts {connections} connections"
    stage.give_up("busy")


@case(6)
def a_wait_that_ends_at_the_grant_leaves_nothing(stage):
    """The lock is released just when the wait ends: it is granted and known, or free."""
    _, _, adapter = stage.single()
    connect(adapter)
    chance = random.Random(3)
    outcomes = {"ok": 0, "LockTimeout": 0}
    for number in range(20):
        stage.hold("k")
        asked = adapter.ask("acquire", hold=f"h{number}", name="k", wait_ms=150)
        time.sleep(chance.uniform(0.146, 0.156))
        stage.give_up("k")
        settle(stage, adapter, asked, f"h{number}", "k", outcomes)
    stage.note(f"{outcomes['ok']} granted, {outcomes['LockTimeout']} too late")


@case(6)
def several_locks_are_taken_all_or_none(stage):
    """If one of several locks is taken, none is held; afterwards all are, with one token."""
    _, _, adapter = stage.single()
    connect(adapter)
    stage.hold("b")
    assert adapter.refusal("acquire", hold="h0", names=["a", "b", "c"], wait_ms=100).kind == "LockTimeout"
    assert not any(stage.info(name).get("holders") for name in "ac"), "some are held"
    stage.free_soon("a", "c", limit=LEFT)  # the answer may come before the server has heard that nobody waits
    asked = adapter.ask("acquire", hold="h1", names=["a", "b", "c"], wait_ms=20_000, lease_ms=3000)
    stage.waiting("a", 1)
    stage.give_up("b")
    token = asked.result()["token"]
    stage.stays(lambda: is_live(stage, token, "a", "b", "c"), "all are held with one token", 6)
    adapter("release", hold="h1")
    assert not any(stage.info(name).get("holders") for name in "abc"), "some are held after the release"


@case(6, 7)
def a_lost_reply_to_a_release_does_no_harm(stage):
    """The reply to the release is lost: the lock is free, and the release is answered."""
    _, door, adapter = stage.single()
    adapter("acquire", hold="h", name="k", wait_ms=0)
    door.drop(is_release)
    kind = adapter.ask("release", hold="h").kind()
    assert kind in ("ok", "LockLost"), f"answered with {kind}"
    stage.free_soon("k")
    assert not adapter.seen("lost"), "a loss was told"


def settle(stage, adapter, asked, hold, name, outcomes):
    """A lock that was answered with ok is held and is then released; otherwise it is free, and without waiters."""
    kind = asked.kind()
    assert kind in outcomes, f"answered with {asked.answer}"
    outcomes[kind] += 1
    if kind == "ok":
        assert stage.server.admin("LOCK.FENCE", name, asked.result()["token"]) == 1, "granted, and not held"
        adapter("release", hold=hold)
    stage.free_soon(name, limit=LEFT)


def is_live(stage, token, *names):
    """Returns whether each is held with this token."""
    return all(stage.server.admin("LOCK.FENCE", name, token) == 1 for name in names)


def is_release(call: Call):
    """Returns whether a call is a release, for drop()."""
    return call.name == "LOCK.RELEASE"
