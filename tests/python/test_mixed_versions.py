"""The module of the first change that landed beside that of today: what they tell each other, and files of one that
the other loads. How to go from one to the other stands in docs/OPERATIONS.md.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from harness.limits import SOON_SECONDS, eventually
from harness.payload import dump
from harness.replicas import AT_ONCE, is_linked
from harness.replies import lock_info, owner_of, waiters_of
from harness.server import MODULE, ROOT, StartFailed
from harness.wire import refused

pytestmark = pytest.mark.timeout(600)  # the old module may have to be built

OWNER = "\x01\u00e9 o"
NO_PREAMBLE = ("--appendonly", "yes", "--aof-use-rdb-preamble", "no")
PREAMBLE = ("--appendonly", "yes")
SNAPSHOT = ()


@pytest.fixture(scope="session")
def old():
    """The path of the old module."""
    built = subprocess.run([ROOT / "scripts" / "old-module"], stdout=subprocess.PIPE, text=True, check=True)
    return Path(built.stdout.strip())


@pytest.fixture(params=["old first", "new first"])
def both(request, old):
    """The two modules, in both orders: of the one that decides or writes, and of the one that follows or loads."""
    return (old, MODULE) if request.param == "old first" else (MODULE, old)


@pytest.fixture
def pair(start_server, both):
    """A primary and its replica, each with the other module."""
    primary = start_server(*AT_ONCE, module=both[0])
    replica = start_server(*AT_ONCE, "--replicaof", f"127.0.0.1 {primary.port}", module=both[1])
    is_linked(replica)
    return primary, replica


def version(server):
    """Which commit the server's module is of."""
    return server.info("redislock")["redislock_commit"]


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
    assert version(primary) != version(replica)
    use_locks(primary)
    follows(replica, primary)
    assert_the_same(primary, replica)
    assert "malformed" not in replica.log_text() and "sending an error" not in replica.log_text()


def test_a_replica_that_comes_late_loads_the_same_and_goes_on(start_server, both):
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


def test_an_old_replica_goes_on_when_the_way_out_is_called_off(start_server, old):
    primary = start_server(*AT_ONCE)
    replica = start_server("--replicaof", f"127.0.0.1 {primary.port}", module=old)
    is_linked(replica)
    cli = primary.connect()
    cli("LOCK.ACQUIRE door alice PX 600000")
    cli("CONFIG SET redislock.leaving yes")
    eventually(lambda: primary.info("redislock")["redislock_leaving"] == "locks-left", "it leaves")
    cli("LOCK.RELEASE door alice")
    cli("CONFIG SET redislock.leaving no")
    use_locks(primary)
    follows(replica, primary)
    assert_the_same(primary, replica)


# Files


@pytest.mark.parametrize("options", [SNAPSHOT, PREAMBLE, NO_PREAMBLE], ids=["rdb", "preamble", "no preamble"])
@pytest.mark.parametrize("is_rewritten", [False, True], ids=["grown", "rewritten"])
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


# What is not possible


NEW_KINDS = (
    "LOCK.ACQUIRE shared alice PX 600000 SHARED",
    "LOCK.ACQUIRE limited alice PX 600000 LIMIT 2",
    "LOCK.ACQUIRE kept alice PX 600000 KEEPALIVE",
)


@pytest.mark.parametrize("command", NEW_KINDS)
def test_an_old_replica_lacks_what_it_does_not_know_until_it_has_the_new_module(start_server, old, command):
    primary = start_server(*AT_ONCE)
    replica = start_server("--replicaof", f"127.0.0.1 {primary.port}", module=old)
    is_linked(replica)
    cli = primary.connect()
    cli(command)
    for n in range(5):
        cli("LOCK.ACQUIRE", f"plain:{n}", "alice", "PX", 600000)
    follows(replica, primary)
    assert replica.admin("DBSIZE") == 5
    assert replica.admin("DEBUG DIGEST") != cli("DEBUG DIGEST")
    eventually(lambda: "malformed redislock record" in replica.log_text(), "its log says so")
    replica.stop()
    # Without a file to start from all it has comes from its primary. (It keeps what it was sent when it attached.)
    (replica.directory / "dump.rdb").unlink(missing_ok=True)
    replica.module = MODULE
    replica.start()
    is_linked(replica)
    follows(replica, primary)
    assert replica.admin("DEBUG DIGEST") == cli("DEBUG DIGEST")


@pytest.mark.parametrize("command", NEW_KINDS)
def test_the_old_module_refuses_a_file_with_what_it_does_not_know(start_server, old, command):
    server = start_server()
    server.connect()(command)
    server.admin("SAVE")
    server.stop()
    server.module = old
    with pytest.raises(StartFailed) as failure:
        server.start()
    assert "its kind is not known to this module" in str(failure.value)
    server.module = MODULE
    server.start()
    assert server.admin("DBSIZE") == 1


def test_the_old_module_refuses_settings_that_it_does_not_know(start_server, old):
    with pytest.raises(StartFailed) as failure:
        start_server(config="loadmodule MODULE\nredislock.confirm local\n", module=old)
    log = str(failure.value)  # Redis 7.0 does not say which
    assert "redislock.confirm" in log or "Module Configuration detected without loadmodule directive" in log


# The script


@pytest.mark.once
def test_a_clone_without_its_history_is_told_what_to_do(tmp_path):
    clone = tmp_path / "clone"
    origin = f"file://{ROOT}"
    subprocess.run(["git", "clone", "-q", "--depth", "1", "--no-checkout", origin, clone], check=True)
    (clone / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "old-module", clone / "scripts")
    built = subprocess.run(
        [clone / "scripts" / "old-module"], capture_output=True, text=True, timeout=SOON_SECONDS
    )
    assert built.returncode != 0 and "git fetch --unshallow" in built.stderr
