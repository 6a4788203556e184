"""A primary whose grants its replicas confirm, and replicas that are paused for a while."""

import contextlib
import os
import signal

from .limits import eventually
from .replicas import AT_ONCE, is_linked
from .replies import module_info
from .stopped import stop


@contextlib.contextmanager
def frozen(*servers):
    """These servers do nothing at all meanwhile; their connections stay open."""
    try:
        stop(*(server.process.pid for server in servers))
        yield
    finally:
        for server in servers:
            os.kill(server.process.pid, signal.SIGCONT)


def confirming(start_server, rule="all", replicas=2, quarantine_ms=60_000, timeout_ms=60_000):
    """A primary that confirms by this rule, and its replicas. No quarantine is on."""
    primary = start_server(*AT_ONCE)
    followers = [
        start_server("--replicaof", f"127.0.0.1 {primary.port}") for _ in range(replicas)
    ]
    for follower in followers:
        is_linked(follower)
    set_rule(primary, rule, replicas + 1, quarantine_ms, timeout_ms)
    has_replicas(primary, replicas)
    return primary, followers


def set_rule(server, rule, group_size, quarantine_ms, timeout_ms):
    """Sets all that belongs to confirmation in one step."""
    values = {
        "confirm": rule, "group-size": group_size, "quarantine": quarantine_ms,
        "confirm-timeout": timeout_ms,
    }  # fmt: skip
    pairs = [part for name, value in values.items() for part in (f"redislock.{name}", value)]
    assert server.admin("CONFIG", "SET", *pairs) == "OK"


def has_replicas(server, count, seasoned=None):
    """Waits until the primary knows `count` replicas, and `seasoned` that count for a majority."""

    def has_them():
        info = module_info(server.admin)
        known, old = info["confirm_replicas"], info["confirm_replicas_seasoned"]
        return known == str(count) and (seasoned is None or old == str(seasoned))

    eventually(has_them, f"the primary knows {count} replicas, {seasoned} of them seasoned")


def has_caught_up(primary, replica):
    """Waits until the replica has all that the primary has written."""
    end = primary.info("replication")["master_repl_offset"]
    eventually(
        lambda: int(replica.info("replication")["master_repl_offset"]) >= int(end),
        "the replica has caught up",
    )
