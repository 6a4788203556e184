"""Groups of three servers that keep a lock though one of them is lost: redislock, etcd and ZooKeeper.

Each is started with fresh data, with or without a write to the disk (fsync) before a grant is answered, and says which
process leads. Use it in a `with` statement.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from ..servers import START_SECONDS_MAX, Connection, Release, Server, free_port
from .daemon import Daemon

SIZE = 3
#: The name by which sentinels know the primary.
NAME = "group"
#: The time for which a primary may be silent: as long as etcd's election timeout.
DOWN_AFTER_MS = 1_000


def eventually(is_so: Callable[[], bool], what: str) -> None:
    """Polls until something is so."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if is_so():
                return
        time.sleep(0.05)
    raise RuntimeError(f"not within {START_SECONDS_MAX:.0f} s: {what}")


class Sentinel(Daemon):
    """One of those that promote a replica."""

    product = "Sentinel"

    def __init__(self, release: Release, primary: int) -> None:
        self.release, self.primary = release, primary
        super().__init__()

    def _version(self) -> str:
        return self.release.version

    def _prepare(self) -> None:
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            f"sentinel monitor {NAME} 127.0.0.1 {self.primary} 2",
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {NAME} 10000",
            f"sentinel parallel-syncs {NAME} 2",
        ]
        (self.folder / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def _command(self) -> list[str]:
        return [self.release.server, str(self.folder / "sentinel.conf"), "--sentinel"]

    def knows_all(self) -> bool:
        with Connection(self.port) as connection:
            seen = (connection.call("INFO", "sentinel") or b"").decode()
        return f"slaves={SIZE - 1},sentinels={SIZE}" in seen and "status=ok" in seen


class Redislock:
    """A primary and two replicas: a majority confirms each grant, and a promoted server is quarantined first."""

    def __init__(self, release: Release, stack: contextlib.ExitStack, lease_ms: int, *, syncs: bool) -> None:
        options = ("quarantine", lease_ms, "confirm", "majority", "group-size", SIZE)
        options += ("--appendonly", "yes", "--appendfsync", "always" if syncs else "no", "--repl-diskless-sync-delay", "0")
        words = [str(word) for word in options]
        self.servers = [stack.enter_context(Server(release, *words)) for _ in range(SIZE)]
        self.label = release.label
        for server in self.servers[1:]:
            with server.connect() as connection:
                connection.call("REPLICAOF", "127.0.0.1", self.servers[0].port)
        self.sentinels = [stack.enter_context(Sentinel(release, self.servers[0].port)) for _ in range(SIZE)]
        self.addresses = ",".join(sentinel.address for sentinel in self.sentinels)
        eventually(lambda: all(sentinel.knows_all() for sentinel in self.sentinels), "the sentinels know all")
        # A replica counts for a majority only after a quarantine.
        eventually(self._is_seasoned, "the replicas count for a majority")

    def _is_seasoned(self) -> bool:
        with self.servers[0].connect() as connection:
            seen = connection.call("INFO", "redislock") or b""
        return b"replicas_seasoned:2" in seen

    def leader(self) -> int:
        return self.servers[0].process.pid


class EtcdNode(Daemon):
    product = "etcd"

    def __init__(self, program: Path, number: int, peers: list[int], *, syncs: bool) -> None:
        self.program, self.number, self.peers, self.syncs = program, number, peers, syncs
        super().__init__()

    def _command(self) -> list[str]:
        clients, peer = f"http://{self.address}", f"http://127.0.0.1:{self.peers[self.number]}"
        everybody = ",".join(f"n{number}=http://127.0.0.1:{port}" for number, port in enumerate(self.peers))
        return [
            str(self.program),
            f"--name=n{self.number}",
            f"--data-dir={self.folder}/data",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={everybody}",
            *([] if self.syncs else ["--unsafe-no-fsync"]),
        ]

    def _wait(self) -> None:
        """A node of a group is ready only when another one is: the group waits."""

    def is_leader(self) -> bool | None:
        """None while no node leads."""
        request = urllib.request.Request(f"http://{self.address}/v3/maintenance/status", b"{}")
        with urllib.request.urlopen(request, timeout=5) as reply:
            seen = json.load(reply)
        return seen["leader"] == seen["header"]["member_id"] if seen.get("leader") else None


class ZooNode(Daemon):
    product = "ZooKeeper"

    def __init__(self, classpath: str, number: int, peers: list[int], *, syncs: bool) -> None:
        self.classpath, self.number, self.peers, self.syncs = classpath, number, peers, syncs
        super().__init__()

    def _version(self) -> str:
        (name,) = (Path(jar).stem for jar in self.classpath.split(":") if Path(jar).stem.startswith("zookeeper-3"))
        return name.partition("-")[2]

    def _prepare(self) -> None:
        settings = {
            "dataDir": self.folder / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
            "maxClientCnxns": 0,
            "tickTime": 2000,
            "initLimit": 10,
            "syncLimit": 5,
        }
        for number in range(SIZE):
            settings[f"server.{number + 1}"] = "127.0.0.1:{}:{}".format(*self.peers[2 * number : 2 * number + 2])
        (self.folder / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (self.folder / "data").mkdir()
        (self.folder / "data" / "myid").write_text(f"{self.number + 1}\n")

    def _command(self) -> list[str]:
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        sync = f"-Dzookeeper.forceSync={'yes' if self.syncs else 'no'}"
        return ["java", "-Xmx256m", sync, "-cp", self.classpath, main, str(self.folder / "zoo.cfg")]

    def _wait(self) -> None:
        """A node of a group is ready only when another one is: the group waits."""

    def is_leader(self) -> bool | None:
        """None while no node leads."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"srvr")
            seen = connection.makefile("rb").read()
        return b"Mode: leader" in seen if b"Mode: " in seen else None


class Elected:
    """Nodes that elect one of them."""

    def __init__(self, nodes: list[EtcdNode] | list[ZooNode]) -> None:
        self.nodes = nodes
        self.label = nodes[0].label
        self.addresses = ",".join(node.address for node in nodes)
        eventually(lambda: sorted(node.is_leader() is True for node in nodes) == [False, False, True], "one leads")
        eventually(lambda: all(node.is_leader() is not None for node in nodes), "the others follow")

    def leader(self) -> int:
        (found,) = (node.process.pid for node in self.nodes if node.is_leader())
        return found


def etcd(program: Path, stack: contextlib.ExitStack, *, syncs: bool) -> Elected:
    peers = [free_port() for _ in range(SIZE)]
    return Elected([stack.enter_context(EtcdNode(program, number, peers, syncs=syncs)) for number in range(SIZE)])


def zookeeper(classpath: str, stack: contextlib.ExitStack, *, syncs: bool) -> Elected:
    peers = [free_port() for _ in range(2 * SIZE)]
    return Elected([stack.enter_context(ZooNode(classpath, number, peers, syncs=syncs)) for number in range(SIZE)])
