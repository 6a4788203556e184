"""The cores for the server and the client that loads it.

Client and server of a single connection take turns: one works while the other waits. On cores of their own,
each message wakes a core that sleeps, which takes a virtual machine longer than a command does. Left alone, the
kernel put them on one core or on two as it liked: 50,000 or 7,000 pairs a second. So a single connection gets one
core for both ends. Several connections keep both ends busy, and are left to the kernel.
"""

from __future__ import annotations

import os

from .servers import Server

ALL = frozenset(os.sched_getaffinity(0))


def chosen(connections: int) -> frozenset[int]:
    return frozenset([min(ALL)]) if connections == 1 else ALL


def place(server: Server, connections: int) -> None:
    """The thread that serves; those that write files stay wherever there is room."""
    os.sched_setaffinity(server.process.pid, chosen(connections))
