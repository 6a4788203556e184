"""A module that writes a version one higher, together with today's: the records between them, and files of one that the
other loads. To the newer one all but exclusive locks are new. docs/operations/install-and-upgrade.md has the way from one to the other;
test_samples.py loads the files of released versions.
"""

import subprocess
from pathlib import Path

import pytest

from harness.kinds import owners_of, take
from harness.limits import eventually
from harness.payload import dump
from harness.replicas import AT_ONCE, is_linked
from harness.replies import lock_info, owner_of, waiters_of
from harness.samples import LOCKS
from harness.server import MODULE, ROOT, StartFailed
from harness.walk import assert_same_leases, leases_of, locks_of as all_locks_of, walk
from harness.wire import refused

pytestmark = pytest.mark.timeout(600)  # the newer module may have to be built

OWNER = "\x01\u00e9 o"
NO_PREAMBLE = ("--appendonly", "yes", "--aof-use-rdb-preamble", "no")
PREAMBLE = ("--appendonly", "yes")
SNAPSHOT = ()
WAYS = pytest.mark.parametrize("options", [SNAPSHOT, PREAMBLE, NO_PREAMBLE], ids=["rdb", "preamble", "no preamble"])
REWRITTEN = pytest.mark.parametrize("is_rewritten", [False, True], ids=["grown", "rewritten"])


@pytest.fixture(scope="session")
def newer():
    """The path of the newer module."""
    built = subprocess.run([ROOT / "scripts" / "newer-module"], stdout=subprocess.PIPE, text=True, check=True)
    return Path(built.stdout.strip())


@pytest.fixture(params=["newer first", "newer second"])
def both(request, newer):
    """The two modules, in both orders: of the one that decides or writes, and of the one that follows or loads."""
    return (newer, MODULE) if request.param == "newer first" else (MODULE, newer)


@pytest.fixture
def pair(start_server, both):
    """A primary and its replica, each with the other module."""
    primary = start_server(*AT_ONCE, module=both[0])
    replica = start_server(*AT_ONCE, "--replicaof", f"127.0.0.1 {primary.port}", module=both[1])
    is_linked(replica)
    return primary, replica


def use_locks(server):
    """Everything that can happen to the locks that both modules know. Some are held at the end."""
    cli, other = server.connect(), server.connect(db=1)
    for n in range(30):
        cli("LOCK.ACQUIRE", f"many:{n}", OWNER if n % 2 else "o" * 256, "PX", 600000)
    cli("LOCK.ACQUIRE minted * PX 600000")
    other("LOCK.ACQUIRE many:1 alice EX 600")
    cli("LOCK.ACQUIRE retried alice PX 1000")
    cli("LOCK.ACQUIRE retried alice PX 600000")
    cli("LOCK.ACQUIRE renewed alice PX 1000")
    assert cli("LOCK.RENEW renewed alice PX 600000") == 1
    cli("LOCK.ACQUIRE renewed:2 alice PX 1000")
    assert cli("LOCK.RENEW", "renewed:2", "alice", "PX", 500000, "TOKEN", cli("LOCK.FENCE renewed:2")) == 1
    cli("LOCK.ACQUIRE released alice PX 600000")
    assert cli("LOCK.RELEASE released alice") == 1
    cli("LOCK.ACQUIRE released alice PX 600000")
    cli("LOCK.ACQUIRE short alice PX 1")
    for name, free in (
        ("handed", "LOCK.RELEASE handed alice"),
        ("deleted", "DEL deleted"),
        ("ended", "LOCK.RENEW ended alice PX 1"),
    ):
        cli("LOCK.ACQUIRE", name, "alice", "PX", 600000)
        waiting = server.ask("LOCK.ACQUIRE", name, "bob", "PX", 600000, "BLOCK", 0)
        cli(free)
        assert isinstance(waiting.answer(), int)
    cli("LOCK.ACQUIRE renamed alice PX 600000")
    cli("RENAME renamed empty")
    cli("LOCK.ACQUIRE moved alice PX 600000")
    cli("MOVE moved 1")
    cli("LOCK.ACQUIRE overwritten alice PX 600000")
    cli("SET overwritten text")
    cli("LOCK.ACQUIRE restored alice PX 600000")
    payload = dump(cli, "restored")
    cli("DEL restored")
    cli("RESTORE", "restored", 0, payload)
    cli("LOCK.ACQUIRE behind alice PX 600000")
    cli("MULTI")
    cli("LOCK.ACQUIRE transaction alice PX 600000")
    cli("LOCK.ACQUIRE transaction:2 alice PX 600000")
    cli("EXEC")
    cli("EVAL", "return redis.call('LOCK.ACQUIRE', KEYS[1], 'alice', 'PX', 600000)", 1, "script")
    eventually(lambda: cli("EXISTS short") == 0, "the lease has ended")


