"""Connections: one that many tasks share, and one for a thread that blocks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import socket
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from ._info import module_version, shown_version
from ._resp import Command, Parser, Push, ReplyError, pack
from ._rules import MODULE_VERSION_MIN, Address, clock
from ._settings import Login, named
from .errors import ConnectionFailedError

logger = logging.getLogger("redislock")
#: Seconds for which a new connection is kept though its server says that it is not a primary.
STAYS = 1.0


R = TypeVar("R")
#: Replies to HELLO of servers and proxies that speak only RESP2.
_NO_HELLO = re.compile(r"NOPROTO|.*(unknown|unsupported) command", re.IGNORECASE)


class Broken(Exception):
    """The connection ended or was never made, or the server did not answer in time."""

    #: True if the request may have reached the server.
    was_sent = False


def by_tls(login: Login) -> str:
    """Suggests TLS settings as a possible cause if a connection is not made in time."""
    return ", with TLS, which it may not speak" if login.tls else ""


def unreached(error: BaseException, address: Address | None, login: Login) -> ConnectionFailedError:
    """Makes the error for an unreachable server, with the message of the system or of a provider of passwords."""
    text = str(error) or f"no connection to {named(address)} in time{by_tls(login)}"
    host, port = address or ("", 0)
    failure = ConnectionFailedError(f"no server answered in time: {text}", host=host, port=port)
    failure.__cause__ = error.__cause__
    return failure


def _no_password(name: str, error: Exception) -> Broken:
    """Makes the error for a provider that failed. It is asked again for the next connection."""
    return Broken(f"could not get the credentials for {name}: {type(error).__name__}: {error}")


def in_thread(name: str, call: Callable[[], R]) -> Future[R]:
    """Calls this in a thread of its own, and returns its outcome; RuntimeError if no thread can be started.

    asyncio's executor has few threads, and it ends before the last threads of a program, or when it is ended.
    """
    done: Future[R] = Future()
    done.set_running_or_notify_cancel()  # whoever waits for it may be cancelled, the call is not

    def run() -> None:
        try:
            done.set_result(call())
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


async def _addresses(host: str, port: int) -> list[str]:
    """Returns the addresses of a host, at least one.

    A thread of its own looks them up, or this one if no thread can be started.
    """
    look_up = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    try:
        found = await asyncio.wrap_future(in_thread("redislock-names", look_up))
    except RuntimeError:
        found = look_up()
    # Each address once, in the order of the results.
    return list(dict.fromkeys(str(info[4][0]) for info in found))


def _refusal(name: str, command: Command, reply: ReplyError) -> ReplyError:
    """Explains a server's refusal of a login, with a remedy."""
    text = str(reply)
    if command[0] == "HELLO" and _NO_HELLO.match(text):
        what = text.partition(", with args")[0]
        text = f"{name} has no RESP3 (HELLO: {what}). Use the server's own address, not that of a proxy"
    elif text.startswith("NOAUTH"):
        text = f"NOAUTH {name} requires a login: give the client a username and a password"
    return ReplyError(text if name in text else f"{text} ({name})")


def check_version(name: str, login: Login, reply: Any) -> None:
    """Logs that the module of this server is too old. A missing module is reported by the first request."""
    old = module_version(reply)
    if old is not None and old < MODULE_VERSION_MIN and name not in login.outdated:
        login.outdated.add(name)
        text = "the module redislock on %s is version %s, and this client needs %s or later: upgrade the module"
        logger.warning(text, name, shown_version(old), shown_version(MODULE_VERSION_MIN))


