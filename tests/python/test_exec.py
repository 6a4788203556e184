"""LOCK.EXEC: a command that runs if a token is live, and only then (CONTRACT 2).

Users and keys: test_exec_rights.py. Replicas, files, clusters: test_exec_elsewhere.py.
"""

import os
import re

import pytest

from harness.limits import eventually
from harness.payload import dump
from harness.replies import as_map, module_info, owner_of
from harness.server import IS_VALKEY, ROOT, at_least
from harness.wire import ServerError, refused

HAS_WAITAOF = at_least(redis=(7, 2), valkey=(7, 2))
HAS_VECTORS = not IS_VALKEY and at_least(redis=(8, 0), valkey=())


@pytest.fixture
def token(cli):
    """The token of alice's lock."""
    return cli("LOCK.ACQUIRE door alice PX 3600000")


def run(cli, token, *words, door="door"):
    """Runs the command under the token. One text alone is split at its blanks."""
    if len(words) == 1:
        words = words[0].split()
    return cli("LOCK.EXEC", door, token, *words)


def fenced(cli):
    """The number of commands that were refused."""
    return int(module_info(cli)["fenced"])


# The token


def test_a_command_runs_under_a_live_token(cli, token):
    assert run(cli, token, "SET x 1") == "OK"
    assert run(cli, token, "INCRBY x 41") == 42
    assert cli("GET x") == "42"


def test_a_command_does_not_run_after_a_release(cli, token):
    cli("LOCK.RELEASE door alice")
    before = fenced(cli)
    with refused("FENCED", str(token), "no live token"):
        run(cli, token, "SET x 1")
    assert cli("EXISTS x") == 0
    assert fenced(cli) == before + 1


def test_a_command_does_not_run_when_a_newer_token_is_live(cli, token):
    cli("LOCK.RELEASE door alice")
    newer = cli("LOCK.ACQUIRE door bob PX 60000")
    with refused("FENCED", str(token), "newer", str(newer)):
        run(cli, token, "SET x 1")
    assert run(cli, newer, "SET x 2") == "OK"
    assert cli("GET x") == "2"


def test_the_token_of_another_lock_is_not_live(cli, token):
    gate = cli("LOCK.ACQUIRE gate alice PX 60000")
    with pytest.raises(ServerError) as error:
        run(cli, gate, "SET x 1")
    assert error.value.code == "FENCED"
    assert "newer" not in error.value.line
    assert str(gate) in error.value.line and str(token) in error.value.line
    with refused("FENCED", "newer", str(gate)):
        run(cli, token, "SET x 1", door="gate")
    assert cli("EXISTS x") == 0


def test_a_command_does_not_run_after_the_lease(cli):
    token = cli("LOCK.ACQUIRE door alice PX 1")
    eventually(lambda: cli("DBSIZE") == 0, "the lease ends")
    with refused("FENCED", "no live token"):
        run(cli, token, "SET x 1")


def test_a_dead_token_lives_again_by_a_payload_of_its_time(cli, token):
    # docs/reference/guarantees.md, "LOCK.EXEC": the only way, for a user with the right to RESTORE
    payload = dump(cli, "door")
    cli("LOCK.RELEASE door alice")
    new = cli("LOCK.ACQUIRE door bob PX 3600000")
    with refused("FENCED"):
        run(cli, token, "INCR n")
    assert cli("RESTORE", "door", 0, payload, "REPLACE") == "OK"
    assert run(cli, token, "INCR n") == 1
    with refused("FENCED"):
        run(cli, new, "INCR n")


def test_a_lease_that_the_server_had_no_time_to_end_has_expired(cli):
    # Both commands come in one packet: nothing runs in between.
    token = cli("LOCK.ACQUIRE door alice PX 20")
    slept, answer = cli.pipeline(
        "DEBUG SLEEP 0.06", ("LOCK.EXEC", "door", token, "SET", "x", 1)
    )
    assert slept == "OK" and answer.code == "FENCED"
    assert cli("EXISTS x") == 0


