"""The keyspace events that listeners receive (CONTRACT 8).

Nothing is published without a possible listener. So a client that begins to listen, at whatever moment, must receive
the next event.
"""

import subprocess
from pathlib import Path

import pytest

from harness.limits import eventually
from harness.replicas import AT_ONCE, is_linked
from harness.replies import module_info, owner_of
from harness.server import MODULE

SOURCE = Path(__file__).parent / "harness" / "listener.c"
REMOTE = ("--enable-module-command", "yes")


@pytest.fixture(scope="session")
def listener_path(tmp_path_factory):
    """A module that listens to keyspace events without a setting."""
    path = tmp_path_factory.mktemp("listener") / "listener.so"
    subprocess.run(
        ["cc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", path, SOURCE], check=True
    )
    return path


def heard(cli):
    """The events that the listening module has received since the last call."""
    return cli("LISTENER.HEARD")


def live_through_all_events(server, cli):
    """One of each event, and a hand-over."""
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    cli("LOCK.RELEASE door alice")
    bob.answer()
    cli("DEL door")
    cli("LOCK.ACQUIRE gate alice PX 1")
    eventually(lambda: cli("DBSIZE") == 0, "the lease ends")


ALL_EVENTS = [
    "lock.acquired door 0",
    "lock.released door 0",
    "lock.acquired door 0",
    "lock.broken door 0",
    "lock.acquired gate 0",
    "lock.expired gate 0",
]


def assert_all_are_heard(server, cli):
    """The listening module receives all events, in order."""
    heard(cli)
    broken = int(module_info(cli)["broken"])
    live_through_all_events(server, cli)
    eventually(lambda: int(module_info(cli)["broken"]) > broken, "the broken hold is counted")
    events = []
    eventually(lambda: events.extend(heard(cli)) or len(events) >= len(ALL_EVENTS), f"all of {events}")
    # G15: the pump reports locks that are broken from outside, and later events follow.
    assert events == ALL_EVENTS


# Another module


def test_a_module_loaded_before_hears_everything(start_server, listener_path):
    server = start_server("--loadmodule", listener_path)
    cli = server.connect()
    assert cli("CONFIG GET notify-keyspace-events")[1] == ""
    assert_all_are_heard(server, cli)


def test_a_module_loaded_after_hears_everything(start_server, listener_path):
    server = start_server(config=f"loadmodule MODULE\nloadmodule {listener_path}\n")
    cli = server.connect()
    assert_all_are_heard(server, cli)


def test_the_first_event_of_a_server_is_heard(start_server, listener_path):
    for modules in ((listener_path, "MODULE"), ("MODULE", listener_path)):
        cli = start_server(config="".join(f"loadmodule {path}\n" for path in modules)).connect()
        cli("LOCK.ACQUIRE door alice PX 60000")
        assert heard(cli) == ["lock.acquired door 0"]


@pytest.mark.parametrize("is_used", [False, True])
def test_a_module_that_comes_and_goes_while_locks_are_in_use(start_server, listener_path, is_used):
    server = start_server(*REMOTE)
    cli = server.connect()
    if is_used:
        cli("LOCK.ACQUIRE before alice PX 60000")
        cli("LOCK.RELEASE before alice")
    for _ in range(2):
        cli("MODULE", "LOAD", listener_path)
        cli("LOCK.ACQUIRE first alice PX 60000")
        assert heard(cli) == ["lock.acquired first 0"], "the first command after it was loaded"
        cli("LOCK.RELEASE first alice")
        assert_all_are_heard(server, cli)
        cli("MODULE UNLOAD listener")
        live_through_all_events(server, cli)


def test_a_module_loaded_within_a_transaction_hears_its_end(start_server, listener_path):
    server = start_server(*REMOTE)
    cli = server.connect()
    cli("LOCK.ACQUIRE before alice PX 60000")
    if cli.pipeline("MULTI", ("MODULE", "LOAD", listener_path), "LOCK.ACQUIRE door alice PX 60000", "EXEC")[-1]:
        assert heard(cli) == ["lock.acquired door 0"]


def test_our_own_module_loaded_at_run_time_is_heard(start_server, listener_path):
    for first, second in (("listener", "ours"), ("ours", "listener")):
        server = start_server(*REMOTE, with_module=False)
        cli = server.connect()
        paths = {"listener": listener_path, "ours": MODULE}
        cli("MODULE", "LOAD", paths[first])
        cli("MODULE", "LOAD", paths[second])
        assert_all_are_heard(server, cli)


