"""LOCK.ACQUIRE ... LIMIT n: the promises of a semaphore.

G1 (at most n holders), G5, G6, G9; all users agree on n while anyone holds or waits. Invalid numbers are in
test_bad_input.py; the tests of others for their semaphores are in test_other_suites_semaphores.py.
"""

import threading

import pytest

from harness.kinds import (
    ask, count, hold_of, kind_of, line_of, owners_of, release, take,
)  # fmt: skip
from harness.limits import eventually
from harness.replies import lock_info
from harness.wire import ServerError, refused


def test_at_most_n_hold_each_with_a_token_of_its_own(cli):
    # G1, G4
    tokens = [take(cli, "pool", f"h{n}", "LIMIT 3") for n in range(3)]
    assert tokens == sorted(set(tokens))
    assert take(cli, "pool", "h3", "LIMIT 3") is None
    assert owners_of(cli, "pool") == ["h0", "h1", "h2"]
    assert [cli("LOCK.FENCE", "pool", token) for token in tokens] == [1, 1, 1]
    assert cli("LOCK.FENCE pool") == tokens[-1]
    assert cli("LOCK.FENCE", "pool", tokens[-1] + 1) == 0
    assert (count(cli, "locks"), count(cli, "holds")) == (1, 3)


def test_a_limit_of_one_is_a_semaphore_too(cli):
    assert isinstance(take(cli, "pool", "alice", "LIMIT 1"), int)
    assert take(cli, "pool", "bob", "LIMIT 1") is None
    assert kind_of(cli, "pool") == ("limit", 1)


@pytest.mark.parametrize("protocol", [2, 3])
def test_info_shows_the_limit_and_every_holder(server, protocol):
    cli = server.connect(protocol)
    clients = [server.connect() for _ in range(3)]
    tokens = [take(client, "pool", f"h{n}", "LIMIT 3") for n, client in enumerate(clients)]
    ask(server, "pool", "w", "LIMIT 3")
    info = lock_info(cli, "pool")
    assert (info["kind"], info["limit"], info["waiters"]) == ("limit", 3, 1)
    assert [hold["token"] for hold in info["holders"]] == tokens
    assert [hold["owner"] for hold in info["holders"]] == ["h0", "h1", "h2"]
    assert [hold["client-id"] for hold in info["holders"]] == [client("CLIENT ID") for client in clients]
    assert all(hold["count"] == 1 for hold in info["holders"])
    assert (info["queue"][0]["owner"], info["queue"][0]["mode"]) == ("w", "limit")


@pytest.mark.parametrize("options", ["LIMIT 2", "LIMIT 4", "LIMIT 1", "", "SHARED"])
@pytest.mark.parametrize("wait", ["", "BLOCK 0", "QUEUE 1000"])
def test_a_request_of_another_kind_than_the_holders_is_refused(cli, options, wait):
    token = take(cli, "pool", "alice", "LIMIT 3")
    for owner in ("bob", "alice"):
        with refused("LOCKKIND", "LIMIT 3"):
            take(cli, "pool", owner, options, wait)
    assert line_of(cli, "pool") == []
    assert hold_of(cli, "pool", "alice")["token"] == token


def test_a_request_of_another_kind_than_the_waiters_is_refused(server, cli):
    # CONTRACT 2: "while anyone holds or waits"; there is no holder between the DEL and the grant
    take(cli, "pool", "alice", "LIMIT 1")
    bob = ask(server, "pool", "bob", "LIMIT 1")
    replies = cli.pipeline("MULTI", "DEL pool", "LOCK.ACQUIRE pool carol PX 60000", "EXEC")[-1]
    assert replies[0] == 1
    assert isinstance(replies[1], ServerError) and replies[1].code == "LOCKKIND", replies
    assert isinstance(bob.answer(), int)


def test_the_same_owner_again_takes_no_second_permit(cli):
    # G9
    token = take(cli, "pool", "alice", "LIMIT 2", lease_ms=50_000)
    assert take(cli, "pool", "alice", "LIMIT 2") == token
    assert hold_of(cli, "pool", "alice")["lease-left-ms"] > 50_000
    assert isinstance(take(cli, "pool", "bob", "LIMIT 2"), int)
    assert take(cli, "pool", "alice", "LIMIT 2") == token, "also when it is full"


# Permits that become free


def test_permits_are_handed_on_in_the_order_of_the_line(server, cli):
    # G5, G6
    for n in range(3):
        take(cli, "pool", f"h{n}", "LIMIT 3")
    waiters = [ask(server, "pool", f"w{n}", "LIMIT 3") for n in range(6)]
    assert take(cli, "pool", "late", "LIMIT 3") is None
    freed = ["h1", "h2", "h0", "w1", "w0", "w2"]
    last = 0
    for n, (owner, waiter) in enumerate(zip(freed, waiters)):
        assert waiter.waits()
        release(cli, "pool", owner)
        token = waiter.answer()
        assert token > last
        last = token
        assert len(owners_of(cli, "pool")) == 3
        assert line_of(cli, "pool") == [f"w{k}" for k in range(n + 1, 6)]


def test_a_permit_is_handed_on_when_a_lease_ends(server, cli):
    # G3, G6
    take(cli, "pool", "long", "LIMIT 2")
    take(cli, "pool", "short", "LIMIT 2", lease_ms=100)
    first = ask(server, "pool", "first", "LIMIT 2")
    second = ask(server, "pool", "second", "LIMIT 2")
    assert isinstance(first.answer(), int)
    assert owners_of(cli, "pool") == ["long", "first"]
    assert second.waits()


