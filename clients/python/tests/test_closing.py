"""Closing, and the end of a program, take no longer than they should, whatever is held and whatever the servers do."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock
import redislock.redlock

from .test_release import locks_of

#: What closing may take on a busy machine; with 20 holds one behind the other it took 40 seconds and more.
MOST = 15


@pytest.fixture
def stopped(start_server: Any) -> Iterator[Any]:
    """A server, and what stops it until the test is over."""
    server = start_server()
    yield server, lambda: server.process.send_signal(signal.SIGSTOP)
    server.process.send_signal(signal.SIGCONT)


def test_closing_with_many_holds_and_a_stopped_server(stopped: Any) -> None:
    server, stop = stopped
    with redis.Redis(port=server.port) as client:
        for timeout, most in ((None, MOST), (0.5, 5), (0, 5)):
            locks = redislock.Locks(client, lease=60)
            holds = [locks.lock(f"{timeout}.{number}").acquire() for number in range(20)]
            waiting = threading.Thread(target=lambda each=locks: _waits(each))
            waiting.start()
            time.sleep(0.2)
            stop()
            began = time.monotonic()
            locks.close() if timeout is None else locks.close(timeout)
            assert time.monotonic() - began < most
            assert {hold.lost for hold in holds} == {"close"}
            server.process.send_signal(signal.SIGCONT)
            waiting.join(20)
            assert not waiting.is_alive()


def _waits(locks: redislock.Locks) -> None:
    with pytest.raises(redislock.LocksClosedError):
        locks.lock(next(iter(locks._engines[0].core.holds)).name).acquire()


def test_asyncio_closes_with_many_holds_and_a_stopped_server(stopped: Any) -> None:
    server, stop = stopped

    async def run() -> None:
        client = redis.asyncio.Redis(port=server.port)
        locks = redislock.AsyncLocks(client, lease=60)
        holds = [await locks.lock(str(number)).acquire() for number in range(20)]
        stop()
        began = time.monotonic()
        await locks.close(0.5)
        assert time.monotonic() - began < 5
        assert {hold.lost for hold in holds} == {"close"}
        await client.aclose()

    asyncio.run(asyncio.wait_for(run(), 50))


def test_independent_servers_that_are_stopped(start_server: Any) -> None:
    servers = [start_server() for _ in range(3)]
    clients = [redis.Redis(port=server.port) for server in servers]
    locks = redislock.redlock.Redlock(clients, lease=60)
    for number in range(10):
        hold = locks.lock(str(number)).acquire()
        hold.on_lost(lambda _: None)
    for server in servers:
        server.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    locks.close()
    took = time.monotonic() - began
    for server in servers:
        server.process.send_signal(signal.SIGCONT)
    assert took < MOST
    for client in clients:
        client.close()


def test_a_program_with_many_holds_ends_though_its_server_is_stopped(stopped: Any) -> None:
    server, stop = stopped
    program = (
        "import redis, redislock, sys\n"
        "client = redis.Redis(port=int(sys.argv[1]))\n"
        "locks = [redislock.Locks(client, lease=60) for _ in range(4)]\n"
        "holds = [each.lock(f'{n}.{m}').acquire() for n, each in enumerate(locks) for m in range(5)]\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    arguments = [sys.executable, "-c", program, str(server.port)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "held\n"
        stop()
        began = time.monotonic()
        child.stdin.close()
        assert child.wait(50) == 0
        assert time.monotonic() - began < MOST


def test_closing_gives_up_all_side_by_side(meddler: Any, client: redis.Redis) -> None:
    with locks_of(meddler.port, lease=60) as locks:
        holds = [locks.lock(f"k{number}").acquire() for number in range(20)]
        meddler.delay = lambda call: 0.4 if call.name == "LOCK.RELEASE" else 0
        locks.close()
        assert client.dbsize() == 0 and len(holds) == 20
    assert len(meddler.calls("LOCK.RELEASE")) == 20


def test_closing_does_not_wait_for_a_hook(start_server: Any) -> None:
    server = start_server()
    may_end = threading.Event()

    class Slow(redislock.Hooks):
        def lost(self, name: str, held: float, reason: str) -> None:
            may_end.wait(20)

    with redis.Redis(port=server.port) as client:
        locks = redislock.Locks(client, hooks=Slow(), lease=60)
        hold = locks.lock("k").acquire()
        began = time.monotonic()
        locks.close(1)
        took = time.monotonic() - began
        may_end.set()
        assert took < 10 and hold.lost == "close"


@pytest.mark.parametrize("timeout", [None, "5", -1, float("nan")])
def test_what_is_no_time_to_close_in_is_refused(timeout: Any, locks: redislock.Locks) -> None:
    with pytest.raises((TypeError, ValueError), match="timeout must be a number of seconds"):
        locks.close(timeout)
    with locks.lock("k") as hold:
        assert hold.check()
    others = redislock.AsyncLocks(redis.asyncio.Redis())
    with pytest.raises((TypeError, ValueError), match="timeout must be a number of seconds"):
        asyncio.run(others.close(timeout))


def test_threads_that_outlive_the_main_thread_connect_by_name(server: Any, client: redis.Redis) -> None:
    """Python ends the executors of asyncio when the main thread has returned; workers go on."""
    program = (
        "import redis, redislock, sys, threading, time\n"
        "client = redis.Redis('localhost', int(sys.argv[1]))\n"
        "locks = redislock.Locks(client, lease=3)\n"
        "def work():\n"
        "    hold = locks.lock('held', wait=5).acquire()\n"
        "    threading.main_thread().join()\n"
        "    client.client_kill_filter(_type='normal', skipme=True)\n"
        "    time.sleep(5)\n"
        "    hold.check()\n"
        "    with locks.lock('k', wait=5), locks.many(['a', 'b'], wait=5):\n"
        "        print('taken', flush=True)\n"
        "threading.Thread(target=work).start()\n"
    )
    arguments = [sys.executable, "-c", program, str(server.port)]
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.stdout, ran.returncode) == ("taken\n", 0), ran.stderr
    assert client.dbsize() == 0


def test_locks_of_asyncio_need_no_executor_of_the_loop(server: Any) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        client = redis.asyncio.Redis(host="localhost", port=server.port)
        async with client, redislock.AsyncLocks(client, lease=3) as locks:
            hold = await locks.lock("held").acquire()
            await loop.shutdown_default_executor()
            server.admin("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await asyncio.sleep(4)
            hold.check()
            await hold.release()
        async with redislock.AsyncLocks(redis.asyncio.Redis(host="localhost", port=server.port)) as others:
            await (await others.lock("k", wait=5).acquire()).release()

    asyncio.run(asyncio.wait_for(run(), 60))
