"""A server for each test that asks for one, and clients of it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import redis

import redislock

from .servers import Meddler, Proxy, Yard, eventually


@pytest.fixture
def start_server() -> Iterator[Any]:
    """Starts servers for this test alone."""
    yard = Yard()
    yield yard
    yard.close()


@pytest.fixture(scope="session")
def shared() -> Iterator[Any]:
    """Not for tests: what `server` empties after each test."""
    yard = Yard()
    yield yard()
    yard.close()


@pytest.fixture
def server(shared: Any) -> Iterator[Any]:
    """A server that tests share. Nothing may be held or connected after a test."""
    yield shared
    found = shared.info("redislock")
    held, waiting = found["redislock_holds"], found["redislock_waiters"]
    shared.close_connections()
    shared.admin("FLUSHALL")
    gc.collect()  # connections of event loops that have ended
    eventually(lambda: shared.info("clients")["connected_clients"] == "1", "all connections are closed")
    assert (held, waiting) == ("0", "0"), f"after the test {held} are held and {waiting} wait"


@pytest.fixture
def client(server: Any) -> Iterator[redis.Redis]:
    """A client of the server."""
    with redis.Redis(port=server.port, decode_responses=True) as made:
        yield made


@pytest.fixture
def locks(client: redis.Redis, server: Any) -> Iterator[redislock.Locks]:
    """Locks of the server, for threads."""
    with redislock.Locks(client, lease=3) as made:
        yield made
    client.close()


@pytest.fixture
def door(server: Any) -> Iterator[Any]:
    """A network between client and server that can fail."""
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def meddler(server: Any) -> Iterator[Any]:
    """A network that drops or delays the replies that a test chooses, and remembers the commands."""
    proxy = Meddler(server.port)
    yield proxy
    proxy.close()
