"""The promises of redis-py's Lock, applied to a lock on LOCK.* commands.

The names follow redis-py's own tests of its lock, so that one can compare; the code is our own. harness/native_lock.py
lists the differences.
"""

import threading
import time

import pytest
import redis
from redis.exceptions import LockError, LockNotOwnedError

from harness.limits import eventually
from harness.native_lock import NativeLock


@pytest.fixture(params=[3, 2], ids=["RESP3", "RESP2"])
def client(request, server):
    """redis-py as users have it, but patient: a wait may be longer than 5 seconds."""
    made = redis.Redis(port=server.port, protocol=request.param, socket_timeout=None)
    if request.param == 2:
        # In RESP2 a map is a flat array; redis-py leaves it to the caller.
        made.set_response_callback("LOCK.INFO", _nested_maps)
    yield made
    made.close()


def _nested_maps(reply, **_):
    if reply is None:
        return None
    info = dict(zip(reply[::2], reply[1::2]))
    info[b"holders"] = [dict(zip(h[::2], h[1::2])) for h in info[b"holders"]]
    return info


@pytest.fixture
def make(client):
    """Makes locks called foo with a lease of a minute by default."""

    def make_lock(name="foo", timeout=60, **options):
        return NativeLock(client, name, timeout, **options)

    return make_lock


def lease_left(client, name="foo"):
    """Seconds left of the lease."""
    (hold,) = client.execute_command("LOCK.INFO", name)[b"holders"]
    return hold[b"lease-left-ms"] / 1000


def break_lock(client, name="foo"):
    """Another owner holds the lock now."""
    client.delete(name)
    assert client.execute_command("LOCK.ACQUIRE", name, "thief", "PX", 60000)


def test_lock(make, client):
    lock = make()
    assert lock.acquire(blocking=False)
    assert lock.owned()
    assert client.execute_command("LOCK.FENCE", "foo") == lock.fence
    lock.release()
    assert client.exists("foo") == 0


def test_lock_with_a_token_of_the_callers_choice(make, client):
    lock = make()
    assert lock.acquire(blocking=False, token="static-token")
    (hold,) = client.execute_command("LOCK.INFO", "foo")[b"holders"]
    assert hold[b"owner"] == b"static-token"
    lock.release()


def test_locked(make):
    mine, other = make(), make()
    assert not mine.locked()
    mine.acquire(blocking=False)
    assert mine.locked() and other.locked()
    mine.release()
    assert not mine.locked() and not other.locked()


def test_owned(make):
    mine, other = make(), make()
    assert not mine.owned()
    mine.acquire(blocking=False)
    assert mine.owned() and not other.owned()
    mine.release()
    assert not mine.owned()


def test_owned_with_the_same_owner(make):
    # Two lock objects of one owner are one hold (G9)
    first, second = make(), make()
    assert first.acquire(blocking=False, token="same")
    assert second.acquire(blocking=False, token="same")
    assert first.fence == second.fence
    assert first.owned() and second.owned()
    first.release()
    assert not second.owned()


def test_competing_locks(make):
    first, second = make(), make()
    assert first.acquire(blocking=False)
    assert not second.acquire(blocking=False)
    first.release()
    assert second.acquire(blocking=False)
    assert not first.acquire(blocking=False)
    second.release()


def test_timeout(make, client):
    make(timeout=10).acquire(blocking=False)
    assert 5 < lease_left(client) <= 10


def test_float_timeout(make, client):
    make(timeout=9.5).acquire(blocking=False)
    assert 5 < lease_left(client) <= 9.5


@pytest.mark.parametrize("timeout", [None, 0, -1])
def test_a_lock_without_timeout_is_refused(make, timeout):
    with pytest.raises(LockError):
        make(timeout=timeout)


def test_the_lock_is_free_after_its_timeout(make, client):
    lock = make(timeout=0.05)
    lock.acquire()
    eventually(lambda: client.exists("foo") == 0, "the lease ends")
    assert not lock.locked() and not lock.owned()
    assert make().acquire(blocking=False)


def test_not_blocking(make):
    make().acquire()
    assert not make(blocking=False).acquire()
    assert make(blocking=True).acquire(blocking=False) is False


def test_blocking_timeout(make):
    make().acquire(blocking=False)
    start = time.monotonic()
    assert not make(blocking_timeout=0.2).acquire()
    assert time.monotonic() - start >= 0.2


def test_the_argument_of_acquire_overrides_the_blocking_timeout(make):
    make().acquire(blocking=False)
    start = time.monotonic()
    assert not make(blocking_timeout=100).acquire(blocking_timeout=0.1)
    assert time.monotonic() - start < 50


def test_a_blocking_timeout_of_0_does_not_wait(make):
    make().acquire(blocking=False)
    assert not make(blocking_timeout=0).acquire()


