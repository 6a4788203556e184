"""Locks that stay taken for a time, whatever becomes of their holder."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock

from .servers import eventually
from .stories import play

CRASHES = """
import os, redis, redislock
redislock.Locks(redis.Redis(port={port}), lease=1).lock("k", min_hold=30).acquire()
os._exit(0)
"""


def left(client: redis.Redis, name: str) -> float:
    """The seconds of the lease that are left."""
    info = client.execute_command("LOCK.INFO", name)
    return info["holders"][0]["lease-left-ms"] / 1000 if info else 0.0


def test_a_lock_stays_taken_after_its_release(locks: redislock.Locks, client: redis.Redis) -> None:
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError), locks.lock("k", min_hold=60) as hold:
        raise ZeroDivisionError
    assert hold.lost is None and hold.remaining == 0, "it is over, and no loss"
    with pytest.raises(redislock.LockLostError, match="release"):
        hold.check()
    assert 59.5 - (time.monotonic() - began) < left(client, "k") <= 60
    assert locks.lock("k").try_acquire() is None
    info = locks.info("k")
    assert info is not None and info.holders[0].owner == hold.owner
    client.delete("k")
    for lock in (locks.semaphore("s", 2, min_hold=60), locks.many(["a", "b"], min_hold=60)):
        lock.acquire().release()
    assert all(left(client, name) > 30 for name in ("s", "a", "b"))
    client.delete("s", "a", "b")


def test_a_lock_is_free_after_that_time(locks: redislock.Locks, client: redis.Redis) -> None:
    began = time.monotonic()
    locks.lock("k", lease=0.5, min_hold=1.5).acquire().release()
    locks.lock("k", wait=30).acquire().release()
    assert time.monotonic() - began >= 1.5
    with locks.lock("k", lease=60, min_hold=0.5):
        time.sleep(0.6)
    assert not client.exists("k")


def test_each_request_asks_for_what_is_left_of_it(server: Any, client: redis.Redis, meddler: Any) -> None:
    with redislock.Locks(redis.Redis(port=meddler.port), lease=1) as locks:
        first = locks.lock("k").acquire()
        got: list[redislock.Hold] = []
        waiter = threading.Thread(target=lambda: got.append(locks.lock("k", min_hold=30, wait=30).acquire()))
        waiter.start()
        eventually(lambda: client.execute_command("LOCK.INFO", "k")["waiters"] == 1, "it waits")
        first.release()
        waiter.join()
        (hold,) = got
        asked = [call for call in meddler.calls("LOCK.ACQUIRE") if call.words[2] == hold.owner]
        assert {int(call.words[4]) for call in asked} == {30_000}, "a waiter's first lease is as long, too"
        hold.extend(5)
        assert left(client, "k") > 20
        began = len(meddler.calls("LOCK.RENEW"))
        hold.release()
        assert len(meddler.calls("LOCK.RENEW")) == began + 1 and left(client, "k") > 20
        assert not [call for call in meddler.calls("LOCK.RELEASE") if call.words[2] == hold.owner]
    client.delete("k")


def test_without_renewal_the_first_lease_is_as_long(locks: redislock.Locks, client: redis.Redis) -> None:
    with locks.lock("k", lease=1, renew=False, min_hold=60) as hold:
        assert hold.remaining > 50 and left(client, "k") > 50
    client.delete("k")


def test_a_crash_an_end_and_a_close_leave_it_taken(locks: redislock.Locks, server: Any, client: redis.Redis) -> None:
    subprocess.run([sys.executable, "-c", CRASHES.format(port=server.port)], check=True, timeout=60)
    assert left(client, "k") > 10
    client.delete("k")
    with redislock.Locks(client, lease=1) as others:
        hold = others.lock("k", min_hold=60).acquire()
    assert hold.lost == "close" and left(client, "k") > 30
    client.delete("k")


def test_asyncio_a_lock_stays_taken_after_its_release(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        async with locks.lock("k", min_hold=60) as hold:
            pass
        assert hold.lost is None and await locks.lock("k").try_acquire() is None
        info = await locks.info("k")
        assert info is not None and info.holders[0].left > 30
        await client.delete("k")

    play(server, story)


def test_one_that_is_too_long_is_refused_by_the_setting_s_name(locks: redislock.Locks) -> None:
    words = r"min_hold .*redislock\.max-lease, or its redislock\.quarantine"
    with pytest.raises(redislock.ServerRefusedError, match=words):
        locks.lock("k", min_hold=30_000).try_acquire()
