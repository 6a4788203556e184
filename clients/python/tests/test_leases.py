"""Leases that begin after a wait, are extended, or cut: the client never counts on more than the server grants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

import redislock

Meddled = Callable[..., redislock.Locks]


@pytest.fixture
def meddled(meddler: Any) -> Any:
    """Makes locks whose requests go through the network that a test meddles with."""
    made: list[Any] = []

    def make(lease: float) -> redislock.Locks:
        client = redis.Redis(port=meddler.port)
        made[:0] = [redislock.Locks(client, lease=lease), client]
        return made[0]  # type: ignore[no-any-return]

    yield make
    meddler.open()
    meddler.flow()
    for each in made:
        each.close()


@pytest.mark.parametrize(("lease", "seconds"), [(1.5, 2.5), (30, 6)])
def test_many_that_waited_for_longer_than_their_first_lease(
    lease: float, seconds: float, client: redis.Redis, meddled: Meddled, meddler: Any
) -> None:
    meddler.delay = lambda call: 0.1 if call.name == "LOCK.RENEW" else 0
    client.execute_command("LOCK.ACQUIRE", "b", "somebody", "PX", int(1000 * seconds))
    with meddled(lease).many(["a", "b"], wait=20) as hold:
        assert hold.remaining > lease / 2
