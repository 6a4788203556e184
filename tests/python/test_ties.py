"""LOCK.ACQUIRE ... EPHEMERAL ms and KEEPALIVE: holds that are tied to a connection.

EPHEMERAL: when the connection closes, the lease is cut. KEEPALIVE: while it is open, the
lease does not run. G2, G3, G6, G10, G13.
"""

import socket
import struct
import time

import pytest

from harness.kinds import (
    ask, close_and_settle, count, gone, hold_of, line_of, owners_of, release, take, take_all,
)  # fmt: skip
from harness.limits import eventually
from harness.replies import holder
from harness.wire import refused

KINDS = ["", "SHARED", "LIMIT 3"]


def end_connection(server, connection, way):
    """Closes a connection in one of several ways; returns once the server knows."""
    client_id = connection("CLIENT ID")
    if way == "QUIT":
        assert connection("QUIT") == "OK"
    elif way == "CLIENT KILL":
        assert server.admin("CLIENT", "KILL", "ID", client_id) == 1
    elif way == "reset":
        linger = struct.pack("ii", 1, 0)
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        connection.close()
    else:
        connection.close()
    gone(server, client_id)


def is_free(cli, key):
    """Returns whether the lock has no holder, and nothing is left of it."""
    return owners_of(cli, key) == [] and cli("EXISTS", key) == 0


# EPHEMERAL


@pytest.mark.parametrize("way", ["close", "reset", "QUIT", "CLIENT KILL"])
@pytest.mark.parametrize("kind", KINDS)
def test_ephemeral_0_is_freed_when_the_connection_closes(server, cli, way, kind):
    # G6
    task = server.connect()
    token = take(task, "door", "alice", kind, "EPHEMERAL 0")
    assert cli("LOCK.FENCE", "door", token) == 1
    end_connection(server, task, way)
    eventually(lambda: is_free(cli, "door"), "freed at once, not when the lease ends")
    assert cli("LOCK.FENCE", "door", token) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_waiter_gets_what_a_closed_connection_held(server, cli, kind):
    # G6
    task = server.connect()
    token = take(task, "door", "alice", "LIMIT 1" if kind == "LIMIT 3" else kind, "EPHEMERAL 0")
    bob = ask(server, "door", "bob", "LIMIT 1" if kind == "LIMIT 3" else "")
    assert bob.waits()
    task.close()
    assert bob.answer() > token


def test_the_lease_is_cut_to_what_was_asked(server, cli):
    task = server.connect()
    take(task, "door", "alice", "EPHEMERAL 400")
    assert holder(cli, "door")["ephemeral-ms"] == 400
    start = time.monotonic()
    close_and_settle(server, task)
    hold = holder(cli, "door")
    assert hold is None or hold["lease-left-ms"] <= 400
    eventually(lambda: is_free(cli, "door"), "the cut lease ends")
    assert time.monotonic() - start >= 0.400, "not before that"


def test_a_lease_that_is_shorter_is_not_made_longer(server, cli):
    task = server.connect()
    take(task, "door", "alice", "EPHEMERAL 3000000", lease_ms=50_000)
    close_and_settle(server, task)
    assert 0 < holder(cli, "door")["lease-left-ms"] <= 50_000


def test_while_the_connection_is_open_the_lease_runs_as_usual(server, cli):
    # G3
    take(cli, "door", "alice", "EPHEMERAL 100000", lease_ms=100)
    eventually(lambda: is_free(cli, "door"), "the lease ends")
    take(cli, "gate", "alice", "EPHEMERAL 0")
    assert cli("PING") == "PONG"
    assert holder(cli, "gate")["lease-left-ms"] > 3_000_000


def test_info_shows_the_tie(server, cli):
    take(cli, "door", "alice", "EPHEMERAL 0")
    take(cli, "gate", "alice", "KEEPALIVE EPHEMERAL 77")
    take(cli, "plain", "alice")
    client_id = cli("CLIENT ID")
    for key, kept, cut in (("door", False, 0), ("gate", True, 77), ("plain", False, None)):
        hold = holder(cli, key)
        assert (bool(hold["keepalive"]), hold["ephemeral-ms"]) == (kept, cut)
        assert hold["client-id"] == client_id