@pytest.mark.parametrize("kind", ["SHARED", "LIMIT 2"])
def test_each_of_several_holders_may_run_a_command(cli, kind):
    first = cli(f"LOCK.ACQUIRE door alice PX 60000 {kind}")
    second = cli(f"LOCK.ACQUIRE door bob PX 60000 {kind}")
    assert run(cli, first, "INCR x") == 1
    assert run(cli, second, "INCR x") == 2
    cli("LOCK.RELEASE door alice")
    with refused("FENCED", "newer", str(second)):
        run(cli, first, "INCR x")
    assert run(cli, second, "INCR x") == 3
    third = cli(f"LOCK.ACQUIRE door carol PX 60000 {kind}")
    cli("LOCK.RELEASE door carol")
    with refused("FENCED", str(third), f"token {second}"):
        run(cli, third, "INCR x")


def test_a_key_that_is_no_lock_is_reported(cli):
    cli("SET door 1")
    before = fenced(cli)
    with refused("WRONGTYPE"):
        run(cli, 5, "SET x 1")
    assert fenced(cli) == before


def test_a_renamed_lock_has_no_holder(cli, token):
    cli("RENAME door gate")
    for door in ("door", "gate"):
        with refused("FENCED", "no live token"):
            run(cli, token, "SET x 1", door=door)


def test_asking_in_vain_is_no_miss_of_the_keyspace(server, cli, token):
    def counted():
        stats = server.info("stats")
        return stats["keyspace_hits"], stats["keyspace_misses"]

    before = counted()
    with refused("FENCED"):
        run(cli, 5, "PING", door="nowhere")
    assert run(cli, token, "PING") == "PONG"
    assert counted() == before
    assert cli("DBSIZE") == 1


def test_a_command_does_not_touch_the_lock(server, cli, token):
    # A client that watches the lock, or has its fence in a cache, is not disturbed.
    cli("WATCH door")
    assert run(server.connect(), token, "SET x 1") == "OK"
    assert cli.pipeline("MULTI", "LOCK.FENCE door", "EXEC")[-1] == [token]
    cli("WATCH x")
    assert run(server.connect(), token, "SET x 2") == "OK"
    assert cli.pipeline("MULTI", "LOCK.FENCE door", "EXEC")[-1] is None


# Input


@pytest.mark.parametrize("bad", ["0", "-1", "x", "", "1.5", "9007199254740992", "01", "+1", " 1"])
def test_an_invalid_token_is_refused(cli, token, bad):
    for words in (["SET", "x", "1"], ["NOPE"], ["LOCK.EXEC"]):
        with refused("ERR", "token must be an integer from 1 to 9007199254740991"):
            run(cli, bad, *words, "")
    assert cli("EXISTS x") == 0


def test_arguments_that_are_missing(cli):
    for line, told in {
        "LOCK.EXEC": "wrong number of arguments for 'lock.exec' command",
        "LOCK.EXEC door": "the token is missing: LOCK.EXEC key token command [arg ...]",
        "LOCK.EXEC door 5": "the command is missing: LOCK.EXEC key token command [arg ...]",
    }.items():
        with refused("ERR", told):
            cli(line)


@pytest.mark.parametrize(
    "words",
    [
        ["NOPE"],
        ["NOPE", "a", "b"],
        ["", "a"],
        [b"\xff\xfe\r\n+OK\r\n"],
        ["SET"],
        ["GET", "a", "b"],
        ["CONFIG"],
        ["OBJECT", "NOPE", "x"],
        ["SET", "x", "1", "NONSENSE"],
        ["LPUSH", "text", "a"],
        ["INCR", "text"],
    ],
    ids=ascii,
)
def test_an_error_of_the_command_is_the_servers_own(cli, token, words):
    cli("SET text a")
    words = [os.fsencode(word) for word in words]
    with pytest.raises(ServerError) as real:
        cli(*words)
    with pytest.raises(ServerError) as told:
        cli("LOCK.EXEC", "door", token, *words)
    # The quoting of an odd name, and the repetition of the arguments, differ.
    assert told.value.line.partition("'")[0] == real.value.line.partition("'")[0]
    assert cli("PING") == "PONG"


