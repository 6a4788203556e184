"""While the server may not write, nothing is granted and nothing ends (CONTRACT 4).

CLIENT PAUSE, a server that sleeps, a server out of memory. Writing outside a command
during a pause would abort the server; a server that died fails any test here.
"""

import time

import pytest

from harness.limits import eventually
from harness.replies import owner_of, waiters_of
from harness.wire import refused

LONG_PAUSE_MS = 60_000
LEASE_MS = 50
OVER_SECONDS = 0.4  # when a lease of LEASE_MS is surely over


def test_no_lease_ends_during_a_pause_and_each_does_right_after(server, cli):
    # G3 after the pause; during it no write may happen
    for n in range(20):
        cli("LOCK.ACQUIRE", f"door:{n}", "alice", "PX", 60_000)
    # One packet: not even a slow machine gets between the lease and the pause.
    cli.pipeline(
        *[f"LOCK.RENEW door:{n} alice PX {LEASE_MS}" for n in range(20)],
        f"CLIENT PAUSE {LONG_PAUSE_MS} WRITE",
    )
    time.sleep(OVER_SECONDS)
    assert cli("DBSIZE") == 20
    cli("CLIENT UNPAUSE")
    eventually(lambda: cli("DBSIZE") == 0, "the leases end")


def test_no_waiter_is_granted_during_a_pause(server, cli):
    # G6, G7
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    cli.pipeline(
        f"LOCK.RENEW door alice PX {LEASE_MS}", f"CLIENT PAUSE {LONG_PAUSE_MS} WRITE"
    )
    time.sleep(OVER_SECONDS)
    assert not bob.connection.has_input(), "alice's lease is over, but nobody may write"
    cli("CLIENT UNPAUSE")
    assert isinstance(bob.answer(), int)
    assert owner_of(cli, "door") == "bob"


def test_after_a_pause_of_everything_the_waiter_is_granted(server, cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    paused = time.monotonic()
    cli.pipeline(f"LOCK.RENEW door alice PX {LEASE_MS}", "CLIENT PAUSE 700 ALL")
    assert isinstance(bob.answer(), int)
    assert time.monotonic() - paused >= 0.650, "not during the pause"


def test_a_release_sent_during_a_pause_hands_over_after_it(server, cli):
    # G6
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    cli("CLIENT", "PAUSE", LONG_PAUSE_MS, "WRITE")
    release = server.connect()
    release.send("LOCK.RELEASE door alice")
    assert not release.has_input(0.1)
    assert not bob.connection.has_input()
    cli("CLIENT UNPAUSE")
    assert release.read() == 1
    assert isinstance(bob.answer(), int)


def test_a_waiter_that_gives_up_during_a_pause_is_answered(server, cli):
    # G7: to give up writes nothing
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 300")
    cli("CLIENT", "PAUSE", LONG_PAUSE_MS, "WRITE")
    assert bob.answer(limit=50) is None
    assert waiters_of(cli, "door") == 0
    cli("CLIENT UNPAUSE")


def test_a_waiter_that_leaves_during_a_pause_is_not_granted_after_it(server, cli):
    # G8
    cli("LOCK.ACQUIRE door alice PX 300")
    bob = server.ask("LOCK.ACQUIRE door bob PX 3600000 BLOCK 0")
    carol = server.ask("LOCK.ACQUIRE door carol PX 60000 BLOCK 0")
    cli("CLIENT", "PAUSE", LONG_PAUSE_MS, "WRITE")
    bob.crash()
    eventually(lambda: server.admin("CLIENT", "LIST", "ID", bob.client_id) == "", "gone")
    time.sleep(OVER_SECONDS)
    cli("CLIENT UNPAUSE")
    assert isinstance(carol.answer(), int)


def test_reading_continues_during_a_pause(server, cli):
    # FENCE and INFO are readonly: a pause of writes does not hold them up
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    cli("CLIENT", "PAUSE", LONG_PAUSE_MS, "WRITE")
    assert cli("LOCK.FENCE", "door", token) == 1
    assert owner_of(cli, "door") == "alice"
    cli("CLIENT UNPAUSE")


def test_many_leases_and_waiters_through_several_pauses(server, cli):
    # Writing at the wrong moment aborts the server: many chances for it
    waiters = []
    for n in range(30):
        cli("LOCK.ACQUIRE", f"door:{n}", "alice", "PX", 20 + 20 * n)
        waiters.append(
            server.ask("LOCK.ACQUIRE", f"door:{n}", "bob", "PX", 50, "BLOCK", 0)
        )
    for _ in range(8):
        cli("CLIENT PAUSE 60 WRITE")
        time.sleep(0.08)
        cli("CLIENT PAUSE 60 ALL")
        cli("PING")
    for waiter in waiters:
        assert isinstance(waiter.answer(), int)
    eventually(lambda: cli("DBSIZE") == 0, "all leases end")


def test_a_server_that_was_busy_catches_up(server, cli):
    # G3, G6: leases that ended while the server slept
    cli("LOCK.ACQUIRE door alice PX 100")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    for n in range(50):
        cli("LOCK.ACQUIRE", f"other:{n}", "alice", "PX", 100 + n)
    cli("DEBUG SLEEP 0.5")
    assert isinstance(bob.answer(), int)
    eventually(lambda: cli("DBSIZE") == 1, "the other leases end")


# Out of memory


@pytest.fixture
def starved(start_server):
    """A server that is out of memory; alice holds the door."""
    server = start_server("--maxmemory-policy", "noeviction")
    cli = server.connect()
    cli("LOCK.ACQUIRE door alice PX 60000")
    cli("CONFIG SET maxmemory 1")
    return server


def test_without_memory_no_lock_is_taken(starved):
    # CONTRACT 9: OOM as the server's own
    cli = starved.connect()
    with refused("OOM"):
        cli("LOCK.ACQUIRE gate alice PX 60000")
    with refused("OOM"):
        cli("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")


def test_release_and_renew_are_never_refused_for_memory(starved):
    cli = starved.connect()
    assert cli("LOCK.RENEW door alice PX 50000") == 1
    assert isinstance(cli("LOCK.FENCE door"), int)
    assert cli("LOCK.RELEASE door alice") == 1
    assert cli("DBSIZE") == 0


def test_leases_end_without_memory_too(starved):
    cli = starved.connect()
    assert cli("LOCK.RENEW door alice PX 1") == 1
    eventually(lambda: cli("DBSIZE") == 0, "the lease ends")


def test_a_waiter_is_granted_at_the_latest_when_there_is_memory_again(start_server):
    # G6, G7
    server = start_server("--maxmemory-policy", "noeviction")
    cli = server.connect()
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    cli("CONFIG SET maxmemory 1")
    assert cli("LOCK.RELEASE door alice") == 1
    cli("CONFIG SET maxmemory 0")
    assert isinstance(bob.answer(), int)
