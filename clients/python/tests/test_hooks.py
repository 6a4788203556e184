"""The events that programs receive, and the calls that they may make in them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import redis

import redislock
from redislock import testing

from .servers import eventually

#: Loses the lock k, whose hook ends the thread in which it runs. The lock "other" has to outlive that.
ENDS_IN_A_HOOK = """
import sys, time, redis, redislock

class Ends(redislock.Hooks):
    def lost(self, name, held, reason):
        if name == "k":
            {what}

client = redis.Redis(port={port})
locks = redislock.Locks(client, lease=1, hooks=Ends())
other = locks.lock("other", wait=5).acquire()
hold = locks.lock("k", wait=5).acquire()
client.delete("k")
assert hold.wait_until_lost(10), "nobody told of the loss"
time.sleep(2)
print(other.check() > 0 and locks.check_token('other', other.token) is None)
"""


@pytest.mark.parametrize("what", ["sys.exit()", "raise KeyboardInterrupt"])
def test_a_hook_cannot_end_the_thread_that_renews(what: str, server: Any, client: redis.Redis) -> None:
    program = ENDS_IN_A_HOOK.format(port=server.port, what=what)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr
    assert "the hook lost failed" in ran.stderr
    assert not client.exists("other"), "it is given up at the end"


def test_all_hooks_name_the_first_of_several_locks(client: redis.Redis) -> None:
    told: list[tuple[str, str]] = []

    class Told(redislock.Hooks):
        def __getattribute__(self, hook: str) -> Any:
            return lambda name, *_: told.append((hook, name))

    with redislock.Locks(client, hooks=Told()) as locks:
        held = locks.many(["b", "a"]).acquire()
        with pytest.raises(redislock.LockTimeoutError):
            locks.many(["b", "a"], wait=0.1).acquire()
        held.release()
        lost = locks.many(["b", "a"]).acquire()
        client.delete("a")
        assert lost.wait_until_lost(10)
    first, second = ["requested", "granted"], ["requested", "waiting", "timed_out", "released"]
    assert told == [(hook, "b") for hook in (*first, *second, *first, "lost")]


def test_an_interruption_comes_out_of_a_hook_that_it_meets(server: Any, client: redis.Redis) -> None:
    class Interrupted(redislock.Hooks):
        def timed_out(self, name: str, waited: float) -> None:
            raise KeyboardInterrupt

    with (
        redislock.Locks(client, hooks=Interrupted()) as locks,
        locks.lock("k").acquire(),
        pytest.raises(KeyboardInterrupt),
    ):
        locks.lock("k", wait=0).acquire()


def test_an_interruption_just_after_a_grant_gives_it_up(client: redis.Redis) -> None:
    class Interrupted(redislock.Hooks):
        def granted(self, name: str, waited: float) -> None:
            raise KeyboardInterrupt

    with redislock.Locks(client, hooks=Interrupted()) as locks:
        with pytest.raises(KeyboardInterrupt):
            locks.lock("k", wait=0).acquire()
        eventually(lambda: not client.exists("k"), "it is given up")


def test_an_interruption_just_after_a_hold_ends_no_renewals(
    locks: redislock.Locks, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    other = locks.lock("other", lease=1).acquire()
    with monkeypatch.context() as patched:
        patched.setattr(redislock.Hold, "_pin", interrupt)  # it comes last, when the hold is looked after
        with pytest.raises(KeyboardInterrupt):
            locks.lock("k", wait=0, renew=False).acquire()
    eventually(lambda: not client.exists("k"), "it is given up")
    assert other.wait_until_lost(3) is None and other.check() > 0
    other.release()


def test_a_grant_while_the_locks_are_closed_is_reported_and_given_up(client: redis.Redis) -> None:
    granted = threading.Event()

    class Slow(redislock.Hooks):
        def granted(self, name: str, waited: float) -> None:
            granted.set()
            time.sleep(0.3)

    locks, holds = redislock.Locks(client, hooks=Slow()), []
    taking = threading.Thread(target=lambda: holds.append(locks.lock("k", wait=0).acquire()))
    taking.start()
    assert granted.wait(5)
    locks.close()
    taking.join()
    assert [hold.lost for hold in holds] == ["close"] and not client.exists("k")


def test_slow_calls_at_a_loss_do_not_keep_other_locks_from_being_renewed(server: Any, client: redis.Redis) -> None:
    # A name, not an address: the event loop must look it up when it reconnects.
    with redislock.Locks(redis.Redis("localhost", server.port), lease=2) as locks:
        end, called = threading.Event(), list[str]()

        def work(reason: str) -> None:
            called.append(reason)
            end.wait(20)

        names = [f"k{number}" for number in range(50)]
        for name in names:
            locks.lock(name).acquire().on_lost(work)
        other = locks.lock("other").acquire()
        client.delete(*names)
        eventually(lambda: len(called) >= 5, "some are called")
        client.client_kill_filter(_type="normal", skipme=True)
        try:
            assert other.wait_until_lost(3) is None and other.check() > 0
        finally:
            end.set()
        eventually(lambda: len(called) == 50, "all are called")
        other.release()


#: A hook asks a server, which only the thread could do in which the hook runs.
ASKS_IN_A_HOOK = """
import time, redis, redislock

