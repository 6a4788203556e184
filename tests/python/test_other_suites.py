"""The tests of other distributed mutexes, applied to LOCK.ACQUIRE and LOCK.MACQUIRE.

Each test replays a scenario of another project's suite and names it: of Curator (TestInterProcessMutexBase,
TestInterProcessMultiMutex), Redisson (RedissonLockTest, RedissonFairLockTest, RedissonFencedLockTest,
RedissonMultiLockTest) and Hazelcast's CP subsystem (FencedLockBasicTest and its siblings). The scenarios are theirs,
the tests are our own. Readers and writers are in test_other_suites_readers_writers.py, permits in
test_other_suites_semaphores.py, redis-py's lock in test_redis_py_lock.py.
"""

import random
import threading
import time

import pytest

from harness.actors import Gauge, NotHeld, Stage, answer
from harness.kinds import count, line_of, owners_of, states_of, take_all
from harness.limits import eventually
from harness.replies import lock_info
from harness.wire import Closed, refused

KEYS = ["lock1", "lock2", "lock3"]


@pytest.fixture
def stage(server):
    """Actors and threads around one lock."""
    with Stage(server, "mutex") as made:
        yield made


# Curator: TestInterProcessMutexBase


def test_a_block_of_code_holds_and_gives_back(stage):
    """Curator: testLocker."""
    ann = stage.actor("ann")
    for _ in range(3):
        assert ann.lock(wait_ms=1000)
        assert ann.count() == 1
        ann.unlock()
        assert ann.count() == 0


def test_when_the_process_that_waits_is_killed_the_next_gets_it(stage):
    """Curator: testWaitingProcessKilledServer."""
    ann, ben, cid = (stage.actor(name) for name in ("ann", "ben", "cid"))
    ann.lock()
    dead, alive = stage.in_queue(ben.lock), stage.in_queue(cid.lock)
    ben.killed()
    with pytest.raises(Closed):
        answer(dead)
    assert line_of(stage.cli, "mutex") == ["cid"]
    ann.unlock()
    assert answer(alive)


def test_a_session_that_is_killed_loses_its_lock_and_may_come_back(stage):
    """Curator: testKilledSession. One holds, one waits; the holder's session ends; both get it, once each."""
    ann, ben = stage.actor("ann", "EPHEMERAL 0"), stage.actor("ben")
    token = ann.lock()
    reply = stage.in_queue(ben.lock)
    ann.killed()
    assert answer(reply) > token
    back = stage.actor("ann", "EPHEMERAL 0")
    again = stage.in_queue(back.lock)
    ben.unlock()
    assert answer(again) > ben.token
    assert owners_of(stage.cli, "mutex") == ["ann"]


def test_many_names_leave_nothing_behind(stage):
    """Curator: testContainerCleanup."""
    actors = [stage.actor(f"c{n}") for n in range(5)]

    def visit(number):
        dice = random.Random(number)
        for turn in range(40):
            actors[number].key = f"job:{dice.randrange(1000)}"
            actors[number].lock()
            actors[number].unlock()

    stage.crowd(5, visit)
    assert stage.cli("DBSIZE") == 0
    assert (count(stage.cli, "locks"), count(stage.cli, "waiters")) == (0, 0)


def test_the_same_name_elsewhere_is_another_lock(stage):
    """Curator: testWithNamespace. Redisson: testNameMapper."""
    ann, ben = stage.actor("ann"), stage.actor("ben")
    ben.cli("SELECT 1")
    assert ann.lock(wait_ms=0) and ben.lock(wait_ms=0)
    assert owners_of(stage.cli, "mutex") == ["ann"]
    assert owners_of(ben.cli, "mutex") == ["ben"]
    ann.unlock()
    assert ben.count() == 1


def test_one_of_two_threads_enters_again_and_the_other_waits(stage):
    """Curator: testReentrantSingleLock, testReentrant2Threads, testReentrant."""
    ann, ben = stage.actor("ann", "REENTRANT"), stage.actor("ben", "REENTRANT")

    def nested(depth):
        assert ann.lock()
        assert ann.count() == depth
        if depth < 5:
            nested(depth + 1)
        assert ben.lock(wait_ms=0) is None
        assert ann.count() == depth
        ann.unlock()

    nested(1)
    ann.lock()
    ann.lock()
    reply = stage.in_queue(ben.lock)
    ann.unlock()
    assert not reply.done()
    ann.unlock()
    assert answer(reply)
    assert ben.count() == 1


