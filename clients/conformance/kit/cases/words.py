"""The words that each library has (docs/reference/client-words.md), and their exact meaning."""

import json
import time

from harness.replicas import AT_ONCE, is_linked

from ..adapter import Refused
from ..stage import LONG_MS, as_dictionary
from . import case

#: How long a ping may take that fails: 2 s by PROTOCOL.md, and more on a machine that is busy.
PING_FAILS_IN = 2.0 + 8.0


def left_ms(stage, name):
    """Returns the rest of the lease; 0 if the lock is free."""
    return max((as_dictionary(holder)["lease-left-ms"] for holder in stage.info(name).get("holders", [])), default=0)


@case(5)
def a_try_gets_nothing_where_another_holds_the_lock(stage):
    """The result is empty only if the server said so: all else is an error, and no queue position is left."""
    server, _, adapter = stage.single()
    stage.hold("k")
    assert adapter("try", hold="no", name="k") == {}, "it got something"
    assert stage.waiters("k") == 0, "it has left a waiter"
    stage.give_up("k")
    token = adapter("try", hold="h1", name="k")["token"]
    assert server.admin("LOCK.FENCE", "k", token) == 1
    adapter("release", hold="h1")
    server.admin("SET", "value", "another client's")
    assert adapter.refusal("try", hold="h2", name="value").kind == "Other"
    server.admin("DEL", "value")


@case(5)
def readers_of_several_locks_hold_them_together(stage):
    """Readers of several locks share them with other readers, and a writer of one of the locks is excluded."""
    _, _, adapter = stage.single()
    for number, names in enumerate((["a", "b"], ["b", "a"])):
        adapter("acquire", hold=f"r{number}", names=names, kind="read", wait_ms=0)
    for number in range(2):
        assert adapter.refusal("acquire", hold="w", name="b", kind="write", wait_ms=0).kind == "LockTimeout"
        adapter("release", hold=f"r{number}")
    stage.free_soon("a", "b")


@case(5)
def info_names_holders_and_waiters(stage):
    """The info lists the holders of a lock, their leases, and the number of waiters; no holder of a free lock."""
    _, _, adapter = stage.single()
    assert adapter("info", name="k") == {"holders": [], "waiters": 0}
    token = stage.hold("k")
    asked = adapter.ask("acquire", hold="h1", name="k", wait_ms=20_000)
    stage.waiting("k", 1)
    found = adapter("info", name="k")
    (holder,) = found["holders"]
    assert (holder["owner"], holder["token"], found["waiters"]) == (stage.owners["k"], token, 1), f"answered with {found}"
    assert 0 < holder["left_ms"] <= LONG_MS, f"answered with {found}"
    stage.give_up("k")
    asked.result()
    adapter("release", hold="h1")


@case(7, 8)
def a_ping_fails_while_the_server_is_away(stage):
    """It gives the module's version; an error in time, if the server is gone or silent; the version when it is back."""
    server, door, adapter = stage.single()
    version = server.info("redislock")["redislock_version"]
    assert adapter("ping")["version"] == version
    for goes, comes in ((lambda: (door.shut(), door.cut()), door.open), (door.stall, lambda: (door.flow(), door.cut()))):
        goes()
        asked = adapter.ask("ping")
        assert asked.kind(25) == "ConnectionFailed", f"answered with {asked.answer}"
        assert asked.seconds <= PING_FAILS_IN, f"after {asked.seconds:.1f} s"
        comes()
        assert adapter("ping")["version"] == version
    assert server.admin("KEYS", "*") == [], "it has left a key"


@case(7, 8)
def a_ping_fails_where_no_lock_can_be_acquired(stage):
    """A replica and a server without the module answer, but grant nothing: an error that says so, in time."""
    primary, replica, bare = stage.start(*AT_ONCE), stage.start(*AT_ONCE), stage.start(with_module=False)
    stage.leaves.add(bare)
    replica.admin("REPLICAOF", "127.0.0.1", primary.port)
    is_linked(replica)
    for server, kind, word in ((replica, "ConnectionFailed", "replica"), (bare, "ModuleMissing", "loadmodule")):
        began = time.monotonic()
        try:
            adapter = stage.adapter(stage.door(server).address)
            began = time.monotonic()
            answer = adapter("ping")
        except Refused as refused:  # open may say it, too
            assert refused.kind == kind and word in refused.message.lower(), f"answered with {refused}"
        else:
            raise AssertionError(f"answered with {answer} where {kind} is meant")
        assert time.monotonic() - began <= PING_FAILS_IN, f"after {time.monotonic() - began:.1f} s"


