"""The servers that tests run on.

    server        shared by the tests of a worker; emptied and reset after each test
    cli           a connection to it
    start_server  starts a server for this test alone, with options of its own
    start_group   starts a primary and two replicas, with a network that can fail

A test that kills, restarts or starves its server, or turns off features that others need, starts its own. A server that
dies fails the test during which it died.
"""

import os
import shutil
import subprocess
from pathlib import Path
from zlib import crc32

import pytest

from harness.cluster import WAYS
from harness.group import Group
from harness.kinds import give_up_places
from harness.limits import SLOW_FACTOR, eventually
from harness.server import BINARY, IS_VALKEY, MODULE, RELEASE, Server, Yard, at_least, settle


def pytest_configure(config):
    """Reports missing programs instead of failing each test for them."""
    if not MODULE.exists():
        pytest.exit(f"there is no module {MODULE}: build it, or set REDISLOCK_MODULE", 2)
    if shutil.which(BINARY) is None:
        pytest.exit(f"there is no server {BINARY}: see REDISLOCK_SERVER", 2)


#: Tests of tools and examples: whichever server they start, if any, they say nothing about it, as what they use of it has
#: tests of its own. Single tests are marked `once`.
TOOLS = {
    "test_bench",
    "test_chaos",
    "test_differ",
    "test_examples",
    "test_growth",
    "test_history_checker",
    "test_history_checker_files",
    "test_history_checker_liveness",
    "test_history_checker_many",
    "test_mutants",
    "test_server_suites",
    "test_spec",
    "test_wire",
}
#: Fixtures with a server. A test that asks for none of them, and starts none (`own_server`), says nothing about it.
SERVERS = {"shared_server", "start_server", "recorded", "machine", "unhurried"}
#: scripts/test sets this for every server but the first: then the tests of tools have passed already.
TOOLS_ARE_TESTED = os.environ.get("REDISLOCK_TOOLS_ARE_TESTED", "") not in ("", "0")


#: Words of a failure if a lock was granted to the wrong client, or a server has died. scripts/twice repeats no run with
#: one.
GRAVE = ("faults(", "the server died with")
GRAVE_STATUS = 9
grave_failures = []


def pytest_runtest_logreport(report):
    """Notes failures that must not be repeated."""
    if report.failed and any(words in report.longreprtext for words in GRAVE):
        grave_failures.append(report.nodeid)


def pytest_sessionfinish(session):
    """Ends with a status of its own after a failure that must not be repeated."""
    if grave_failures:
        session.exitstatus = GRAVE_STATUS


#: A test ends after its time if it hangs. On a machine with ten times as much to do as it has processors none may end so
#: that only takes long.
BUSY_FACTOR = 5

#: "1/3": one of three servers that share the tests out among them. Each of these runs on one of them.
PART, PARTS = map(int, os.environ.get("REDISLOCK_PART", "0/1").split("/"))
#: A file that uses one of these asks which server it has: its tests are not shared out, but run on each.
ASKS = {"IS_VALKEY": IS_VALKEY, "RELEASE": RELEASE, "WAYS": WAYS, "at_least": at_least}


def is_ours(item):
    """Returns whether a test runs on this one of the servers that share the tests."""
    name = item.nodeid.rpartition("/")[2]
    asks = any(vars(item.module).get(asked) is answer for asked, answer in ASKS.items())
    return asks or crc32(os.fsencode(name)) % PARTS == PART


def runs_once(item):
    """Returns whether a test does not depend on the server."""
    return item.path.stem in TOOLS or item.get_closest_marker("once") is not None


def has_server(item):
    """Returns whether a test depends on a server."""
    return not SERVERS.isdisjoint(item.fixturenames) or item.get_closest_marker("own_server") is not None


def pytest_collection_modifyitems(config, items):
    """Runs the tests of tools once, and gives every test more time where the server is slow."""
    unsaid = sorted({item.nodeid.partition("[")[0] for item in items if not runs_once(item) and not has_server(item)})
    if unsaid:
        raise pytest.UsageError(f"without a server, so to be marked `once` (or `own_server`): {', '.join(unsaid)}")
    kept, left = [], []
    for item in items:
        (kept if is_ours(item) and not (TOOLS_ARE_TESTED and runs_once(item)) else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept
    for item in items:
        mark = item.get_closest_marker("timeout")
        seconds = mark.args[0] if mark else 60
        item.add_marker(pytest.mark.timeout(seconds * SLOW_FACTOR * BUSY_FACTOR), append=False)


class SharedServer:
    """The server of a worker, restarted only if a test has killed it."""

    def __init__(self):
        self.server = None
        self.settings = None

    def ready(self):
        """A server that runs and is as it started."""
        if self.server is None:
            self.server = Server().start()
            self.settings = self.server.admin("CONFIG GET *")
        return self.server

    def reset(self):
        """Undoes the changes of the test: connections, settings, users, scripts, data."""
        server = self.server
        if not server.is_alive():
            self.server = None
            server.finish()
        server.close_connections()
        server.admin("CLIENT UNPAUSE")
        before = dict(zip(self.settings[::2], self.settings[1::2]))
        now = server.admin("CONFIG GET *")
        for name, value in zip(now[::2], now[1::2]):
            if before[name] != value:
                server.admin("CONFIG", "SET", name, before[name])
        for user in server.admin("ACL USERS"):
            if user != "default":
                server.admin("ACL", "DELUSER", user)
        settle(server)
        server.admin("FUNCTION FLUSH")
        server.admin("FLUSHALL")
        if server.info("redislock")["redislock_waiters"] != "0":
            give_up_places(server)
        # The holds that a flush breaks may be noticed, and published as events, a moment later.
        eventually(
            lambda: server.info("redislock")["redislock_locks"] == "0",
            "the locks of the test are gone",
        )
        server.admin("PING")

    def end(self):
        """Ends the server, checking that it ends well."""
        if self.server is not None:
            self.server.stop()
            self.server.finish()


@pytest.fixture(scope="session")
def shared_server():
    """Not for tests: the connection with which `server` resets after each test."""
    shared = SharedServer()
    yield shared
    shared.end()


def module_in_c(tmp_path_factory, name):
    """Another module, compiled from its source in the harness, which reports its calls."""
    path = tmp_path_factory.mktemp(name) / f"{name}.so"
    source = Path(__file__).parent / "harness" / f"{name}.c"
    flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, "-o", path, source], check=True)
    return path


@pytest.fixture(scope="session")
def neighbour_path(tmp_path_factory):
    """Another module, for LOCK.EXEC to run its commands."""
    return module_in_c(tmp_path_factory, "neighbour")


@pytest.fixture(scope="session")
def rival_path(tmp_path_factory):
    """Another module, which conflicts with this one."""
    return module_in_c(tmp_path_factory, "rival")


@pytest.fixture
def server(shared_server):
    """A server that the tests of this worker share."""
    yield shared_server.ready()
    shared_server.reset()


@pytest.fixture
def cli(server):
    """A RESP2 connection to the shared server."""
    return server.connect()


@pytest.fixture
def cli3(server):
    """A RESP3 connection to the shared server."""
    return server.connect(protocol=3)


@pytest.fixture
def start_server():
    """Starts servers for this test alone: start_server("--maxmemory", "10mb")."""
    yard = Yard()
    yield yard
    yard.close()


@pytest.fixture
def start_group(start_server):
    """Starts a group: start_group("majority", has_sentinels=True)."""
    groups = []

    def start(*arguments, **more):
        groups.append(Group(start_server, *arguments, **more))
        return groups[-1]

    yield start
    for group in groups:
        group.close()
