"""The client libraries: their cost on top of the bare commands of their drivers, compared with the locks that people
use instead.

Each client has a program, `clients/*/bench`, that tells figures as lines of JSON, and in which the ways take turns in
each round. Clients are in different languages, so nothing is compared but ways of one client. Uncontended, on one
connection: what is measured is the work of the client, not that of the server.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

from ..context import Bench
from ..measure import Figure
from ..servers import ROOT, Server

SECONDS_MAX = 300
CLIENTS = ("python", "node", "rust")


def told(client: str, server: Server, rounds: int) -> Iterator[dict]:
    """The output of a client's program."""
    program = ROOT / "clients" / client / "bench"
    done = subprocess.run(
        [program, f"127.0.0.1:{server.port}", str(rounds)], capture_output=True, text=True, timeout=SECONDS_MAX
    )
    if done.returncode:
        raise RuntimeError(f"{program.relative_to(ROOT)} ended with {done.returncode}: {done.stderr[-2000:]}")
    for line in done.stdout.splitlines():
        yield json.loads(line)


def run(bench: Bench) -> list[Figure]:
    figures = []
    # One server is enough: it is the clients that differ.
    release = bench.releases[0]
    for client in CLIENTS:
        # The tools are installed, and what is measured is built, before anything is measured.
        prepare = [ROOT / "clients" / client / "check", "--prepare"]
        subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL, timeout=2 * SECONDS_MAX)
        with Server(release) as server:
            for figure in told(client, server, bench.rounds):
                where, subject, metric = figure["client"], figure["subject"], figure["metric"]
                figures.append(Figure("clients", release.label, where, subject, metric, tuple(figure["values"])))
        bench.say(f"clients: {client}")
    return figures
