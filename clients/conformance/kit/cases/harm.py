"""Points 2, 3, 6 and 7 under a bad network: slow, silent for a while, and everything at once."""

import random
import time

from ..adapter import Refused
from ..proxy import is_grant
from . import case
from .deadline import connect
from .leaving import is_release
from .renewal import is_renewal


@case(2, 3, weight=2)
def a_slow_network(stage):
    """Each reply takes a quarter of a second: a short lease is renewed in time, waits and releases work."""
    _, door, adapter = stage.single()
    door.delay = lambda call: 0.25
    got = adapter("acquire", hold="h", name="k", lease_ms=5000, wait_ms=0)
    asked = adapter.ask("acquire", hold="w", name="k", lease_ms=5000, wait_ms=30_000)
    stage.stays(lambda: stage.server.admin("LOCK.FENCE", "k", got["token"]) == 1, "it is held", 7)
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')}"
    adapter("release", hold="h")
    asked.result()
    adapter("check", hold="w")
    adapter("release", hold="w")


@case(2, 4, weight=2)
def a_short_silence_is_no_loss(stage):
    """The server is silent for less than a lease: the hold continues, and no loss is reported."""
    _, door, adapter = stage.single()
    got = adapter("acquire", hold="h", name="k", lease_ms=6000, wait_ms=0)
    for _ in range(2):
        time.sleep(2)
        door.stall()
        time.sleep(2)
        door.flow()
    time.sleep(2)
    assert stage.server.admin("LOCK.FENCE", "k", got["token"]) == 1, "it is held no more"
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')}"
    adapter("check", hold="h")
    adapter("release", hold="h")


@case(3, 7, weight=2)
def a_renewal_that_is_never_answered(stage):
    """A connection falls silent at a renewal: it is repeated over another one before the lease ends."""
    _, door, adapter = stage.single()
    got = adapter("acquire", hold="h", name="k", lease_ms=9000, wait_ms=0)
    door.drop(is_renewal, then="silent")
    stage.eventually(door.has_dropped, "a renewal")
    stage.stays(lambda: stage.server.admin("LOCK.FENCE", "k", got["token"]) == 1, "it is held", 10)
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')}"
    adapter("check", hold="h")
    adapter("release", hold="h", within=25)


@case(6, 7, weight=2)
def a_program_without_a_server_ends_well(stage):
    """The server is down when the adapter's input ends: the adapter still ends well."""
    _, door, adapter = stage.single()
    stage.hold("busy")
    adapter("acquire", hold="h", name="k", lease_ms=3000, wait_ms=0)
    adapter.ask("acquire", hold="w", name="busy", wait_ms=30_000)
    stage.waiting("busy", 1)
    door.shut()
    door.cut()
    adapter.end()
    stage.give_up("busy")


@case(6, 7, needs=("cancel",))
def cancelled_while_no_server_is_there(stage):
    """A waiter can be cancelled at once while the server is down, and nothing is left when it is back."""
    _, door, adapter = stage.single()
    stage.hold("k")
    asked = adapter.ask("acquire", hold="w", name="k", wait_ms=30_000)
    stage.waiting("k", 1)
    door.shut()
    door.cut()
    time.sleep(0.5)
    late = adapter.ask("acquire", hold="v", name="k", wait_ms=30_000)
    time.sleep(0.2)
    for each in (asked, late):
        adapter("cancel", of=each.number)
        kind = each.kind()
        assert kind in ("Cancelled", "ConnectionFailed"), f"answered with {each.answer}"
    door.open()
    stage.waiting("k", 0)
    stage.give_up("k")


@case(6, 9)
def failures_leave_no_trace(stage):
    """Hundreds of waits end without the lock: no more threads and connections than before, and an empty queue."""
    _, door, adapter = stage.single(waiting_connections=8, pool=4)
    connect(adapter)
    stage.hold("k")
    counts = []
    for row in range(4):
        asked = [adapter.ask("acquire", hold=f"h{row}.{n}", name="k", wait_ms=[0, 30][n % 2]) for n in range(100)]
        for each in asked:
            assert each.kind() == "LockTimeout", f"answered with {each.answer}"
        stage.waiting("k", 0)
        counts.append(adapter("threads"))
    first, last = counts[0], counts[-1]
    assert last["connections"] <= 8 + 4 + 2, f"connections: {counts}"
    assert last["threads"] <= first["threads"] + 8, f"threads: {counts}"
    stage.give_up("k")


@case(8)
def names_of_all_sorts(stage):
    """A name may have blanks, line ends, letters of any script, braces, or a thousand characters."""
    _, _, adapter = stage.single()
    names = ["a b", "line\r\nend", "schl\u00fcssel", "\u9396", "{}", "{a}{b}", "*", "x" * 1000, "0", "-1", "PX"]
    for number, name in enumerate(names):
        token = adapter("acquire", hold=f"h{number}", name=name, wait_ms=20_000)["token"]
        assert stage.server.admin("LOCK.FENCE", name, token) == 1, f"another name is held than {name!r}"
        adapter("check", hold=f"h{number}")
    stage.server.admin("DEL", names[2])
    adapter.told("lost", hold="h2", limit=40)
    adapter.ask("release", hold="h2").kind()
    for number in [n for n in range(len(names)) if n != 2]:
        adapter("release", hold=f"h{number}")


