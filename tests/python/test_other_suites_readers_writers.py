"""The tests of other readers-writer locks, applied to LOCK.ACQUIRE ... SHARED.

Each test replays a scenario of another project's suite and names it: of Curator (TestInterProcessReadWriteLock),
Redisson (RedissonReadWriteLockTest) and the JDK (ReentrantReadWriteLockTest, of JSR 166). The scenarios are theirs, the
tests are our own. Their threads are actors here. One thing differs on purpose: here an owner has one hold. So a writer
that asks for reading has changed to reading, and a reader that asks for writing is refused. And only writers count:
where a reader enters twice there, two readers enter here.

Some scenarios are only in test_readers_writers.py, which asks more of them:

- of Curator testThatUpgradingIsDisallowed
  (test_a_reader_that_asks_for_the_whole_lock_is_refused_and_nothing_changes),
  testThatDowngradingRespectsThreads (test_a_writer_and_a_reader_exclude_each_other), testDowngrading
  (test_a_downgrade_keeps_the_token_and_lets_readers_at_the_head_in) and testContendingDowngrading, which is
  testReadHoldingWriteLock3 of JSR 166 (test_a_downgrade_does_not_let_readers_past_a_waiting_writer);
- of Redisson testWriteRead (test_readers_that_wait_next_to_each_other_come_in_together) and testMultiRead
  (test_a_writer_waits_for_the_last_reader).
"""

import random
import threading
import time

import pytest

from harness.actors import Gauge, NotHeld, Stage, answer
from harness.kinds import line_of, owners_of
from harness.limits import eventually
from harness.replies import lock_info
from harness.wire import Closed, refused

MODES = ["", "SHARED"]


@pytest.fixture
def stage(server):
    """Actors and threads around one lock."""
    with Stage(server, "book") as made:
        yield made


# Curator


def test_all_holders_and_waiters_are_seen(stage):
    """Curator: testGetParticipantNodes."""
    readers = [stage.actor(f"r{n}") for n in range(20)]
    writers = [stage.actor(f"w{n}") for n in range(8)]
    stage.crowd(20, lambda n: readers[n].read())
    waiting = [stage.run(writer.write) for writer in writers]
    stage.until(held=20, waiting=8)
    info = lock_info(stage.cli, "book", "FULL")
    assert {hold["owner"] for hold in info["holders"]} == {f"r{n}" for n in range(20)}
    assert {waiter["owner"] for waiter in info["queue"]} == {f"w{n}" for n in range(8)}
    stage.crowd(20, lambda n: readers[n].unlock())
    line = [waiter["owner"] for waiter in info["queue"]]
    for name in line:
        number = int(name[1:])
        answer(waiting[number])
        assert owners_of(stage.cli, "book") == [name]
        writers[number].unlock()
    assert stage.cli("DBSIZE") == 0


def test_readers_and_writers_at_random(stage):
    """Curator: testBasic. Eight clients, one in ten a writer, who must be alone."""
    gauge, writing = Gauge(), Gauge()

    def visit(number):
        dice = random.Random(number)
        for turn in range(25):
            actor = actors[number]
            if dice.randrange(10) == 0:
                assert actor.write(wait_ms=10_000)
                with gauge as inside, writing:
                    assert inside == 1, "a writer is alone"
                    time.sleep(0.001)
            else:
                assert actor.read(wait_ms=10_000)
                with gauge:
                    assert writing.inside == 0, "readers only"
                    time.sleep(dice.randrange(1, 4) / 1000)
            actor.unlock()

    actors = [stage.actor(f"c{n}") for n in range(8)]
    stage.crowd(8, visit)
    assert gauge.visits == 200 and writing.visits > 0
    assert gauge.highest > 1, "readers were together"
    assert stage.cli("DBSIZE") == 0


def test_a_reader_gets_in_when_the_writers_session_is_killed(stage):
    """Curator: testLockPath. EPHEMERAL 0 stands for a node that dies with its session."""
    ann, ben = stage.actor("ann", "EPHEMERAL 0"), stage.actor("ben")
    ann.write()
    reply = stage.in_queue(ben.read)
    ann.killed()
    assert answer(reply) > ann.token
    assert stage.cli("LOCK.RELEASE book ann") == 0, "it is too late for that"
    ben.unlock()


# Redisson


