"""The load generator of benches/load, which sends pairs from many connections."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .cores import chosen, place
from .servers import Server
from .subjects import Pair

RATE = "pairs per second"
CPU = "server CPU per pair, us"
P50 = "latency p50 of a pair, us"
P99 = "latency p99 of a pair, us"

#: A run takes well under a second.
SECONDS_MAX = 60.0


@dataclass(frozen=True)
class Mode:
    """The number of connections, and of commands under way on each."""

    connections: int
    depth: int

    @property
    def label(self) -> str:
        plural = "" if self.connections == 1 else "s"
        pipelined = "one command at a time" if self.depth == 1 else f"pipelined by {self.depth}"
        return f"{self.connections} connection{plural}, {pipelined}"


@dataclass(frozen=True)
class Load:
    """The duration and the number of keys; `measure` runs it once."""

    program: Path
    seconds: float
    warm_up: float
    keys: int = 1_000

    def measure(self, server: Server, pair: Pair, mode: Mode) -> dict[str, float]:
        """Values by metric; latencies only where a pair is waited for."""
        command = [self.program, "--port", server.port, "--server-pid", server.process.pid]
        command += ["--take", pair.take_words, "--took", pair.took, "--free", pair.free_words, "--freed", pair.freed]
        command += ["--connections", mode.connections, "--depth", mode.depth, "--keys", self.keys]
        command += ["--seconds", self.seconds, "--warm-up", self.warm_up]
        options = {"capture_output": True, "text": True, "timeout": SECONDS_MAX}
        place(server, mode.connections)
        take_place = partial(os.sched_setaffinity, 0, chosen(mode.connections))
        done = subprocess.run(list(map(str, command)), preexec_fn=take_place, **options)
        if done.returncode:
            raise RuntimeError(f"{pair.name} on {server.release.label}, {mode.label}: {done.stderr.strip()}")
        seen = json.loads(done.stdout)
        values = {RATE: seen["pairs_per_second"], CPU: seen["server_cpu_us_per_pair"]}
        return values | ({P50: seen["p50_us"], P99: seen["p99_us"]} if mode.depth == 1 else {})
