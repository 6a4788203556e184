"""ZooKeeper's recipe of a lock, by kazoo: a node for each contender, each watching the one before.

A client of kazoo is a session, a connection and some threads, and its locks share it. Contenders are spread over at
most `CLIENTS_MAX` clients in a process. With more of them Python would be busy with threads that only wait."""

from __future__ import annotations

import contextlib

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

CLIENTS_MAX = 50
clients: list[KazooClient] = []


class Contender:
    def __init__(self, port: int, who: int) -> None:
        if len(clients) < CLIENTS_MAX:
            client = KazooClient(hosts=f"127.0.0.1:{port}")
            client.start(timeout=60)
            clients.append(client)
        self.lock = clients[who % len(clients)].Lock("/lock", str(who))

    def take(self, patience_s: float) -> bool:
        with contextlib.suppress(LockTimeout):
            return self.lock.acquire(timeout=patience_s)
        return False

    def free(self) -> None:
        self.lock.release()
