"""Loads of the module that the server or the module itself refuses, each at another moment of the load."""

import pytest

from harness.limits import eventually
from harness.server import IS_VALKEY, MODULE, at_least
from harness.wire import refused

#: In each refused load. Its end is due while the server is observed.
QUARANTINE = ["CONFIG", "redislock.quarantine", "300"]

#: The causes of a refused load: words of MODULE LOADEX, or a rival that was loaded before with these arguments. In the
#: order of the load.
REFUSED_BY_WORDS = {
    "an unknown argument": [*QUARANTINE, "ARGS", "nonsense", "1"],
    "an argument without a value": [*QUARANTINE, "ARGS", "max-lease"],
    "a value out of range": [*QUARANTINE, "CONFIG", "redislock.max-lease", "1"],
    "settings that need each other": [*QUARANTINE, "CONFIG", "redislock.confirm", "all"],
}
REFUSED_BY_A_RIVAL = {
    "a taken command": ["command", "lock.release"],
    "the last command, taken": ["command", "lock.tick"],
    "a taken type": ["type", "redislock"],
    "no room in the event loop": ["files", "300"],
}
#: The server finds unknown words when the module is loaded: Valkey crashes then, and Redis 7.0 keeps the module.
UNKNOWN = [*QUARANTINE, "CONFIG", "redislock.legacy-strings", "yes", "CONFIG", "redislock.nonsense", "1"]


def load(cli, *words):
    """Loads the module under test by MODULE LOADEX."""
    return cli("MODULE", "LOADEX", MODULE, *words)


def names(cli):
    """The names of all modules."""
    return [module[module.index("name") + 1] for module in cli("MODULE LIST")]


def live_through_everything(server, cli, leaving):
    """Has the server do whatever could call a module that has registered itself: time passes, a client leaves, keys and
    databases change, it saves and loads, others look at it.
    """
    cli("DEBUG SLEEP 0.4")
    leaving.close()
    for command in ["SET a 1 PX 1", "DEL a", "SET b 2", "RENAME b c", "SWAPDB 0 1", "FLUSHDB", "SET d 4", "FLUSHALL ASYNC"]:
        cli(command)
    cli("CONFIG SET maxmemory-policy allkeys-lru")
    cli("CONFIG SET maxmemory-policy noeviction")
    cli("DEBUG RELOAD")
    cli("BGREWRITEAOF")
    eventually(lambda: "aof_rewrite_in_progress:0" in cli("INFO persistence"), "the child has ended")
    cli("REPLICAOF", "127.0.0.1", server.port)
    cli("REPLICAOF NO ONE")
    assert cli("INFO everything") and cli("COMMAND LIST") and cli("CONFIG GET *")


def assert_loads_with_defaults(server, cli):
    """The module can be loaded, and knows nothing of the load that was refused."""
    assert load(cli) == "OK"
    settings = cli("CONFIG GET redislock.*")
    settings = dict(zip(settings[::2], settings[1::2]))
    assert (settings["redislock.quarantine"], settings["redislock.max-lease"]) == ("0", "3600000")
    assert settings["redislock.legacy-strings"] == "no"
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    assert token > 0 and cli("LOCK.FENCE door") == token
    assert cli("LOCK.RELEASE door alice") == 1
    if at_least(redis=(8, 0), valkey=(8, 1)):
        cli("ACL SETUSER guest on nopass ~* +@redislock")
        guest = server.connect()
        guest("AUTH guest any")
        assert guest("LOCK.ACQUIRE door guest PX 60000") > token


@pytest.fixture
def bare(start_server):
    """A server without the module that loads modules."""
    return start_server("--enable-module-command", "yes", "--maxclients", "50", with_module=False)


@pytest.mark.parametrize("why", REFUSED_BY_WORDS)
def test_a_load_that_its_words_refuse_leaves_nothing_behind(bare, why):
    cli, leaving = bare.connect(), bare.connect()
    for _ in range(2):
        with refused("ERR", "error loading"):
            load(cli, *REFUSED_BY_WORDS[why])
    live_through_everything(bare, cli, leaving)
    assert "redislock" not in names(cli)
    assert_loads_with_defaults(bare, cli)


@pytest.mark.parametrize("why", REFUSED_BY_A_RIVAL)
def test_a_load_that_a_rival_prevents_leaves_nothing_behind(bare, rival_path, why):
    cli, leaving = bare.connect(), bare.connect()
    cli("MODULE", "LOAD", rival_path, *REFUSED_BY_A_RIVAL[why])
    for _ in range(2):
        with refused("ERR", "error loading"):
            load(cli, *QUARANTINE)
    if why != "no room in the event loop":
        live_through_everything(bare, cli, leaving)
    cli("DEBUG SLEEP 0.4")
    assert names(cli).count("rival") == 1 and "redislock" not in names(cli)


def test_a_second_load_changes_nothing(start_server):
    server = start_server("--enable-module-command", "yes")
    cli = server.connect()
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    with refused("ERR", "error loading"):
        load(cli, *QUARANTINE)
    assert cli("CONFIG GET redislock.quarantine")[1] == "0"
    assert cli("LOCK.FENCE door") == token and cli("LOCK.RELEASE door alice") == 1
    assert bob.answer() > token


@pytest.mark.skipif(IS_VALKEY, reason="Valkey crashes, whatever a module that has a type does: OPERATIONS says so")
def test_a_load_with_an_unknown_setting_ends_well(bare):
    cli, leaving = bare.connect(), bare.connect()
    with refused("ERR", "error loading"):
        load(cli, *UNKNOWN)
    live_through_everything(bare, cli, leaving)
    if at_least(redis=(8, 0), valkey=(99,)):
        assert "redislock" not in names(cli)
        assert_loads_with_defaults(bare, cli)
    else:
        # Redis 7.0 says that it unloads the module, and does not.
        assert names(cli) == ["redislock"]
        assert cli("LOCK.ACQUIRE door alice PX 300 BLOCK 15000") > 0