def test_a_writer_waits_for_the_longest_of_the_readers_leases(stage):
    """Redisson: testReadLockExpiration. A later, shorter lease does not cut an earlier, longer one."""
    long, short = stage.actor("long", lease_ms=600), stage.actor("short", lease_ms=80)
    start = time.monotonic()
    long.read()
    short.read()
    reply = stage.in_queue(stage.actor("w").write)
    eventually(lambda: owners_of(stage.cli, "book") == ["long"], "the short lease ends")
    assert not reply.done() or time.monotonic() - start >= 0.6
    assert answer(reply)
    assert time.monotonic() - start >= 0.55, "not before the long lease ended"
    assert owners_of(stage.cli, "book") == ["w"]


def test_fifty_readers_whose_leases_are_kept_alive(stage):
    """Redisson: testReadLockExpirationRenewal. All hold for longer than the lease; none has lost it."""
    actors = [stage.actor(f"r{n}", "KEEPALIVE", lease_ms=100) for n in range(50)]

    def visit(number):
        actors[number].read()
        time.sleep(0.3)
        actors[number].unlock()

    stage.crowd(50, visit)
    assert stage.cli("DBSIZE") == 0


def test_a_second_writer_gets_nothing_while_the_lease_runs(stage):
    """Redisson: testWriteLockExpiration. Taking it again with a shorter lease does not shorten it."""
    ann = stage.actor("ann", "REENTRANT", lease_ms=60_000)
    ann.write()
    ann.lease_ms = 50
    ann.write(wait_ms=100)
    assert stage.actor("ben").write(wait_ms=150) is None
    assert ann.count() == 2


def test_readers_come_in_together_when_a_writers_lease_ends(stage):
    """Redisson: testReadLockLeaseTimeoutDiffThreadsWRR."""
    stage.actor("w", lease_ms=100).write()
    replies = [stage.run(stage.actor(f"r{n}").read) for n in range(2)]
    assert all(answer(reply) for reply in replies)
    assert sorted(owners_of(stage.cli, "book")) == ["r0", "r1"]


def test_a_writer_waits_for_a_lease_although_another_reader_left(stage):
    """Redisson: testReadLockLeaseTimeoutDiffThreadsRRW."""
    gone, polite = stage.actor("gone", lease_ms=150), stage.actor("polite", lease_ms=60_000)
    gone.read()
    polite.read()
    polite.unlock()
    assert answer(stage.run(stage.actor("w").write, wait_ms=10_000))


def test_one_release_of_two_leaves_the_lease_to_expire(stage):
    """Redisson: testReadLockLeaseTimeout."""
    ann = stage.actor("ann", "REENTRANT")
    ann.write()
    ann.write()
    ann.unlock()
    assert ann.count() == 1
    ann.renew(100)
    assert stage.actor("w").write(wait_ms=10_000)
    with pytest.raises(NotHeld):
        ann.unlock()


def test_what_was_a_writer_keeps_writers_out_until_it_stops_reading(stage):
    """Redisson: testWriteReadReentrancy, testWR, testReadLockIsLocked."""
    ann, ben = stage.actor("ann"), stage.actor("ben")
    ann.write()
    assert ben.read(wait_ms=0) is None
    ann.read()
    assert ben.write(wait_ms=0) is None
    assert stage.cli("LOCK.FENCE book") == ann.token, "it is held all the time"
    ann.unlock()
    assert ben.write(wait_ms=0)
    ben.unlock()


def test_a_writer_that_entered_twice_leaves_twice(stage):
    """Redisson: testWriteLock."""
    ann, ben = stage.actor("ann", "REENTRANT"), stage.actor("ben")
    ann.write()
    assert ann.write(wait_ms=0)
    assert ben.read(wait_ms=0) is None
    ann.unlock()
    assert ann.count() == 1
    assert ben.read(wait_ms=0) is None and ben.write(wait_ms=0) is None
    reply = stage.in_queue(ben.read)
    ann.unlock()
    assert answer(reply)
    assert ann.write(wait_ms=0) is None


@pytest.mark.parametrize("mode", MODES)
def test_a_lock_that_is_broken_is_free(stage, mode):
    """Redisson: testForceUnlock. DEL is the administrator's way."""
    ann, ben = stage.actor("ann"), stage.actor("ben")
    token = ann.lock(mode)
    reply = stage.in_queue(ben.write)
    assert stage.cli("DEL book") == 1
    assert answer(reply) > token
    assert stage.cli("LOCK.FENCE", "book", token) == 0
    with pytest.raises(NotHeld):
        ann.unlock()
    assert ben.count() == 1


