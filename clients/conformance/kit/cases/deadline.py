"""Point 2: the hold lasts until the holder's own deadline, which is never later than the server's."""

import signal
import time

from harness.stopped import stop

from ..adapter import Refused
from . import case

#: The most time between the end of a lease and the arrival of an event.
LATE = 5.0
#: A lease that ends before the answer arrives, but is long enough for a client that is asked at once.
LATE_LEASE_MS = 3000


@case(2)
def a_slow_reply_shortens_the_remaining_time(stage):
    """A slow reply shortens the time that the holder counts on."""
    _, door, adapter = stage.single()
    connect(adapter)
    door.delay = lambda call: 0.4 if call.name == "LOCK.ACQUIRE" else 0
    got = adapter("acquire", hold="h1", name="k", lease_ms=10_000, wait_ms=0, renew=False)
    assert 0 < got["remaining_ms"] <= 9600, f"{got['remaining_ms']} ms of 10000 remain, and the reply took 400"
    never_more_than_the_server(stage, adapter, "h1", "k")
    adapter("release", hold="h1")


@case(2)
def a_grant_that_is_answered_too_late_is_no_hold(stage):
    """The reply to an acquire arrives after its lease has expired: the answer is an error, and nothing is held."""
    _, door, adapter = stage.single()
    connect(adapter)
    door.delay = lambda call: 0.7 if call.name == "LOCK.ACQUIRE" else 0
    asked = adapter.ask("acquire", hold="h1", name="k", lease_ms=500, wait_ms=0)
    late = "answered 200 ms after the end of the lease"
    assert asked.kind() in ("LockLost", "LockTimeout", "ConnectionFailed"), f"{late} with {asked.answer}"
    stage.free_soon("k")


@case(2, 5)
def a_grant_after_a_wait_is_counted_from_a_renewal(stage):
    """The wait for several locks, or the reply, takes long: the deadline is that of a renewal after it, or earlier."""
    _, door, adapter = stage.single()
    stage.hold("k")
    stage.hold("b")
    asked = adapter.ask("acquire", hold="h1", name="k", lease_ms=10_000, wait_ms=30_000, renew=False)
    several = adapter.ask("acquire", hold="h2", names=["a", "b"], lease_ms=10_000, wait_ms=30_000)
    stage.waiting("k", 1)
    stage.waiting("b", 1)
    door.delay = lambda call: 0.5 if call.name == "LOCK.ACQUIRE" else 0
    time.sleep(0.3)
    stage.give_up("k")
    got = asked.result()
    assert got["remaining_ms"] > 0, "nothing remains, though the lease was renewed or is young"
    never_more_than_the_server(stage, adapter, "h1", "k")
    adapter("release", hold="h1")
    time.sleep(max(0.0, several.began + 6.5 - time.monotonic()))
    stage.give_up("b")
    remaining = several.result()["remaining_ms"]
    assert remaining > 5000, f"{remaining} ms of 10000 remain of several locks that have just been granted"
    never_more_than_the_server(stage, adapter, "h2", "b")
    adapter("release", hold="h2")


@case(2, 4)
def holders_learn_of_their_loss_before_a_stopped_server_ends_the_lease(stage):
    """The server is stopped: the holder is notified of the loss before the lease ends on the server."""
    server, door, adapter = stage.single()
    lease = 2
    adapter("acquire", hold="h1", name="k", lease_ms=lease * 1000, wait_ms=0)
    stage.eventually(lambda: len(answered(door)) >= 2, "two renewals")
    try:
        stop(server.process.pid)
        # The server may execute an unanswered request when it continues; its last reply counts.
        end = max(call.sent for call in answered(door)) + lease
        at = adapter.told("lost", hold="h1", limit=lease + LATE)["at"]
        assert at <= end + LATE, f"told {at - end:.3f} s after the end of the lease"
        stage.note(f"told {1000 * (end - at):.0f} ms before the end of the lease")
        assert adapter.refusal("check", hold="h1").kind == "LockLost"
    finally:
        server.process.send_signal(signal.SIGCONT)
    time.sleep(0.3)
    assert len(adapter.seen("lost", hold="h1")) == 1, "told more than once"
    adapter.ask("release", hold="h1").kind()


@case(2)
def at_the_end_of_the_lease_the_holder_knows(stage):
    """From the moment at which the lease has expired by the server's clock, check() refuses, even without a reply."""
    _, door, adapter = stage.single()
    for number in range(3):
        hold = f"h{number}"
        adapter("acquire", hold=hold, name="k", lease_ms=2500, wait_ms=0, renew=False)
        end = time.monotonic() + stage.lease_left_ms("k") / 1000
        door.stall()
        time.sleep(max(0.0, end - time.monotonic()))
        answer = adapter.ask("check", hold=hold).kind()
        door.flow()
        assert answer == "LockLost", f"after the end of the lease check() answers {answer}"
        adapter.told("lost", hold=hold, limit=LATE)
        adapter.ask("release", hold=hold).kind()
        stage.free_soon("k")


