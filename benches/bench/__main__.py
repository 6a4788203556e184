"""Runs the benchmarks: `make bench`, or `scripts/bench --help`."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import subprocess
import sys
import time
import traceback
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from . import plots, report
from .context import Bench
from .measure import ROUNDS, Figure
from .options import ROUNDS_QUICK, arguments
from .results import write_csv
from .scenarios import rivals
from .servers import ROOT, releases


def folder() -> Path:
    """A new folder for the results, which `latest` names."""
    parent = ROOT / "results" / "bench"
    path = parent / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path.mkdir(parents=True)
    latest = parent / "latest"
    latest.unlink(missing_ok=True)
    latest.symlink_to(path.name)
    return path


def versions(scenarios: list[str]) -> list[str]:
    """The versions of the compiler, and of the tools and libraries that these scenarios use."""

    def told(*command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]

    found = [told("rustc", "--version").split(" (")[0]]
    if {"instructions", "breakdown", "others"} & set(scenarios):
        found.append(told("valgrind", "--version").replace("-", " "))
    if "handover" in scenarios:
        found += [f"{name} {metadata.version(name)}" for name in ("redis", "python-redis-lock", "kazoo")]
        packages = json.loads((ROOT / "benches" / "package-lock.json").read_text())["packages"]
        wanted = packages[""]["dependencies"]
        found += [f"{name} {packages[f'node_modules/{name}']['version']}" for name in wanted]
        found += [f"Node {told('node', '--version')}", f"Python {sys.version.split()[0]}"]
    if rivals.SCENARIO in scenarios:
        found += rivals.versions()
    return found


def facts(bench: Bench, scenarios: list[str], figures: list[Figure], seconds: float) -> dict[str, str]:
    """Under which circumstances this was measured."""
    named = {"module": "named by REDISLOCK_MODULE, not built from this commit"} if "REDISLOCK_MODULE" in os.environ else {}
    measured = list(dict.fromkeys(figure.server for figure in figures))
    words = [word for word in sys.argv[1:] if word != "--load" and word != str(bench.load)]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": f"`{shlex.join(['scripts/bench', *words])}`",
        "commit": report.commit(),
        **named,
        **report.machine(len(os.sched_getaffinity(0))),
        "measured": ", ".join(measured),
        "with": ", ".join(versions(scenarios)),
        "scenarios": ", ".join(scenarios),
        "rounds": f"{bench.rounds}{' (a smoke run)' if bench.is_quick else ''}",
        "took": f"{seconds:.0f} s",
    }


def run(bench: Bench, scenarios: list[str]) -> tuple[list[Figure], list[str]]:
    """All figures, and the scenarios that failed: the figures of the others are reported all the same."""
    figures: list[Figure] = []
    failed = []
    for name in scenarios:
        start = time.monotonic()
        try:
            figures += importlib.import_module(f".scenarios.{name}", __package__).run(bench)
        except Exception:  # whatever a peer or a server came up with
            traceback.print_exc()
            failed.append(name)
        bench.say(f"{name} {'failed after' if name in failed else 'took'} {time.monotonic() - start:.0f} s")
        write_csv(bench.results / "figures.csv", figures)
    return figures, failed


def main() -> int:
    asked = arguments()
    rounds = asked.rounds or (ROUNDS_QUICK if asked.quick else ROUNDS)
    bench = Bench(releases(asked.servers), rounds, asked.quick, asked.load, folder())
    figures, failed = run(bench, asked.only)
    seconds = time.monotonic() - bench.started
    told = facts(bench, [name for name in asked.only if name not in failed], figures, seconds)
    text = report.report(figures, told)
    (bench.results / "report.md").write_text(text)
    (bench.results / "facts.json").write_text(json.dumps(told, indent=2) + "\n")
    drawn = plots.draw(bench.results, figures)
    print(text)
    bench.say(f"report.md, figures.csv and {len(drawn)} plots are in {bench.results.relative_to(ROOT)}")
    if failed:
        bench.say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
