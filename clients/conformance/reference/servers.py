"""Connections to servers: a few for requests that are answered at once, some for waits, and one for pushes."""

import asyncio
import contextlib
import logging
import math
import random
import time

import redis.asyncio
from redis.asyncio.connection import Connection
from redis.asyncio.sentinel import Sentinel

from breaks import is_broken
from errors import ConnectionFailed, ELSEWHERE, said_by, translated

#: The time limit of an answer that the server gives at once.
PATIENCE = 2.0
#: The extra time for which a waiting connection is read: the server ends the wait itself.
MARGIN = 1.0
#: Between two attempts to reach a server: the first pause, and the longest.
PAUSE, LONGEST_PAUSE = 0.05, 1.0
#: The pause before a hold is followed again, if a server could not report on it.
AGAIN = 0.5
#: The time for which a request without a limit of its own is retried.
TRIES_FOR = 5.0
#: The time without any answer after which an unlimited wait fails.
SILENCE = 10.0
LOG = logging.getLogger("reference")
BROKEN = (redis.ConnectionError, redis.TimeoutError, OSError, asyncio.IncompleteReadError)


def is_elsewhere(error):
    """Returns whether another server must be asked, or the same one later."""
    if is_broken("unconfirmed-is-asked-again") and str(error).startswith("NOREPLICAS"):
        return True
    return isinstance(error, BROKEN) or is_refusal(error)


def is_refusal(error):
    """Returns whether a server has answered that it is not the right one, or not now."""
    return said_by(error).startswith(ELSEWHERE)


class Client:
    """The client that the user passes to the library.

    It knows how to connect and to log in, and the user may close it.
    """

    def __init__(self, login=None):
        self.login, self.is_closed = login, False

    def connection(self, address, protocol):
        """A raw connection that is not made yet."""
        return Connection(
            host=address[0], port=address[1], protocol=protocol, credential_provider=self.login, lib_name=None,
            socket_timeout=PATIENCE, socket_connect_timeout=PATIENCE, decode_responses=True,
        )  # fmt: skip


class Line:
    """A connection."""

    def __init__(self, client, address, protocol=2):
        self.client, self.address, self.raw = client, address, client.connection(address, protocol)

    async def connect(self):
        """Connects and logs in, if that is not done yet."""
        if self.client.is_closed:
            raise redis.ConnectionError("the client that was given to the library is closed")
        try:
            await self.raw.connect()
        except (*BROKEN, redis.RedisError):
            raise
        except Exception as error:  # of the user's own code, which gives the credentials
            if is_broken("a-login-that-fails-comes-out"):
                raise
            raise redis.ConnectionError(f"no credentials: {error!r}") from error

    async def send(self, *words):
        """Sends a command."""
        await self.connect()
        await self.raw.send_command(*words)
        # The driver sends by wait_for, which before Python 3.12 can forget a cancellation that arrives just then.
        if asyncio.current_task().cancelling():
            raise asyncio.CancelledError

    async def read(self, seconds, push=False):
        """Returns the reply, or a push; raises BROKEN if it does not arrive in time."""
        try:
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                return await self.raw.read_response(timeout=math.inf, push_request=push)
        except asyncio.TimeoutError:
            raise redis.TimeoutError(f"no reply in {seconds:.1f} s") from None

    async def close(self):
        """Closes it."""
        await self.raw.disconnect(nowait=True)


