"""LOCK.EXEC and its keys: the rights that it requires (CONTRACT 2: the rights of the caller, keys, maxmemory)."""

import pytest

from harness.replies import module_info
from harness.wire import ServerError, refused


@pytest.fixture
def token(cli):
    """The token of alice's lock."""
    return cli("LOCK.ACQUIRE door alice PX 3600000")


def user(server, *rules):
    """A connection of bob, with just these rights."""
    server.admin("ACL", "SETUSER", "bob", "reset", "on", ">secret", *rules)
    connection = server.connect()
    connection("AUTH bob secret")
    return connection


# Rights


def test_a_user_needs_the_right_to_both_commands(server, cli, token):
    run = ("LOCK.EXEC", "door", token)
    bob = user(server, "~*", "+lock.exec", "+get", "+incr")
    assert bob(*run, "INCR", "x") == 1
    assert bob(*run, "GET", "x") == "1"
    for words in (["SET", "x", "5"], ["DEL", "door"], ["FLUSHALL"]):
        with refused("NOPERM"):
            bob(*run, *words)
    bob = user(server, "~*", "+get", "+incr")
    with refused("NOPERM", "lock.exec"):
        bob(*run, "GET", "x")
    assert cli("GET x") == "1"
    assert cli("LOCK.FENCE", "door", token) == 1


def test_the_token_comes_first_where_the_user_may_see_the_lock(server, cli, token):
    bob = user(server, "~mine:*", "~door", "+@all")
    before = module_info(cli)["fenced"]
    with refused("NOPERM"):
        bob("LOCK.EXEC", "door", token, "SET", "x", "1")
    with refused("NOPERM"):
        bob("LOCK.EXEC", "gate", token, "SET", "mine:x", "1")
    assert module_info(cli)["fenced"] == before
    with refused("FENCED"):
        bob("LOCK.EXEC", "door", token + 1, "SET", "x", "1")
    assert cli("EXISTS x") == 0


def test_a_user_needs_the_right_to_every_key(server, cli, token):
    bob = user(server, "~mine:*", "%R~door", "+@all")
    run = ("LOCK.EXEC", "door", token)
    assert bob(*run, "MSET", "mine:a", "1", "mine:b", "2") == "OK"
    for words in (
        ["SET", "x", "1"],
        ["MSET", "mine:a", "1", "x", "1"],
        ["RENAME", "mine:a", "x"],
        ["COPY", "mine:a", "x"],
        ["SORT", "mine:a", "STORE", "x"],
        ["SUNIONSTORE", "x", "mine:a"],
        ["DEL", "door"],
        ["XREAD", "STREAMS", "x", "0"],
    ):
        with refused("NOPERM"):
            bob(*run, *words)
    assert sorted(cli("KEYS *")) == ["door", "mine:a", "mine:b"]


@pytest.mark.parametrize("kind, can_read, can_write", [("%R", 1, 0), ("%W", 0, 1), ("%RW", 1, 1)])
def test_a_user_needs_the_right_kind_of_access(server, token, kind, can_read, can_write):
    bob = user(server, f"{kind}~x", "%R~door", "+@all")
    run = ("LOCK.EXEC", "door", token)
    for words, may in (
        (["SET", "x", "1"], can_write),
        (["GET", "x"], can_read),
        (["GETSET", "x", "2"], can_read and can_write),
        (["SET", "x", "3", "GET"], can_read and can_write),
    ):
        if may:
            bob(*run, *words)
            continue
        with refused("NOPERM"):
            bob(*run, *words)


def test_reading_the_lock_is_enough(server, token):
    for pattern, may in (("%R~door", True), ("%W~door", False), ("%R~gate", False)):
        bob = user(server, pattern, "~x", "+@all")
        if may:
            assert bob("LOCK.EXEC", "door", token, "SET", "x", "1") == "OK"
            continue
        with refused("NOPERM"):
            bob("LOCK.EXEC", "door", token, "SET", "x", "1")


def test_rules_of_subcommands_and_channels(server, token):
    bob = user(server, "~*", "&news", "+lock.exec", "+object|encoding", "+publish")
    run = ("LOCK.EXEC", "door", token)
    assert bob(*run, "OBJECT", "ENCODING", "nowhere") is None
    assert bob(*run, "PUBLISH", "news", "m") == 0
    for words in (["OBJECT", "FREQ", "nowhere"], ["PUBLISH", "olds", "m"]):
        with refused("NOPERM"):
            bob(*run, *words)


def test_scripts_run_exec_with_the_rights_of_their_user(server, cli, token):
    bob = user(server, "~mine:*", "~door", "+eval", "+lock.exec", "+incr")
    script = "return redis.call('LOCK.EXEC', KEYS[1], ARGV[1], unpack(ARGV, 2))"
    call = ("EVAL", script, 1, "door", token)
    assert bob(*call, "INCR", "mine:x") == 1
    for words in (["INCR", "x"], ["SET", "mine:x", "7"], ["FLUSHALL"]):
        with pytest.raises(ServerError) as error:
            bob(*call, *words)
        assert any(word in error.value.line.lower() for word in ("permission", "can't run", "can't access"))
    assert cli("KEYS *") != [] and cli("GET mine:x") == "1"


