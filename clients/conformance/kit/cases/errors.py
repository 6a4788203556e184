"""Point 8: distinguishable errors."""

import json

from harness.cluster import NODE, is_up, meet, share_slots
from harness.confirming import frozen, has_replicas
from harness.limits import eventually
from harness.replicas import AT_ONCE

from . import case


@case(8)
def a_request_of_another_kind_is_refused(stage):
    """A semaphore is requested as an exclusive lock: LockKindMismatch."""
    _, _, adapter = stage.single()
    stage.hold("k", "LIMIT", 2)
    for number, members in enumerate([{}, {"kind": "semaphore", "limit": 3}, {"kind": "read"}]):
        for wait_ms in (0, 60_000):
            asked = adapter.ask("acquire", hold=f"h{number}.{wait_ms}", name="k", wait_ms=wait_ms, **members)
            assert asked.kind() == "LockKindMismatch", f"answered with {asked.answer}"
    stage.give_up("k")


@case(8)
def a_deadlock(stage):
    """An owner would wait for an owner that waits for it: Deadlock, which names the cycle."""
    _, _, adapter = stage.single()
    adapter("acquire", hold="a", name="left", owner="kit-ann", wait_ms=0)
    stage.hold("right", owner="kit-ben")
    request = stage.server.ask("LOCK.ACQUIRE", "left", "kit-ben", "PX", 60_000, "BLOCK", 60_000)
    refused = adapter.refusal("acquire", hold="b", name="right", owner="kit-ann", wait_ms=20_000)
    assert refused.kind == "Deadlock", f"answered with {refused}"
    cycle = json.dumps(refused.error.get("cycle"))
    assert all(word in cycle for word in ("kit-ann", "kit-ben", "left", "right")), f"the cycle is {cycle}"
    adapter("release", hold="a")
    assert isinstance(request.answer(), int)
    stage.server.admin("LOCK.RELEASE", "left", "kit-ben")
    stage.give_up("right")


@case(8)
def the_line_is_full(stage):
    """The queue is full: QueueFull."""
    _, _, adapter = stage.single(module_arguments=("max-waiters-per-lock", 1))
    stage.hold("k")
    request = stage.server.ask("LOCK.ACQUIRE", "k", "kit-waits", "PX", 60_000, "BLOCK", 60_000)
    asked = adapter.ask("acquire", hold="h", name="k", wait_ms=60_000)
    assert asked.kind() == "QueueFull", f"answered with {asked.answer}"
    stage.give_up("k")
    assert isinstance(request.answer(), int)
    stage.server.admin("LOCK.RELEASE", "k", "kit-waits")


@case(8)
def requests_that_wait_longer_than_the_server_allows_are_all_granted(stage):
    """Several requests learn of `redislock.max-wait` at the same moment: none of them fails."""
    _, _, adapter = stage.single(module_arguments=("max-wait", 1000))
    asked = [adapter.ask("acquire", hold=f"h{n}", name=f"k{n}", wait_ms=20_000) for n in range(12)]
    for number, answer in enumerate(asked):
        assert answer.kind(25) == "ok", f"number {number} was answered with {answer.answer}"
    for number in range(12):
        adapter("release", hold=f"h{number}")


@case(8, weight=2)
def the_server_is_in_quarantine(stage):
    """Quarantine with the time left, even after a shorter wait; a longer wait is granted after it."""
    _, _, adapter = stage.single(module_arguments=("quarantine", 60_000), lease_ms=2000)
    refused = adapter.refusal("acquire", hold="h0", name="k", lease_ms=2000, wait_ms=0)
    assert refused.kind == "Quarantine", f"answered with {refused}"
    assert 0 < refused.error.get("left_ms", 0) <= 60_000, f"the time left is {refused.error.get('left_ms')}"
    for names in ({"name": "k"}, {"names": ["k", "l"]}):
        refused = adapter.refusal("acquire", hold="h0", lease_ms=2000, wait_ms=1500, **names)
        assert refused.kind == "Quarantine", f"after a wait for {names} answered with {refused}"
    _, _, adapter = stage.single(module_arguments=("quarantine", 5000), lease_ms=2000)
    adapter("acquire", hold="h1", name="k", lease_ms=2000, wait_ms=25_000)
    adapter("release", hold="h1")


