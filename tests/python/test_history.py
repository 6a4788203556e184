"""Histories of many clients under load, checked for violations of any lock's promises.

G1, G2, G4, G5, G7, G9, G11, G12, G13. `make soak-kinds` lets that of all kinds run for minutes, in
rounds. The checker is checked in test_history_checker.py and its siblings.
"""

import multiprocessing
import os
from collections import Counter
from contextlib import closing

import pytest

from checkers import STALL_SECONDS, faults, keep
from checkers.evidence import Evidence
from harness.contention import run_clients as contend
from harness.kinds import count
from harness.limits import SLOW_FACTOR, SOON_SECONDS, VALGRIND, eventually
from harness.mixture import KINDS, MixedClient, run_clients
from harness.quiet import counters, last_look
from harness.replicas import AT_ONCE, is_linked
from harness.replies import module_info

PROCESSES = 2
# Under valgrind the server answers as many less quickly than the judge allows, which is as strict there.
CLIENTS = 3 if VALGRIND else 25
SECONDS = 8.0
SOAK_SECONDS = float(os.environ.get("REDISLOCK_SOAK_SECONDS") or SECONDS)
SEED = int(os.environ.get("REDISLOCK_SOAK_SEED") or 0)
ROUNDS = max(1, round(SOAK_SECONDS / SECONDS))

CONTENDING_PROCESSES = 3
CONTENDING_THREADS = 4
CONTENDING_SECONDS = 5.0
LOCKS = ["door", "gate", "hatch"]


def test_a_history_under_load_is_one_that_a_lock_can_have_made(start_server):
    server = start_server()
    cli = server.connect()
    # Processes, as threads of one would mostly wait for each other.
    with multiprocessing.get_context("spawn").Pool(CONTENDING_PROCESSES) as pool:
        parts = pool.starmap(
            contend,
            [(server.port, seed, CONTENDING_THREADS, CONTENDING_SECONDS, LOCKS) for seed in range(CONTENDING_PROCESSES)],
        )
    history = [request for part, _ in parts for request in part]
    assert [failure for _, failures in parts for failure in failures] == []
    keep(history, f"one-lock.{os.getpid()}")
    assert faults(history) == []
    assert_the_load_was_one(history)
    eventually(lambda: cli("DBSIZE") == 0, "all leases end")
    info = module_info(cli)
    assert (info["locks"], info["waiters"]) == ("0", "0")


def assert_the_load_was_one(history):
    """A history in which nothing happens has no faults either."""
    acquires = [request for request in history if request.is_acquire and not request.error]
    granted = [request for request in acquires if request.reply is not None]
    waited = [r for r in granted if r.block and r.answered - r.sent > 0.005]
    lost = [r for r in history if not r.is_acquire and r.reply == 0]
    assert len(granted) > 100
    assert len(acquires) - len(granted) > 20, "some were not granted"
    assert len(waited) > 10, "some were granted out of the queue"
    assert len(lost) > 5, "some leases ended before the holder was done"
    assert sum(hold.end > hold.start for hold in Evidence(history).holds) > 50


@pytest.mark.once
def test_a_client_sees_at_once_which_of_two_was_refused_though_the_server_is_slow(server):
    # It was taken for a deadlock that was not reported.
    slows = server.connect()
    with closing(MixedClient(server.port, "client.0", [[]], None)) as client:
        take = client.corner_take

        def take_slowly(*words, **wanted):
            slows.send("DEBUG", "SLEEP", 0.4)
            return take(*words, **wanted)

        client.corner_take = take_slowly
        client.knot()
    assert faults(client.history, stall_seconds=STALL_SECONDS * SLOW_FACTOR) == []
    waits = [request for request in client.history if request.is_acquire and request.block]
    assert [request.error.partition(" ")[0] for request in waits] == ["DEADLOCK", ""]


@pytest.mark.timeout(240 + 5 * SOAK_SECONDS)
def test_a_history_of_all_kinds_is_one_that_locks_can_have_made(start_server):
    server = start_server(*AT_ONCE)
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}")
    is_linked(replica)
    events = Counter()
    # Processes, as threads of one would mostly wait for each other.
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        for number in range(SEED, SEED + ROUNDS):
            history = one_round(pool, server, replica, number)
            events += events_of(history)
            all_has_ended(server, replica, f"round {number}")
    print(f"{ROUNDS} rounds from {SEED}: {dict(sorted(events.items()))}")
    # Under valgrind everything happens, but not as often.
    rare = {name for name, least in LEAST.items() if events[name] * SLOW_FACTOR < least}
    assert not rare, f"the load was none: {rare} of {events}"


