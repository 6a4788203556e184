"""The reports of renewals, reconnects, losses and long waits in the log and the hooks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock
from redislock import _table, _watch, testing

from .servers import Meddler, eventually


class Told(redislock.Hooks):
    """Records the reports of renewals and connections."""

    def __init__(self) -> None:
        self.failures: list[tuple[str, Exception]] = []
        self.back: list[str] = []

    def renewal_failed(self, name: str, error: Exception) -> None:
        self.failures.append((name, error))

    def reconnected(self, address: str) -> None:
        self.back.append(address)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """The lines of one level, or of all, that have this in them."""
    caplog.set_level(logging.INFO, "redislock")
    yield lambda text, level=None: [
        record.message
        for record in caplog.records
        if record.name == "redislock" and text in record.message and level in (None, record.levelname)
    ]


def test_an_outage_is_logged_once_and_so_is_its_end(start_server: Any, log: Any) -> None:
    server, told = start_server(), Told()
    door = Meddler(server.port)
    with redis.Redis(port=door.port) as client, redislock.Locks(client, lease=30, hooks=told) as locks:
        hold = locks.lock("k").acquire()
        hold.extend(3)
        eventually(lambda: door.calls("LOCK.FENCE"), "it is watched")
        door.shut()
        door.cut()
        eventually(lambda: len(told.failures) > 1, "renewals fail")
        door.open()
        eventually(lambda: log("failed renewals", "WARNING"), "it is renewed")
        assert hold.check() > 0
        hold.release()
    door.close()
    (first,) = log("could not renew", "WARNING")
    assert "'k'" in first and f"localhost:{door.port}" in first
    (again,) = log("failed renewals", "WARNING")
    assert f"after {len(told.failures)} failed renewals" in again
    assert {name for name, _ in told.failures} == {"k"}
    assert all(isinstance(error, redislock.ConnectionFailedError) for _, error in told.failures)
    assert len(log(f"reconnected to localhost:{door.port}", "INFO")) == 1
    assert told.back == [f"localhost:{door.port}"]


@pytest.mark.parametrize("is_told", [True, False])
def test_a_loss_names_its_cause(is_told: bool, start_server: Any, log: Any) -> None:
    server = start_server()
    with redis.Redis(port=server.port) as client, redislock.Locks(client, lease=2) as locks:
        hold = locks.lock("k").acquire()
        if is_told:
            hold.on_lost(lambda _: None)
        server.kill()
        eventually(lambda: log("lost 'k'"), "it is lost")
    (line,) = log("lost 'k'", "WARNING" if is_told else "ERROR")
    assert f"localhost:{server.port}" in line and "deadline" in line
    assert hold.lost == "deadline"
    assert hold.cause is not None and f"localhost:{server.port}" in hold.cause
    with pytest.raises(redislock.LockLostError, match=f"localhost:{server.port}") as caught:
        hold.check()
    assert isinstance(caught.value.__cause__, redislock.ConnectionFailedError)


@pytest.mark.parametrize("reason", ["push", "renewal", "release"])
def test_what_the_server_has_said_is_the_cause(reason: str, locks: redislock.Locks, client: redis.Redis) -> None:
    hold = locks.lock("k").acquire()
    if reason == "push":
        time.sleep(0.1)
    client.delete("k")
    with pytest.raises(redislock.LockLostError):
        if reason == "push":
            assert hold.wait_until_lost(10)
            hold.check()
        elif reason == "renewal":
            hold.extend(3)
        else:
            hold.release()
    assert hold.cause is not None and "answered 0 to LOCK." in hold.cause


def test_a_lock_that_a_task_takes_twice_is_named(server: Any, log: Any) -> None:
    async def run() -> None:
        client = redis.asyncio.Redis(port=server.port)
        async with client, redislock.AsyncLocks(client) as locks:
            hold = await locks.lock("k").acquire()
            with pytest.raises(redislock.LockTimeoutError):
                await locks.lock("k", wait=2).acquire()
            with pytest.raises(redislock.LockTimeoutError):
                await asyncio.create_task(locks.lock("k", wait=2).acquire())
            await hold.release()

    asyncio.run(run())
    assert len(log("waiting for 'k', which the very thread or task", "WARNING")) == 1
    assert len(log("waiting for 'k', which these very locks hold", "INFO")) == 1


@pytest.mark.parametrize("names", [["k"], ["k", "l"]], ids=["one", "many"])
def test_a_long_wait_is_logged_at_each_doubling_with_its_holder(
    names: list[str], server: Any, client: redis.Redis, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_watch, "_LONG", 1.5)
    client.execute_command("LOCK.ACQUIRE", "k", "somebody", "PX", 60_000)
    with redislock.Locks(client) as locks:
        with pytest.raises(redislock.LockTimeoutError):
            locks.many(names, wait=4).acquire()
    lines = log(f"waiting for '{', '.join(names)}' for", "WARNING")
    assert len(lines) == 2
    assert all("held by somebody" in line for line in lines)
    client.execute_command("LOCK.RELEASE", "k", "somebody")


def test_who_holds_it_is_left_out_where_it_is_not_allowed(
    server: Any, client: redis.Redis, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_watch, "_LONG", 1.5)
    client.execute_command("LOCK.ACQUIRE", "k", "somebody", "PX", 60_000)
    client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-lock.info")
    with redis.Redis(port=server.port, username="app", password="secret") as other, redislock.Locks(other) as locks:
        with pytest.raises(redislock.LockTimeoutError):
            locks.lock("k", wait=2.5).acquire()
    (line,) = log("waiting for 'k' for", "WARNING")
    assert "held by" not in line
    client.execute_command("LOCK.RELEASE", "k", "somebody")
    client.execute_command("ACL", "DELUSER", "app")


def test_a_module_that_is_too_old_is_logged_once_for_a_server(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with redislock.AsyncLocks(testing.Server()) as locks, locks.lock("k"):
            pass

    with redislock.Locks(testing.Server()) as new:
        new.lock("k").acquire().release()
    assert not log("is version")
    monkeypatch.setattr(_table, "_version", lambda: 209)
    with redislock.Locks(testing.Server()) as old:
        old.lock("k", wait=0).acquire().release()
        old.ping()
    where = log("is version", "WARNING")[0].split()[4]
    sentence = f"the module redislock on {where} is version 0.2.9, and this client needs 0.3.0 or later: "
    assert log("is version") == [sentence + "upgrade the module"]
    asyncio.run(story())
    assert log("is version") == 2 * [sentence + "upgrade the module"]
