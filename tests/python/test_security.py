"""The statements of docs/how-to/acl.md and docs/internals/security.md: recipes of rights, the actions of one client against
others, and the places where names and tokens show.

The page's own `ACL SETUSER` lines are executed here, on every server version.
"""

import pytest

from harness.limits import eventually
from harness.replies import owner_of, waiters_of
from harness.server import ROOT, at_least
from harness.wire import ServerError, encode, refused

RECIPES = [
    line for line in (ROOT / "docs" / "how-to" / "acl.md").read_text().splitlines() if line.startswith("ACL SETUSER ")
]

#: The rights of each user of the recipes, and its refusals. T is the token of lock:a.
RIGHTS = {
    "app": (
        """LOCK.ACQUIRE lock:b app PX 60000 BLOCK 10|LOCK.MACQUIRE 2 lock:c lock:e app PX 60000|LOCK.FENCE lock:a T
        LOCK.RENEW lock:b app PX 60000|LOCK.RELEASE lock:b app|PING|CLIENT TRACKING ON""",
        """LOCK.ACQUIRE data:x app PX 60000|LOCK.MACQUIRE 2 lock:d data:x app PX 60000|LOCK.INFO lock:a|DEL lock:a
        LOCK.HELDBY alice|LOCK.EXEC lock:a T GET data:x|SET lock:a x|EXPIRE lock:a 1|RENAME lock:a lock:z
        RESTORE lock:z 0 x|DUMP lock:a|KEYS *|SCAN 0|FLUSHALL|CONFIG GET maxmemory|CLIENT LIST|EVAL return(1) 0
        MONITOR|INFO redislock|DEBUG SLEEP 0|PSUBSCRIBE *""",
    ),
    "cluster-app": (
        """LOCK.ACQUIRE lock:b app PX 60000 BLOCK 10|LOCK.MACQUIRE 2 lock:c lock:e app PX 60000|LOCK.FENCE lock:a T
        LOCK.RENEW lock:b app PX 60000|LOCK.RELEASE lock:b app|PING|COMMAND COUNT|CLIENT TRACKING ON""",
        """LOCK.ACQUIRE data:x app PX 60000|LOCK.INFO lock:a|DEL lock:a|LOCK.HELDBY alice|SET lock:a x|KEYS *
        FLUSHALL|CONFIG GET maxmemory|CLIENT LIST|CLUSTER NODES|CLUSTER FORGET x|CLUSTER RESET|INFO redislock
        MONITOR|PSUBSCRIBE *""",
    ),
    "worker": (
        """LOCK.ACQUIRE lock:b worker PX 60000|LOCK.RENEW lock:b worker PX 60000|LOCK.RELEASE lock:b worker
        LOCK.FENCE lock:a T|PING|CLIENT TRACKING ON|LOCK.EXEC lock:a T SET data:x 1
        LOCK.EXEC lock:a T GET data:x|SET data:x 2|GET data:x""",
        """LOCK.EXEC lock:a T SET other:x 1|LOCK.EXEC lock:a T SET lock:a x|LOCK.EXEC lock:a T DEL data:x
        LOCK.EXEC lock:a T FLUSHALL|SET lock:a x|DEL lock:a|SET other:x 1|LOCK.EXEC other:y T SET data:x 1
        LOCK.EXEC lock:a T GET other:x|LOCK.INFO lock:a""",
    ),
    "guard": (
        "LOCK.FENCE lock:a T|LOCK.FENCE lock:a|PING",
        """LOCK.FENCE data:x|LOCK.ACQUIRE lock:b guard PX 60000|LOCK.RELEASE lock:a alice|LOCK.INFO lock:a
        LOCK.RENEW lock:a alice PX 60000|GET data:x""",
    ),
    "operator": (
        """LOCK.INFO lock:a FULL|LOCK.HELDBY alice|CLIENT LIST|CLIENT UNBLOCK 1|CLIENT KILL ID 999999|INFO redislock
        SCAN 0 TYPE redislock|TYPE lock:a|DEL lock:z|LOCK.RELEASE lock:a nobody|LOCK.FENCE lock:a T|LOCK.FENCE lock:a
        MEMORY USAGE lock:a|SELECT 0|DBSIZE|PING""",
        """LOCK.ACQUIRE lock:b operator PX 60000|LOCK.RELEASE data:x alice|DEL data:x|MEMORY USAGE data:x|FAILOVER ABORT
        CONFIG SET maxmemory 0|CLIENT PAUSE 1|ACL LOG|SET lock:a x|CONFIG GET *
        FLUSHALL|MONITOR|SLOWLOG GET|ACL LIST|SHUTDOWN NOSAVE|LOCK.INFO data:x""",
    ),
    "admin": (
        """INFO redislock|PING|ROLE|REPLICAOF NO ONE|FAILOVER ABORT|CONFIG SET redislock.max-wait 0
        CONFIG GET redislock.*|CONFIG REWRITE|CLIENT PAUSE 1 WRITE|CLIENT UNPAUSE|ACL LOG|CLUSTER FAILOVER
        SCAN 0 TYPE redislock|SAVE|BGSAVE|BGREWRITEAOF""",
        """LOCK.ACQUIRE lock:b admin PX 60000|LOCK.RELEASE lock:a alice|LOCK.INFO lock:a|DEL lock:a|SET lock:a x
        GET data:x|FLUSHALL|ACL LIST|ACL SETUSER eve on|MODULE LIST|DEBUG SLEEP 0|CLIENT KILL ID 1|CONFIG RESETSTAT
        MONITOR|SLOWLOG GET""",
    ),
    "watcher": (
        "LOCK.INFO lock:a|INFO redislock|PING|PSUBSCRIBE __keyevent@0__:lock.*",
        """LOCK.INFO data:x|LOCK.HELDBY alice|LOCK.ACQUIRE lock:b watcher PX 60000|LOCK.RELEASE lock:a alice
        DEL lock:a|SLOWLOG GET|MONITOR|CLIENT LIST|PSUBSCRIBE *
        PSUBSCRIBE __keyevent@*__:lock.*|PSUBSCRIBE __keyevent@1__:lock.*""",
    ),
}


