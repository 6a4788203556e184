"""Redlock over independent servers: examples/redlock.py, and the claims of docs/concepts/redlock.md (CONTRACT 6,
T5)."""

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import late_client, wall_clock
from harness.independent import (
    LONG_MS,
    Diary,
    Independent,
    Redlock,
    example,
    now,
    on_a_loop,
    until,
)
from harness.kinds import count, hold_of, take
from harness.limits import SOON_SECONDS, VALGRIND, eventually
from harness.replies import owner_of
from harness.wire import refused

pytestmark = pytest.mark.skipif(VALGRIND, reason="five servers at once, which do what other tests try too")

HOUR = 3600
#: For this long a server may still use the wall clock's time before a step.
STEP_SECONDS = 0.05


@pytest.fixture
def five(start_server):
    """Five servers that start with nothing special about them."""
    return Independent(start_server, 5)


@pytest.fixture(scope="module")
def clock_library(tmp_path_factory):
    """The library for wall clocks that tests set."""
    return wall_clock.build(tmp_path_factory.mktemp("clock"))


@pytest.fixture
def clocks(clock_library, tmp_path):
    """Five wall clocks."""
    return [wall_clock.WallClock(clock_library, tmp_path / f"clock-{number}") for number in range(5)]


def valid_seconds(lock):
    """The longest validity of a hold."""
    return lock.lease_ms / 1000 * (1 - example.DRIFT)


# Holding


@on_a_loop
async def test_all_have_one_token_and_nothing_is_left(five):
    began = now()
    async with five.redlock("door") as lock:
        assert five.live("door", lock.token) == [1] * 5
        assert began < lock.until - valid_seconds(lock) < now()
        assert await five.redlock("door").attempt() is None
        assert five.live("door", lock.token) == [1] * 5, "the attempt that failed released nobody else"
        before = lock.until
        assert await lock.extend()
        assert before < lock.until < now() + valid_seconds(lock)
    assert five.sizes() == [0] * 5


@on_a_loop
async def test_a_minority_may_be_down(five):
    five.kill(1, 3)
    tokens = []
    for _ in range(2):
        async with five.redlock("door") as lock:
            assert five.live("door", lock.token) == [1] * 3
            assert await lock.extend()
            assert await five.redlock("door").attempt() is None
            tokens.append(lock.token)
    assert tokens[0] < tokens[1]
    assert five.sizes() == [0] * 3


@on_a_loop
async def test_without_a_majority_there_is_no_holder_and_nothing_is_left(five):
    five.kill(0, 2, 4)
    began = now()
    with pytest.raises(TimeoutError, match="door was not to be had.*onnect"):
        async with five.redlock("door", attempts=3):
            raise AssertionError("two of five are none")
    assert now() - began < SOON_SECONDS, "the attempts have a bound"
    assert five.sizes() == [0] * 2
    assert [count(node.admin, "grants") for node in five.alive()] == [3, 3]


@on_a_loop
async def test_a_cancelled_attempt_leaves_nothing(five):
    lock = five.redlock("door")
    five.freeze(4)
    attempt = asyncio.create_task(lock.attempt())
    await until(lambda: five.sizes_of(0, 1, 2, 3) == [1] * 4, "all others have granted it")
    attempt.cancel()
    await until(lambda: five.sizes_of(0, 1, 2, 3) == [0] * 4, "it is given up")
    five.thaw(4)
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert five.sizes() == [0] * 5


@on_a_loop
async def test_a_renewal_needs_a_majority_that_has_the_token(five):
    lock = five.redlock("door")
    await lock.attempt()
    for number in (0, 1):
        five.nodes[number].admin("DEL door")
    assert await lock.extend()
    before = lock.until
    take(five.nodes[0].admin, "door", lock.owner)  # the owner, with another token
    five.nodes[2].admin("DEL door")
    assert not await lock.extend()
    assert lock.until == before, "what was promised before still is"
    assert five.sizes()[:3] == [1, 0, 0], "a renewal makes no hold"
    late = five.redlock("gate", lease_ms=100)
    await late.attempt()
    await asyncio.sleep(0.2)
    assert not await late.extend()


def test_places_on_several_servers_let_one_too_many_in(start_server):
    # The reason why there is no LIMIT: each of the three has two of three servers, and no server more than two holders.
    nodes = Independent(start_server, 3).nodes
    majorities = {"ann": (0, 1), "ben": (1, 2), "cyd": (2, 0)}
    for owner, numbers in majorities.items():
        for number in numbers:
            assert isinstance(take(nodes[number].admin, "pool", owner, "LIMIT 2"), int)


