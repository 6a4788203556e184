"""A process that the harness stops has stopped with all its threads when `stop` returns."""

import os
import signal
import subprocess
import sys

import pytest

from harness.stopped import stop

#: Threads that note the time without end.
RESTLESS = """
import os, sys, threading, time
def run():
    while True:
        os.pwrite(1, b"%020d" % time.monotonic_ns(), 0)
for _ in range(8):
    threading.Thread(target=run).start()
"""


@pytest.mark.once
def test_no_thread_of_a_stopped_process_runs_on(tmp_path):
    with (tmp_path / "noted").open("w+b") as noted:
        process = subprocess.Popen([sys.executable, "-c", RESTLESS], stdout=noted)
        try:
            for _ in range(20):
                before = os.pread(noted.fileno(), 20, 0)
                while os.pread(noted.fileno(), 20, 0) == before:
                    assert process.poll() is None
                stop(process.pid)
                still = os.pread(noted.fileno(), 20, 0)
                for _ in range(200):
                    assert os.pread(noted.fileno(), 20, 0) == still, "it runs on"
                process.send_signal(signal.SIGCONT)
        finally:
            process.kill()
            process.wait()
