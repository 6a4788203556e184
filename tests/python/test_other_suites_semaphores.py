"""The tests of other semaphores, applied to LOCK.ACQUIRE ... LIMIT n.

Each test replays a scenario of another project's suite and names it:

- of Curator (TestInterProcessSemaphore, TestInterProcessSemaphoreMutex);
- of Redisson (RedissonSemaphoreTest, RedissonPermitExpirableSemaphoreTest);
- of Hazelcast's CP subsystem (SemaphoreBasicTest and its siblings, session-aware);
- of the JDK (SemaphoreTest, of JSR 166).

The scenarios are theirs, the tests are our own.

Three things differ on purpose. A permit belongs to an owner and has a lease. An owner has one permit, so a client that
wants several comes under several names. The number of permits is not stored but agreed on by all who hold or wait.

Some scenarios are only in test_semaphores.py, which asks more of them:

- of Curator testGetParticipantNodes (test_info_shows_the_limit_and_every_holder);
- of Redisson testTrySetPermits and of Hazelcast testInitFails_whenAlreadyInitialized
  (test_a_request_of_another_kind_than_the_holders_is_refused);
- of Redisson testBlockingAcquire and of Hazelcast testAcquire_afterRelease
  (test_permits_are_handed_on_in_the_order_of_the_line);
- of Hazelcast testAcquire_whenNoPermits_andSemaphoreDestroyed and testInitNotifiesWaitingAcquires
  (test_a_broken_semaphore_lets_n_waiters_in).

Numbers of permits that cannot be are in test_bad_input.py: of Redisson testZero, of Hazelcast
testMultipleAcquire_whenNegative and testTryAcquireMultiple_whenArgumentNegative.
"""

import random
import threading
import time

import pytest

from harness.actors import Gauge, NotHeld, Stage, answer
from harness.kinds import count, hold_of, kind_of, line_of, owners_of
from harness.limits import SOON_SECONDS, eventually
from harness.replies import lock_info
from harness.wire import Closed, refused


@pytest.fixture
def stage(server):
    """Actors and threads around one semaphore."""
    with Stage(server, "pool") as made:
        yield made


def left(stage, limit):
    """The number of free permits."""
    return limit - len(owners_of(stage.cli, "pool"))


# Curator


def test_more_permits_are_there_when_all_agree_on_more(stage):
    """Curator: testThreadedLeaseIncrease. Here not while it is in use: then LOCKKIND says so."""
    ann, ben, cid = (stage.actor(name) for name in ("ann", "ben", "cid"))
    ann.permit(1)
    reply = stage.in_queue(ben.permit, 1)
    for wait_ms in (0, 1000):
        with refused("LOCKKIND", "LIMIT 1"):
            cid.permit(2, wait_ms=wait_ms)
    assert line_of(stage.cli, "pool") == ["ben"]
    ann.unlock()
    answer(reply)
    with refused("LOCKKIND", "LIMIT 1"):
        cid.permit(2)
    ben.unlock()
    assert all(actor.permit(3, wait_ms=0) for actor in (ann, ben, cid))
    assert kind_of(stage.cli, "pool") == ("limit", 3)


@pytest.mark.parametrize("end", ["killed", "close"])
def test_what_a_client_held_is_free_when_it_is_gone(stage, end):
    """Curator: testClientClose. EPHEMERAL 0 stands for a permit that ends with its client."""
    ann, ben = stage.actor("ann", "EPHEMERAL 0"), stage.actor("ben", "EPHEMERAL 0")
    ann.permit(1)
    reply = stage.in_queue(ben.permit, 1)
    if end == "killed":
        ann.killed()
    else:
        ann.cli.close()
    assert answer(reply) > ann.token
    ben.cli.close()
    eventually(lambda: stage.cli("DBSIZE") == 0, "nothing is left")


def test_several_permits_at_a_time_are_never_more_than_there_are(stage):
    """Curator: testMaxPerSession. Ten clients that take up to five each, of 25."""
    clients = [stage.actor(f"c{n}") for n in range(10)]
    stop = threading.Event()
    seen = []

    def watch():
        while not stop.is_set():
            seen.append(len(owners_of(stage.cli, "pool")))

    def visit(number):
        dice, cli = random.Random(number), clients[number].cli
        for turn in range(10):
            names = [f"{number}.{turn}.{n}" for n in range(dice.randrange(1, 6))]
            # Without waiting: a client that holds some and waits for more may wait for ever.
            taken = [cli("LOCK.ACQUIRE", "pool", name, "PX", 60000, "LIMIT", 25) for name in names]
            given = [cli("LOCK.RELEASE", "pool", name) for name in names]
            assert given == [int(token is not None) for token in taken]

    watcher = stage.run(watch)
    stage.crowd(10, visit)
    stop.set()
    answer(watcher)
    assert max(seen) <= 25
    assert stage.cli("DBSIZE") == 0