def commands(text, token):
    """The commands of a table above."""
    lines = [line.strip() for part in text.splitlines() for line in part.split("|")]
    return [[str(token) if word == "T" else word for word in line.split()] for line in lines if line]


def log_in(server, name, password):
    """A connection of that user."""
    connection = server.connect()
    connection("AUTH", name, password)
    return connection


#: Commands that are allowed and have nothing to do here: no failover, no configuration file, no cluster.
IN_VAIN = {"FAILOVER": "No failover", "CONFIG": "without a config file", "CLUSTER": "cluster support disabled"}


@pytest.fixture
def recipes(cli):
    """The users of the page; their passwords by name."""
    passwords = {}
    for line in RECIPES:
        words = line.split()
        assert cli(*words) == "OK", line
        passwords[words[2]] = next(word[1:] for word in words if word.startswith(">"))
    return passwords


@pytest.mark.once
def test_each_recipe_of_the_page_has_its_test():
    assert [line.split()[2] for line in RECIPES] == list(RIGHTS)


@pytest.mark.parametrize("name", RIGHTS)
def test_a_recipe_allows_what_it_says_and_nothing_else(server, cli, recipes, name):
    token = cli("LOCK.ACQUIRE lock:a alice PX 600000")
    cli("SET data:x 0")
    can, cannot = RIGHTS[name]
    user = log_in(server, name, recipes[name])
    for words in commands(cannot, token):
        with refused("NOPERM"):
            user(*words)
    for words in commands(can, token):
        try:
            user(*words)
        except ServerError as error:
            assert IN_VAIN.get(words[0], "never") in error.line, (words, error.line)
    assert cli("LOCK.FENCE lock:a") == token


def test_rights_cannot_make_writes_go_by_the_token(server, recipes):
    # A command that LOCK.EXEC may run its user may run without it.
    worker = log_in(server, "worker", recipes["worker"])
    with refused("FENCED"):
        worker("LOCK.EXEC lock:a 5 SET data:x 1")
    assert worker("SET data:x 1") == "OK"


# LOCK.EXEC as a deputy


