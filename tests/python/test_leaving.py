"""The way out (redislock.leaving): when no lock is granted any more, and when files load without the module."""

import shutil
import time

import pytest

from harness.limits import A_WHILE_SECONDS, eventually
from harness.payload import dump
from harness.replicas import AT_ONCE, is_linked
from harness.replies import holder, module_info, owner_of, queue_of, waiters_of
from harness.server import StartFailed, at_least
from harness.wire import ServerError, refused

# Data that this server must write into every file, until it is started with the setting.
CAN_LEAVE_AT_ONCE = at_least(redis=(7, 2), valkey=(7, 2))
NO_PREAMBLE = ("--appendonly", "yes", "--aof-use-rdb-preamble", "no")
PREAMBLE = ("--appendonly", "yes")
SNAPSHOT = ()
REFUSAL = "grants no lock any more: redislock.leaving is yes"


def leave(cli):
    """Begins to leave."""
    assert cli("CONFIG SET redislock.leaving yes") == "OK"


def says(cli, word):
    """Waits until INFO says that the way out is this far."""
    eventually(lambda: module_info(cli)["leaving"] == word, word)


def write_file(server):
    """Has the server write the file that it starts from, and waits for it."""
    if server.admin("CONFIG GET appendonly")[1] == "no":
        server.admin("SAVE")
        return
    before = aof_files(server)
    server.admin("BGREWRITEAOF")
    eventually(lambda: aof_files(server).isdisjoint(before), "the append-only file is rewritten")


def aof_files(server):
    """The append-only files in use that are not empty of commands."""
    manifest = (server.directory / "appendonlydir" / "appendonly.aof.manifest").read_text()
    return {line.split()[1] for line in manifest.splitlines()}


def without_module(start_server, server, *options):
    """Starts a server without the module from the files of another one, which is stopped."""
    server.stop()
    bare = start_server(*options, with_module=False)
    bare.stop()
    shutil.rmtree(bare.directory / "appendonlydir", ignore_errors=True)
    for name in ("dump.rdb", "appendonlydir"):
        source = server.directory / name
        if source.is_dir():
            shutil.copytree(source, bare.directory / name)
        elif source.exists():
            shutil.copy(source, bare.directory / name)
    return bare.start()


# Empty parts are left out


@pytest.mark.skipif(not CAN_LEAVE_AT_ONCE, reason="this server asks for each file")
@pytest.mark.parametrize("options", [SNAPSHOT, PREAMBLE, NO_PREAMBLE])
@pytest.mark.parametrize("setting", ["max-wait 1000", "quarantine 60000"])
def test_files_load_without_the_module_as_long_as_no_lock_was_ever_taken(start_server, options, setting):
    server = start_server(*options, module_arguments=setting.split())
    cli = server.connect()
    cli("SET note text")
    assert cli("LOCK.RELEASE door alice") == 0 and cli("LOCK.RENEW door alice PX 1000") == 0
    assert cli("LOCK.FENCE door") is None and cli("LOCK.HELDBY alice") == []
    with refused("WRONGTYPE"):
        cli("LOCK.ACQUIRE note alice PX 1000")
    write_file(server)
    bare = without_module(start_server, server, *options)
    assert bare.admin("GET note") == "text"


@pytest.mark.parametrize("options", [SNAPSHOT, PREAMBLE, NO_PREAMBLE])
def test_files_of_a_server_that_does_not_leave_need_the_module(start_server, options):
    # Or the tests of the way out would prove nothing.
    server = start_server(*options)
    cli = server.connect()
    cli("LOCK.ACQUIRE door alice PX 60000")
    cli("LOCK.RELEASE door alice")
    write_file(server)
    if options == NO_PREAMBLE:
        files = (server.directory / "appendonlydir").glob("appendonly.aof.*")
        eventually(lambda: any(b"LOCK.TICK" in file.read_bytes() for file in files), "the tick is there")
    with pytest.raises(StartFailed) as failure:
        without_module(start_server, server, *options)
    assert "AUX module data" in str(failure.value) or "LOCK.TICK" in str(failure.value)


# The way out


