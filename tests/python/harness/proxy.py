"""A network between servers that can be cut, stalled and restored.

    door = Proxy(primary.port)          what connects to door.port reaches the primary
    door.cut()                          all connections end, and no new one is let through
    door.stall(ONWARD, BACK)            nothing more goes these ways, not even that a side has closed
    door.mend()                         stalled traffic continues, and connections are accepted
"""

import socket
import threading

#: From those who connected to the server behind.
ONWARD = "onward"
#: From the server behind to those who connected.
BACK = "back"


class Proxy:
    """Passes bytes to and fro between its clients and a server."""

    def __init__(self, port):
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.flows = {ONWARD: threading.Event(), BACK: threading.Event()}
        self.guard = threading.Lock()
        self.pairs = []
        self.is_cut = False
        self.mend()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        """Ends all connections and refuses new ones."""
        with self.guard:
            self.is_cut = True
            self._end_all()

    def stall(self, *ways):
        """Holds back the traffic on these ways, without notice."""
        for way in ways:
            self.flows[way].clear()

    def mend(self):
        """Lets everything pass again, as at the start."""
        with self.guard:
            self.is_cut = False
        for flow in self.flows.values():
            flow.set()

    def close(self):
        """Ends all connections, for good."""
        self.cut()
        _end(self.listener)

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self._join(client)

    def _join(self, client):
        with self.guard:
            server = None if self.is_cut else _connect(self.target)
            if server is None:
                return _end(client)
            self.pairs.append((client, server))
        for way, source, sink in ((ONWARD, client, server), (BACK, server, client)):
            threading.Thread(target=self._pass, args=[way, source, sink], daemon=True).start()

    def _pass(self, way, source, sink):
        """Until one of the two ends."""
        try:
            while data := source.recv(65536):
                self.flows[way].wait()
                sink.sendall(data)
        except OSError:
            pass
        self.flows[way].wait()
        with self.guard:
            gone = [pair for pair in self.pairs if source in pair]
            self.pairs = [pair for pair in self.pairs if source not in pair]
        for pair in gone:
            _end(*pair)

    def _end_all(self):
        for pair in self.pairs:
            _end(*pair)
        self.pairs = []
        # A thread that was held back must see the end, too.
        stalled = [flow for flow in self.flows.values() if not flow.is_set()]
        for flow in stalled:
            flow.set()
            flow.clear()


def _connect(port):
    try:
        return socket.create_connection(("127.0.0.1", port))
    except OSError:
        return None


def _end(*sockets):
    for each in sockets:
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other side was first
        each.close()