class Servers:
    """One server, the primary that sentinels know, or a cluster."""

    def __init__(self, client, mode, addresses, service=None, pool=8, waiting=16):
        self.client, self.mode, self.service = client, mode, service
        self.addresses = [split(each) for each in addresses]
        self.pool, self.slots = pool, asyncio.Semaphore(pool)
        self.waiting = asyncio.Semaphore(waiting)
        self.cluster = self.found = self.known = None
        self.idle, self.lines = [], set()
        self.closed = self.was_lost = False
        #: The time of a server's last answer, and, by name, the current refusals.
        self.heard, self.refusals, self.failure = time.monotonic(), {}, "no server was asked"

    async def address(self, name):
        """Returns the server to ask about this lock."""
        if self.mode == "sentinel":
            return await self._primary()
        if self.mode == "cluster":
            await self._cluster()
            node = self.cluster.get_node_from_key(name)
            return (node.host, node.port)
        return self.addresses[0]

    async def _primary(self):
        if self.found is not None:
            return self.found
        sentinel = Sentinel(self.addresses, socket_timeout=PATIENCE, socket_connect_timeout=PATIENCE)
        try:
            known, self.found = self.known, await sentinel.discover_master(self.service)
            self.known = self.found
            if known not in (None, self.found):
                LOG.info("the primary is %s:%d now; it was %s:%d", *self.found, *known)
            return self.found
        finally:
            for each in sentinel.sentinels:
                await each.aclose()

    async def _cluster(self):
        if self.cluster is None:
            nodes = [redis.asyncio.cluster.ClusterNode(*each) for each in self.addresses]
            self.cluster = redis.asyncio.RedisCluster(startup_nodes=nodes, decode_responses=True)
        await self.cluster.initialize()

    def has_no_other(self, error):
        """Returns whether a node of a cluster redirects a client that knows only this one."""
        return self.mode not in ("cluster", "sentinel") and isinstance(error, redis.exceptions.MovedError)

    async def failed(self, error, name, line):
        """Returns the failure, as text. The next request looks up the servers again, over new connections."""
        text = said_by(error) + (f" ({line.address[0]}:{line.address[1]})" if line is not None else "")
        if not is_refusal(error):
            self.was_lost, self.failure = True, text
            await self.moved()
            return text
        self.heard = time.monotonic()
        if self.refusals.get(name) != text:
            LOG.warning("%s cannot be asked for now: %s", name, text)
        self.refusals[name] = text
        # The address may lead to another server by now, though this one still answers.
        if not is_broken("stays-with-a-server-that-answers"):
            await self.moved()
        return text

    def answered(self, name, line):
        """Records that a server has answered as expected."""
        self.heard = time.monotonic()
        self.refusals.pop(name, None)
        if self.was_lost and not is_broken("reconnects-without-a-word"):
            LOG.info("reconnected to %s:%d", *line.address)
        self.was_lost = False

    def is_in_vain(self, until, since):
        """Returns whether to stop retrying a request, though there may be time left."""
        silence = time.monotonic() - max(since, self.heard)
        is_silent = until == math.inf and silence > SILENCE and not is_broken("waits-without-a-server")
        is_closed = self.client.is_closed and not is_broken("waits-for-a-closed-client")
        return self.closed or is_closed or is_silent

    def gives_up(self, name):
        """Returns the error for it. A server's answer says more than that none answers now."""
        return ConnectionFailed(f"{name}: {self.refusals.pop(name, self.failure)}")

    async def moved(self):
        """Makes the next request look up the servers again; idle connections may lead to a dead server."""
        if not is_broken("old-primary"):
            self.found = None
        idle, self.idle = self.idle, []
        for line in idle:
            await self.discard(line)
        if self.cluster is not None:
            cluster, self.cluster = self.cluster, None
            await cluster.aclose()

    async def ask(self, name, *words, until=None, since=None, told=None):
        """Returns the reply to a request that is answered at once; retried until that time, on the lock's current
        server."""
        since, pause = since or time.monotonic(), PAUSE
        until = until or time.monotonic() + TRIES_FOR
        is_doubtful = False
        while True:
            line = None
            patience = min(PATIENCE, max(0.5, until - time.monotonic()))
            if is_broken("tries-for-longer-than-it-may"):
                patience = 10.0
            try:
                async with self._slot(patience):
                    line = await self.free_line(name)
                    self.lines.add(line)
                    reply = await self._exchange(line, words, patience)
                    self.answered(name, line)
                    self.idle.append(line)
                    line = None
                return reply
            except (*BROKEN, redis.RedisError) as error:
                if not is_elsewhere(error) or self.has_no_other(error):
                    self.idle.append(line)
                    line = None
                    raise translated(error, is_doubtful) from error
                is_doubtful = is_doubtful or line is not None and not is_refusal(error)
                cause, text = error, await self.failed(error, name, line)
                if told is not None:
                    told(text)
                if is_refusal(error) and is_broken("stays-with-a-server-that-answers"):
                    self.idle.append(line)
                    line = None
            finally:
                await self.discard(line)
            if time.monotonic() + PAUSE > until or self.is_in_vain(until, since):
                raise self.gives_up(name) from cause
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(2 * pause, LONGEST_PAUSE) if not is_broken("a-new-connection-for-each-try") else 0.01

    @contextlib.asynccontextmanager
    async def _slot(self, seconds):
        """One of the connections that are not for waiting."""
        async with asyncio.timeout(seconds):
            await self.slots.acquire()
        try:
            yield
        finally:
            self.slots.release()

    async def _exchange(self, line, words, patience):
        """A request in flight is not cancelled: it would be executed after the release that follows."""
        async def exchange():
            await line.send(*words)
            return await line.read(patience)

        task = asyncio.create_task(exchange())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            task.cancelled() or task.exception()
            raise

    async def free_line(self, name):
        """Takes an idle connection to the lock's server."""
        address = await self.address(name)
        line = next((each for each in self.idle if each.address == address), None)
        if line is not None:
            self.idle.remove(line)
        return line or Line(self.client, address)

    async def new_line(self, name):
        """A connection of its own to the lock's server."""
        line = Line(self.client, await self.address(name))
        self.lines.add(line)
        return line

    async def discard(self, line):
        """Closes a connection that must not be reused."""
        if line is not None:
            self.lines.discard(line)
            await line.close()

    async def close(self):
        """Closes all."""
        self.closed = True
        for line in list(self.lines):
            await self.discard(line)
        await self.moved()


