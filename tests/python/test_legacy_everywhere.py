"""Locks of old clients (`legacy-strings yes`) together with all kinds of new requests, on replicas, after restarts, in
clusters, and whatever old clients do to their string."""

import pytest

from harness.cluster import WAYS, Cluster, redirected
from harness.kinds import ask, ask_all, count, line_of, owners_of, release, take, take_all
from harness.limits import eventually
from harness.replicas import AT_ONCE, is_linked
from harness.replies import lock_info
from harness.wire import refused

LEGACY = {"module_arguments": ("legacy-strings", "yes")}


@pytest.fixture
def server(start_server):
    """Not the shared one: a server that has listened to keyspace events once continues until it ends."""
    return start_server()


@pytest.fixture
def cli(server):
    cli = server.connect()
    cli("CONFIG SET redislock.legacy-strings yes")
    return cli


def old_takes(cli, key, owner="old", ms=60_000):
    """Takes the lock like an old client; returns whether it has it."""
    return cli("SET", key, owner, "NX", "PX", ms) == "OK"


# All kinds of requests


def test_every_kind_of_request_finds_an_old_lock_taken(cli):
    # G1
    assert old_takes(cli, "door")
    for options in ("", "SHARED", "REENTRANT", "EPHEMERAL 0", "KEEPALIVE", "REENTRANT QUEUE 1", "QUEUE 1"):
        assert take(cli, "door", "new", options) is None, options
        assert take(cli, "door", "old", options) is None, options
    assert take_all(cli, "gate door", "new") is None
    assert take_all(cli, "gate door", "new", "SHARED") is None
    with refused("LOCKKIND"):
        take(cli, "door", "new", "LIMIT 2 BLOCK 0")
    eventually(lambda: count(cli, "waiters") == 0)
    assert cli("LOCK.HELDBY old") == [], "it has no record"
    assert (cli("GET door"), cli("EXISTS gate")) == ("old", 0)


@pytest.mark.parametrize("end", ["DEL door", "LOCK.RELEASE door old", "PEXPIRE door 1", "PEXPIRE door 300", "FLUSHALL", "GETDEL door"])
def test_readers_come_in_together_when_an_old_lock_goes(server, cli, end):
    # G6, G5
    assert old_takes(cli, "door")
    readers = [ask(server, "door", f"r{n}", "SHARED") for n in range(3)]
    writer = ask(server, "door", "w")
    assert all(request.is_blocked() for request in [*readers, writer])
    cli(end)
    tokens = [reader.answer() for reader in readers]
    assert tokens == sorted(set(tokens))
    assert owners_of(cli, "door") == ["r0", "r1", "r2"]
    assert writer.waits()
    assert not old_takes(cli, "door"), "and the other way round"


@pytest.mark.parametrize("end", ["DEL", "by itself", "UNLINK"])
def test_a_request_for_several_waits_for_all_old_locks(server, cli, end):
    # G12
    assert old_takes(cli, "a", ms=400 if end == "by itself" else 60_000)
    assert old_takes(cli, "b", "other", ms=800 if end == "by itself" else 60_000)
    take(cli, "c", "h")
    request = ask_all(server, "a b c d", "all")
    behind = ask(server, "d", "behind")
    if end == "by itself":
        eventually(lambda: cli("EXISTS a b") == 0)
    else:
        cli(end, "a")
        assert request.waits()
        cli(end, "b")
    assert request.waits(), "a new client holds the third"
    assert cli("EXISTS a b d") == 0, "it holds no part"
    release(cli, "c", "h")
    assert isinstance(request.answer(), int)
    assert owners_of(cli, "a") == owners_of(cli, "b") == owners_of(cli, "d") == ["all"]
    assert behind.waits()
    assert not old_takes(cli, "a") and not old_takes(cli, "d")


def test_old_locks_that_end_unnoticed_unblock_a_request_for_several(server, cli):
    # G3
    for name, ms in (("a", 200), ("b", 500), ("c", 350)):
        assert old_takes(cli, name, ms=ms)
    assert isinstance(ask_all(server, "a b c", "all").answer(), int)
    assert owners_of(cli, "b") == ["all"]


def test_a_place_in_line_behind_an_old_lock(server, cli):
    assert old_takes(cli, "door")
    assert take(cli, "door", "place", "QUEUE 3600000") is None
    cli("DEL door")
    eventually(lambda: line_of(cli, "door") == ["place"])
    assert take(cli, "door", "other") is None, "it is reserved"
    assert isinstance(take(cli, "door", "place", "QUEUE 3600000"), int)


