"""Locks that are tried, and what is asked about them: holders, waiters, versions, labels, prefixes."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock
from redislock import _table, testing
from redislock._resp import ReplyError
from redislock.redlock import Redlock

from .servers import eventually
from .stories import play


def test_a_lock_is_tried(locks: redislock.Locks, client: redis.Redis) -> None:
    lock = locks.lock("k", wait=30)
    hold = lock.try_acquire()
    assert hold is not None and hold.check() and lock.try_acquire() is None
    assert locks.many(["j", "k"]).try_acquire() is None and locks.read("k").try_acquire() is None
    assert client.execute_command("LOCK.INFO", "k")["waiters"] == 0
    hold.release()
    with pytest.raises(redislock.ServerRefusedError, match="WRONGTYPE"):
        client.set("text", "x")
        locks.lock("text").try_acquire()
    other = locks.semaphore("permits", 1).try_acquire()
    assert other is not None
    with pytest.raises(redislock.LockKindMismatchError):
        locks.semaphore("permits", 2).try_acquire()
    other.release()


def test_nothing_means_that_the_server_said_so(start_server: Any) -> None:
    server = start_server()
    with redislock.Locks(redis.Redis(port=server.port)) as locks:
        server.kill()
        with pytest.raises(redislock.ConnectionFailedError):
            locks.lock("k").try_acquire()


def test_asyncio_a_lock_is_tried_and_looked_at(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        hold = await locks.lock("k").try_acquire()
        assert hold is not None and await locks.lock("k").try_acquire() is None
        info = await locks.info("k")
        assert info is not None and [each.owner for each in info.holders] == [hold.owner]
        assert await locks.info("free") is None and (await locks.ping()).count(".") == 2
        await hold.release()

    play(server, story)


def test_info_tells_who_holds_and_who_waits(locks: redislock.Locks) -> None:
    assert locks.info("k") is None
    with locks.lock("k", owner="ann") as hold:
        waiter = threading.Thread(target=lambda: locks.lock("k", owner="ben", wait=30).acquire().release())
        waiter.start()
        eventually(lambda: locks.info("k").waiters == 1, "ben waits")  # type: ignore[union-attr]
        info = locks.info("k")
        assert info is not None and (info.kind, info.limit, info.holds) == ("exclusive", None, 1)
        (ann,), (ben,) = info.holders, info.queue
        assert (ann.owner, ann.token) == ("ann", hold.token) and 0 < ann.left <= 3 and ann.held >= 0
        assert ben.owner == "ben" and ben.waited >= 0
    waiter.join()
    with locks.semaphore("s", 3), locks.read("r"):
        permits, readers = locks.info("s"), locks.info("r")
        assert permits is not None and (permits.kind, permits.limit) == ("limit", 3)
        assert readers is not None and readers.kind == "shared"


def test_a_ping_returns_the_version(locks: redislock.Locks, server: Any, start_server: Any) -> None:
    assert locks.ping() == server.info("redislock")["redislock_version"]
    bare = start_server(with_module=False)
    with redislock.Locks(redis.Redis(port=bare.port)) as others:
        with pytest.raises(redislock.ModuleMissingError, match=rf"not loaded.*\(localhost:{bare.port}"):
            others.ping()
        bare.kill()
        with pytest.raises(redislock.ConnectionFailedError):
            others.ping()


def ping_failure(client: Any, async_client: Any) -> redislock.RedislockError:
    """The error of a ping, which is the same for asyncio."""

    async def ping() -> None:
        async with redislock.AsyncLocks(async_client, prefix="app:") as locks:
            await locks.ping()

    with pytest.raises(redislock.RedislockError) as failed:
        asyncio.run(ping())
    with redislock.Locks(client, prefix="app:") as locks, pytest.raises(type(failed.value)) as told:
        locks.ping()
    assert str(failed.value) == str(told.value)
    return told.value


@pytest.mark.parametrize("rights", ["~app:* -lock.fence", "~other:*"])
def test_a_ping_says_what_a_user_may_not(server: Any, rights: str) -> None:
    server.admin("ACL", "SETUSER", "ann", "reset", "on", ">word", "+@all", *rights.split())
    login = {"port": server.port, "username": "ann", "password": "word"}
    with redis.Redis(**login) as client, redislock.Locks(client, prefix="app:") as locks:
        failure = ping_failure(client, redis.asyncio.Redis(**login))
        server.admin("ACL", "SETUSER", "ann", "~app:*", "+lock.fence")
        assert locks.ping().count(".") == 2
    server.admin("ACL", "DELUSER", "ann")
    assert isinstance(failure, redislock.ServerRefusedError) and re.match("NOPERM.*LOCK.FENCE", str(failure))


def test_a_ping_of_a_server_that_loads_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> None:
        raise ReplyError("LOADING Redis is loading the dataset in memory")

    monkeypatch.setattr(_table.Table, "fence", load)
    failure = ping_failure(server := testing.Server(), server)
    assert isinstance(failure, redislock.ConnectionFailedError) and "LOADING" in str(failure)


def test_a_ping_succeeds_in_a_quarantine(start_server: Any) -> None:
    server = start_server("--redislock.quarantine", "60000")
    with redis.Redis(port=server.port) as client, redislock.Locks(client) as locks:
        assert locks.ping().count(".") == 2
        with pytest.raises(redislock.QuarantineError):
            locks.lock("k", wait=0).acquire()


def test_a_ping_refuses_a_replica(start_server: Any) -> None:
    replica = start_server("--replicaof", "127.0.0.1 1")
    with redis.Redis(port=replica.port) as client:
        failure = ping_failure(client, redis.asyncio.Redis(port=replica.port))
    assert isinstance(failure, redislock.ConnectionFailedError)
    assert re.search("READONLY.*this address leads to a replica", str(failure))


def test_independent_servers_are_looked_at(start_server: Any) -> None:
    servers = [start_server() for _ in range(3)]
    with Redlock([redis.Redis(port=server.port) for server in servers], label="ann") as locks:
        assert locks.ping() == servers[0].info("redislock")["redislock_version"] and locks.info("k") is None
        with locks.lock("k", wait=20) as hold:
            info = locks.info("k")
            assert info is not None and info.holders[0].owner == hold.owner and hold.owner.startswith("ann:")
        servers[0].kill()
        servers[1].kill()
        for ask in (locks.ping, lambda: locks.info("k")):
            with pytest.raises(redislock.ConnectionFailedError, match="too few of 3"):
                ask()


def test_a_prefix_stands_before_each_name(client: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    counters = redislock.Counters()
    with redislock.Locks(client, prefix="lock:", label="worker-7", hooks=counters) as locks:
        hold = locks.lock("k").acquire()
        with locks.many(["a", "b"]), locks.semaphore("s", 2):
            assert sorted(client.keys()) == ["lock:a", "lock:b", "lock:k", "lock:s"]
            assert hold.name == "k" and hold.owner.startswith("worker-7:")
            locks.check_token("k", hold.token)
            info = locks.info("k")
            assert info is not None and info.holders[0].owner == hold.owner
            with pytest.raises(redislock.FencedError, match="a live hold of 'k'"):
                locks.check_token("k", 1)
            with pytest.raises(redislock.LockTimeoutError, match=r"^k is held"):
                locks.lock("k", wait=0).acquire()
            client.delete("lock:k")
            eventually(lambda: hold.lost, "the loss is told")
            with pytest.raises(redislock.LockLostError, match="lost lock 'k'"):
                hold.check()
            with pytest.raises(redislock.LockLostError):
                hold.release()
        with locks.leader("job") as leader:
            eventually(lambda: leader.hold, "it leads")
            assert client.keys() == ["lock:job"]
    assert counters.losses == 1 and "lost 'k'" in caplog.text and "lock:k" not in caplog.text