def test_a_hold_granted_out_of_the_queue_is_tied_too(server, cli):
    take(cli, "door", "alice")
    bob = ask(server, "door", "bob", "EPHEMERAL 0")
    release(cli, "door", "alice")
    token = bob.answer()
    assert cli("LOCK.FENCE", "door", token) == 1
    bob.leave()
    eventually(lambda: is_free(cli, "door"), "freed when its connection closes")


def test_a_hold_taken_from_a_reserved_place_is_tied_too(server, cli):
    take(cli, "door", "alice")
    task = server.connect()
    assert take(task, "door", "bob", "QUEUE 60000 EPHEMERAL 0") is None
    release(cli, "door", "alice")
    assert isinstance(take(task, "door", "bob", "QUEUE 60000 EPHEMERAL 0"), int)
    close_and_settle(server, task)
    eventually(lambda: is_free(cli, "door"), "freed when its connection closes")


def test_only_the_holds_of_that_connection_are_cut(server, cli):
    # G10
    first, second = server.connect(), server.connect()
    take(first, "a", "alice", "EPHEMERAL 0")
    take(first, "b", "alice")
    take(first, "pool", "alice", "LIMIT 3 EPHEMERAL 0")
    take(second, "c", "alice", "EPHEMERAL 0")
    take(second, "pool", "bob", "LIMIT 3 EPHEMERAL 0")
    close_and_settle(server, first)
    eventually(lambda: is_free(cli, "a"))
    eventually(lambda: owners_of(cli, "pool") == ["bob"])
    assert owners_of(cli, "b") == ["alice"]
    assert owners_of(cli, "c") == ["alice"]


def test_a_thousand_holds_of_one_connection(server, cli):
    task = server.connect()
    task.pipeline(*[f"LOCK.ACQUIRE door:{n} alice PX 3600000 EPHEMERAL 0" for n in range(1000)])
    waiters = [ask(server, f"door:{n}", "bob") for n in (0, 500, 999)]
    task.close()
    assert all(isinstance(waiter.answer(), int) for waiter in waiters)
    eventually(lambda: cli("DBSIZE") == 3)


def test_what_was_released_and_taken_again_is_not_tied(server, cli):
    # G10
    task = server.connect()
    take(task, "door", "alice", "EPHEMERAL 0")
    release(cli, "door", "alice")
    token = take(cli, "door", "alice")
    take(task, "gate", "alice", "EPHEMERAL 0")
    cli("DEL gate")
    other = take(cli, "gate", "bob")
    close_and_settle(server, task)
    assert cli("LOCK.FENCE", "door", token) == 1
    assert cli("LOCK.FENCE", "gate", other) == 1
    assert cli("PING") == "PONG"
    assert cli("LOCK.FENCE", "door", token) == 1


def test_a_hold_that_is_tied_afterwards(server, cli):
    # the same owner again, with the option
    task = server.connect()
    token = take(cli, "door", "alice")
    assert take(task, "door", "alice", "EPHEMERAL 0") == token
    assert holder(cli, "door")["ephemeral-ms"] == 0
    close_and_settle(server, task)
    eventually(lambda: is_free(cli, "door"), "freed when that connection closes")


# The binding moves


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["acquire", "acquire with the option", "renew"])
def test_the_binding_moves_to_the_newest_connection_of_the_owner(server, cli, how, kind):
    # CONTRACT 2
    first, second = server.connect(), server.connect()
    token = take(first, "door", "alice", kind, "EPHEMERAL 0")
    if how == "renew":
        assert second("LOCK.RENEW door alice PX 3600000") == 1
    else:
        option = "EPHEMERAL 0" if "option" in how else ""
        assert take(second, "door", "alice", kind, option) == token
    close_and_settle(server, first)
    assert cli("LOCK.FENCE", "door", token) == 1, "the old connection has nothing to do with it"
    assert hold_of(cli, "door", "alice")["lease-left-ms"] > 3_000_000
    close_and_settle(server, second)
    eventually(lambda: is_free(cli, "door"), "the new one has")