def test_a_semaphore_comes_behind_old_locks_only_when_they_have_gone(cli):
    assert old_takes(cli, "pool", ms=300)
    with refused("LOCKKIND"):
        take(cli, "pool", "p", "LIMIT 2")
    eventually(lambda: cli("EXISTS pool") == 0)
    assert isinstance(take(cli, "pool", "p", "LIMIT 2"), int)
    assert not old_takes(cli, "pool"), "though a permit is left"


# Changes of the string by old clients

STAYS = {
    "SET door z XX PX 60000": "z", "SET door z PX 60000": "z", "SET door z XX KEEPTTL": "z", "SETEX door 100 z": "z",
    "APPEND door x": "oldx", "SETRANGE door 0 z": "zld", "PEXPIRE door 90000": "old", "EXPIRE door 1000": "old",
    "GETEX door PX 90000": "old",
}  # fmt: skip


@pytest.mark.parametrize("command", STAYS)
def test_a_changed_string_with_a_time_to_live_is_still_a_lock(server, cli, command):
    # G1: held by its value
    assert old_takes(cli, "door")
    waiters = [ask(server, "door", "new"), ask_all(server, "gate door", "many"), ask(server, "door", "r", "SHARED")]
    cli(command)
    assert all(waiter.waits() for waiter in waiters)
    assert (cli("GET door"), owners_of(cli, "door")) == (STAYS[command], [STAYS[command]])
    assert cli("LOCK.RELEASE", "door", STAYS[command]) == 1
    assert isinstance(waiters[0].answer(), int)


AGAIN = {
    "one packet": ["DEL door", "SET door next NX PX 60000"],
    "a transaction": ["MULTI", "DEL door", "SET door next NX PX 60000", "EXEC"],
    "a script": [("EVAL", "redis.call('DEL', KEYS[1]) redis.call('SET', KEYS[1], 'next', 'NX', 'PX', 60000)", 1, "door")],
    "renamed onto": ["SET other next PX 60000", "RENAME other door"],
    "copied": ["SET other next PX 60000", "COPY other door REPLACE"],
}


@pytest.mark.parametrize("how", AGAIN)
def test_the_next_old_lock_in_the_same_step_is_not_overwritten(server, cli, how):
    # G1: old clients do not wait in line
    assert old_takes(cli, "door")
    new = ask(server, "door", "new")
    many = ask_all(server, "gate door", "many")
    cli.pipeline(*AGAIN[how])
    assert new.waits() and many.waits()
    assert owners_of(cli, "door") == ["next"]
    cli("DEL door")
    assert isinstance(new.answer(), int)


def test_a_new_lock_that_an_old_client_overwrites_is_broken_and_its_string_is_a_lock(server, cli):
    # CONTRACT 5, 7
    for kind in ("", "SHARED", "LIMIT 3"):
        token = take(cli, "door", "new", kind)
        waiter = ask(server, "door", "next") if kind != "LIMIT 3" else None
        cli("SET door old PX 60000")
        assert owners_of(cli, "door") == ["old"]
        assert cli("LOCK.FENCE", "door", token) == 0
        if waiter:
            assert waiter.waits()
            cli("DEL door")
            assert isinstance(waiter.answer(), int)
        cli("DEL door")


def test_a_lease_that_old_clients_make_shorter_is_noticed(server, cli):
    # G3
    assert old_takes(cli, "door")
    waiter = ask(server, "door", "new")
    cli("PEXPIRE door 300")
    assert isinstance(waiter.answer(), int)


def test_a_string_without_an_end_is_no_lock(cli):
    for make in ("SET door old", "SET door old NX"):
        cli(make)
        for line in ("LOCK.ACQUIRE door n PX 9 SHARED", "LOCK.ACQUIRE door n PX 9 LIMIT 2", "LOCK.MACQUIRE 2 gate door n PX 9"):
            with refused("WRONGTYPE"):
                cli(line)
        assert (cli("GET door"), cli("EXISTS gate")) == ("old", 0)
        cli("DEL door")


def test_no_token_of_an_old_lock_is_live(cli):
    # CONTRACT 2, LOCK.EXEC: as LOCK.FENCE says
    assert old_takes(cli, "door")
    assert cli("LOCK.FENCE door 5") == 0
    with refused("FENCED"):
        cli("LOCK.EXEC door 5 SET x 1")
    assert cli("EXISTS x") == 0


# Replicas, files, clusters