# Restarts


async def two_that_meet_in_one(servers, lease_ms, between):
    """One holds a bare majority; then something happens; another wants the other majority."""
    servers.settle()
    diary = Diary()
    holder = servers.redlock("door", reach=(0, 1, 2), lease_ms=lease_ms)
    rival = servers.redlock("door", reach=(2, 3, 4), lease_ms=lease_ms)
    await holder.attempt()
    diary.granted(holder)
    assert await rival.attempt() is None
    between()
    return holder, rival, diary


@on_a_loop
async def test_after_a_restart_without_memory_there_are_two_holders(five):
    # The classic flaw, and the proof that these tests would see it.
    holder, rival, diary = await two_that_meet_in_one(five, 60_000, lambda: five.restart(2))
    await rival.attempt()
    diary.granted(rival)
    assert holder.until > now() and rival.until > now()
    assert any("two holders" in fault for fault in diary.faults())
    # The token remains.
    assert rival.token > holder.token
    assert five.live("door", holder.token) == [1, 1, 0, 0, 0]
    assert five.live("door", rival.token) == [0, 0, 1, 1, 1]


@on_a_loop
async def test_with_a_quarantine_a_restart_without_memory_grants_no_request(start_server):
    # T5
    servers = Independent(start_server, 5, "quarantine", 1000)
    holder, rival, diary = await two_that_meet_in_one(servers, 1000, lambda: servers.restart(2))
    assert not await holder.extend(), "two of five do not make it longer"
    refusals = 0
    while await rival.attempt() is None:
        assert now() < holder.until + SOON_SECONDS
        refusals += any("QUARANTINE" in reply for reply in rival.said)
    diary.granted(rival)
    assert refusals > 0
    assert now() > holder.until and diary.faults() == []
    assert rival.token > holder.token


@on_a_loop
async def test_what_a_file_brings_back_is_held_without_a_quarantine(start_server):
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    servers = Independent(start_server, 5, options=durable)
    holder, rival, _ = await two_that_meet_in_one(servers, 60_000, lambda: servers.restart(2))
    assert await rival.attempt() is None
    assert await holder.extend()
    assert servers.live("door", holder.token) == [1, 1, 1, 0, 0]


# Pauses


@on_a_loop
async def test_a_paused_server_costs_its_time_out_and_grants_too_late(five):
    async with five.redlock("door", lease_ms=2000, timeout_ms=500) as lock:
        before = count(five.nodes[4].admin, "grants")  # and all connections are there
    five.freeze(4)
    began = now()
    assert await lock.attempt() is not None
    assert 0.5 <= now() - began < SOON_SECONDS
    assert lock.until <= began + valid_seconds(lock) + 0.3, "no time-out is added"
    await lock.__aexit__()
    five.thaw(4)
    eventually(lambda: count(five.nodes[4].admin, "grants") > before, "it grants what nobody waits for")
    eventually(lambda: five.sizes() == [0] * 5, "a release or the lease ends that")
    assert await lock.attempt() is not None
    assert five.live("door", lock.token) == [1] * 5, "the replies are those to these requests"


@on_a_loop
async def test_late_grants_do_not_count_for_a_later_attempt(five):
    async with five.redlock("door", lease_ms=1500, timeout_ms=500) as lock:
        before = count(five.nodes[4].admin, "grants")
    five.freeze(2, 3, 4)
    began = now()
    assert await lock.attempt() is None
    assert now() - began < SOON_SECONDS
    dead = lock.owner
    five.thaw(2, 3, 4)
    eventually(lambda: count(five.nodes[4].admin, "grants") > before)
    while await lock.attempt() is None:
        assert now() < began + SOON_SECONDS
    assert lock.owner != dead
    assert five.live("door", lock.token).count(1) >= 3
    eventually(lambda: dead not in [owner_of(node.admin, "door") for node in five.nodes])


@on_a_loop
async def test_what_the_network_takes_is_no_part_of_the_validity(five):
    lock = five.redlock("door", lease_ms=500)
    async with lock:
        pass
    for lease_ms, is_held in ((500, False), (60_000, True)):
        lock.lease_ms = lease_ms
        five.freeze(*range(5))
        began = now()
        attempt = asyncio.create_task(lock.attempt())
        await asyncio.sleep(0.7)
        five.thaw(*range(5))
        assert (await attempt is not None) == is_held
        assert five.sizes() == [int(is_held)] * 5
    # All five granted both, for a lease that began when the client had waited already.
    assert [count(node.admin, "grants") for node in five.nodes] == [3] * 5
    assert lock.until <= began + valid_seconds(lock) + 0.5


