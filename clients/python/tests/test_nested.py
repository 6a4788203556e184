"""A thread or task that asks for what it holds itself, where that is certain."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock

from .stories import play

KINDS = ["lock", "write", "read"]


@pytest.mark.parametrize("outer", KINDS)
@pytest.mark.parametrize("inner", KINDS)
def test_a_thread_that_holds_a_lock_asks_for_it(outer: str, inner: str, locks: redislock.Locks) -> None:
    with getattr(locks, outer)("k") as hold:
        for wait in (None, 5, 0):
            with pytest.raises(redislock.AlreadyHeldError, match=f"k: .* as {hold.owner}") as caught:
                getattr(locks, inner)("k", wait=wait).acquire()
        with pytest.raises(redislock.AlreadyHeldError), getattr(locks, inner)("k"):
            pass
        with pytest.raises(redislock.AlreadyHeldError):
            locks.many(["j", "k"]).try_acquire()
    assert isinstance(caught.value, redislock.DeadlockError)
    assert not isinstance(caught.value, redislock.ServerRefusedError)
    with getattr(locks, inner)("k", wait=0):
        pass


def test_a_call_under_a_lock_that_calls_itself(locks: redislock.Locks) -> None:
    @locks.locked("k")
    def call(times: int) -> None:
        if times:
            call(times - 1)

    with pytest.raises(redislock.AlreadyHeldError):
        call(1)
    call(0)


def test_a_semaphore_is_refused_only_if_all_is_held(locks: redislock.Locks) -> None:
    with locks.semaphore("s", 2):
        with locks.semaphore("s", 2):
            with pytest.raises(redislock.AlreadyHeldError):
                locks.semaphore("s", 2).acquire()
        with locks.semaphore("s", 2, wait=5):
            pass


def test_what_is_not_certain_is_not_refused(locks: redislock.Locks, client: redis.Redis) -> None:
    def waits() -> None:
        with pytest.raises(redislock.LockTimeoutError):
            locks.lock("k", wait=0.1).acquire()

    def generator() -> Iterator[None]:
        with locks.lock("k"):
            yield

    with locks.lock("k"):
        thread = threading.Thread(target=waits)
        thread.start()
        thread.join()
        with redislock.Locks(client) as others, pytest.raises(redislock.LockTimeoutError):
            others.lock("k", wait=0.1).acquire()
    block = contextlib.contextmanager(generator)()
    with block:  # another thread may leave it
        waits()
    with locks.lock("k") as hold:
        hold.release()
        with locks.lock("k", wait=5):
            pass
    own = locks.lock("a", owner="ann", wait=0)
    with contextlib.suppress(redislock.LockLostError), locks.lock("a", owner="ann"), own as same:
        assert same.check()


def test_a_child_does_not_hold_what_its_parent_does(locks: redislock.Locks) -> None:
    with locks.lock("k"):
        if (pid := os.fork()) == 0:
            try:
                locks.lock("k", wait=0).acquire()
            except redislock.LockTimeoutError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_an_owner_that_holds_a_read_asks_for_all(locks: redislock.Locks) -> None:
    with locks.read("k", owner="ann"), pytest.raises(redislock.AlreadyHeldError, match="LOCKHELD"):
        locks.lock("k", owner="ann", wait=0).acquire()


def test_asyncio_a_task_that_holds_a_lock_asks_for_it(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        async def waits() -> None:
            with pytest.raises(redislock.LockTimeoutError):
                await locks.lock("k", wait=0.1).acquire()

        async with locks.lock("k"):
            with pytest.raises(redislock.AlreadyHeldError):
                await locks.read("k").acquire()
            with pytest.raises(redislock.AlreadyHeldError):
                await locks.locked("k")(waits)()
            await asyncio.create_task(waits())
            await asyncio.gather(waits(), waits())
        async with locks.lock("k", wait=0):
            pass

    play(server, story)
