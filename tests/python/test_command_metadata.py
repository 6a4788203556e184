"""The server's metadata of the commands (CONTRACT 8): COMMAND INFO, DOCS, GETKEYS, DENY rules of scripts.
"""

import pytest

from harness.replies import as_map
from harness.wire import refused

COMMANDS = {
    # The arity is the least that the server itself refuses: the parser reports further missing words after the key.
    #
    # name: (arity, flags it has, flags it has not, access of its key)
    "lock.acquire": (-2, {"write", "denyoom", "blocking"}, {"readonly"}, "RW"),
    "lock.release": (-2, {"write"}, {"readonly", "denyoom", "blocking"}, "RW"),
    "lock.renew": (-2, {"write"}, {"readonly", "denyoom", "blocking"}, "RW"),
    "lock.fence": (-2, {"readonly"}, {"write", "denyoom", "blocking"}, "RO"),
    "lock.info": (-2, {"readonly"}, {"write", "denyoom", "blocking"}, "RO"),
}
# Commands whose keys are elsewhere: name, arity, flags it has, arguments.
OTHERS = {
    "lock.macquire": (-2, {"write", "denyoom", "blocking"}, ["numkeys", "key", "owner", "PX", "BLOCK", "SHARED"]),
    "lock.heldby": (2, {"readonly"}, ["owner"]),
}
KEYED = [
    "LOCK.ACQUIRE door alice PX 60000",
    "LOCK.ACQUIRE door alice PX 60000 BLOCK 0",
    "LOCK.RELEASE door alice",
    "LOCK.RENEW door alice PX 60000",
    "LOCK.FENCE door",
    "LOCK.FENCE door 5",
    "LOCK.INFO door",
    "LOCK.INFO door FULL",
    "LOCK.MACQUIRE 1 door alice PX 60000",
]


@pytest.mark.parametrize("name", COMMANDS)
def test_command_info_tells_arity_flags_and_keys(cli, name):
    arity, has, has_not, access = COMMANDS[name]
    (info,) = cli("COMMAND", "INFO", name)
    assert info[0] == name
    assert info[1] == arity
    flags = set(info[2])
    assert has <= flags, flags
    assert not has_not & flags, flags
    assert "movablekeys" not in flags
    assert info[3:6] == [1, 1, 1], "first key, last key, step"
    (spec,) = [as_map(spec) for spec in info[8]]
    assert access in spec["flags"], spec
    assert as_map(spec["begin_search"])["type"] == "index"
    assert as_map(as_map(spec["begin_search"])["spec"])["index"] == 1


@pytest.mark.parametrize("name", OTHERS)
def test_commands_whose_keys_are_elsewhere_have_metadata_too(cli, name):
    arity, has, words = OTHERS[name]
    (info,) = cli("COMMAND", "INFO", name)
    assert info[1] == arity
    assert has <= set(info[2])
    docs = as_map(cli("COMMAND", "DOCS", name)[1])
    assert len(docs["summary"]) > 20 and docs["complexity"].startswith("O(")
    for word in words:
        assert f"'{word}'" in str(docs["arguments"]), word


def test_the_keys_of_macquire_have_access_flags(cli):
    keys = cli("COMMAND GETKEYSANDFLAGS LOCK.MACQUIRE 2 door gate alice PX 60000")
    assert [key for key, _ in keys] == ["door", "gate"]
    for _, flags in keys:
        assert {"RW", "access", "update"} <= set(flags)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_flags_that_acl_categories_follow(cli, name):
    (info,) = cli("COMMAND", "INFO", name)
    categories = set(info[6])
    if categories:  # Redis 7.0 has none for commands of modules
        assert ("@write" in categories) == ("write" in COMMANDS[name][1])
        assert ("@read" in categories) == ("readonly" in COMMANDS[name][1])


@pytest.mark.parametrize("name", COMMANDS)
def test_command_docs_are_complete(cli, name):
    reply = cli("COMMAND", "DOCS", name)
    assert reply[0] == name
    docs = as_map(reply[1])
    assert len(docs["summary"]) > 20
    assert docs["since"][0].isdigit()
    assert docs["complexity"].startswith("O(")
    assert docs["group"]
    arguments = [as_map(argument) for argument in docs["arguments"]]
    assert arguments[0]["name"] == "key"
    assert arguments[0]["type"] == "key"
    assert arguments[0]["key_spec_index"] == 0
    words = {
        "lock.acquire": ["owner", "PX", "EX", "BLOCK", "QUEUE", "SHARED", "LIMIT", "KEEPALIVE"],
        "lock.release": ["owner", "TOKEN"],
        "lock.renew": ["owner", "PX", "EX", "TOKEN"],
        "lock.fence": ["token"],
        "lock.info": ["FULL", "COUNT"],
    }[name]
    told = str(docs["arguments"])
    for word in words:
        assert f"'{word}'" in told, (word, told)