@case(8)
def too_few_replicas(stage):
    """No replica confirms the grant: NotConfirmed, and nothing is held."""
    arguments = ("quarantine", 1500, "group-size", 2, "confirm", "all", "confirm-timeout", 300)
    server, _, adapter = stage.single(*AT_ONCE, module_arguments=arguments, lease_ms=1000)
    stage.eventually(lambda: server.info("redislock")["redislock_quarantine_left_ms"] == "0", "it may grant")
    is_not_confirmed(stage, adapter, "h")
    stage.free_soon("k")


@case(8, weight=3)
def replicas_that_stand_still_confirm_nothing(stage):
    """One of two replicas is a majority with the primary. Both pause: NotConfirmed, and nothing is held."""
    # A replica counts when it has been connected for a quarantine.
    arguments = ("quarantine", 5000, "group-size", 3, "confirm", "majority", "confirm-timeout", 700)
    server, _, adapter = stage.single(*AT_ONCE, module_arguments=arguments, lease_ms=5000)
    first, second = (stage.start("--replicaof", f"127.0.0.1 {server.port}") for _ in range(2))
    has_replicas(server, 2, seasoned=2)
    with frozen(first):
        confirmed(stage, adapter, "h")
        waiting = adapter.ask("acquire", hold="w", name="k", wait_ms=60_000)
        stage.waiting("k", 1)
        with frozen(second):
            adapter("release", hold="h")
            assert waiting.kind() == "NotConfirmed", f"the waiter was answered with {waiting.answer}"
            is_not_confirmed(stage, adapter, "r")
            stage.free_soon("k")
    confirmed(stage, adapter, "again")
    adapter("release", hold="again")


def confirmed(stage, adapter, hold):
    """Acquires the lock. On a busy machine, even a working replica may not answer in time."""
    ends_in(stage, adapter, hold, "ok", ("NotConfirmed", "LockTimeout"))


def is_not_confirmed(stage, adapter, hold):
    """Checks the answer to a request without a wait. On a busy machine, the server may not answer in time."""
    ends_in(stage, adapter, hold, "NotConfirmed", ("ConnectionFailed",))


def ends_in(stage, adapter, hold, wanted, others):
    """Asks for the lock until it gets this answer; the others may come first."""
    def is_so():
        kind = adapter.ask("acquire", hold=hold, name="k", wait_ms=0).kind()
        assert kind == wanted or kind in others, f"answered with {kind}"
        return kind == wanted

    stage.eventually(is_so, f"it is answered with {wanted}")


@case(8)
def the_module_is_missing(stage):
    """The server does not know the commands: ModuleMissing, which says how to load the module."""
    server = stage.start(with_module=False)
    stage.leaves.add(server)
    door = stage.door(server)
    try:
        adapter = stage.adapter(door.address)
    except Exception as refused:  # open may say it, too
        kind, message = getattr(refused, "kind", None), getattr(refused, "message", "")
    else:
        refused = adapter.refusal("acquire", hold="h", name="k", wait_ms=0)
        kind, message = refused.kind, refused.message
    assert kind == "ModuleMissing", f"answered with {kind}: {message}"
    assert "loadmodule" in message.lower(), f"it does not say how to load the module: {message}"


@case(8, needs=("fence",))
def tokens_that_are_dead_are_refused(stage):
    """A hold's token can be checked any number of times; that of an earlier hold is Fenced."""
    _, _, adapter = stage.single()
    first = adapter("acquire", hold="h1", name="k", wait_ms=0)["token"]
    for _ in range(2):  # the second write of one hold is as good as the first
        adapter("fence", name="k", token=first)
    adapter("release", hold="h1")
    second = adapter("acquire", hold="h2", name="k", wait_ms=0)["token"]
    assert second > first, "tokens do not rise"
    assert adapter.refusal("fence", name="k", token=first).kind == "Fenced"
    adapter("fence", name="k", token=second)
    adapter("release", hold="h2")
    assert adapter.refusal("fence", name="k", token=second).kind == "Fenced"