@case(2, 4, 6)
def a_holder_that_was_paused_knows_at_once(stage):
    """The holder is stopped for longer than its lease: afterwards it knows, and does not harm the next holder."""
    _, _, adapter = stage.single()
    adapter("acquire", hold="h1", name="k", lease_ms=1000, wait_ms=0)
    adapter.pause()
    try:
        stage.eventually(lambda: stage.is_free("k"), "the lease ends")
        token = stage.hold("k")
    finally:
        adapter.go_on()
    assert adapter.refusal("check", hold="h1").kind == "LockLost"
    adapter.told("lost", hold="h1")
    assert adapter.ask("release", hold="h1").kind() in ("ok", "LockLost")
    assert stage.server.admin("LOCK.FENCE", "k", token) == 1, "the next holder's lock was given up"
    assert len(adapter.seen("lost", hold="h1")) == 1, "told more than once"
    stage.give_up("k")


@case(2, weight=2)
def a_grant_that_is_answered_too_late_is_asked_for_again(stage):
    """The server, or the adapter, pauses for longer than the lease: the lock is acquired in the time left."""
    server, _, adapter = stage.single()
    connect(adapter)
    wanted = {"one": {"name": "k"}, "several": {"names": ["a", "b"]}}
    stop(server.process.pid)
    options = {"lease_ms": LATE_LEASE_MS, "wait_ms": 40_000}
    asked = {hold: adapter.ask("acquire", hold=hold, **options, **names) for hold, names in wanted.items()}
    time.sleep(LATE_LEASE_MS / 1000 + 1)
    server.process.send_signal(signal.SIGCONT)
    granted_in_the_end(stage, adapter, asked)
    for name in ("k", "b"):
        stage.hold(name)
    wanted = {f"{hold}, again": names for hold, names in wanted.items()}
    asked = {hold: adapter.ask("acquire", hold=hold, **options, **names) for hold, names in wanted.items()}
    for name in ("k", "b"):
        stage.waiting(name, 1)
    adapter.pause()
    try:
        for name in ("k", "b"):
            stage.give_up(name)
        stage.free_soon("k", "a", "b", limit=15)  # the grants, which nobody has heard of, end with their leases
    finally:
        adapter.go_on()
    granted_in_the_end(stage, adapter, asked)


@case(6, weight=2)
def a_hold_that_is_not_renewed_is_not_given_away(stage):
    """After its own deadline the holder does not count on the lock. It sends no release: the body may work until the
    lease ends."""
    _, door, adapter = stage.single()
    lease = 3.0
    for hold, options in (("h1", {"renew": False}), ("h2", {"longest_ms": 100})):
        sent = time.monotonic()
        adapter("acquire", hold=hold, name=hold, lease_ms=int(1000 * lease), wait_ms=0, **options)
        adapter.told("lost", hold=hold)
        assert time.monotonic() < sent + 3 * lease
        assert adapter.refusal("check", hold=hold).kind == "LockLost"
    stage.free_soon("h1", "h2", limit=lease + 5)
    early = [call for call in door.calls("LOCK.RELEASE") if call.reply == b":1\r\n"]
    assert not early, f"the library has given away what its user may still work under: {early}"
    for hold in ("h1", "h2"):
        adapter.ask("release", hold=hold).kind()


def granted_in_the_end(stage, adapter, asked):
    """Each is answered with a hold that the server has, too."""
    for hold, each in asked.items():
        kind = each.kind()
        assert kind == "ok", f"{hold}: there was time left to wait, and it is answered with {each.answer}"
        adapter("check", hold=hold)
        adapter("release", hold=hold)


def connect(adapter):
    """Lets it connect. On a busy machine that may take longer than a short wait, which then fails without an answer."""
    adapter("acquire", hold="first", name="first", wait_ms=20_000)
    adapter("release", hold="first")


def answered(door):
    """Returns the renewals that the server has accepted."""
    return [call for call in door.calls("LOCK.RENEW") if call.reply == b":1\r\n"]


def never_more_than_the_server(stage, adapter, hold, name, times=5):
    """The holder never counts on more than the server has just reported as the rest of the lease."""
    for _ in range(times):
        left = stage.lease_left_ms(name)
        try:
            remaining = adapter("check", hold=hold)["remaining_ms"]
        except Refused as refused:
            raise AssertionError(f"{left} ms are left, and check says {refused}") from None
        assert remaining <= left, f"the holder counts on {remaining} ms, the server on {left}"
        time.sleep(0.02)
