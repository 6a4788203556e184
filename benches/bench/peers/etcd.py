"""etcd: its lock service. One node with its defaults, which are to write each change to the disk."""

from __future__ import annotations

from ..servers import free_port
from .daemon import Daemon


class Etcd(Daemon):
    product = "etcd"

    def _command(self) -> list[str]:
        clients, peers = f"http://{self.address}", f"http://127.0.0.1:{free_port()}"
        return [
            "/usr/bin/etcd",
            f"--data-dir={self.folder}/data",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        ]
