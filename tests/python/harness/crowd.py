"""Clients by the ten thousand in one process, each of which says one thing and waits for one line.

    with Crowd(server.port, 19_000) as crowd:
        crowd.say(range(19_000), lambda number: encode(f"LOCK.ACQUIRE door w{number} PX 60000 BLOCK 0"))
        crowd.hear(on_line, until)
"""

import resource
import select
import socket
import struct
import time

from .limits import SLOW_FACTOR
from .wire import encode

#: Files that a process has open besides its connections.
OTHER_FILES = 150

#: Connections opened between two looks at whether the server keeps up: fewer than may stand at its door.
STRIDE = 250

#: Clients of one address, which has only some 28,000 ports to give out.
OF_ONE_ADDRESS = 5_000

RESET = struct.pack("ii", 1, 0)


def allow_files(count):
    """Lets this process, and the servers it starts, have `count` connections. False: the system does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + OTHER_FILES
    if resource.RLIM_INFINITY not in (soft, hard) and hard < wanted:
        return False
    if soft not in (resource.RLIM_INFINITY,) and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return True


class Crowd:
    """A number of connections of one user. The members are known by their numbers."""

    def __init__(self, port, count, user):
        self.port = port
        self.members = {}
        self._poll = select.epoll()
        self._number_of = {}
        self._parts = {}
        self._user = user
        self.fill(range(count))

    def fill(self, numbers):
        """Opens the connections of these members that are not there."""
        new = []
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as pace:
            for number in numbers:
                if number in self.members:
                    continue
                source = (f"127.0.0.{2 + number // OF_ONE_ADDRESS}", 0)
                address = ("127.0.0.1", self.port)
                member = socket.create_connection(address, timeout=60, source_address=source)
                self._number_of[member.fileno()] = number
                self.members[number] = member
                self._poll.register(member, select.EPOLLIN)
                new.append(number)
                if len(new) % STRIDE == 0:
                    pace.sendall(b"PING\r\n")
                    assert pace.recv(7) == b"+PONG\r\n"
        left = set(new)
        self.say(new, lambda _: encode("AUTH", self._user, "any"))

        def on_line(number, line):
            assert line == b"+OK", line
            left.discard(number)

        self.hear(on_line, lambda: not left)

    def say(self, numbers, words):
        """Each of these members sends the command that `words` makes of its number, in their order."""
        for number in numbers:
            self.members[number].sendall(words(number))

    def hear(self, on_line, until, limit=60.0 * SLOW_FACTOR):
        """Calls `on_line` with the member and the line for every line that comes, None for a connection that closed,
        until `until` is true."""
        deadline = time.monotonic() + limit
        while not until():
            assert time.monotonic() < deadline, "what the crowd waits for does not come"
            for file, _ in self._poll.poll(0.5, 4096):
                number = self._number_of.get(file)
                if number is not None:
                    self._read(number, on_line)
                if until():
                    break

    def _read(self, number, on_line):
        try:
            data = self.members[number].recv(4096)
        except ConnectionError:
            data = b""
        if not data:
            self.drop(number)
            on_line(number, None)
            return
        *lines, rest = (self._parts.pop(number, b"") + data).split(b"\r\n")
        if rest:
            self._parts[number] = rest
        for line in lines:
            on_line(number, line)

    def drop(self, number, reset=True):
        """One member closes its connection; as a machine that goes down would, or in the orderly way."""
        member = self.members.pop(number)
        self._poll.unregister(member)
        del self._number_of[member.fileno()]
        self._parts.pop(number, None)
        if reset:
            member.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        member.close()

    def leave(self, numbers=None, reset=True):
        """These members, or all, close their connections at once."""
        for number in list(self.members) if numbers is None else numbers:
            self.drop(number, reset)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.leave()
        self._poll.close()
