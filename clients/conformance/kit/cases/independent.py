"""One lock over three independent servers: docs/concepts/redlock.md."""

import time

from . import case


class Servers:
    """Three of them, with a door to each."""

    def __init__(self, stage):
        self.nodes = [stage.start() for _ in range(3)]
        self.doors = [stage.door(node) for node in self.nodes]
        self.addresses = [door.address for door in self.doors]

    def live(self, name, token):
        """Returns the number of servers on which the token is live."""
        return sum(node.admin("LOCK.FENCE", name, token) for node in self.nodes if node.is_alive())

    def free(self, stage, name):
        """Waits until no server has a hold."""
        alive = [node for node in self.nodes if node.is_alive()]
        stage.eventually(lambda: all(node.admin("LOCK.INFO", name) is None for node in alive), f"{name} is free", 5)


@case(1, 2, 3, needs=("independent",), weight=2)
def a_majority_has_the_raised_token(stage):
    """One server's tokens are ahead: a majority has the highest token, it is renewed, and the next one is higher."""
    servers = Servers(stage)
    ahead = servers.nodes[2]
    token = stage_ahead(ahead)
    adapter = stage.adapter(*servers.addresses, mode="independent")
    got = adapter("acquire", hold="h1", name="k", lease_ms=3000, wait_ms=20_000)
    assert got["token"] > token, "the token is not the highest of the majority's"
    assert 0 < got["remaining_ms"] <= 3000 * 0.99, f"{got['remaining_ms']} ms remain of 3000"
    stage.stays(lambda: servers.live("k", got["token"]) >= 2, "a majority has the token", 6)
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')}"
    adapter("release", hold="h1")
    servers.free(stage, "k")
    servers.doors[2].shut()
    servers.doors[2].cut()
    second = adapter("acquire", hold="h2", name="k", wait_ms=20_000)
    assert second["token"] > got["token"], "the next holder's token is not higher, without the server that was ahead"
    adapter("release", hold="h2")


@case(7, needs=("independent",), weight=2)
def a_minority_is_down(stage):
    """One of three is killed: the hold continues, and the lock can be acquired again."""
    servers = Servers(stage)
    adapter = stage.adapter(*servers.addresses, mode="independent")
    adapter("acquire", hold="h1", name="k", lease_ms=4000, wait_ms=20_000)
    servers.nodes[1].kill()
    time.sleep(5)
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')}"
    adapter("check", hold="h1")
    adapter("release", hold="h1")
    adapter("acquire", hold="h2", name="k", wait_ms=20_000)
    adapter("release", hold="h2")
    servers.free(stage, "k")


@case(6, 7, 8, needs=("independent",))
def an_attempt_without_a_majority_leaves_nothing(stage):
    """Two of three cannot be reached: ConnectionFailed, and nothing is left on the one that granted it."""
    servers = Servers(stage)
    adapter = stage.adapter(*servers.addresses, mode="independent")
    adapter("release", hold=taken(adapter, "warm"))
    for door in servers.doors[:2]:
        door.shut()
        door.cut()
    asked = adapter.ask("acquire", hold="h", name="k", wait_ms=1500)
    # A timeout would mean that another owner has the lock.
    assert asked.kind(25) == "ConnectionFailed", f"answered with {asked.answer}"
    servers.free(stage, "k")


@case(4, needs=("independent",))
def a_lost_majority_is_told(stage):
    """The lock is broken on one server: nothing is lost. On two: the holder is notified."""
    servers = Servers(stage)
    adapter = stage.adapter(*servers.addresses, mode="independent")
    adapter("acquire", hold="h", name="k", lease_ms=4000, wait_ms=20_000)
    servers.nodes[0].admin("DEL", "k")
    time.sleep(4.5)
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')}"
    servers.nodes[1].admin("DEL", "k")
    adapter.told("lost", hold="h", limit=15)
    assert adapter.refusal("check", hold="h").kind == "LockLost"
    adapter.ask("release", hold="h").kind()
    servers.free(stage, "k")


@case(5, 6, needs=("independent",))
def independent_servers_have_one_holder_at_a_time(stage):
    """Two processes want the lock of a majority: one gets it, the other when it is given up."""
    servers = Servers(stage)
    first, second = (stage.adapter(*servers.addresses, mode="independent") for _ in range(2))
    token = first("acquire", hold="h", name="k", wait_ms=20_000)["token"]
    assert second.refusal("acquire", hold="no", name="k", wait_ms=2000).kind == "LockTimeout"
    asked = second.ask("acquire", hold="w", name="k", wait_ms=20_000)
    time.sleep(0.5)
    assert not asked.is_answered(), "two hold it"
    assert servers.live("k", token) >= 2, "the attempts of the other have harmed the holder"
    first("release", hold="h")
    assert asked.result()["token"] > token
    second("release", hold="w")
    servers.free(stage, "k")


@case(7, needs=("independent",))
def one_server_by_two_addresses_is_no_majority(stage):
    """Two of three addresses lead to one server: refused, with the third server and without it; nothing is left."""
    nodes = [stage.start() for _ in range(2)]
    doors = [stage.door(node) for node in (nodes[0], nodes[0], nodes[1])]
    adapter = stage.adapter(*(door.address for door in doors), mode="independent")
    # The third grants last: with one of the two addresses it would be a majority.
    doors[2].delay = lambda call: 0.5 if call.name == "LOCK.ACQUIRE" else 0
    for is_there in (True, False):
        if not is_there:
            doors[2].shut()
            doors[2].cut()
        kind = adapter.ask("acquire", hold=f"h{is_there}", name="k", wait_ms=3000).kind(25)
        # Without the third server it may say that too few were reached.
        assert kind in (("Other",) if is_there else ("Other", "ConnectionFailed")), f"answered with {kind}"
        # On the third one, too: a release in flight when the connection is cut would be repeated later.
        stage.eventually(lambda: all(node.admin("LOCK.INFO", "k") is None for node in nodes), "k is free on both")


@case(7, needs=("independent",))
def two_servers_that_gave_equal_tokens_are_two(stage):
    """Two servers give one owner the same token, as may happen after a RAISE: the lock is acquired."""
    servers = Servers(stage)
    ahead = max(node.admin("LOCK.ACQUIRE", "ahead", "kit", "PX", 60_000) for node in servers.nodes[:2]) + 20_000_000
    for node in servers.nodes[:2]:
        assert node.admin("LOCK.RENEW", "ahead", "kit", "PX", 60_000, "RAISE", ahead) == 1
        assert node.admin("LOCK.RELEASE", "ahead", "kit") == 1
    adapter = stage.adapter(*servers.addresses, mode="independent")
    for name in ("h1", "h2"):
        got = adapter("acquire", hold=name, name="k", wait_ms=20_000)
        assert got["token"] > ahead, "the token is not the highest of the majority's"
        assert servers.live("k", got["token"]) >= 2, "no majority has the token"
        adapter("release", hold=name)
        servers.free(stage, "k")


def stage_ahead(node, by=20_000_000):
    """Makes the tokens of this server run ahead, by 20 seconds of its clock; returns the last one."""
    token = node.admin("LOCK.ACQUIRE", "ahead", "kit", "PX", 60_000) + by
    assert node.admin("LOCK.RENEW", "ahead", "kit", "PX", 60_000, "RAISE", token) == 1
    assert node.admin("LOCK.RELEASE", "ahead", "kit") == 1
    return token


def taken(adapter, name):
    """A hold of this lock."""
    adapter("acquire", hold=name, name=name, wait_ms=20_000)
    return name
