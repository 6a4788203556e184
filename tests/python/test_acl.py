"""Users and their rights (CONTRACT 4: an unlicensed user is not granted; CONTRACT 8)."""

import pytest

from harness.kinds import ask_all, owners_of, release, take
from harness.replies import owner_of, queue_of
from harness.server import at_least
from harness.wire import ServerError, refused

HAS_CATEGORIES = at_least(redis=(7, 4), valkey=(8, 0))


def make_user(cli, name, *rules):
    """A user with the password "secret" and just these rights."""
    cli("ACL", "SETUSER", name, "reset", "on", ">secret", "+client", "+ping", *rules)


def log_in(server, name):
    """A connection of that user."""
    connection = server.connect()
    connection("AUTH", name, "secret")
    return connection


def test_a_user_needs_the_right_to_the_command(server, cli):
    make_user(cli, "bob", "~*", "+lock.acquire", "+lock.release")
    bob = log_in(server, "bob")
    assert isinstance(bob("LOCK.ACQUIRE door bob PX 60000"), int)
    for command in ("LOCK.RENEW door bob PX 1", "LOCK.FENCE door", "LOCK.INFO door"):
        with refused("NOPERM"):
            bob(command)
    assert bob("LOCK.RELEASE door bob") == 1


def test_a_user_needs_the_right_to_the_key(server, cli):
    make_user(cli, "bob", "~jobs:*", "+@all")
    bob = log_in(server, "bob")
    assert isinstance(bob("LOCK.ACQUIRE jobs:1 bob PX 60000"), int)
    for command in (
        "LOCK.ACQUIRE door bob PX 60000",
        "LOCK.ACQUIRE door bob PX 60000 BLOCK 0",
        "LOCK.RELEASE door bob",
        "LOCK.RENEW door bob PX 60000",
        "LOCK.FENCE door",
        "LOCK.INFO door",
    ):
        with refused("NOPERM"):
            bob(command)
    assert cli("KEYS *") == ["jobs:1"]


def test_a_user_who_may_only_read_can_ask_but_not_take(server, cli):
    make_user(cli, "bob", "%R~door", "+@all")
    bob = log_in(server, "bob")
    token = cli("LOCK.ACQUIRE door alice PX 60000")
    assert bob("LOCK.FENCE", "door", token) == 1
    assert owner_of(bob, "door") == "alice"
    for command in (
        "LOCK.ACQUIRE door bob PX 60000",
        "LOCK.RELEASE door alice",
        "LOCK.RENEW door alice PX 60000",
    ):
        with refused("NOPERM"):
            bob(command)
    assert cli("LOCK.FENCE", "door", token) == 1


def test_scripts_run_with_the_rights_of_the_user(server, cli):
    make_user(cli, "bob", "~jobs:*", "+eval", "+lock.acquire")
    bob = log_in(server, "bob")
    script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'bob', 'PX', 60000)"
    assert isinstance(bob("EVAL", script, 1, "jobs:1"), int)
    with pytest.raises(ServerError):
        bob("EVAL", script, 1, "door")
    assert cli("EXISTS door") == 0


@pytest.mark.parametrize(
    "loss",
    [["-lock.acquire"], ["resetkeys", "~jobs:*"], ["nocommands"], ["%R~door"]],
    ids=" ".join,
)
def test_a_waiter_that_lost_its_right_is_not_granted(server, cli, loss):
    # CONTRACT 4: grants out of the queue make the checks that commands make
    make_user(cli, "bob", "~*", "+lock.acquire")
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0", user="bob")
    carol = server.ask("LOCK.ACQUIRE door carol PX 60000 BLOCK 0")
    if loss == ["%R~door"]:
        loss = ["resetkeys", *loss]
    cli("ACL", "SETUSER", "bob", *loss)
    cli("LOCK.RELEASE door alice")
    with refused("NOPERM"):
        bob.answer()
    assert isinstance(carol.answer(), int)
    assert owner_of(cli, "door") == "carol"
    assert bob.connection("PING" if loss != ["nocommands"] else "AUTH bob secret")