def test_blocking_continues_until_the_lock_is_free(make):
    first, second = make(), make()
    first.acquire()
    result = []
    thread = threading.Thread(target=lambda: result.append(second.acquire()))
    thread.start()
    eventually(lambda: waiting(first) == 1, "the second waits")
    first.release()
    thread.join(30)
    assert result == [True]


def waiting(lock):
    """The number of requests that wait for the lock."""
    info = lock.redis.execute_command("LOCK.INFO", lock.name)
    return 0 if info is None else info[b"waiters"]


def test_blocking_ends_when_the_holders_lease_does(make):
    make(timeout=0.2).acquire()
    second = make()
    assert second.acquire(blocking_timeout=30)
    assert second.owned()


def test_context_manager(make, client):
    with make() as lock:
        assert lock.owned()
    assert client.exists("foo") == 0


def test_context_manager_releases_when_the_block_fails(make, client):
    with pytest.raises(ZeroDivisionError):
        with make():
            1 / 0
    assert client.exists("foo") == 0


def test_context_manager_raises_when_not_acquired_in_time(make):
    make().acquire()
    with pytest.raises(LockError):
        with make(blocking_timeout=0.1):
            raise AssertionError("entered without the lock")


def test_context_manager_raises_when_the_lock_was_lost(make, client):
    with pytest.raises(LockNotOwnedError):
        with make():
            break_lock(client)


def test_context_manager_is_silent_about_a_lost_lock_on_request(make, client):
    with make(raise_on_release_error=False):
        break_lock(client)
    assert client.execute_command("LOCK.FENCE", "foo") is not None, "it is the thief's"


def test_an_error_names_the_lock(make):
    with pytest.raises(LockError) as failure:
        make().release()
    assert failure.value.lock_name == "foo"


def test_release_of_an_unlocked_lock(make):
    with pytest.raises(LockError):
        make().release()


def test_release_twice(make):
    lock = make()
    lock.acquire()
    lock.release()
    with pytest.raises(LockError):
        lock.release()


def test_release_of_a_lock_that_another_holds_now(make, client):
    lock = make()
    lock.acquire()
    break_lock(client)
    with pytest.raises(LockNotOwnedError):
        lock.release()
    assert client.execute_command("LOCK.FENCE", "foo") is not None
    assert lock.owner is None, "the attempt ends this object's hold in any case"


def test_extend(make, client):
    lock = make(timeout=10)
    lock.acquire()
    assert lock.extend(10)
    assert 15 < lease_left(client) <= 20
    lock.release()


def test_extend_with_replacement(make, client):
    lock = make(timeout=10)
    lock.acquire()
    assert lock.extend(40, replace_ttl=True)
    assert 30 < lease_left(client) <= 40


def test_extend_by_a_fraction(make, client):
    lock = make(timeout=10.5)
    lock.acquire()
    assert lock.extend(10.5)
    assert 15 < lease_left(client) <= 21


@pytest.mark.parametrize("method, arguments", [("extend", [10]), ("reacquire", [])])
def test_only_what_is_held_is_renewed(make, client, method, arguments):
    lock = make()
    with pytest.raises(LockError):
        getattr(lock, method)(*arguments)
    lock.acquire()
    break_lock(client)
    with pytest.raises(LockNotOwnedError):
        getattr(lock, method)(*arguments)
    with pytest.raises(LockNotOwnedError):
        lock.release()
    with pytest.raises(LockError):
        getattr(lock, method)(*arguments)


def test_extend_after_the_lease_ended(make, client):
    lock = make(timeout=0.02)
    lock.acquire()
    eventually(lambda: client.exists("foo") == 0, "the lease ends")
    with pytest.raises(LockNotOwnedError):
        lock.extend(10, replace_ttl=True)
    assert client.exists("foo") == 0, "nothing is created"


def test_reacquire(make, client):
    lock = make(timeout=20)
    lock.acquire()
    lock.extend(5, replace_ttl=True)
    assert lease_left(client) <= 5
    assert lock.reacquire()
    assert 10 < lease_left(client) <= 20


def test_another_thread_has_no_part_in_a_thread_local_hold(make, client):
    lock = make()
    lock.acquire()
    failures = []

    def other_thread():
        try:
            lock.release()
        except LockError as failure:
            failures.append(failure)

    run(other_thread)
    assert len(failures) == 1
    assert lock.owned()
    lock.release()


def test_without_thread_local_any_thread_can_release(make, client):
    lock = make(thread_local=False)
    lock.acquire()
    run(lock.release)
    assert not lock.locked()
    assert client.exists("foo") == 0


def run(target):
    """Runs the target in a thread of its own."""
    thread = threading.Thread(target=target)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def test_a_counter_guarded_by_the_lock_loses_nothing(make, client):
    # The purpose of a lock: read, think, write; 6 threads, 20 times each
    client.set("counter", 0)

    def count():
        lock = make()
        for _ in range(20):
            with lock:
                seen = int(client.get("counter"))
                time.sleep(0.0005)
                client.set("counter", seen + 1)

    threads = [threading.Thread(target=count) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert int(client.get("counter")) == 120