def test_a_name_with_a_zero_byte_is_unknown(cli, token):
    # Some servers would take it for what stands before that byte.
    for name in (b"SET\x00", b"\x00SET", b"SET\x00\r\n"):
        with refused("ERR", "unknown command"):
            cli("LOCK.EXEC", "door", token, name, "x", "1")
    assert cli("EXISTS x") == 0


# Commands that do not run


NOT_IN_SCRIPTS = [
    "MULTI",
    "EXEC",
    "DISCARD",
    "WATCH x",
    "UNWATCH",
    "SUBSCRIBE c",
    "PSUBSCRIBE c",
    "SSUBSCRIBE c",
    "UNSUBSCRIBE",
    "EVAL return(1) 0",
    "EVAL_RO return(1) 0",
    "EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0",
    "FCALL f 0",
    "FCALL_RO f 0",
    "SCRIPT FLUSH",
    "FUNCTION FLUSH",
    "AUTH nobody nothing",
    "HELLO 3",
    "RESET",
    "QUIT",
    "CLIENT KILL TYPE normal",
    "CLIENT REPLY OFF",
    "CLIENT TRACKING ON",
    "CONFIG SET maxmemory 1",
    "DEBUG SLEEP 0",
    "MONITOR",
    "SYNC",
    "PSYNC ? -1",
    "REPLICAOF NO ONE",
    "SHUTDOWN NOSAVE",
    "SAVE",
    "ACL SETUSER x",
    "MODULE LIST",
]
BLOCKING = [
    "BLPOP full 0",
    "BRPOP empty 0",
    "BLMOVE full other LEFT LEFT 0",
    "BRPOPLPUSH empty other 0",
    "BLMPOP 0 1 empty LEFT",
    "BZPOPMIN empty 0",
    "BZPOPMAX empty 0.001",
    "BZMPOP 0 1 empty MIN",
    "XREAD BLOCK 0 STREAMS s $",
    "XREADGROUP GROUP g c BLOCK 0 STREAMS s >",
]


@pytest.mark.parametrize("line", NOT_IN_SCRIPTS)
def test_what_scripts_may_not_run_is_refused(server, cli, token, line):
    with refused("ERR", "script"):
        run(cli, token, line)
    with refused("ERR", "script"):
        run(cli, token, line.swapcase())
    # The connection is unchanged.
    assert cli("PING") == "PONG"
    assert cli("LOCK.FENCE", "door", token) == 1


@pytest.mark.parametrize("line", BLOCKING)
def test_what_blocks_is_refused(cli, token, line):
    cli("RPUSH full 1 2 3")
    cli("XADD s 1-1 a b")
    cli("XGROUP CREATE s g 0")
    for _ in range(2):
        with refused("ERR", "block"):
            run(cli, token, line)
    with refused("ERR", "block"):
        run(cli, token, line.swapcase().replace("S >", "s >").replace("S $", "s $"))
    assert cli("LRANGE full 0 -1") == ["1", "2", "3"]


@pytest.mark.skipif(not HAS_VECTORS, reason="this server has no vector sets")
def test_vectors_are_not_searched_nor_added_on_a_thread(cli, token):
    # The server does not say of these commands that they can block.
    for number in range(3):
        cli(*"VADD v VALUES 2 1".split(), number, f"e{number}")
    for line in ("VSIM v ELE e1", "vsim v VALUES 2 1 1 COUNT 1", "VSIM v ELE NOTHREAD", "VADD v VALUES 2 1 7 e7 CAS"):
        with refused("ERR", "block"):
            run(cli, token, line)
    with refused("ERR", "block"):
        run(cli, token, *"VADD v VALUES 2 1 7 e7".split(), b"CAS\0")
    assert run(cli, token, "VADD v VALUES 2 1 8 NOTHREAD") == 1
    with refused("ERR", "block"):
        run(cli, token, "VSIM v ELE NOTHREAD COUNT 1")
    assert run(cli, token, "VSIM v ELE e1 COUNT 1 NOTHREAD") == ["e1"]
    assert run(cli, token, "VSIM v VALUES 2 1 0 NOTHREAD WITHSCORES COUNT 1")[0] == "e0"
    assert cli("VCARD v") == 4