def locks_of(server):
    """Every key with its type, and each lock with its owner, its token and about how long it lasts."""
    found = {}
    for db in (0, 1):
        cli = server.connect(db=db)
        for name in sorted(cli("KEYS *")):
            kind, held = cli("TYPE", name), None
            if kind == "redislock" and (info := lock_info(cli, name)):
                (hold,) = info["holders"]
                assert 0 < hold["lease-left-ms"] <= 600000
                held = (hold["owner"], hold["token"], hold["lease-left-ms"] > 400000)
                assert cli("LOCK.FENCE", name) == hold["token"]
            found[db, name] = kind, held
    return found


def follows(replica, primary):
    """Waits until the replica has all that its primary has written."""
    offset = primary.info("replication")["master_repl_offset"]
    eventually(
        lambda: int(replica.info("replication")["slave_repl_offset"]) >= int(offset),
        "the replica has caught up",
    )


def assert_the_same(one, other):
    """Both have the same locks, and would say so by their digests."""
    expected = locks_of(one)
    assert locks_of(other) == expected
    assert len(expected) > 40
    assert other.admin("DEBUG DIGEST") == one.admin("DEBUG DIGEST")


# Replication


def test_a_replica_has_what_its_primary_granted(pair):
    primary, replica = pair
    use_locks(primary)
    follows(replica, primary)
    assert_the_same(primary, replica)
    assert "malformed" not in replica.log_text() and "sending an error" not in replica.log_text()


def test_a_replica_that_comes_late_loads_the_same_and_continues(start_server, both):
    primary = start_server(*AT_ONCE, module=both[0])
    use_locks(primary)
    replica = start_server("--replicaof", f"127.0.0.1 {primary.port}", module=both[1])
    is_linked(replica)
    assert_the_same(primary, replica)
    cli = primary.connect()
    for n in range(40):
        cli("LOCK.ACQUIRE", f"later:{n}", "carol", "PX", 600000)
    cli("LOCK.RELEASE later:3 carol")
    follows(replica, primary)
    assert_the_same(primary, replica)


def test_leases_end_on_the_replica_when_its_primary_says_so(pair):
    primary, replica = pair
    cli = primary.connect()
    for n in range(50):
        cli("LOCK.ACQUIRE", f"short:{n}", "alice", "PX", 50 + n)
    eventually(lambda: cli("DBSIZE") == 0, "the leases are over")
    follows(replica, primary)
    assert replica.admin("DBSIZE") == 0
    assert replica.info("redislock")["redislock_locks"] == "0"


def test_locks_outlive_a_failover_and_the_way_back(pair):
    primary, replica = pair
    use_locks(primary)
    before = locks_of(primary)
    newest = max(held[1] for _, held in before.values() if held)
    for old_primary, new_primary in ((primary, replica), (replica, primary)):
        waiting = old_primary.ask("LOCK.ACQUIRE behind bob PX 600000 BLOCK 0")
        eventually(lambda: "state=online" in old_primary.info("replication").get("slave0", ""), "its replica is online")
        old_primary.admin("FAILOVER", "TO", "127.0.0.1", new_primary.port)
        with refused("UNBLOCKED"):
            waiting.answer()
        eventually(lambda: new_primary.info("replication")["role"] == "master", "it is the primary")
        eventually(lambda: old_primary.info("replication")["role"] == "slave", "it is the replica")
        is_linked(old_primary)
        assert locks_of(new_primary) == before
        cli = new_primary.connect()
        assert cli("LOCK.ACQUIRE behind bob PX 1000") is None
        token = cli("LOCK.ACQUIRE behind:2 bob PX 600000")
        assert token > newest
        newest = token
        assert cli("LOCK.RELEASE behind:2 bob") == 1
        assert cli("LOCK.RENEW renewed alice PX 600000") == 1
        waiting = new_primary.ask("LOCK.ACQUIRE behind bob PX 600000 BLOCK 0")
        assert waiters_of(cli, "behind") == 1
        waiting.leave()
        follows(old_primary, new_primary)
        assert locks_of(old_primary) == before


def test_a_handover_on_the_new_primary_reaches_the_old_one(pair):
    primary, replica = pair
    primary.connect()("LOCK.ACQUIRE door alice PX 600000")
    follows(replica, primary)
    replica.admin("REPLICAOF NO ONE")
    primary.admin("REPLICAOF", "127.0.0.1", replica.port)
    is_linked(primary)
    cli = replica.connect()
    waiting = replica.ask("LOCK.ACQUIRE door bob PX 600000 BLOCK 0")
    cli("LOCK.RELEASE door alice")
    token = waiting.answer()
    follows(primary, replica)
    assert (owner_of(primary.connect(), "door"), primary.admin("LOCK.FENCE door")) == ("bob", token)


def test_a_newer_replica_follows_through_everything_that_can_happen_to_locks(start_server, newer):
    primary = start_server(*AT_ONCE)
    replica = start_server(*AT_ONCE, "--replicaof", f"127.0.0.1 {primary.port}", module=newer)
    is_linked(replica)
    steps = 0
    for _ in walk(primary):
        follows(replica, primary)
        assert all_locks_of(replica.connect()) == all_locks_of(primary.connect())
        assert_same_leases(leases_of(primary.connect()), leases_of(replica.connect()))
        steps += 1
    assert steps > 25
    assert "malformed" not in replica.log_text() and "sending an error" not in replica.log_text()


