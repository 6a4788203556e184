"""The server in the process (redislock.testing): the same tests run over it and over a real one."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock
from redislock import _rules, testing
from redislock._link import BlockingLink
from redislock._resp import ReplyError
from redislock._settings import settings_of
from redislock.redlock import Redlock

from .servers import eventually


class Stage:
    """A server of one kind or the other, and what ends its locks."""

    def __init__(self, real: Any) -> None:
        self._real, self.double, self._made = real, testing.Server(), list[redislock.Locks]()

    def client(self, kind: Any = redis.Redis) -> Any:
        return self.double if self._real is None else kind(port=self._real.port)

    def __call__(self, **options: Any) -> redislock.Locks:
        self._made.append(redislock.Locks(self.client(), **options))
        return self._made[-1]

    def lose(self, name: str) -> None:
        if self._real is None:
            self.double.lose(name)
        else:
            self._real.admin("DEL", name)

    def close(self) -> None:
        for locks in self._made:
            locks.close()


@pytest.fixture(params=["real", "double"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    made = Stage(request.getfixturevalue("server") if request.param == "real" else None)
    yield made
    made.close()


def test_a_lock_excludes_until_it_is_released(stage: Stage) -> None:
    ours, theirs = stage(), stage()
    with ours.lock("k") as hold:
        assert theirs.lock("k").try_acquire() is None and theirs.read("k").try_acquire() is None
        with pytest.raises(redislock.LockTimeoutError) as caught:
            theirs.lock("k", wait=0.05).acquire()
        assert caught.value.info and caught.value.info.holders[0].owner == hold.owner
        ours.check_token("k", hold.token)
        assert 29 < hold.check() <= 30
    later = theirs.lock("k").try_acquire()
    assert later is not None and later.token > hold.token
    with pytest.raises(redislock.FencedError):
        ours.check_token("k", hold.token)
    later.release()
    assert ours.info("k") is None and ours.ping().count(".") == 2


def test_waiters_are_served_in_order(stage: Stage) -> None:
    locks, order = stage(), list[int]()

    def work(number: int) -> None:
        with locks.lock("k", wait=60):
            order.append(number)

    threads = [threading.Thread(target=work, args=[number]) for number in range(5)]
    with stage().lock("k"):
        for number, thread in enumerate(threads):
            thread.start()
            eventually(lambda number=number: locks.info("k").waiters == number + 1, "it waits")  # type: ignore[union-attr]
    for thread in threads:
        thread.join(60)
    assert order == list(range(5))


def test_readers_share_and_a_writer_comes_before_later_readers(stage: Stage) -> None:
    locks, got = stage(), list[redislock.Hold]()
    first, second = locks.read("k").acquire(), locks.read("k").acquire()
    writer = threading.Thread(target=lambda: got.append(locks.write("k", wait=60).acquire()))
    writer.start()
    eventually(lambda: locks.info("k").waiters == 1, "the writer waits")  # type: ignore[union-attr]
    assert locks.read("k").try_acquire() is None
    first.release()
    second.release()
    writer.join(60)
    assert got[0].check() > 0
    got[0].release()


def test_a_semaphore_has_its_permits_and_one_limit(stage: Stage) -> None:
    locks = stage()
    permits = [locks.semaphore("s", 2).acquire() for _ in range(2)]
    assert locks.semaphore("s", 2).try_acquire() is None
    for other in (locks.semaphore("s", 3), locks.lock("s")):
        with pytest.raises(redislock.LockKindMismatchError):
            other.try_acquire()
    info = locks.info("s")
    assert info and (info.kind, info.limit, info.holds) == ("limit", 2, 2)
    for permit in permits:
        permit.release()


def test_several_locks_are_taken_together(stage: Stage) -> None:
    locks, got = stage(), list[redislock.Hold]()
    with stage().lock("b") as one:
        assert locks.many(["a", "b"]).try_acquire() is None and locks.info("a") is None
        waiter = threading.Thread(target=lambda: got.append(locks.many(["a", "b"], wait=60).acquire()))
        waiter.start()
        eventually(lambda: locks.info("b").waiters == 1, "it waits")  # type: ignore[union-attr]
        assert one.check() > 0
    waiter.join(60)
    locks.check_token("a", got[0].token)
    locks.check_token("b", got[0].token)
    got[0].release()


def test_a_loss_is_reported(stage: Stage) -> None:
    locks, told = stage(), list[str]()
    hold = locks.lock("k").acquire()
    hold.on_lost(told.append)
    stage.lose("k")
    assert hold.wait_until_lost(60) == "push"
    eventually(lambda: told == ["push"], "it is told")
    with pytest.raises(redislock.LockLostError):
        hold.release()
    with pytest.raises(redislock.LockLostError), locks.lock("k") as block:
        stage.lose("k")
        assert block.wait_until_lost(60)


def test_holds_are_renewed_extended_and_ended_by_their_time(stage: Stage) -> None:
    locks = stage()
    renewed, longer = locks.lock("a", lease=6).acquire(), locks.lock("d", lease=6, renew=False).acquire()
    brief, bounded = locks.lock("b", lease=1, renew=False).acquire(), locks.lock("c", max_hold=1).acquire()
    longer.extend(60)
    assert brief.wait_until_lost(60) == "deadline" and bounded.wait_until_lost(60) == "max_hold"
    eventually(lambda: locks.info("b") is None and locks.info("c") is None, "the server ends them, too")
    eventually(lambda: renewed.remaining < 5, "time passes")
    eventually(lambda: renewed.remaining > 5, "it is renewed")
    assert longer.check() > 30
    renewed.release()
    longer.release()


def test_a_minimal_hold_outlives_its_release(stage: Stage) -> None:
    locks = stage()
    locks.lock("k", min_hold=2).acquire().release()
    assert locks.lock("k").try_acquire() is None
    began = time.monotonic()
    with locks.lock("k", wait=60):
        assert time.monotonic() - began > 0.1


def test_a_ticket_hands_a_hold_on(stage: Stage) -> None:
    hold = stage().lock("k").acquire()
    adopted = stage().adopt(hold.detach())
    assert adopted.token == hold.token and adopted.check() > 0
    adopted.release()


def test_a_deadlock_of_owners_is_refused(stage: Stage) -> None:
    locks, failed = stage(), list[object]()
    left, right = locks.lock("left", owner="ann").acquire(), locks.lock("right", owner="ben").acquire()

    def work() -> None:
        with locks.lock("right", owner="ann", wait=60):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    eventually(lambda: locks.info("right").waiters == 1, "ann waits")  # type: ignore[union-attr]
    with pytest.raises(redislock.DeadlockError) as caught:
        locks.lock("left", owner="ben", wait=60).acquire()
    failed.append(caught.value.cycle)
    right.release()
    thread.join(60)
    left.release()
    assert failed == [(("ben", "left", "ann"), ("ann", "right", "ben"))]


def test_leaders_decorators_and_closing(stage: Stage) -> None:
    locks, other, ran = stage(), stage(), list[int]()
    elected = threading.Event()
    with locks.leader("job", on_elected=lambda _: elected.set()) as leader:
        assert elected.wait(60) and leader.hold and other.lock("job").try_acquire() is None

        @other.locked("job", wait=0, busy="skip")
        def work() -> None:
            ran.append(1)

        work()
        assert not ran
    work()
    assert ran == [1]
    hold = locks.lock("k").acquire()
    locks.close()
    assert hold.lost == "close" and other.info("k") is None
    with pytest.raises(redislock.LocksClosedError):
        locks.lock("k").acquire()


def test_asyncio(stage: Stage) -> None:
    async def story() -> None:
        client = stage.client(redis.asyncio.Redis)
        async with redislock.AsyncLocks(client) as locks:
            async with locks.lock("k", wait=5) as hold:
                waiter = asyncio.create_task(locks.lock("k", wait=60).acquire())
                while (info := await locks.info("k")) is None or not info.waiters:
                    await asyncio.sleep(0.001)
                assert hold.check() > 0
            later = await waiter
            assert later.token > hold.token
            lost = asyncio.create_task(later.until_lost())
            await asyncio.sleep(0)
            await asyncio.to_thread(stage.lose, "k")
            async with asyncio.timeout(60):
                assert await lost == "push"
        if client is not stage.double:
            await client.aclose()

    asyncio.run(story())


# The features of the double alone.


def test_the_clock_is_moved() -> None:
    server = testing.Server()
    with redislock.Locks(server) as locks, redislock.Locks(server) as other:
        renewed, brief = locks.lock("a").acquire(), locks.lock("b", renew=False).acquire()
        locks.lock("report", min_hold=50).acquire().release()
        server.advance(40)
        assert renewed.check() > 15 and brief.lost == "deadline"
        assert other.lock("b").try_acquire() is not None and other.lock("report").try_acquire() is None
        server.advance(15)
        assert other.lock("report").try_acquire() is not None
        ended, thread = waits_in_vain(other, "a", 600)
        server.advance(500)
        assert not ended
        server.advance(110)
        thread.join(60)
        assert ended[0].startswith("a could not be acquired within 600 s: held by")


def waits_in_vain(locks: redislock.Locks, name: str, wait: float) -> tuple[list[str], threading.Thread]:
    """A thread that waits for a lock."""
    ended: list[str] = []

    def work() -> None:
        try:
            locks.lock(name, wait=wait).acquire()
        except redislock.LockTimeoutError as error:
            ended.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    eventually(lambda: locks.info(name).waiters == 1, "it waits")  # type: ignore[union-attr]
    return ended, thread


def test_a_lock_is_lost_at_once_and_a_program_that_stood_still_loses_it() -> None:
    server = testing.Server()
    with redislock.Locks(server) as locks:
        hold = locks.lock("k").acquire()
        server.lose("k")
        assert hold.lost == "push"
        with pytest.raises(TypeError, match="seconds must be"):
            server.advance("1")  # type: ignore[arg-type]
        with pytest.raises(redislock.ServerRefusedError, match="PX must be an integer from 1 to 3600000"):
            locks.lock("k", lease=4000).acquire()


def test_asyncio_moves_the_clock_and_loses_locks() -> None:
    async def story() -> None:
        server = testing.Server()
        async with redislock.AsyncLocks(server) as locks:
            renewed = await locks.lock("a").acquire()
            brief = await locks.lock("b", renew=False).acquire()
            await server.advance_async(100)
            assert renewed.check() > 15 and brief.lost == "deadline"
            with pytest.raises(redislock.LockLostError):
                async with locks.lock("c"):
                    await server.lose_async("c")
                    await asyncio.sleep(60)
            calls: list[Callable[[], None]] = [lambda: server.advance(1), lambda: server.lose("a")]
            for call in calls:
                with pytest.raises(RuntimeError, match="await"):
                    call()

    asyncio.run(story())


def test_independent_servers_are_refused() -> None:
    with pytest.raises(ValueError, match="named twice"):
        Redlock([testing.Server(), testing.Server(), testing.Server()])


# Each reply is that of a real server.

OWNERS = ["ann", "ben", "cleo"]


def test_random_commands_are_answered_as_by_a_real_server(server: Any) -> None:
    real = BlockingLink(("127.0.0.1", server.port), settings_of(redis.Redis()).login, _rules.clock() + 60)
    try:
        for seed in range(300):
            alike(random.Random(seed), seed, real)
    finally:
        real.close()


def alike(chance: random.Random, seed: int, real: BlockingLink) -> None:
    """Sends the same commands to both. A token counts by its place among those that were granted."""
    socket = testing.Server().redislock_settings
    double = BlockingLink(socket.addresses[0], socket.login, _rules.clock() + 60)
    tokens: tuple[list[Any], list[Any]] = ([], [])
    told = []
    for _ in range(25):
        make = command(chance, [f"a{seed}", f"b{seed}"])
        replies = []
        for link, known in zip((real, double), tokens, strict=True):
            reply = link.call(make(known), _rules.clock() + 60)
            if make([])[0] in ("LOCK.ACQUIRE", "LOCK.MACQUIRE") and isinstance(reply, int) and reply not in known:
                known.append(reply)
            replies.append(plain(reply, known))
        told.append((make([]), *replies))
        assert replies[0] == replies[1], f"seed {seed}: {told}"
    for name, owner in itertools.product([f"a{seed}", f"b{seed}"], OWNERS):
        real.call(("LOCK.RELEASE", name, owner), _rules.clock() + 60)


def command(chance: random.Random, names: list[str]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """A command, given the tokens that were granted."""
    names, owner = chance.sample(names, chance.choice([1, 1, 1, 2])), chance.choice(OWNERS)
    mode = chance.choice([(), (), (), ("SHARED",), ("SHARED",), ("LIMIT", 2)])
    wait = chance.choice([(), (), ("QUEUE", 60_000)])
    what, place = chance.randrange(10), chance.randrange(8)

    def token(known: list[Any]) -> tuple[Any, ...]:
        return ("TOKEN", known[place % len(known)]) if known and place < 4 else ("TOKEN", 1) if place == 4 else ()

    if what < 5 and len(names) == 1:
        return lambda _: ("LOCK.ACQUIRE", names[0], owner, "PX", 60_000, *wait, *mode)
    if what < 5:
        return lambda _: ("LOCK.MACQUIRE", 2, *names, owner, "PX", 60_000, *mode[:1] * (len(mode) == 1))
    if what == 5:
        return lambda known: ("LOCK.RENEW", names[0], owner, "PX", 60_000, *token(known))
    if what < 8:
        return lambda known: ("LOCK.RELEASE", names[0], owner, *token(known))
    if what == 8:
        return lambda known: ("LOCK.FENCE", names[0], *token(known)[1:])
    return lambda _: ("LOCK.INFO", names[0])


def plain(reply: Any, known: list[Any]) -> Any:
    """A reply without what two servers do not have in common: times, tokens, fields that no client reads."""
    if isinstance(reply, ReplyError):
        return str(reply).split(" ")[0]
    if isinstance(reply, int) and reply > 1:
        return f"token {known.index(reply)}"
    if isinstance(reply, dict) and b"holders" in reply:
        holders = sorted((row[b"owner"], known.index(row[b"token"])) for row in reply[b"holders"])
        queue = [row[b"owner"] for row in reply[b"queue"]]
        kind = reply[b"kind"] if holders else None  # without a holder it is what some waiter has asked for
        return (kind, reply[b"limit"], reply[b"holds"], holders, queue)
    return reply