class Asks(redislock.Hooks):
    def lost(self, name, held, reason):
        {what}

client = redis.Redis(port={port})
locks = redislock.Locks(client, lease=1, hooks=Asks())
other, taken = locks.lock("other").acquire(), locks.lock("taken").acquire()
hold = locks.lock("k").acquire()
client.delete("k")
assert hold.wait_until_lost(10), "nobody told of the loss"
time.sleep(2)
print(other.check() > 0 and locks.check_token('other', other.token) is None)
"""


@pytest.mark.parametrize(
    "what", ["locks.check_token('k', 1)", "locks.lock('taken', wait=60).acquire()", "locks.close()"]
)
def test_a_hook_that_would_wait_for_itself_gets_an_error(what: str, server: Any, client: redis.Redis) -> None:
    program = ASKS_IN_A_HOOK.format(port=server.port, what=what)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr
    assert "RuntimeError: a hook must not ask a server" in ran.stderr
    assert not client.exists("other", "taken"), "they are given up at the end"


def test_each_acquire_is_told_from_its_beginning_to_its_one_end() -> None:
    told: list[str] = []

    class Told(redislock.Hooks):
        def __getattribute__(self, hook: str) -> Any:
            return lambda *_: told.append(hook)

    server = testing.Server()
    with redislock.Locks(server, hooks=Told()) as locks:
        with locks.leader("job") as leader:
            eventually(lambda: leader.hold, "it leads")
        with locks.semaphore("s", 2), pytest.raises(redislock.LockKindMismatchError):
            locks.lock("s").acquire()
        with redislock.Locks(server) as others, others.lock("job"):
            with locks.leader("job"):
                eventually(lambda: told[-1] == "waiting", "it stands")

    async def story() -> None:
        async with redislock.AsyncLocks(server) as others, others.lock("k"):
            async with redislock.AsyncLocks(server, hooks=Told()) as locks, locks.lock("j"):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await locks.lock("k").acquire()

    led, refused = ["requested", "granted", "released"], ["requested", "granted", "requested", "failed", "released"]
    assert told == [*led, *refused, "requested", "waiting", "failed"]
    told.clear()
    asyncio.run(story())
    assert told == ["requested", "granted", "requested", "waiting", "failed", "released"]


def test_hooks_report_detach_in_one_process_and_adopt_in_the_other() -> None:
    told: list[tuple[str, str]] = []

    class Told(redislock.Hooks):
        def __getattribute__(self, hook: str) -> Any:
            return lambda name, *_: told.append((hook, name))

    async def story() -> None:
        async with redislock.AsyncLocks(server, hooks=Told()) as locks:
            await (await locks.adopt(await (await locks.lock("k").acquire()).detach())).release()

    server = testing.Server()
    with redislock.Locks(server, hooks=Told()) as locks:
        locks.adopt(locks.lock("k").acquire().detach()).release()
    once = [(hook, "k") for hook in ("requested", "granted", "detached", "adopted", "released")]
    assert told == once
    asyncio.run(story())
    assert told == 2 * once