class Pushes:
    """Asks about holds on a connection over which the server reports their changes."""

    def __init__(self, client, address, changed):
        self.client, self.address, self.changed = client, address, changed
        self.line, self.replies, self.reader = None, [], None
        self.guard = asyncio.Lock()

    async def is_live(self, name, token):
        """Returns whether the token is live, and subscribes to changes. None: unknown."""
        try:
            async with self.guard:
                line = self.line = self.line or await self._open()
        except (*BROKEN, redis.RedisError):
            return None
        live = await self._ask(line, "LOCK.FENCE", name, token)
        if live == 0 and not is_broken("a-replica-tells-of-a-loss"):
            role = await self._ask(line, "ROLE")
            if role is None or role[0] != "master":  # a replica may not have it yet, or again
                self._drop(line, again=AGAIN)
                return None
        return live

    async def _ask(self, line, *words):
        answer = asyncio.get_running_loop().create_future()
        try:
            async with self.guard:
                if line is not self.line:
                    return None
                self.replies.append(answer)
                await line.send(*words)
            async with asyncio.timeout(PATIENCE):
                return await answer
        except (*BROKEN, redis.RedisError):
            return None

    async def _open(self):
        line = Line(self.client, self.address, protocol=3)
        try:
            await line.connect()
            line.raw._parser.set_invalidation_push_handler(as_it_is)
            await line.send("CLIENT", "TRACKING", "ON")
            await line.read(PATIENCE)
        except BaseException:
            await line.close()
            raise
        self.reader = asyncio.create_task(self._read(line))
        return line

    async def _read(self, line):
        try:
            while True:
                try:
                    message = await line.read(math.inf, push=True)
                except redis.ResponseError as error:
                    message = error
                if isinstance(message, list) and message[0] == "invalidate":
                    self.changed(message[1])
                elif self.replies and not (waits := self.replies.pop(0)).done():
                    is_error = isinstance(message, redis.ResponseError)
                    waits.set_result(message if not is_error else 0 if "WRONGTYPE" in str(message) else None)
        except BROKEN:
            pass
        finally:
            self._drop(line)
            await line.close()

    def _drop(self, line, again=PAUSE):
        """Stops using this connection.

        Its holds are followed again on another one, since changes may have been missed.
        """
        if line is None or line is not self.line:
            return
        self.line, replies, self.replies = None, self.replies, []
        if self.reader is not asyncio.current_task():
            self.reader.cancel()
        for each in replies:
            each.done() or each.set_result(None)
        self.changed(None, again)

    async def close(self):
        """Closes it."""
        self._drop(self.line)
        if self.reader is not None:
            await asyncio.wait([self.reader], timeout=PATIENCE)


async def as_it_is(message):
    """Passes an invalidation to the reader unchanged."""
    return message


def split(address):
    """127.0.0.1:7000 as host and port."""
    host, _, port = address.rpartition(":")
    return host, int(port)