class Link(asyncio.Protocol):
    """A connection that pipelines the requests of many tasks; pushes arrive in between."""

    def __init__(self, name: str, on_push: Callable[[Push], None], on_end: Callable[[Link], None]) -> None:
        #: The configured address, and the one that it led to, for people to read.
        self.name, self.peer = name, ""
        self._parser = Parser()
        self._pending: deque[asyncio.Future[Any]] = deque()
        self._transport: asyncio.Transport | None = None
        self._on_push, self._on_end = on_push, on_end
        self._loop = asyncio.get_running_loop()
        self.is_open, self.opened = False, clock()
        #: True if a reply did not arrive in time. The request may still reach the server.
        self.is_given_up = False
        #: True if the server reports changes of the keys that were read here.
        self.is_told = False
        #: The last reply to HELLO.
        self.hello: Any = None

    @classmethod
    async def connect(
        cls,
        address: Address,
        login: Login,
        on_push: Callable[[Push], None] = lambda _: None,
        on_end: Callable[[Link], None] = lambda _: None,
        *,
        is_told: bool = False,
    ) -> Link:
        """Opens a new connection.

        Raises Broken if it cannot be made in time, ReplyError if the server refuses the login.
        """
        link = cls(named(address), on_push, on_end)
        try:
            async with asyncio.timeout(login.timeout):
                await link._open(address, login)
                if is_told:
                    told = await link.send("CLIENT", "TRACKING", "ON")
                    link.is_told = not isinstance(told, ReplyError)
        except (OSError, TimeoutError, ValueError, OverflowError, RuntimeError) as error:
            link.close()
            reason = str(error) or f"no connection within {login.timeout:g} s{by_tls(login)}"
            raise Broken(f"{link.name} does not answer: {reason}") from error
        except BaseException:
            link.close()
            raise
        return link

    async def _open(self, address: Address, login: Login) -> None:
        host, port = address
        if login.door is not None:
            login.door.attach(self)
        elif port == 0:
            await self._loop.create_unix_connection(lambda: self, host)
        else:
            name = host if login.tls is not None else None
            *first, last = await _addresses(host, port)
            for each in first:
                with contextlib.suppress(OSError):
                    await self._loop.create_connection(lambda: self, each, port, ssl=login.tls, server_hostname=name)
                    break
            else:
                await self._loop.create_connection(lambda: self, last, port, ssl=login.tls, server_hostname=name)
        try:
            commands = await login.begin()
        except Exception as error:
            raise _no_password(self.name, error) from error
        for command in commands:
            try:
                reply = await self.send(*command)
            except Broken as error:
                raise Broken(f"{error}, at the login: it may want TLS, or be a proxy without RESP3") from None
            if isinstance(reply, ReplyError):
                raise _refusal(self.name, command, reply)
            check_version(self.name, login, reply)

    @property
    def is_busy(self) -> bool:
        """True if a reply is missing."""
        return bool(self._pending)

    def send(self, *command: Any) -> asyncio.Future[Any]:
        """Sends at once and in order. The future yields the reply, which may be a ReplyError, or raises Broken."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            future.set_exception(Broken(f"the connection to {self.name} is closed"))
            future.exception()  # mark as retrieved: some senders ignore it
            return future
        self._pending.append(future)
        self._transport.write(pack(*command))
        return future

    async def call(self, command: Command, timeout: float) -> Any:
        """Returns the reply. If none arrives in time, the connection is closed, because other replies may be missing,
        too."""
        future = self.send(*command)
        alarm = self._loop.call_later(timeout, self._too_late, future, timeout)
        try:
            return await future
        finally:
            alarm.cancel()

    def _too_late(self, future: asyncio.Future[Any], timeout: float) -> None:
        if not future.done():
            self.is_given_up = True
            self._fail(Broken(f"no reply from {self.name} for {timeout:.1f} s"))

    def close(self) -> None:
        """Ends the connection. All who wait for a reply get Broken."""
        self._fail(Broken(f"the connection to {self.name} was closed"))

    def _fail(self, error: Exception) -> None:
        was_open, self.is_open = self.is_open, False
        if self._transport is not None:
            self._transport.abort()
        pending, self._pending = self._pending, deque()
        for future in pending:
            if not future.done():
                future.set_exception(error)
                future.exception()  # seen: a caller that was cancelled does not look
        if was_open:
            self._on_end(self)

    # The callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True
        known = transport.get_extra_info("socket")
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple) and named(peer[:2]) != self.name:
            self.peer = f" at {peer[0]}"
        if known is not None:
            known.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        try:
            for reply in self._parser.feed(data):
                if isinstance(reply, Push):
                    self._on_push(reply)
                elif self._pending:
                    future = self._pending.popleft()
                    if not future.done():
                        future.set_result(reply)
        except ReplyError as error:
            self._fail(ReplyError(f"{error} ({self.name})"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(Broken(f"the connection to {self.name} ended: {exc or 'closed by the server'}"))


def is_old(link: Link | BlockingLink) -> bool:
    """Returns whether this address may lead to another server by now. This limits how often a non-primary is left."""
    return clock() >= link.opened + STAYS


class BlockingLink:
    """A connection for one request at a time."""

    def __init__(self, address: Address, login: Login, until: float) -> None:
        self.opened = clock()
        self._parser = Parser()
        try:
            self._socket = self._open(address, login, min(login.timeout, max(until - clock(), 0.01)))
        except (OSError, ValueError, OverflowError) as error:
            raise Broken(str(error)) from error
        try:
            try:
                commands = login.handshake()
            except Exception as error:
                raise _no_password(named(address), error) from error
            for command in commands:
                reply = self.call(command, until)
                if isinstance(reply, ReplyError):
                    raise _refusal(named(address), command, reply)
                check_version(named(address), login, reply)
        except BaseException:
            self.close()  # else the connection lasts as long as the error
            raise

    @staticmethod
    def _open(address: Address, login: Login, timeout: float) -> socket.socket:
        host, port = address
        if login.door is not None:
            return cast(socket.socket, login.door.socket())
        if port == 0:
            opened = socket.socket(socket.AF_UNIX)
            opened.settimeout(timeout)
            opened.connect(host)
            return opened
        opened = socket.create_connection(address, timeout)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened if login.tls is None else login.tls.wrap_socket(opened, server_hostname=host)

    def call(self, command: Command, until: float) -> Any:
        """Returns the reply, which may be a ReplyError. After an exception, the connection is unusable."""
        try:
            self._socket.settimeout(max(until - clock(), 0.01))
            self._socket.sendall(pack(*command))
            while data := self._socket.recv(65536):
                if replies := list(self._parser.feed(data)):
                    return replies[0]
        except OSError as error:
            raise Broken(str(error)) from error
        raise Broken("the server closed the connection")

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()


class Pool:
    """Blocking connections for threads, at most `most` of them in use."""

    def __init__(self, login: Login, most: int) -> None:
        self._login = login
        #: Has an item for each connection that may be in use. A queue in C takes less time than a semaphore.
        self._places: SimpleQueue[None] = SimpleQueue()
        for _ in range(most):
            self._places.put(None)
        self._idle: dict[Address, list[BlockingLink]] = {}
        self._is_closed = False

    def call(self, address: Address, command: Command, until: float) -> Any:
        """Returns the reply, which may be a ReplyError. Raises Broken if there is none by then, connecting included."""
        try:
            self._places.get(timeout=max(until - clock(), 0.01))
        except Empty:
            raise Broken("all connections are busy") from None
        try:
            idle = self._idle.setdefault(address, [])
            try:
                link = idle.pop()
            except IndexError:
                link = BlockingLink(address, self._login, until)
            try:
                reply = link.call(command, until)
            except BaseException:
                link.close()
                raise
            idle.append(link)
            if self._is_closed:
                self.close()
            return reply
        finally:
            self._places.put(None)

    def leave(self, address: Address) -> bool:
        """Closes the idle connections to a server that is not a primary. Returns whether a new one may lead to another
        server."""
        known = self._idle.get(address, [])
        old = [link for link in known if is_old(link)]
        for link in old:
            known.remove(link)
            link.close()
        return bool(old)

    def close(self) -> None:
        """Closes all idle connections. Busy ones are closed after their reply."""
        self._is_closed = True
        for idle in list(self._idle.values()):
            while idle:
                try:
                    idle.pop().close()
                except IndexError:
                    break