# Files


@WAYS
@REWRITTEN
def test_files_of_one_version_are_loaded_by_the_other(start_server, both, options, is_rewritten):
    server = start_server(*options, module=both[0])
    cli = server.connect()
    if is_rewritten and options:
        use_locks(server)
        cli("BGREWRITEAOF")
        eventually(lambda: server.info("persistence")["aof_rewrite_in_progress"] == "0", "it is rewritten")
        cli("LOCK.ACQUIRE behind:2 alice PX 600000")
    else:
        use_locks(server)
    cli("SAVE")
    before = locks_of(server)
    newest = max(held[1] for _, held in before.values() if held)
    server.stop()
    server.module = both[1]
    server.start()
    after = locks_of(server)
    assert after == before
    assert server.connect()("LOCK.ACQUIRE fresh alice PX 600000") > newest


@WAYS
@REWRITTEN
def test_locks_of_all_kinds_are_loaded_by_the_newer_one(start_server, newer, options, is_rewritten):
    server = start_server(*options)
    databases = range(len(LOCKS))
    for db, make in enumerate(LOCKS.values()):
        make(server.connect(db=db))
    if is_rewritten and options:
        server.admin("BGREWRITEAOF")
        eventually(lambda: server.info("persistence")["aof_rewrite_in_progress"] == "0", "it is rewritten")
        take(server.connect(), "behind", "alice")
    server.admin("SAVE")
    held = [owners_of(server.connect(db=db), "door") for db in databases]
    tokens = [server.connect(db=db)("LOCK.FENCE door") for db in databases]
    server.stop()
    server.module = newer
    server.start()
    assert [owners_of(server.connect(db=db), "door") for db in databases] == held
    assert [server.connect(db=db)("LOCK.FENCE door") for db in databases] == tokens
    assert take(server.connect(), "fresh", "alice") > max(tokens)


# Impossible: features of the newer one, at today's

NEW = ("LOCK.ACQUIRE new * PX 600000 SHARED", "LOCK.ACQUIRE new * PX 600000 LIMIT 2")
UNKNOWN = "its version is not known to this module: a newer one has written it"


@pytest.mark.parametrize("command", NEW)
def test_a_replica_that_was_not_upgraded_first_says_what_it_lacks(start_server, newer, command):
    primary = start_server(*AT_ONCE, module=newer)
    replica = start_server("--replicaof", f"127.0.0.1 {primary.port}")
    is_linked(replica)
    cli = primary.connect()
    cli(command)  # an owner of the server's: a record of its own
    for n in range(5):
        cli("LOCK.ACQUIRE", f"plain:{n}", "alice", "PX", 600000)
    follows(replica, primary)
    assert replica.admin("DBSIZE") == 5
    assert replica.admin("DEBUG DIGEST") != cli("DEBUG DIGEST")
    eventually(lambda: "redislock record of a version that this module does not know" in replica.log_text(), "its log says so")
    replica.stop()
    # Without a file to start from all it has comes from its primary. (It keeps the data that it received when it
    # attached.)
    (replica.directory / "dump.rdb").unlink(missing_ok=True)
    replica.module = newer
    replica.start()
    is_linked(replica)
    follows(replica, primary)
    assert replica.admin("DEBUG DIGEST") == cli("DEBUG DIGEST")


@pytest.mark.parametrize("command", NEW)
def test_the_way_back_from_a_file_with_what_is_new_is_refused_with_its_reason(start_server, newer, command):
    server = start_server(module=newer)
    server.connect()(command)
    server.admin("SAVE")
    server.stop()
    server.module = MODULE
    with pytest.raises(StartFailed) as failure:
        server.start()
    assert f"a lock was refused: {UNKNOWN}" in str(failure.value)
    server.module = newer
    server.start()
    assert server.admin("DBSIZE") == 1


@pytest.mark.parametrize("command", NEW)
def test_a_payload_with_what_is_new_is_refused_and_changes_nothing(start_server, newer, command):
    other, server = start_server(module=newer), start_server()
    other.connect()(command)
    payload = dump(other.connect(), "new")
    cli = server.connect()
    token = take(cli, "new", "alice")
    with refused("ERR", "Bad data format"):
        cli("RESTORE", "new", 0, payload, "REPLACE")
    assert UNKNOWN in server.log_text()
    assert cli("LOCK.FENCE new") == token


def test_a_setting_that_a_module_does_not_know_keeps_it_from_starting(start_server):
    with pytest.raises(StartFailed) as failure:
        start_server(config="loadmodule MODULE\nredislock.of-a-later-one 1\n")
    log = str(failure.value)  # Redis 7.0 does not say which
    assert "redislock.of-a-later-one" in log or "Module Configuration detected without loadmodule directive" in log
