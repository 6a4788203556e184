"""A server with the module, on a free port, in a directory of its own.

REDISLOCK_SERVER="NAME VERSION SERVER_PATH CLI_PATH" (a line of scripts/servers) chooses the server, REDISLOCK_MODULE
the module, and REDISLOCK_VALGRIND=1 runs it under valgrind and fails on its findings.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from .limits import SLOW_FACTOR, SOON_SECONDS, VALGRIND, eventually
from .waiting import Request
from .wire import Closed, Connection, ServerError

ROOT = Path(__file__).resolve().parents[3]
MODULE = Path(
    os.environ.get("REDISLOCK_MODULE") or ROOT / "target" / "release" / "libredislock.so"
).resolve()
NAME, VERSION, BINARY, CLI = (
    os.environ.get("REDISLOCK_SERVER")
    or "redis-7.0 7.0 /usr/bin/redis-server /usr/bin/redis-cli"
).split(maxsplit=3)
IS_VALKEY = NAME.startswith("valkey")
RELEASE = tuple(int(part) for part in NAME.split("-")[1].split("."))

# The signs in its log that a server has found itself broken.
BROKEN = re.compile(r"BUG REPORT|ASSERTION FAILED|panicked at|STACK TRACE")
VALGRIND_ERRORS = re.compile(
    r"ERROR SUMMARY: [1-9]|Invalid (read|write|free)|uninitialised"
)


def at_least(redis, valkey):
    """Returns whether the server under test is of these releases or a later one."""
    return (valkey if IS_VALKEY else redis) <= RELEASE


class StartFailed(Exception):
    """The server ended instead of starting; the text is its log."""


class Server:
    """One server process, which can be stopped, killed and started again."""

    def __init__(
        self, *options, module_arguments=(), config=None, with_module=True, environment=None, module=MODULE
    ):
        self.directory = Path(tempfile.mkdtemp(prefix="redislock-test-"))
        self.log = self.directory / "server.log"
        self.output = self.directory / "output.log"
        self.options = [str(option) for option in options]
        self.module_arguments = [str(argument) for argument in module_arguments]
        self.config = config
        self.with_module = with_module
        #: The module, if it is not the one under test.
        self.module = module
        #: Variables in addition to those of the tests.
        self.environment = environment or {}
        self.process = None
        self._reserved = Port()
        self.port = self._reserved.number
        self._reserved_bus = None
        #: The port for other nodes of a cluster.
        self.bus = None
        if "--cluster-enabled" in self.options:
            self._reserved_bus = Port()
            self.bus = self._reserved_bus.number
        self.connections = []
        self._admin = None

    # Life

    def start(self):
        """Starts the server, on the port it had before if it was started before."""
        self._launch()
        return self

    def stop(self):
        """Ends the server in the orderly way, and checks that it ended well."""
        self.close_connections()
        self.process.send_signal(signal.SIGTERM)
        code = self._wait_for_end()
        assert code == 0, f"the server ended with {code}\n{self.log_tail()}"
        self.process = None

    def kill(self):
        """Ends the server as a power cut would end the process."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(SOON_SECONDS)
        self.process = None
        self.close_connections()

    def finish(self):
        """Ends the server if it runs, checks that it never broke, and cleans up."""
        died = self.process is not None and self.process.poll() is not None
        code = self.process.returncode if died else None
        try:
            if self.process is not None and not died:
                self.stop() if VALGRIND else self.kill()
            self.close_connections()
            log = self.log_text()
            assert not died, f"the server died with {code}\n{self.log_tail()}"
            assert not BROKEN.search(log), f"the server broke\n{self.log_tail()}"
            for report in self.directory.glob("valgrind.*"):
                text = report.read_text(errors="replace")
                assert not VALGRIND_ERRORS.search(text), text[-6000:]
        finally:
            if self.process is not None and self.process.poll() is None:
                self.process.kill()
                self.process.wait(SOON_SECONDS)
            shutil.rmtree(self.directory, ignore_errors=True)
            self._reserved.give_back()
            if self._reserved_bus is not None:
                self._reserved_bus.give_back()

    def is_alive(self):
        """Returns whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def wait_for_end(self):
        """Waits until the process has exited on its own; returns its exit code."""
        code = self._wait_for_end()
        self.process = None
        self.close_connections()
        return code

    # Talking to it

    def connect(self, protocol=2, db=0):
        """A new connection, closed at the end of the test."""
        connection = Connection(self.port, protocol, db)
        self.connections.append(connection)
        return connection

    def admin(self, *arguments):
        """A command on a connection that the tests' own commands do not share."""
        if self._admin is not None and self._admin.is_closed():
            self._admin = None  # as sentinels do when they change a role
        if self._admin is None:
            self._admin = Connection(self.port)
        return self._admin(*arguments)

    def ask(self, *arguments, protocol=2, db=0, user=None):
        """Sends a command on a connection of its own; returns once it waits."""
        connection = self.connect(protocol, db)
        if user is not None:
            connection("AUTH", user, "secret")
        return Request(self, connection, arguments)

    def info(self, section):
        """A section of INFO as a dictionary of texts."""
        return parse_info(self.admin("INFO", section))

    def resident_peak(self):
        """The most bytes that its process has had in memory: memory that it requested and never wrote to is not among
        them."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) * 1024

    def close_connections(self):
        """Closes all connections of the tests."""
        for connection in self.connections:
            connection.close()
        self.connections = []
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    # Its log

    def log_text(self):
        """All its output, in its log and elsewhere."""
        files = [path for path in (self.log, self.output) if path.exists()]
        return "".join(path.read_text(errors="replace") for path in files)

    def log_tail(self, lines=60):
        """The end of its log."""
        return "\n".join(self.log_text().splitlines()[-lines:])

    # Inside

    def _command_line(self):
        line = []
        if VALGRIND:
            line += ["valgrind", "--error-exitcode=99", "--leak-check=no"]
            line += [f"--log-file={self.directory}/valgrind.%p"]
            line += [f"--suppressions={Path(__file__).with_name('valgrind.supp')}"]
        line += [BINARY]
        if self.config is not None:
            path = self.directory / "server.conf"
            if not path.exists():
                path.write_text(self.config.replace("MODULE", str(self.module)))
            line += [str(path)]
        line += ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        line += ["--logfile", str(self.log), "--enable-debug-command", "yes"]
        if "--save" not in self.options:
            line += ["--save", ""]
        if "--appendonly" not in self.options:
            line += ["--appendonly", "no"]
        line += self.options
        if self.bus is not None:
            line += ["--cluster-port", str(self.bus)]
        if self.with_module and self.config is None:
            line += ["--loadmodule", str(self.module), *self.module_arguments]
        return line

    def _launch(self):
        already = len(self.log_text())
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                self._command_line(),
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + SOON_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                self.process = None
                raise StartFailed(self.log_text()[already:])
            if answers(self.port):
                return
            time.sleep(0.005 * SLOW_FACTOR)
        raise AssertionError(f"the server did not start\n{self.log_tail()}")

    def _wait_for_end(self):
        try:
            return self.process.wait(SOON_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the server did not end\n{self.log_tail()}") from None


class Yard:
    """Starts servers, and ends all of them: yard("--maxmemory", "10mb")."""

    def __init__(self):
        self.started = []

    def __call__(self, *options, kind=Server, **more):
        new = kind(*options, **more)
        self.started.append(new)
        return new.start()

    def close(self):
        """Ends them, and checks of each that it never broke."""
        failures = []
        for each in self.started:
            try:
                each.finish()
            except AssertionError as failure:
                failures.append(str(failure))
        assert not failures, "\n".join(failures)


def parse_info(text):
    """The reply of INFO, as a dictionary of texts."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return dict(line.partition(":")[::2] for line in lines)


def settle(server):
    """Waits until no client but the tests' administrator is connected."""
    eventually(
        lambda: server.info("clients")["connected_clients"] == "1",
        "all clients of the test are gone",
    )


def answers(port):
    """Returns whether a server is there, and has loaded its data."""
    try:
        connection = Connection(port)
    except OSError:
        return False
    try:
        return connection("PING") == "PONG"
    except (ServerError, Closed):
        return False  # loading
    finally:
        connection.close()


class Port:
    """A port that no other test gets until it is given back.

    A socket stays bound to it without listening. Servers ask for SO_REUSEADDR, which
    lets them listen there all the same; a search for a free port passes it over.
    """

    def __init__(self):
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number = self._socket.getsockname()[1]

    def give_back(self):
        """Lets others have it."""
        self._socket.close()