def test_the_lease_stays_full_for_the_writer_and_the_reader_it_becomes(stage):
    """Redisson: testReadWriteTTL."""
    ann = stage.actor("ann", "KEEPALIVE", lease_ms=400)
    for ask in (ann.write, ann.read):
        ask()
        for _ in range(4):
            time.sleep(0.03)
            assert lock_info(stage.cli, "book")["holders"][0]["lease-left-ms"] == 400
    ann.unlock()


@pytest.mark.parametrize("mode", MODES)
def test_a_waiter_gets_in_when_the_lease_ends(stage, mode):
    """Redisson: testExpireRead, testExpireWrite, testAutoExpire. The late release returns the fact."""
    ann, ben = stage.actor("ann", lease_ms=150), stage.actor("ben")
    start = time.monotonic()
    ann.lock(mode)
    assert answer(stage.run(ben.write))
    assert time.monotonic() - start >= 0.14, "not before"
    with pytest.raises(NotHeld):
        ann.unlock()
    ben.unlock()


def test_holds_are_counted(stage):
    """Redisson: testHoldCount, testReentrancy. JSR 166: testGetHoldCount."""
    ann = stage.actor("ann", "REENTRANT")
    for times in (1, 2, 5):
        assert ann.count() == 0
        for n in range(times):
            ann.write()
            assert ann.count() == n + 1
        for n in reversed(range(times)):
            ann.unlock()
            assert ann.count() == n
    with pytest.raises(NotHeld):
        ann.unlock()


@pytest.mark.parametrize("mode", MODES)
def test_a_thread_sees_that_another_one_holds_the_lock(stage, mode):
    """Redisson: testIsHeldByCurrentThreadOtherThread, testIsLocked, testUnlockFail."""
    ann, ben = stage.actor("ann"), stage.actor("ben")
    assert lock_info(stage.cli, "book") is None
    ann.lock(mode)

    def look():
        assert ben.count() == 0
        assert ben.cli("LOCK.FENCE book") == ann.token
        with pytest.raises(NotHeld):
            ben.unlock()

    answer(stage.run(look))
    assert ann.count() == 1, "nobody is released by another"
    ann.unlock()
    assert lock_info(stage.cli, "book") is None


def test_a_hundred_visits_of_readers_and_writers_lose_no_update(stage):
    """Redisson: testConcurrency_SingleInstance, testConcurrencyLoop_MultiInstance, testName."""
    stage.cli("SET counter 0")
    actors = [stage.actor(f"c{n}") for n in range(10)]

    def visit(number):
        actor, cli = actors[number], actors[number].cli
        for turn in range(10):
            if (number + turn) % 2:
                actor.write()
                cli("SET", "counter", int(cli("GET counter")) + 1)
            else:
                actor.read()
                assert cli("GET counter") == cli("GET counter"), "nobody writes meanwhile"
            actor.unlock()

    stage.crowd(10, visit)
    assert stage.cli("GET counter") == "50"


def test_readers_that_died_do_not_keep_a_writer_out(stage):
    """Redisson: testMultiInstanceReadLockZombieCleanup. Their leases run from the end of their connections."""
    zombies = [stage.actor(f"z{n}", "KEEPALIVE", lease_ms=150) for n in range(20)]
    alive = stage.actor("alive")
    for zombie in zombies:
        zombie.read()
    alive.read()
    for zombie in zombies:
        zombie.killed()
    reply = stage.in_queue(stage.actor("w").write)
    eventually(lambda: owners_of(stage.cli, "book") == ["alive"], "the zombies are gone")
    alive.unlock()
    assert answer(reply)


# JSR 166


def test_writers_wait_for_all_readers_and_then_for_each_other(stage):
    """JSR 166: testWriteAfterMultipleReadLocks, testWriteAfterReadLock, testReadAfterWriteLock."""
    ann, ben = stage.actor("ann"), stage.actor("ben")
    ann.read()
    ben.read()
    first, second = stage.actor("w1"), stage.actor("w2")
    replies = [stage.in_queue(writer.write) for writer in (first, second)]
    ann.unlock()
    assert not replies[0].done(), "one of two"
    ben.unlock()
    assert answer(replies[0])
    assert not replies[1].done()
    first.unlock()
    assert answer(replies[1]) > first.token


