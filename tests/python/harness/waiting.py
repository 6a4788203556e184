"""A request that waits in line while the test continues.

    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    assert bob.waits()
    cli("LOCK.RELEASE door alice")
    token = bob.answer()
"""

import socket
import struct

from .limits import A_WHILE_SECONDS, SOON_SECONDS, eventually


class Request:
    """A command sent on a connection of its own, whose reply may come later."""

    def __init__(self, server, connection, arguments):
        self.server = server
        self.connection = connection
        self.client_id = connection("CLIENT ID")
        connection.send(*arguments)
        # Only a request that the server has parked, or answered, has its place
        # in line; without this, requests sent one after the other could swap.
        eventually(
            lambda: self.is_blocked() or connection.has_input(),
            "the server takes the request",
        )

    def is_blocked(self):
        """Returns whether the server says that this client is blocked."""
        line = self.server.admin("CLIENT", "LIST", "ID", self.client_id)
        fields = dict(field.partition("=")[::2] for field in line.split())
        return "b" in fields.get("flags", "")

    def waits(self):
        """Still not answered, after the server had some turns to do it wrongly."""
        for _ in range(3):
            self.server.admin("PING")
        return not self.connection.has_input(A_WHILE_SECONDS) and self.is_blocked()

    def answer(self, limit=SOON_SECONDS):
        """The reply; an error is raised."""
        return self.connection.read(limit)

    def was_closed(self):
        """The server closes the connection without an answer, soon."""
        return self.connection.is_closed(SOON_SECONDS)

    def leave(self):
        """The client leaves in the orderly way."""
        self.connection.close()

    def crash(self):
        """The client's machine resets the connection."""
        linger = struct.pack("ii", 1, 0)
        self.connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()
