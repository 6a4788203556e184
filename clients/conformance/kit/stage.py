"""The stage of a case: servers, proxies and adapters. At the end, it checks that nothing is left.

    stage.single(waiting_connections=4)   a server, a door to it and an adapter that has opened it
    stage.hold("k"), stage.give_up("k")   the kit itself acquires and releases a lock
    stage.note("median 0.6 ms")           is printed with the verdict
"""

import itertools
import time
import uuid

from harness.limits import eventually
from harness.server import Yard
from harness.wire import Closed, ServerError

from .adapter import SOON, Adapter
from .proxy import Proxy

#: The time limit for an adapter's process to start: on a busy machine it once took more than 20 s.
START = 50.0
#: The time limit for a released lock to be free.
QUIET = 5.0
#: A lease that does not end while a case runs.
LONG_MS = 60_000
#: The last command of a connection of another server: a replica's, or one that a slot came over.
SENT_BY_SERVERS = ("replconf", "psync", "sync", "restore", "restore-asking")


class Unsupported(Exception):
    """The library does not have the feature."""


class Stage:
    """The stage of one case."""

    def __init__(self, command, driver, case):
        self.command, self.driver, self.case = command, driver, case
        self.yard = Yard()
        self.adapters, self.doors, self.servers, self.sentinels, self.notes = [], [], [], [], []
        #: The server on which the kit itself takes locks.
        self.server = None
        #: Servers that are checked for leftovers at the end of the case; None: all that the case started.
        self.leaves = set()
        self.numbers = itertools.count(1)
        self.owners = {}

    # Its parts

    def start(self, *options, **more):
        """A server."""
        server = self.yard(*options, **more)
        self.servers.append(server)
        self.server = self.server or server
        return server

    def door(self, server):
        """A route to the server that can fail."""
        self.doors.append(Proxy(server.port))
        return self.doors[-1]

    def adapter(self, *addresses, mode="single", **members):
        """An adapter that has opened these servers."""
        adapter = Adapter(self.command, self.case.environment)
        self.adapters.append(adapter)
        members = {"lease_ms": LONG_MS, "driver": self.driver, **members}
        answer = adapter("open", START, mode=mode, addresses=list(addresses), **members)
        adapter.features, adapter.drivers = frozenset(answer["features"]), answer["drivers"]
        missing = [need for need in self.case.needs if need not in adapter.features]
        if missing:
            raise Unsupported(", ".join(missing))
        return adapter

    def single(self, *options, module_arguments=(), **members):
        """A server, a door to it, and an adapter that has opened it."""
        server = self.start(*options, module_arguments=module_arguments)
        door = self.door(server)
        return server, door, self.adapter(door.address, **members)

    def hold_id(self):
        """An id of a hold that was not used before."""
        return f"h{next(self.numbers)}"

    def note(self, text):
        """Records a text, which is printed with the verdict."""
        self.notes.append(text)

    # Actions of the kit itself on the server

    def hold(self, name, *options, lease_ms=LONG_MS, owner=None):
        """Acquires a lock for the kit; returns the token."""
        owner = owner or f"kit:{uuid.uuid4()}"
        token = self.server.admin("LOCK.ACQUIRE", name, owner, "PX", lease_ms, *options)
        assert isinstance(token, int), f"{name} was not to be had"
        self.owners[name] = owner
        return token

    def give_up(self, name):
        """Releases the kit's lock."""
        assert self.server.admin("LOCK.RELEASE", name, self.owners.pop(name)) == 1, f"the kit lost {name}"

    def is_free(self, name):
        """True if the lock has neither holders nor waiters."""
        return self.server.admin("LOCK.INFO", name) is None

    def info(self, name):
        """Returns LOCK.INFO as a dictionary; {} if the lock has neither holders nor waiters."""
        return as_dictionary(self.server.admin("LOCK.INFO", name, "FULL"))

    def waiters(self, name):
        """Returns the number of waiters."""
        return self.info(name).get("waiters", 0)

    def waiting(self, name, number, limit=SOON):
        """Waits until `number` clients wait for it on the server."""
        self.eventually(lambda: self.waiters(name) == number, f"{number} wait for {name}", limit)

    def lease_left_ms(self, name):
        """Returns the rest of the only hold's lease."""
        (holder,) = self.info(name)["holders"]
        return as_dictionary(holder)["lease-left-ms"]

    def eventually(self, condition, what, limit=SOON):
        """Polls until the condition holds; ends early if an adapter has ended."""
        def is_so():
            for adapter in self.adapters:
                if adapter.fault is not None and not adapter.has_ended:
                    raise AssertionError(f"{adapter.fault}\n{adapter.stderr()}")
            return condition()

        return eventually(is_so, what, limit, pause=0.005)

    def stays(self, condition, what, seconds):
        """Checks that the condition holds all the time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert condition(), f"not all the time: {what}"
            time.sleep(0.02)

    def free_soon(self, *names, limit=QUIET):
        """Waits until they have neither holders nor waiters."""
        for name in names:
            eventually(lambda name=name: self.is_free(name), f"{name} is free, but {self.info(name)}", limit)

    # The end

    def check_end(self):
        """Checks that there are neither holders nor waiters; then the adapters end, and no connection is open."""
        for door in self.doors:
            door.delay = None
            door.open()
            door.flow()
        alive = [server for server in self.servers if server.is_alive() and server not in self.leaves]
        for server in alive:
            self._wait_for(lambda server=server: left_on(server), "left on the server", QUIET)
        for adapter in self.adapters:
            if not adapter.has_ended:
                adapter.end()
        for server in [*alive, *self.sentinels]:
            server.close_connections()  # the kit's own
            self._wait_for(lambda server=server: connections_of(server), "connections that are open", QUIET)
        for door in self.doors:
            minted = [call for call in door.calls("LOCK.ACQUIRE", "LOCK.MACQUIRE") if call.owner() == "*"]
            assert not minted, f"a request without an owner of its own: {minted[0]}"

    def _wait_for(self, left, what, limit):
        end = time.monotonic() + limit
        while found := left():
            assert time.monotonic() < end, f"{what}: {found}"
            time.sleep(0.01)

    def clear(self):
        """Ends everything that is left. The servers must not have crashed."""
        for adapter in self.adapters:
            if adapter.process.poll() is None:
                adapter.go_on()
                adapter.kill()
        for door in self.doors:
            door.close()
        self.yard.close()


def as_dictionary(reply):
    """A map of RESP2, as LOCK.INFO gives it."""
    return dict(zip(reply[::2], reply[1::2])) if reply else {}


def left_on(server):
    """Returns the server's holders and waiters; "" if there are none."""
    try:
        info = server.info("redislock")
    except (Closed, OSError):
        return "the server does not answer"
    counts = {name: info[f"redislock_{name}"] for name in ("locks", "holds", "waiters")}
    if set(counts.values()) == {"0"}:
        return ""
    names = server.admin("SCAN", 0, "TYPE", "redislock", "COUNT", 1000)[1]
    shown = [server.admin("LOCK.INFO", name) for name in names[:3]]
    return f"{counts} {shown}"


def connections_of(server):
    """Connections that are neither the kit's nor of other servers."""
    try:
        own = str(server.admin("CLIENT", "ID"))
        lines = server.admin("CLIENT", "LIST").splitlines()
    except (Closed, OSError, ServerError):
        return ["the server does not answer"]
    found = []
    for line in lines:
        fields = dict(word.partition("=")[::2] for word in line.split())
        is_server = set(fields["flags"]) & set("MS") or fields["name"].startswith("sentinel-")
        is_server = is_server or fields.get("cmd") in SENT_BY_SERVERS
        if not is_server and fields["id"] != own:
            found.append(f"{fields['addr']} {fields.get('cmd')} {fields['flags']}")
    return found