def test_half_of_the_permits_can_be_taken_at_a_time(stage):
    """Curator: testRelease1AtATime. All permits are in use at the height, and every client gets its turn."""
    gauge = Gauge()
    actors = [stage.actor(f"c{n}") for n in range(10)]
    full = threading.Event()

    def visit(number):
        assert actors[number].permit(5, wait_ms=10_000)
        with gauge as inside:
            if inside == 5:
                full.set()
            assert full.wait(SOON_SECONDS), "five get in together"
            time.sleep(0.01)
        actors[number].unlock()

    stage.crowd(10, visit)
    assert (gauge.visits, gauge.highest) == (10, 5)


def test_a_hundred_threads_released_in_chunks(stage):
    """Curator: testReleaseInChunks."""
    gauge, step = Gauge(), threading.Semaphore(0)
    actors = [stage.actor(f"c{n}") for n in range(100)]

    def visit(number):
        assert actors[number].permit(11, wait_ms=20_000)
        with gauge:
            assert step.acquire(timeout=SOON_SECONDS)
        actors[number].unlock()

    threads = [stage.run(visit, n) for n in range(100)]
    stage.until(held=11, waiting=89)
    dice, remaining = random.Random(1), 100
    while remaining:
        times = min(dice.randrange(1, 6), remaining)
        for _ in range(times):
            step.release()
        remaining -= times
        time.sleep(0.002)
    for thread in threads:
        answer(thread)
    assert (gauge.visits, gauge.highest) == (100, 11)
    assert stage.cli("DBSIZE") == 0


def test_a_request_that_an_administrator_ended_leaves_no_trace(stage):
    """Curator: testNoOrphanedNodes. The client comes again, and nothing blocks it."""
    ann, ben = stage.actor("ann"), stage.actor("ben")
    ann.permit(1)
    ended = stage.in_queue(ben.permit, 1)
    stage.cli("CLIENT", "UNBLOCK", ben.client_id, "ERROR")
    with refused("UNBLOCKED"):
        answer(ended)
    again = stage.in_queue(ben.permit, 1)
    ann.unlock()
    assert answer(again)
    ben.unlock()
    assert (stage.cli("EXISTS pool"), count(stage.cli, "waiters")) == (0, 0)
    assert ann.permit(1, wait_ms=100)


@pytest.mark.parametrize("way", ["UNBLOCK", "KILL", "RELEASE", "TIMEOUT"])
def test_an_interrupted_request_does_not_hold_up_the_next(stage, way):
    """Curator: testInterruptAcquire (CURATOR-462). Hazelcast: testReleaseCancelsPendingAcquireRequest..."""
    ann, ben, cid = (stage.actor(name) for name in ("ann", "ben", "cid"))
    ann.permit(1)
    interrupted = stage.in_queue(ben.permit, 1, wait_ms=150 if way == "TIMEOUT" else 60_000)
    if way == "KILL":
        ben.killed()
        with pytest.raises(Closed):
            answer(interrupted)
    else:
        if way == "UNBLOCK":
            stage.cli("CLIENT", "UNBLOCK", ben.client_id)
        elif way == "RELEASE":
            stage.cli("LOCK.RELEASE pool ben")
        assert answer(interrupted) is None
    assert line_of(stage.cli, "pool") == []
    ann.unlock()
    assert cid.permit(1, wait_ms=0), "the permit is not lost to the waiter that left"


def test_clients_continue_after_the_server_came_back(start_server):
    """Curator: testAcquireAfterLostServer (CURATOR-335). Connections end, owners come again."""
    server = start_server("--appendonly", "yes", "--appendfsync", "always")
    with Stage(server, "pool", lease_ms=60_000) as stage:
        ann, ben = stage.actor("ann"), stage.actor("ben")
        token = ann.permit(1)
        lost = stage.in_queue(ben.permit, 1)
        server.stop()  # which closes the tests' connections too, hence the other errors
        with pytest.raises((Closed, OSError, ValueError)):
            answer(lost)
    server.start()
    with Stage(server, "pool", lease_ms=60_000) as stage:
        ann, ben = stage.actor("ann"), stage.actor("ben")
        assert ann.permit(1, wait_ms=0) == token, "it still holds"
        reply = stage.in_queue(ben.permit, 1)
        ann.unlock()
        assert answer(reply) > token


# Redisson


def test_releasing_what_one_does_not_have_creates_no_permit(stage):
    """Redisson: testReleaseWithoutPermits. Hazelcast: testRelease_whenNotAcquired, testRelease_whenNoSessionCreated."""
    ann, ben = stage.actor("ann"), stage.actor("ben")
    for _ in range(3):
        with pytest.raises(NotHeld):
            ann.unlock()
    assert stage.cli("DBSIZE") == 0
    ann.permit(2)
    with pytest.raises(NotHeld):
        ben.unlock()
    assert left(stage, 2) == 1


