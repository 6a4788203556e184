"""The effect of each fault on a server.

An act returns the function that ends it, or nothing if it has ended at once.
"""

import resource
import shutil
import socket
import struct
import time

from harness.group import freeze, thaw
from harness.limits import eventually
from harness.proxy import BACK, ONWARD
from harness.server import BINARY, Server, StartFailed
from harness.wall_clock import WallClock
from harness.wire import Closed, Connection, NoReply, ServerError, encode

from .faults import REWRITING, WITHOUT_FILE

#: Far less than an empty server uses.
LITTLE_MEMORY = 100_000
#: The number of bytes that can still be written when the disk is full.
LAST_BYTES = 100
#: Longer than any failure lasts.
BREAK_SECONDS = 30.0
#: The errors of a command to a server that has faults.
TROUBLE = (ServerError, Closed, NoReply, OSError)
WAYS_OF = {"onward": (ONWARD,), "back": (BACK,), "both ways": (ONWARD, BACK)}


class Target(Server):
    """A server whose wall clock can be set, and which gets an error for a full disk instead of a signal that ends
    it."""

    def __init__(self, *options, library=None, **more):
        super().__init__(*options, **more)
        self.wall_clock = None
        if library is not None:
            self.wall_clock = WallClock(library, self.directory / "wall_clock")
            self.environment = {**self.environment, **self.wall_clock.environment}

    def _command_line(self):
        line = super()._command_line()
        at = line.index(BINARY)
        return [*line[:at], "env", "--ignore-signal=XFSZ", *line[at:]]

    def comes_back(self):
        """Starts it if it ended."""
        if self.process is not None and self.process.poll() is not None:
            self.process = None
            self.close_connections()
        if self.process is None:
            self._start_somehow()

    def _start_somehow(self):
        """Starts it; without its file if that has the hole which the server itself leaves there after a full disk."""
        try:
            self.start()
        except StartFailed:
            if not has_hole(self):
                raise
            forget(self)
            self.start()


def pause(fault, node):
    """The process stops in the middle of its work."""
    freeze(node)
    return lambda: node.is_alive() and thaw(node)


def kill(fault, node):
    """kill -9; it comes back with or without its data."""
    if fault.detail == REWRITING:
        node.admin("BGREWRITEAOF")
    if node.is_alive():
        node.kill()
    if fault.detail == WITHOUT_FILE:
        forget(node)
    return node.comes_back


def forget(node):
    """All that it has written is lost."""
    shutil.rmtree(node.directory / "appendonlydir", ignore_errors=True)
    for path in node.directory.glob("*.rdb"):
        path.unlink()


def has_hole(node):
    """Returns whether zeros stand where a command should begin, as many as remained of a write that ended in the
    middle.

    No server of scripts/servers opens a file that was begun by a rewrite for appending. So the bytes after the half
    that was cut off are written after its place. With `appendfsync always` the server ends first.
    """
    return any(b"\r\n\0" in path.read_bytes() for path in node.directory.glob("appendonlydir/*.incr.aof"))


def clock(topology):
    """The wall clock is set, as far as tokens still rise; it stays so."""
    return lambda fault, node: node.wall_clock.set_ahead(fault.detail * topology.clock_seconds)


def disk(fault, node):
    """No file can grow: writes fail, or end in the middle."""
    files = [path.stat().st_size for path in node.directory.glob("appendonlydir/*.aof")]
    limit_files(node, max(files, default=0) + LAST_BYTES)

    def end():
        if node.is_alive():
            limit_files(node, resource.RLIM_INFINITY)
            eventually(lambda: not node.is_alive() or answers(node), "it goes on, or has ended")
        node.comes_back()  # with `appendfsync always` a server ends itself

    return end


def answers(node):
    """Whether it answers. A server that is about to end does not."""
    try:
        node.admin("PING")
    except ServerError:
        pass  # an answer
    except TROUBLE:
        return False
    return True


def limit_files(node, size):
    """Limits the size of its files."""
    _, hard = resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (size, hard))


def memory(topology):
    """The server has no memory left, under a policy that may evict locks."""

    def act(fault, node):
        began = time.monotonic()
        node.admin("CONFIG", "SET", "maxmemory-policy", fault.detail)
        node.admin("CONFIG", "SET", "maxmemory", LITTLE_MEMORY)

        def end():
            insist(node, "CONFIG", "SET", "maxmemory", 0)
            insist(node, "CONFIG", "SET", "maxmemory-policy", "noeviction")
            if fault.detail.startswith("allkeys"):
                topology.broken(None, began, time.monotonic())

        return end

    return act


def insist(node, *words):
    """Has the server do this, though its role may change at that moment, which ends connections."""
    def is_done():
        try:
            return node.admin(*words) == "OK"
        except TROUBLE:
            return False

    eventually(is_done, f"{words} is done", pause=0.05)


def storm(topology):
    """Connections at once, some of which ask for a lock, or for half of one; then all of them are reset."""

    def act(fault, node):
        found, words = [], ("LOCK.ACQUIRE", topology.locks[0], "storm", "PX", 100, "BLOCK", 0)
        try:
            for number in range(fault.detail):
                one = socket.create_connection(("127.0.0.1", node.port), timeout=BREAK_SECONDS)
                found.append(one)
                asked = encode(*words[:2], f"storm-{number}", *words[3:])
                one.sendall((asked, asked[: number % len(asked)], b"")[number % 3])
        finally:
            for one in found:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.close()

    return act


def flush(topology):
    """All holds of a server are ended on purpose: the judge must know."""
    return lambda fault, node: breaks(topology, node, None, "FLUSHALL")


def delete(topology):
    """The holds of a lock are ended on purpose."""
    def act(fault, node):
        lock = topology.locks[fault.detail % len(topology.locks)]
        breaks(topology, node, lock, "DEL", lock)

    return act


def breaks(topology, node, lock, *words):
    """The first server that accepts this, from this one on, does it."""
    nodes = topology.hearing()
    at = nodes.index(node)
    if not any(is_broken_by(topology, each, lock, words) for each in nodes[at:] + nodes[:at]):
        raise ServerError("NOBODY would do it")


def is_broken_by(topology, node, lock, words):
    """Returns whether this server did it; notes it, also if that is unknown."""
    sent, connection = time.monotonic(), None
    try:
        connection = Connection(node.port)
        connection(*words, limit=BREAK_SECONDS)
    except ServerError:
        return False  # a replica, or not its slot
    except NoReply:
        topology.broken(lock, sent, float("inf"))
    except (Closed, OSError):
        if connection is None:
            return False
        topology.broken(lock, sent, time.monotonic())
    else:
        topology.broken(lock, sent, time.monotonic())
    finally:
        if connection is not None:
            connection.close()
    return True


def cut(topology):
    """The way to a server is cut: connections end, and new ones are refused."""

    def act(fault, node):
        for door in topology.doors_of(node):
            door.cut()
        return lambda: [door.mend() for door in topology.doors_of(node)]

    return act


def stall(topology, *ways):
    """Drops all traffic these ways to or from a server, without notice."""

    def act(fault, node):
        for door in topology.doors_of(node):
            door.stall(*(ways or WAYS_OF[fault.detail]))
        return lambda: [door.mend() for door in topology.doors_of(node)]

    return act
