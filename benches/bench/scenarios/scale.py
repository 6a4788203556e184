"""Scale: what everybody else notices, in the latency of a PING, when very many locks or clients do the same at once.

One connection pings, from a process of its own, one PING after the other and at most one in 100 us (see
benches/ping), while

- the leases of a million locks end within one second: from then until the last key is gone. For comparison `SET NX PX`,
  whose keys the server deletes when it comes to them.
- ten thousand clients wait for one lock: it is handed over, from one to the next; then all of them disconnect. For
  comparison clients that wait in a BLPOP for one list.
- ten thousand clients wait for a lock each: all leases end within one second, so that all locks are handed over; then,
  waiting again, all of them disconnect. For comparison a BLPOP each, for the disconnecting.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from .. import mass
from ..crowd import Crowd, allow_files, field
from ..measure import OURS, Figure, in_turns
from ..servers import ROOT, Connection, Release, Server, encode
from ..subjects import key, owner

LOCKS = 1_000_000
LOCKS_QUICK = 50_000
WAITERS = 10_000
WAITERS_QUICK = 500
HAND_OVERS = 1_000
HAND_OVERS_QUICK = 100

BLPOP = "BLPOP"

#: All leases end within this time.
SPREAD_MS = 1_000

#: The limit, for a million, on the time until all locks are taken whose leases end together; the next attempt has twice
#: that.
LOAD_SECONDS = 3.0

#: The limit, for the locks of `many_lines`, on the time until every client waits; the next attempt has twice that.
QUEUE_SECONDS = 1.5

SECONDS_MAX = 60.0
INTERVAL_US = 100

#: Fewer than elsewhere, because a round takes a quarter of a minute.
ROUNDS = 3

LAST = "seconds until the last"
HAND_OVER = "us per hand-over"

Values = dict[str, float]


def ping_program() -> Path:
    """Builds it; at once, if it was built."""
    command = [os.environ.get("CARGO", "cargo"), "build", "--quiet", "--locked", "--message-format", "json"]
    command += ["--profile", "bench", "--bench", "ping"]
    done = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    built = [json.loads(line).get("executable") for line in done.stdout.splitlines()]
    (path,) = filter(None, built)
    return Path(path)


class Pinger:
    """Pings from the start; `lap` tells about the pings since the lap before."""

    def __init__(self, program: Path, server: Server) -> None:
        command = [program, str(server.port), str(INTERVAL_US)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lap()

    def lap(self) -> Values:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        told = json.loads(self.process.stdout.readline())
        return {f"PING {name}, ms": told[f"{name}_us"] / 1e3 for name in ("p50", "p99", "p99.9", "max")}

    def __enter__(self) -> Pinger:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.wait(SECONDS_MAX)
        self.process.stdout.close()


def wait_until(is_so: Callable[[], bool], every: float = 0.01) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError("it takes too long")
        time.sleep(every)


def leases_end(release: Release, ping: Path, subject: str, count: int, attempt: int = 1) -> dict[str, Values]:
    """This many locks, whose leases end within one second."""
    with Server(release) as server, server.connect() as control, Pinger(ping, server) as pinger:
        end = time.monotonic() + attempt * max(0.5, LOAD_SECONDS * count / LOCKS)
        mass.take(server, subject, count, mass.together(end, SPREAD_MS))
        if time.monotonic() < end:
            if control.call("DBSIZE") != b":%d" % count:
                raise RuntimeError(f"{subject}: not all of {count} locks are held")
            time.sleep(max(0.0, end - time.monotonic()))
            pinger.lap()
            wait_until(lambda: control.call("DBSIZE") == b":0")
            return {f"{count:,} leases end within 1 s": {LAST: time.monotonic() - end, **pinger.lap()}}
    return leases_end(release, ping, subject, count, 2 * attempt)


def disconnect(control: Connection, pinger: Pinger, crowd: Crowd) -> Values:
    """All clients of the crowd at once."""
    pinger.lap()
    start = time.monotonic()
    crowd.leave()
    wait_until(lambda: field(control, "clients", "connected_clients") <= 2)
    return {LAST: time.monotonic() - start, **pinger.lap()}


def await_blocked(control: Connection, count: int) -> None:
    wait_until(lambda: field(control, "clients", "blocked_clients") == count)


def acquire(name: str, number: int) -> bytes:
    return encode("LOCK.ACQUIRE", name, owner(number), "PX", mass.LEASE_MS, "BLOCK", 0)


def one_line(release: Release, ping: Path, subject: str, count: int, hand_overs: int) -> dict[str, Values]:
    """This many clients in one queue: hand-overs, then all disconnect."""
    if subject == OURS:
        wait, free = (lambda n: acquire("lock", n + 1)), (lambda n: encode("LOCK.RELEASE", "lock", owner(n)))
    else:
        wait, free = (lambda _: encode("BLPOP", "list", 0)), (lambda _: encode("RPUSH", "list", "token"))
    with Server(release, *room_for(count)) as server, server.connect() as control:
        control.pipeline(acquire("lock", 0), 1)
        with Pinger(ping, server) as pinger, Crowd(server, count) as crowd:
            crowd.say(wait)
            await_blocked(control, count)
            pinger.lap()
            frees = b"".join(free(n) for n in range(hand_overs))
            start = time.monotonic()
            control.pipeline(frees, hand_overs)
            crowd.hear(hand_overs - 1, hand_overs)  # they are served in order, so this is the last
            seconds = time.monotonic() - start
            passing = {HAND_OVER: seconds / hand_overs * 1e6, **pinger.lap()}
            crowd.hear(0, hand_overs - 1)
            crowd.say(lambda n: wait(count + n), 0, hand_overs)  # as others: the last one holds the lock
            await_blocked(control, count)
            return {
                f"{count:,} waiters for one lock, {hand_overs:,} hand-overs": passing,
                f"{count:,} waiters for one lock disconnect": disconnect(control, pinger, crowd),
            }


def many_lines(
    release: Release, ping: Path, subject: str, count: int, attempt: int = 1
) -> dict[str, Values]:
    """This many locks with one waiter each: all are handed over within a second, then all disconnect."""
    seen = {}
    with Server(release, *room_for(count)) as server, server.connect() as control:
        with Pinger(ping, server) as pinger, Crowd(server, count) as crowd:
            if subject == OURS:
                end = time.monotonic() + attempt * QUEUE_SECONDS
                passing = hand_all_over(server, control, pinger, crowd, count, end)
                seen[f"{count:,} locks with a waiter each, all leases end within 1 s"] = passing
                crowd.say(lambda n: acquire(key(n), count + n))
            else:
                crowd.say(lambda n: encode("BLPOP", key(n), 0))
            if subject != OURS or passing:
                await_blocked(control, count)
                return {**seen, f"{count:,} waiters of a lock each disconnect": disconnect(control, pinger, crowd)}
    return many_lines(release, ping, subject, count, 2 * attempt)


def hand_all_over(
    server: Server, control: Connection, pinger: Pinger, crowd: Crowd, count: int, end: float
) -> Values | None:
    """Every client waits for a lock whose lease ends within a second from `end`. `None`: that came too early."""
    mass.take(server, OURS, count, mass.together(end, SPREAD_MS))
    crowd.say(lambda n: acquire(key(n), n))
    wait_until(lambda: time.monotonic() > end or field(control, "clients", "blocked_clients") == count)
    if time.monotonic() > end:
        return None
    time.sleep(max(0.0, end - time.monotonic()))
    pinger.lap()
    wait_until(lambda: field(control, "redislock", "redislock_waiters") == 0)
    seen = {LAST: time.monotonic() - end, **pinger.lap()}
    crowd.hear()
    return seen


def room_for(clients: int) -> tuple[str, ...]:
    return ("--maxclients", str(clients + 100), "--tcp-backlog", "4096")


def run(bench) -> list[Figure]:
    ping = ping_program()
    locks = LOCKS_QUICK if bench.is_quick else LOCKS
    waiters = WAITERS_QUICK if bench.is_quick else WAITERS
    hand_overs = HAND_OVERS_QUICK if bench.is_quick else HAND_OVERS
    has_files = allow_files(waiters)
    if not has_files:
        bench.say(f"scale: the waiters are left out: {waiters:,} connections need a higher `ulimit -Hn`")
    figures = []
    for release in bench.releases:
        is_first = release is bench.releases[0]
        rounds = 1 if bench.is_quick or not is_first else min(bench.rounds, ROUNDS)
        # On the other servers for the target alone: each round takes six seconds.
        subjects = (OURS, mass.SET) if is_first else (OURS,)
        bench.say(f"scale: {release.label}, leases that end together")
        figures += in_rounds(release, rounds, {s: partial(leases_end, release, ping, s, locks) for s in subjects})
        if is_first and has_files:
            bench.say(f"scale: {release.label}, waiters")
            for measure in (partial(one_line, hand_overs=hand_overs), many_lines):
                subjects = {s: partial(measure, release, ping, s, waiters) for s in (OURS, BLPOP)}
                figures += in_rounds(release, rounds, subjects)
    return figures


def in_rounds(
    release: Release, rounds: int, subjects: Mapping[str, Callable[[], dict[str, Values]]]
) -> list[Figure]:
    """Measures the subjects in turns; their values come by setting and metric."""
    seen = in_turns(rounds, {name: partial(flat, measure) for name, measure in subjects.items()})
    return [
        Figure("scale", release.label, f"{setting}, {rounds} round{'s' * (rounds > 1)}", name, metric, values)
        for name, found in seen.items()
        for (setting, metric), values in found.items()
    ]


def flat(measure: Callable[[], dict[str, Values]]) -> dict[tuple[str, str], float]:
    return {(setting, name): value for setting, values in measure().items() for name, value in values.items()}
