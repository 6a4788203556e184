"""PostgreSQL: session-level advisory locks. Its defaults, but for the number of connections."""

from __future__ import annotations

import signal
from pathlib import Path

from .daemon import Daemon


class Postgres(Daemon):
    product = "PostgreSQL"
    refuses_root = True
    farewell = signal.SIGINT  # ends its sessions; SIGTERM would wait for them

    def _programs(self) -> Path:
        """Debian keeps them outside of the path, by version; the newest one is taken."""
        found = Path("/usr/lib/postgresql").glob("*/bin/postgres")
        return max(found, key=lambda path: float(path.parts[4])).parent

    def _prepare(self) -> None:
        initdb = [self._programs() / "initdb", "-D", self.folder / "data", "-U", "postgres", "-A", "trust", "--no-sync"]
        if self._popen(initdb).wait():
            raise RuntimeError((self.folder / "log").read_text(errors="replace")[-2000:])

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 1100,
        }
        command = [str(self._programs() / "postgres"), "-D", str(self.folder / "data")]
        return command + [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]

    def _is_ready(self) -> bool:
        """It listens before it lets anybody in."""
        return b"ready to accept connections" in (self.folder / "log").read_bytes()