@pytest.mark.parametrize("options", [SNAPSHOT, PREAMBLE, NO_PREAMBLE])
def test_files_of_a_server_that_left_load_without_the_module(start_server, options):
    server = start_server(*options)
    cli = server.connect()
    cli("SET note text")
    cli("LOCK.ACQUIRE door alice PX 60000")
    cli("LOCK.ACQUIRE gate bob PX 60000 SHARED")
    leave(cli)
    says(cli, "locks-left")
    cli("LOCK.RELEASE door alice")
    cli("DEL gate")
    if not CAN_LEAVE_AT_ONCE:
        says(cli, "restart-needed")
        server.module_arguments = ["leaving", "yes"]
        if options == SNAPSHOT:
            server.admin("SAVE")
        server.stop()
        server.start()
        cli = server.connect()
    says(cli, "done")
    eventually(lambda: "files that are written from now on load without" in server.log_text(), "the log says so")
    write_file(server)
    bare = without_module(start_server, server, *options)
    assert bare.admin("GET note") == "text" and bare.admin("DBSIZE") == 1


@pytest.mark.skipif(CAN_LEAVE_AT_ONCE, reason="this server can leave at once")
def test_where_a_restart_is_needed_the_log_says_so_and_the_setting_stays(start_server):
    server = start_server(module_arguments=["leaving", "yes"])
    cli = server.connect()
    assert cli("CONFIG SET redislock.leaving yes") == "OK"
    with refused("ERR", "restart the server"):
        cli("CONFIG SET redislock.leaving no")
    assert cli("CONFIG GET redislock.leaving") == ["redislock.leaving", "yes"]
    other = start_server()
    cli = other.connect()
    for value in ("yes", "no", "yes"):
        assert cli("CONFIG", "SET", "redislock.leaving", value) == "OK"
    eventually(lambda: "until it is restarted with redislock.leaving yes" in other.log_text(), "the log says so")


@pytest.mark.parametrize("form", ["argument", "line"])
def test_a_server_can_start_on_its_way_out(start_server, form):
    line = " leaving yes\n" if form == "argument" else "\nredislock.leaving yes\n"
    server = start_server(config=f"loadmodule MODULE{line}")
    cli = server.connect()
    says(cli, "done")
    with refused("ERR", REFUSAL):
        cli("LOCK.ACQUIRE door alice PX 60000")


def test_no_lock_is_granted_on_the_way_out_and_holds_continue(cli):
    token = cli("LOCK.ACQUIRE door alice PX 60000 REENTRANT")
    reader = cli("LOCK.ACQUIRE hall alice PX 60000 SHARED")
    cli("LOCK.ACQUIRE hall bob PX 60000 SHARED")
    leave(cli)
    for command in (
        "LOCK.ACQUIRE gate alice PX 60000",
        "LOCK.ACQUIRE gate * PX 60000",
        "LOCK.ACQUIRE door bob PX 60000",
        "LOCK.ACQUIRE door bob PX 60000 BLOCK 0",
        "LOCK.ACQUIRE door bob PX 60000 QUEUE 60000",
        "LOCK.ACQUIRE hall carol PX 60000 SHARED",
        "LOCK.ACQUIRE pool alice PX 60000 LIMIT 2",
        "LOCK.MACQUIRE 2 gate yard alice PX 60000",
        "LOCK.MACQUIRE 2 gate yard alice PX 60000 BLOCK 0",
    ):
        with refused("ERR", REFUSAL):
            cli(command)
    with refused("LOCKHELD"):
        cli("LOCK.ACQUIRE hall alice PX 60000")
    # A reply may have got lost.
    assert cli("LOCK.ACQUIRE door alice PX 60000") == token
    assert cli("LOCK.ACQUIRE hall alice PX 60000 SHARED") == reader
    assert cli("LOCK.ACQUIRE door alice PX 60000 REENTRANT") == token
    assert holder(cli, "door")["count"] == 2
    assert cli("LOCK.RENEW door alice PX 50000") == 1
    assert cli("LOCK.FENCE", "door", token) == 1
    assert cli("LOCK.EXEC", "door", token, "SET", "note", "text") == "OK"
    assert cli("LOCK.RELEASE door alice") == 1 and cli("LOCK.RELEASE door alice") == 1
    assert cli("LOCK.RELEASE hall alice") == 1 and cli("LOCK.RELEASE hall bob") == 1
    assert cli("SCAN 0 TYPE redislock")[1] == []


def test_waiters_are_answered_and_places_dropped_on_the_way_out(server, cli):
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    cli("LOCK.ACQUIRE hall alice PX 60000")
    waiting = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    several = server.ask("LOCK.MACQUIRE 2 hall yard carol PX 60000 BLOCK 0")
    cli("LOCK.ACQUIRE door dave PX 60000 QUEUE 60000")
    assert queue_of(cli, "door") == ["bob", "dave"]
    leave(cli)
    for request in (waiting, several):
        with refused("ERR", REFUSAL):
            request.answer()
    eventually(lambda: waiters_of(cli, "door") == 0, "the place is dropped")
    assert cli("LOCK.FENCE door") == token
    cli("LOCK.RELEASE door alice")
    assert cli("EXISTS door") == 0
    assert module_info(cli)["waiters"] == "0"


