"""A connection that speaks RESP2 and RESP3 and can show the exact bytes.

    cli = Connection(port)
    cli("LOCK.ACQUIRE door alice PX 10000")     words, as one types them
    cli("SET", key, b"\\xff a value")            or one argument each
    cli.bytes_of("PING")                        b"+PONG\\r\\n"

Replies become Python values; bulk strings are text, in which bytes that are not
UTF-8 stand as surrogates (os.fsencode gives them back). An error reply is raised
as ServerError; inside an array, or from pipeline(), it is a value.
"""

import select
import socket
import time
from contextlib import contextmanager

from .limits import SOON_SECONDS


class ServerError(Exception):
    """An error reply: its first word is the code, the rest is for people."""

    def __init__(self, line):
        super().__init__(line)
        self.line = line
        self.code, _, self.text = line.partition(" ")


class NoReply(AssertionError):
    """The server did not answer in time."""


class Closed(Exception):
    """The server closed the connection."""


class Push(list):
    """A push message of a RESP3 server."""


@contextmanager
def refused(code, *fragments):
    """The command in this block is refused with this code, naming these things."""
    try:
        yield
    except ServerError as error:
        assert error.code == code, error.line
        for fragment in fragments:
            assert fragment.lower() in error.line.lower(), error.line
        return
    raise AssertionError(f"accepted, but {code} was expected")


def encode(*arguments):
    """A command as bytes. One text alone is split at its blanks, as a shell would."""
    if len(arguments) == 1 and isinstance(arguments[0], str):
        arguments = arguments[0].split()
    packet = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        if not isinstance(argument, bytes):
            argument = str(argument).encode("utf-8", "surrogateescape")
        packet.append(b"$%d\r\n%s\r\n" % (len(argument), argument))
    return b"".join(packet)


def words(command):
    """The arguments of a pipelined command: a text to split, or a tuple."""
    return (command,) if isinstance(command, str) else command


class Connection:
    """One client of a server."""

    def __init__(self, port, protocol=2, db=0, host="127.0.0.1"):
        self.socket = socket.create_connection((host, port), timeout=SOON_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = bytearray()
        self.pushes = []
        self.taken = bytearray()
        if protocol == 3:
            self("HELLO 3")
        if db:
            self("SELECT", db)

    def __call__(self, *arguments, limit=SOON_SECONDS):
        """Sends a command and returns its reply."""
        self.send(*arguments)
        return self.read(limit)

    def bytes_of(self, *arguments):
        """Sends a command and returns the bytes of its reply, whatever it is."""
        self.send(*arguments)
        self._read_value(time.monotonic() + SOON_SECONDS)
        return bytes(self.taken)

    def pipeline(self, *commands):
        """Sends several commands in one packet; returns all replies, errors too."""
        self.send_bytes(b"".join(encode(*words(command)) for command in commands))
        return [self.read_any() for _ in commands]

    def send(self, *arguments):
        """Sends a command and does not wait for its reply."""
        self.send_bytes(encode(*arguments))

    def send_bytes(self, data):
        """Sends these bytes as they are."""
        self.socket.settimeout(SOON_SECONDS)
        try:
            self.socket.sendall(data)
        except ConnectionError:
            raise Closed("the server closed the connection") from None

    def read(self, limit=SOON_SECONDS):
        """The next reply; an error is raised."""
        value = self.read_any(limit)
        if isinstance(value, ServerError):
            raise value
        return value

    def read_any(self, limit=SOON_SECONDS):
        """The next reply, an error as a value. Pushes go to self.pushes."""
        deadline = time.monotonic() + limit
        while True:
            value = self._read_value(deadline)
            if not isinstance(value, Push):
                return value
            self.pushes.append(value)

    def has_input(self, seconds=0.0):
        """Returns whether the server has sent something that was not read yet."""
        if self.received:
            return True
        return bool(select.select([self.socket], [], [], seconds)[0])

    def is_closed(self, seconds=0.0):
        """Returns whether the server closed the connection and sent nothing before."""
        if self.received or not self.has_input(seconds):
            return False
        try:
            return self.socket.recv(1, socket.MSG_PEEK) == b""
        except ConnectionError:
            return True

    def close(self):
        """Closes this side. May be called again."""
        self.socket.close()

    def _read_value(self, deadline):
        self.taken = bytearray()
        return self._value(deadline)

    def _value(self, deadline):
        line = self._line(deadline)
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return _text(rest)
        if kind == b"-":
            return ServerError(_text(rest))
        if kind in (b":", b"("):
            return int(rest)
        if kind == b"_":
            return None
        if kind == b",":
            return float(rest)
        if kind == b"#":
            return rest == b"t"
        size = int(rest)
        if size < 0:
            return None
        if kind in (b"$", b"=", b"!"):
            text = _text(self._exactly(size + 2, deadline)[:-2])
            return ServerError(text) if kind == b"!" else text
        if kind in (b"*", b"~"):
            return [self._value(deadline) for _ in range(size)]
        if kind == b">":
            return Push(self._value(deadline) for _ in range(size))
        if kind == b"|":  # an attribute, of the value behind it
            for _ in range(2 * size):
                self._value(deadline)
            return self._value(deadline)
        if kind == b"%":
            return {self._value(deadline): self._value(deadline) for _ in range(size)}
        raise AssertionError(f"this is not RESP: {line!r}")

    def _line(self, deadline):
        while b"\r\n" not in self.received:
            self._receive(deadline)
        return self._exactly(self.received.index(b"\r\n") + 2, deadline)[:-2]

    def _exactly(self, size, deadline):
        while len(self.received) < size:
            self._receive(deadline)
        data = bytes(self.received[:size])
        del self.received[:size]
        self.taken += data
        return data

    def _receive(self, deadline):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([self.socket], [], [], left)[0]:
            raise NoReply("the server did not answer in time")
        try:
            data = self.socket.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            raise Closed("the server closed the connection")
        self.received += data


def _text(data):
    return data.decode("utf-8", "surrogateescape")
