"""From 0.1.0 to the module of today and back: locks of all kinds, in the stream and in files (docs/OPERATIONS.md)."""

import subprocess
from pathlib import Path

import pytest

from harness.kinds import owners_of, take
from harness.limits import eventually
from harness.replicas import AT_ONCE, is_linked
from harness.samples import LOCKS
from harness.server import MODULE, ROOT
from harness.walk import assert_same_leases, leases_of, locks_of, walk
from harness.wire import refused

pytestmark = pytest.mark.timeout(600)  # the old module may have to be built

NO_PREAMBLE = ("--appendonly", "yes", "--aof-use-rdb-preamble", "no")
PREAMBLE = ("--appendonly", "yes")
SNAPSHOT = ()


@pytest.fixture(scope="session")
def old():
    """The path of the module of 0.1.0."""
    build = [ROOT / "scripts" / "old-module", "0.1.0"]
    return Path(subprocess.run(build, stdout=subprocess.PIPE, text=True, check=True).stdout.strip())


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
    assert primary.info("redislock")["redislock_version"] != replica.info("redislock")["redislock_version"]
    return primary, replica


def follows(replica, primary):
    """Waits until the replica has all that its primary has written, and the same locks. Digests do not tell: 0.1.0 has
    another one for a plain lock than the module before it and after it."""
    offset = int(primary.info("replication")["master_repl_offset"])
    eventually(lambda: int(replica.info("replication")["slave_repl_offset"]) >= offset, "the replica has caught up")
    databases = range(len(LOCKS))
    expected = [locks_of(primary.connect(db=db)) for db in databases]
    assert [locks_of(replica.connect(db=db)) for db in databases] == expected
    for db in databases:
        assert_same_leases(leases_of(primary.connect(db=db)), leases_of(replica.connect(db=db)))
    assert "malformed" not in replica.log_text() and "sending an error" not in replica.log_text()


def test_a_replica_follows_through_everything_that_can_happen_to_locks(pair):
    primary, replica = pair
    steps = 0
    for _ in walk(primary):
        follows(replica, primary)
        steps += 1
    assert steps > 30


def test_holders_of_all_kinds_go_on_after_the_failover(pair):
    primary, replica = pair
    for db, make in enumerate(LOCKS.values()):
        make(primary.connect(db=db))
    held = [owners_of(primary.connect(db=db), "door") for db in range(len(LOCKS))]
    waiting = primary.ask("LOCK.ACQUIRE door zoe PX 600000 BLOCK 0")
    follows(replica, primary)
    primary.admin("FAILOVER", "TO", "127.0.0.1", replica.port)
    with refused("UNBLOCKED"):
        waiting.answer()
    eventually(lambda: replica.info("replication")["role"] == "master", "it is the primary")
    for db, owners in enumerate(held):
        cli = replica.connect(db=db)
        assert owners_of(cli, "door") == owners
        assert all(cli("LOCK.RENEW", "door", owner, "PX", 600000) == 1 for owner in owners)
    is_linked(primary)
    follows(primary, replica)


@pytest.mark.parametrize("options", [SNAPSHOT, PREAMBLE, NO_PREAMBLE], ids=["rdb", "preamble", "no preamble"])
@pytest.mark.parametrize("is_rewritten", [False, True], ids=["grown", "rewritten"])
def test_files_of_one_version_are_loaded_by_the_other(start_server, both, options, is_rewritten):
    server = start_server(*options, module=both[0])
    tokens = []
    for db, make in enumerate(LOCKS.values()):
        make(server.connect(db=db))
        tokens.append(server.admin("LOCK.FENCE door") if db == 0 else server.connect(db=db)("LOCK.FENCE door"))
    if is_rewritten and options:
        server.admin("BGREWRITEAOF")
        eventually(lambda: server.info("persistence")["aof_rewrite_in_progress"] == "0", "it is rewritten")
        tokens.append(take(server.connect(), "behind", "alice"))
    server.admin("SAVE")
    held = [owners_of(server.connect(db=db), "door") for db in range(len(LOCKS))]
    server.stop()
    server.module = both[1]
    server.start()
    assert [owners_of(server.connect(db=db), "door") for db in range(len(LOCKS))] == held
    assert [server.connect(db=db)("LOCK.FENCE door") for db in range(len(LOCKS))] == tokens[: len(LOCKS)]
    assert take(server.connect(), "fresh", "alice") > max(tokens)
