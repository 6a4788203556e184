"""The parts of `make chaos`, which is itself no part of these tests: it must see planted faults."""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from itertools import count, islice
from pathlib import Path

import pytest

from chaos import acts
from chaos.acts import disk, has_hole
from chaos.faults import DETAILS, WITHOUT_FILE, Fault, drawn
from chaos.independents import RedlockLoad
from chaos.injector import Injector
from chaos.judge import Outcome, one_round
from chaos.replicated import LOCAL, Replicated
from chaos.report import as_json, as_markdown, is_good, summed, too_little
from chaos.run import TOPOLOGIES
from chaos.single import ALWAYS, EVERYSEC, Single
from chaos.topology import idle_at
from checkers import Break, Request
from checkers.many import never_broken
from harness import wall_clock
from harness.group import freeze
from harness.limits import VALGRIND, eventually
from harness.replies import module_info
from harness.wire import Closed, ServerError

REAL = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(VALGRIND, reason="many servers at once, which watch each other's time"),
]


def real(story):
    """A test with servers that are killed and stopped."""
    for mark in REAL:
        story = mark(story)
    return story


def plan_of(kind, seed, count):
    """The first faults that are drawn for a topology."""
    details = kind.details if isinstance(kind.details, dict) else {}
    return list(islice(drawn(seed, kind.kinds, kind.size, **details), count))


# Drawing


@pytest.mark.parametrize("kind", TOPOLOGIES.values())
def test_a_seed_always_draws_the_same_faults(kind):
    assert plan_of(kind, "7.0", 100) == plan_of(kind, "7.0", 100)
    assert plan_of(kind, "7.0", 100) != plan_of(kind, "7.1", 100)


@pytest.mark.parametrize("kind", TOPOLOGIES.values())
def test_all_kinds_come_up_as_often_as_is_wanted(kind):
    rounds = 3
    plan = plan_of(kind, "1", rounds * sum(kind.kinds.values()))
    assert Counter(fault.kind for fault in plan) == {name: rounds * times for name, times in kind.kinds.items()}
    assert {fault.at for fault in plan} == set(range(kind.size))


def test_all_details_come_up_before_one_comes_again():
    plan = [fault for fault in plan_of(Replicated, "1", 2000) if fault.kind == "memory"]
    size = len(DETAILS["memory"])
    assert {fault.detail for fault in plan[:size]} == set(DETAILS["memory"])
    assert {fault.detail for fault in plan[size : 2 * size]} == set(DETAILS["memory"])


# Making


class Scenery:
    """Servers that are only names; the first is the primary."""

    def __init__(self, *names):
        self.nodes, self.log, self.granted = list(names), [], count(step=100)
        self.acts = {"pause": self.lasting, "cut": self.lasting, "flush": self.moment, "delete": self.refused}

    def is_primary(self, node):
        return node == self.nodes[0]

    def grants(self):
        return next(self.granted)

    def lasting(self, fault, node):
        self.log.append((fault.kind, node))
        return lambda: self.log.append(("over", node))

    def moment(self, fault, node):
        self.log.append((fault.kind, node))

    def refused(self, fault, node):
        raise ServerError("NO")


def fault(kind, at=0, seconds=0.0, at_primary=False):
    return Fault(kind, at, at_primary, None, seconds, 0.0)


def made(scenery, *faults):
    """Makes these and ends all; returns the record."""
    injector = Injector(scenery, iter(faults))
    for each in faults:
        injector.inject(each)
    injector.end_all()
    return injector


def test_faults_meet_servers_that_hear_them_and_rather_the_primary():
    scenery = Scenery("a", "b", "c")
    made(scenery, fault("pause", 0, 60.0), fault("flush", 0), fault("flush", 2, at_primary=True), fault("cut", 2, 60.0))
    assert scenery.log == [("pause", "a"), ("flush", "b"), ("flush", "c"), ("cut", "c"), ("over", "a"), ("over", "c")]


def test_two_faults_that_last_do_not_meet_at_one_server():
    scenery = Scenery("a", "b")
    made(scenery, fault("cut", 0, 0.05), fault("pause", 0, 0.05))
    assert scenery.log == [("cut", "a"), ("over", "a"), ("pause", "a"), ("over", "a")]


