"""The patience of the tests.

No test may fail because the machine is slow today: every wait is a poll with a
generous bound, and every bound is multiplied by SLOW_FACTOR.
"""

import os
import time

VALGRIND = os.environ.get("REDISLOCK_VALGRIND", "") not in ("", "0")
SLOW_FACTOR = 10 if VALGRIND else 1

# The time that something may take that the server does at once.
SOON_SECONDS = 15.0 * SLOW_FACTOR

# The time that servers may take to agree on another primary. On a busy machine they may have to vote several times,
# some seconds apart.
ELECTED_SECONDS = 45.0 * SLOW_FACTOR

# The time for which a test watches that something does not happen.
A_WHILE_SECONDS = 0.05


def eventually(condition, what="", limit=SOON_SECONDS, pause=0.002):
    """Polls until the condition gives something true, and returns that."""
    deadline = time.monotonic() + limit
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit:.0f} s: {what or condition}")
        time.sleep(pause)
