"""Clients that WATCH a key: closing it notifies them, if it was changed."""

import pytest

from harness.limits import eventually
from harness.replicas import AT_ONCE, is_linked

UNCHANGED = {
    "asked again for less": "LOCK.ACQUIRE door alice PX 5",
    "another's token": "LOCK.RELEASE door alice TOKEN 1",
    "another's renewal": "LOCK.RENEW door bob PX 90000",
    "a renewal of nothing": "LOCK.RENEW free alice PX 90000",
    "a release of nothing": "LOCK.RELEASE free alice",
    "a wait that is over": "LOCK.ACQUIRE door bob PX 60000 BLOCK 1",
    "another lock": "LOCK.ACQUIRE other alice PX 1",
    "no lock": "LOCK.RELEASE note alice",
    "not to be had": "LOCK.ACQUIRE note alice PX 60000",
    "a script that looks": "EVAL return{redis.call('lock.acquire','door','x','px',9),redis.call('lock.info','free')} 0",
}
CHANGED = {
    "asked again for more": "LOCK.ACQUIRE door alice PX 90000",
    "taken": "LOCK.ACQUIRE free alice PX 60000",
    "taken and given up": ("LOCK.ACQUIRE free alice PX 60000", "LOCK.RELEASE free alice"),
    "in a transaction": ("MULTI", "LOCK.RELEASE door alice", "LOCK.ACQUIRE door alice PX 60000", "EXEC"),
    "in a script": "EVAL return(redis.call('lock.release','door','alice')) 0",
    "behind a refusal": ("LOCK.ACQUIRE door bob PX 60000", "LOCK.RELEASE door bob", "LOCK.RELEASE door alice"),
}


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("what", [*UNCHANGED, *CHANGED])
def test_watchers_are_notified_of_changes_and_of_nothing_else(server, cli, what, protocol):
    cli("SET note text")
    cli("LOCK.ACQUIRE door alice PX 60000")
    watcher = server.connect(protocol=protocol)
    if protocol == 3:
        watcher("CLIENT TRACKING ON")
    watcher("MGET door free note")
    watcher("LOCK.INFO free")
    watcher("LOCK.INFO door")
    watcher("WATCH door free note")
    commands = CHANGED.get(what) or UNCHANGED[what]
    for command in [commands] if isinstance(commands, str) else commands:
        cli.pipeline(command)
    eventually(lambda: cli("EXISTS other") == 0, "the other lock's lease ends")
    result = watcher.pipeline("MULTI", "PING", "EXEC")[-1]
    assert result == (None if what in CHANGED else ["PONG"])
    assert bool(watcher.pushes) == (what in CHANGED and protocol == 3)


def test_watchers_on_a_replica_are_notified_by_the_stream(start_server):
    primary = start_server(*AT_ONCE)
    server = start_server("--replicaof", f"127.0.0.1 {primary.port}")
    is_linked(server)
    cli, there = primary.connect(), server.connect()
    cli("LOCK.ACQUIRE quiet alice PX 60000")
    cli("LOCK.ACQUIRE door alice PX 60000")
    eventually(lambda: there("EXISTS door") == 1, "the stream arrives")
    steps = (
        "LOCK.RENEW door alice PX 70000",
        "LOCK.RELEASE door alice",
        "LOCK.ACQUIRE door bob PX 60000",
        "LOCK.RENEW door bob PX 1",
    )
    for number, step in enumerate(steps):
        assert there("WATCH door") == "OK"
        cli(step)
        if number == 3:
            eventually(lambda: cli("EXISTS door") == 0, "the lease ends")
        cli("SET", "seen", number)
        eventually(lambda: server.admin("GET seen") == str(number), "the stream arrives")
        assert there.pipeline("MULTI", "PING", "EXEC")[-1] is None, step
        assert there("WATCH quiet") == "OK"
        assert there.pipeline("MULTI", "PING", "EXEC")[-1] == ["PONG"]
