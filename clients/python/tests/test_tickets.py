"""Holds that one process hands on to another one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock
from redislock.redlock import Redlock

from .servers import eventually
from .stories import play

ADOPTS = """
import sys, time, redis, redislock
with redislock.Locks(redis.Redis(port={port}), lease=1) as locks, locks.adopt({ticket!r}) as hold:
    time.sleep(2)
    print(hold.token, hold.check() > 0)
"""


def test_a_hold_continues_in_another_process(server: Any, client: redis.Redis) -> None:
    with redislock.Locks(client, lease=1) as locks:
        with locks.many(["a", "b"]) as hold:
            ticket = hold.detach(20)
            assert hold.lost is None and hold.remaining == 0
            with pytest.raises(redislock.LockLostError, match="detached"):
                hold.check()
            with pytest.raises(redislock.LockLostError, match="detached"):
                hold.detach()
        told = json.loads(ticket)
        assert (told["names"], told["kind"], told["limit"]) == (["a", "b"], "exclusive", None)
        assert (told["owner"], told["token"]) == (hold.owner, hold.token)
    assert client.execute_command("LOCK.FENCE", "b", hold.token) == 1, "neither the block nor close() ends it"
    program = ADOPTS.format(port=server.port, ticket=ticket)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout == f"{hold.token} True\n", ran.stderr
    assert not client.exists("a", "b")


def test_what_a_ticket_is_for(locks: redislock.Locks, client: redis.Redis) -> None:
    with redislock.Locks(client, prefix="lock:") as others:
        ticket = others.semaphore("s", 2, lease=5).acquire().detach()
        adopted = others.adopt(ticket, lease=60)
        assert adopted.name == "s" and adopted.remaining > 50
        adopted.release()
        with pytest.raises(redislock.LockLostError, match="lost lock 's'"):
            others.adopt(ticket)
        with pytest.raises(ValueError, match="lease must be"):
            others.adopt(ticket, lease=0)
    for wrong in ("", "[]", "{}", '{"names": ["a"], "kind": "exclusive", "limit": null, "owner": "o", "token": "7"}'):
        with pytest.raises(ValueError, match="ticket must be what detach"):
            locks.adopt(wrong)


def test_nothing_is_handed_on_while_a_renewal_may_come_late(meddler: Any, client: redis.Redis) -> None:
    with redislock.Locks(redis.Redis(port=meddler.port), lease=60) as locks:
        hold = locks.lock("k").acquire()
        meddler.drop(lambda call: call.name == "LOCK.RENEW", then="silent")
        with pytest.raises(redislock.ConnectionFailedError, match="may still come late"):
            hold.detach(50)
        assert hold.check() and client.execute_command("LOCK.FENCE", "k", hold.token) == 1
        with pytest.raises(ValueError, match="lease must be"):
            hold.detach(0)
        hold.release()


def test_a_leader_and_redlock_hand_nothing_on(locks: redislock.Locks, start_server: Any) -> None:
    with locks.leader("job") as leader:
        eventually(lambda: leader.hold, "it leads")
        assert leader.hold is not None
        with pytest.raises(ValueError, match="a hold of a leader or of Redlock"):
            leader.hold.detach()
    servers = [start_server() for _ in range(3)]
    with Redlock([redis.Redis(port=server.port) for server in servers]) as group, group.lock("k", wait=20) as hold:
        with pytest.raises(ValueError, match="a hold of a leader or of Redlock"):
            hold.detach()
        with pytest.raises(ValueError, match="Redlock cannot be adopted"):
            group.adopt("{}")


def test_asyncio_a_hold_is_handed_on(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        async with locks.lock("k", lease=1) as hold:
            ticket = await hold.detach(30)
        time.sleep(1.5)
        assert await client.execute_command("LOCK.FENCE", "k", hold.token) == 1
        adopted = await locks.adopt(ticket)
        assert adopted.token == hold.token and adopted.check()
        await adopted.release()
        assert not await client.exists("k")
        with pytest.raises(redislock.LockLostError):
            await locks.adopt(ticket)

    play(server, story)
