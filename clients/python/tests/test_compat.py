"""redislock.compat.Lock in place of redis.lock.Lock: what redis-py's own tests ask of it."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.lock
from redis.exceptions import LockError, LockNotOwnedError

from redislock import NotConfirmedError, compat

PUBLIC = ["acquire", "release", "extend", "reacquire", "locked", "owned"]


@pytest.mark.parametrize(
    ("ours", "theirs"), [(compat.Lock, redis.lock.Lock), (compat.AsyncLock, redis.asyncio.lock.Lock)]
)
def test_constructor_and_methods_are_the_same(ours: Any, theirs: Any) -> None:
    for name in ["__init__", *PUBLIC]:
        here, there = (list(inspect.signature(getattr(each, name)).parameters.items()) for each in (ours, theirs))
        assert [(key, value.default) for key, value in here] == [(key, value.default) for key, value in there], name


def test_lock_class_is_all_that_changes(client: redis.Redis, closing: None) -> None:
    lock = client.lock("foo", timeout=10, lock_class=compat.Lock)
    assert lock.acquire(blocking=False) is True
    assert lock.locked() and lock.owned()
    assert lock.local.token is not None
    other = client.lock("foo", lock_class=compat.Lock)
    assert other.acquire(blocking=False) is False and not other.owned() and other.locked()
    with pytest.raises(LockError):
        other.release()
    lock.release()
    assert not lock.locked() and not lock.owned() and lock.local.token is None


def test_context_manager_and_blocking_timeout(client: redis.Redis, closing: None) -> None:
    with client.lock("foo", blocking_timeout=0.2, lock_class=compat.Lock):
        with pytest.raises(LockError), client.lock("foo", blocking_timeout=0.1, lock_class=compat.Lock):
            pass
    with pytest.raises(LockNotOwnedError), client.lock("foo", lock_class=compat.Lock):
        client.delete("foo")
    with client.lock("foo", raise_on_release_error=False, lock_class=compat.Lock):
        client.delete("foo")
    with pytest.raises(LockError), client.lock("foo", lock_class=compat.Lock) as lock:
        lock.release()


def test_a_token_of_one_s_own(client: redis.Redis, closing: None) -> None:
    lock = client.lock("foo", timeout=10, lock_class=compat.Lock)
    assert lock.acquire(token="test")
    assert lock.local.token == b"test"
    lock.release()


def test_extend_and_reacquire(client: redis.Redis, closing: None) -> None:
    lock = client.lock("foo", timeout=10, lock_class=compat.Lock)
    with pytest.raises(LockError):
        lock.extend(1)
    assert lock.acquire(blocking=False)
    assert lock.extend(10) is True and 18_000 <= left_ms(client) <= 20_500
    assert lock.extend(5, replace_ttl=True) and 4000 <= left_ms(client) <= 5000
    assert lock.reacquire() is True and 9000 <= left_ms(client) <= 10_000
    client.delete("foo")
    with pytest.raises(LockNotOwnedError):
        lock.extend(1)
    with pytest.raises(LockNotOwnedError):
        lock.release()
    endless = client.lock("foo", lock_class=compat.Lock)
    with endless:
        for work in (endless.reacquire, lambda: endless.extend(1)):
            with pytest.raises(LockError):
                work()


def test_each_thread_has_its_own_token(client: redis.Redis, closing: None) -> None:
    lock = client.lock("foo", timeout=10, lock_class=compat.Lock)
    shared = client.lock("bar", timeout=10, thread_local=False, lock_class=compat.Lock)
    assert lock.acquire() and shared.acquire()
    seen: list[Any] = []

    def elsewhere() -> None:
        try:
            lock.release()
        except LockError as error:
            seen.append(error)
        shared.release()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(seen) == 1 and not shared.locked()
    lock.release()


def test_asyncio(server: Any) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis(port=server.port)
        async with client:
            kind: Any = compat.AsyncLock  # redis-py's types want a subclass of its own
            lock: Any = client.lock("foo", timeout=10, lock_class=kind)
            async with lock:
                assert await lock.owned() and await lock.locked()
                assert await lock.extend(10) and await lock.reacquire()
                other: Any = client.lock("foo", blocking_timeout=0.1, lock_class=kind)
                assert await other.acquire() is False
                with pytest.raises(LockError):
                    await other.__aenter__()
            assert not await lock.locked()
            with pytest.raises(LockNotOwnedError):
                async with lock:
                    await client.delete("foo")
            await compat._async_locks[client].close()

    asyncio.run(main())


@pytest.fixture
def closing(client: redis.Redis) -> Any:
    """Ends the connections of the locks that this client's lock_class made."""
    yield
    if client in compat._locks:
        compat._locks.pop(client).close()
    client.close()


def left_ms(client: redis.Redis) -> int:
    """The remaining lease by the server's clock."""
    info: Any = client.execute_command("LOCK.INFO", "foo")
    (holder,) = as_dictionary(info)["holders"]
    return int(as_dictionary(holder)["lease-left-ms"])


def as_dictionary(found: Any) -> dict[str, Any]:
    """A map of RESP3, or what stands for it in RESP2."""
    return found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))


def test_a_release_that_is_refused_does_not_hide_the_body_s_own_error(start_server: Any) -> None:
    server = start_server()
    refuse = functools.partial(server.admin, "CONFIG", "SET", "min-replicas-to-write")
    mine = redis.Redis(port=server.port)
    with pytest.raises(ZeroDivisionError), mine.lock("foo", lock_class=compat.Lock):
        refuse(1)
        raise ZeroDivisionError
    refuse(0)
    with pytest.raises(NotConfirmedError), mine.lock("foo", lock_class=compat.Lock):
        refuse(1)
    refuse(0)
    compat._locks.pop(mine).close()
    mine.close()

    async def main() -> None:
        client = redis.asyncio.Redis(port=server.port)
        kind: Any = compat.AsyncLock
        async with client:
            lock: Any = client.lock("foo", lock_class=kind)
            with pytest.raises(ZeroDivisionError):
                async with lock:
                    refuse(1)
                    raise ZeroDivisionError
            refuse(0)
            await compat._async_locks[client].close()

    asyncio.run(main())


def test_a_token_gives_no_owner_the_lock_of_another(client: redis.Redis, closing: None) -> None:
    lock, other = (client.lock("foo", timeout=10, lock_class=compat.Lock) for _ in range(2))
    assert lock.acquire(token="worker") and lock.local.token == b"worker"
    assert other.acquire(token="worker", blocking=False) is False
    assert lock.owned() and not other.owned()
    info: Any = client.execute_command("LOCK.INFO", "foo")
    (holder,) = as_dictionary(info)["holders"]
    assert as_dictionary(holder)["owner"].startswith("worker:"), "an operator sees who has it"
    lock.release()
    assert other.acquire(token="*", blocking=False) and other.local.token == b"*"
    other.release()
    other.local.token = b"worker"  # redis-py would release this one
    with pytest.raises(compat.NotHeldError):
        other.release()
    long = b"x" * 300
    assert lock.acquire(token=long) and lock.local.token == long
    lock.release()
