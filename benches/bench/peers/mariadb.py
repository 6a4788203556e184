"""MariaDB: `GET_LOCK`. Its defaults, but for the number of connections, and without a table of users."""

from __future__ import annotations

from .daemon import Daemon


class MariaDB(Daemon):
    product = "MariaDB"
    refuses_root = True

    def _command(self) -> list[str]:
        return [
            "/usr/sbin/mariadbd",
            "--no-defaults",
            f"--datadir={self.folder}",
            f"--socket={self.folder}/socket",
            f"--pid-file={self.folder}/pid",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            "--skip-grant-tables",  # nobody is asked for a name: the users' table would have to be made first
            "--max-connections=1100",
        ]