def one_round(pool, server, replica, number):
    """A load of some seconds, all clients of which see nothing that is wrong."""
    cli = server.connect()
    before = counters(cli)
    seeds = [f"{number}.{process}" for process in range(PROCESSES)]
    parts = pool.starmap(
        run_clients, [(server.port, seed, CLIENTS, SECONDS) for seed in seeds]
    )
    history = [request for part, _ in parts for request in part]
    what = f"round {number}"
    assert [failure for _, failures in parts for failure in failures] == [], what
    history.append(last_look(server, before, replica, limit=SOON_SECONDS))
    keep(history, f"all-kinds.{number}.{os.getpid()}")
    found = faults(history)
    assert not found, f"{what}: {len(found)} faults\n" + "\n".join(found[:20])
    return history


def all_has_ended(server, replica, what):
    """G3, G7, G13: no request waits, all leases end, and nothing is left anywhere."""
    cli, reader = server.connect(), replica.connect()
    eventually(lambda: (count(cli, "waiters"), count(cli, "locks")) == (0, 0), f"{what} ends")
    assert cli("WAIT 1 10000") == 1
    names = sorted(f"{what}:{lock}" for lock in KINDS for what in ("count", "last"))
    assert set(cli("KEYS *")) <= set(names)
    assert reader("DEBUG DIGEST") == cli("DEBUG DIGEST"), what
    assert (count(reader, "locks"), count(reader, "holds")) == (0, 0), what
    cli("DEL", *names)
    assert cli("DBSIZE") == 0


#: The least number of events of each kind, in the shortest run on a busy machine.
LEAST = {
    "granted": 300, "granted out of the line": 100, "nil": 200, "nil after a wait": 50,
    "granted exclusive": 60, "granted shared": 60, "granted limit 2": 40, "granted limit 3": 50,
    "several granted": 15, "several not granted": 50, "a place": 100, "a place became a hold": 10,
    "downgraded": 10, "counted again": 30,
    "ephemeral": 30, "keepalive": 20, "owner minted": 5, "renewed": 50, "not renewed": 3,
    "renewed by token": 20, "released": 150, "not released": 150, "released by token": 70,
    "live": 40, "not live": 5, "ran": 40, "fenced": 5, "wrote": 30, "looked": 80,
    "looked for an owner": 60, "deleted": 5, "nothing to delete": 3, "closed": 100,
    "LOST": 20, "LOCKKIND": 30, "LOCKHELD": 5, "DEADLOCK": 5, "UNBLOCKED": 10, "line seen": 50,
}  # fmt: skip

CHANGES = {("exclusive", "shared"): "downgraded"}


def events_of(history):
    """The number of events of each kind."""
    events, modes = Counter(), {}
    for request in sorted(history, key=lambda request: request.sent):
        events.update(names_of(request))
        if request.is_granted:
            for key in request.keys:
                name = CHANGES.get((modes.get((key, request.owner)), request.mode))
                if name is not None and request.command == "acquire":
                    events[name] += 1
                modes[key, request.owner] = request.mode
    return events


def names_of(request):
    """The kinds of this request's outcome."""
    if request.error:
        yield "fenced" if request.code == "FENCED" else request.code
    elif request.is_acquire:
        yield from names_of_acquire(request)
    elif request.command in ("renew", "release"):
        done = f"{request.command}ed".replace("eed", "ed")
        yield done if request.reply == 1 else f"not {done}"
        if request.reply == 1 and request.token:
            yield f"{done} by token"
    elif request.command == "fence":
        yield "live" if request.reply else "not live"
    elif request.command == "del":
        yield "deleted" if request.reply == 1 else "nothing to delete"
    elif request.command == "info":
        yield "looked"
        if request.reply is not None and len(request.reply.queue) > 1:
            yield "line seen"
    else:
        names = {"count": "ran", "write": "wrote", "heldby": "looked for an owner", "use": "used"}
        yield names.get(request.command, "closed")


def names_of_acquire(request):
    """The kinds of the outcome of this request for locks, which was no error."""
    has_waited = request.block is not None and request.answered - request.sent > 0.005
    if request.place:
        yield "a place" if request.reply is None else "a place became a hold"
    if request.reply is None:
        yield "several not granted" if request.command == "macquire" else "nil"
        if has_waited:
            yield "nil after a wait"
        return
    yield "granted"
    yield f"granted {request.mode}"
    if has_waited:
        yield "granted out of the line"
    if request.command == "macquire":
        yield "several granted"
    if request.reentrant:
        yield "counted again"
    if request.ephemeral is not None:
        yield "ephemeral"
    if request.keepalive:
        yield "keepalive"
    if len(request.owner) == 36:
        yield "owner minted"