class Fire:
    """Clients that acquire and release one of a few locks, while their network fails at random."""

    LEASE_MS = 2000
    #: With fewer grants than this, the test has proven nothing.
    ENOUGH = 10
    #: The longest time without any grant while the network is well: far longer than a lease and a wait.
    HEALED_SECONDS = 20.0

    def __init__(self, stage, adapter, door):
        self.stage, self.adapter, self.door = stage, adapter, door
        self.chance = random.Random(20261123)
        self.asked, self.held, self.granted = {}, {}, 0

    def harm(self):
        """One of the ways in which a network can fail for a moment."""
        way = self.chance.randrange(6)
        if way == 0:
            self.door.cut()
        elif way == 1:
            self.door.half_close()
        elif way == 2:
            self.door.drop(self.chance.choice([is_grant, is_renewal, is_release]))
        elif way == 3:
            self.door.delay = lambda call: self.chance.uniform(0, 0.05)
        elif way == 4:
            self.door.stall()
        else:
            self.door.delay = None
            self.door.flow()

    def heal(self):
        """The network recovers. Replies that were to be swallowed still are."""
        self.door.delay = None
        self.door.flow()

    def rage(self, until):
        """Harms the network again and again, whether or not any lock is granted."""
        turn = 0
        while time.monotonic() < until:
            if turn % 5 == 0:
                self.harm()
            self.step()
            time.sleep(0.03)
            turn += 1

    def make_up(self):
        """Harms the network, then waits for a grant over a healthy one, until enough was tried."""
        while self.granted < self.ENOUGH:
            self.rage(time.monotonic() + 0.2)
            self.heal()
            before, end = self.granted, time.monotonic() + self.HEALED_SECONDS
            while self.granted == before:
                assert time.monotonic() < end, f"no grant in {self.HEALED_SECONDS:.0f} s, though the network is well"
                self.step()
                time.sleep(0.03)

    def step(self):
        """Requests locks, checks the answers and the holds."""
        while len(self.asked) + len(self.held) < 8:
            hold, name = self.stage.hold_id(), f"k{self.chance.randrange(3)}"
            members = {"lease_ms": self.LEASE_MS, "wait_ms": self.chance.choice([0, 300, 3000])}
            self.asked[hold] = (name, self.adapter.ask("acquire", hold=hold, name=name, **members))
        for hold, (name, asked) in list(self.asked.items()):
            if asked.is_answered():
                del self.asked[hold]
                self.answered(hold, name, asked)
        for hold in list(self.held):
            self.look(hold)

    def answered(self, hold, name, asked):
        """Granted, or an error that such a network explains."""
        if asked.kind() == "ok":
            self.granted += 1
            self.held[hold] = (name, asked.result()["token"], time.monotonic() + self.chance.uniform(0, 1.5))
        else:
            assert asked.kind() in ("LockTimeout", "ConnectionFailed", "LockLost"), f"answered with {asked.answer}"

    def look(self, hold):
        """A hold that the server has lost must not be one for its holder, either."""
        name, token, until = self.held[hold]
        was_dead = self.stage.server.admin("LOCK.FENCE", name, token) == 0
        try:
            self.adapter("check", hold=hold)
            is_held = True
        except Refused as refused:
            assert refused.kind == "LockLost", refused
            is_held = False
        assert not (was_dead and is_held), f"{name} is not held any more on the server, and check() says it is"
        if not is_held or time.monotonic() > until:
            del self.held[hold]
            self.adapter.ask("release", hold=hold)

    def end(self):
        """The network has recovered: all requests are answered and released."""
        self.heal()
        for hold, (name, asked) in list(self.asked.items()):
            asked.wait(30)
            self.answered(hold, name, asked)
        for hold in list(self.held):
            self.adapter.ask("release", hold=hold).kind()


@case(1, 2, 4, 5, 6, 7, weight=6, seconds=150)
def many_faults_at_once_do_no_harm(stage):
    """Lost replies, cuts, silences: a client that got a grant does hold the lock, and nothing is left at the end."""
    _, door, adapter = stage.single(waiting_connections=4)
    fire = Fire(stage, adapter, door)
    fire.rage(time.monotonic() + 8)
    # On a busy machine, each failure lasts longer, since its end comes some turns later. So there may be few grants.
    in_rage = fire.granted
    fire.make_up()
    fire.end()
    stage.note(f"{fire.granted} grants, {in_rage} of them in 8 s; {door.numbered} connections were made")
