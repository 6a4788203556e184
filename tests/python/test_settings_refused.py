"""CONFIG SET that another module refuses: no setting of its has had an effect (CONTRACT 7)."""

from functools import partial

import pytest

from harness.confirming import confirming, frozen
from harness.limits import A_WHILE_SECONDS
from harness.replies import module_info, queue_of
from harness.wire import refused

#: A value of each setting that changes the behaviour of a busy server, and the value that it has there.
BUSY = {
    "max-lease": (60_000, 100),
    "max-wait": (0, 1),
    "max-waiters-per-lock": (10_000, 1),
    "max-waiters": (20_000, 1),
    "max-holders": (2, 3),
    "max-token-lead": (60_000, 0),
    "group-size": (0, 3),
    "confirm-timeout": (1000, 1),
    "top-contended": (10, 0),
    "allow-eviction": ("no", "yes"),
    "legacy-strings": ("yes", "no"),
    "leaving": ("no", "yes"),
}
#: The neighbour refuses the first when it is set, the second when all are set. It may be named before and after.
REFUSED = {"at once": 666, "later": 667}
ORDERS = {"before": 1, "behind": -1}
#: Enough transactions to crash a server that frees a timer twice.
LATE_RUNS = 5


def refuse(cli, pairs, when, order):
    """Sets these settings and one that the rival refuses; nothing is set."""
    pairs = [("rival.level", REFUSED[when]), *pairs][:: ORDERS[order]]
    with refused("ERR"):
        cli("CONFIG", "SET", *(part for pair in pairs for part in pair))


def get(cli, name):
    """The value of a setting."""
    return cli("CONFIG", "GET", f"redislock.{name}")[1]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("when", REFUSED)
def test_a_quarantine_continues_if_its_end_is_refused(start_server, rival_path, when, order):
    # T1: no lock that may have been forgotten is granted
    server = start_server("--loadmodule", rival_path, module_arguments=["quarantine", "600000"])
    cli = server.connect()
    waiter = server.ask("LOCK.ACQUIRE gate bob PX 1000 BLOCK 0")
    refuse(cli, [("redislock.quarantine", 0)], when, order)
    with refused("QUARANTINE"):
        cli("LOCK.ACQUIRE door alice PX 1000")
    assert waiter.waits() and int(module_info(cli)["quarantine_left_ms"]) > 500_000
    assert get(cli, "quarantine") == "600000"
    assert cli("CONFIG SET redislock.quarantine 0 rival.level 1") == "OK"
    assert cli("LOCK.ACQUIRE door alice PX 1000") > 0
    assert waiter.answer() > 0


def test_the_timer_of_a_late_run_is_not_freed_twice(start_server, rival_path):
    # The pump's timer is late, and applies settings that were refused. The server frees it then, and the module must not.
    server = start_server("--loadmodule", rival_path, module_arguments=["quarantine", "600000"])
    cli = server.connect()
    refused_settings = ("CONFIG", "SET", "redislock.quarantine", 0, "rival.level", REFUSED["later"])
    for _ in range(LATE_RUNS):
        replies = cli.pipeline("MULTI", refused_settings, "DEBUG SLEEP 0.03", "EXEC")[-1]
        assert replies[0].code == "ERR" and replies[1] == "OK"
    assert get(cli, "quarantine") == "600000"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("when", REFUSED)
def test_unconfirmed_replies_are_held_back_if_turning_confirm_off_is_refused(start_server, rival_path, when, order):
    # T5: no grant is delivered that no replica has
    primary, replicas = confirming(partial(start_server, "--loadmodule", rival_path), replicas=1)
    cli = primary.connect()
    with frozen(*replicas):
        waiter = primary.ask("LOCK.ACQUIRE door alice PX 60000")
        refuse(cli, [("redislock.confirm", "local"), ("redislock.group-size", 0)], when, order)
        assert waiter.waits(), "no replica has confirmed it"
    assert waiter.answer() > 0


@pytest.fixture
def busy(start_server, rival_path):
    """A server on which there is something that each setting could end."""
    settings = [str(part) for name, (value, _) in BUSY.items() for part in (name, value)]
    server = start_server("--loadmodule", rival_path, module_arguments=settings)
    cli = server.connect()
    cli("SET string carol NX PX 60000")
    cli("LOCK.ACQUIRE door alice PX 60000")
    for owner in ("first", "second"):
        cli("LOCK.ACQUIRE", "pool", owner, "PX", 60000, "LIMIT", 2)
    waiters = []
    for name, owner, *words in [("door", "bob"), ("door", "carl"), ("pool", "third", "LIMIT", 2), ("string", "dave")]:
        waiters.append(server.ask("LOCK.ACQUIRE", name, owner, "PX", 60000, *words, "BLOCK", 0))
    return server, cli, waiters


@pytest.mark.parametrize("name", BUSY)
def test_no_setting_has_an_effect_if_the_command_is_refused(busy, name):
    server, cli, waiters = busy
    before, value = BUSY[name]
    shown = {key: text for key, text in module_info(cli).items() if not key.endswith(("_us", "_ms", "_bytes"))}
    queue = queue_of(cli, "door")
    for when in REFUSED:
        for order in ORDERS:
            refuse(cli, [(f"redislock.{name}", value)], when, order)
            assert get(cli, name) == str(before)
    assert queue_of(cli, "door") == queue == ["bob", "carl"]
    assert not any(waiter.connection.has_input(A_WHILE_SECONDS) for waiter in waiters)
    now = module_info(cli)
    assert {key: now[key] for key in shown} == shown
    assert "leaving:" not in server.log_text()
