"""The protocol between client and server (RESP3): bytes in, replies out. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Word = bytes | str | int
Command = tuple[Word, ...]


#: The answer of a TLS server to a client that does not speak TLS: an alert, of any version.
_ALERT = b"\x15\x03"


class ReplyError(Exception):
    """An error reply of the server. Its text begins with a code, such as LOCKKIND."""


class Push(list[Any]):
    """A message that the server sends unasked."""


class _Incomplete(Exception):
    """The rest of the reply has not arrived yet."""


def pack(*words: Word) -> bytes:
    """Encodes a command for the server."""
    packed = b"*%d\r\n" % len(words)
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        packed += b"$%d\r\n%b\r\n" % (len(data), data)
    return packed


class Parser:
    """Parses arriving bytes, in pieces of any size, into replies."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0

    def feed(self, data: bytes) -> Iterator[Any]:
        """Takes arriving bytes, and yields each reply that is complete now."""
        self._data += data
        while self._at < len(self._data):
            begin = self._at
            try:
                reply = self._reply()
            except _Incomplete:
                self._at = begin
                break
            yield reply
        self._data, self._at = self._data[self._at :], 0

    def _bulk(self, size: int) -> bytes:
        end = self._at + size
        if len(self._data) < end + 2:
            raise _Incomplete
        data = self._data[self._at : end]
        self._at = end + 2
        return data

    def _many(self, count: int) -> list[Any]:
        return [self._reply() for _ in range(count)]

    def _reply(self) -> Any:
        end = self._data.find(b"\r\n", self._at)
        if end < 0:
            if self._data.startswith(_ALERT, self._at):
                raise ReplyError("the server wants TLS: give the client ssl=True, or a URL that begins with rediss://")
            raise _Incomplete
        line = self._data[self._at : end]
        self._at = end + 2
        kind, rest = line[:1], line[1:]
        if rest == b"-1":  # null, as RESP2 says it, or the number
            return -1 if kind == b":" else None
        try:
            return _READERS[kind](self, rest)
        except (KeyError, ValueError):
            raise ReplyError(f"the server does not speak RESP: {line[:40]!r}") from None

    def _map(self, rest: bytes) -> dict[Any, Any]:
        flat = self._many(2 * int(rest))
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def _after_attributes(self, rest: bytes) -> Any:
        self._many(2 * int(rest))
        return self._reply()


_READERS: dict[bytes, Callable[[Parser, bytes], Any]] = {
    b":": lambda _, rest: int(rest),
    b"(": lambda _, rest: int(rest),
    b"_": lambda _, rest: None,
    b"+": lambda _, rest: rest,
    b"-": lambda _, rest: ReplyError(rest.decode(errors="replace")),
    b"#": lambda _, rest: rest == b"t",
    b",": lambda _, rest: float(rest),
    b"$": lambda parser, rest: parser._bulk(int(rest)),
    b"=": lambda parser, rest: parser._bulk(int(rest)),
    b"!": lambda parser, rest: ReplyError(parser._bulk(int(rest)).decode(errors="replace")),
    b"*": lambda parser, rest: parser._many(int(rest)),
    b"~": lambda parser, rest: parser._many(int(rest)),
    b">": lambda parser, rest: Push(parser._many(int(rest))),
    b"%": Parser._map,
    b"|": Parser._after_attributes,
}
