"""A wait for several locks: it lasts as long as it should, and no connection that goes silent ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

import redislock

from .servers import eventually


def waits(locks: redislock.Locks, wait: float | None) -> tuple[threading.Thread, list[Any]]:
    """A thread that waits for a and b, and what it gets."""
    got: list[Any] = []

    def run() -> None:
        try:
            got.append(locks.many(["a", "b"], wait=wait).acquire())
        except redislock.RedislockError as error:
            got.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, got


@pytest.mark.timeout(60)
def test_a_wait_without_an_end_outlasts_a_cut_connection(meddler: Any, client: redis.Redis) -> None:
    client.execute_command("LOCK.ACQUIRE", "a", "somebody", "PX", 60_000)
    with redis.Redis(port=meddler.port) as through, redislock.Locks(through) as locks:
        thread, got = waits(locks, None)
        time.sleep(12)
        meddler.cut()
        time.sleep(1)
        assert not got
        client.execute_command("LOCK.RELEASE", "a", "somebody")
        thread.join(10)
        got[0].release()


@pytest.mark.timeout(60)
def test_a_grant_that_is_swallowed_is_found(meddler: Any, client: redis.Redis) -> None:
    client.execute_command("LOCK.ACQUIRE", "a", "somebody", "PX", 60_000)
    with redis.Redis(port=meddler.port) as through, redislock.Locks(through) as locks:
        thread, got = waits(locks, 30)
        eventually(lambda: any(call.has("BLOCK") for call in meddler.calls("LOCK.MACQUIRE")), "it waits")
        meddler.drop(lambda call: call.is_granted(), then="silent")
        client.execute_command("LOCK.RELEASE", "a", "somebody")
        eventually(meddler.has_dropped, "the grant is swallowed")
        thread.join(10)
        got[0].release()


@pytest.mark.timeout(90)
def test_a_wait_makes_at_most_two_connections_and_keeps_its_place(meddler: Any, client: redis.Redis) -> None:
    client.execute_command("LOCK.ACQUIRE", "a", "somebody", "PX", 60_000)
    with redis.Redis(port=meddler.port) as through, redislock.Locks(through) as locks:
        thread, got = waits(locks, 60)
        eventually(lambda: any(call.has("BLOCK") for call in meddler.calls("LOCK.MACQUIRE")), "it waits")
        with locks.lock("c"):
            behind = client.execute_command("LOCK.ACQUIRE", "b", "another", "PX", 60_000, "QUEUE", 60_000)
            before = meddler.numbered
            time.sleep(9)
            assert meddler.numbered - before <= 1
        assert behind is None
        client.execute_command("LOCK.RELEASE", "a", "somebody")
        thread.join(10)
        assert got[0].check() > 0, "the other one stands behind it still"
        got[0].release()
        client.execute_command("LOCK.RELEASE", "b", "another")


def is_stopped(pid: int) -> bool:
    """Returns whether all threads of a process are stopped: a signal takes a while to reach them."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


@pytest.mark.timeout(90)
@pytest.mark.parametrize("names", ["a", "ab"], ids=["one", "many"])
def test_a_program_that_stood_still_across_its_grant_asks_again(names: str, server: Any, client: redis.Redis) -> None:
    program = (
        "import redis, redislock, sys\n"
        "locks = redislock.Locks(redis.Redis(port=int(sys.argv[1])))\n"
        "with locks.many(list(sys.argv[2]), wait=60) as hold:\n"
        "    print(hold.check() > 0)\n"
    )
    client.execute_command("LOCK.ACQUIRE", "a", "somebody", "PX", 60_000)
    command = [sys.executable, "-c", program, str(server.port), names]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        eventually(lambda: server.info("redislock")["redislock_waiters"] != "0", "it waits")
        time.sleep(0.5)
        process.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: is_stopped(process.pid), "each of its threads is stopped")
            client.execute_command("LOCK.RELEASE", "a", "somebody")
            if len(names) > 1:
                eventually(lambda: client.exists("a"), "it is granted")
                eventually(lambda: not client.exists("a"), "the grant ends")
            else:
                time.sleep(6)
        finally:
            process.send_signal(signal.SIGCONT)
        said, _ = process.communicate(timeout=40)
    assert said == "True\n"


def test_many_is_sent_once_its_owner_holds_a_lock(client: redis.Redis) -> None:
    """The server must see the owner's deadlock, even if all connections for such waits are in use."""
    with redislock.Locks(client, max_queued_per_lock=1) as locks, redislock.Locks(client) as others:

        def waiters() -> int:
            info = others.info("theirs")
            return info.waiters if info else 0

        theirs = others.lock("theirs", owner="ben").acquire()
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(locks.many(["theirs", "free"], wait=40).acquire)
            eventually(lambda: waiters() == 1, "the first one waits")
            second = pool.submit(locks.many(["theirs", "free"], owner="ann", wait=40).acquire)
            time.sleep(0.2)
            assert waiters() == 1, "the second one has no connection"
            mine = locks.lock("mine", owner="ann").acquire()
            try:
                eventually(lambda: waiters() == 2, "the second one has a connection, too", limit=5)
                with pytest.raises(redislock.DeadlockError):
                    others.lock("mine", owner="ben", wait=5).acquire()
            finally:
                theirs.release()
                first.result(20).release()
                second.result(20).release()
                mine.release()
