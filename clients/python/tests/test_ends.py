"""What ends without the one who waits for it: holds that others give up, clients that nobody has any more."""

from __future__ import annotations

import threading

import pytest
import redis

import redislock


@pytest.mark.parametrize("is_held", [True, False])
def test_who_waits_for_a_loss_hears_that_the_hold_was_given_up(
    is_held: bool, locks: redislock.Locks, client: redis.Redis
) -> None:
    hold, said = locks.lock("k").acquire(), list[str | None]()
    told: list[str] = []
    hold.on_lost(told.append)
    if not is_held:
        hold.release()
    waiting = threading.Thread(target=lambda: said.append(hold.wait_until_lost()), daemon=True)
    waiting.start()
    waiting.join(0.2)
    hold.release()
    waiting.join(5)
    assert said == [None] and told == []
    assert hold.wait_until_lost() is None


def test_many_hear_of_one_loss(locks: redislock.Locks, client: redis.Redis) -> None:
    hold, said = locks.lock("k").acquire(), list[str | None]()
    waiting = [threading.Thread(target=lambda: said.append(hold.wait_until_lost(20))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    client.delete("k")
    for thread in waiting:
        thread.join()
    assert said == ["push"] * 3 and hold.wait_until_lost() == "push"