@pytest.mark.parametrize("how", ["acquire", "renew"])
def test_the_binding_moves_also_after_the_connection_has_closed(server, cli, how):
    # CONTRACT 2: a client that comes back in time keeps its hold, and is tied to its new connection
    first, second = server.connect(), server.connect()
    token = take(first, "door", "alice", "EPHEMERAL 30000")
    close_and_settle(server, first)
    assert holder(cli, "door")["lease-left-ms"] <= 30_000
    if how == "renew":
        assert second("LOCK.RENEW door alice PX 3600000") == 1
    else:
        assert take(second, "door", "alice") == token
    assert holder(cli, "door")["lease-left-ms"] > 30_000
    close_and_settle(server, second)
    assert cli("LOCK.FENCE", "door", token) == 1
    eventually(lambda: holder(cli, "door")["lease-left-ms"] <= 30_000, "cut again")


def test_another_owners_requests_move_nothing(server, cli):
    # G10
    first = server.connect()
    take(first, "door", "alice", "EPHEMERAL 0")
    assert take(cli, "door", "bob") is None
    assert cli("LOCK.RENEW door bob PX 1000") == 0
    assert cli("LOCK.RENEW door alice PX 1000 TOKEN 5") == 0
    close_and_settle(server, first)
    eventually(lambda: is_free(cli, "door"))


def test_a_renewal_in_a_script_leaves_the_binding(server, cli):
    first = server.connect()
    take(first, "door", "alice", "EPHEMERAL 0")
    script = "return redis.call('LOCK.RENEW', KEYS[1], 'alice', 'PX', 3600000)"
    assert cli("EVAL", script, 1, "door") == 1
    close_and_settle(server, first)
    eventually(lambda: is_free(cli, "door"))


def test_a_downgrade_can_ask_for_a_tie(server, cli):
    task = server.connect()
    take(cli, "door", "alice")
    assert isinstance(take(task, "door", "alice", "SHARED EPHEMERAL 0"), int)
    assert hold_of(cli, "door", "alice")["ephemeral-ms"] == 0
    close_and_settle(server, task)
    eventually(lambda: is_free(cli, "door"), "freed when that connection closes")


def test_a_downgrade_moves_the_binding(server, cli):
    # it is an acquire by the same owner on another connection
    first, second = server.connect(), server.connect()
    token = take(first, "door", "alice", "EPHEMERAL 0")
    assert take(second, "door", "alice", "SHARED") == token
    close_and_settle(server, first)
    assert cli("LOCK.FENCE", "door", token) == 1
    close_and_settle(server, second)
    eventually(lambda: is_free(cli, "door"))


@pytest.mark.parametrize("option", ["EPHEMERAL 0", "KEEPALIVE"])
def test_an_acquire_of_several_moves_the_binding(server, cli, option):
    # it is an acquire by the same owner on another connection
    first, second = server.connect(), server.connect()
    lease_ms = 600 if option == "KEEPALIVE" else 3_600_000
    token = take_all(cli, "door gate", "alice", lease_ms=lease_ms)
    take(first, "door", "alice", option, lease_ms=lease_ms)
    assert take_all(second, "door gate", "alice", lease_ms=lease_ms) == token
    close_and_settle(server, first)
    if option == "KEEPALIVE":
        take(cli, "clock", "x", lease_ms=700)
        eventually(lambda: is_free(cli, "clock"))
    assert cli("LOCK.FENCE", "door", token) == 1, "the old connection has nothing to do with it"
    close_and_settle(server, second)
    eventually(lambda: is_free(cli, "door"), "the new one has")