@pytest.fixture
def token(cli):
    """The token of alice's lock."""
    return cli("LOCK.ACQUIRE lock:a alice PX 600000")


def user_with(server, *rules):
    """A connection of bob, with just these rights."""
    server.admin("ACL", "SETUSER", "bob", "reset", "on", ">secret", *rules)
    return log_in(server, "bob", "secret")


def test_lock_exec_and_its_command_each_need_one_set_of_rules(server, cli, token):
    # It gives no right that its user does not have without it.
    cli("SET data:x 1")
    for rules in (["+lock.exec", "~lock:*", "(+get %R~data:*)"], ["+get", "%R~data:*", "(+lock.exec %R~lock:*)"]):
        bob = user_with(server, *rules)
        assert bob("LOCK.EXEC", "lock:a", token, "GET", "data:x") == bob("GET data:x") == "1"
        for words in (["SET", "data:x", "2"], ["GET", "other:x"], ["GET", "lock:a"], ["FLUSHALL"]):
            with refused("NOPERM"):
                bob("LOCK.EXEC", "lock:a", token, *words)
        with refused("NOPERM"):
            bob("LOCK.EXEC", "data:x", token, "GET", "data:x")
    assert cli("GET data:x") == "1"


def test_a_function_runs_exec_with_the_rights_of_its_caller(server, cli, token):
    body = """#!lua name=deputy
    redis.register_function('run', function(keys, args)
        return redis.call('LOCK.EXEC', keys[1], args[1], unpack(args, 2))
    end)"""
    cli("FUNCTION", "LOAD", body)
    bob = user_with(server, "~lock:*", "~data:*", "+fcall", "+lock.exec", "+incr")
    assert bob("FCALL", "run", 1, "lock:a", token, "INCR", "data:x") == 1
    for words in (["SET", "data:x", "7"], ["INCR", "other:x"], ["FLUSHALL"]):
        with pytest.raises(ServerError):
            bob("FCALL", "run", 1, "lock:a", token, *words)
    assert cli("GET data:x") == "1"
    assert cli("EXISTS other:x") == 0


# The actions of one client against others


def test_an_owner_is_a_name_and_no_secret(server, cli):
    # G10 is about mistakes: a user who may write the key and knows the name acts for it.
    cli("LOCK.ACQUIRE lock:a alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE lock:a bob PX 60000 BLOCK 0")
    mallory = user_with(server, "~lock:*", "+lock.acquire", "+lock.release")
    assert mallory("LOCK.RELEASE lock:a bob") == 0
    assert bob.answer() is None, "its wait was withdrawn"
    assert mallory("LOCK.RELEASE lock:a alice") == 1
    assert cli("DBSIZE") == 0


def test_one_connection_can_take_all_places_until_max_wait(server, cli):
    cli("CONFIG SET redislock.max-waiters 50 redislock.max-wait 2000")
    cli("LOCK.ACQUIRE lock:a alice PX 60000")
    with refused("ERR", "QUEUE"):
        cli("LOCK.ACQUIRE lock:a mallory PX 60000 QUEUE 86400000")
    places = [("LOCK.ACQUIRE", "lock:a", f"m{n}", "PX", 60_000, "QUEUE", 2000) for n in range(50)]
    assert cli.pipeline(*places) == [None] * 50
    with refused("LOCKQUEUE", "max-waiters"):
        server.connect()("LOCK.ACQUIRE lock:a bob PX 60000 BLOCK 0")
    eventually(lambda: waiters_of(cli, "lock:a") == 0, "the places lapse")


def test_one_owner_can_hold_for_longer_than_max_lease(server, cli):
    # A lease bounds how long a lock is held after its holder has died, not how long it is held.
    cli("CONFIG SET redislock.max-lease 100")
    mallory = server.connect()
    mallory("LOCK.ACQUIRE lock:a mallory PX 100 KEEPALIVE")
    mallory("LOCK.ACQUIRE lock:b mallory PX 100 KEEPALIVE")
    bob = server.ask("LOCK.ACQUIRE lock:a bob PX 100 BLOCK 300")
    assert bob.answer() is None
    assert owner_of(cli, "lock:a") == "mallory"
    # The actions of an operator.
    assert cli("DEL lock:a") == 1
    assert mallory("PING") == "PONG"
    assert cli("CLIENT", "KILL", "ID", mallory("CLIENT ID")) == 1
    eventually(lambda: cli("EXISTS lock:b") == 0, "the lease of a closed connection ends")


