"""The checker of histories, checked by servers that leave out one rule each (`make sabotage`).

Each rule that src/sabotage.rs can leave out must be missed, and for the right reason; a server that keeps all of them
must never be accused. Elsewhere the module itself is checked: it has none of this.
"""

import os
import random
import re
import threading
import time
from itertools import count

import pytest

from checkers import faults, keep
from differ.run import Differ
from harness.group import Group
from harness.limits import SOON_SECONDS
from harness.mixture import run_clients
from harness.quiet import counters, last_look
from harness.replicas import AT_ONCE, is_linked
from harness.roamers import LEASE_MS_MAX, Load
from harness.server import MODULE, StartFailed
from harness.wall_clock import WallClock, build

IS_SABOTAGED = os.environ.get("REDISLOCK_SABOTAGED", "") not in ("", "0")
sabotaged_only = pytest.mark.skipif(not IS_SABOTAGED, reason="`make sabotage` builds the module for this")

#: The checker's findings when a rule is left out: one of these at least.
MIXED = {
    "owner-check": ["it holds nothing with this token", "lives on after its end", "ended early", "two holders"],
    "fifo": ["passed in line"],
    "expiry": ["ended early", "it was held"],
    "expiry-late": ["outlived its lease", "left at the end: holds"],
    "wake-up": ["beside a waiter"],
    "disconnect": ["beside a waiter", "outlived its lease"],
    "token-order": ["one token, two grants", "token went down"],
    "clock": ["ended early", "it was held", "nil too early"],
    "limit": ["holders: ", "too many holders", "not all permits"],
    "reader-beside-writer": ["two holders", "ended early", "it was held"],
    "retry": ["asked again and was refused", "another token while it held"],
    "deadlock": ["a deadlock that nobody was told of"],
    "fence": ["lives on after its end", "ran after a newer token"],
    "patience": ["nil too early"],
    "kind": ["of another kind"],
    "count": ["counts ", "ended early"],
    "replicas": ["the replica is not equal"],
}
ELSEWHERE = ["quarantine", "acknowledgement"]
#: The findings of random scripts on a primary and its replicas (`make differ`). For each: the findings of its judges,
#: one of these at least, and the groups of steps that are drawn, so that it is found soon.
DIFFERING = {
    "leaver-wakes": (["could have it and waits"], ["leaving"]),
    "beside-reservations": (["could have it and waits"], ["crowds"]),
    "time-to-live": (["time to live"], ["keys", "leaving"]),
    "event-order": (["events:"], ["keys", "floods"]),
    "restored-broken": (["then no event, and now", "were counted, but"], ["dumps", "floods"]),
    "written-over": (["overwritten:"], ["keys"]),
    "refused-keeps-place": (["it lost its place"], ["settings"]),
}
#: The time limit of the search.
DIFFER_SECONDS = 100.0

ROUNDS, CLIENTS, SECONDS = 5, 16, 2.0
#: The time limit of an answer: longer than the longest wait that is requested.
PATIENCE_SECONDS = 5.0
STEPS_SECONDS = [-20, -3, 0, 7, 20]


def leaving_out(rule):
    """The environment of a server that does not keep this rule."""
    return {} if rule is None else {"REDISLOCK_SABOTAGE": rule}


@pytest.fixture(scope="session")
def clock_library(tmp_path_factory):
    """The library with which a test steps the wall clock of its server."""
    return build(tmp_path_factory.mktemp("clock"))


class Stepping:
    """A wall clock that is set back and forth meanwhile."""

    def __init__(self, clock, seed):
        self.clock, self.chance = clock, random.Random(seed)
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()

    def _run(self):
        while not self.is_over.wait(0.2):
            self.clock.set_ahead(self.chance.choice(STEPS_SECONDS))


def one_round(start_server, clock, rule, seed, patience=PATIENCE_SECONDS):
    """The checker's findings for a load on a server that leaves out this rule."""
    server = start_server(*AT_ONCE, environment=clock.environment | leaving_out(rule))
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}", environment=leaving_out(rule))
    is_linked(replica)
    before = counters(server.admin)
    with Stepping(clock, seed):
        history, failures = run_clients(server.port, seed, CLIENTS, SECONDS, patience)
    history.append(last_look(server, before, replica))
    keep(history, f"sabotage.{seed}")
    return failures + faults(history)


