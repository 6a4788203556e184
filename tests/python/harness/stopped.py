"""Stops processes."""

import os
import signal
from pathlib import Path

from .limits import eventually


def stop(*pids):
    """Stops these processes, as a pause of their machine would, and waits until each of their threads has stopped.

    On a busy machine the others run on until the thread that takes the signal is given a processor.
    """
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        eventually(lambda pid=pid: all(map(stands_still, Path(f"/proc/{pid}/task").iterdir())), f"process {pid} stands still")


def stands_still(task):
    """Returns whether this thread is stopped, or has ended."""
    try:
        return (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "TtZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