def test_a_lock_taken_as_another_kind_is_denied_for_a_lease_at_most(server, cli):
    cli("CONFIG SET redislock.max-lease 300")
    cli("LOCK.ACQUIRE lock:a mallory PX 300 LIMIT 1000000")
    with refused("LOCKKIND"):
        cli("LOCK.ACQUIRE lock:a alice PX 300 BLOCK 0")
    eventually(lambda: cli("DBSIZE") == 0, "its lease ends")
    assert isinstance(cli("LOCK.ACQUIRE lock:a alice PX 300 BLOCK 0"), int)


def test_others_tokens_follow_a_raised_one_and_no_further(server, cli):
    # G4, G14
    lead_us = 60_000_000
    token = cli("LOCK.ACQUIRE lock:a mallory PX 60000")
    assert cli("LOCK.RENEW", "lock:a", "mallory", "PX", 60_000, "RAISE", token + lead_us - 1_000_000) == 1
    after = cli("LOCK.ACQUIRE lock:b alice PX 60000")
    assert token + lead_us - 1_000_000 < after < token + lead_us + 60_000_000
    with refused("ERR", "max-token-lead"):
        cli("LOCK.RENEW", "lock:a", "mallory", "PX", 60_000, "RAISE", after + lead_us)


def test_a_long_line_is_shown_in_full_only_on_request(cli):
    cli("LOCK.ACQUIRE lock:a alice PX 60000")
    for n in range(500):
        cli("LOCK.ACQUIRE", "lock:a", f"w{n}", "PX", 60_000, "QUEUE", 60_000)
    assert len(cli.bytes_of("LOCK.INFO lock:a")) < 2_500
    assert len(cli.bytes_of("LOCK.INFO lock:a FULL")) > 25_000


def test_a_user_without_dangerous_commands_may_not_list_an_owners_locks(server, cli):
    # It names keys that its user may have no right to. Redis 7.0 knows no categories of modules' commands.
    cli("LOCK.ACQUIRE other:a alice PX 60000")
    bob = user_with(server, "~lock:*", "+@all", "-@dangerous")
    if at_least(redis=(7, 2), valkey=(8, 0)):
        with refused("NOPERM"):
            bob("LOCK.HELDBY alice")
        return
    assert bob("LOCK.HELDBY alice")[0][0] == "other:a"
    bob = user_with(server, "~lock:*", "+@all", "-@dangerous", "-lock.heldby")
    with refused("NOPERM"):
        bob("LOCK.HELDBY alice")


# The places where names and tokens show


def test_arguments_are_in_the_slow_log_and_the_monitor(server, cli, token):
    cli("CONFIG SET slowlog-log-slower-than 0")
    monitor = server.connect()
    assert monitor("MONITOR") == "OK"
    cli("LOCK.RENEW lock:a alice PX 60000")
    assert cli("LOCK.EXEC", "lock:a", token, "SET", "data:x", "what-is-written") == "OK"
    # A server hides passwords in its own commands, not in the words after LOCK.EXEC, though that is refused.
    with pytest.raises(ServerError):
        cli("LOCK.EXEC", "lock:a", token, "ACL", "SETUSER", "eve", ">a-password")
    cli("CONFIG SET slowlog-log-slower-than -1")
    slow = str(cli("SLOWLOG GET -1"))
    cli("ECHO the-end")
    seen = ""
    while "the-end" not in seen:
        seen += monitor.read()
    for text in ("alice", str(token), "what-is-written", "a-password"):
        assert text in slow and text in seen, text


