"""A network between an adapter and a server, which fails as a case wants, and records the commands.

    door = Proxy(server.port)            a client of door.port reaches the server
    door.delay = lambda call: 0.3        delays each reply by the seconds that the function returns
    door.drop(is_grant)                  swallows the next reply of this kind, and cuts its connection
    door.cut(); door.shut(); door.open() ends connections; admits no new ones; admits them again
    door.half_close()                    ends the server's side of connections, but continues to read
    door.stall(); door.flow()            holds replies back; passes them on again
    door.swallow(); door.flow()          lets bytes vanish in both directions on open connections; then ends these
    door.lead_to(other)                  leads new connections to another server; open ones stay
    door.numbered                        the number of connections that were made
    door.calls("LOCK.RENEW")             the commands that passed
"""

import queue
import selectors
import socket
import threading
import time

from .resp import frame_end, words_of

CHUNK = 65536


class Call:
    """A command that an adapter sent, and its reply."""

    def __init__(self, link, words):
        self.link, self.words = link, words
        self.name = words[0].upper() if words else ""
        self.sent = time.monotonic()
        self.reply, self.replied = None, None

    def has(self, option):
        """True if this option is given."""
        return option in (word.upper() for word in self.words[2:])

    def owner(self):
        """The owner that sent this request."""
        return self.words[2 + int(self.words[1])] if self.name == "LOCK.MACQUIRE" else self.words[2]

    def is_granted(self):
        """True if the reply is a token."""
        return self.name in ("LOCK.ACQUIRE", "LOCK.MACQUIRE") and (self.reply or b"").startswith(b":")

    def __repr__(self):
        return f"{self.sent:.3f} #{self.link.number} {' '.join(self.words)} -> {self.reply!r}"


def is_grant(call):
    """Returns whether a reply is a grant, for drop()."""
    return call.is_granted()


class Link:
    """One connection through the proxy."""

    def __init__(self, number, client, server):
        self.number, self.client, self.server = number, client, server
        self.open_calls, self.received = [], bytearray()
        #: True if the server's bytes vanish; true if the client's do, including its end of stream.
        self.is_silent = self.is_deaf = False
        #: Replies in flight, and the times of their arrival.
        self.queue = queue.SimpleQueue()


