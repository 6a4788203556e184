"""Clients by the ten thousand, who say one thing each and wait."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable

from .servers import Connection, Server

#: Files that a process has open besides its connections.
OTHER_FILES = 200

#: Connections opened between two looks at whether the server keeps up: fewer than may stand at its door.
STRIDE = 250


def allow_files(count: int) -> bool:
    """Lets this process, and the servers it starts, have `count` connections. `False`: the system does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + OTHER_FILES
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return True
    if hard < wanted and hard != resource.RLIM_INFINITY:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return True


class Crowd:
    """A number of connections. Use it in a `with` statement."""

    def __init__(self, server: Server, count: int) -> None:
        self.members: list[socket.socket] = []
        with server.connect() as pace:
            for number in range(count):
                self.members.append(socket.create_connection(("127.0.0.1", server.port), timeout=60))
                if number % STRIDE == 0:
                    pace.call("PING")

    def say(self, words: Callable[[int], bytes], start: int = 0, stop: int | None = None) -> None:
        """Each of these members sends what `words` gives for its number, in their order."""
        for number, member in enumerate(self.members[start:stop], start):
            member.sendall(words(number))

    def hear(self, start: int = 0, stop: int | None = None) -> None:
        """Each of these members reads its reply, which may not be an error or a nil."""
        for member in self.members[start:stop]:
            seen = member.recv(1 << 16)
            if not seen.endswith(b"\r\n") or seen[:1] == b"-" or b"-1" in seen:
                raise RuntimeError(f"not what was waited for: {seen!r}")

    def leave(self) -> None:
        """All close their connections at once."""
        for member in self.members:
            member.close()
        self.members = []

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


def field(connection: Connection, section: str, name: str) -> int:
    """A number that INFO tells."""
    for line in bytes(connection.call("INFO", section)).splitlines():
        if line.startswith(name.encode() + b":"):
            return int(line.partition(b":")[2])
    raise KeyError(name)


def await_waiter(connection: Connection, name: str) -> None:
    """Polls until somebody waits for this lock."""
    for _ in range(1_000):
        info = connection.call("LOCK.INFO", name)
        if info[info.index(b"waiters") + 1] == b":1":
            return
        time.sleep(0.01)
    raise RuntimeError(f"nobody came to wait for {name}")