@pytest.mark.parametrize("line", ["WAIT 1 0", "WAIT 99 0", "WAITAOF 1 1 0"])
def test_waiting_for_replicas_is_refused(cli, token, line):
    if line.startswith("WAITAOF") and not HAS_WAITAOF:
        pytest.skip("this server does not know it")
    with refused("ERR"):
        run(cli, token, line)


def test_streams_are_read_without_waiting(cli, token):
    cli("XADD s 1-1 a b")
    cli("XGROUP CREATE s block 0")
    entries = [["s", [["1-1", ["a", "b"]]]]]
    assert run(cli, token, "XREAD COUNT 1 STREAMS s 0") == entries
    assert run(cli, token, "XREAD STREAMS s $") is None
    assert run(cli, token, "XREADGROUP GROUP block block STREAMS s >") == entries


@pytest.mark.parametrize(
    "line",
    [
        "LOCK.EXEC door {token} SET x 1",
        "lock.exec door {token} SET x 1",
        "Lock.Acquire gate bob PX 1000",
        "LOCK.ACQUIRE gate bob PX 1000 BLOCK 0",
        "LOCK.MACQUIRE 1 gate bob PX 1000",
        "LOCK.RELEASE door alice",
        "LOCK.RENEW door alice PX 1",
        "LOCK.FENCE door",
        "lock.info door",
        "LOCK.HELDBY alice",
        "LOCK.APPLY gate 1 HOLD 5 60000 bob",
        "LOCK.TICK",
    ],
)
def test_commands_of_locks_are_refused(cli, token, line):
    line = line.format(token=token)
    with refused("ERR", "LOCK.EXEC", f"send '{line.split()[0]}' by itself"):
        run(cli, token, line)
    assert cli("KEYS *") == ["door"]
    assert owner_of(cli, "door") == "alice"


def test_a_command_nested_a_hundred_thousand_times(cli, token):
    deep = ["LOCK.EXEC", "door", token] * 100_000 + ["SET", "x", "1"]
    with refused("ERR"):
        cli(*deep)
    assert cli("COMMAND", "GETKEYS", *deep) == ["door"]
    assert cli("EXISTS x") == 0


# Replies


REPLIES = [
    ["PING"],
    ["SET", "text", "b", "GET"],
    ["GET", "text"],
    ["GET", "nowhere"],
    ["GET", "binary"],
    ["EXISTS", "text"],
    ["HGETALL", "hash"],
    ["HRANDFIELD", "hash", "1", "WITHVALUES"],
    ["SMEMBERS", "set"],
    ["ZSCORE", "zset", "a"],
    ["ZRANGE", "zset", "0", "-1", "WITHSCORES"],
    ["ZINCRBY", "zset", "0", "b"],
    ["LRANGE", "list", "0", "-1"],
    ["LRANGE", "nowhere", "0", "-1"],
    ["LPOP", "nowhere", "2"],
    ["XRANGE", "stream", "-", "+"],
    ["XINFO", "STREAM", "stream"],
    ["XREAD", "STREAMS", "stream", "0"],
    ["COMMAND", "INFO", "get", "nope"],
    ["INCR", "text"],
    ["LPUSH", "text", "1"],
    ["PUBLISH", "c", "m"],
    ["TYPE", "door"],
    ["OBJECT", "ENCODING", "list"],
]