def test_old_locks_count_on_a_replica_and_after_its_promotion(start_server):
    # G13, G1
    server = start_server(*AT_ONCE, **LEGACY)
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}", **LEGACY)
    is_linked(replica)
    cli, reader = server.connect(), replica.connect()
    assert old_takes(cli, "door") and old_takes(cli, "short", ms=1500)
    take_all(cli, "one two", "all")
    assert cli("WAIT 1 10000") == 1
    (hold,) = lock_info(reader, "door")["holders"]
    assert (hold["owner"], hold["token"]) == ("old", None)
    assert 0 < hold["lease-left-ms"] <= 60_000
    assert reader("LOCK.FENCE door") is None
    with refused("READONLY"):
        reader("LOCK.RELEASE door old")
    assert reader("DEBUG DIGEST") == cli("DEBUG DIGEST")
    server.kill()
    reader("REPLICAOF NO ONE")
    assert take(reader, "door", "new") is None
    both = ask_all(replica, "short door", "both")
    short = ask(replica, "short", "behind")
    assert reader("LOCK.RELEASE door old") == 1
    assert isinstance(both.answer(), int), "the other one's time to live ended"
    assert owners_of(reader, "short") == ["both"]
    assert short.waits()


@pytest.mark.parametrize("theirs", ["yes", "no"])
def test_replicas_follow_whatever_their_own_setting_is(start_server, theirs):
    # G13: facts are not asked about
    server = start_server(*AT_ONCE, **LEGACY)
    replica = start_server("--replicaof", f"127.0.0.1 {server.port}", module_arguments=("legacy-strings", theirs))
    is_linked(replica)
    cli, reader = server.connect(), replica.connect()
    for n, end in enumerate(["DEL", "LOCK.RELEASE", "PEXPIRE", "SETEX"]):
        assert old_takes(cli, f"k{n}")
        request = ask(server, f"k{n}", "new", "SHARED") if n % 2 else ask_all(server, f"k{n} m{n}", "new")
        if end == "SETEX":
            cli("SETEX", f"k{n}", 100, "z")
            cli("LOCK.RELEASE", f"k{n}", "z")
        else:
            cli(end, f"k{n}", *{"LOCK.RELEASE": ["old"], "PEXPIRE": [50]}.get(end, []))
        request.answer()
    assert old_takes(cli, "stays")
    assert cli("LOCK.RENEW stays old PX 3600000") == 1
    assert cli("WAIT 1 10000") == 1
    eventually(lambda: reader("DEBUG DIGEST") == cli("DEBUG DIGEST"), "the same digest")
    assert owners_of(reader, "k1") == ["new"]


@pytest.mark.parametrize("options", [["--save", "3600 1"], ["--appendonly", "yes", "--appendfsync", "always", "--aof-use-rdb-preamble", "no"]], ids=["RDB", "AOF"])
def test_after_a_restart_old_locks_are_locks_again(start_server, options):
    # G1, G3
    server = start_server(*options, **LEGACY)
    cli = server.connect()
    assert old_takes(cli, "door") and old_takes(cli, "short", ms=3000)
    take(cli, "new", "n", "SHARED")
    if "--save" in options:
        cli("SAVE")
    server.kill()
    cli = server.start().connect()
    assert take(cli, "door", "new") is None
    assert cli("LOCK.RENEW door other PX 5") == 0
    both = ask_all(server, "short door", "both")
    assert both.waits()
    eventually(lambda: cli("EXISTS short") == 0)
    assert cli("LOCK.RELEASE door old") == 1
    assert isinstance(both.answer(), int)
    assert not old_takes(cli, "new")


@pytest.mark.parametrize("way", WAYS)
def test_in_a_cluster_an_old_lock_moves_too(start_server, way):
    # G1, G7
    cluster = Cluster(start_server, **LEGACY)
    node = cluster.nodes[0]
    source, target = node.connect(), cluster.nodes[1].connect()
    assert old_takes(source, "{b}door") and old_takes(source, "{b}short", ms=3000)
    requests = [
        ask(node, "{b}door", "new"), ask(node, "{b}door", "r", "SHARED"), ask_all(node, "{b}door {b}short", "all"),
    ]  # fmt: skip
    cluster.move(way, "{b}")
    for request in requests:
        redirected(request)
    eventually(lambda: count(source, "waiters") == 0)
    assert take(target, "{b}door", "new") is None
    request = ask_all(cluster.nodes[1], "{b}door {b}short", "all")
    assert target("LOCK.RELEASE {b}door old") == 1
    assert isinstance(request.answer(), int), "when the other one's time is over"
    with refused("MOVED"):
        take(source, "{b}door", "new")