def test_two_clients_one_after_the_other(stage):
    """Curator: test2Clients. The first waits for the second's sign that it waits too."""
    ann, ben = stage.actor("ann"), stage.actor("ben")
    ann.lock()
    reply = stage.in_queue(ben.lock)
    assert owners_of(stage.cli, "mutex") == ["ann"]
    ann.unlock()
    assert answer(reply)
    assert ann.lock(wait_ms=0) is None


# Curator: TestInterProcessMultiMutex. Redisson: RedissonMultiLockTest


@pytest.mark.parametrize("bad", ["held by another", "not a lock", "a semaphore", "a writer waits for it"])
def test_if_one_cannot_be_locked_none_is(stage, bad):
    """Curator: testSomeLocksFailToLock."""
    if bad == "held by another":
        stage.actor("other", key="lock2").lock()
        assert take_all(stage.cli, "lock1 lock2 lock3", "ann") is None
    elif bad == "a writer waits for it":
        stage.actor("reader", key="lock2").read()
        stage.run(stage.actor("writer", key="lock2").write)
        stage.until(held=1, waiting=1, key="lock2")
        assert take_all(stage.cli, "lock1 lock2 lock3", "ann", "SHARED") is None
    else:
        stage.cli(*"SET lock2 text".split() if bad == "not a lock" else "LOCK.ACQUIRE lock2 x PX 60000 LIMIT 2".split())
        for wait in ("", "BLOCK 1000"):
            with refused("WRONGTYPE" if bad == "not a lock" else "LOCKKIND"):
                take_all(stage.cli, "lock1 lock2 lock3", "ann", wait)
    assert stage.cli("EXISTS lock1 lock3") == 0
    assert stage.cli("LOCK.HELDBY ann") == []


def test_if_one_cannot_be_released_the_others_can(stage):
    """Curator: testSomeReleasesFail. One was broken meanwhile; its new holder keeps it."""
    take_all(stage.cli, "lock1 lock2 lock3", "ann")
    stage.cli("DEL lock2")
    stage.actor("ben", key="lock2").lock(wait_ms=0)
    assert [stage.cli("LOCK.RELEASE", key, "ann") for key in KEYS] == [1, 0, 1]
    assert owners_of(stage.cli, "lock2") == ["ben"]


def test_one_of_ten_clients_gets_all_three_locks(stage):
    """Redisson: testWaitAndLeaseTimeouts, test."""
    clients = [stage.server.connect() for _ in range(10)]
    command = "LOCK.MACQUIRE 3 lock1 lock2 lock3 owner{} PX 60000"
    tokens = stage.crowd(10, lambda n: clients[n](command.format(n)))
    assert sum(token is not None for token in tokens) == 1
    holders = {owners_of(stage.cli, key)[0] for key in KEYS}
    assert len(holders) == 1, "never a part"


def test_the_next_waiter_gets_all_three_locks(stage):
    """Redisson: testMultiThreads, testLockUnlock."""
    first = take_all(stage.cli, "lock1 lock2 lock3", "ann")
    other = stage.server.connect()
    reply = stage.run(other, "LOCK.MACQUIRE 3 lock3 lock1 lock2 ben PX 60000 BLOCK 0")
    stage.until(held=1, waiting=1, key="lock3")
    for key in KEYS:
        assert not reply.done()
        stage.cli("LOCK.RELEASE", key, "ann")
    assert answer(reply) > first
    assert {owners_of(stage.cli, key)[0] for key in KEYS} == {"ben"}


def test_dining_philosophers_neither_starve_nor_block(stage):
    """The dining philosophers: the purpose of a multi lock. Each takes its forks in the order in which it sees them."""
    clients = [stage.server.connect() for _ in range(5)]
    forks = [Gauge() for _ in range(5)]

    def dine(number):
        cli, right = clients[number], (number + 1) % 5
        for turn in range(10):
            owner = f"{number}.{turn}"
            assert cli("LOCK.MACQUIRE", 2, f"fork{number}", f"fork{right}", owner, "PX", 60000, "BLOCK", 0)
            with forks[number] as left_hand, forks[right] as right_hand:
                assert left_hand == right_hand == 1
            for fork in (number, right):
                assert cli("LOCK.RELEASE", f"fork{fork}", owner) == 1

    stage.crowd(5, dine)
    assert [fork.visits for fork in forks] == [20] * 5
    assert stage.cli("DBSIZE") == 0


