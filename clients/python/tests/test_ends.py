"""Holds and clients that end without their user: holds that others give up, clients without a reference."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock
import redislock.redlock
from redislock import compat

from .servers import eventually


@pytest.mark.parametrize("is_held", [True, False])
def test_who_waits_for_a_loss_hears_that_the_hold_was_given_up(
    is_held: bool, locks: redislock.Locks, client: redis.Redis
) -> None:
    hold, said = locks.lock("k").acquire(), list[str | None]()
    told: list[str] = []
    hold.on_lost(told.append)
    if not is_held:
        hold.release()
    waiting = threading.Thread(target=lambda: said.append(hold.wait_until_lost()), daemon=True)
    waiting.start()
    waiting.join(0.2)
    hold.release()
    waiting.join(5)
    assert said == [None] and told == []
    assert hold.wait_until_lost() is None


def test_many_hear_of_one_loss(locks: redislock.Locks, client: redis.Redis) -> None:
    hold, said = locks.lock("k").acquire(), list[str | None]()
    waiting = [threading.Thread(target=lambda: said.append(hold.wait_until_lost(20))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    client.delete("k")
    for thread in waiting:
        thread.join()
    assert said == ["push"] * 3 and hold.wait_until_lost() == "push"


def connections(server: Any) -> int:
    return int(server.info("clients")["connected_clients"])


def test_asyncio_s_unreferenced_locks_end_their_connections(server: Any) -> None:
    async def run() -> None:
        client = redis.asyncio.Redis(port=server.port)
        async with client:
            before = connections(server)

            async def take() -> redislock.AsyncHold:
                locks = redislock.AsyncLocks(client)
                async with locks.lock("block"):
                    pass
                return await locks.lock("k").acquire()

            hold = await take()
            gc.collect()
            await asyncio.sleep(0.2)
            assert connections(server) == before + 1 and hold.check() > 0, "a hold keeps them"
            await hold.release()
            del hold
            gc.collect()
            while connections(server) > before:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_client_that_redis_py_s_locks_were_made_of_leaves_no_connection(server: Any) -> None:
    async def run() -> None:
        before = connections(server)
        for _ in range(3):
            async with redis.asyncio.Redis(port=server.port) as client:
                kind: Any = compat.AsyncLock
                lock: Any = client.lock("k", timeout=10, lock_class=kind)
                async with lock:
                    pass
            del client, lock
        gc.collect()
        while connections(server) > before:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_program_that_ends_with_asyncio_s_locks_says_nothing(server: Any, capfd: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        async with redislock.AsyncLocks(redis.asyncio.Redis(port=server.port)).lock("k"):
            pass

    asyncio.run(run())
    gc.collect()
    eventually(lambda: server.info("redislock")["redislock_holds"] == "0", "it is given up")
    assert capfd.readouterr().err == ""


def test_an_election_that_is_left_at_the_moment_of_the_grant_leaves_nothing(start_server: Any) -> None:
    servers = [start_server() for _ in range(3)]
    clients = [redis.Redis(port=server.port) for server in servers]
    with redislock.redlock.Redlock(clients, lease=60) as locks:
        leader = locks.leader("k")
        engine = locks._engine()
        granted = threading.Event()
        real = engine.core.acquire

        async def acquire(*arguments: Any) -> Any:
            grant = await real(*arguments)
            # The reply is there, and the leader, which has not looked yet, resigns in this moment.
            leader._task.cancel()  # type: ignore[union-attr]
            granted.set()
            time.sleep(0.3)
            return grant

        engine.core.acquire = acquire  # type: ignore[assignment,method-assign]
        leader.start()
        assert granted.wait(10)
        leader.resign()
        for server in servers:
            eventually(lambda server=server: server.info("redislock")["redislock_holds"] == "0", "it is given up")
    for client in clients:
        client.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_of_multiprocessing_gives_up_what_it_holds_at_its_end(
    server: Any, tmp_path: Any, method: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing, sys\n"
        "import redis, redislock\n"
        "def work(port):\n"
        "    global hold\n"
        "    hold = redislock.Locks(redis.Redis(port=port), lease=60).lock('k', wait=0).acquire()\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context(sys.argv[2])\n"
        "    for _ in range(2):\n"
        "        child = context.Process(target=work, args=(int(sys.argv[1]),))\n"
        "        child.start()\n"
        "        child.join(30)\n"
        "        assert child.exitcode == 0\n"
    )
    arguments = [sys.executable, str(program), str(server.port), method]
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert server.admin("EXISTS", "k") == 0