def test_a_permit_given_back_twice_is_one_permit(stage):
    """Redisson: testReleaseAcquire, testTryReleaseManyExpired. The second release returns 0, and no other permit is
    released."""
    ann, ben = stage.actor("ann"), stage.actor("ben")
    token = ann.permit(2)
    ben.permit(2)
    ann.unlock()
    with pytest.raises(NotHeld):
        ann.unlock()
    assert left(stage, 2) == 1
    assert stage.actor("cid").permit(2, wait_ms=0)
    assert stage.actor("dan").permit(2, wait_ms=0) is None
    # and late, when the same owner is back: by the token of its first time
    ben.unlock()
    assert ann.permit(2) > token
    assert stage.cli("LOCK.RELEASE", "pool", "ann", "TOKEN", token) == 0
    assert ann.count() == 1


def test_the_lease_of_a_permit_can_be_set(stage):
    """Redisson: testUpdateLeaseTime, testGetLeaseTime."""
    ann = stage.actor("ann", lease_ms=60_000)
    assert ann.renew(1000) is False
    ann.permit(1)
    assert ann.renew(20_000) is True
    assert 0 < hold_of(stage.cli, "pool", "ann")["lease-left-ms"] <= 20_000, "shorter than it was"
    assert ann.renew(80) is True
    eventually(lambda: left(stage, 1) == 1, "the lease ends")
    assert ann.renew(1000) is False and stage.cli("DBSIZE") == 0
    ann.lease_ms = 400
    ann.permit(1)
    assert ann.renew(60_000) is True
    time.sleep(0.45)
    assert left(stage, 1) == 0, "the lease it had before is forgotten"


def test_permits_come_back_when_their_leases_end(stage):
    """Redisson: testAvailablePermits, testAcquiredPermits, testGetPermits, testExpiration, testNotExistent."""
    assert left(stage, 2) == 2
    actors = [stage.actor(f"c{n}") for n in range(3)]
    for n in range(2):
        assert actors[n].permit(2, wait_ms=100)
        assert left(stage, 2) == 1 - n
    assert lock_info(stage.cli, "pool")["limit"] == 2
    assert actors[2].permit(2, wait_ms=20) is None
    assert [actor.renew(60) for actor in actors] == [True, True, False]
    eventually(lambda: left(stage, 2) == 2, "both leases end")
    actors[2].lease_ms = 60
    assert actors[2].permit(2, wait_ms=100)
    eventually(lambda: stage.cli("DBSIZE") == 0, "no key is left")


@pytest.mark.parametrize("first_wait_ms", [0, 100])
def test_a_waiter_gets_a_permit_whose_lease_ended(stage, first_wait_ms):
    """Redisson: testExpire, testExpireTryAcquire, testReleaseExpired."""
    ann, ben = stage.actor("ann", lease_ms=150), stage.actor("ben")
    start = time.monotonic()
    ann.permit(1, wait_ms=first_wait_ms)
    assert answer(stage.run(ben.permit, 1))
    assert time.monotonic() - start >= 0.14, "not before"
    with pytest.raises(NotHeld):
        ann.unlock()
    assert owners_of(stage.cli, "pool") == ["ben"], "the late release took nothing from it"


def test_a_timed_request_gets_what_is_given_back_in_time(stage):
    """Redisson: testTryAcquire, testTryNAcquire."""
    ann, ben = stage.actor("ann"), stage.actor("ben")
    ann.permit(1)
    assert ben.permit(1, wait_ms=0) is None
    reply = stage.in_queue(ben.permit, 1, wait_ms=10_000)
    time.sleep(0.05)
    ann.unlock()
    assert answer(reply)
    assert left(stage, 1) == 0


@pytest.mark.parametrize("limit", [1, 3])
def test_no_permit_too_many_is_given_and_no_update_is_lost(stage, limit):
    """Redisson: testConcurrency_SingleInstance, testConcurrencyLoop(Max)_MultiInstance, testConcurrencyMultiPermits.
    Curator: testThreads; TestInterProcessSemaphoreMutex, which is that of one permit."""
    gauge, total, guard = Gauge(), [0], threading.Lock()
    actors = [stage.actor(f"c{n}", lease_ms=60_000) for n in range(8)]

    def visit(number):
        for _ in range(25):
            actors[number].permit(limit)
            with gauge as inside:
                assert inside <= limit
                if limit == 1:
                    value = total[0]
                    time.sleep(0)
                    total[0] = value + 1
                else:
                    with guard:
                        total[0] += 1
            actors[number].unlock()

    stage.crowd(8, visit)
    assert total[0] == gauge.visits == 200
    assert 1 <= gauge.highest <= limit
    assert stage.cli("DBSIZE") == 0


