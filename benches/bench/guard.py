"""The guard of the hot path: fails when acquire and release cost more instructions than what is committed.

It also fails when another command costs more after a wait for a lock than before it, or when the tool costs more to
start.

Counted on Redis 7.0 without persistence, in the figures of `benches/instructions.toml`. Another patch release
of the server or of the C library moves all commands alike. So the committed count is first scaled by what
SET NX PX + DEL costs now and cost then. Needs valgrind, and nothing but Python.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass

from .crowd import await_waiter
from .measure import OURS
from .scenarios.instructions import CALLGRIND, QUIET, Lengths, measure
from .scenarios.instructions import counted as counted_by
from .scenarios.tool import build_tool
from .servers import ROOT, Connection, Server, releases, started
from .subjects import CHEAPEST

RELEASE = "redis-7.0"
FILE = ROOT / "benches" / "instructions.toml"

#: More than this is a reason to look. From run to run, ours differs by 0.1 % and the cheapest by 0.6 %.
RISE_MAX = 0.03

#: From run to run it hardly differs (0.4 % with another environment). Another patch release of the C library may load in other ways.
START_RISE_MAX = 0.05

#: The highest rise of the cost of a PING after a client has waited for a lock. The rest of the server makes up to 5 %
#: of it.
PING_RISE_MAX = 0.15
#: The smaller of two counts; the larger one is three times as high.
PINGS = 200

ROUNDS = 3
LENGTHS = Lengths(400, 1_000, 400)

TEXT = """\
# Instructions of the server for one pair of acquire and release, pipelined by 16, on Redis 7.0 without
# persistence. `make bench-guard` compares with it, and fails when ours rises by more than 3 %. After a change
# that is worth it, `scripts/bench guard --write` writes this file anew; the commit says why.
server = "{server}"
redislock = {ours}
set-nx-px-and-del = {cheapest}

# Instructions of `redislock ls` on an empty server: at most 5 % more. It starts and connects as `run` does, which valgrind
# cannot follow: a library of the tool reads the clock from memory that valgrind hides.
redislock-ls = {start}
"""


@dataclass(frozen=True)
class Count:
    """Instructions per pair."""

    ours: float
    cheapest: float  # SET NX PX + DEL

    def scaled_to(self, other: Count) -> float:
        """Ours, as it would have been counted there where the cheapest was counted as in `other`."""
        return self.ours * other.cheapest / self.cheapest


def counted() -> tuple[str, Count]:
    (release,) = releases([RELEASE])
    figures = measure(release, "no persistence", (OURS, CHEAPEST), ROUNDS, LENGTHS)
    # The lowest: what comes between can only add to it.
    found = {figure.subject: figure.low for figure in figures}
    return release.label, Count(found[OURS], found[CHEAPEST])


def committed() -> tuple[Count, float]:
    """Of a pair, and of a start of the tool."""
    if not FILE.exists():
        raise RuntimeError(f"{FILE.relative_to(ROOT)} is missing: `scripts/bench guard --write` writes it")
    try:
        figures = tomllib.loads(FILE.read_text())
        return Count(float(figures["redislock"]), float(figures["set-nx-px-and-del"])), float(figures["redislock-ls"])
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as reason:
        raise RuntimeError(f"{FILE.relative_to(ROOT)} cannot be read: {reason!r}") from reason


def write() -> str:
    server, now = counted()
    start = start_counted()
    FILE.write_text(TEXT.format(server=server, ours=round(now.ours), cheapest=round(now.cheapest), start=start))
    return f"{FILE.relative_to(ROOT)}: {now.ours:,.0f} instructions per pair, SET NX PX + DEL {now.cheapest:,.0f}"


def compare() -> tuple[bool, str]:
    """Returns whether it holds, and a message."""
    before, _ = committed()
    _, now = counted()
    expected = before.scaled_to(now)
    rise = now.ours / expected - 1
    told = (
        f"acquire + release take {now.ours:,.0f} instructions, committed are {before.ours:,.0f}"
        f" (here {expected:,.0f}, as SET NX PX + DEL takes {now.cheapest:,.0f}, then {before.cheapest:,.0f}): {rise:+.2%}"
    )
    if rise <= RISE_MAX:
        return True, told
    return False, (
        f"{told}, and at most {RISE_MAX:+.0%} is allowed.\n"
        f"If the change is worth it, run `scripts/bench guard --write` and commit benches/instructions.toml with the reason."
    )


# What others pay


def per_ping(server: Server, connection: Connection) -> float:
    """Instructions that one more PING costs, each in a turn of the event loop of its own: the lowest of some rounds."""

    def total(count: int) -> int:
        for _ in range(count):
            connection.call("PING")
        return counted_by(server)

    total(PINGS)  # so that what came before has its time
    return min((total(3 * PINGS) - total(PINGS)) / (2 * PINGS) for _ in range(ROUNDS))


def compare_pings() -> tuple[bool, str]:
    """Returns whether a PING costs the same before any client has waited for a lock and after that, and a message."""
    (release,) = releases([RELEASE])
    with started(release, "no persistence", *QUIET, under=CALLGRIND) as server:
        with server.connect() as holder, server.connect() as waiter:
            holder.call("LOCK.ACQUIRE", "door", "alice", "PX", 600_000)
            before = per_ping(server, holder)
            waiter.send("LOCK.ACQUIRE", "door", "bob", "PX", 600_000, "BLOCK", 0)
            await_waiter(holder, "door")
            holder.call("LOCK.RELEASE", "door", "alice")
            waiter.read()
            after = per_ping(server, holder)
    told = f"a PING takes {before:,.0f} instructions, and {after:,.0f} when somebody has waited for a lock"
    if after <= before * (1 + PING_RISE_MAX):
        return True, told
    return False, f"{told}: at most {PING_RISE_MAX:+.0%} is allowed"


# The tool


def start_counted() -> int:
    """Instructions of the tool from its start to its end: the lowest of some rounds."""
    (release,) = releases([RELEASE])
    program, counts = build_tool(), []
    with Server(release) as server:
        valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
        for _ in range(ROUNDS):
            command = [*valgrind, str(program), "ls", f"--url=redis://127.0.0.1:{server.port}"]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            _, told = process.communicate(timeout=120)
            found = re.search(rf"^=={process.pid}== Collected : (\d+)", told, re.MULTILINE)
            if process.returncode != 0 or found is None:
                raise RuntimeError(f"{program} could not be counted: {told[-1000:]}")
            counts.append(int(found[1]))
    return min(counts)


def compare_start() -> tuple[bool, str]:
    """Returns whether the tool starts with as few instructions as before, and a message."""
    _, before = committed()
    now = start_counted()
    told = f"redislock ls takes {now:,.0f} instructions, committed are {before:,.0f}: {now / before - 1:+.2%}"
    if now <= before * (1 + START_RISE_MAX):
        return True, told
    return False, f"{told}, and at most {START_RISE_MAX:+.0%} is allowed"


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench guard", description="Fails when a pair costs more than is committed.")
    parser.add_argument("--write", action="store_true", help="write benches/instructions.toml anew")
    asked = parser.parse_args()
    try:
        verdicts = [(True, write())] if asked.write else [compare(), compare_pings(), compare_start()]
    except (RuntimeError, OSError) as reason:
        print(f"bench-guard: {reason}", file=sys.stderr)
        return 1
    for holds, told in verdicts:
        print(f"bench-guard: {told}", file=sys.stdout if holds else sys.stderr)
    return 0 if all(holds for holds, _ in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