@sabotaged_only
@pytest.mark.timeout(120)
@pytest.mark.parametrize("rule", MIXED)
def test_a_server_that_leaves_out_a_rule_is_found_out(start_server, clock_library, tmp_path, rule):
    for number in range(ROUNDS):
        clock = WallClock(clock_library, tmp_path / f"clock.{number}")
        found = one_round(start_server, clock, rule, f"{rule}.{number}")
        reasons = [fault for fault in found if any(part in fault for part in MIXED[rule])]
        if reasons:
            return
    raise AssertionError(f"nobody noticed that {rule} is not kept, but: {found[:10]}")


@sabotaged_only
@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", range(4))
def test_a_server_that_keeps_all_rules_is_not_accused(start_server, clock_library, tmp_path, number):
    clock = WallClock(clock_library, tmp_path / "clock")
    assert one_round(start_server, clock, None, f"none.{number}", patience=SOON_SECONDS) == []


def forgets(start_server, rule):
    """Clients of a server that is killed, comes back, and knows nothing."""
    arguments = ("quarantine", LEASE_MS_MAX)
    server = start_server(module_arguments=arguments, environment=leaving_out(rule))
    with Load([server], clients=8) as load:
        for _ in range(3):
            load.goes_on()
            server.kill()
            server.start()
        load.goes_on()
    return load.faults()


def splits(start_server, rule):
    """Clients of a group, of which one is cut off from the others and another one promoted."""

    def start(*options, **more):
        return start_server(*options, environment=leaving_out(rule), **more)

    group = Group(start, "all")
    old, new, other = group.nodes
    try:
        with Load(group.nodes, clients=8) as load:
            load.goes_on()
            group.door(old).cut()
            new.admin("REPLICAOF NO ONE")
            group.follow(other, new)
            time.sleep(LEASE_MS_MAX / 1000 + 1.0)
    finally:
        group.close()
    return load.faults()


@sabotaged_only
@pytest.mark.timeout(120)
@pytest.mark.parametrize("scene, rule", [(forgets, "quarantine"), (splits, "acknowledgement")])
@pytest.mark.parametrize("is_kept", [False, True], ids=["left-out", "kept"])
def test_servers_that_are_killed_and_cut_off(start_server, scene, rule, is_kept):
    found = scene(start_server, None if is_kept else rule)
    assert (found == []) is is_kept, found[:5]


@pytest.mark.own_server
@sabotaged_only
@pytest.mark.timeout(240)
@pytest.mark.parametrize("rule", DIFFERING)
def test_random_scripts_find_out_a_server_that_leaves_out_a_rule(rule):
    # G6, G9, G13, G15, CONTRACT 5
    parts, groups = DIFFERING[rule]
    others, deadline = [], time.monotonic() + DIFFER_SECONDS
    with Differ(1, groups, leaving_out(rule)) as differ:
        for number in count():
            found = differ.round(number)
            if found is not None:
                if any(part in fault for fault in found.faults for part in parts):
                    return
                others += found.faults
            assert time.monotonic() < deadline, f"nobody noticed in {number + 1} rounds, but: {others[:10]}"


@sabotaged_only
def test_every_rule_that_can_be_left_out_is_tried(start_server):
    with pytest.raises(StartFailed) as told:
        start_server(environment=leaving_out("gravity"))
    names = re.search(r"is 'gravity', and not one of (.*)", str(told.value)).group(1)
    assert sorted(names.split(", ")) == sorted([*MIXED, *ELSEWHERE, *DIFFERING])


@pytest.mark.once
@pytest.mark.skipif(IS_SABOTAGED, reason="of the module that is shipped")
def test_the_module_has_no_trace_of_any_sabotage():
    module = MODULE.read_bytes()
    for trace in [b"REDISLOCK_SABOTAGE", b"leaves out a rule", *(rule.encode() for rule in MIXED if "-" in rule)]:
        assert trace not in module, trace
