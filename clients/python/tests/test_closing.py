"""Closing, and the end of a program, take no longer than they should, whatever is held and whatever the servers do."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock
import redislock.redlock

from .servers import eventually
from .stories import play
from .test_release import locks_of

#: The time that closing may take on a busy machine; with 20 holds one after the other it took 40 seconds and more.
MOST = 15


@pytest.fixture
def stopped(start_server: Any) -> Iterator[Any]:
    """A server, and a function that stops it until the test has ended."""
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
    """Python ends the executors of asyncio when the main thread has returned; workers continue."""
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


def test_closing_waits_for_bodies_and_gives_up_nothing_that_one_works_under(
    client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    locks, inside, ends = redislock.Locks(client, lease=60), threading.Barrier(3), threading.Event()
    seen: list[tuple[str, bool]] = []

    def body(name: str, waits: Callable[[redislock.Hold], object]) -> None:
        with contextlib.suppress(redislock.LockLostError), locks.lock(name) as hold:
            inside.wait(30)
            waits(hold)
            seen.append((name, bool(client.exists(name))))

    def told(hold: redislock.Hold) -> None:
        hold.wait_until_lost(30)
        time.sleep(0.3)

    threads = [
        threading.Thread(target=body, args=["told", told]),
        threading.Thread(target=body, args=["deaf", lambda hold: ends.wait(60)]),
    ]
    for thread in threads:
        thread.start()
    inside.wait(30)
    idle = locks.lock("idle").acquire()
    began = time.monotonic()
    locks.close(3)
    assert time.monotonic() - began < 30 and idle.lost == "close"
    assert seen == [("told", True)], "it has ended under its lock"
    assert not client.exists("told", "idle") and client.exists("deaf")
    said = [record.getMessage() for record in caplog.records if "closed while" in record.getMessage()]
    assert said == ["closed while a block still works under deaf: it stays taken until its lease expires"]
    locks.close()
    ends.set()
    for thread in threads:
        thread.join(30)
    eventually(lambda: not client.exists("deaf"), "its own end gives it up")


def test_a_body_that_closes_its_own_locks_is_not_waited_for(client: redis.Redis, server: Any) -> None:
    locks = redislock.Locks(client, lease=60)
    began = time.monotonic()
    with pytest.raises(redislock.LockLostError, match="close"), locks.lock("k"):
        locks.close(30)
        assert time.monotonic() - began < 20 and not client.exists("k")

    async def run() -> None:
        other = redis.asyncio.Redis(port=server.port)
        async with other, redislock.AsyncLocks(other, lease=60) as made:
            with pytest.raises(redislock.LockLostError, match="close"):
                async with made.lock("k"):
                    await made.close(30)
                    assert time.monotonic() - began < 40 and not client.exists("k")

    asyncio.run(run())


def test_asyncio_closing_waits_for_bodies(server: Any, client: redis.Redis) -> None:
    async def run() -> None:
        other = redis.asyncio.Redis(port=server.port)
        async with other, redislock.AsyncLocks(other, lease=60) as locks:
            inside = asyncio.Event()

            async def body() -> bool:
                try:
                    async with locks.lock("k"):
                        try:
                            inside.set()
                            await asyncio.sleep(60)
                        finally:
                            await asyncio.sleep(0.3)
                            held = client.exists("k")
                except redislock.LockLostError as lost:
                    assert lost.reason == "close"
                return bool(held)

            task = asyncio.create_task(body())
            await inside.wait()
            await locks.close(30)
            assert await task, "it was held until its body had ended"
            assert not client.exists("k")

    asyncio.run(asyncio.wait_for(run(), 50))


def test_closing_at_once_asks_no_server(meddler: Any, client: redis.Redis) -> None:
    locks = redislock.Locks(redis.Redis(port=meddler.port), lease=60)
    hold = locks.lock("k").acquire()
    locks.close(0)
    assert hold.lost == "close" and client.exists("k") and not meddler.calls("LOCK.RELEASE")
    client.delete("k")


def test_a_program_that_closes_and_ends_leaves_nothing_that_a_block_held(server: Any, client: redis.Redis) -> None:
    program = (
        "import redis, redislock, sys, threading, time\n"
        "locks = redislock.Locks(redis.Redis(port=int(sys.argv[1])), lease=60)\n"
        "inside = threading.Event()\n"
        "def work():\n"
        "    with locks.lock('k'):\n"
        "        inside.set()\n"
        "        time.sleep(600)\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "inside.wait()\n"
        "locks.close(1)\n"
        "print(redis.Redis(port=int(sys.argv[1])).exists('k'))\n"
    )
    command = [sys.executable, "-c", program, str(server.port)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert ran.stdout == "1\n", ran.stderr
    assert not client.exists("k")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_process_that_ends_releases_its_hold_once(
    method: str, server: Any, client: redis.Redis, tmp_path: Any
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing, redis, redislock, sys\n"
        "def work():\n"
        "    global hold\n"
        "    hold = redislock.Locks(redis.Redis(port=int(sys.argv[1])), lease=60).lock('k').acquire()\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context(sys.argv[2]).Process(target=work)\n"
        "    process.start()\n"
        "    process.join()\n"
        "    sys.exit(process.exitcode)\n"
    )
    command = [sys.executable, program, str(server.port), method]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not client.exists("k")


def test_a_hold_that_close_has_released_is_released_no_more_when_the_program_ends(server: Any) -> None:
    program = (
        "import redis, redislock, sys\n"
        "locks = redislock.Locks(redis.Redis(port=int(sys.argv[1])), lease=60)\n"
        "hold = locks.lock('k').acquire()\n"
        "locks.close()\n"
    )
    command = [sys.executable, "-c", program, str(server.port)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_asyncio_close_gives_up_what_a_block_held_that_ends_in_the_same_turn_of_the_loop(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        inside, is_over = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            async with locks.lock("k", lease=60):
                inside.set()
                try:
                    await is_over.wait()
                except asyncio.CancelledError:
                    await is_over.wait()

        def end() -> None:
            is_over.set()
            time.sleep(0.1)  # the pauses of close() are over, too, when this turn is

        working = asyncio.create_task(work())
        await inside.wait()
        asyncio.get_running_loop().call_later(0.2, end)
        await locks.close()
        with pytest.raises(redislock.LockLostError, match="close"):
            await working
        assert not await client.exists("k")

    play(server, story)
