"""A false replica: it reads its primary's stream, and acknowledges it when a script says so."""

import socket
import time
from pathlib import Path

from harness.limits import SOON_SECONDS
from harness.wire import encode


class Follower:
    """Follows this server, whose clock advances only by `passes`."""

    def __init__(self, server, passes):
        self.socket = socket.create_connection(("127.0.0.1", server.port), SOON_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received, self.read = b"", 0
        self.socket.sendall(encode("REPLCONF", "listening-port", "1"))
        assert self.line() == b"+OK"
        self.socket.sendall(encode("PSYNC", "?", "-1"))
        self.offset = int(self.line().split()[2])
        ends(server.process.pid)
        # The server learns by its cron that its child is done.
        passes()
        size = self.line()
        self.exactly(int(size[1:]))
        self.acknowledges()

    def line(self):
        """The next line. An empty one keeps the connection alive while the snapshot is written."""
        while b"\r\n" not in self.received.lstrip(b"\n"):
            self.receives()
        self.received = self.received.lstrip(b"\n")
        line, _, self.received = self.received.partition(b"\r\n")
        return line

    def exactly(self, size):
        while len(self.received) < size:
            self.receives()
        data, self.received = self.received[:size], self.received[size:]
        return data

    def receives(self):
        data = self.socket.recv(1 << 16)
        assert data, "the server closed the link"
        self.received += data

    def told(self):
        """The bytes that have arrived since."""
        self.socket.setblocking(False)
        try:
            while data := self.socket.recv(1 << 16):
                self.received += data
        except BlockingIOError:
            pass
        self.socket.setblocking(True)
        data, self.received = self.received, b""
        self.read += len(data)
        return data

    def acknowledges(self):
        """Says that it has all that it has read."""
        self.socket.sendall(encode("REPLCONF", "ACK", self.offset + self.read))

    def close(self):
        self.socket.close()


def ends(process):
    """Waits until the children of this process have ended, before the parent has waited for them."""
    deadline = time.monotonic() + SOON_SECONDS
    while any(is_running(child) for child in children(process)):
        assert time.monotonic() < deadline, "a snapshot is not written in time"
        time.sleep(0.001)


def children(process):
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