@pytest.mark.parametrize("words", REPLIES, ids=" ".join)
@pytest.mark.parametrize("protocol", [2, 3])
def test_the_reply_is_the_commands_own(server, token, protocol, words):
    cli = server.connect(protocol)
    fill = (
        "SET text b",
        ("SET", "binary", b"\x00\r\n\xff"),
        "HSET hash a 1",
        "SADD set a",
        "ZADD zset 1.5 a inf b",
        "RPUSH list a b",
        "XADD stream 1-1 a b",
    )
    cli.pipeline(*fill)
    plain = cli.bytes_of(*words)
    assert cli.bytes_of("LOCK.EXEC", "door", token, *words) == plain


@pytest.mark.parametrize(
    "kind", ["map", "set", "double", "bool", "null", "verbatim", "big", "attribute", "list"]
)
@pytest.mark.parametrize("protocol", [2, 3])
def test_the_reply_of_another_modules_command_too(start_server, neighbour_path, protocol, kind):
    server = start_server("--loadmodule", neighbour_path)
    cli = server.connect(protocol)
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    plain = cli.bytes_of("NEIGHBOUR.REPLY", kind)
    assert not plain.startswith(b"-")
    assert cli.bytes_of("LOCK.EXEC", "door", token, "NEIGHBOUR.REPLY", kind) == plain
    assert cli("PING") == "PONG"


def test_a_large_reply(cli, token):
    cli("SET", "x", "y" * 3_000_000)
    assert cli.bytes_of("LOCK.EXEC", "door", token, "GET", "x") == cli.bytes_of("GET x")
    values = [f"value-{n}" for n in range(20_000)]
    assert run(cli, token, "RPUSH", "list", *values) == 20_000
    assert run(cli, token, "LRANGE list 0 -1") == values


# Other modules


def test_exec_does_not_run_within_itself_by_way_of_another_module(start_server, neighbour_path):
    cli = start_server("--loadmodule", neighbour_path).connect()
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    assert run(cli, token, "NEIGHBOUR.RUN SET x 1") == "OK"
    with refused("ERR", "within LOCK.EXEC"):
        run(cli, token, "NEIGHBOUR.RUN", "LOCK.EXEC", "door", token, "SET", "x", "2")
    assert cli("GET x") == "1"
    # A command that ran and was refused has ended: the next one runs.
    assert run(cli, token, "SET x 3") == "OK"
    # However deep it is written, it is refused at once.
    deep = ["LOCK.EXEC", "door", token, "NEIGHBOUR.RUN"] * 50_000 + ["SET", "x", "4"]
    with refused("ERR"):
        cli(*deep)
    assert cli("COMMAND", "GETKEYS", *deep) == ["door"]
    assert cli("GET x") == "3"


def test_a_hold_is_not_tied_to_what_another_module_calls_with(start_server, neighbour_path):
    # G10: Valkey 9 knows that client by its number, and it never closes
    cli = start_server("--loadmodule", neighbour_path).connect()
    cli("LOCK.ACQUIRE held alice PX 60000")
    for words in (
        "LOCK.ACQUIRE door bob PX 60000 KEEPALIVE",
        "LOCK.ACQUIRE door bob PX 60000 EPHEMERAL 0",
        "LOCK.ACQUIRE held alice PX 60000 KEEPALIVE",
    ):
        with refused("ERR", "another module's call"):
            cli("NEIGHBOUR.RUN", *words.split())
    assert cli("EXISTS door") == 0


@pytest.mark.skipif(not at_least((7, 2), (8, 0)), reason="no module can call a command that blocks")
@pytest.mark.parametrize("within", ["command", "transaction", "script"])
def test_another_modules_call_does_not_wait(start_server, neighbour_path, within):
    # CONTRACT 2: as if BLOCK were absent. In line it would be refused at its turn, as it is no user's.
    cli = start_server("--loadmodule", neighbour_path).connect()
    cli("LOCK.ACQUIRE door alice PX 60000")
    for words in ("LOCK.ACQUIRE door", "LOCK.MACQUIRE 2 door window"):
        call = f"NEIGHBOUR.PROMISE {words} bob PX 60000 BLOCK 0"
        if within == "command":
            assert cli(call) is None
        elif within == "transaction":
            assert cli.pipeline("MULTI", call, "EXEC")[-1] == [None]
        else:
            assert cli("EVAL", "return redis.call(unpack(ARGV))", 0, *call.split()) is None
        assert cli("LOCK.HELDBY bob") == []
    assert cli("LOCK.RELEASE door alice") == 1
    assert isinstance(cli("NEIGHBOUR.PROMISE LOCK.ACQUIRE door bob PX 60000 BLOCK 0"), int)


