"""Retries and reconnects of client libraries (docs/reference/commands/acquire.md).

A library that repeats a request with BLOCK restarts its wait, and its user is notified late, by an error of the
connection. Without retries and with a patience longer than the wait, nil comes in time.
"""

import time

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

BLOCK_MS, WAIT_SECONDS = 400, 0.4


def connections_of(server):
    """The number of connections so far. (Not all servers count a command whose client went while it waited.)"""
    return int(server.info("stats")["total_connections_received"])


def waits(server, **settings):
    """A request that waits in vain, by redis-py with these settings; returns its outcome and how often it was sent: each
    time over a new connection."""
    server.admin("LOCK.ACQUIRE door alice PX 3600000")
    before = connections_of(server)
    with redis.Redis(port=server.port, **settings) as client:
        try:
            outcome = client.execute_command("LOCK.ACQUIRE", "door", "bob", "PX", 60_000, "BLOCK", BLOCK_MS)
        except redis.TimeoutError:
            outcome = "timed out"
    return outcome, connections_of(server) - before


def test_a_library_that_repeats_a_wait_restarts_it(server):
    repeating = Retry(NoBackoff(), 3)
    outcome, times = waits(server, retry=repeating, socket_timeout=WAIT_SECONDS / 4)
    assert outcome == "timed out" and times == 4, "each repetition was a wait of its own"


def test_without_retries_and_with_patience_nil_comes_once_and_in_time(server):
    began = time.monotonic()
    outcome, times = waits(server, retry=None, socket_timeout=WAIT_SECONDS + 5)
    assert (outcome, times) == (None, 1)
    assert time.monotonic() - began >= WAIT_SECONDS


def test_without_retries_an_impatient_library_gives_up_once(server):
    outcome, times = waits(server, retry=None, socket_timeout=WAIT_SECONDS / 4)
    assert (outcome, times) == ("timed out", 1)
