"""Leaders whose callbacks fail, continue, or are none."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock

from .servers import MODULE, eventually
from .stories import play

#: A server whose module can be loaded while it runs.
LOADABLE = ("--enable-module-command", "yes")


def test_a_leader_that_fails_gives_up_and_stands_again(
    locks: redislock.Locks, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    elected, told = list[redislock.Hold](), list[str]()

    def lead(hold: redislock.Hold) -> None:
        elected.append(hold)
        if len(elected) == 1:
            raise ZeroDivisionError

    with locks.leader("job", on_elected=lead, on_deposed=told.append, lease=60) as leader:
        eventually(lambda: elected, "it leads")
        with locks.lock("job", wait=5):
            assert leader.hold is None and elected[0].lost is None and elected[0].remaining == 0
        eventually(lambda: len(elected) == 2, "it leads again")
        time.sleep(0.1)
        assert leader.hold is elected[1] and leader.hold.check()
    assert told == [] and not client.exists("job")
    assert caplog.text.count("the work of the leader of job failed, so the lock is released") == 1
    assert "ZeroDivisionError" in caplog.text


def test_asyncio_a_leader_that_fails_gives_up_and_stands_again(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        elected, told = list[redislock.AsyncHold](), list[str]()

        async def lead(hold: redislock.AsyncHold) -> None:
            elected.append(hold)
            if len(elected) == 1:
                raise ZeroDivisionError
            await asyncio.sleep(30)

        async with locks.leader("job", on_elected=lead, on_deposed=told.append, lease=60) as leader:
            while not elected:
                await asyncio.sleep(0.01)
            async with locks.lock("job", wait=5):
                assert leader.hold is None and elected[0].lost is None and elected[0].remaining == 0
            while len(elected) < 2:
                await asyncio.sleep(0.01)
            assert leader.hold is elected[1] and leader.hold.check()
        assert told == [] and not await client.exists("job")
        assert caplog.text.count("the work of the leader of job failed, so the lock is released") == 1

    play(server, story)


def test_a_loss_is_reported_while_the_leader_works(locks: redislock.Locks, client: redis.Redis) -> None:
    events, deposed = list[str](), threading.Event()

    def lead(hold: redislock.Hold) -> None:
        events.append("elected")
        if len(events) == 1:
            assert deposed.wait(20)
            events.append("ended")
            hold.check()

    def lose(reason: str) -> None:
        events.append(reason)
        deposed.set()

    with locks.leader("job", on_elected=lead, on_deposed=lose) as leader:
        eventually(lambda: leader.hold is not None and events, "it leads")
        client.delete("job")
        eventually(lambda: events == ["elected", "push", "ended", "elected"], "it leads again when its work has ended")
    assert events == ["elected", "push", "ended", "elected"]


def test_a_leader_whose_work_raises_the_loss_is_deposed_and_stands_again(
    locks: redislock.Locks, client: redis.Redis, server: Any
) -> None:
    terms, told = list[int](), list[str]()

    def lead(hold: redislock.Hold) -> None:
        terms.append(hold.token)
        while len(terms) <= 5:
            hold.check()

    with locks.leader("job", on_elected=lead, on_deposed=told.append):
        for term in range(1, 6):
            eventually(lambda term=term: len(terms) == term, "it leads")
            client.delete("job")
            eventually(lambda term=term: len(told) == term, "it is deposed")

    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        async def lead(hold: redislock.AsyncHold) -> None:
            terms.append(hold.token)
            while len(terms) == 1:
                hold.check()
            await asyncio.sleep(30)

        terms.clear()
        told.clear()
        async with locks.leader("job", on_elected=lead, on_deposed=told.append, lease=0.3):
            while len(terms) < 2:
                await asyncio.sleep(0.01)
        assert told == ["deadline"]

    play(server, story)


def test_a_leader_that_resigns_at_its_work(locks: redislock.Locks, client: redis.Redis, server: Any) -> None:
    with locks.leader("job", on_elected=lambda hold: leader.resign()) as leader:
        eventually(lambda: not client.exists("job") and leader._hold is None, "it has resigned")
        eventually(lambda: leader._last is None or leader._last.done(), "its task has ended")

    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        async def lead(hold: redislock.AsyncHold) -> None:
            await leader.resign()

        leader = locks.leader("job", on_elected=lead, lease=60)
        leader.start()
        async with locks.lock("job", wait=5):
            pass
        while await client.exists("job"):
            await asyncio.sleep(0.01)
        assert leader.hold is None

    play(server, story)


def test_asyncio_a_leader_may_have_plain_functions(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def story(locks: redislock.AsyncLocks, client: redis.asyncio.Redis) -> None:
        events: list[Any] = []
        async with locks.leader("job", on_elected=events.append, on_deposed=events.append) as leader:
            while leader.hold is None:
                await asyncio.sleep(0.01)
            first = leader.hold
            await client.delete("job")
            while len(events) < 3:
                await asyncio.sleep(0.01)
            assert events == [first, "push", leader.hold]
        assert [record.message.split(" after")[0] for record in caplog.records] == ["lost 'job'"]

    play(server, story)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_leader_that_can_never_lead_is_refused(is_async: bool, locks: redislock.Locks) -> None:
    made: Any = redislock.AsyncLocks(redis.asyncio.Redis()) if is_async else locks
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"lease": "5"}, TypeError, "lease must be a number of seconds, .*, not '5'"),
        ({"lease": 0.01}, ValueError, r"lease must be a number of seconds, 0\.1 or more and finite, not 0\.01"),
        ({"on_elected": "print"}, TypeError, "on_elected must be a function, not 'print'"),
        ({"on_deposed": 7}, TypeError, "on_deposed must be a function, not 7"),
    ]
    for options, kind, text in wrong:
        with pytest.raises(kind, match=text):
            made.leader("job", **options)
    for name, kind in ((None, TypeError), ("", ValueError)):
        with pytest.raises(kind, match="name"):
            made.leader(name)


def test_a_leader_of_threads_has_no_asynchronous_functions(locks: redislock.Locks) -> None:
    async def lead(hold: object) -> None:
        raise AssertionError

    wrong: list[dict[str, Any]] = [{"on_elected": lead}, {"on_deposed": lead}, {"on_error": lead}]
    for options in wrong:
        with pytest.raises(TypeError, match="lead is asynchronous: use leader of AsyncLocks"):
            locks.leader("job", **options)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_leader_reports_an_outage_once_and_continues(is_async: bool, start_server: Any) -> None:
    server, errors, elected = start_server(*LOADABLE, with_module=False), list[Exception](), list[object]()

    async def story() -> None:
        client: Any = redis.asyncio.Redis(port=server.port)
        async with client, redislock.AsyncLocks(client) as locks:
            async with locks.leader("job", on_elected=elected.append, on_error=errors.append):
                await asyncio.sleep(1.5)
                server.admin("MODULE", "LOAD", MODULE)
                while not elected:
                    await asyncio.sleep(0.01)

    if is_async:
        asyncio.run(story())
    else:
        with (
            redislock.Locks(redis.Redis(port=server.port)) as locks,
            locks.leader("job", on_elected=elected.append, on_error=errors.append),
        ):
            time.sleep(1.5)
            server.admin("MODULE", "LOAD", MODULE)
            eventually(lambda: elected, "it leads")
    assert [type(error) for error in errors] == [redislock.ModuleMissingError]