def test_a_command_that_blocks_is_refused_whatever_module_brought_it(start_server, neighbour_path):
    server = start_server("--enable-module-command", "yes")
    cli = server.connect()
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    with refused("ERR", "unknown command"):
        run(cli, token, "NEIGHBOUR.BLOCK")
    # The facts about a command are forgotten with the module that brought it.
    cli("MODULE", "LOAD", neighbour_path, "harmless")
    assert run(cli, token, "NEIGHBOUR.BLOCK") is None
    cli("MODULE UNLOAD neighbour")
    cli("MODULE", "LOAD", neighbour_path)
    for name in ("NEIGHBOUR.BLOCK", "neighbour.block", "NEIGHBOUR.BLOCK"):
        with refused("ERR", "block"):
            run(cli, token, name)
    assert run(cli, token, "NEIGHBOUR.REPLY set") == ["one"]
    cli("MODULE UNLOAD neighbour")
    with refused("ERR", "unknown command"):
        run(cli, token, "NEIGHBOUR.REPLY set")


# Transactions and scripts


def test_exec_runs_in_a_transaction(cli, token):
    replies = cli.pipeline(
        "MULTI",
        ("LOCK.EXEC", "door", token, "INCR", "x"),
        ("LOCK.EXEC", "door", token + 1, "INCR", "x"),
        ("LOCK.EXEC", "door", token, "BLPOP", "x", "0"),
        ("LOCK.EXEC", "door", token, "MULTI"),
        "LOCK.RELEASE door alice",
        ("LOCK.EXEC", "door", token, "INCR", "x"),
        "EXEC",
    )[-1]
    assert replies[0] == 1 and replies[4] == 1
    assert [reply.code for reply in replies[1:4]] == ["FENCED", "ERR", "ERR"]
    assert replies[5].code == "FENCED"
    assert cli("GET x") == "1"


def test_a_lease_can_end_between_two_commands_of_a_transaction(cli):
    token = cli("LOCK.ACQUIRE door alice PX 100")
    increment = ("LOCK.EXEC", "door", token, "INCR", "x")
    replies = cli.pipeline("MULTI", increment, "DEBUG SLEEP 0.2", increment, "EXEC")[-1]
    assert replies[0] == 1 or replies[0].code == "FENCED"  # on a slow machine
    assert replies[2].code == "FENCED"


def test_the_script_that_the_page_shows_does_all_or_nothing(cli, token):
    page = (ROOT / "docs" / "reference" / "commands" / "exec.md").read_text()
    (script,) = re.findall(r"```lua\n(.*?)```", page, re.DOTALL)
    call = ("EVAL", script, 3, "door", "total", "log")
    assert cli(*call, token) == 1
    with refused("FENCED"):
        cli(*call, token + 1)
    assert (cli("GET total"), cli("LRANGE log 0 -1")) == ("5", ["five"])


def test_exec_runs_in_a_script(cli, token):
    script = "return redis.call('LOCK.EXEC', KEYS[1], ARGV[1], unpack(ARGV, 2))"

    def call(*words):
        return cli("EVAL", script, 1, "door", token, *words)

    assert call("INCR", "x") == 1
    assert call("HSET", "h", "a", "b") == 1
    assert call("HGETALL", "h") == ["a", "b"]
    with refused("ERR", "script"):
        call("EVAL", "return 1", 0)
    with refused("ERR", "block"):
        call("BLPOP", "l", 0)
    cli("LOCK.RELEASE door alice")
    with refused("FENCED"):
        call("INCR", "x")
    assert cli("GET x") == "1"


