"""Point 7: one address whose server changes, like a name, a virtual IP or a proxy. The old primary stays up."""

import time

from harness.replicas import AT_ONCE, is_linked

from . import case

#: The time limit for a library to notice that its address leads to another server.
NOTICED = 10.0
#: The most connections that a library may make in this time to a server that refuses its requests.
SECONDS, CONNECTIONS = 5.0, 100


class Moving:
    """One address whose primary is replaced by its replica."""

    def __init__(self, stage):
        self.stage = stage
        self.old, self.new = stage.start(*AT_ONCE), stage.start(*AT_ONCE)
        self.new.admin("REPLICAOF", "127.0.0.1", self.old.port)
        is_linked(self.new)
        self.door = stage.door(self.old)

    def adapter(self, **members):
        """An adapter that knows the address."""
        return self.stage.adapter(self.door.address, **members)

    def replicated(self, **tokens):
        """Waits until the replica knows of these holds."""
        for name, token in tokens.items():
            known = f"the replica knows of {name}"
            self.stage.eventually(lambda n=name, t=token: self.new.admin("LOCK.FENCE", n, t) == 1, known)

    def move(self):
        """Fails over by hand. Connections that are open stay open, and lead to the old primary."""
        self.new.admin("REPLICAOF", "NO", "ONE")
        self.door.lead_to(self.new)
        self.old.admin("REPLICAOF", "127.0.0.1", self.new.port)
        self.stage.server = self.new


@case(7, weight=2)
def an_address_that_moves_is_followed_by_new_locks(stage):
    """The old primary answers READONLY: one lock, several locks, and a request that does not wait get the new one."""
    moving = Moving(stage)
    adapter = moving.adapter()
    adapter("acquire", hold="before", name="before", wait_ms=0)
    adapter("release", hold="before")
    moving.move()
    for hold, names in (("one", {"name": "k"}), ("several", {"names": ["a", "b"]}), ("at-once", {"name": "l"})):
        asked = adapter.ask("acquire", hold=hold, wait_ms=0 if hold == "at-once" else 20_000, **names)
        asked.wait(NOTICED)
        token = asked.result()["token"]
        for name in names.get("names") or [names["name"]]:
            assert moving.new.admin("LOCK.FENCE", name, token) == 1, f"the new primary knows of no {name}"
        adapter("check", hold=hold)
        adapter("release", hold=hold)


@case(3, 7, weight=3)
def an_address_that_moves_is_followed_by_holds_and_waiters(stage):
    """Holds that the new primary has are renewed and released there, and waiters are granted there."""
    moving = Moving(stage)
    adapter = moving.adapter()
    tokens = {"k": adapter("acquire", hold="h", name="k", lease_ms=6000, wait_ms=0)["token"]}
    several = adapter("acquire", hold="s", names=["a", "b"], lease_ms=6000, wait_ms=0)["token"]
    tokens |= {"a": several, "b": several}
    asked = {"w": adapter.ask("acquire", hold="w", name="k"), "v": adapter.ask("acquire", hold="v", names=["b", "c"])}
    stage.waiting("k", 1)
    stage.waiting("b", 1)
    moving.replicated(**tokens)
    moving.move()
    for name, token in tokens.items():
        assert moving.new.admin("LOCK.FENCE", name, token) == 1
    stage.stays(lambda: is_live(moving.new, tokens), "the holds are renewed on the new primary", 8)
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')}"
    for each in asked.values():
        assert not each.is_answered(), f"a waiter is answered with {each.answer}, while the lock is held"
    for name in ("k", "b"):
        stage.waiting(name, 1)
    adapter("release", hold="h")
    adapter("release", hold="s")
    for hold, each in asked.items():
        token = each.result(NOTICED)["token"]
        assert moving.new.admin("LOCK.FENCE", {"w": "k", "v": "c"}[hold], token) == 1, "granted by another server"
        adapter("release", hold=hold)


@case(3, 7, needs=("leader",), weight=2)
def an_address_that_moves_is_followed_by_a_leader(stage):
    """The new primary has the leader's hold: the leader continues, and resigns there."""
    moving = Moving(stage)
    adapter = moving.adapter()
    adapter("lead", leader="A", name="job", lease_ms=6000)
    token = adapter.told("elected", leader="A")["token"]
    moving.replicated(job=token)
    moving.move()
    stage.stays(lambda: moving.new.admin("LOCK.FENCE", "job", token) == 1, "it is renewed on the new primary", 8)
    assert not adapter.seen("deposed"), f"it is deposed: {adapter.seen('deposed')}"
    adapter("resign", leader="A")
    stage.free_soon("job")


@case(4, 7, needs=("push",))
def a_replica_cannot_tell_of_a_loss(stage):
    """The old primary is now a replica without the locks, as during a resynchronization: that is not a loss."""
    moving = Moving(stage)
    adapter = moving.adapter()
    token = adapter("acquire", hold="h", name="k", wait_ms=0)["token"]
    several = adapter("acquire", hold="s", names=["a", "b"], wait_ms=0)["token"]
    moving.replicated(k=token, a=several, b=several)
    moving.move()
    is_linked(moving.old)
    moving.old.admin("CONFIG", "SET", "replica-read-only", "no")
    moving.old.admin("DEL", "k", "b")
    stage.stays(lambda: is_live(moving.new, {"k": token, "a": several, "b": several}), "the new primary has them", 3)
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')}"
    for hold in ("h", "s"):
        adapter("check", hold=hold)
    # Only the new primary's answer counts.
    moving.new.admin("DEL", "k")
    adapter.told("lost", hold="h", limit=NOTICED)
    adapter.ask("release", hold="h").kind()
    adapter("release", hold="s")


@case(7, weight=3, needs=("log",))
def an_address_that_leads_to_a_replica(stage):
    """Unlimited waits continue and are logged, with few connections; a wait that ends reports the replica."""
    moving = Moving(stage)
    adapter = moving.adapter()
    adapter("acquire", hold="before", name="before", wait_ms=0)
    adapter("release", hold="before")
    moving.old.admin("REPLICAOF", "127.0.0.1", moving.new.port)
    moving.new.admin("REPLICAOF", "NO", "ONE")
    is_linked(moving.old)
    moving.stage.server = moving.new
    for wait_ms in (0, 1500):
        refused = adapter.refusal("acquire", hold=f"h{wait_ms}", name="k", wait_ms=wait_ms)
        assert refused.kind in ("ConnectionFailed", "Other"), f"answered with {refused}"
        said = refused.message
        assert "READONLY" in said and "replica" in said, f"it does not say that the address leads to a replica: {said}"
    asked = {f"w{n}": adapter.ask("acquire", hold=f"w{n}", names=[f"a{n}", f"b{n}"]) for n in range(4)}
    asked["w"] = adapter.ask("acquire", hold="w", name="k")
    adapter.logged("READONLY", limit=SECONDS)
    before = moving.door.numbered
    time.sleep(SECONDS)
    made = moving.door.numbered - before
    assert made <= CONNECTIONS, f"{made} connections in {SECONDS:.0f} s to a server that refuses"
    stage.note(f"{made} connections in {SECONDS:.0f} s to a server that refuses")
    for hold, each in asked.items():
        assert not each.is_answered(), f"{hold} may wait without end, and is answered with {each.answer}"
    moving.door.lead_to(moving.new)
    for hold, each in asked.items():
        each.result()
        adapter("release", hold=hold)


def is_live(server, tokens):
    """Returns whether the server has all these holds."""
    return all(server.admin("LOCK.FENCE", name, token) == 1 for name, token in tokens.items())