@on_a_loop
async def test_a_client_that_was_paused_for_too_long_is_stopped_by_its_token_alone(five, tmp_path):
    database = tmp_path / "storage.db"
    late_client.make(database)
    addresses = [f"127.0.0.1:{node.port}" for node in five.nodes]
    command = [sys.executable, "-m", "harness.late_client", database, str(500), *addresses]
    late = subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True)
    try:
        token = int(late.stdout.readline())
        eventually(lambda: five.live("page", token) == [0] * 5, "its lease is over")
        async with five.redlock("page") as lock:
            assert lock.token > token
            assert late_client.write(database, "in time", lock.token)
            late.send_signal(signal.SIGCONT)
            written, extended = late.stdout.readline().split()
            assert (written, extended) == ("False", "False")
            assert late.wait(SOON_SECONDS) == 0
            # Its release was for its own owner.
            assert five.live("page", lock.token) == [1] * 5
    finally:
        late.kill()
        late.wait(SOON_SECONDS)
    assert late_client.read(database) == "in time"


# Clocks


@on_a_loop
async def test_steps_of_the_wall_clocks_neither_end_nor_extend_a_hold(start_server, clocks):
    servers = Independent(start_server, 5, clocks=clocks)
    async with servers.redlock("door") as lock:
        for steps in ((HOUR, 0, -HOUR, HOUR, 10), (-HOUR, 20 * HOUR, HOUR, 0, -HOUR)):
            for clock, step in zip(clocks, steps):
                clock.set_ahead(step)
            assert await servers.redlock("door").attempt() is None
            assert servers.live("door", lock.token) == [1] * 5
            lefts = [hold_of(node.admin, "door", lock.owner)["lease-left-ms"] for node in servers.nodes]
            assert all(LONG_MS - 60_000 < left <= LONG_MS for left in lefts), lefts
    short = servers.redlock("gate", lease_ms=300)
    await short.attempt()
    clocks[0].set_ahead(-2 * HOUR)
    clocks[1].set_ahead(0)
    eventually(lambda: servers.sizes() == [0] * 5, "the leases end")
    assert now() > short.until


def highest_of_one_round(nodes, owner):
    """The token that Redlock would have without a second round."""
    token = max(take(node.admin, "door", owner) for node in nodes)
    for node in nodes:
        node.admin("LOCK.RELEASE", "door", owner)
    return token


@on_a_loop
async def test_the_highest_token_of_one_round_can_be_lower_than_the_one_before(start_server, clocks):
    # The reason for a second round: both holders have three of five servers, and one server in common.
    servers = Independent(start_server, 5, clocks=clocks)
    clocks[0].set_ahead(30)
    await asyncio.sleep(STEP_SECONDS)
    first = highest_of_one_round(servers.nodes[:3], "ann")
    assert highest_of_one_round(servers.nodes[2:], "ben") < first
    async with servers.redlock("door", reach=(0, 1, 2)) as lock:
        first = lock.token
    async with servers.redlock("door", reach=(2, 3, 4)) as lock:
        assert lock.token > first


