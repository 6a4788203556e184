"""Servers of other kinds: started here on free ports, with fresh data in a folder of their own, ended by pid."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ..servers import START_SECONDS_MAX, free_port


class Daemon:
    """A running server. Use it in a `with` statement. Subclasses say what to run."""

    #: The name in the table.
    product: str
    #: True if it refuses to run as root; then it runs as the user `nobody`.
    refuses_root = False
    #: The signal that ends it without waiting for its clients.
    farewell = signal.SIGTERM

    def __init__(self) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="redislock-bench-"))
        self.process: subprocess.Popen | None = None
        self.user = {}
        if self.refuses_root and os.geteuid() == 0:
            self.user = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            shutil.chown(self.folder, "nobody", "nogroup")
        self.log = (self.folder / "log").open("wb")
        try:
            self.version = self._version()
            self._prepare()
            self.process = self._popen(self._command())
            self._wait()
        except BaseException:
            self.stop()
            raise

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def label(self) -> str:
        return f"{self.product} {self.version}"

    def _version(self) -> str:
        """The first number with dots that the program tells."""
        told = subprocess.run([self._command()[0], "--version"], check=True, capture_output=True, text=True, **self.user)
        return re.search(r"\d+(\.\d+)+", told.stdout)[0]

    def _prepare(self) -> None:
        """Makes what the server needs in its folder."""

    def _command(self) -> Sequence[str]:
        raise NotImplementedError

    def _popen(self, command: Sequence[str]) -> subprocess.Popen:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, cwd=self.folder, **self.user
        )

    def _is_ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if self._is_ready():
                    return
            time.sleep(0.05)
        told = (self.folder / "log").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{self.product} did not start:\n{told}")

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(self.farewell)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
