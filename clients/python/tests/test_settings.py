"""The settings that are read from the driver's client, and those that are refused."""

from __future__ import annotations

import asyncio
import gc
import ssl
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock
from redislock._settings import settings_of

from .servers import eventually

KINDS = [(redislock.Locks, redis.Redis), (redislock.AsyncLocks, redis.asyncio.Redis)]


@pytest.mark.parametrize(("kind", "client"), KINDS)
def test_a_number_of_waiters_is_whole_and_one_or_more(kind: Any, client: Any) -> None:
    for waiting, error in ((0, ValueError), (-1, ValueError), ("4", TypeError), (2.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match=f"max_queued_per_lock must be a whole number from 1 to .*, not {waiting!r}"):
            kind(client(), max_queued_per_lock=waiting)
    kind(client(), max_queued_per_lock=1)


@pytest.mark.parametrize(("kind", "client"), KINDS)
def test_a_lease_is_a_number(kind: Any, client: Any) -> None:
    for lease in ("30", None, float("nan"), True):
        with pytest.raises(TypeError, match=f"lease must be a number of seconds, .*, not {lease!r}"):
            kind(client(), lease=lease)
    with pytest.raises(ValueError, match="finite, not inf"):
        kind(client(), lease=float("inf"))


@pytest.mark.parametrize("needed", [None, "none", ssl.CERT_NONE])
def test_a_certificate_that_is_not_verified(needed: Any) -> None:
    context = settings_of(redis.Redis(ssl=True, ssl_cert_reqs=needed)).login.tls
    assert context is not None and context.verify_mode is ssl.CERT_NONE and not context.check_hostname
    kinds: list[dict[str, Any]] = [{}, {"ssl_check_hostname": True}, {"ssl_check_hostname": False}]
    for more in kinds:
        client: Any = redis.asyncio.Redis(ssl=True, ssl_cert_reqs=needed, **more)
        assert settings_of(client).login.tls is not None


def test_a_login_that_is_refused_leaves_no_connection(start_server: Any) -> None:
    server = start_server()
    server.admin("CONFIG", "SET", "requirepass", "secret")
    server.admin("CONFIG", "SET", "timeout", 0)
    before = int(server.info("clients")["connected_clients"])
    gc.disable()
    try:
        kept = []  # an error that somebody keeps must not keep the connection
        with redislock.Locks(redis.Redis(port=server.port, password="wrong")) as locks:
            for _ in range(5):
                with pytest.raises(redislock.ServerRefusedError, match="WRONGPASS") as refused:
                    locks.lock("k", wait=0).acquire()
                kept.append(refused)
            eventually(lambda: int(server.info("clients")["connected_clients"]) == before, "all are closed")
    finally:
        gc.enable()


def test_a_provider_of_passwords_is_asked_as_the_driver_asks_it(start_server: Any) -> None:
    class OfThreads(redis.CredentialProvider):
        def get_credentials(self) -> tuple[str]:
            return ("secret",)

    class OfAsyncio(redis.CredentialProvider):
        async def get_credentials_async(self) -> tuple[str, str]:
            await asyncio.sleep(0)
            return ("default", "secret")

    server = start_server()
    server.admin("CONFIG", "SET", "requirepass", "secret")
    with redis.Redis(port=server.port, credential_provider=OfThreads()) as client, redislock.Locks(client) as locks:
        with locks.lock("k").acquire(), pytest.raises(redislock.LockTimeoutError), locks.lock("k", wait=0.1):
            pass

    async def main() -> None:
        async with redis.asyncio.Redis(port=server.port, credential_provider=OfAsyncio()) as client:
            assert await client.ping()
            async with redislock.AsyncLocks(client) as locks, locks.lock("k", wait=5):
                pass

    asyncio.run(main())
