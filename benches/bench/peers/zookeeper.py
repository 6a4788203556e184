"""ZooKeeper: one node with its defaults, which are to write each change to the disk, for any number of clients."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from .daemon import Daemon

JARS = Path("/usr/share/java")


class ZooKeeper(Daemon):
    product = "ZooKeeper"

    def _version(self) -> str:
        """Taken from the name of Debian's file."""
        (jar,) = JARS.glob("zookeeper-[0-9]*.jar")
        return re.search(r"\d+(\.\d+)+", jar.name)[0]

    def _prepare(self) -> None:
        settings = {
            "dataDir": self.folder / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok",
            "tickTime": 2000,
        }
        (self.folder / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def _command(self) -> list[str]:
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return ["java", "-cp", f"{JARS}/zookeeper.jar:{JARS}/slf4j-nop.jar", main, str(self.folder / "zoo.cfg")]

    def _is_ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"ruok")
            return connection.recv(4) == b"imok"