def test_there_are_no_other_commands_of_the_module(cli):
    # Commands that replication uses are not for clients. (Without arguments LOCK.TICK is
    # how the module asks the server whether it takes writes: it does nothing.)
    listed = set(cli("COMMAND LIST FILTERBY MODULE redislock"))
    known = {*COMMANDS, *OTHERS}
    assert known <= listed
    for name in listed - known:
        for size in range(1, 8):
            arguments = ["door", "HOLD", 5, 60000, "alice", 6, 7][:size]
            with refused("ERR"):
                cli(name, *arguments)
            in_script = f"return redis.call('{name}', unpack(ARGV))"
            with refused("ERR"):
                cli("EVAL", in_script, 0, *arguments)
            cli("MULTI")
            cli.pipeline((name, *arguments))
            (reply,) = cli.pipeline("EXEC")
            assert isinstance(reply, Exception) or isinstance(reply[0], Exception), reply
    assert cli("DBSIZE") == 0


@pytest.mark.parametrize("command", KEYED)
def test_command_getkeys(cli, command):
    assert cli(f"COMMAND GETKEYS {command}") == ["door"]


@pytest.mark.parametrize("command", ["LOCK.FENCE door", "LOCK.INFO door"])
def test_readonly_scripts_may_ask(cli, command):
    cli("LOCK.ACQUIRE door alice PX 60000")
    words = ", ".join(f"'{word}'" for word in command.split())
    assert cli("EVAL_RO", f"return redis.call({words})", 1, "door") is not None


@pytest.mark.parametrize(
    "command",
    [
        "LOCK.ACQUIRE door alice PX 60000",
        "LOCK.RELEASE door alice",
        "LOCK.RENEW door alice PX 60000",
    ],
)
def test_readonly_scripts_may_not_change(cli, command):
    words = ", ".join(f"'{word}'" for word in command.split())
    with refused("ERR"):
        cli("EVAL_RO", f"return redis.call({words})", 1, "door")
    assert cli("DBSIZE") == 0


def test_a_whole_session_in_one_script(cli):
    # Acquire, ask, renew and release in one atomic step
    script = """
        local token = redis.call('LOCK.ACQUIRE', KEYS[1], 'alice', 'PX', 60000)
        local fence = redis.call('LOCK.FENCE', KEYS[1], token)
        local renewed = redis.call('LOCK.RENEW', KEYS[1], 'alice', 'PX', 60000)
        local again = redis.call('LOCK.ACQUIRE', KEYS[1], 'alice', 'PX', 60000)
        local other = redis.call('LOCK.ACQUIRE', KEYS[1], 'bob', 'PX', 60000)
        local released = redis.call('LOCK.RELEASE', KEYS[1], 'alice', 'TOKEN', token)
        return {fence, renewed, again == token, other, released}
    """
    assert cli("EVAL", script, 1, "door") == [1, 1, 1, None, 1]
    assert cli("DBSIZE") == 0


def test_a_whole_session_in_one_transaction(cli):
    replies = cli.pipeline(
        "MULTI",
        "LOCK.ACQUIRE door alice PX 60000",
        "LOCK.ACQUIRE door bob PX 60000",
        "LOCK.RENEW door alice PX 60000",
        "LOCK.RELEASE door alice",
        "LOCK.ACQUIRE door bob PX 60000",
        "EXEC",
    )[-1]
    first, refused_, renewed, released, second = replies
    assert (refused_, renewed, released) == (None, 1, 1)
    assert second > first


def test_an_error_inside_a_transaction_is_in_its_place(cli):
    replies = cli.pipeline(
        "MULTI",
        "LOCK.ACQUIRE door alice PX 0",
        "LOCK.ACQUIRE door alice PX 60000",
        "EXEC",
    )[-1]
    assert replies[0].code == "ERR"
    assert isinstance(replies[1], int)


def test_monitor_and_slowlog_show_lock_commands_as_any(server, cli):
    cli("CONFIG SET slowlog-log-slower-than 0")
    cli("LOCK.ACQUIRE door alice PX 60000")
    logged = [entry[3] for entry in cli("SLOWLOG GET 10")]
    assert ["LOCK.ACQUIRE", "door", "alice", "PX", "60000"] in logged
    assert "lock.acquire" in server.admin("INFO commandstats")
