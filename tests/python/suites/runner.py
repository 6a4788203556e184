"""Runs files of tests at the same time, each in a copy of its own."""

import os
import queue
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from .copies import PORTS, copy_of, script_for
from .outcome import outcomes, outcomes_of_group

SECONDS_MAX = 3000  # of a file; the suite itself gives up when nothing went on for 1200
LIVE = set()  # the processes that run now, each with a group of its own
STARTING = threading.RLock()


@dataclass
class Run:
    """A file of tests, run once."""

    file: str
    side: str
    found: dict
    seconds: float


class Runner:
    """A number of slots, each with a copy of the source with the module and one without."""

    def __init__(self, source, module, work, logs, slots, base_port):
        self.logs = logs
        self.source = source
        self.free = queue.Queue()
        self.lock = threading.Lock()
        for slot in range(slots):
            port = base_port + slot * (PORTS + 50)
            copies = {
                "without": copy_of(source, work / f"{slot}o", port),
                "with": copy_of(source, work / f"{slot}w", port, module),
            }
            self.free.put((port, copies))
        self.slots = slots

    def run(self, jobs):
        """Runs all (file, side), and returns a Run of each."""
        waiting = queue.Queue()
        for job in jobs:
            waiting.put(job)
        done = []
        threads = [threading.Thread(target=self.work, args=(waiting, done)) for _ in range(self.slots)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == len(jobs), "a slot broke down"
        return done

    def work(self, waiting, done):
        """Takes one job after the other."""
        port, copies = self.free.get()
        try:
            while True:
                file, side = waiting.get_nowait()
                done.append(self.one(file, side, copies[side], port))
        except queue.Empty:
            pass
        finally:
            self.free.put((port, copies))

    def one(self, file, side, copy, port):
        """Runs a file of tests in a copy."""
        command = ["./runtest", "--single", file, "--clients", "1", "--durable", "--baseport", str(port)]
        command += ["--portcount", str(PORTS)]
        read = outcomes
        if script_for(file):
            command, read = [script_for(file), "--single", Path(file).name], outcomes_of_group
        log = self.log_path(file, side)
        began = time.monotonic()
        with open(log, "wb") as out:
            code = finish(command, copy, out)
        seconds = time.monotonic() - began
        found = read(log.read_text(errors="replace"), code)
        failures = sum(counts["err"] for counts in found.values())
        print(f"   {seconds:6.1f} s  {side:7}  {file}{f'  ({failures} failed)' if failures else ''}", flush=True)
        return Run(file, side, found, seconds)

    def log_path(self, file, side):
        """A name that no run before it had."""
        with self.lock:
            base = self.logs / f"{file.replace('/', '-')}.{side}"
            paths = (Path(f"{base}.{number}.log") for number in range(1, 1000))
            path = next(path for path in paths if not path.exists())
            path.touch()
            return path


def finish(command, directory, out):
    """Runs a command to its end, or ends it and all that it started."""
    environment = {**os.environ, "TERM": "dumb"}
    with STARTING:
        process = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        LIVE.add(process)
    try:
        return process.wait(timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        out.write(b"\n[TIMEOUT]: the file took too long\n")
        return 1
    finally:
        end_group(process)
        LIVE.discard(process)


def end_all(*_signal):
    """Ends everything that runs, and this process."""
    STARTING.acquire()  # and nothing starts any more
    for process in list(LIVE):
        end_group(process)
    os._exit(130)


def end_group(process):
    """Ends the rest of a process and its children, which are a group of their own."""
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass
    process.wait()
