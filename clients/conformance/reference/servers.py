"""Connections to servers: a few for all that is answered at once, some to wait on, and one that hears pushes."""

import asyncio
import math
import time

import redis.asyncio
from redis.asyncio.connection import Connection
from redis.asyncio.sentinel import Sentinel

from breaks import is_broken
from errors import ConnectionFailed, translated

#: How long an answer may take that the server gives at once.
PATIENCE = 2.0
#: How much longer than the wait a waiting connection is read: the server ends the wait itself.
MARGIN = 2.0
#: Between two attempts to reach a server.
PAUSE = 0.05
#: How long a request that has no time of its own is tried.
TRIES_FOR = 5.0
BROKEN = (redis.ConnectionError, redis.TimeoutError, OSError, asyncio.IncompleteReadError)
#: Errors of a server that is not, or no longer, the one to ask.
ELSEWHERE = ("READONLY", "UNBLOCKED", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "LOADING")
ELSEWHERE_CLASSES = (
    "ReadOnlyError", "MovedError", "AskError", "TryAgainError", "ClusterDownError", "MasterDownError",
    "BusyLoadingError",
)  # fmt: skip


def is_elsewhere(error):
    """Whether another server has to be asked, or the same one later."""
    if isinstance(error, BROKEN):
        return True
    if is_broken("unconfirmed-is-asked-again") and str(error).startswith("NOREPLICAS"):
        return True
    # The driver has classes of its own for most of them, and takes the code off the text.
    return str(error).startswith(ELSEWHERE) or type(error).__name__ in ELSEWHERE_CLASSES


class Line:
    """A raw connection."""

    def __init__(self, address, protocol=2):
        self.address = address
        self.raw = Connection(
            host=address[0], port=address[1], protocol=protocol, socket_timeout=PATIENCE,
            socket_connect_timeout=PATIENCE, decode_responses=True, lib_name=None,
        )  # fmt: skip

    async def send(self, *words):
        """Sends a command."""
        await self.raw.connect()
        await self.raw.send_command(*words)
        # The driver sends by wait_for, which before Python 3.12 can forget a cancellation that comes just then.
        if asyncio.current_task().cancelling():
            raise asyncio.CancelledError

    async def read(self, seconds, push=False):
        """The reply, or a push; BROKEN if it does not come in time."""
        try:
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                return await self.raw.read_response(timeout=math.inf, push_request=push)
        except asyncio.TimeoutError:
            raise redis.TimeoutError("no reply in time") from None

    async def close(self):
        """Closes it."""
        await self.raw.disconnect(nowait=True)


class Servers:
    """One server, the primary that sentinels know, or a cluster."""

    def __init__(self, mode, addresses, service=None, pool=8, waiting=16):
        self.mode, self.addresses, self.service = mode, [split(each) for each in addresses], service
        self.pool, self.slots = pool, asyncio.Semaphore(pool)
        self.waiting = asyncio.Semaphore(waiting)
        self.cluster = self.found = None
        self.idle, self.lines = [], set()
        self.closed = False

    async def address(self, name):
        """The server that is to be asked about this lock."""
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
            self.found = await sentinel.discover_master(self.service)
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
        """Whether a node of a cluster names another one to a client that knows but this one."""
        return self.mode not in ("cluster", "sentinel") and isinstance(error, redis.exceptions.MovedError)

    async def moved(self):
        """Makes the next request ask anew which server is where; idle connections may be to a server that is gone."""
        if not is_broken("old-primary"):
            self.found = None
        idle, self.idle = self.idle, []
        for line in idle:
            await self.discard(line)
        if self.cluster is not None:
            cluster, self.cluster = self.cluster, None
            await cluster.aclose()

    async def ask(self, name, *words, until=None):
        """The reply to a request that is answered at once; tried until that time, on whichever server has the lock."""
        until = until or time.monotonic() + TRIES_FOR
        while True:
            line = None
            try:
                async with self.slots:
                    line = await self.free_line(name)
                    self.lines.add(line)
                    reply = await self._exchange(line, words)
                    self.idle.append(line)
                    line = None
                return reply
            except (*BROKEN, redis.RedisError) as error:
                if not is_elsewhere(error) or self.has_no_other(error):
                    self.idle.append(line)
                    line = None
                    raise translated(error) from error
                failure = error
                await self.moved()
            finally:
                await self.discard(line)
            if self.closed or time.monotonic() + PAUSE > until:
                raise ConnectionFailed(str(failure)) from failure
            await asyncio.sleep(PAUSE)

    async def _exchange(self, line, words):
        """A request that is on its way is not cancelled: it would be done after the release that follows."""
        async def exchange():
            await line.send(*words)
            return await line.read(PATIENCE)

        task = asyncio.create_task(exchange())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            task.cancelled() or task.exception()
            raise

    async def free_line(self, name):
        """A connection to the lock's server, from those that are idle."""
        address = await self.address(name)
        line = next((each for each in self.idle if each.address == address), None)
        if line is not None:
            self.idle.remove(line)
        return line or Line(address)

    async def new_line(self, name):
        """A connection of its own to the lock's server."""
        line = Line(await self.address(name))
        self.lines.add(line)
        return line

    async def discard(self, line):
        """Closes what is not to be used again."""
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
    """Asks about holds on a connection that the server tells when one of them changes."""

    def __init__(self, address, changed):
        self.address, self.changed = address, changed
        self.line, self.replies, self.reader = None, [], None
        self.guard = asyncio.Lock()

    async def is_live(self, name, token):
        """Whether the token is live; from now on a change is told. None: nobody can say."""
        async with self.guard:
            try:
                if self.line is None:
                    await self._open()
                answer = asyncio.get_running_loop().create_future()
                self.replies.append(answer)
                await self.line.send("LOCK.FENCE", name, token)
            except (*BROKEN, redis.RedisError):
                return None
        try:
            async with asyncio.timeout(PATIENCE):
                return await answer
        except asyncio.TimeoutError:
            return None

    async def _open(self):
        line = Line(self.address, protocol=3)
        try:
            await line.raw.connect()
            line.raw._parser.set_invalidation_push_handler(as_it_is)
            await line.send("CLIENT", "TRACKING", "ON")
            await line.read(PATIENCE)
        except BaseException:
            await line.close()
            raise
        self.line, self.replies = line, []
        self.reader = asyncio.create_task(self._read(line))

    async def _read(self, line):
        try:
            while True:
                try:
                    message = await line.read(math.inf, push=True)
                except redis.ResponseError as error:
                    message = error
                if isinstance(message, list):
                    self.changed(message[1])
                elif self.replies and not (waits := self.replies.pop(0)).done():
                    is_value = isinstance(message, redis.ResponseError) and "WRONGTYPE" in str(message)
                    waits.set_result(message if isinstance(message, int) else 0 if is_value else None)
        except BROKEN:
            self.line = None
            for each in self.replies:
                each.done() or each.set_result(None)
            await line.close()
            self.changed(None)  # nobody knows what was missed

    async def close(self):
        """Closes it."""
        if self.reader is not None:
            self.reader.cancel()
        if self.line is not None:
            await self.line.close()
            self.line = None


async def as_it_is(message):
    """What is done with an invalidation: the reader gets it."""
    return message


def split(address):
    """127.0.0.1:7000 as host and port."""
    host, _, port = address.rpartition(":")
    return host, int(port)
