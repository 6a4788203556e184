"""Settings (CONTRACT 7): loadmodule arguments, CONFIG GET, SET and REWRITE; eviction."""

import re

import pytest

from harness.limits import eventually
from harness.replies import owner_of
from harness.server import MODULE, ROOT, StartFailed
from harness.wire import refused

ROWS = re.findall(
    r"^\| `([a-z-]+)` \| (\w+) \| (.*?) \|", (ROOT / "docs" / "reference" / "settings.md").read_text(), re.MULTILINE
)
# name: default
SETTINGS = {name: default for name, default, _ in ROWS}
# name: lowest, highest
NUMBERS = {name: tuple(map(int, span.split(" to "))) for name, _, span in ROWS if " to " in span}


def get(cli, name):
    """The value of a setting."""
    pairs = cli("CONFIG", "GET", f"redislock.{name}")
    return dict(zip(pairs[::2], pairs[1::2]))[f"redislock.{name}"]


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_starts_with_its_default(start_server, name):
    assert get(start_server().connect(), name) == SETTINGS[name]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_can_be_set_within_its_range(cli, name):
    lowest, highest = NUMBERS[name]
    for value in (lowest, highest, (lowest + highest) // 2):
        assert cli("CONFIG", "SET", f"redislock.{name}", value) == "OK"
        assert get(cli, name) == str(value)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_outside_its_range_is_refused(cli, name):
    # G14
    lowest, highest = NUMBERS[name]
    for value in (lowest - 1, highest + 1, 2**63, 2**64, "1e3", "", "many", "yes"):
        with refused("ERR"):
            cli("CONFIG", "SET", f"redislock.{name}", value)
        assert get(cli, name) == SETTINGS[name]


def test_a_switch_is_yes_or_no(cli):
    for value in ("yes", "no", "yes"):
        cli("CONFIG", "SET", "redislock.allow-eviction", value)
        assert get(cli, "allow-eviction") == value
    for value in ("maybe", "1", ""):
        with refused("ERR"):
            cli("CONFIG", "SET", "redislock.allow-eviction", value)
    assert get(cli, "allow-eviction") == "yes"


def test_an_unknown_setting_is_refused(cli):
    with refused("ERR"):
        cli("CONFIG SET redislock.no-such-thing 1")


def test_settings_are_listed_together(cli):
    pairs = cli("CONFIG GET redislock.*")
    listed = dict(zip((name.removeprefix("redislock.") for name in pairs[::2]), pairs[1::2]))
    assert SETTINGS == listed, "docs/reference/settings.md: one row for each setting of src/engine/settings.rs"
    assert set(NUMBERS) == {name for name in SETTINGS if SETTINGS[name].isdigit()}


def test_several_are_set_at_once_or_none(cli):
    cli("CONFIG SET redislock.max-lease 70000 redislock.max-wait 80000")
    assert (get(cli, "max-lease"), get(cli, "max-wait")) == ("70000", "80000")
    with refused("ERR"):
        cli("CONFIG SET redislock.max-wait 90000 redislock.max-lease 1")
    assert (get(cli, "max-lease"), get(cli, "max-wait")) == ("70000", "80000")


# The sources of settings


ARGUMENTS = ["max-lease", "60000", "max-waiters", "7", "allow-eviction", "yes"]


def assert_as_in_arguments(cli):
    """Checks that ARGUMENTS apply, and that the rest has its default."""
    for name, default in SETTINGS.items():
        expected = dict(zip(ARGUMENTS[::2], ARGUMENTS[1::2])).get(name, default)
        assert get(cli, name) == expected, name
    with refused("ERR", "1 to 60000"):
        cli("LOCK.ACQUIRE door alice PX 60001")
    with refused("ERR", "1 to 60 "):
        cli("LOCK.ACQUIRE door alice EX 61")


def test_settings_on_the_command_line(start_server):
    assert_as_in_arguments(start_server(module_arguments=ARGUMENTS).connect())


def test_settings_behind_loadmodule_in_the_configuration_file(start_server):
    config = f"loadmodule MODULE {' '.join(ARGUMENTS)}\n"
    assert_as_in_arguments(start_server(config=config).connect())


def test_settings_as_lines_of_the_configuration_file(start_server):
    pairs = zip(ARGUMENTS[::2], ARGUMENTS[1::2])
    lines = "".join(f"redislock.{name} {value}\n" for name, value in pairs)
    assert_as_in_arguments(start_server(config=f"loadmodule MODULE\n{lines}").connect())


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["no-such-thing", "1"], "no-such-thing"),
        (["max-lease"], "max-lease"),
        (["max-lease", "99"], "max-lease"),
        (["max-lease", "86400001"], "max-lease"),
        (["max-lease", "soon"], "max-lease"),
        (["max-lease", ""], "max-lease"),
        (["allow-eviction", "maybe"], "allow-eviction"),
        (["confirm", "some"], "confirm must be local, all or majority"),
        (["confirm", "all", "quarantine", "5"], "redislock.group-size, 1 to 15"),
        (["confirm", "majority", "group-size", "3"], "redislock.quarantine, 1 to 86400000"),
        (["max-lease", "60000", "max-wait"], "max-wait"),
        (["max-lease", "60000", "60000", "max-wait"], "60000"),
        (["60000"], "60000"),
    ],
)
def test_the_server_does_not_start_with_a_wrong_argument(
    start_server, arguments, told
):
    # G14: reported at the start, not ignored; the log says which
    with pytest.raises(StartFailed) as failure:
        start_server(module_arguments=arguments)
    lines = [line for line in str(failure.value).splitlines() if "<redislock>" in line]
    assert any(told in line for line in lines), lines