@case(1)
def a_prefix_stands_before_each_name(stage):
    """The server has each name with the prefix, also of several locks; the program uses names without it."""
    server, _, adapter = stage.single(prefix="app:")
    adapter("acquire", hold="h1", names=["a", "b"], wait_ms=0)
    token = adapter("acquire", hold="h2", name="k", wait_ms=0)["token"]
    names = sorted(server.admin("KEYS", "*"))
    assert names == ["app:a", "app:b", "app:k"], f"the server has {names}"
    adapter("fence", name="k", token=token)
    assert [each["token"] for each in adapter("info", name="k")["holders"]] == [token]
    refused = adapter.refusal("acquire", hold="h3", name="k", wait_ms=0)
    assert refused.kind == "LockTimeout" and "app:" not in refused.message, f"answered with {refused}"
    for hold in ("h1", "h2"):
        adapter("release", hold=hold)


@case(1)
def an_owner_begins_with_the_label(stage):
    """The owner of each hold is the label and a unique id."""
    _, _, adapter = stage.single(label="worker 7")
    owners = {adapter("acquire", hold=f"h{number}", name=f"k{number}", wait_ms=0)["owner"] for number in range(2)}
    assert len(owners) == 2 and all(owner.startswith("worker 7:") for owner in owners), f"the owners are {owners}"
    for number in range(2):
        (holder,) = stage.info(f"k{number}")["holders"]
        assert as_dictionary(holder)["owner"] in owners
        adapter("release", hold=f"h{number}")


@case(3, 6, needs=("min_hold",))
def a_lock_stays_taken_for_its_least_hold(stage):
    """The server keeps the lock for that time from the grant. An earlier release, or a close, leaves it taken."""
    server, _, adapter = stage.single(lease_ms=1000)
    adapter("acquire", hold="h1", name="k", min_hold_ms=LONG_MS, wait_ms=0)
    assert left_ms(stage, "k") > LONG_MS / 2, "a crash now would free it too early"
    adapter("release", hold="h1")
    left = left_ms(stage, "k")
    assert LONG_MS / 2 < left <= LONG_MS, f"{left} ms are left after the release"
    assert adapter.refusal("acquire", hold="no", name="k", wait_ms=0).kind == "LockTimeout"
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')}"
    adapter("acquire", hold="h2", name="l", min_hold_ms=LONG_MS, wait_ms=0)
    adapter("close")
    assert left_ms(stage, "l") > LONG_MS / 2, "the close has freed it too early"
    server.admin("DEL", "k", "l")


@case(3, 6, needs=("min_hold",))
def a_lock_is_free_after_its_least_hold(stage):
    """A release leaves the lock taken for the rest of its least hold, and no longer."""
    _, _, adapter = stage.single()
    began = time.monotonic()
    adapter("acquire", hold="h1", name="k", min_hold_ms=1200, wait_ms=0)
    adapter("release", hold="h1")
    left = left_ms(stage, "k")
    assert left <= 1200, f"{left} ms are left after the release"
    adapter("acquire", hold="h2", name="k", wait_ms=20_000)
    assert time.monotonic() - began >= 1.2, f"it was free after {time.monotonic() - began:.2f} s"
    adapter("release", hold="h2")
    stage.free_soon("k")


@case(8, needs=("nested",))
def a_task_that_waits_for_itself_is_refused(stage):
    """The body of a block acquires the block's lock: AlreadyHeld at once, and the block keeps its hold."""
    _, _, adapter = stage.single()
    for kind, nested in (("exclusive", "exclusive"), ("read", "read"), ("read", "write"), ("write", "read")):
        answer = adapter("run", hold=f"{kind}-{nested}", name="k", kind=kind, body_ms=0, wait_ms=0, nested=nested)
        assert answer["nested"] == "AlreadyHeld", f"{nested} in {kind}: answered with {answer}"
        stage.free_soon("k")