# Redisson: RedissonFairLockTest


def test_leases_that_end_pass_the_lock_down_the_line(stage):
    """Redisson: testLeaseTimeout. No actor releases; all get in, in order."""
    order = []
    actors = [stage.actor(f"c{n}", lease_ms=60) for n in range(8)]

    def visit(number):
        assert actors[number].lock(wait_ms=10_000)
        order.append((actors[number].token, number))

    first = stage.actor("first")
    first.lock()
    threads = [stage.in_queue(visit, n) for n in range(8)]
    first.renew(60)
    for thread in threads:
        answer(thread)
    assert [number for _, number in sorted(order)] == list(range(8))
    eventually(lambda: stage.cli("DBSIZE") == 0, "the last lease ends too")


def test_two_hundred_threads_at_one_lock(stage):
    """Redisson: testMultipleLocks, testConcurrency_MultiInstance_Ordering."""
    actors = [stage.actor(f"c{n}") for n in range(200)]
    gauge = Gauge()

    def visit(number):
        actors[number].lock()
        with gauge as inside:
            assert inside == 1
        actors[number].unlock()

    stage.crowd(200, visit)
    assert gauge.visits == 200


def test_waits_that_time_out_again_and_again_do_not_delay_who_comes_after(stage):
    """Redisson: testWaitTimeoutDrift, testLockAcquiredTimeoutDrift, testAcquireFailedTimeoutDrift."""
    holder = stage.actor("holder")
    holder.lock()
    actors = [stage.actor(f"c{n}") for n in range(3)]

    def give_up(number):
        for _ in range(10):
            assert actors[number].lock(wait_ms=15) is None

    stage.crowd(3, give_up)
    assert line_of(stage.cli, "mutex") == []
    reply = stage.in_queue(stage.actor("last").lock)
    start = time.monotonic()
    holder.unlock()
    assert answer(reply)
    assert time.monotonic() - start < 10, "and not after the waits of the others"


def test_a_client_that_died_in_line_is_skipped_although_its_place_was_kept(stage):
    """Redisson: testAbandonedTimeoutDrift, testFirstThreadDeathTimeoutDrift. A place by QUEUE lapses."""
    stage.actor("holder").lock()
    stage.cli("LOCK.ACQUIRE mutex dead PX 60000 QUEUE 300")
    reply = stage.in_queue(stage.actor("alive").lock)
    assert states_of(stage.cli, "mutex")[-1] == ("alive", "blocked"), "behind the dead"
    stage.cli("LOCK.RELEASE mutex holder")
    assert answer(reply)
    assert owners_of(stage.cli, "mutex") == ["alive"]


# Redisson: RedissonLockTest, RedissonFencedLockTest


def test_an_interrupted_request_is_not_kept_alive(stage):
    """Redisson: testLockIsNotRenewedAfterInterruptedTryLock. It gets nothing afterwards."""
    ann, ben = stage.actor("ann"), stage.actor("ben", "KEEPALIVE")
    ann.lock()
    reply = stage.in_queue(ben.lock)
    stage.cli("CLIENT", "UNBLOCK", ben.client_id)
    assert answer(reply) is None
    ann.unlock()
    assert stage.cli("EXISTS mutex") == 0
    assert stage.cli("LOCK.HELDBY ben") == []


def test_a_client_that_is_gone_loses_its_lock_when_the_lease_ends(stage):
    """Redisson: testAutoExpire. While it lives, the lease does not run."""
    ann = stage.actor("ann", "KEEPALIVE", lease_ms=100)
    ann.lock()
    reply = stage.in_queue(stage.actor("ben").lock)
    time.sleep(0.2)
    assert not reply.done()
    ann.killed()
    assert answer(reply)


def test_the_remaining_time_is_returned(stage):
    """Redisson: testRemainTimeToLive, testRemainTimeToLive2."""
    ann = stage.actor("ann", lease_ms=60_000)
    assert lock_info(stage.cli, "mutex") is None
    ann.lock()
    left = lock_info(stage.cli, "mutex")["holders"][0]["lease-left-ms"]
    assert 45_000 < left <= 60_000
    time.sleep(0.01)
    assert lock_info(stage.cli, "mutex")["holders"][0]["lease-left-ms"] < left
    ann.unlock()
    assert lock_info(stage.cli, "mutex") is None


