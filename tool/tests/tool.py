"""Runs the tool, and looks at processes."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

from harness.limits import SOON_SECONDS, eventually
from harness.replies import lock_info

BINARY = os.environ["REDISLOCK_TOOL"]
#: How long a lease is in tests that wait for its end: the shortest one.
LEASE_SECONDS = 3.0


class Tool:
    """The tool, for a server on this port."""

    def __init__(self, port, directory):
        self.port = port
        self.directory = Path(directory)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("REDISLOCK_")}
        self.environment = {**clean, "REDISLOCK_URL": f"redis://127.0.0.1:{port}"}
        self.started = []

    def __call__(self, *words, timeout=60, **more):
        """Runs it to its end."""
        more = {"capture_output": True, "text": True, "env": self.environment, **more}
        return subprocess.run([BINARY, *words], timeout=timeout, check=False, **more)

    def start(self, *words, **more):
        """Starts it. It is killed with all that it left at the end of the test."""
        more = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True, "env": self.environment, **more}
        process = subprocess.Popen([BINARY, *words], **more)
        self.started.append(process)
        return process

    def shell(self, *options, script):
        """Starts a shell under a lock, which may use $DIR for its files."""
        environment = {**self.environment, "DIR": str(self.directory)}
        return self.start("run", *options, "sh", "-c", script, env=environment)

    def number(self, file, what="the command has written it"):
        """The number that a command has written to this file of the test's directory."""
        path = self.directory / file

        def read():
            text = path.read_text() if path.exists() else ""
            return text.endswith("\n") and int(text)

        return eventually(read, what)

    def close(self):
        for process in self.started:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                process.kill()
            process.communicate(timeout=SOON_SECONDS)


def is_alive(pid):
    """Whether a process runs: one that has ended and was not reaped does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def children(pid):
    """The processes whose parent this one is."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            text = path.read_text()
            if int(text.rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
    return found


def ended(process, limit=SOON_SECONDS):
    """The exit code of the tool, and what it said."""
    _, said = process.communicate(timeout=limit)
    return process.returncode, said


def holder(server, name):
    """The owner that holds the lock, if any."""
    info = lock_info(server.admin, name)
    return info["holders"][0] if info and info["holders"] else None


def is_held(server, name):
    return holder(server, name) is not None


def died_before(server, name, pids, limit=30.0):
    """Waits for the end of all these processes. Returns whether the lock was still held when the last one was dead.

    The processes are looked at before the lock: if it is held afterwards, it was held at their death.
    """
    deadline = time.monotonic() + limit
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"alive: {[pid for pid in pids if is_alive(pid)]}"
        time.sleep(0.002)
    return is_held(server, name)


#: Prints which signals it blocks and ignores. A shell would change these.
MASKS = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]
LIBC = ctypes.CDLL(None)
SYS_RT_SIGACTION = {"x86_64": 13}.get(os.uname().machine, 134)


def masks(text):
    """What MASKS has printed, as sets of bits."""
    return {name: int(bits, 16) for name, bits in (line.split(":") for line in text.splitlines())}


def bit(number):
    """The bit of a signal in such a set."""
    return 1 << (number - 1)


def unusual_signals():
    """Makes a child block and ignore signals, also one that the C library keeps to itself, as runners of CI do."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN + 2, signal.SIGIO})
    for number in (signal.SIGCHLD, signal.SIGALRM, signal.SIGRTMIN + 1):
        signal.signal(number, signal.SIG_IGN)
    # The kernel's form of an action: the handler (1 ignores), flags, a restorer, a mask.
    ignore = (ctypes.c_ulong * 4)(1)
    assert LIBC.syscall(SYS_RT_SIGACTION, 32, ignore, None, 8) == 0
