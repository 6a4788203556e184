"""Servers on which `rename-command` has taken away a command that the module calls by name."""

import re

import pytest

from harness.cluster import Cluster
from harness.limits import SOON_SECONDS, eventually
from harness.replies import lock_info, owner_of
from harness.server import ROOT, StartFailed
from harness.wire import refused

NOT_TOLD = "a grant whose client disconnects before it is told lasts until its lease ends"
#: The server's commands that the module calls by name, and the log at load of a server without one. Others are not
#: logged: the cost of their absence in the table is time alone, or the setting that needs them is refused.
CALLED = {
    "CLIENT": NOT_TOLD,
    "CONFIG": NOT_TOLD,
    "COMMAND": "LOCK.EXEC is refused, because it cannot know which commands block",
    "CLUSTER": None,
    "EXISTS": None,
    "TOUCH": None,
    "MGET": None,
    "MODULE": None,
    "ROLE": None,
    "REPLCONF": None,
    "DEL": None,
    "PEXPIREAT": None,
}
#: Words of the sources that look like names of commands and are arguments, or words of errors.
WORDS = {"GET", "LIST", "ID", "MYID", "SLOTS", "INFO", "GETACK", "HOLD", "EMPTY", "ENDED", "OK", "SE"}


def without(*names):
    """A configuration without these commands."""
    return "loadmodule MODULE\n" + "".join(f'rename-command {name.lower()} ""\n' for name in names)


def waiter(server, cli, request, user=None):
    """A connection that waits with this request; the server may know no CLIENT."""
    connection = server.connect()
    if user is not None:
        connection("AUTH", user, "secret")
    before = lock_info(cli, "door")["waiters"]
    connection.send(request)
    eventually(lambda: lock_info(cli, "door")["waiters"] == before + 1, "it waits")
    return connection


@pytest.mark.once
def test_every_command_that_is_called_by_name_is_tried_here():
    sources = "".join(path.read_text() for path in (ROOT / "src" / "redis").glob("*.rs"))
    literals = set(re.findall(r'c?"([A-Z]{2,})"', sources))
    assert literals - WORDS == set(CALLED), "a command or word of the sources is not known here"
    table = (ROOT / "docs" / "reference" / "compatibility.md").read_text()
    assert not [name for name in CALLED if f"`{name}`" not in table]


@pytest.mark.parametrize("name", CALLED)
def test_locks_work_without_a_command(start_server, name):
    server = start_server(config=without(name))
    cli = server.connect()
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    bob = waiter(server, cli, "LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    assert cli("LOCK.RENEW door alice PX 60000") == 1 and cli("LOCK.FENCE door") == token
    assert cli("LOCK.MACQUIRE 2 gate hatch alice PX 60000") > token
    assert cli("LOCK.RELEASE door alice") == 1
    token = bob.read()
    if name == "COMMAND":
        with refused("ERR", "COMMAND", "rename-command"):
            cli(f"LOCK.EXEC door {token} SET stock 7")
    else:
        assert cli(f"LOCK.EXEC door {token} SET stock 7") == "OK"
    log = server.log_text()
    said = CALLED[name]
    assert f"{name} is renamed or disabled: {said}" in log if said else f"{name} is renamed" not in log


@pytest.mark.parametrize("name", ["CLIENT", "CONFIG"])
def test_a_grant_on_a_closed_connection_ends_with_its_lease(start_server, name):
    # G1: an unknown delivery counts as one that has arrived, or two would hold the lock
    server = start_server(config=without(name))
    cli = server.connect()
    cli("ACL SETUSER bob on >secret +@all ~* &*")
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = waiter(server, cli, "LOCK.ACQUIRE door bob PX 300 BLOCK 0", user="bob")
    carol = waiter(server, cli, "LOCK.ACQUIRE door carol PX 60000 BLOCK 0")
    assert cli.pipeline("MULTI", "ACL DELUSER bob", "LOCK.RELEASE door alice", "EXEC")[-1] == [1, 1]
    assert bob.is_closed(SOON_SECONDS)
    assert carol.read() > 0 and owner_of(cli, "door") == "carol"


@pytest.mark.parametrize("name", ["ROLE", "REPLCONF"])
def test_confirm_is_refused_if_replicas_cannot_be_asked(start_server, name):
    words = ["redislock.group-size", 2, "redislock.quarantine", 1000, "redislock.confirm"]
    cli = start_server(config=without(name)).connect()
    for rule in ("all", "majority"):
        with refused("ERR", "redislock.confirm", name, "rename-command"):
            cli("CONFIG", "SET", *words, rule)
    assert cli("CONFIG", "SET", *words, "local") == "OK"
    with pytest.raises(StartFailed, match=f"redislock.confirm .* {name}"):
        arguments = "MODULE confirm all group-size 2 quarantine 1000"
        start_server(config=without(name).replace("MODULE", arguments))


@pytest.mark.parametrize("name", ["DEL", "PEXPIREAT"])
def test_strings_are_no_locks_if_their_end_cannot_be_replicated(start_server, name):
    cli = start_server(config=without(name)).connect()
    with refused("ERR", "redislock.legacy-strings", name, "rename-command"):
        cli("CONFIG SET redislock.legacy-strings yes")
    assert cli("CONFIG GET redislock.legacy-strings")[1] == "no"
    with pytest.raises(StartFailed, match=f"redislock.legacy-strings .* {name}"):
        start_server(config=without(name).replace("MODULE", "MODULE legacy-strings yes"))


def test_exec_runs_nothing_that_may_block_if_the_server_cannot_be_asked(start_server, neighbour_path):
    cli = start_server(config=without("COMMAND") + f"loadmodule {neighbour_path}\n").connect()
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    for command in ("NEIGHBOUR.BLOCK", "BLPOP list 0", "GET stock"):
        with refused("ERR", "COMMAND"):
            cli(f"LOCK.EXEC door {token} {command}")
    assert cli("PING") == "PONG"


@pytest.mark.parametrize("names", [["EXISTS"], ["EXISTS", "TOUCH"], ["EXISTS", "TOUCH", "MGET"]], ids=len)
def test_several_keys_in_a_cluster_are_looked_at_by_what_there_is(start_server, names):
    cluster = Cluster(start_server, config=without(*names))
    node = cluster.nodes[0]
    cli = node.connect()
    token = cli("LOCK.ACQUIRE {b}door alice PX 60000")
    both = f"LOCK.EXEC {{b}}door {token} RENAME {{b}}x {{b}}y"
    cli("SET {b}x 1")
    if len(names) < 3:
        assert cli(both) == "OK"
        assert cli("LOCK.MACQUIRE 2 {b}gate {b}hatch alice PX 60000") > token
        assert "are renamed" not in node.log_text()
    else:
        assert "EXISTS, TOUCH and MGET are renamed or disabled" in node.log_text()


def test_a_node_of_a_cluster_says_that_it_cannot_name_others(start_server):
    config = "loadmodule MODULE\nrename-command CLUSTER NODES\n"
    server = start_server("--cluster-enabled", "yes", config=config)
    cli = server.connect()
    cli("NODES ADDSLOTSRANGE 0 16383")
    eventually(lambda: "cluster_state:ok" in cli("NODES INFO"), "it is up")
    assert cli("LOCK.ACQUIRE door alice PX 60000") > 0
    bob = waiter(server, cli, "LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    assert cli("LOCK.RELEASE door alice") == 1 and bob.read() > 0
    said = "CLUSTER is renamed or disabled: waiters whose slot has moved are answered TRYAGAIN instead of MOVED"
    assert said in server.log_text()