def test_the_only_waiter_that_lost_its_right_leaves_the_lock_free(server, cli):
    make_user(cli, "bob", "~*", "+lock.acquire")
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0", user="bob")
    cli("ACL SETUSER bob -lock.acquire")
    cli("LOCK.RELEASE door alice")
    with refused("NOPERM"):
        bob.answer()
    assert cli("DBSIZE") == 0


def test_a_waiter_who_kept_the_right_is_granted(server, cli):
    make_user(cli, "bob", "~door", "+lock.acquire")
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0", user="bob")
    cli("ACL SETUSER bob ~gate")
    cli("LOCK.RELEASE door alice")
    assert isinstance(bob.answer(), int)


def test_a_deleted_user_leaves_the_queue(server, cli):
    # G8: the server closes the connections of a deleted user
    make_user(cli, "bob", "~*", "+lock.acquire")
    cli("LOCK.ACQUIRE door alice PX 60000")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0", user="bob")
    carol = server.ask("LOCK.ACQUIRE door carol PX 60000 BLOCK 0")
    cli("ACL DELUSER bob")
    assert bob.was_closed()
    assert queue_of(cli, "door") == ["carol"]
    cli("LOCK.RELEASE door alice")
    assert isinstance(carol.answer(), int)


@pytest.mark.parametrize("right", ["+lock.macquire", "+lock.macquire|2"])
def test_a_waiter_for_several_needs_the_right_to_the_command_it_sent(server, cli, right):
    # CONTRACT 4: a grant out of the line checks the rights that the server had checked
    cli(f"ACL SETUSER worker on >secret ~* {right} +client")
    take(cli, "a", "h")
    request = ask_all(server, "a b", "worker", user="worker")
    release(cli, "a", "h")
    assert isinstance(request.answer(), int)


def test_a_waiter_that_lost_the_right_to_ask_for_several_is_not_granted(server, cli):
    # CONTRACT 4
    cli("ACL SETUSER worker on >secret ~* +lock.macquire +lock.acquire +client")
    take(cli, "a", "h")
    request = ask_all(server, "a b", "worker", user="worker")
    cli("ACL SETUSER worker -lock.macquire")
    release(cli, "a", "h")
    with refused("NOPERM", "lock.macquire"):
        request.answer()
    assert owners_of(cli, "a") == owners_of(cli, "b") == []


@pytest.mark.skipif(not at_least(redis=(99, 0), valkey=(9, 1)), reason="users are confined to databases there")
def test_a_waiter_that_is_confined_to_a_database_is_granted_there(server, cli):
    # CONTRACT 4: it is refused only when it has lost the right
    make_user(cli, "bob", "~*", "+lock.acquire", "+lock.macquire", "db=0,1")
    take(cli, "door", "alice")
    take(cli, "gate", "alice")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0", user="bob")
    both = ask_all(server, "gate yard", "bob", user="bob")
    release(cli, "door", "alice")
    release(cli, "gate", "alice")
    assert isinstance(bob.answer(), int) and isinstance(both.answer(), int)
    release(cli, "door", "bob")
    take(cli, "door", "alice")
    bob = server.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0", user="bob")
    cli("ACL SETUSER bob resetdbs db=1")
    release(cli, "door", "alice")
    with refused("NOPERM", "lock.acquire"):
        bob.answer()
    assert owner_of(cli, "door") is None


def test_the_category_of_the_module_has_all_its_commands(server, cli):
    if not HAS_CATEGORIES:  # the server then knows no categories of modules at all
        with refused("ERR"):
            cli("ACL CAT redislock")
        return
    listed = set(cli("ACL CAT redislock"))
    wanted = {"acquire", "release", "renew", "fence", "info"}
    assert {f"lock.{name}" for name in wanted} <= listed
    make_user(cli, "bob", "~*", "+@redislock")
    bob = log_in(server, "bob")
    assert isinstance(bob("LOCK.ACQUIRE door bob PX 60000"), int)
    assert bob("LOCK.RELEASE door bob") == 1
    with refused("NOPERM"):
        bob("SET x y")