@case(8)
def a_loss_and_a_wait_in_vain_are_different_errors(stage):
    """LockTimeout: it was not granted in time; LockLost: the hold has ended; a value in its place is another error."""
    _, _, adapter = stage.single()
    stage.hold("k")
    assert adapter.refusal("acquire", hold="h0", name="k", wait_ms=0).kind == "LockTimeout"
    stage.give_up("k")
    adapter("acquire", hold="h1", name="k", wait_ms=0)
    stage.server.admin("DEL", "k")
    adapter.told("lost", hold="h1", limit=30)
    assert adapter.refusal("check", hold="h1").kind == "LockLost"
    adapter.ask("release", hold="h1").kind()
    stage.server.admin("SET", "value", 1)
    refused = adapter.refusal("acquire", hold="h2", name="value", wait_ms=2000)
    assert refused.kind == "Other" and "WRONGTYPE" in refused.message, f"answered with {refused}"


@case(7, 8, weight=2)
def no_server_is_there(stage):
    """The server is down: an error in time, and locks again when it is back."""
    _, door, adapter = stage.single()
    adapter("acquire", hold="h0", name="k", wait_ms=0)
    adapter("release", hold="h0")
    door.shut()
    door.cut()
    for number, wait_ms in enumerate((0, 1500)):
        asked = adapter.ask("acquire", hold=f"a{number}", name="k", wait_ms=wait_ms)
        kind = asked.kind(25)
        assert kind == "ConnectionFailed", f"answered with {asked.answer}"
        assert asked.seconds <= wait_ms / 1000 + 10, f"after {asked.seconds:.1f} s"
    door.open()
    asked = adapter.ask("acquire", hold="h1", name="k", wait_ms=10_000)
    assert asked.kind() == "ok", f"the server is back, and it answers {asked.answer}"
    adapter("release", hold="h1")


@case(7, 8, weight=2)
def a_server_that_goes_away_during_a_wait_is_no_other_holder(stage):
    """The server goes away while requests wait for locks that are held: ConnectionFailed when their time is up."""
    _, door, adapter = stage.single()
    for name in ("k", "b"):
        stage.hold(name)
    asked = {
        "one": adapter.ask("acquire", hold="one", name="k", wait_ms=5000),
        "several": adapter.ask("acquire", hold="several", names=["a", "b"], wait_ms=5000),
    }
    for name in ("k", "b"):
        stage.waiting(name, 1)
    door.shut()
    door.cut()
    for hold, each in asked.items():
        assert each.kind(25) == "ConnectionFailed", f"{hold} is answered with {each.answer}"
        assert each.seconds <= 15, f"{hold} is answered after {each.seconds:.1f} s"
    door.open()
    for name in ("k", "b"):
        stage.give_up(name)


@case(7, 8, needs=("fence",))
def a_token_is_checked_while_the_server_is_away(stage):
    """The server is down, or silent: ConnectionFailed in time, and an answer when it is back."""
    _, door, adapter = stage.single()
    token = adapter("acquire", hold="h", name="k", wait_ms=0)["token"]
    for goes, comes in ((lambda: (door.shut(), door.cut()), door.open), (door.stall, lambda: (door.flow(), door.cut()))):
        goes()
        asked = adapter.ask("fence", name="k", token=token)
        assert asked.kind(25) == "ConnectionFailed", f"answered with {asked.answer}"
        assert asked.seconds <= 10, f"after {asked.seconds:.1f} s"
        comes()
        adapter("fence", name="k", token=token)
    adapter("release", hold="h")


@case(8, needs=("cluster",))
def a_node_of_a_cluster_is_opened_as_a_server_alone(stage):
    """A lock of another node is refused at once, with the server's words, since a retry would end likewise."""
    nodes = [stage.start(*NODE) for _ in range(3)]
    share_slots(nodes)
    meet(nodes)
    for node in nodes:
        eventually(lambda node=node: is_up(node), "the cluster is up")
    door = stage.door(nodes[0])
    adapter = stage.adapter(door.address)
    name = next(name for name in map(str, range(100)) if nodes[0].admin("CLUSTER", "KEYSLOT", name) * 3 // 16384 == 1)
    wanted = ({"name": name, "wait_ms": 0}, {"name": name}, {"names": [f"{{{name}}}a", f"{{{name}}}b"]})
    for number, members in enumerate(wanted):
        refused = adapter.ask("acquire", hold=f"h{number}", **members)
        assert refused.kind() == "Other" and "MOVED" in str(refused.answer).upper(), f"answered with {refused.answer}"
    assert len(door.calls("LOCK.ACQUIRE", "LOCK.MACQUIRE")) < 20, "it asks again and again"
