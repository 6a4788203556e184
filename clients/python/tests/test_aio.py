"""Locks for asyncio, against a real server; cancelled at each step."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey.asyncio

import redislock

from .servers import eventually
from .stories import play


def test_a_lock_is_held_and_given_up(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        async with locks.lock("k", wait=5) as hold:
            assert await client.execute_command("LOCK.FENCE", "k", hold.token) == 1
            assert hold.check() > 2.5
            with pytest.raises(redislock.LockTimeoutError):
                await asyncio.create_task(locks.lock("k", wait=0).acquire())
            await locks.check_token("k", hold.token)
        assert not await client.exists("k")
        with pytest.raises(redislock.FencedError):
            await locks.check_token("k", hold.token)

    play(server, story)


def test_a_loss_cancels_the_body_which_ends_in_lock_lost(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        seen: list[str] = []
        with pytest.raises(redislock.LockLostError) as caught:
            async with locks.lock("k") as hold:
                hold.on_lost(seen.append)
                await client.delete("k")
                try:
                    await asyncio.sleep(30)
                except asyncio.CancelledError:
                    seen.append("cancelled")
                    raise
        assert caught.value.reason == "push" and seen == ["push", "cancelled"]
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        await asyncio.sleep(0)  # nothing is left of the cancellation

    play(server, story)


def test_a_lost_lock_raises_unless_the_body_raises_an_error_itself(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        with pytest.raises(redislock.LockLostError):
            async with locks.lock("k"):
                await client.delete("k")
                try:
                    await asyncio.sleep(30)
                except asyncio.CancelledError:
                    pass
        with pytest.raises(ZeroDivisionError):
            async with locks.lock("k"):
                await client.delete("k")
                try:
                    await asyncio.sleep(30)
                except asyncio.CancelledError:
                    raise ZeroDivisionError from None
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0

    play(server, story)


def test_a_look_after_the_deadline_reports_the_loss_and_cancels_nothing_later(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        import time

        with pytest.raises(redislock.LockLostError, match="deadline"):
            async with locks.lock("k", lease=0.2, renew=False) as hold:
                time.sleep(0.3)  # the event loop stands still
                hold.check()
        await asyncio.sleep(0.05)
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0

    play(server, story)


def test_a_cancellation_from_outside_stays_a_cancellation(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        inside = asyncio.Event()

        async def work() -> None:
            async with locks.lock("k"):
                inside.set()
                await asyncio.sleep(30)

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not await client.exists("k")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), locks.lock("k"):
                await asyncio.sleep(30)
        assert not await client.exists("k")

    play(server, story)


@pytest.mark.parametrize("wait", [0, 5])
def test_cancelled_at_each_turn_of_the_event_loop(server: Any, wait: float) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        outcomes = set()

        async def work() -> None:
            async with locks.lock("k", wait=wait):
                await asyncio.sleep(0)

        for turns in range(60):
            task = asyncio.create_task(work())
            for _ in range(turns // 2):
                await asyncio.sleep(0)
            if turns % 2:
                await asyncio.sleep(turns / 20_000)
            task.cancel()
            outcomes.add(type((await asyncio.gather(task, return_exceptions=True))[0]))
            await is_free(client, "k")
        assert asyncio.CancelledError in outcomes

    play(server, story, lease=60)  # longer than is waited for a lock to be free


def test_cancelled_while_waiting_and_just_after_the_grant(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        for number in range(60):
            async with locks.lock("k"):
                task = asyncio.create_task(locks.lock("k", wait=20).acquire())
                await asyncio.sleep(0.005)
            for _ in range(number % 12):
                await asyncio.sleep(0.0002)
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(outcome, redislock.AsyncHold):
                await outcome.release()
            await is_free(client, "k")

    play(server, story, lease=60)  # longer than is waited for a lock to be free


def test_a_release_completes_though_its_task_is_cancelled(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        for turns in range(8):
            hold = await locks.lock("k").acquire()
            task = asyncio.create_task(hold.release())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if turns:
                await is_free(client, "k")
            else:
                await hold.release()  # it had not begun

    play(server, story)


def test_close_waits_for_a_release_that_is_underway(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        hold = await locks.lock("k").acquire()
        task = asyncio.create_task(hold.release())
        await asyncio.sleep(0)
        await locks.close()
        await task
        await is_free(client, "k")

    play(server, story)


def test_a_program_that_ends_leaves_nothing(server: Any) -> None:
    async def main() -> None:
        locks = redislock.AsyncLocks(redis.asyncio.Redis(port=server.port))
        async with locks.lock("k"):
            task = asyncio.create_task(locks.lock("k").acquire())
            await asyncio.sleep(0.1)
            assert not task.done()
        await task

    async def killed() -> None:
        locks = redislock.AsyncLocks(redis.asyncio.Redis(port=server.port))
        async with locks.lock("j"):
            other = asyncio.create_task(locks.lock("j").acquire())  # from Python 3.12 on, wait_for alone makes no task
            await asyncio.wait_for(other, 0.1)

    with pytest.raises(TimeoutError):
        asyncio.run(killed())  # and with it the loop, while a release is on its way
    eventually(lambda: server.info("redislock")["redislock_holds"] == "0", "all is given up")
    asyncio.run(main())
    server.admin("DEL", "k")  # the last one never gave it up


def test_five_hundred_tasks_wait_over_one_connection_in_order(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        order: list[int] = []

        async def work(number: int) -> None:
            async with locks.lock("k"):
                order.append(number)

        async with locks.lock("k"):
            tasks = [asyncio.create_task(work(number)) for number in range(500)]
            await asyncio.sleep(0.3)
            info = await client.info("clients")
            assert info["connected_clients"] <= 3
        await asyncio.gather(*tasks)
        assert order == list(range(500))

    play(server, story, lease=30)


def test_a_hold_after_a_wait_counts_from_a_renewal(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        before = await calls(client, "lock.renew")
        async with locks.lock("k"):
            waits = asyncio.create_task(locks.lock("k").acquire())
            await asyncio.sleep(0.1)
        hold = await waits
        assert hold.remaining > 29, "it was granted with a short lease, and renewed to its full length"
        assert await calls(client, "lock.renew") == before + 1
        await hold.release()

    play(server, story, lease=30)


def test_many_are_waited_for_and_cancelled(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        async with locks.lock("b"):
            waits = asyncio.create_task(locks.many(["a", "b"]).acquire())
            gives_up = asyncio.create_task(locks.many(["b", "c"]).acquire())
            late = asyncio.create_task(locks.many(["b", "d"], wait=0.2).acquire())
            await asyncio.sleep(0.3)
            gives_up.cancel()
            await asyncio.gather(gives_up, return_exceptions=True)
            with pytest.raises(redislock.LockTimeoutError):
                await late
        async with asyncio.timeout(10):
            hold = await waits
        assert hold.remaining > 2
        await client.delete("a")
        assert await hold.until_lost() == "push"
        with pytest.raises(redislock.LockLostError):
            await hold.release()
        async with asyncio.timeout(1):  # its lease ends later
            await is_free(client, "b")  # the rest is given up, too

    play(server, story)


def test_kinds_and_decorator(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        async with locks.read("k"):
            other = await asyncio.create_task(locks.read("k").acquire())
            with pytest.raises(redislock.LockTimeoutError):
                await asyncio.create_task(locks.write("k", wait=0.05).acquire())
            await other.release()
        async with locks.semaphore("s", 1):
            with pytest.raises(redislock.LockTimeoutError):
                await asyncio.create_task(locks.semaphore("s", 1, wait=0).acquire())

        @locks.locked("report:{number}", wait=0, busy="skip")
        async def report(number: int) -> int:
            return number

        assert await report(3) == 3
        hold = await locks.lock("report:3").acquire()
        assert await report(3) is None
        await hold.release()

    play(server, story)


def test_a_leader(server: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        events: asyncio.Queue[str] = asyncio.Queue()

        async def lead(hold: redislock.AsyncHold) -> None:
            events.put_nowait("elected")
            try:
                await asyncio.sleep(30)
            finally:
                events.put_nowait("ended")

        async def lost(reason: str) -> None:
            events.put_nowait(reason)

        async with locks.leader("job", on_elected=lead, on_deposed=lost) as leader:
            assert await events.get() == "elected" and leader.hold is not None
            await client.delete("job")
            assert [await events.get() for _ in range(3)] == ["ended", "push", "elected"]
        assert await events.get() == "ended"
        assert not await client.exists("job")

    play(server, story)


def test_connections_that_are_cut_again_and_again(server: Any, door: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        async with locks.lock("k") as hold:
            waits = asyncio.create_task(locks.lock("k", wait=20).acquire())
            for _ in range(6):
                await asyncio.sleep(0.3)
                door.cut()
                door.mend()
            assert hold.check() > 0
            assert await client.execute_command("LOCK.FENCE", "k", hold.token) == 1
        async with asyncio.timeout(10):
            await (await waits).release()

    play(server, story, port=door.port)


def test_a_server_that_falls_silent(server: Any, door: Any) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        hold = await locks.lock("k", lease=1).acquire()
        door.stall("onward", "back")
        with pytest.raises(redislock.ConnectionFailedError):
            await locks.lock("other", wait=0.1).acquire()
        assert await hold.until_lost() == "deadline"
        door.mend()
        with pytest.raises(redislock.LockLostError):
            await hold.release()
        await is_free(client, "k")
        await is_free(client, "other")

    play(server, story, port=door.port)


def test_the_other_driver(server: Any) -> None:
    async def main() -> None:
        client = valkey.asyncio.Valkey(port=server.port)
        async with client, redislock.AsyncLocks(client) as locks, locks.lock("k") as hold:
            assert hold.token

    asyncio.run(main())


def test_closing_is_reported_to_holders(server: Any) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis(port=server.port)
        locks, told = redislock.AsyncLocks(client), list[str]()

        async def work() -> None:
            async with locks.lock("other"):
                await asyncio.sleep(60)

        async def lead(_: object) -> None:
            await asyncio.sleep(60)

        async def depose(reason: str) -> None:
            told.append(reason)

        working = asyncio.create_task(work())
        leader = locks.leader("job", on_elected=lead, on_deposed=depose)
        leader.start()
        with pytest.raises(redislock.LockLostError, match="close"):
            async with locks.lock("k") as hold:
                while leader.hold is None or not await client.exists("other"):
                    await asyncio.sleep(0.01)
                await locks.close()
                assert hold.lost == "close" and not await client.exists("k", "other", "job")
        with pytest.raises(redislock.LockLostError, match="close"):
            await working
        with pytest.raises(redislock.LocksClosedError, match="these locks are closed"):
            await locks.lock("k").acquire()
        await asyncio.sleep(0.05)
        assert told == ["close"] and leader.hold is None
        await leader.resign()
        await client.aclose()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_another_event_loop_needs_locks_of_its_own(server: Any) -> None:
    locks = redislock.AsyncLocks(redis.asyncio.Redis(port=server.port))

    async def use() -> None:
        async with locks.lock("k"):
            pass

    async def elsewhere() -> None:
        await use()
        await asyncio.to_thread(lambda: asyncio.run(use()))

    asyncio.run(use())
    asyncio.run(use())  # the first loop is closed
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(elsewhere())


def test_locks_can_be_closed_after_their_event_loop_has_ended(server: Any, client: redis.Redis) -> None:
    locks = redislock.AsyncLocks(redis.asyncio.Redis(port=server.port), lease=0.5)

    async def take() -> redislock.AsyncHold:
        return await locks.lock("k").acquire()

    hold = asyncio.run(take())
    asyncio.run(locks.close())
    with pytest.raises(redislock.LockLostError, match="close"):
        hold.check()
    with pytest.raises(redislock.LocksClosedError, match="these locks are closed"):
        asyncio.run(take())
    eventually(lambda: not client.exists("k"), "its lease ends it")


def test_locks_are_closed_in_their_own_event_loop(server: Any) -> None:
    async def main() -> None:
        async with redislock.AsyncLocks(redis.asyncio.Redis(port=server.port)) as locks, locks.lock("k") as hold:
            with pytest.raises(RuntimeError, match="another event loop"):
                await asyncio.to_thread(lambda: asyncio.run(locks.close()))
            hold.check()

    asyncio.run(main())


def test_a_lease_that_expires_after_the_event_loop_has_ended_is_lost(server: Any) -> None:
    locks = redislock.AsyncLocks(redis.asyncio.Redis(port=server.port), lease=0.3)

    async def take() -> redislock.AsyncHold:
        return await locks.lock("k").acquire()

    hold = asyncio.run(take())
    time.sleep(0.4)
    assert hold.lost == "deadline"
    eventually(lambda: server.info("redislock")["redislock_holds"] == "0", "the server ends it, too")


async def is_free(client: redis.asyncio.Redis, name: str) -> None:
    """Waits until the lock has no holder and no waiters."""
    async with asyncio.timeout(10):
        while await client.execute_command("LOCK.INFO", name):
            await asyncio.sleep(0.001)


async def calls(client: redis.asyncio.Redis, command: str) -> int:
    """The number of times that the server has run this command."""
    found = await client.info("commandstats")
    return int(found.get(f"cmdstat_{command}", {"calls": 0})["calls"])