def test_what_was_refused_is_not_counted_as_made():
    injector = made(Scenery("a"), fault("delete"), fault("flush"), fault("cut", 0, 0.01))
    assert (injector.made, injector.refused) == ({"flush": 1, "cut": 1}, {"delete": 1})


def test_all_lasting_faults_are_ended():
    scenery = Scenery("a", "b")
    injector = Injector(scenery, iter([fault("cut", 0, 0.1), fault("cut", 1, 2.0), fault("flush")]))
    injector.run(0.0)
    assert scenery.log == [("cut", "a"), ("cut", "b"), ("over", "a"), ("flush", "a"), ("over", "b")], "two at a time"
    assert injector.active == []


# Judging and reporting


def request(owner, sent, answered, lock="door"):
    return Request("acquire", (lock,), owner, sent, answered, 7, lease=1.0)


def test_a_hold_that_may_be_broken_is_not_judged_for_an_early_end():
    history = [request("alice", 1.0, 1.1), request("alice", 2.0, 2.1), request("bob", 2.2, 2.3)]
    assert never_broken(history, [Break(None, 1.5, 1.6)]) == history[2:]
    assert never_broken(history, [Break("door", 2.05, 9.0)]) == []
    assert never_broken(history, [Break("gate", 0.0, 9.0)]) == history
    assert never_broken(history, [Break("door", 0.0, 0.5)]) == history


def outcome(faults=30, grants=500, wrong=()):
    return Outcome("single", ALWAYS, "7.0", {"pause": faults - 1, "flush": 1}, {}, grants, {}, list(wrong), 30.0)


def test_rounds_are_added_up():
    line = summed([outcome(), outcome(20, 100, ["two holders"])])
    assert (line["rounds"], line["faults"], line["grants"]) == (2, 50, 600)
    assert line["made"] == {"flush": 2, "pause": 48}
    assert line["wrong"] == ["7.0 (appendfsync always): two holders"]
    run = {"began": "now", "server": "x", "version": "1", "seed": 7, "command": "c", "topologies": [line]}
    assert json.loads(as_json(run)) == run
    assert "| single | appendfsync always | 2 | 60 | 50 | 600 | 1 |" in as_markdown(run)
    assert "Faults: flush 2, pause 48." in as_markdown(run)


def test_a_run_in_which_little_happened_is_not_good():
    assert is_good([summed([outcome()])])
    assert not is_good([summed([outcome()]), summed([outcome(faults=19)])])
    assert not is_good([summed([outcome(grants=99)])])
    assert not is_good([summed([outcome(wrong=["two holders"])])])
    assert too_little(summed([outcome(2, 3)])) == ["only 2 faults", "only 3 grants"]


def test_tokens_of_redlock_are_compared_within_one_lock_only():
    # G4
    load = RedlockLoad([], ["door", "gate"], "1")
    load.history = [request("alice", 1.0, 1.1), request("bob", 3.0, 3.1, "gate")]
    assert load.faults() == []
    load.history.append(request("carol", 5.0, 5.1))
    assert "one token, two holds" in load.faults()[0]