# Hazelcast


def test_two_waiters_for_two_permits_get_them_in_order(stage):
    """Hazelcast: testAcquire_whenNoPermits, testMultipleAcquires_afterRelease, testRelease_whenBlockedAcquireThread."""
    actors = [stage.actor(f"c{n}") for n in range(4)]
    for actor in actors[:2]:
        actor.permit(2)
    replies = [stage.in_queue(actor.permit, 2) for actor in actors[2:]]
    time.sleep(0.1)
    assert not any(reply.done() for reply in replies)
    actors[0].unlock()
    assert answer(replies[0])
    assert not replies[1].done()
    actors[1].unlock()
    assert answer(replies[1])
    assert left(stage, 2) == 0


def test_twenty_permits_one_after_the_other(stage):
    """Hazelcast: testAcquire, testTryAcquire, testMultipleRelease. Curator: testSimple, testSimple2."""
    actors = [stage.actor(f"c{n}") for n in range(21)]
    for n in range(20):
        assert left(stage, 20) == 20 - n
        assert actors[n].permit(20, wait_ms=0)
    assert actors[20].permit(20, wait_ms=50) is None
    actors[0].unlock()
    assert actors[20].permit(20, wait_ms=0), "the one that was given back"
    actors[0], actors[20] = actors[20], actors[0]
    for n in range(20):
        assert left(stage, 20) == n
        actors[n].unlock()
    assert stage.cli("DBSIZE") == 0


def test_permits_of_a_session_that_ended_come_back_once(stage):
    """Hazelcast: testNoDuplicateRelease_whenSessionExpires."""
    session = stage.actor("s0", "EPHEMERAL 0")
    for n in range(3):
        session.cli(f"LOCK.ACQUIRE pool s{n} PX 60000 LIMIT 3 EPHEMERAL 0")
    replies = [stage.in_queue(stage.actor(f"w{n}").permit, 3) for n in range(4)]
    session.killed()
    assert all(answer(reply) for reply in replies[:3])
    assert [stage.cli(f"LOCK.RELEASE pool s{n}") for n in range(3)] == [0, 0, 0]
    assert not replies[3].done() and left(stage, 3) == 0


def test_a_new_request_of_the_same_owner_takes_over_from_the_old(stage):
    """Hazelcast: testNewAcquireCancelsPendingAcquireRequestWhenAlreadyAcquired, and its siblings."""
    ann = stage.actor("ann")
    ann.permit(1)
    old, new = stage.actor("ben"), stage.actor("ben")
    stale = stage.in_queue(old.permit, 1)
    behind = stage.in_queue(stage.actor("cid").permit, 1)
    fresh = stage.run(new.permit, 1)
    with refused("UNBLOCKED"):
        answer(stale)
    assert line_of(stage.cli, "pool") == ["ben", "cid"], "the place is kept"
    ann.unlock()
    token = answer(fresh)
    assert old.permit(1) == token, "and asked once more it is the same permit"
    assert not behind.done()
    assert left(stage, 1) == 0


# JSR 166


def test_permits_are_given_in_the_order_of_the_requests(stage):
    """JSR 166: testFairLocksFifo. A request for less time does not pass either."""
    ann = stage.actor("ann")
    ann.permit(1)
    actors = [stage.actor(f"c{n}") for n in range(6)]
    waits = [60_000, 20_000, 50_000, 30_000, 40_000, 10_000]
    replies = [stage.in_queue(actor.permit, 1, wait_ms=ms) for actor, ms in zip(actors, waits)]
    assert stage.actor("late").permit(1, wait_ms=0) is None
    previous = ann
    for actor, reply in zip(actors, replies):
        previous.unlock()
        assert answer(reply) > previous.token
        previous = actor


def test_a_storm_of_short_waits_loses_no_permit(stage):
    """JSR 166: testShortTimeoutAcquisition (JDK-8386085). Grants and timeouts meet again and again."""
    keepers = [stage.actor(f"k{n}") for n in range(2)]
    actors = [stage.actor(f"c{n}") for n in range(6)]
    for keeper in keepers:
        keeper.permit(2)
    done, got = threading.Event(), []

    def storm(number):
        while not done.is_set():
            if actors[number].permit(2, wait_ms=1) is not None:
                got.append(number)
                assert len(owners_of(actors[number].cli, "pool")) <= 2
                actors[number].unlock()

    threads = [stage.run(storm, n) for n in range(6)]
    time.sleep(0.2)
    assert not got, "there was none"
    for keeper in keepers:
        keeper.unlock()
    eventually(lambda: len(got) >= 50, "permits are taken again and again")
    done.set()
    for thread in threads:
        answer(thread)
    assert stage.cli("DBSIZE") == 0, "no permit went to a request that was told nil"
