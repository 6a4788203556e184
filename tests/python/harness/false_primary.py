"""A false primary: it sends its replica the commands that a test wants.

    primary = FalsePrimary()
    replica.admin("REPLICAOF 127.0.0.1", primary.port)
    primary.admit()
    primary.tell(encode("LOCK.APPLY door 1 HOLD 5 60000 alice"))
    primary.until_applied()
"""

import socket

from .limits import SOON_SECONDS
from .wire import Closed, encode

# A snapshot of a server without keys; a checksum of zeros is none.
EMPTY_SNAPSHOT = b"REDIS0009" + b"\xff" + bytes(8)


class FalsePrimary:
    """Waits on a port of its own for one replica."""

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(SOON_SECONDS)
        self.port = self._listener.getsockname()[1]
        self._link = None
        self._received = None
        self._told_bytes = 0

    def admit(self):
        """Lets the replica in, and gives it a snapshot without keys."""
        self._link, _ = self._listener.accept()
        self._link.settimeout(SOON_SECONDS)
        self._received = self._link.makefile("rb")
        while (asked := self._command())[0] not in (b"PSYNC", b"SYNC"):
            self._link.sendall(b"+PONG\r\n" if asked == [b"PING"] else b"+OK\r\n")
        self._link.sendall(b"+FULLRESYNC %s 0\r\n" % (b"a" * 40))
        self._link.sendall(b"$%d\r\n%s" % (len(EMPTY_SNAPSHOT), EMPTY_SNAPSHOT))

    def tell(self, sent):
        """Sends these bytes down the stream."""
        self._told_bytes += len(sent)
        self._link.sendall(sent)

    def until_applied(self):
        """Waits until the replica says that it has applied all of it."""
        told, asked = self._told_bytes, encode("REPLCONF GETACK *")
        self.tell(asked)
        while True:
            command = self._command()
            if command[:2] == [b"REPLCONF", b"ACK"] and int(command[2]) >= told:
                return

    def close(self):
        """Leaves the replica alone."""
        for end in (self._received, self._link, self._listener):
            if end is not None:
                end.close()

    def _command(self):
        """The next command of the replica."""
        head = self._received.readline()
        if not head.startswith(b"*"):
            raise Closed(f"the replica has left: {head!r}")
        words = []
        for _ in range(int(head[1:])):
            size = int(self._received.readline()[1:])
            words.append(self._received.read(size + 2)[:-2])
        return words