def test_leases_that_end_together_hand_on_all_permits(server, cli):
    # G3, G6
    cli.pipeline(*[f"LOCK.ACQUIRE pool h{n} PX 150 LIMIT 20" for n in range(20)])
    waiters = [ask(server, "pool", f"w{n}", "LIMIT 20") for n in range(25)]
    tokens = [waiter.answer() for waiter in waiters[:20]]
    assert tokens == sorted(tokens), "G5"
    eventually(lambda: owners_of(cli, "pool") == [f"w{n}" for n in range(20)])
    assert all(waiter.is_blocked() for waiter in waiters[20:])


@pytest.mark.parametrize("command", ["DEL pool", "UNLINK pool", "FLUSHALL", "RENAME pool elsewhere"])
def test_a_broken_semaphore_lets_n_waiters_in(server, cli, command):
    # G6
    old = [take(cli, "pool", f"h{n}", "LIMIT 2") for n in range(2)]
    waiters = [ask(server, "pool", f"w{n}", "LIMIT 2") for n in range(3)]
    cli(command)
    tokens = [waiter.answer() for waiter in waiters[:2]]
    assert old[-1] < tokens[0] < tokens[1]
    assert [cli("LOCK.FENCE", "pool", token) for token in old + tokens] == [0, 0, 1, 1]
    assert waiters[2].waits()
    eventually(lambda: count(cli, "broken") >= 2, "every hold is counted")


def test_a_waiter_that_leaves_from_the_middle_is_passed_over(server, cli):
    # G8
    take(cli, "pool", "h", "LIMIT 1")
    waiters = [ask(server, "pool", f"w{n}", "LIMIT 1") for n in range(3)]
    waiters[0].leave()
    eventually(lambda: line_of(cli, "pool") == ["w1", "w2"], "the dead leave at once")
    release(cli, "pool", "h")
    assert isinstance(waiters[1].answer(), int)
    assert waiters[2].waits()


@pytest.mark.parametrize("permits", [2, 3, 10])
def test_several_permits_freed_in_one_transaction(server, cli, permits):
    # G6
    for n in range(permits):
        take(cli, "pool", f"h{n}", f"LIMIT {permits}")
    waiters = [ask(server, "pool", f"w{n}", f"LIMIT {permits}") for n in range(permits + 1)]
    cli.pipeline("MULTI", *[f"LOCK.RELEASE pool h{n}" for n in range(permits)], "EXEC")
    assert all(isinstance(waiter.answer(), int) for waiter in waiters[:permits])
    assert waiters[-1].waits()


# Many


def test_the_largest_limit_and_ten_thousand_holders(cli):
    assert isinstance(take(cli, "pool", "first", "LIMIT 1000000"), int)
    for start in range(0, 10_000, 1000):
        tokens = cli.pipeline(*[
            f"LOCK.ACQUIRE pool h{n} PX 3600000 LIMIT 1000000" for n in range(start, start + 1000)
        ])
        assert tokens == sorted(set(tokens))
    info = lock_info(cli, "pool")
    assert (info["limit"], info["holds"], len(info["holders"])) == (1_000_000, 10_001, 10)
    assert cli("LOCK.FENCE", "pool", tokens[500]) == 1
    assert take(cli, "pool", "h4711", "LIMIT 1000000") is not None
    assert count(cli, "holds") == 10_001
    assert cli("MEMORY USAGE pool") > 10_000 * 8
    release(cli, "pool", "h4711")
    cli("DEL pool")
    assert cli("DBSIZE") == 0
    eventually(lambda: (count(cli, "locks"), count(cli, "holds")) == (0, 0), "no residue")


def test_a_full_semaphore_of_a_thousand_moves_on(server, cli):
    # G5, G6
    cli.pipeline(*[f"LOCK.ACQUIRE pool h{n} PX 3600000 LIMIT 1000" for n in range(1000)])
    waiters = [ask(server, "pool", f"w{n}", "LIMIT 1000") for n in range(20)]
    for n, waiter in enumerate(waiters):
        release(cli, "pool", f"h{n * 37}")
        assert isinstance(waiter.answer(), int)
    assert len(owners_of(cli, "pool")) == 1000


def test_never_more_than_n_hold_whatever_they_do(server):
    # G1: eight clients take, keep for a moment, and release three permits
    holding, highest, failures = set(), [0], []
    guard = threading.Lock()

    def work(name):
        try:
            client = server.connect()
            for turn in range(40):
                owner = f"{name}.{turn}"
                if client("LOCK.ACQUIRE", "pool", owner, "PX", 60000, "LIMIT", 3, "BLOCK", 10000) is None:
                    failures.append(f"{owner} starved")
                    continue
                with guard:
                    holding.add(owner)
                    highest[0] = max(highest[0], len(holding))
                client("PING")
                with guard:
                    holding.discard(owner)
                if client("LOCK.RELEASE", "pool", owner) != 1:
                    failures.append(f"{owner} lost its hold")
        except Exception as failure:  # a thread's failure would else be lost
            failures.append(repr(failure))

    threads = [threading.Thread(target=work, args=[n]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert not failures
    assert 1 <= highest[0] <= 3
    assert server.admin("DBSIZE") == 0
