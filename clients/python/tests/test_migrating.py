"""The examples of docs/how-to/migrate.md in Python, before and after: both work, and exclude each other meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import redis_lock  # type: ignore[import-untyped]

import redislock
import redislock.compat

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "migrate.md").read_text()
SHOWN = re.findall(r"<!-- (before|after): python -->\n```python\n(.*?)```", PAGE, re.S)


def test_every_example_of_the_migration_page_is_found() -> None:
    assert [when for when, _ in SHOWN] == ["before", "after", "after", "before", "after"]


@pytest.fixture
def server(start_server: Any) -> Any:
    server = start_server()
    server.admin("CONFIG", "SET", "redislock.legacy-strings", "yes")
    return server


def runs(source: str, server: Any, pay: Callable[..., None]) -> None:
    """Runs what the page shows."""
    r = redis.Redis(port=server.port)
    with redislock.Locks(r) as locks:
        exec(source, {"r": r, "locks": locks, "pay": pay, "redislock": redislock, "redis_lock": redis_lock})


@pytest.mark.parametrize("number", range(len(SHOWN)))
def test_the_examples_of_the_migration_page_work(number: int, server: Any) -> None:
    _, source = SHOWN[number]
    paid: list[int] = []
    runs(source, server, lambda fence=0: paid.append(fence))
    assert len(paid) == 1 and (paid[0] > 0) == ("fence=" in source)
    assert server.info("redislock")["redislock_holds"] == "0"


@pytest.mark.parametrize(("before", "after"), [(0, 2), (3, 4)])
def test_old_and_new_code_exclude_each_other(before: int, after: int, server: Any) -> None:
    paid: list[str] = []

    def at_once(source: str) -> str:
        # A request that waits would wait for the one that is inside.
        return re.sub(r"wait=\d+|lease=30", "lease=30, wait=0", re.sub(r", wait=\d+", "", source))

    def inside(**_: int) -> None:
        with pytest.raises(redislock.LockTimeoutError):
            runs(at_once(SHOWN[after][1]), server, lambda **_: paid.append("after"))
        paid.append("before")

    runs(SHOWN[before][1], server, inside)
    assert paid == ["before"]