#: By how much clocks are set ahead: those of all servers, that of one; and how many of 40 attempts succeed.
STEPS = {
    "one is wrong": ([0, 5, 25, -25], [HOUR, -HOUR, 0], 40),
    "all are wrong": ([0, 40, -40, HOUR, -HOUR, 20 * HOUR], [0], 3),
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
@on_a_loop
async def test_tokens_rise_whatever_the_clocks_do(start_server, clocks, steps):
    # The token theorem: nothing is assumed of wall clocks, and leases may vanish at any moment.
    servers, chance, diary = Independent(start_server, 5, clocks=clocks), random.Random(5), Diary()
    of_all, of_one, least = steps
    for _ in range(40):
        for number, clock in enumerate(clocks):
            if chance.random() < 0.5:
                clock.set_ahead(chance.choice(of_all if number else of_one) + chance.random())
        lock = servers.redlock("door", reach=chance.sample(range(5), chance.choice([4, 5])))
        if await lock.attempt() is not None:
            diary.granted(lock)
            diary.given_up(lock)
        if chance.random() < 0.5:
            await lock.__aexit__()
        for node in servers.nodes:
            node.admin("DEL door")
    tokens = diary.tokens()
    assert len(tokens) >= least
    assert tokens == sorted(set(tokens))


@on_a_loop
async def test_one_clock_that_is_far_ahead_is_left_out(start_server, clocks):
    # The others refuse its tokens (max-token-lead), and that must not keep everybody out.
    servers = Independent(start_server, 5, clocks=clocks)
    clocks[3].set_ahead(HOUR)
    await asyncio.sleep(STEP_SECONDS)
    far = take(servers.nodes[3].admin, "gate", "ann")
    with refused("ERR", "RAISE", "max-token-lead"):
        take(servers.nodes[0].admin, "gate", "ann")
        servers.nodes[0].admin("LOCK.RENEW", "gate", "ann", "PX", 1000, "RAISE", far)
    tokens = []
    for _ in range(2):
        async with servers.redlock("door") as lock:
            tokens.append(lock.token)
            assert servers.live("door", lock.token) == [1, 1, 1, 0, 1]
    assert tokens[0] < tokens[1] < far
    assert [node.admin("EXISTS door") for node in servers.nodes] == [0] * 5


@pytest.mark.parametrize("appendonly", ["no", "yes"])
@on_a_loop
async def test_a_lost_counter_and_a_wrong_clock_take_tokens_back(start_server, clocks, appendonly):
    # Tokens need memory, or wall clocks that are right to within the quarantine.
    options = ("--appendonly", appendonly, "--appendfsync", "always")
    lead = ("max-token-lead", 2 * HOUR * 1000)
    servers = Independent(start_server, 3, *lead, options=options, clocks=clocks[:3])
    async with servers.redlock("door", reach=(0, 1)) as lock:
        first = lock.token
    for clock in clocks[1:3]:
        clock.set_ahead(-HOUR)
    servers.restart(1)
    async with servers.redlock("door", reach=(1, 2)) as lock:
        assert (lock.token > first) == (appendonly == "yes")


# Attempts at the same time


class Slow(Redlock):
    """A client that is slow to read the replies of its second round."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.asked, self.goes_on = asyncio.Event(), asyncio.Event()

    async def _renew(self, *arguments):
        is_held = await super()._renew(*arguments)
        self.asked.set()
        await self.goes_on.wait()
        return is_held


@on_a_loop
async def test_attempts_that_overlap_have_different_tokens_in_any_order(five):
    # D5: the order of their replies says nothing of their order. Only a broken lock lets two come through.
    slow, other = five.redlock("door", kind=Slow), five.redlock("door")
    attempt = asyncio.create_task(slow.attempt())
    await slow.asked.wait()
    assert await other.attempt() is None
    for node in five.nodes:
        node.admin("DEL door")
    assert await other.attempt() is not None
    slow.goes_on.set()
    await attempt
    assert slow.token < other.token, "told later, and yet lower"
    assert five.live("door", slow.token) == [0] * 5
    assert five.live("door", other.token) == [1] * 5


async def use(lock, diary, chance, is_over):
    """Takes the lock again and again, keeps it for a while, and extends it sometimes."""
    while not is_over():
        if await lock.attempt() is None:
            await asyncio.sleep(chance.random() * 0.05)
            continue
        diary.granted(lock)
        await asyncio.sleep(chance.random() * 0.02)
        if chance.random() < 0.3 and await lock.extend():
            diary.extended(lock)
            await asyncio.sleep(chance.random() * 0.02)
        if chance.random() < 0.1:
            lock.token = None  # forgets it: the lease has to end
            continue
        diary.given_up(lock)
        await lock.__aexit__()


@on_a_loop
async def test_one_at_a_time_while_servers_are_killed_and_come_back_empty(start_server):
    # T5 under load, judged by the holders' observations: no two at once, tokens rising in real time.
    servers = Independent(start_server, 5, "quarantine", 300)
    servers.settle()
    diary, kills, start = Diary(), 0, now()

    def is_over():
        """A slow machine needs longer for as much of a load."""
        was_a_load = kills > 1 and len(diary.tokens()) > 10
        return now() > start + (3 if was_a_load else SOON_SECONDS)

    locks = [servers.redlock("door", lease_ms=200, timeout_ms=1000) for _ in range(4)]
    users = [
        asyncio.create_task(use(lock, diary, random.Random(number), is_over)) for number, lock in enumerate(locks)
    ]
    while not is_over():
        await asyncio.to_thread(servers.restart, kills % 5)
        await asyncio.to_thread(servers.settle)
        kills += 1
    await asyncio.gather(*users)
    assert diary.faults() == []
    assert kills > 1 and len(diary.tokens()) > 10