def test_waiters_are_answered_while_the_server_is_paused(server, cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    waiting = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    cli("CLIENT PAUSE 100000 WRITE")
    leave(cli)
    with refused("ERR", REFUSAL):
        waiting.answer()
    cli("CLIENT UNPAUSE")
    cli("DEL door")
    says(cli, "done" if CAN_LEAVE_AT_ONCE else "restart-needed")


def test_a_lease_ends_on_the_way_out_and_no_waiter_follows(server, cli):
    cli("LOCK.ACQUIRE door alice PX 300")
    leave(cli)
    eventually(lambda: cli("EXISTS door") == 0, "the lease has ended")
    says(cli, "done" if CAN_LEAVE_AT_ONCE else "restart-needed")


def test_what_is_restored_on_the_way_out_stands_in_the_way(cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    payload = dump(cli, "door")
    leave(cli)
    cli("DEL door")
    cli("RESTORE", "door", 0, payload)
    says(cli, "locks-left")
    assert owner_of(cli, "door") == "alice"
    cli("RENAME door gate")
    # An empty lock is one that the file has, too.
    says(cli, "locks-left")
    assert cli("SCAN 0 TYPE redislock")[1] == ["gate"]
    cli("DEL gate")
    says(cli, "done" if CAN_LEAVE_AT_ONCE else "restart-needed")


# Values that are left


@pytest.fixture
def payloads(cli):
    """Values for RESTORE at the key a: a plain lock, one that is shared, and an empty one."""
    found = {}
    for kind, option in (("plain", ""), ("shared", "SHARED")):
        cli(f"LOCK.ACQUIRE a bob PX 600000 {option}")
        found[kind] = dump(cli, "a")
        cli("DEL a")
    cli("RESTORE", "b", 0, found["plain"])
    return found | {"empty": dump(cli, "b")}


@pytest.fixture
def leaving(start_server):
    """A server that leaves from its start, so that Redis 7.0 needs no restart for it."""
    return start_server(module_arguments=["leaving", "yes"])


@pytest.mark.parametrize("kind, step", [("shared", "RENAME a b"), ("shared", "MOVE a 1"), ("plain", "SWAPDB 0 1")])
def test_done_is_not_said_while_a_value_is_left_that_no_lock_stands_for(start_server, leaving, payloads, kind, step):
    cli = leaving.connect()
    cli("RESTORE", "a", 0, payloads[kind])
    cli(step)
    time.sleep(A_WHILE_SECONDS)
    says(cli, "locks-left")
    write_file(leaving)
    with pytest.raises(StartFailed):
        without_module(start_server, leaving)
    cli = leaving.start().connect()
    says(cli, "locks-left")
    cli("FLUSHALL")
    says(cli, "done")
    cli("SET note text")
    write_file(leaving)
    bare = without_module(start_server, leaving)
    assert bare.admin("GET note") == "text" and bare.admin("DBSIZE") == 1


def test_each_value_is_counted_once_however_it_comes_and_goes(start_server, leaving, payloads):
    replica = start_server("--repl-diskless-load", "swapdb", module_arguments=["leaving", "yes"])
    cli = leaving.connect()
    replica.admin("REPLICAOF", "127.0.0.1", leaving.port)
    is_linked(replica)

    def put(kind, *options, ttl=0):
        assert cli("RESTORE", "a", ttl, payloads[kind], *options) == "OK"

    def everywhere(word):
        says(cli, word)
        says(replica.admin, word)

    everywhere("done")
    for kind in payloads:
        ways = [
            *(("DEL a",), ("UNLINK a",)),
            *(("SET a text", "DEL a"), ("PEXPIRE a 1",)),
            *(("FLUSHALL SYNC",), ("FLUSHALL ASYNC",)),
            ("SWAPDB 0 1", "FLUSHALL ASYNC"),
            ("RENAME a b", "DEL b"),
            ("MOVE a 1", "SWAPDB 0 1", "DEL a"),
            ("RESTORE",),
            ("DEBUG RELOAD", "DEL a"),
        ]
        for way in ways:
            put(kind)
            with refused("ERR"):
                cli("COPY a b")
            everywhere("locks-left")
            for step in way[:-1]:
                cli(step)
                says(cli, "done" if step.startswith("SET") else "locks-left")
            put(kind, "REPLACE", "ABSTTL", ttl=1) if way == ("RESTORE",) else cli(way[-1])
            everywhere("done")
    put("shared")
    assert cli("LOCK.RELEASE a bob") == 1
    everywhere("done")
    with refused("ERR"):
        cli("RESTORE", "a", 0, payloads["plain"][:-1] + bytes([payloads["plain"][-1] ^ 1]))
    everywhere("done")


@pytest.mark.parametrize("load", ["disabled", "swapdb"])
def test_values_of_a_whole_data_set_are_counted_where_a_replica_loads_it(start_server, leaving, payloads, load):
    replica = start_server("--repl-diskless-load", load, module_arguments=["leaving", "yes"])
    cli, here = leaving.connect(), replica.connect()
    for db, payload in enumerate(payloads.values()):
        for server in (leaving, replica):
            server.connect(db=db)("RESTORE", "a", 0, payload)
    for _ in range(2):
        # The second time it has all of it, and loads it again.
        cli("DEBUG CHANGE-REPL-ID")
        replica.admin("REPLICAOF", "127.0.0.1", leaving.port)
        is_linked(replica)
        replica.admin("REPLICAOF NO ONE")
    for db, _ in enumerate(payloads):
        says(here, "locks-left")
        assert replica.connect(db=db)("DEL a") == 1
    says(here, "done")


# And back


def test_locks_are_granted_again_with_higher_tokens_once_called_off(server, cli):
    before = cli("LOCK.ACQUIRE door alice PX 60000")
    leave(cli)
    eventually(lambda: "leaving: no lock is granted any more" in server.log_text(), "the log says so")
    cli("LOCK.RELEASE door alice")
    cli("CONFIG SET redislock.leaving no")
    assert cli("LOCK.ACQUIRE door alice PX 60000") > before
    says(cli, "no")
    eventually(lambda: "leaving: it is called off" in server.log_text(), "the log says so")


def test_a_server_that_comes_back_mints_by_the_wall_clock(start_server):
    # G4: the known tokens are lost; time is not.
    server = start_server(module_arguments=["leaving", "yes"])
    server.admin("SAVE")
    server.stop()
    server.module_arguments = []
    server.start()
    cli = server.connect()
    before = time.time_ns() // 1000
    assert before <= cli("LOCK.ACQUIRE door alice PX 60000") <= time.time_ns() // 1000


@pytest.mark.parametrize("is_chained", [False, True])
def test_replicas_count_the_same_tokens_after_it_was_called_off(start_server, is_chained):
    # G13: the base of readers' counts was forgotten on purpose, also in the files that they load.
    primary = start_server(*AT_ONCE)
    first = start_server(*AT_ONCE, "--replicaof", f"127.0.0.1 {primary.port}")
    is_linked(first)
    source = first if is_chained else primary
    cli = primary.connect()
    cli("LOCK.ACQUIRE door alice PX 60000")
    for server in (primary, first):
        leave(server.admin)
    cli("DEL door")
    late = start_server(*AT_ONCE, "--replicaof", f"127.0.0.1 {source.port}")
    is_linked(late)
    for server in (primary, first):
        server.admin("CONFIG SET redislock.leaving no")
    tokens = {f"door:{n}": cli("LOCK.ACQUIRE", f"door:{n}", "alice", "PX", "60000") for n in range(20)}
    for replica in (first, late):
        eventually(lambda: replica.admin("DBSIZE") == 20, "the replica has them")
        assert {name: replica.admin("LOCK.FENCE", name) for name in tokens} == tokens
        assert replica.admin("DEBUG DIGEST") == cli("DEBUG DIGEST")


@pytest.mark.skipif(not CAN_LEAVE_AT_ONCE, reason="see the next test")
def test_a_replica_that_leaves_before_its_primary_keeps_what_it_counts_from(start_server):
    primary = start_server(*AT_ONCE)
    replica = start_server(*AT_ONCE, "--replicaof", f"127.0.0.1 {primary.port}")
    is_linked(replica)
    cli = primary.connect()
    cli("LOCK.ACQUIRE door alice PX 60000")
    leave(replica.admin)
    cli("DEL door")
    says(replica.admin, "primary-stays")
    eventually(lambda: "the primary of this replica still grants" in replica.log_text(), "the log says so")
    late = start_server("--replicaof", f"127.0.0.1 {replica.port}")
    is_linked(late)
    tokens = [cli("LOCK.ACQUIRE", f"door:{n}", "alice", "PX", "60000") for n in range(20)]
    eventually(lambda: late.admin("DBSIZE") == 20, "it has them")
    assert [late.admin("LOCK.FENCE", f"door:{n}") for n in range(20)] == tokens


def test_a_replica_is_free_of_the_module_when_its_primary_and_itself_are(start_server):
    primary = start_server(*AT_ONCE)
    replica = start_server("--replicaof", f"127.0.0.1 {primary.port}", module_arguments=["leaving", "yes"])
    is_linked(replica)
    cli = primary.connect()
    cli("LOCK.ACQUIRE door alice PX 60000")
    eventually(lambda: replica.admin("EXISTS door") == 1, "the replica has it")
    leave(cli)
    cli("LOCK.RELEASE door alice")
    says(replica.admin, "done")
    cli("SET note text")
    eventually(lambda: replica.admin("GET note") == "text", "the replica has it")
    write_file(replica)
    bare = without_module(start_server, replica)
    assert bare.admin("GET note") == "text"


def test_a_replica_without_the_module_can_attach_when_its_primary_has_left(start_server):
    primary = start_server(*AT_ONCE)
    cli = primary.connect()
    cli("LOCK.ACQUIRE door alice PX 60000")
    cli("LOCK.RELEASE door alice")
    leave(cli)
    if not CAN_LEAVE_AT_ONCE:
        cli("SAVE")
        primary.stop()
        primary.module_arguments = ["leaving", "yes"]
        primary.start()
        cli = primary.connect()
    says(cli, "done")
    cli("SET note text")
    bare = start_server("--replicaof", f"127.0.0.1 {primary.port}", with_module=False)
    is_linked(bare)
    assert bare.admin("GET note") == "text"
    for command in ("LOCK.RELEASE door alice", "LOCK.RENEW door alice PX 1000", "LOCK.FENCE door", "BGREWRITEAOF"):
        cli(command)
    with refused("ERR", REFUSAL):
        cli("LOCK.ACQUIRE door alice PX 60000")
    cli("SET note other")
    eventually(lambda: bare.admin("GET note") == "other", "the stream goes on")
    assert "unknown command" not in bare.log_text().lower()


def test_a_promoted_server_that_leaves_grants_nothing(start_server):
    primary = start_server(*AT_ONCE)
    replica = start_server("--replicaof", f"127.0.0.1 {primary.port}", module_arguments=["leaving", "yes"])
    is_linked(replica)
    token = primary.connect()("LOCK.ACQUIRE door alice PX 60000")
    eventually(lambda: replica.admin("EXISTS door") == 1, "the replica has it")
    replica.admin("REPLICAOF NO ONE")
    cli = replica.connect()
    assert cli("LOCK.FENCE door") == token
    with refused("ERR", REFUSAL):
        cli("LOCK.ACQUIRE gate bob PX 60000")
    assert cli("LOCK.RENEW door alice PX 60000") == 1 and cli("LOCK.RELEASE door alice") == 1
    says(cli, "done")


def test_a_promoted_server_that_does_not_leave_grants_with_higher_tokens(start_server):
    primary = start_server(*AT_ONCE)
    replica = start_server("--replicaof", f"127.0.0.1 {primary.port}")
    is_linked(replica)
    cli = primary.connect()
    before = cli("LOCK.ACQUIRE door alice PX 60000")
    leave(cli)
    cli("SET note text")
    eventually(lambda: replica.admin("GET note") == "text", "the replica is there")
    replica.admin("REPLICAOF NO ONE")
    assert replica.connect()("LOCK.ACQUIRE gate bob PX 60000") > before


def test_the_quarantine_changes_nothing_on_the_way_out(start_server):
    server = start_server(module_arguments=["leaving", "yes", "quarantine", "100"])
    cli = server.connect()
    with refused("ERR", REFUSAL):
        cli("LOCK.ACQUIRE door alice PX 100")
    eventually(lambda: "quarantine: it is over" in server.log_text(), "the quarantine is over")
    with refused("ERR", REFUSAL):
        cli("LOCK.ACQUIRE door alice PX 100 BLOCK 0")
    says(cli, "done")


def test_a_quiet_server_that_has_left_writes_nothing(start_server):
    server = start_server(*PREAMBLE, module_arguments=["leaving", "yes"])
    cli = server.connect()
    says(cli, "done")
    before = server.info("replication")["master_repl_offset"]
    write_file(server)
    time.sleep(A_WHILE_SECONDS)
    assert server.info("replication")["master_repl_offset"] == before
    with pytest.raises(ServerError):
        cli("LOCK.TICK 1 0")