def test_a_module_hears_on_a_replica_what_its_primary_decided(start_server, listener_path):
    primary = start_server(*AT_ONCE)
    replica = start_server("--loadmodule", listener_path, "--replicaof", f"127.0.0.1 {primary.port}")
    cli, there = primary.connect(), replica.connect()
    is_linked(replica)
    cli("LOCK.ACQUIRE door alice PX 60000")
    cli("LOCK.RELEASE door alice")
    events = []
    eventually(lambda: events.extend(heard(there)) or len(events) >= 2, "the stream arrives")
    assert events == ["lock.acquired door 0", "lock.released door 0"]


def test_a_listener_may_use_the_lock_of_which_it_hears(start_server, listener_path):
    server = start_server("--loadmodule", listener_path)
    cli = server.connect()
    # It releases the lock as soon as it receives the event of its grant.
    cli("LISTENER.ON lock.acquired LOCK.RELEASE % alice")
    for _ in range(3):
        cli("LOCK.ACQUIRE door alice PX 60000")
        assert cli("DBSIZE") == 0
        # The server delivers no nested events to a module.
        assert heard(cli) == ["lock.acquired door 0"]
    # It takes it again as soon as it receives the event of its release.
    cli("LISTENER.ON lock.released LOCK.ACQUIRE % carol PX 60000")
    cli("LOCK.ACQUIRE door alice PX 60000")
    assert cli("LOCK.RELEASE door alice") == 1
    assert owner_of(cli, "door") == "carol"
    # It deletes the lock that was handed over, within the hand-over.
    cli("LISTENER.ON lock.acquired DEL %")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    assert cli("LOCK.RELEASE door carol") == 1
    assert bob.answer() > 0
    assert cli("DBSIZE") == 0
    # And at the end of a lease, in the pump.
    cli("LISTENER.ON lock.expired LOCK.ACQUIRE % dave PX 60000")
    cli("LOCK.ACQUIRE gate alice PX 1")
    eventually(lambda: owner_of(cli, "gate") == "dave", "the lease ends, and dave has it")
    assert int(module_info(cli)["locks"]) == 1
    cli("FLUSHALL")
    eventually(lambda: module_info(cli)["locks"] == "0", "nothing is left")


# Clients, by a setting at run time


@pytest.mark.parametrize("is_used", [False, True])
def test_clients_hear_from_the_next_command_on(start_server, is_used):
    server = start_server()
    cli, subscriber = server.connect(), server.connect()
    subscriber("PSUBSCRIBE __keyevent@0__:lock.*")
    if is_used:
        cli("LOCK.ACQUIRE silent alice PX 60000")
        cli("LOCK.RELEASE silent alice")
    for number in range(3):
        replies = cli.pipeline(
            "CONFIG SET notify-keyspace-events Ed",
            f"LOCK.ACQUIRE door:{number} alice PX 60000",
            ("CONFIG", "SET", "notify-keyspace-events", ""),
            f"LOCK.RELEASE door:{number} alice",
            "CONFIG SET notify-keyspace-events Ed",
            f"LOCK.RELEASE door:{number} alice",
            f"LOCK.ACQUIRE gate:{number} alice PX 60000",
            ("CONFIG", "SET", "notify-keyspace-events", ""),
        )
        assert [type(reply) for reply in replies] == [str, int, str, int, str, int, int, str]
        got = [subscriber.read()[2:] for _ in range(2)]
        assert got == [["__keyevent@0__:lock.acquired", f"{what}:{number}"] for what in ("door", "gate")]
    assert not subscriber.has_input(0.05), "nothing while it was off"


def test_a_transaction_that_turns_events_on_is_heard(start_server):
    server = start_server()
    cli, subscriber = server.connect(), server.connect()
    cli("LOCK.ACQUIRE silent alice PX 60000")
    subscriber("PSUBSCRIBE __keyevent@0__:lock.*")
    cli.pipeline("MULTI", "CONFIG SET notify-keyspace-events Ed", "LOCK.RELEASE silent alice", "EXEC")
    assert subscriber.read()[2:] == ["__keyevent@0__:lock.released", "silent"]


def test_events_that_are_on_from_the_start_are_heard(start_server):
    server = start_server("--notify-keyspace-events", "Ed")
    cli, subscriber = server.connect(), server.connect()
    subscriber("PSUBSCRIBE __keyevent@0__:lock.*")
    cli("LOCK.ACQUIRE door alice PX 60000")
    assert subscriber.read()[2:] == ["__keyevent@0__:lock.acquired", "door"]
