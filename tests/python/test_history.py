"""Histories of many clients under load, checked for what no lock may do.

G1, G2, G4, G7. The second half checks the checker: each fault, put into a history by
hand, must be found.
"""

import multiprocessing
import os

from harness.history import Request, certain_holds, faults, run_clients
from harness.journal import keep
from harness.limits import eventually
from harness.replies import module_info

PROCESSES = 3
THREADS = 4
SECONDS = 5.0
LOCKS = ["door", "gate", "hatch"]


def test_a_history_under_load_is_one_that_a_lock_can_have_made(start_server):
    server = start_server()
    cli = server.connect()
    # Processes, as threads of one would mostly wait for each other.
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        parts = pool.starmap(
            run_clients,
            [(server.port, seed, THREADS, SECONDS, LOCKS) for seed in range(PROCESSES)],
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
    acquires = [request for request in history if request.kind == "acquire"]
    granted = [request for request in acquires if request.reply is not None]
    waited = [r for r in granted if r.block and r.answered - r.sent > 0.005]
    lost = [r for r in history if r.kind != "acquire" and r.reply == 0]
    assert len(granted) > 100
    assert len(acquires) - len(granted) > 20, "some were not granted"
    assert len(waited) > 10, "some were granted out of the queue"
    assert len(lost) > 5, "some leases ended before the holder was done"
    assert len(certain_holds(history)) > 50


# The checker


def acquire(owner, sent, answered, token, lease=1.0, block=0.0, lock="door"):
    return Request("acquire", lock, owner, sent, answered, token, lease, block)


def renew(owner, sent, answered, reply, lease=1.0):
    return Request("renew", "door", owner, sent, answered, reply, lease)


def release(owner, sent, answered, reply=1):
    return Request("release", "door", owner, sent, answered, reply)


def test_a_good_history_has_no_faults():
    assert faults(
        [
            acquire("alice", 0.0, 0.1, 7),
            acquire("bob", 0.1, 0.2, None),
            acquire("alice", 0.2, 0.25, 7, lease=0.5),
            renew("alice", 0.3, 0.4, 1, lease=0.5),
            acquire("bob", 0.3, 0.55, 8, block=0.5),
            release("alice", 0.5, 0.6),
            release("bob", 0.7, 0.8),
            acquire("carol", 0.75, 0.9, 9),
            acquire("carol", 0.1, 0.2, 6, lock="gate"),
        ]
    ) == []


def test_two_holders_at_once_are_found():
    # G1
    history = [acquire("alice", 0.0, 0.1, 7), acquire("bob", 0.2, 0.3, 8)]
    assert "two holders" in faults(history)[0]


def test_two_holders_are_found_behind_a_short_hold_in_between():
    # G1: the overlap is not with the hold just before
    history = [
        acquire("alice", 0.0, 0.1, 7, lease=9.0),
        acquire("bob", 0.2, 0.3, 8, lease=0.2),
        acquire("carol", 5.0, 5.1, 9, lease=0.2),
    ]
    assert len([fault for fault in faults(history) if "two holders" in fault]) == 2


def test_a_grant_before_the_renewed_lease_ended_is_found():
    # G1
    history = [
        acquire("alice", 0.0, 0.1, 7, lease=0.5),
        renew("alice", 0.3, 0.4, 1, lease=1.0),
        acquire("bob", 0.6, 0.7, 8),
    ]
    assert "two holders" in faults(history)[0]


def test_a_release_that_comes_true_proves_the_hold_until_then():
    # G1: the lease is over by the clock, but the server said 1
    history = [
        acquire("alice", 0.0, 0.1, 7, lease=0.2),
        acquire("bob", 0.3, 0.4, 8),
        release("alice", 0.6, 0.7, reply=1),
    ]
    assert "two holders" in faults(history)[0]


def test_a_lease_that_ended_early_is_found():
    # G2
    for told in (renew("alice", 0.2, 0.3, 0), release("alice", 0.2, 0.3, 0)):
        assert "ended early" in faults([acquire("alice", 0.0, 0.1, 7), told])[0]


def test_a_token_that_went_down_is_found():
    # G4
    history = [
        acquire("alice", 0.0, 0.1, 7, lease=0.05),
        acquire("bob", 0.2, 0.3, 6, lease=0.05),
    ]
    assert "token went down" in faults(history)[0]


def test_a_token_given_twice_is_found():
    # G4
    history = [
        acquire("alice", 0.0, 0.1, 7, lease=0.05),
        acquire("bob", 0.2, 0.3, 7, lease=0.05, lock="gate"),
    ]
    assert "one token, two holds" in faults(history)[0]


def test_an_early_nil_is_found():
    # G7
    history = [acquire("bob", 0.0, 0.1, None, block=0.2)]
    assert "nil too early" in faults(history)[0]


def test_overlapping_requests_prove_nothing():
    # Which of the two came first is not known, so neither order is a fault.
    history = [
        acquire("alice", 0.0, 1.0, 8, lease=0.05),
        acquire("bob", 0.1, 0.9, 7, lease=0.05),
    ]
    assert faults(history) == []
