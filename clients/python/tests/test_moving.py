"""One address whose server changes: a name, a virtual IP, a proxy. The old primary lives on as a replica."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock

from .servers import AT_ONCE, Meddler, eventually, is_linked

#: Seconds within which a client finds the new primary, on a busy machine.
FOUND = 8.0


class Moving:
    """Two servers behind one address."""

    def __init__(self, start: Any) -> None:
        self.old, self.new = start(*AT_ONCE), start(*AT_ONCE)
        self.new.admin("REPLICAOF", "127.0.0.1", self.old.port)
        is_linked(self.new)
        self.door = Meddler(self.old.port)

    @property
    def port(self) -> int:
        """The address at which clients find the primary."""
        return int(self.door.port)

    def copied(self) -> None:
        """Waits until the replica has all."""
        wanted = self.old.info("replication")["master_repl_offset"]
        eventually(lambda: self.new.info("replication")["slave_repl_offset"] >= wanted, "the replica has all")

    def demote(self) -> None:
        """The old primary becomes a replica of the new one; the address still leads to it."""
        self.new.admin("REPLICAOF", "NO", "ONE")
        self.old.admin("REPLICAOF", "127.0.0.1", self.new.port)
        is_linked(self.old)

    def move(self) -> None:
        """The address leads to the new primary from now on. Open connections stay connected."""
        self.demote()
        self.door.target = self.new.port


@pytest.fixture
def moving(start_server: Any) -> Iterator[Moving]:
    made = Moving(start_server)
    yield made
    made.door.close()


def test_threads_follow_the_address(moving: Moving) -> None:
    with redis.Redis(port=moving.port) as client, redislock.Locks(client, lease=6) as locks:
        held = locks.lock("held").acquire()
        with locks.lock("known", wait=2):
            pass
        eventually(lambda: moving.door.calls("LOCK.FENCE"), "the connection that renews is there")
        time.sleep(0.5)
        moving.copied()
        moving.move()
        began = time.monotonic()
        with locks.lock("taken at once", wait=0):
            pass
        with locks.lock("taken", wait=FOUND):
            pass
        with locks.many(["one", "two"], wait=FOUND):
            pass
        assert time.monotonic() - began < FOUND
        time.sleep(6.5)
        assert held.check() > 0, "it is renewed at the new primary"
        held.release()
        assert moving.new.admin("EXISTS", "held") == 0


@pytest.mark.parametrize("names", [["k"], ["k", "other"]])
def test_a_waiter_follows_the_address(moving: Moving, names: list[str]) -> None:
    async def run() -> None:
        client = redis.asyncio.Redis(port=moving.port)
        async with client, redislock.AsyncLocks(client, lease=3) as locks:
            holder = await locks.lock("k").acquire()
            waiting = asyncio.create_task(locks.many(names, wait=30).acquire())
            await asyncio.to_thread(eventually, lambda: moving.old.info("redislock")["redislock_waiters"] != "0")
            await asyncio.sleep(0.5)
            moving.copied()
            await asyncio.to_thread(moving.move)
            await asyncio.sleep(4)
            assert holder.check() > 0
            await holder.release()
            async with asyncio.timeout(FOUND):
                hold = await waiting
            assert moving.new.admin("EXISTS", "k") == 1
            await hold.release()

    asyncio.run(run())


def test_a_leader_continues_to_lead(moving: Moving) -> None:
    reasons: list[str] = []
    elected = threading.Event()
    with redis.Redis(port=moving.port) as client, redislock.Locks(client, lease=12) as locks:
        with locks.leader("job", on_elected=lambda _: elected.set(), on_deposed=reasons.append) as leader:
            assert elected.wait(10)
            moving.copied()
            moving.move()
            time.sleep(13)
            assert leader.hold is not None
            assert reasons == []
        assert moving.new.admin("EXISTS", "job") == 0


def test_few_connections_are_made_to_a_demoted_server(moving: Moving) -> None:
    with redis.Redis(port=moving.port) as client, redislock.Locks(client, lease=60) as locks:
        with locks.lock("known", wait=2):
            pass
        held = locks.lock("held").acquire()
        time.sleep(0.5)
        moving.copied()
        moving.demote()
        before, began = moving.door.numbered, time.monotonic()
        threads = []
        for names in (["a"], ["b"], ["c", "d"], ["e", "f"]):
            request = locks.many(names, wait=3)
            threads.append(threading.Thread(target=lambda request=request: fails(request)))
            threads[-1].start()
        while time.monotonic() - began < 3:
            fails(locks.lock("g", wait=0))
        for thread in threads:
            thread.join()
        assert moving.door.numbered - before < 10 * (time.monotonic() - began)
        moving.door.target = moving.new.port
        held.extend(60)
        held.release()


def fails(lock: redislock.Lock) -> None:
    """Asks a replica for a lock."""
    with pytest.raises(redislock.ConnectionFailedError, match="READONLY"):
        lock.acquire()


@pytest.mark.parametrize("kind", ["locks", "many", "fence"])
def test_no_token_of_a_replica_that_is_being_filled_is_dead(moving: Moving, kind: str) -> None:
    """A replica forgets all before it is sent all again, and says 0 of each token then."""
    moving.demote()
    names = ["a", "b"] if kind == "many" else ["a"]
    with redis.Redis(port=moving.port) as client, redislock.Locks(client, lease=20) as locks:
        moving.door.target = moving.new.port
        hold = locks.many(names).acquire()
        # The old one has no data set: its primary is not there. So it says 0.
        moving.old.admin("REPLICAOF", "127.0.0.1", 1)
        moving.old.admin("CONFIG", "SET", "replica-read-only", "no")
        moving.old.admin("FLUSHALL")
        moving.old.admin("CONFIG", "SET", "replica-read-only", "yes")
        moving.door.target = moving.old.port
        moving.door.cut()
        eventually(lambda: moving.door.calls("HELLO")[-1].sent > time.monotonic() - 5, "it has connected again")
        if kind == "fence":
            later = threading.Timer(1, lambda: setattr(moving.door, "target", moving.new.port))
            later.start()
            locks.check_token("a", hold.token)
            later.join()
        time.sleep(3)
        assert hold.lost is None
        assert any(call.reply == b":0\r\n" for call in moving.door.calls("LOCK.FENCE")), "it was told a 0"
        moving.door.target = moving.new.port
        hold.extend(20)
        hold.release()


def test_a_quarantine_leads_to_another_look(moving: Moving) -> None:
    with redis.Redis(port=moving.port) as client, redislock.Locks(client, lease=3) as locks:
        with locks.lock("known", wait=2):
            pass
        time.sleep(1.2)  # its connections are no new ones
        moving.move()
        moving.old.admin("CONFIG", "SET", "redislock.quarantine", 600_000)
        moving.old.admin("REPLICAOF", "NO", "ONE")
        with pytest.raises(redislock.QuarantineError):
            redislock.Locks(redis.Redis(port=moving.old.port)).lock("k", wait=0).acquire()
        for wait in (0, FOUND):
            with locks.lock(f"k{wait}", wait=wait):
                pass