def test_owners_are_not_in_public_output(server, cli):
    cli("CONFIG SET notify-keyspace-events KEA")
    listener = server.connect()
    listener("PSUBSCRIBE *")
    cli("LOCK.ACQUIRE lock:a the-owner PX 60000")
    waiter = server.ask("LOCK.ACQUIRE lock:a the-waiter PX 60000 BLOCK 0")
    seen = cli("INFO everything") + cli("CLIENT LIST") + cli("DEBUG OBJECT lock:a") + cli("OBJECT ENCODING lock:a")
    cli("DEL lock:a")
    waiter.answer()
    with refused("LOCKKIND"):
        cli("LOCK.ACQUIRE lock:a the-owner PX 60000 LIMIT 3")
    cli("DEL lock:a")
    eventually(lambda: server.log_text().count("lock:a") >= 1, "the log tells of a broken lock")
    heard = []
    eventually(lambda: heard.append(listener.read()) or "lock.broken" in str(heard[-1]), "an event")
    for text in (seen, server.log_text(), str(heard)):
        assert "the-owner" not in text and "the-waiter" not in text


def test_a_deadlock_names_keys_that_its_user_has_no_right_to(server, cli):
    cli("LOCK.ACQUIRE secret:a alice PX 60000")
    server.ask("LOCK.ACQUIRE secret:a bob PX 60000 BLOCK 0")
    mallory = user_with(server, "~lock:*", "+lock.acquire", "+lock.fence")
    with refused("NOPERM"):
        mallory("LOCK.FENCE secret:a")
    eventually(lambda: waiters_of(cli, "secret:a") == 1, "bob waits")
    mallory("LOCK.ACQUIRE lock:a bob PX 60000")
    with refused("DEADLOCK", "'bob' waits for 'secret:a' and there for 'alice'"):
        mallory("LOCK.ACQUIRE lock:a alice PX 60000 BLOCK 1000")


def test_owners_and_tokens_are_in_dumps_and_files(start_server):
    server = start_server("--appendonly", "yes", "--appendfsync", "always")
    cli = server.connect()
    cli("LOCK.ACQUIRE lock:a the-owner PX 60000")
    cli("SAVE")
    assert b"the-owner" in (server.directory / "dump.rdb").read_bytes()
    files = b"".join(path.read_bytes() for path in (server.directory / "appendonlydir").iterdir())
    assert b"the-owner" in files


# Arguments of records


def test_arguments_that_are_no_record_change_nothing(start_server):
    # G14: an append-only file that was tampered with
    server = start_server("--appendonly", "yes", "--appendfsync", "always")
    token = server.connect()("LOCK.ACQUIRE lock:a alice PX 600000")
    server.stop()
    (file,) = (server.directory / "appendonlydir").glob("*.incr.aof")
    too_many = 2**53
    bad = [
        "LOCK.APPLY lock:z 1 WAT", "LOCK.APPLY lock:z 1 HOLD 5", f"LOCK.APPLY lock:z 1 HOLD {too_many} 60000 mallory",
        "LOCK.APPLY lock:z 1 HOLD 0 60000 mallory", "LOCK.APPLY lock:z 1 HOLD 5 99999999999 mallory",
        "LOCK.APPLY lock:z 1 HOLD 5 60000 mallory LIMITED 1 NO NO", f"LOCK.APPLY lock:z 1 HOLD 5 60000 {'x' * 257}",
        "LOCK.APPLY lock:z 1 HOLD 5 60000 mallory SHARED 0 NO NO", "LOCK.APPLY lock:a 1 ENDED x", f"LOCK.TICK 1 {too_many} {too_many}",
        "LOCK.TICK 1 1", "LOCK.APPLY lock:z HOLD 5 60000 mallory", "LOCK.APPLY lock:z 2 HOLD 5 60000 mallory",
        "LOCK.EXEC lock:a 5 SET x y",
        "LOCK.ACQUIRE lock:z bob PX x", "LOCK.RENEW lock:a alice NO 1",
    ]  # fmt: skip
    with file.open("ab") as end:
        for line in bad:
            end.write(encode(line))
    cli = server.start().connect()
    assert cli("KEYS *") == ["lock:a"]
    assert cli("LOCK.FENCE lock:a") == token
    assert token < cli("LOCK.ACQUIRE lock:b bob PX 60000") < token + 3_600_000_000
