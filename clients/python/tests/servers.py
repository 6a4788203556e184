"""Servers for the tests: the harness of tests/python, which takes them from REDISLOCK_SERVER and REDISLOCK_MODULE.

The network that drops and delays replies is that of the conformance kit.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "clients" / "conformance"))

from harness.cluster import NODE, is_up, meet, share_slots  # type: ignore[import-not-found]
from harness.limits import eventually  # type: ignore[import-not-found]
from harness.proxy import Proxy  # type: ignore[import-not-found]
from harness.replicas import AT_ONCE, is_linked  # type: ignore[import-not-found]
from harness.sentinel import GROUP, watched  # type: ignore[import-not-found]
from harness.server import MODULE, Port, Server, StartFailed, Yard  # type: ignore[import-not-found]
from harness.wire import Closed  # type: ignore[import-not-found]
from kit.proxy import Proxy as Meddler  # type: ignore[import-not-found]

__all__ = [
    "AT_ONCE",
    "GROUP",
    "MODULE",
    "Meddler",
    "Port",
    "Proxy",
    "Server",
    "StartFailed",
    "Yard",
    "cluster_of_three",
    "eventually",
    "is_linked",
    "pair_with_sentinels",
    "role_of",
]


def cluster_of_three(start: Any) -> list[Any]:
    """Three primaries with a third of the slots each."""
    nodes = [start(*NODE) for _ in range(3)]
    share_slots(nodes)
    meet(nodes)
    for node in nodes:
        eventually(lambda node=node: is_up(node), "the cluster is up")
    return nodes


def pair_with_sentinels(start: Any) -> tuple[Any, Any, list[Any]]:
    """A primary, its replica, and three sentinels that watch them."""
    primary, replica = (start(*AT_ONCE) for _ in range(2))
    replica.admin("REPLICAOF", "127.0.0.1", primary.port)
    is_linked(replica)
    return primary, replica, watched(start, primary.port, replicas=1)


def role_of(server: Any) -> str:
    """The role that a server says it has. It ends connections when that changes."""
    try:
        return str(server.admin("ROLE")[0])
    except Closed:
        return "changing"
