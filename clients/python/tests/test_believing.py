"""A client that no longer counts on its lock does not give it up: its user may still work under it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock
import redislock.redlock

from .servers import eventually
from .test_release import async_locks_of, locks_of


def releases(meddler: Any) -> list[str]:
    """The locks that somebody has released or wanted to release."""
    return [call.words[1] for call in meddler.calls("LOCK.RELEASE")]


def test_a_hold_that_is_not_renewed_lasts_until_its_lease_expires(meddler: Any) -> None:
    with locks_of(meddler.port, lease=2) as locks:
        with pytest.raises(redislock.LockLostError, match="deadline"), locks.lock("k", renew=False) as hold:
            assert hold.wait_until_lost(20) == "deadline"
            time.sleep(0.3)
            assert releases(meddler) == []
        eventually(lambda: releases(meddler) == ["k"], "the end of the block gives up what the server may have")


def test_asyncio_s_hold_that_is_not_renewed_lasts_until_its_lease_expires(meddler: Any) -> None:
    async def run() -> None:
        async with async_locks_of(meddler.port, lease=2) as locks:
            hold = await locks.lock("k", renew=False).acquire()
            assert await hold.until_lost() == "deadline"
            await asyncio.sleep(0.3)
            assert releases(meddler) == []
            with pytest.raises(redislock.LockLostError, match="deadline"):
                await hold.release()
            while releases(meddler) != ["k"]:
                await asyncio.sleep(0.01)

    asyncio.run(run())


def test_renewals_that_are_not_answered_give_nothing_up(meddler: Any, client: redis.Redis) -> None:
    with locks_of(meddler.port, lease=3) as locks:
        hold = locks.lock("k").acquire()
        eventually(lambda: meddler.calls("LOCK.RENEW"), "it is renewed")
        meddler.drop(lambda call: call.name == "LOCK.RENEW", times=1000)
        assert hold.wait_until_lost(20) == "deadline"
        assert client.execute_command("LOCK.FENCE", "k", hold.token) == 1, "the server has it for longer"
        assert releases(meddler) == []
        meddler.open()
        with pytest.raises(redislock.LockLostError):
            hold.release()
        eventually(lambda: not client.exists("k"), "it is given up")


def test_one_of_several_locks_that_is_lost_leaves_the_others(locks: redislock.Locks, client: redis.Redis) -> None:
    with pytest.raises(redislock.LockLostError, match="push"), locks.many(["k", "j"], lease=60) as hold:
        client.delete("k")
        assert hold.wait_until_lost(10) == "push"
        time.sleep(0.3)
        assert client.execute_command("LOCK.FENCE", "j", hold.token) == 1
    eventually(lambda: not client.exists("j"), "the end of the block gives it up")


def test_independent_servers_that_have_a_lost_lock_still_keep_it(start_server: Any) -> None:
    clients = [redis.Redis(port=start_server().port) for _ in range(3)]
    with redislock.redlock.Redlock(clients, lease=60) as locks:
        hold = locks.lock("k").acquire()
        for each in clients[:2]:
            each.delete("k")
        assert hold.wait_until_lost(10)
        time.sleep(0.3)
        assert clients[2].exists("k")
        with pytest.raises(redislock.LockLostError):
            hold.release()
        eventually(lambda: not clients[2].exists("k"), "it is given up")
    for each in clients:
        each.close()


def test_a_leader_gives_up_when_its_work_has_ended(server: Any, client: redis.Redis) -> None:
    may_end, elected = threading.Event(), threading.Event()

    def work(hold: redislock.Hold) -> None:
        elected.set()
        hold.wait_until_lost(20)
        may_end.wait(20)

    with locks_of(server.port, lease=60) as locks, locks.leader("leader", on_elected=work):
        assert elected.wait(20)
        hold = next(iter(locks._engines[0].core.holds))
        stolen = client.execute_command("LOCK.FENCE", "leader")
        hold._lose("deadline")  # by its own clock, while the server has it
        time.sleep(0.3)
        assert client.execute_command("LOCK.FENCE", "leader") == stolen
        may_end.set()
        eventually(lambda: client.execute_command("LOCK.FENCE", "leader") not in (None, stolen), "it leads again")


def test_asyncio_s_leader_gives_up_when_its_work_has_ended(server: Any, client: redis.Redis) -> None:
    async def run() -> None:
        elected, may_end = asyncio.Event(), asyncio.Event()

        async def work(hold: redislock.AsyncHold) -> None:
            elected.set()
            while not may_end.is_set():  # it is cancelled at the loss, and has something to tidy up
                with contextlib.suppress(asyncio.CancelledError):
                    await may_end.wait()

        async with async_locks_of(server.port, lease=60) as locks, locks.leader("leader", on_elected=work) as leader:
            await elected.wait()
            assert leader.hold is not None
            token = leader.hold.token
            leader.hold._lose("deadline")
            await asyncio.sleep(0.3)
            assert client.execute_command("LOCK.FENCE", "leader") == token
            may_end.set()
            while client.execute_command("LOCK.FENCE", "leader") in (None, token):
                await asyncio.sleep(0.01)

    asyncio.run(run())


def test_a_grant_that_came_too_late_is_given_up(meddler: Any, client: redis.Redis) -> None:
    """No user works under it, for none received it."""
    with locks_of(meddler.port, lease=0.5) as locks:
        locks.lock("warm").acquire().release()
        meddler.delay = lambda call: 0.7 if call.name == "LOCK.ACQUIRE" else 0
        with pytest.raises(redislock.LockLostError, match="deadline"):
            locks.lock("k", wait=0).acquire()
        eventually(lambda: "k" in releases(meddler), "it is given up")


def test_closing_gives_up_what_was_lost(client: redis.Redis, server: Any) -> None:
    with locks_of(server.port, lease=60) as locks:
        hold = locks.lock("k").acquire()
        hold._lose("deadline")
        assert client.exists("k")
    assert not client.exists("k")
    with pytest.raises(redislock.LockLostError, match="deadline"):
        hold.release()