@case(6, needs=("ticket",))
def a_hold_goes_on_in_another_process(stage):
    """A hold is detached: it outlives the block and its process, and the process that adopts it renews it."""
    server, door, adapter = stage.single()
    token = adapter("acquire", hold="h1", name="k", wait_ms=0)["token"]
    ticket = adapter("detach", hold="h1", lease_ms=40_000)["ticket"]
    assert adapter.refusal("check", hold="h1").kind == "LockLost", "it is held on where it was detached"
    adapter.ask("release", hold="h1").kind()
    adapter("close")
    assert server.admin("LOCK.FENCE", "k", token) == 1, "the end of its process has ended it"
    left = left_ms(stage, "k")
    assert 0 < left <= 40_000, f"{left} ms are left of the lease that was asked for"
    other = stage.adapter(door.address)
    before = len(door.calls("LOCK.RENEW"))
    assert other("adopt", hold="h2", ticket=ticket, lease_ms=3000)["token"] == token
    stage.eventually(lambda: len(door.calls("LOCK.RENEW")) >= before + 2, "it is renewed again")
    assert server.admin("LOCK.FENCE", "k", token) == 1
    assert other("check", hold="h2")["remaining_ms"] > 0
    other("release", hold="h2")
    stage.free_soon("k")
    assert other.refusal("adopt", hold="h3", ticket=ticket).kind == "LockLost", "it was adopted when it was over"


@case(6, needs=("ticket",))
def a_ticket_is_the_same_in_each_language(stage):
    """A ticket has names without the prefix, kind, limit, owner and token; one of another library is adopted."""
    server, _, adapter = stage.single(prefix="app:")
    for kind, more in (("read", {}), ("write", {}), ("semaphore", {"limit": 3})):
        got = adapter("acquire", hold=kind, name="k", kind=kind, wait_ms=0, **more)
        told = json.loads(adapter("detach", hold=kind)["ticket"])
        wanted = {
            "names": ["k"], "kind": "exclusive" if kind == "write" else kind, "limit": more.get("limit"),
            "owner": got["owner"], "token": got["token"],
        }  # fmt: skip
        assert told == wanted, f"the ticket is {told}, and not {wanted}"
        assert adapter("adopt", hold=f"{kind}-2", ticket=json.dumps(told))["token"] == got["token"]
        adapter("release", hold=f"{kind}-2")
        stage.free_soon("app:k")
    token = server.admin("LOCK.MACQUIRE", 2, "app:a", "app:b", "other:1:2", "PX", LONG_MS)
    ticket = {"names": ["a", "b"], "kind": "exclusive", "limit": None, "owner": "other:1:2", "token": token}
    assert adapter("adopt", hold="many", ticket=json.dumps(ticket))["owner"] == "other:1:2"
    adapter("release", hold="many")
    stage.free_soon("app:a", "app:b")


@case(6, needs=("ticket",))
def nothing_is_handed_on_while_a_renewal_may_come_late(stage):
    """The reply to a renewal is lost. It may arrive late, and shorten the adopter's lease: the hold is not detached."""
    _, door, adapter = stage.single()
    token = adapter("acquire", hold="h1", name="k", lease_ms=10_000, wait_ms=0)["token"]
    door.drop(lambda call: call.words[0].upper() == "LOCK.RENEW", then="silent")
    assert adapter.refusal("detach", hold="h1").kind == "ConnectionFailed"
    assert adapter("check", hold="h1")["remaining_ms"] > 0, "it is held on"
    assert stage.server.admin("LOCK.FENCE", "k", token) == 1
    adapter("release", hold="h1")
    stage.free_soon("k")


@case(6, needs=("stubborn",))
def a_close_waits_for_blocks_that_work_under_a_lock(stage):
    """A block continues though its locks are closed: its lock is released when it has ended, and not before."""
    _, _, adapter = stage.single()
    began = time.monotonic()
    asked = adapter.ask("run", hold="h1", name="k", body_ms=1200, wait_ms=0, stubborn=True)
    adapter.told("begun", hold="h1")
    closing = adapter.ask("close")
    stage.free_soon("k", limit=20)
    assert time.monotonic() - began >= 1.2, f"it was given up after {time.monotonic() - began:.2f} s"
    assert asked.kind() in ("ok", "LockLost"), f"answered with {asked.answer}"
    closing.result()
