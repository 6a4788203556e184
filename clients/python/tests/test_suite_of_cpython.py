"""CPython's tests of threading.Lock (Lib/test/lock_tests.py), run on our lock of redis-py's kind."""

from __future__ import annotations

import importlib
import unittest
import uuid
from typing import Any

import redis

from redislock import compat

REPR = "it reads from the repr() whether it is locked, and only the server knows that"
#: The tests that fail, and why.
DIFFERENT = {
    "test_repr": REPR,
    "test_locked_repr": REPR,
    "test_timeout": "it expects errors for times to wait that redis-py's lock takes: less than 0, or without blocking",
    "test_at_fork_reinit": "it frees the lock after a fork, and another process holds this one still",
}


def test_suite_of_cpython_passes_but_for_what_differs(client: redis.Redis) -> None:
    class Lock(compat.Lock):
        """Our lock with the arguments of threading.Lock."""

        def __init__(self) -> None:
            super().__init__(client, f"suite:{uuid.uuid4()}", thread_local=False)

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # type: ignore[override]
            return super().acquire(blocking=blocking, blocking_timeout=None if timeout == -1 else timeout)

    suite: Any = importlib.import_module("test.lock_tests")
    tests: Any = type("Tests", (suite.LockTests,), {"locktype": Lock})
    with compat.Lock(client, "first"):
        pass  # the thread of the library runs from now on, and the suite counts threads
    found = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(tests).run(found)
    failed = {test.id().rpartition(".")[2]: trace for test, trace in [*found.failures, *found.errors]}
    assert failed.keys() == DIFFERENT.keys(), failed
    assert found.testsRun > 3 * len(DIFFERENT), "most of them pass"
    client.flushall()
    compat._locks.pop(client).close()