class Proxy:
    """Passes commands and replies; each may be changed on the way."""

    def __init__(self, port):
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self.listener.getsockname()[1]
        self.guard = threading.RLock()
        self.links, self.log = [], []
        self.most = self.numbered = 0
        #: Seconds by which the reply to a call is delayed.
        self.delay = None
        self._drops = []
        self._is_shut = self._is_closed = False
        #: The directions in which bytes vanish on new connections: (requests, replies).
        self._swallows = (False, False)
        self._flows = threading.Event()
        self._flows.set()
        self._waiting = selectors.EpollSelector()
        self._waiting.register(self.listener, selectors.EVENT_READ)
        threading.Thread(target=self._go, daemon=True).start()

    @property
    def address(self):
        """The address, in the form for adapters."""
        return f"127.0.0.1:{self.port}"

    # Actions of a case

    def drop(self, kind, times=1, then="cut"):
        """Swallows the next replies of this kind; then the connection is "cut", or "silent" for good."""
        with self.guard:
            self._drops += [(kind, then)] * times

    def has_dropped(self):
        """True if all replies that were to be dropped are."""
        return not self._drops

    def cut(self):
        """Ends all connections."""
        with self.guard:
            links = list(self.links)
        for link in links:
            self._shut_link(link)

    def shut(self):
        """Lets no new connection in."""
        self._is_shut = True

    def open(self):
        """Lets connections in again."""
        self._is_shut = False

    def half_close(self):
        """Ends the server's side of all connections, but continues to read."""
        with self.guard:
            links = list(self.links)
        for link in links:
            try:
                link.client.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it was closed a moment ago

    def stall(self):
        """Holds replies back silently."""
        self._flows.clear()

    def swallow(self, requests=True, replies=True, later=False):
        """Lets bytes vanish silently on all connections; with `later`, also on new ones."""
        with self.guard:
            if later:
                self._swallows = (requests, replies)
            for link in self.links:
                link.is_deaf, link.is_silent = link.is_deaf or requests, link.is_silent or replies

    def flow(self):
        """Passes on the replies that were held back. Connections whose requests vanished end: the rest would make no
        sense."""
        with self.guard:
            self._swallows = (False, False)
            swallowed = [link for link in self.links if link.is_deaf]
        for link in swallowed:
            link.is_deaf = False
            self._shut_link(link)
            if link.client.fileno() < 0:  # the client has closed it, of which the server is told now
                _end(link.server)
        self._flows.set()

    def lead_to(self, server):
        """Leads new connections to another server, as an address that moves does."""
        self.target = server.port

    def calls(self, *names):
        """The commands of these names that passed."""
        with self.guard:
            return [call for call in self.log if call.name in names]

    def close(self):
        """Ends all, for good."""
        self.shut()
        self.flow()
        self.cut()
        self._is_closed = True

    # Inside

    def _go(self):
        """Accepts, and passes commands on, all in one thread: commands arrive in the order in which they were sent."""
        while not self._is_closed:
            for key, _ in self._waiting.select(0.5):
                try:
                    self._onward(key.data) if key.data else self._join(*self.listener.accept())
                except OSError:
                    self._forget(key.data)
        self._waiting.close()
        _end(self.listener)

    def _join(self, client, _):
        try:
            if self._is_shut:
                raise ConnectionError("shut")
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            return _end(client)
        for side in (client, server):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self.guard:
            self.numbered += 1
            link = Link(self.numbered, client, server)
            link.is_deaf, link.is_silent = self._swallows
            self.links.append(link)
            self.most = max(self.most, len(self.links))
        self._waiting.register(client, selectors.EVENT_READ, link)
        for way in (self._back, self._deliver):
            threading.Thread(target=self._run, args=[way, link], daemon=True).start()

    def _forget(self, link):
        if link is None:
            return
        try:
            self._waiting.unregister(link.client)
        except (KeyError, ValueError, OSError):
            pass  # it was closed, which takes it out, too
        self._close_link(link)

    def _close_link(self, link):
        if link.is_deaf:
            return _end(link.client)  # the server does not learn of it
        with self.guard:
            if link in self.links:
                self.links.remove(link)
        _end(link.client, link.server)

    def _onward(self, link):
        data = link.client.recv(CHUNK)
        if not data:
            raise ConnectionError("the client has closed it")
        if link.is_deaf:
            return
        link.received += data
        whole = 0
        while (end := frame_end(link.received, whole)) >= 0:
            call = Call(link, words_of(link.received[whole:end]))
            with self.guard:
                self.log.append(call)
                link.open_calls.append(call)
            whole = end
        if whole:
            link.server.sendall(link.received[:whole])
            del link.received[:whole]

    def _run(self, way, link):
        try:
            way(link)
        except OSError:
            pass  # one of the two sides is gone
        link.queue.put(None)
        if way == self._deliver and not link.is_deaf:
            self._shut_link(link)

    def _shut_link(self, link):
        """Lets the other thread see the end, which closes the link: a closed socket must not be waited for."""
        with self.guard:
            if link in self.links:
                self.links.remove(link)
        for side in (link.client, link.server):
            try:
                side.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the other side was first

    def _back(self, link):
        received = bytearray()
        while data := link.server.recv(CHUNK):
            received += data
            while (end := frame_end(received)) >= 0:
                frame = bytes(received[:end])
                del received[:end]
                self._reply(link, frame)

    def _reply(self, link, frame):
        """Passes a reply on, or puts it in the link's queue: a delay is the time in flight, and does not add up over
        replies."""
        call, due = None, time.monotonic()
        if not frame.startswith(b">") and link.open_calls:
            call = link.open_calls.pop(0)
            call.reply, call.replied = frame, time.monotonic()
            then = self._dropped(call)
            if then == "cut":
                self._shut_link(link)
                raise ConnectionError("cut by the case")
            if then == "silent":
                link.is_silent = True
            due += self.delay(call) if self.delay is not None else 0
        link.queue.put((due, frame))

    def _deliver(self, link):
        """Sends the contents of the queue, in order, when they are due; ends with None."""
        while (item := link.queue.get()) is not None:
            due, frame = item
            time.sleep(max(0.0, due - time.monotonic()))
            self._flows.wait()
            if not link.is_silent:
                link.client.sendall(frame)

    def _dropped(self, call):
        with self.guard:
            for drop in self._drops:
                if drop[0](call):
                    self._drops.remove(drop)
                    return drop[1]
        return None


def _end(*sockets):
    for each in sockets:
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other side was first
        each.close()