def test_a_script_gets_maps_as_it_asked_for_them(cli, token):
    script = """
        redis.setresp(3)
        return redis.call('LOCK.EXEC', KEYS[1], ARGV[1], 'HGETALL', 'h')['map']['a']
    """
    cli("HSET h a b")
    assert cli("EVAL", script, 1, "door", token) == "b"


def test_a_script_that_may_not_write_may_not_run_exec(cli, token):
    script = "return redis.call('LOCK.EXEC', KEYS[1], ARGV[1], 'GET', 'x')"
    with refused("ERR"):
        cli("EVAL_RO", script, 1, "door", token)


# Its effect on the lock itself


ENDS_THE_HOLD = [
    "DEL door",
    "UNLINK door",
    "RENAME door elsewhere",
    "RENAMENX door elsewhere",
    "MOVE door 1",
    "FLUSHALL",
    "FLUSHALL ASYNC",
    "FLUSHDB SYNC",
    "SWAPDB 0 1",
    "PEXPIRE door -1",
    "PEXPIREAT door 1",
    "SUNIONSTORE door nothing",
]


@pytest.mark.parametrize("line", ENDS_THE_HOLD)
@pytest.mark.parametrize("is_waited_for", [False, True])
def test_a_command_may_end_the_hold(server, cli, token, line, is_waited_for):
    # G6: the next in line is granted
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0") if is_waited_for else None
    run(cli, token, line)
    with refused("FENCED"):
        run(cli, token, "SET x 1")
    if bob is None:
        assert cli("LOCK.FENCE door") is None
        return
    next_token = bob.answer()
    assert next_token > token
    assert run(cli, next_token, "SET x 1") == "OK"


@pytest.mark.parametrize(
    "line", ["SET door value", "SET door value GET", "COPY x door REPLACE", "RENAME x door"]
)
def test_a_command_may_overwrite_the_lock(cli, token, line):
    cli("SET x value")
    try:
        assert run(cli, token, line) in ("OK", 1)
        assert cli("GET door") == "value"
        with refused("WRONGTYPE"):
            run(cli, token, "SET y 1")
    except ServerError as error:  # SET ... GET
        assert error.code == "WRONGTYPE"
        assert cli("LOCK.FENCE", "door", token) == 1
    assert cli("EXISTS y") == 0


def test_a_command_may_give_the_lock_a_time_to_live(cli, token):
    assert run(cli, token, "PEXPIRE door 1") == 1
    eventually(lambda: cli("EXISTS door") == 0, "the server removes it")
    with refused("FENCED"):
        run(cli, token, "SET x 1")


def test_a_command_reads_the_lock_as_any_key(cli, token):
    with refused("WRONGTYPE"):
        run(cli, token, "GET door")
    assert run(cli, token, "TYPE door") == "redislock"
    assert run(cli, token, "EXISTS door") == 1
    assert cli("LOCK.FENCE", "door", token) == 1


# Its metadata


def test_command_info(cli):
    (info,) = cli("COMMAND INFO lock.exec")
    assert info[:2] == ["lock.exec", -2]
    assert "write" in info[2]
    assert not {"denyoom", "blocking", "readonly", "noscript", "movablekeys"} & set(info[2])
    (spec,) = [as_map(spec) for spec in info[8]]
    assert set(spec["flags"]) == {"RO", "access"}


def test_command_docs(cli):
    docs = as_map(cli("COMMAND DOCS lock.exec")[1])
    assert len(docs["summary"]) > 20 and docs["complexity"].startswith("O(1)")
    arguments = [as_map(argument) for argument in docs["arguments"]]
    assert [argument["name"] for argument in arguments] == ["key", "token", "command", "arg"]
    assert set(arguments[3]["flags"]) == {"optional", "multiple"}


def test_the_server_counts_both_commands(server, cli, token):
    cli("CONFIG RESETSTAT")
    run(cli, token, "INCR x")
    stats = server.info("commandstats")
    assert stats["cmdstat_lock.exec"].startswith("calls=1,")
    assert stats["cmdstat_incr"].startswith("calls=1,")
