"""The fields of errors in addition to their text: the lock, its holder, the server, the cause."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock

from .servers import Port, eventually
from .stories import play


def test_a_time_out_tells_who_holds_the_lock_and_since_when(locks: redislock.Locks) -> None:
    for ask in (locks.lock("k", wait=0.1), locks.many(["j", "k"], wait=0.1)):
        with locks.lock("k", owner="ann").acquire() as hold:
            with pytest.raises(redislock.LockTimeoutError, match=r"within 0\.1 s: held by ann for 0 s") as late:
                ask.acquire()
            info = late.value.info
            assert info is not None and (info.holders[0].owner, info.holders[0].token) == ("ann", hold.token)
    assert late.value.lock == "j, k"


def test_a_time_out_says_less_where_that_is_not_allowed(client: redis.Redis, server: Any) -> None:
    client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-lock.info")
    client.execute_command("LOCK.ACQUIRE", "k", "somebody", "PX", 60_000)
    with redis.Redis(port=server.port, username="app", password="secret") as other, redislock.Locks(other) as locks:
        with pytest.raises(redislock.LockTimeoutError, match=r"^k could not be acquired within 0\.1 s$") as late:
            locks.lock("k", wait=0.1).acquire()
        assert late.value.info is None
    client.execute_command("LOCK.RELEASE", "k", "somebody")
    client.execute_command("ACL", "DELUSER", "app")


def test_a_refusal_names_the_lock_and_the_server(locks: redislock.Locks, client: redis.Redis, server: Any) -> None:
    client.set("text", "x")
    for ask in (locks.lock("text", wait=0).acquire, locks.lock("text").acquire, lambda: locks.check_token("text", 1)):
        with pytest.raises(redislock.ServerRefusedError, match=r"prefix; .*-strings \(lock 'text'") as refused:
            ask()
        assert (refused.value.lock, refused.value.host, refused.value.port) == ("text", "localhost", server.port)
    with locks.semaphore("s", 2), pytest.raises(redislock.LockKindMismatchError, match=r"\(lock 's'\)$"):
        locks.lock("s", wait=0).acquire()
    hold = locks.lock("k").acquire()
    with pytest.raises(redislock.ServerRefusedError) as beyond:
        hold.extend(100_000)
    assert beyond.value.lock == "k" and beyond.value.port == server.port
    client.delete("k")
    eventually(lambda: hold.lost, "the loss is told")
    with pytest.raises(redislock.LockLostError, match="lost lock 'k'") as lost:
        hold.release()
    assert (lost.value.lock, lost.value.token, lost.value.reason) == ("k", hold.token, "push")


def test_no_answer_names_the_lock_the_server_and_the_cause() -> None:
    port = Port()
    try:
        with redislock.Locks(redis.Redis("127.0.0.1", port.number)) as locks:
            with pytest.raises(redislock.ConnectionFailedError, match=r"\(lock 'k'\)$") as failed:
                locks.lock("k", wait=0).acquire()
        assert (failed.value.lock, failed.value.host, failed.value.port) == ("k", "127.0.0.1", port.number)
        assert isinstance(failed.value.__cause__, OSError)
    finally:
        port.give_back()


def test_asyncio_errors_have_the_same_fields(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        async with locks.lock("k", owner="ann"):
            with pytest.raises(redislock.LockTimeoutError, match="held by ann for 0 s") as late:
                await asyncio.create_task(locks.lock("k", wait=0.1).acquire())
            assert late.value.info is not None and late.value.lock == "k"
        await client.set("text", "x")
        with pytest.raises(redislock.ServerRefusedError, match=r"'text'\)$") as refused:
            await locks.lock("text").acquire()
        assert (refused.value.lock, refused.value.port) == ("text", server.port)

    play(server, story)
