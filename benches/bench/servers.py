"""Servers of the Redis family for a benchmark: started here, on free ports, in folders of their own, ended by pid."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS_MAX = 120.0


@dataclass(frozen=True)
class Release:
    """A server that scripts/servers made available."""

    name: str  # "redis-7.0"
    version: str
    server: str
    cli: str

    @property
    def is_valkey(self) -> bool:
        return self.name.startswith("valkey")

    @property
    def number(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.version.split("."))

    @property
    def label(self) -> str:
        return f"{'Valkey' if self.is_valkey else 'Redis'} {self.version}"


def releases(names: Iterable[str]) -> list[Release]:
    """Makes these servers available."""
    script = ROOT / "scripts" / "servers"
    done = subprocess.run([script, "ensure", *names], check=True, stdout=subprocess.PIPE, text=True)
    return [Release(*line.split()) for line in done.stdout.splitlines()]


def module() -> Path:
    """The module that is measured: the release build of this tree, unless REDISLOCK_MODULE names another."""
    named = os.environ.get("REDISLOCK_MODULE")
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    path = Path(named) if named else target / "release" / "libredislock.so"
    if not path.exists():
        raise FileNotFoundError(f"{path}: build it with `make build`")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A running server. Use it in a `with` statement."""

    def __init__(self, release: Release, *options: str, with_module: bool = True, under: Iterable[str] = ()) -> None:
        self.release = release
        #: The servers that follow it, where `replicated` started it.
        self.replicas: list[Server] = []
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="redislock-bench-"))
        command = [*under, release.server, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning"]
        if with_module:
            command += ["--loadmodule", str(module())]
        command += options
        self.log = self.folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder)
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError), self.connect() as connection:
                if connection.call("PING") == b"+PONG":
                    return
            time.sleep(0.02)
        text = self.log.read_text(errors="replace")[-2000:]
        self.stop()
        raise RuntimeError(f"{self.release.name} did not start:\n{text}")

    def connect(self) -> Connection:
        return Connection(self.port)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Connection:
    """A plain connection: what it sends is exactly what it was given, in one piece."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = self.socket.makefile("rb", buffering=1 << 16)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()
        self.socket.close()

    def call(self, *words: str | int | bytes) -> object:
        self.send(*words)
        return self.read()

    def send(self, *words: str | int | bytes) -> None:
        self.socket.sendall(encode(*words))

    def read(self) -> object:
        """One reply: lines with their mark, bulks as bytes, arrays as lists, None for null."""
        line = self.reader.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server closed the connection")
        line = line[:-2]
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            if rest == b"-1":
                return None
            return self.reader.read(int(rest) + 2)[:-2]
        if kind in (b"*", b"%", b"~"):
            count = int(rest) * (2 if kind == b"%" else 1)
            return None if rest == b"-1" else [self.read() for _ in range(count)]
        return None if kind == b"_" else line

    def first_line(self) -> bytes:
        """One reply that is no array: its first line, as it was sent."""
        line = self.reader.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server closed the connection")
        if line[:1] == b"$" and line != b"$-1\r\n":
            self.reader.read(int(line[1:]) + 2)
        return line[:-2]

    def pipeline(self, batch: bytes, replies: int) -> None:
        """Sends a batch and reads its replies, none of which may be an error."""
        self.socket.sendall(batch)
        for _ in range(replies):
            reply = self.read()
            if isinstance(reply, bytes) and reply.startswith(b"-"):
                raise RuntimeError(reply.decode(errors="replace"))


def cleared(connection: Connection) -> None:
    """Empties the server, if anything is left."""
    if connection.call("DBSIZE") != b":0":
        connection.call("FLUSHALL", "SYNC")


def encode(*words: str | int | bytes) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        raw = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(raw), raw))
    return b"".join(parts)


@contextlib.contextmanager
def replicated(
    release: Release, *options: str, with_module: bool = True, under: Iterable[str] = (), replicas: int = 1
) -> Iterator[Server]:
    """A primary with replicas that are in sync."""
    options = ("--repl-diskless-sync-delay", "0", *options)  # 5 seconds by default
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(Server(release, *options, with_module=with_module, under=under))
        follow = ("--replicaof", f"127.0.0.1 {primary.port}")
        for _ in range(replicas):
            primary.replicas.append(stack.enter_context(Server(release, *follow, with_module=with_module)))
        connection = stack.enter_context(primary.connect())
        deadline = time.monotonic() + START_SECONDS_MAX
        while (connection.call("INFO", "replication") or b"").count(b"state=online") < replicas:
            if time.monotonic() > deadline:
                raise RuntimeError("the replicas did not come online")
            time.sleep(0.05)
        yield primary


#: The persistence of a server: options, and whether there is a replica.
SETTINGS = {
    "no persistence": ((), False),
    "AOF everysec": (("--appendonly", "yes", "--appendfsync", "everysec"), False),
    "one replica": ((), True),
}


@contextlib.contextmanager
def started(release: Release, setting: str, *options: str, with_module: bool = True, under: Iterable[str] = ()) -> Iterator[Server]:
    """A server in one of the settings."""
    own, has_replica = SETTINGS[setting]
    start = replicated if has_replica else Server
    with start(release, *own, *options, with_module=with_module, under=under) as server:
        yield server