def test_the_binding_moves_from_a_grant_of_the_same_step(server, cli):
    # Alice's lease ends, bob's waiting request is granted and his retry on another connection comes, all at once.
    take(cli, "door", "alice", lease_ms=300)
    first, second = server.connect(), server.connect()
    first.send("LOCK.ACQUIRE door bob PX 3600000 BLOCK 0 EPHEMERAL 0")
    eventually(lambda: line_of(cli, "door") == ["bob"])
    assert second("MULTI") == "OK"
    second("DEBUG SLEEP 0.4")
    second("LOCK.ACQUIRE door bob PX 3600000")
    slept, token = second("EXEC")
    assert slept == "OK"
    assert first.read() == token
    close_and_settle(server, first)
    assert cli("LOCK.FENCE", "door", token) == 1, "the old connection has nothing to do with it"
    close_and_settle(server, second)
    eventually(lambda: is_free(cli, "door"), "the new one has")


# KEEPALIVE


@pytest.mark.parametrize("kind", KINDS)
def test_the_lease_does_not_run_while_the_connection_is_open(server, cli, kind):
    # G2
    task = server.connect()
    token = take(task, "door", "alice", kind, "KEEPALIVE", lease_ms=150)
    take(cli, "clock", "x", lease_ms=600)
    eventually(lambda: is_free(cli, "clock"), "four times the lease is over")
    assert cli("LOCK.FENCE", "door", token) == 1
    assert hold_of(cli, "door", "alice")["lease-left-ms"] == 150
    closed = time.monotonic()
    close_and_settle(server, task)
    eventually(lambda: is_free(cli, "door"), "it runs now")
    assert time.monotonic() - closed >= 0.150, "from its full length"


@pytest.mark.parametrize("way", ["close", "reset", "QUIT", "CLIENT KILL"])
def test_the_lease_starts_when_the_connection_closes(server, cli, way):
    # G3, G6
    task = server.connect()
    take(task, "door", "alice", "KEEPALIVE", lease_ms=300)
    bob = ask(server, "door", "bob")
    assert bob.waits()
    end_connection(server, task, way)
    assert isinstance(bob.answer(), int)


def test_keepalive_with_ephemeral_is_cut(server, cli):
    task = server.connect()
    take(task, "door", "alice", "KEEPALIVE EPHEMERAL 0")
    take(task, "gate", "alice", "KEEPALIVE EPHEMERAL 20000", lease_ms=50_000)
    close_and_settle(server, task)
    eventually(lambda: is_free(cli, "door"))
    assert 0 < holder(cli, "gate")["lease-left-ms"] <= 20_000


def test_keepalive_moves_with_the_owner(server, cli):
    first, second = server.connect(), server.connect()
    token = take(first, "door", "alice", "KEEPALIVE", lease_ms=200)
    assert second("LOCK.RENEW door alice PX 250") == 1
    close_and_settle(server, first)
    take(cli, "clock", "x", lease_ms=800)
    eventually(lambda: is_free(cli, "clock"))
    assert cli("LOCK.FENCE", "door", token) == 1
    close_and_settle(server, second)
    eventually(lambda: is_free(cli, "door"))


def test_a_renewal_sets_the_length_that_starts_later(server, cli):
    task = server.connect()
    take(task, "door", "alice", "KEEPALIVE", lease_ms=100)
    assert task("LOCK.RENEW door alice PX 50000") == 1
    assert holder(cli, "door")["lease-left-ms"] == 50_000
    close_and_settle(server, task)
    assert 40_000 < holder(cli, "door")["lease-left-ms"] <= 50_000


def test_a_kept_hold_can_be_released_and_broken(server, cli):
    # G10
    task = server.connect()
    take(task, "door", "alice", "KEEPALIVE", lease_ms=100)
    bob = ask(server, "door", "bob")
    release(cli, "door", "alice")
    assert isinstance(bob.answer(), int)
    take(task, "gate", "alice", "KEEPALIVE", lease_ms=100)
    carol = ask(server, "gate", "carol")
    cli("DEL gate")
    assert isinstance(carol.answer(), int)
    close_and_settle(server, task)
    assert owners_of(cli, "door") == ["bob"]
    assert owners_of(cli, "gate") == ["carol"]


