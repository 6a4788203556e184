"""The words of the library are those of the table that all client libraries have: docs/reference/client-words.md."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import redislock
import redislock.metrics
import redislock.redlock
import redislock.testing
from redislock._options import Options

ASYNC = {"Locks": "AsyncLocks", "Lock": "AsyncLock", "Hold": "AsyncHold", "Leader": "AsyncLeader"}
NOWHERE = {
    "Lock.__enter__": "Lock.__aenter__",
    "redlock.Redlock": "redlock.AsyncRedlock",
    "testing.Server.advance": "testing.Server.advance_async",
    "testing.Server.lose": "testing.Server.lose_async",
}


def words() -> list[tuple[str, bool]]:
    """Each word of the column, and whether the library is said to lack it."""
    page = Path(__file__).parents[3] / "docs/reference/client-words.md"
    found, column = [], None
    for line in page.read_text().splitlines():
        cells = line.strip("|").split("|")
        if line.startswith("| concept |"):
            column = [cell.strip() for cell in cells].index("Python")
        elif line.startswith("| ") and column is not None:
            parts = cells[column].split("`")
            found += [(parts[at], parts[at - 1].strip() == "lacks") for at in range(1, len(parts), 2)]
            assert len(parts) > 1 or cells[column].strip() == "-", line
    assert len(found) > 50
    return found


def exported(hold: Any, classes: dict[str, Any]) -> set[str]:
    """The names that a program may use, in the notation of the table."""
    found = set(redislock.__all__) | {f"testing.Server.{name}" for name in dir(redislock.testing.Server)}
    for module in (redislock.metrics, redislock.redlock, redislock.testing):
        found |= {f"{module.__name__.removeprefix('redislock.')}.{name}" for name in dir(module)}
    for name, known in classes.items():
        found |= {f"{name}.{member}" for member in dir(known)}
    found |= {f"Hold.{member}" for member in vars(hold)}
    for text, options in (
        ("lock", Options.__annotations__),
        ("Locks", inspect.signature(classes["Locks"].__init__).parameters),
        ("leader", inspect.signature(classes["Locks"].leader).parameters),
    ):
        found |= {f"{text}({option}=)" for option in options}
    return found


@pytest.mark.parametrize("is_async", [False, True])
def test_the_words_are_those_of_the_table(locks: redislock.Locks, *, is_async: bool) -> None:
    with locks.lock("k") as hold:
        classes = {name: getattr(redislock, other if is_async else name) for name, other in ASYNC.items()}
        found = exported(hold, classes)
    for word, is_lacking in words():
        its = NOWHERE.get(word, word) if is_async else word
        assert (its in found) != is_lacking, f"{its}, which the table says that it {'lacks' if is_lacking else 'has'}"