def test_a_rewritten_configuration_holds_after_a_restart(start_server):
    server = start_server(config="loadmodule MODULE max-lease 60000\n")
    cli = server.connect()
    changed = {name: str((lowest + highest) // 2) for name, (lowest, highest) in NUMBERS.items()}
    changed |= {"allow-eviction": "yes", "confirm": "all"}
    for name, value in changed.items():
        cli("CONFIG", "SET", f"redislock.{name}", value)
    assert cli("CONFIG REWRITE") == "OK"
    server.stop()
    cli = server.start().connect()
    assert {name: get(cli, name) for name in changed} == changed


# MODULE LOAD, without a restart


@pytest.fixture
def bare(start_server):
    """A server without the module that may load it."""
    options = ["--enable-module-command", "yes"]
    return start_server(*options, with_module=False).connect()


def test_the_module_can_be_loaded_into_a_running_server(bare):
    assert bare("MODULE", "LOAD", MODULE, *ARGUMENTS) == "OK"
    assert_as_in_arguments(bare)
    with refused("ERR"):
        bare("MODULE", "LOAD", MODULE)
    assert isinstance(bare("LOCK.ACQUIRE door alice PX 60000"), int)


def test_settings_of_module_loadex(bare):
    pairs = zip(ARGUMENTS[::2], ARGUMENTS[1::2])
    config = [["CONFIG", f"redislock.{name}", value] for name, value in pairs]
    assert bare("MODULE", "LOADEX", MODULE, *sum(config, [])) == "OK"
    assert_as_in_arguments(bare)


def test_a_load_that_failed_leaves_the_server_as_it_was(bare):
    # G14: and a second attempt is a first one
    for wrong in (["max-lease", "1"], ["max-lease"], ["no-such-thing", "1"]):
        with refused("ERR"):
            bare("MODULE", "LOAD", MODULE, *wrong)
        assert bare("MODULE LIST") == [] or "redislock" not in str(bare("MODULE LIST"))
        assert bare("CONFIG GET redislock.*") == []
    assert bare("MODULE", "LOAD", MODULE, *ARGUMENTS) == "OK"
    assert_as_in_arguments(bare)


# The immediate effects of settings


def test_a_new_limit_concerns_new_requests_only(cli):
    token = cli("LOCK.ACQUIRE door alice PX 3600000")
    cli("CONFIG SET redislock.max-lease 60000")
    assert cli("LOCK.FENCE", "door", token) == 1
    with refused("ERR", "PX", "1 to 60000"):
        cli("LOCK.RENEW door alice PX 60001")
    assert cli("LOCK.RENEW door alice PX 60000") == 1
    cli("CONFIG SET redislock.max-lease 120000")
    assert cli("LOCK.RENEW door alice PX 120000") == 1


def test_a_limit_that_is_no_whole_second_is_rounded_down_for_ex(cli):
    cli("CONFIG SET redislock.max-lease 2999")
    with refused("ERR", "EX", "1 to 2 "):
        cli("LOCK.ACQUIRE door alice EX 3")
    assert isinstance(cli("LOCK.ACQUIRE door alice EX 2"), int)


def test_a_limit_under_a_second_leaves_no_room_for_ex(cli):
    cli("CONFIG SET redislock.max-lease 999")
    with refused("ERR", "EX"):
        cli("LOCK.ACQUIRE door alice EX 1")
    assert isinstance(cli("LOCK.ACQUIRE door alice PX 999"), int)


def test_max_lease_bounds_what_a_lease_is_cut_to(cli):
    cli("CONFIG SET redislock.max-lease 5000")
    reply = cli.bytes_of("LOCK.ACQUIRE door alice PX 5000 EPHEMERAL 5001")
    assert reply.startswith(b"-ERR EPHEMERAL must be an integer from 0 to 5000")
    assert isinstance(cli("LOCK.ACQUIRE door alice PX 5000 EPHEMERAL 5000"), int)


def test_a_lower_max_waiters_rejects_no_waiter(server, cli):
    cli("LOCK.ACQUIRE door alice PX 60000")
    waiters = [
        server.ask("LOCK.ACQUIRE", "door", name, "PX", 60000, "BLOCK", 0)
        for name in ("bob", "carol")
    ]
    cli("CONFIG SET redislock.max-waiters 1")
    assert all(waiter.waits() for waiter in waiters)
    cli("LOCK.RELEASE door alice")
    assert isinstance(waiters[0].answer(), int)


# Eviction


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_where_locks_could_be_evicted_none_is_given_out(server, cli, policy):
    # CONTRACT 5, eviction
    cli("CONFIG SET maxmemory 100mb")
    cli("CONFIG", "SET", "maxmemory-policy", policy)
    with refused("ERR", "may evict locks"):
        cli("LOCK.ACQUIRE door alice PX 60000")
    with refused("ERR", "may evict locks"):
        cli("LOCK.ACQUIRE door alice PX 60000 BLOCK 0")
    assert cli("DBSIZE") == 0
    cli("CONFIG SET redislock.allow-eviction yes")
    assert isinstance(cli("LOCK.ACQUIRE door alice PX 60000"), int)
    cli("CONFIG SET redislock.allow-eviction no")
    assert cli("LOCK.RENEW door alice PX 60000") == 1
    assert isinstance(cli("LOCK.FENCE door"), int)
    assert owner_of(cli, "door") == "alice"
    assert cli("LOCK.RELEASE door alice") == 1
    eventually(lambda: "evict" in server.log_text(), "the log says why")


@pytest.mark.parametrize(
    "policy",
    ["noeviction", "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"],
)
def test_where_locks_cannot_be_evicted_they_are_given_out(cli, policy):
    # G2: locks have no TTL, so volatile-* leaves them alone
    cli("CONFIG SET maxmemory 100mb")
    cli("CONFIG", "SET", "maxmemory-policy", policy)
    assert isinstance(cli("LOCK.ACQUIRE door alice PX 60000"), int)


def test_a_policy_without_a_limit_evicts_nothing(cli):
    cli("CONFIG SET maxmemory 0")
    cli("CONFIG SET maxmemory-policy allkeys-lru")
    assert isinstance(cli("LOCK.ACQUIRE door alice PX 60000"), int)


def test_volatile_eviction_takes_no_lock(start_server):
    # G2
    server = start_server("--maxmemory-policy", "volatile-ttl")
    cli = server.connect()
    for n in range(100):
        cli("LOCK.ACQUIRE", f"door:{n}", "alice", "PX", 60000)
        cli("SET", f"note:{n}", "text", "EX", 1000)
    cli("CONFIG SET maxmemory 1")
    eventually(
        lambda: cli.bytes_of("SET x y").startswith(b"-OOM") and cli("DBSIZE") < 150,
        "notes are evicted",
    )
    assert cli("EXISTS", *[f"door:{n}" for n in range(100)]) == 100