# On real servers


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The library that sets the wall clocks of servers."""
    return wall_clock.build(tmp_path_factory.mktemp("wall_clock"))


@real
def test_two_primaries_that_both_grant_are_seen(start_server, library):
    # G1: two primaries that do not know of each other, with nothing set that would help
    topology = Replicated(start_server, library, LOCAL, "1")
    silence = fault("stall", 0, 4.0, at_primary=True)._replace(detail="both ways")
    try:
        outcome = one_round(topology, 0.0, plan=iter([silence, fault("promote", 1), fault("pause", 2, 2.0)]))
    finally:
        topology.close()
    assert outcome.made == {"stall both ways": 1, "promote": 1, "pause": 1}
    assert any("two holders" in text for text in outcome.wrong), outcome


class Careless(Single):
    """A server that forgets and grants at once."""

    def started(self):
        return [self.start()]


@real
def test_a_server_that_forgets_is_seen(start_server, library):
    # G1, G2
    topology = Careless(start_server, library, ALWAYS, "1")
    outcome = one_round(topology, 0.0, plan=iter([fault("kill", 0, 0.01)._replace(detail=WITHOUT_FILE)] * 6))
    assert outcome.made == {f"kill {WITHOUT_FILE}": 6}
    assert any("two holders" in text or "ended early" in text for text in outcome.wrong), outcome


def test_a_client_that_waits_for_a_free_lock_is_seen(start_server):
    # G6: a server in quarantine may show for long a state that another one may not
    strict = start_server(module_arguments=("quarantine", 60_000))
    waiter = strict.ask("LOCK.ACQUIRE", "door", "bob", "PX", 500, "BLOCK", 0)
    eventually(lambda: idle_at(strict, ["door", "gate"]), "the waiter beside a free lock is seen")
    server = start_server()
    assert server.admin("LOCK.ACQUIRE door ann PX 60000") > 0
    other = server.ask("LOCK.ACQUIRE", "door", "bob", "PX", 500, "BLOCK", 0)
    eventually(lambda: module_info(server.admin)["waiters"] == "1", "bob waits")
    assert idle_at(server, ["door", "gate"]) == [], "the lock is held"
    assert waiter.is_blocked() and other.is_blocked()


@real
@pytest.mark.parametrize("mode", [ALWAYS, EVERYSEC])
def test_a_disk_that_is_full_is_felt(start_server, library, mode):
    topology = Single(start_server, library, mode, "1")
    node = topology.nodes[0]
    end = topology.acts["disk"](fault("disk", 0, 1.0), node)
    felt = "it ends itself" if mode == ALWAYS else "it says so"
    eventually(lambda: written(node) == {ALWAYS: "dead", EVERYSEC: "MISCONF"}[mode], felt)
    end()
    eventually(lambda: written(node) == "OK", "it writes again")


@real
def test_a_server_that_ends_just_when_the_disk_has_room_again_comes_back(start_server, library, monkeypatch):
    # It stayed away for good. Its log did not say why, for that could not grow.
    node = Single(start_server, library, ALWAYS, "1").nodes[0]
    end = disk(fault("disk", 0, 1.0), node)

    def about_to_end(node, _):
        freeze(node)
        threading.Timer(0.3, node.process.kill).start()

    monkeypatch.setattr(acts, "limit_files", about_to_end)
    end()
    assert written(node) == "OK"


@real
def test_a_server_whose_file_has_a_hole_comes_back_without_it(start_server, library):
    # No lock is in it: this is the server's behaviour with any data
    node = Single(start_server, library, EVERYSEC, "1").nodes[0]
    node.admin("BGREWRITEAOF")
    eventually(lambda: node.info("persistence")["aof_rewrite_in_progress"] == "0", "it is rewritten")
    assert written(node) == "OK"
    end = disk(fault("disk", 0, 1.0), node)
    assert node.admin("SET", "x", "y") == "OK", "some bytes are left"
    eventually(lambda: written(node) == "MISCONF", "the disk is full")
    end()
    eventually(lambda: written(node) == "OK", "it writes again")
    is_broken = has_hole(node)
    node.kill()
    node.comes_back()
    assert node.admin("DBSIZE") == (0 if is_broken else 1)


def written(node):
    """The outcome of a write of some bytes."""
    try:
        return node.admin("SET", "x", "y" * 1000)
    except ServerError as error:
        return error.code
    except (Closed, OSError):
        return "closed" if node.is_alive() else "dead"


@real
def test_the_command_fails_if_hardly_anything_happened(tmp_path):
    words = [sys.executable, "-m", "chaos", "single", "--seconds", "1", "--seed", "1", "--out", str(tmp_path)]
    here = Path(__file__).parent
    done = subprocess.run(words, cwd=here, env=dict(os.environ), capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "only " in done.stdout and "seed 1" in done.stdout
    (summary,) = tmp_path.glob("*.json")
    assert json.loads(summary.read_text())["topologies"][0]["wrong"] == []