def test_a_try_does_not_wait(stage):
    """Redisson: testTryLockNonDelayed, testConcurrencyTryLockUnLock. One of many gets it, the rest are notified at
    once."""
    actors = [stage.actor(f"c{n}") for n in range(20)]
    barrier = threading.Barrier(20)

    def visit(number):
        token = actors[number].lock(wait_ms=0)
        barrier.wait(20)
        if token is not None:
            actors[number].unlock()
        return token

    for _ in range(5):
        assert sum(token is not None for token in stage.crowd(20, visit)) == 1
        barrier.reset()


def test_tokens_of_all_who_hold_go_up(stage):
    """Redisson: testTokenIncrease. Hazelcast: testLock_Unlock_thenLock, testUnlock_whenPendingLockOfOtherThread."""
    actors = [stage.actor(f"c{n}") for n in range(8)]
    seen = []

    def visit(number):
        for _ in range(20):
            seen.append(actors[number].lock())
            assert stage_token(actors[number]) == seen[-1], "what was appended last is what holds"
            actors[number].unlock()

    def stage_token(actor):
        return actor.cli("LOCK.FENCE mutex")

    stage.crowd(8, visit)
    assert seen == sorted(set(seen)) and len(seen) == 160


# Hazelcast: FencedLockBasicTest


@pytest.mark.parametrize("wait_ms", ["for ever", 0, 1000])
def test_a_free_lock_then_the_same_owner_then_another(stage, wait_ms):
    """Hazelcast: testLock_whenNotLocked, ..._whenLockedBySelf, ..._whenLockedByOther, and the same for testTryLock."""
    ann, ben = stage.actor("ann", "REENTRANT"), stage.actor("ben")
    fence = ann.lock(wait_ms=wait_ms)
    assert fence > 0 and ann.count() == 1
    assert stage.cli("LOCK.FENCE mutex") == fence
    assert ann.lock(wait_ms=wait_ms) == fence and ann.count() == 2
    assert ben.lock(wait_ms=0) is None
    assert ben.lock(wait_ms=30) is None
    assert (ann.count(), ben.count()) == (2, 0)
    ann.unlock()
    assert ann.count() == 1 and stage.cli("LOCK.FENCE mutex") == fence
    with pytest.raises(NotHeld):
        ben.unlock()
    ann.unlock()
    assert stage.cli("LOCK.FENCE mutex") is None
    with pytest.raises(NotHeld):
        ann.unlock()


def test_a_client_that_lost_the_lock_learns_it_from_every_request(stage):
    """Hazelcast: testUnlockFails_whenNewSessionCreated, testGetFenceFails_whenNewSessionCreated."""
    ann, ben = stage.actor("ann", "EPHEMERAL 0"), stage.actor("ben")
    fence = ann.lock()
    ann.killed()
    eventually(lambda: stage.cli("EXISTS mutex") == 0, "freed with the session")
    newer = ben.lock()
    again = stage.actor("ann")
    assert newer > fence
    assert stage.cli("LOCK.FENCE", "mutex", fence) == 0
    assert again.renew(60_000) is False
    with pytest.raises(NotHeld):
        again.unlock()
    with refused("FENCED"):
        stage.cli("LOCK.EXEC", "mutex", fence, "SET", "data", "stale")
    assert stage.cli("GET data") is None
    assert stage.cli("LOCK.EXEC", "mutex", newer, "SET", "data", "fresh") == "OK"


def test_a_lock_request_that_is_sent_again_has_one_effect(stage):
    """Hazelcast: testLockAcquireRetry, testPendingLockAcquireRetry, testNewLockCancelsPendingLockRequest,
    testRetriedUnlockIsSuccessfulAfterLockedByAnotherEndpoint. A retry counts once, as it has no REENTRANT."""
    ann, ben = stage.actor("ann"), stage.actor("ben")
    token = ann.lock()
    assert ann.lock() == token == stage.actor("ann").lock(wait_ms=0)
    stale = stage.in_queue(ben.lock)
    fresh = stage.run(stage.actor("ben").lock)
    with refused("UNBLOCKED"):
        answer(stale)
    assert line_of(stage.cli, "mutex") == ["ben"]
    ann.unlock()
    token = answer(fresh)
    assert ben.lock() == token
    ben.unlock()
    assert stage.cli("EXISTS mutex") == 0, "no second hold is left"
    # a release that is sent again has one effect too
    newer = ann.lock()
    assert stage.cli("LOCK.RELEASE", "mutex", "ben", "TOKEN", token) == 0
    assert stage.cli("LOCK.FENCE mutex") == newer
