"""The tool, `redislock run`, compared with `flock` and `etcdctl lock`: the cost of running a command under a lock.

- Hand-over: some dozens of processes wait for one lock, each with a connection of its own. The one that holds it ends, and
  then they run one after the other. Measured is the time from the end of one command to the start of the next. A lock of
  `flock` is one of the kernel, on one machine. etcd has one node with its defaults, which writes to the disk before it
  answers.
- Start-up: from the start of the tool to the start of its command, without contention. It has the connection, the
  grant, and the guard's fork in it.
- Memory: what each that waits has for itself, of the tool and of its guard: shared pages are divided among those that
  share them (PSS).

Debian 12 has no package of consul, so `consul lock` is not measured.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ..context import Bench
from ..crowd import field
from ..measure import OURS, Figure, in_turns
from ..peers.etcd import Etcd
from ..servers import ROOT, Server

SCENARIO = "tool"
WAITERS, WAITERS_QUICK = 50, 5
STARTS, STARTS_QUICK = 20, 3
ALONE = "nobody else wants the lock"
P50, P99 = "hand-over p50, ms", "hand-over p99, ms"
START, MEMORY = "start-up, ms", "memory of one that waits, MiB"
#: The limit on the time that all of them take to queue, and to run.
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Subject:
    """A tool that runs a command under a lock."""

    label: str  # of what keeps the lock
    command: list[str]  # the command behind it runs under the lock
    waiting: Callable[[], int]  # how many wait for it


def run(bench: Bench) -> list[Figure]:
    waiters = WAITERS_QUICK if bench.is_quick else WAITERS
    starts = STARTS_QUICK if bench.is_quick else STARTS
    figures: list[Figure] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redislock-bench-")))
        stamp = Stamp(folder)
        subjects = dict(subjects_of(bench, stack, folder))
        settings: dict[str, Callable[[Subject], Mapping[str, float]]] = {
            ALONE: lambda subject: start(subject, stamp, starts),
            f"{waiters} that wait": lambda subject: queue(subject, stamp, waiters),
        }
        for setting, measure in settings.items():
            bench.say(f"tool: {setting}")
            turns = {name: lambda subject=subject, measure=measure: measure(subject) for name, subject in subjects.items()}
            figures += [
                Figure(SCENARIO, subjects[name].label, setting, name, metric, values)
                for name, seen in in_turns(bench.rounds, turns).items()
                for metric, values in seen.items()
            ]
    return figures


def build_tool() -> Path:
    """The release build of this tree, as the packages have it."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "tool"
    command = [os.environ.get("CARGO", "cargo"), "build", "--quiet", "--release", "--locked"]
    subprocess.run([*command, "--manifest-path", ROOT / "tool" / "Cargo.toml", "--target-dir", target], check=True)
    return target / "release" / "redislock"


def subjects_of(bench: Bench, stack: contextlib.ExitStack, folder: Path) -> Iterator[tuple[str, Subject]]:
    release = bench.releases[0]
    server = stack.enter_context(Server(release))
    asker = stack.enter_context(server.connect())
    run = [str(build_tool()), "run", "--quiet", "--wait", "forever", f"--url=redis://127.0.0.1:{server.port}", "job"]
    yield OURS, Subject(release.label, run, lambda: field(asker, "redislock", "redislock_waiters"))

    path = folder / "lock"
    path.touch()
    told = subprocess.run(["flock", "--version"], check=True, capture_output=True, text=True).stdout
    label = f"util-linux {re.search(r'[0-9.]+$', told.strip())[0]}"
    yield "flock", Subject(label, ["flock", str(path)], lambda: blocked_at(path.stat().st_ino))

    etcd = stack.enter_context(Etcd())
    etcdctl = ["etcdctl", f"--endpoints={etcd.address}"]

    def others() -> int:
        listed = subprocess.run([*etcdctl, "get", "--prefix", "--keys-only", "job/"], check=True, capture_output=True, text=True)
        return max(len(listed.stdout.split()) - 1, 0)

    yield "etcdctl lock", Subject(etcd.label, [*etcdctl, "lock", "job", "--"], others)


def blocked_at(inode: int) -> int:
    """The number of processes that wait for the kernel's lock on this file."""
    lines = Path("/proc/locks").read_text().splitlines()
    return sum("->" in line and f":{inode} " in line for line in lines)


class Stamp:
    """The command that notes when it began and ended, and the gate at which a holder waits."""

    def __init__(self, folder: Path) -> None:
        self.path, self.program, self.gate = folder / "stamps", folder / "stamp", folder / "gate"
        os.mkfifo(self.gate)
        source = ROOT / "benches" / "stamp.c"
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", self.program, source], check=True)
        self.clear()

    def clear(self) -> None:
        self.path.write_text("")

    def noted(self) -> list[tuple[int, int]]:
        """When each began and ended, in this order."""
        return sorted(tuple(map(int, line.split())) for line in self.path.read_text().splitlines())

    def run_under(self, subject: Subject) -> subprocess.Popen:
        environment = {**os.environ, "STAMPS": str(self.path)}
        command = [*subject.command, str(self.program)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, close_fds=False)


def start(subject: Subject, stamp: Stamp, starts: int) -> dict[str, float]:
    """The time until a command starts."""
    took = []
    for _ in range(starts):
        stamp.clear()
        began = time.monotonic_ns()
        finish(stamp.run_under(subject))
        took.append((stamp.noted()[0][0] - began) / 1e6)
    return {START: median(took)}


def queue(subject: Subject, stamp: Stamp, waiters: int) -> dict[str, float]:
    """The time from one holder to the next, and the memory of those that wait."""
    stamp.clear()
    # etcdctl gives its command no input of its own.
    script = ["sh", "-c", 'echo; read line < "$0"', str(stamp.gate)]
    holder = subprocess.Popen([*subject.command, *script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    holder.stdout.readline()
    processes = [stamp.run_under(subject) for _ in range(waiters)]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while subject.waiting() < waiters:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{subject.command[0]}: not all of {waiters} wait")
        time.sleep(0.05)
    memory = median(sum(map(proportional_bytes, family(process.pid))) for process in processes)
    stamp.gate.write_text("go\n")
    holder.communicate(timeout=PATIENCE_SECONDS)
    for process in processes:
        finish(process)
    noted = stamp.noted()
    gaps = sorted((later[0] - earlier[1]) / 1e6 for earlier, later in zip(noted, noted[1:], strict=False))
    return {P50: gaps[len(gaps) // 2], P99: gaps[min(len(gaps) * 99 // 100, len(gaps) - 1)], MEMORY: memory / (1 << 20)}


def finish(process: subprocess.Popen) -> None:
    code = process.wait(PATIENCE_SECONDS)
    if code != 0:
        raise RuntimeError(f"{process.args[0]} ended with {code}")


def family(pid: int) -> list[int]:
    """A process and those below it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in family(int(child)))]


def proportional_bytes(pid: int) -> int:
    """The memory of a process, with its part of what it shares."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss: +(\d+) kB", rollup, re.MULTILINE)[1]) * 1024
