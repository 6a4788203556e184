"""The tests of the core: the functions that each reaches, its duration, and whether it notices a mutant."""

import os
import re
import resource
import subprocess
import tempfile
import threading
from pathlib import Path

# A mutant may make a test endless, or let it take all memory there is.
MEMORY_BYTES_MAX = 4 << 30

# The stack of a test's thread.
STACK_BYTES = 64 << 20
CPU_SECONDS_MIN = 5
# As often as long as without a mutant; the wall clock may be that of a busy machine.
TIMES_MAX, WALL_TIMES_MAX = 10, 100
# Tests that take no longer are run together.
QUICK_SECONDS = 0.3
# Not asked in a first round: they take most of the time.
SLOW = re.compile(r"^sim::(model|generators|group|life|stories::deadlocks)::|::(ranks_are|a_wheel_agrees)")
# Not asked at all: they look for a fault, and find one the sooner.
SEEKING = re.compile(r"^sim::group::.*::what_cannot_be_promised")

ENDED = re.compile(r"^test (\S+) (?:- should panic )?\.\.\. (ok|FAILED|ignored)", re.MULTILINE)
BEGUN = re.compile(r"^test (\S+) (?:- should panic )?\.\.\.", re.MULTILINE)


class Binary:
    """A test binary of the core."""

    def __init__(self, path):
        self.path = path

    def names(self):
        """All its tests."""
        ended = subprocess.run([self.path, "--list"], check=True, stdout=subprocess.PIPE, text=True)
        return re.findall(r"^(\S+): test$", ended.stdout, re.MULTILINE)

    def run(self, tests, seconds, **variables):
        """The test that notices first, or `None`; and whether that was because it took too long."""
        cpu = int(max(CPU_SECONDS_MIN, seconds * TIMES_MAX)) + 1

        def limit():
            resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        words = [self.path, "--exact", *tests, "--test-threads=1"]
        # Without optimisation the frames of a function with all its changes are large.
        given = {**os.environ, "RUST_BACKTRACE": "0", "RUST_MIN_STACK": str(STACK_BYTES), **variables}
        with subprocess.Popen(
            words,
            env=given,
            preexec_fn=limit,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(self.path).parent,
        ) as process:
            watch = threading.Timer(cpu * WALL_TIMES_MAX, process.kill)
            watch.start()
            try:
                return self.watch(process, cpu)
            finally:
                watch.cancel()
                process.kill()

    @staticmethod
    def watch(process, cpu):
        """Reads the output of the tests until the first of them fails."""
        said = b""
        while piece := process.stdout.read1(4096):
            said += piece
            if b"... FAILED" in said:
                break
        text = said.decode(errors="replace")
        failed = next((name for name, how in ENDED.findall(text) if how == "FAILED"), None)
        if failed:
            return failed, False
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode == 0:
            return None, False
        begun = BEGUN.findall(text)
        return begun[-1] if begun else "the test binary", used.ru_utime + used.ru_stime >= cpu - 1

    def reached(self, test):
        """The numbers of the functions that a test reaches, and the CPU time that it takes."""
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "reached"
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            failed, _ = self.run([test], 600, MUTANT_REACHED=str(path))
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if failed:
                raise AssertionError(f"{test} fails without a mutant")
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            numbers = sorted({int(line) for line in path.read_text().split()}) if path.exists() else []
        return {"seconds": round(seconds, 3), "functions": numbers}


def batches(tests, first):
    """In which order tests are asked: those that noticed others first, the quick ones together, then the slow ones.

    `tests` are names with their seconds."""
    order = [[name] for name in first if name in tests]
    rest = {name: seconds for name, seconds in tests.items() if name not in first}
    quick = [name for name, seconds in rest.items() if seconds <= QUICK_SECONDS]
    slow = sorted((seconds, name) for name, seconds in rest.items() if seconds > QUICK_SECONDS)
    return order + ([quick] if quick else []) + [[name] for _, name in slow]


def noticed(binary, tests, first, **variables):
    """The test that notices, or `None`, and whether it took too long."""
    for batch in batches(tests, first):
        name, is_late = binary.run(batch, sum(tests[one] for one in batch), **variables)
        if name:
            return name, is_late
    return None, False