@pytest.mark.parametrize("mode", MODES)
def test_a_holder_enters_again_although_others_wait(stage, mode):
    """JSR 166: testWriteHoldingWriteLock4, testGetReadHoldCount. Else it would wait for itself."""
    ann = stage.actor("ann", *([] if mode else ["REENTRANT"]))
    ann.lock(mode)
    replies = [stage.in_queue(stage.actor("w").write), stage.in_queue(stage.actor("r").read)]
    assert ann.lock(mode, wait_ms=0) == ann.lock(mode) == ann.token
    assert ann.count() == (1 if mode else 3)
    assert line_of(stage.cli, "book") == ["w", "r"]
    assert not any(reply.done() for reply in replies)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["UNBLOCK", "UNBLOCK ERROR", "KILL", "RELEASE"])
def test_an_interrupted_waiter_leaves_the_line_and_blocks_no_other(stage, mode, way):
    """JSR 166: testWriteLockInterruptibly_Interruptible, testReadLockInterruptibly_Interruptible."""
    ann = stage.actor("ann")
    ann.write()
    ben, cid = stage.actor("ben"), stage.actor("cid")
    interrupted = stage.in_queue(ben.lock, mode)
    behind = stage.in_queue(cid.lock, mode)
    if way == "KILL":
        ben.killed()
        with pytest.raises(Closed):
            answer(interrupted)
    elif way == "RELEASE":
        assert stage.cli("LOCK.RELEASE book ben") == 0, "it held nothing"
        assert answer(interrupted) is None
    else:
        assert stage.cli("CLIENT", "UNBLOCK", ben.client_id, *way.split()[1:]) == 1
        if way == "UNBLOCK":
            assert answer(interrupted) is None
        else:
            with refused("UNBLOCKED"):
                answer(interrupted)
    assert line_of(stage.cli, "book") == ["cid"]
    ann.unlock()
    assert answer(behind) > ann.token
    assert owners_of(stage.cli, "book") == ["cid"]


@pytest.mark.parametrize("mode", MODES)
def test_a_wait_ends_in_time(stage, mode):
    """JSR 166: testWriteTryLock_Timeout, testReadTryLock_Timeout. Not early, and nothing is left behind."""
    stage.actor("ann").write()
    start = time.monotonic()
    assert stage.actor("ben").lock(mode, wait_ms=100) is None
    assert time.monotonic() - start >= 0.1
    assert line_of(stage.cli, "book") == []


def test_waiters_are_seen_in_order(stage):
    """JSR 166: testHasQueuedThreads, testGetQueueLength, testGetQueuedThreads, testHasQueuedThread."""
    ann = stage.actor("ann")
    ann.write()
    assert line_of(stage.cli, "book") == []
    first, second = stage.actor("b"), stage.actor("c")
    replies = [stage.in_queue(actor.write) for actor in (first, second)]
    assert line_of(stage.cli, "book") == ["b", "c"]
    assert [row[:3] for row in stage.cli("LOCK.HELDBY c")] == [["book", "waiting", "exclusive"]]
    ann.unlock()
    answer(replies[0])
    assert line_of(stage.cli, "book") == ["c"]
    first.unlock()
    answer(replies[1])
    assert lock_info(stage.cli, "book")["waiters"] == 0


@pytest.mark.parametrize("stream, lone", [("SHARED", ""), ("", "SHARED")])
def test_a_stream_of_readers_or_writers_does_not_starve_the_other_kind(stage, stream, lone):
    """JSR 166: testReaderWriterReaderFairFifo, with readers without a gap; and the other way about."""
    stop, started = threading.Event(), threading.Semaphore(0)
    actors = [stage.actor(f"s{n}") for n in range(4)]

    def flow(number):
        actor = actors[number]
        while not stop.is_set():
            actor.lock(stream)
            started.release()
            time.sleep(0.002)
            actor.unlock()

    threads = [stage.run(flow, n) for n in range(4)]
    for _ in range(8):
        assert started.acquire(timeout=10)
    single = stage.actor("lone")
    try:
        for _ in range(10):
            assert answer(stage.run(single.lock, lone))
            single.unlock()
    finally:
        stop.set()
    for thread in threads:
        answer(thread)
