"""A replica loads its primary's data set instead of its own, never alongside it.

With repl-diskless-load swapdb it would load alongside the old data. The module does not ask for that, so the server
receives a file first, and loads it.
"""

import pytest

from harness.limits import eventually
from harness.proxy import Proxy
from harness.replicas import AT_ONCE, is_linked
from harness.replies import module_info
from harness.wire import refused

LONG = "PX 600000"

PRIMARY = (*AT_ONCE, "--repl-diskless-sync", "yes", "--rdbcompression", "no")
SWAPS = ("--repl-diskless-load", "swapdb", "--loading-process-events-interval-bytes", "1024")


@pytest.fixture
def net(primary):
    """The network between the two, which can be cut."""
    proxy = Proxy(primary.port)
    yield proxy
    proxy.close()


@pytest.fixture
def primary(start_server):
    server = start_server(*PRIMARY)
    # A data set that takes its time.
    server.connect().pipeline(*(f"SET filler-{number} {'x' * 5000}" for number in range(250)))
    return server


def has_it_all(primary, replica):
    def offset(server):
        return int(server.info("replication")["master_repl_offset"])

    eventually(lambda: offset(replica) == offset(primary), "it has all")


@pytest.mark.parametrize("load", ["disabled", "on-empty-db", "swapdb"])
def test_what_was_loaded_takes_the_place_of_the_old_locks(start_server, primary, load):
    # G13, G4
    replica = start_server("--repl-diskless-load", load)
    newest = replica.admin(f"LOCK.ACQUIRE old bob {LONG}")
    for owner in ("ann", "cat"):
        newest = max(newest, primary.admin(f"LOCK.ACQUIRE room {owner} {LONG} SHARED"))
    token = primary.admin(f"LOCK.ACQUIRE door ann {LONG}")
    replica.admin("REPLICAOF", "127.0.0.1", primary.port)
    is_linked(replica)
    has_it_all(primary, replica)
    assert ("Skipping diskless-load" in replica.log_text()) == (load == "swapdb")
    assert replica.admin("DEBUG DIGEST") == primary.admin("DEBUG DIGEST")
    assert (replica.admin("LOCK.FENCE door"), replica.admin("LOCK.FENCE old")) == (token, None)
    info = module_info(replica.admin)
    assert (info["locks"], info["holds"]) == ("2", "3")
    replica.admin("REPLICAOF NO ONE")
    assert replica.admin(f"LOCK.ACQUIRE door eve {LONG}") is None
    assert replica.admin(f"LOCK.ACQUIRE old eve {LONG}") > max(newest, token)


def test_a_link_that_breaks_before_all_is_received_leaves_the_old_locks(start_server, primary, net):
    replica = start_server(*SWAPS)
    token = replica.admin(f"LOCK.ACQUIRE old bob {LONG}")
    primary.admin(f"LOCK.ACQUIRE door ann {LONG}")
    primary.admin("CONFIG SET rdb-key-save-delay 10000")
    replica.admin("REPLICAOF", "127.0.0.1", net.port)

    def received():
        return int(replica.info("replication").get("master_sync_read_bytes", 0))

    eventually(lambda: received() > 100_000, "a part is received", pause=0.01)
    assert replica.admin("LOCK.FENCE old") == token
    net.cut()
    eventually(lambda: replica.info("replication")["master_sync_in_progress"] == "0", "it is given up")
    assert (replica.admin("LOCK.FENCE old"), replica.admin("LOCK.FENCE door")) == (token, None)
    replica.admin("REPLICAOF NO ONE")
    assert replica.admin(f"LOCK.ACQUIRE old eve {LONG}") is None


def test_no_lock_can_be_read_while_a_data_set_is_loaded(start_server, primary):
    replica = start_server(*SWAPS, "--key-load-delay", "10000")
    replica.admin(f"LOCK.ACQUIRE old bob {LONG}")
    replica.admin("REPLICAOF", "127.0.0.1", primary.port)
    eventually(lambda: replica.info("persistence")["loading"] == "1", "it loads", pause=0.01)
    with refused("LOADING"):
        replica.admin("LOCK.FENCE old")
    replica.admin("CONFIG SET key-load-delay 0")
    is_linked(replica)
    assert replica.admin("LOCK.FENCE old") is None


def test_a_lock_is_known_by_its_database(start_server):
    # G1, G6, G13
    primary, replica = start_server(*PRIMARY), start_server(*SWAPS)
    there, here = primary.connect(db=1), replica.connect(db=1)
    there(f"LOCK.ACQUIRE door ann {LONG}")
    there(f"LOCK.ACQUIRE room cat {LONG} SHARED")
    there("LOCK.ACQUIRE window bob PX 1000")
    replica.admin(f"LOCK.ACQUIRE old bob {LONG}")
    replica.admin("REPLICAOF", "127.0.0.1", primary.port)
    is_linked(replica)
    primary.admin(f"LOCK.ACQUIRE other ann {LONG}")
    primary.admin("FLUSHDB")
    has_it_all(primary, replica)
    replica.admin("REPLICAOF NO ONE")
    assert here(f"LOCK.ACQUIRE door eve {LONG}") is None
    assert here(f"LOCK.ACQUIRE room eve {LONG}") is None
    assert replica.ask(f"LOCK.ACQUIRE window eve {LONG} BLOCK 0", db=1).answer() > 0