def test_a_transaction_asks_for_rights_when_it_runs(server, cli, token):
    bob = user(server, "~*", "+multi", "+exec", "+lock.exec", "+incr")
    assert bob("MULTI") == "OK"
    assert bob("LOCK.EXEC", "door", token, "INCR", "x") == "QUEUED"
    assert bob("LOCK.EXEC", "door", token, "DEL", "x") == "QUEUED"
    cli("ACL SETUSER bob -incr")
    assert [reply.code for reply in bob("EXEC")] == ["NOPERM", "NOPERM"]
    assert cli("EXISTS x") == 0


def test_refusals_stand_in_the_servers_log_of_them(server, cli, token):
    bob = user(server, "~*", "+lock.exec")
    with refused("NOPERM"):
        bob("LOCK.EXEC", "door", token, "FLUSHALL")
    entry = cli("ACL LOG 1")[0]
    entry = dict(zip(entry[::2], entry[1::2]))
    assert (entry["username"], entry["object"]) == ("bob", "flushall")
    cli("ACL LOG RESET")


# Keys


@pytest.mark.parametrize("line", ["SET x 1", "MSET a 1 b 2", "PING", "SET", "NOPE x", "LOCK.RELEASE gate alice"])
def test_the_server_knows_the_key_of_the_lock_alone(cli, line):
    # Newer servers ask on threads of theirs, and crash over any module that they ask there for keys.
    assert cli(f"COMMAND GETKEYS LOCK.EXEC door 5 {line}") == ["door"]
    assert cli(f"COMMAND GETKEYSANDFLAGS LOCK.EXEC door 5 {line}") == [["door", ["RO", "access"]]]


def test_as_many_keys_as_anybody_has(cli, token):
    words = [word for n in range(50_000) for word in (f"key:{n}", n)]
    assert cli("LOCK.EXEC", "door", token, "MSET", *words) == "OK"
    assert cli("DBSIZE") == 50_001


# Refusals of the server


def test_maxmemory_holds(cli, token):
    cli("SET x 1")
    cli("CONFIG SET maxmemory 1")
    for words in (["SET", "x", "2"], ["APPEND", "x", "2"], ["RPUSH", "l", "a"]):
        with refused("OOM"):
            cli("LOCK.EXEC", "door", token, *words)
    assert cli("LOCK.EXEC", "door", token, "GET", "x") == "1"
    assert cli("LOCK.EXEC", "door", token, "DEL", "x") == 1
    with refused("FENCED"):
        cli("LOCK.EXEC", "door", 5, "SET", "x", "2")


def test_maxmemory_holds_in_transactions_and_scripts(cli, token):
    cli("CONFIG SET maxmemory 1")
    _, queued, replies = cli.pipeline(
        "MULTI", ("LOCK.EXEC", "door", token, "SET", "x", "2"), "EXEC"
    )
    # Redis 7.0 refuses every command that is queued.
    assert (replies[0] if queued == "QUEUED" else queued).code == "OOM"
    script = "return redis.call('LOCK.EXEC', KEYS[1], ARGV[1], 'SET', 'x', 'y')"
    with pytest.raises(ServerError) as error:
        cli("EVAL", script, 1, "door", token)
    assert "OOM" in error.value.line
    assert cli("EXISTS x") == 0


def test_no_writes_without_enough_replicas(cli, token):
    cli("CONFIG SET min-replicas-to-write 1")
    for words in (["SET", "x", "2"], ["GET", "x"]):
        with refused("NOREPLICAS"):
            cli("LOCK.EXEC", "door", token, *words)
    script = "return redis.call('LOCK.EXEC', KEYS[1], ARGV[1], 'SET', 'x', 'y')"
    with pytest.raises(ServerError) as error:
        cli("EVAL", script, 1, "door", token)
    assert "NOREPLICAS" in error.value.line
    cli("CONFIG SET min-replicas-to-write 0")
    assert cli("EXISTS x") == 0


def test_exec_waits_while_writes_are_paused(server, cli, token):
    cli("CLIENT PAUSE 60000 WRITE")
    waiting = server.ask("LOCK.EXEC", "door", token, "GET", "x")
    assert waiting.waits()
    cli("CLIENT UNPAUSE")
    assert waiting.answer() is None


# All commands that it may run


@pytest.mark.timeout(180)
def test_no_command_of_the_server_harms_exec(start_server):
    # G14: every command there is, with arguments that mean something to some of them
    server = start_server()
    cli = server.connect()
    shapes = [
        [],
        ["door"],
        ["x", "y"],
        ["door", "0"],
        ["2", "x", "door"],
        ["door", "1", "x", "2"],
        ["x", "y", "door", "-1", "BLOCK"],
        ["GROUP", "g", "c", "STREAMS", "door", "x"],
    ]
    names = [name.split("|") for name in cli("COMMAND LIST")]
    for info in cli("COMMAND"):
        names += [sub[0].split("|") for sub in info[9]]
    assert len(names) > 300
    for name in names:
        for shape in shapes:
            (token,) = cli.pipeline("LOCK.ACQUIRE door alice PX 3600000")
            if not isinstance(token, int):
                cli("DEL door")
                token = cli("LOCK.ACQUIRE door alice PX 3600000")
            words = ("LOCK.EXEC", "door", token, *name, *shape)
            keys, _ = cli.pipeline(("COMMAND", "GETKEYS", *words), words)
            assert keys[0] == "door", words
    assert cli("PING") == "PONG"
    assert server.admin("CLIENT LIST").count("\n") == 2