def test_one_kept_holder_among_others(server, cli):
    # G3: the leases of the others run
    task = server.connect()
    take(task, "pool", "kept", "LIMIT 3 KEEPALIVE", lease_ms=100)
    take(cli, "pool", "short", "LIMIT 3", lease_ms=100)
    take(cli, "pool", "long", "LIMIT 3")
    eventually(lambda: owners_of(cli, "pool") == ["kept", "long"])
    close_and_settle(server, task)
    eventually(lambda: owners_of(cli, "pool") == ["long"])


# Requests without a connection


@pytest.mark.parametrize("option", ["EPHEMERAL 0", "KEEPALIVE", "SHARED EPHEMERAL 5 KEEPALIVE"])
def test_a_tie_is_refused_in_a_script(cli, option):
    # a clear error, not a hold that is tied to nothing
    script = f"return redis.call('LOCK.ACQUIRE', KEYS[1], 'alice', 'PX', 60000{quoted(option)})"
    with refused("ERR", "EPHEMERAL", "KEEPALIVE", "connection"):
        cli("EVAL", script, 1, "door")
    assert cli("DBSIZE") == 0


@pytest.mark.parametrize("option", ["EPHEMERAL 0", "KEEPALIVE"])
def test_a_tie_is_refused_in_a_function(cli, option):
    body = (
        "#!lua name=lib\n"
        "redis.register_function('f', function(keys) "
        f"return redis.call('LOCK.ACQUIRE', keys[1], 'alice', 'PX', 60000{quoted(option)}) end)"
    )
    cli("FUNCTION", "LOAD", body)
    with refused("ERR", "connection"):
        cli("FCALL", "f", 1, "door")
    assert cli("DBSIZE") == 0


def quoted(option):
    """Words as further arguments of a call in Lua."""
    return "".join(f", '{word}'" for word in option.split())


def test_a_hold_of_a_transaction_is_tied_to_the_connection(server, cli):
    task = server.connect()
    replies = task.pipeline(
        "MULTI", "LOCK.ACQUIRE door alice PX 60000 EPHEMERAL 0",
        "LOCK.ACQUIRE gate alice PX 100 KEEPALIVE", "EXEC",
    )[-1]  # fmt: skip
    assert all(isinstance(reply, int) for reply in replies), replies
    take(cli, "clock", "x", lease_ms=400)
    eventually(lambda: is_free(cli, "clock"))
    assert owners_of(cli, "gate") == ["alice"]
    close_and_settle(server, task)
    eventually(lambda: is_free(cli, "door"))
    eventually(lambda: is_free(cli, "gate"))


# Peers that vanish


def test_a_peer_that_vanished_is_found_by_the_servers_keepalive(server, cli):
    # half-open: neither FIN nor RST is sent, as when a machine is switched off
    cli("CONFIG SET tcp-keepalive 1")
    task = server.connect()
    take(task, "door", "alice", "EPHEMERAL 0")
    try:
        task.socket.setsockopt(socket.IPPROTO_TCP, 19, 1)  # TCP_REPAIR: closes in silence
    except OSError:
        pytest.skip("this user may not let a connection vanish")
    task.close()
    eventually(lambda: is_free(cli, "door"), "the server finds out")


def test_no_residue_of_ties(server, cli):
    for turn in range(50):
        task = server.connect()
        take(task, "door", f"alice{turn}", "EPHEMERAL 0 KEEPALIVE", lease_ms=50)
        take(task, "pool", f"alice{turn}", "LIMIT 100 KEEPALIVE", lease_ms=50)
        close_and_settle(server, task)
        eventually(lambda: is_free(cli, "door"))
    eventually(lambda: cli("DBSIZE") == 0)
    assert (count(cli, "locks"), count(cli, "holds")) == (0, 0)
