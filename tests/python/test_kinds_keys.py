"""What keys and commands of the server do to locks of all kinds (CONTRACT 5).

DUMP and RESTORE, RENAME, MOVE, COPY, SWAPDB, deletion with waiters of all kinds (G6),
MEMORY USAGE, leases (G3).
"""

import pytest

from harness.kinds import (
    ask, ask_all, count, hold_of, kind_of, line_of, owners_of, release, take, take_all,
)  # fmt: skip
from harness.limits import eventually
from harness.payload import body, dump, seal
from harness.replies import lock_info
from harness.walk import locks_of
from harness.wire import ServerError, refused


def alone(cli):
    """An exclusive lock with more to say than a plain one."""
    take(cli, "door", "alice", "REENTRANT")
    take(cli, "door", "alice", "REENTRANT")


def read(cli):
    """Readers with leases of their own."""
    for n in range(3):
        take(cli, "door", f"r{n}", "SHARED REENTRANT", lease_ms=3_000_000 + n * 200_000)
    take(cli, "door", "r1", "SHARED REENTRANT")


def limited(cli):
    """A semaphore with a permit left."""
    for n in range(3):
        take(cli, "door", f"p{n}", "LIMIT 4", lease_ms=3_000_000 + n * 200_000)


def crowded(cli):
    """More holders than stand in a short list."""
    cli.pipeline(*[f"LOCK.ACQUIRE door m{n} PX 3600000 LIMIT 1000000" for n in range(100)])


def one_of_several(cli):
    """A lock taken together with others."""
    take_all(cli, "door gate", "all")


LOCKS = {make.__name__: make for make in (alone, read, limited, crowded, one_of_several)}


@pytest.fixture(params=LOCKS)
def lock(request, cli):
    """A lock of some kind at `door`; what there is to know of it."""
    LOCKS[request.param](cli)
    return locks_of(cli)["door"]


def tokens_of(lock):
    """The tokens of its holders."""
    return [hold[1] for hold in lock[1]]


def assert_empty(cli, name, lock):
    """A key of the type, held by nobody; none of its old tokens lives."""
    assert cli("EXISTS", name) == 1
    assert cli("LOCK.INFO", name) is None and cli("LOCK.FENCE", name) is None
    assert all(cli("LOCK.FENCE", name, token) == 0 for token in tokens_of(lock))
    for hold in lock[1]:
        assert cli("LOCK.RELEASE", name, hold[0]) == 0


# DUMP and RESTORE


def test_all_holders_travel_under_the_same_name(cli, lock, start_server):
    # CONTRACT 5: here and on another server; G4 there
    payload = dump(cli, "door")
    leases = {hold["owner"]: hold["lease-left-ms"] for hold in lock_info(cli, "door")["holders"]}
    cli("DEL door")
    other = start_server().connect()
    for target in (cli, other):
        target("RESTORE", "door", 0, payload)
        assert locks_of(target)["door"] == lock
        for hold in lock_info(target, "door")["holders"]:
            assert abs(hold["lease-left-ms"] - leases[hold["owner"]]) < 60_000
        assert all(target("LOCK.FENCE", "door", token) == 1 for token in tokens_of(lock))
        assert take(target, "fresh", "new") > max(tokens_of(lock))
        for owner, token, times, *_ in lock[1]:
            for _ in range(times):
                release(target, "door", owner, "TOKEN", token)
        assert target("EXISTS door") == 0


def test_under_another_name_it_is_empty(cli, lock):
    # CONTRACT 5: two locks never share a token
    cli("RESTORE", "elsewhere", 0, dump(cli, "door"))
    assert_empty(cli, "elsewhere", lock)
    assert locks_of(cli)["door"] == lock
    assert isinstance(take(cli, "elsewhere", "bob", "LIMIT 9"), int)


def test_restore_replace_breaks_what_stood_there(cli, lock):
    payload = dump(cli, "door")
    cli("DEL door")
    broken = take(cli, "door", "bob", "SHARED")
    cli("RESTORE", "door", 0, payload, "REPLACE")
    assert cli("LOCK.FENCE", "door", broken) == 0
    assert locks_of(cli)["door"] == lock


def test_migrate_carries_all_holders(cli, lock, start_server):
    target = start_server()
    other = target.connect()
    assert cli("MIGRATE", "127.0.0.1", target.port, "door", 0, 5000) == "OK"
    assert cli("EXISTS door") == 0
    assert locks_of(other)["door"] == lock


def test_a_restored_semaphore_has_room_for_its_waiters(server, cli):
    # G6, G1
    limited(cli)
    payload = dump(cli, "door")
    cli("DEL door")
    cli("RESTORE", "door", 0, payload)
    waiters = [ask(server, "door", f"w{n}", "LIMIT 4") for n in range(2)]
    assert isinstance(waiters[0].answer(), int), "the fourth permit"
    assert waiters[1].waits()
    release(cli, "door", "p0")
    assert isinstance(waiters[1].answer(), int)


def test_restored_leases_end_one_by_one(cli):
    # G3
    take(cli, "door", "short", "SHARED", lease_ms=500)
    take(cli, "door", "long", "SHARED")
    payload = dump(cli, "door")
    cli("DEL door")
    cli("RESTORE", "door", 0, payload)
    eventually(lambda: owners_of(cli, "door") == ["long"])


def test_a_restored_holder_does_not_wait_for_itself(server, cli):
    # G9
    limited(cli)
    payload = dump(cli, "door")
    cli("DEL door")
    for n in range(4):
        take(cli, "door", f"x{n}", "LIMIT 4")
    waiter = ask(server, "door", "p1", "LIMIT 4")
    assert waiter.waits()
    cli("RESTORE", "door", 0, payload, "REPLACE")
    assert isinstance(waiter.answer(), int)
    assert owners_of(cli, "door").count("p1") == 1
    assert len(owners_of(cli, "door")) <= 4


def test_every_changed_byte_of_a_payload_is_harmless(cli, lock):
    # G14: no crash; a token is not forged beyond the lead
    payload = dump(cli, "door")
    good = body(payload)
    highest = int(cli("TIME")[0]) + 120
    for index in range(0, len(good), max(1, len(good) // 150)):
        for change in (0x01, 0x80, 0xFF):
            bad = bytearray(good)
            bad[index] ^= change
            try:
                cli("RESTORE", "door", 0, seal(bytes(bad), payload), "REPLACE")
            except ServerError:
                continue
            info = lock_info(cli, "door")
            if info and info["holders"]:
                assert info["holders"][-1]["token"] < highest * 1_000_000
    assert cli("PING") == "PONG"
    cli("DEL door")
    assert count(cli, "holds") <= 1


# RENAME, MOVE, COPY, SWAPDB


def test_a_renamed_lock_is_broken(server, cli, lock):
    cli("RENAME door elsewhere")
    assert owners_of(cli, "door") == []
    assert_empty(cli, "elsewhere", lock)
    for options in ("SHARED", "LIMIT 2", ""):
        assert isinstance(take(cli, "elsewhere", "bob", options), int)
        release(cli, "elsewhere", "bob")
    assert cli("EXISTS elsewhere") == 0


def test_a_moved_lock_is_broken(server, cli, lock):
    assert cli("MOVE door 1") == 1
    assert owners_of(cli, "door") == []
    assert_empty(server.connect(db=1), "door", lock)


def test_a_lock_cannot_be_copied(cli, lock):
    with pytest.raises(ServerError):
        cli("COPY door elsewhere")
    assert cli("EXISTS elsewhere") == 0
    assert locks_of(cli)["door"] == lock


def test_swapped_databases_hold_nothing(server, cli, lock):
    cli("SWAPDB 0 1")
    assert owners_of(cli, "door") == []
    assert_empty(server.connect(db=1), "door", lock)
    eventually(lambda: count(cli, "holds") == 0)


def test_memory_usage_and_object(cli, lock):
    usage = cli("MEMORY USAGE door")
    assert 0 < usage < 2000 * len(lock[1])
    assert cli("OBJECT REFCOUNT door") == 1
    assert cli("TYPE door") == "redislock"
    assert "door" in cli("SCAN 0 COUNT 1000 TYPE redislock")[1]


def test_memory_grows_with_the_holders_and_comes_back(cli):
    take(cli, "door", "h", "LIMIT 1000000")
    small = cli("MEMORY USAGE door")
    cli.pipeline(*[f"LOCK.ACQUIRE door m{n} PX 3600000 LIMIT 1000000" for n in range(1000)])
    large = cli("MEMORY USAGE door")
    assert large > small + 1000 * 16
    cli.pipeline(*[f"LOCK.RELEASE door m{n}" for n in range(1000)])
    assert cli("MEMORY USAGE door") < large / 4


# Whatever frees the locks, waiters of all kinds are next (G6)

CAUSES = {
    "release": ["LOCK.RELEASE a h", "LOCK.RELEASE b h", "LOCK.RELEASE c h", "LOCK.RELEASE d h"],
    "DEL": ["DEL a b c d"],
    "UNLINK": ["UNLINK a b c d"],
    "FLUSHALL": ["FLUSHALL"],
    "FLUSHDB ASYNC": ["FLUSHDB ASYNC"],
    "SWAPDB": ["SWAPDB 0 1"],
    "RENAME": ["RENAME a a2", "RENAME b b2", "RENAME c c2", "RENAME d d2"],
    "EXPIRE": ["PEXPIRE a 1", "PEXPIRE b 1", "PEXPIRE c 1", "PEXPIRE d 1"],
    "leases end": [f"LOCK.RENEW {key} h PX 1" for key in "abcd"],
    "in a transaction": ["MULTI", "DEL a b", "SET x y", "DEL c d", "EXEC"],
}


@pytest.mark.parametrize("cause", CAUSES)
def test_waiters_of_all_kinds_are_granted(server, cli, cause):
    # G6
    take(cli, "a", "h")
    take(cli, "b", "h", "SHARED")
    take(cli, "c", "h", "LIMIT 2")
    take(cli, "c", "h2", "LIMIT 2")
    take(cli, "d", "h")
    last = cli("LOCK.FENCE d")
    waiters = [
        ask(server, "a", "r1", "SHARED"), ask(server, "a", "r2", "SHARED"),
        ask(server, "b", "w"),
        ask(server, "c", "p1", "LIMIT 2"),
        ask_all(server, "d e", "all"),
    ]  # fmt: skip
    late = ask(server, "d", "late")
    assert all(waiter.is_blocked() for waiter in waiters)
    for reply in cli.pipeline(*CAUSES[cause]):
        assert not isinstance(reply, Exception), reply
    tokens = [waiter.answer() for waiter in waiters]
    assert all(token > last for token in tokens) and len(set(tokens)) == 5
    assert owners_of(cli, "a") == ["r1", "r2"]
    assert owners_of(cli, "b") == ["w"]
    assert "p1" in owners_of(cli, "c")
    assert owners_of(cli, "d") == owners_of(cli, "e") == ["all"]
    assert late.waits()
    release(cli, "d", "all")
    assert isinstance(late.answer(), int)


@pytest.mark.parametrize("command", ["DEL door", "RENAME door x", "FLUSHALL", "SWAPDB 0 1"])
def test_an_upgrade_whose_lock_is_broken_gets_it(server, cli, command):
    # G6, G10: the shared holds are gone, the request is not
    take(cli, "door", "r1", "SHARED")
    take(cli, "door", "r2", "SHARED")
    upgrade = ask(server, "door", "r1")
    writer = ask(server, "door", "w")
    cli(command)
    assert isinstance(upgrade.answer(), int)
    assert kind_of(cli, "door") == ("exclusive", None)
    assert writer.waits()
    assert cli("LOCK.RELEASE door r2") == 0
    release(cli, "door", "r1")
    assert isinstance(writer.answer(), int)


def test_waiters_of_all_kinds_are_told_what_was_written(server, cli):
    # CONTRACT 5: what was written stays
    take(cli, "a", "h")
    take(cli, "b", "h", "SHARED")
    take(cli, "b", "h2", "SHARED")
    take(cli, "c", "h", "LIMIT 1")
    take(cli, "d", "h")
    waiters = [
        ask(server, "a", "r", "SHARED"), ask(server, "b", "h"), ask(server, "b", "w"),
        ask(server, "c", "p", "LIMIT 1"), ask_all(server, "e d", "all"),
    ]  # fmt: skip
    behind = ask(server, "e", "behind")
    assert cli("MSET a x b x c x d x") == "OK"
    for waiter in waiters:
        with refused("WRONGTYPE"):
            waiter.answer()
    assert isinstance(behind.answer(), int), "nobody is ahead of it any more"
    assert cli("MGET a b c d") == ["x"] * 4


def test_every_broken_hold_is_counted(cli):
    before = count(cli, "broken")
    limited(cli)
    take(cli, "gate", "r1", "SHARED")
    take(cli, "gate", "r2", "SHARED")
    cli("DEL door gate")
    eventually(lambda: count(cli, "broken") == before + 5)
    eventually(lambda: (count(cli, "locks"), count(cli, "holds")) == (0, 0))


@pytest.mark.parametrize("options", ["", "SHARED", "LIMIT 5", "REENTRANT", "SHARED REENTRANT"])
def test_leases_end_for_all_kinds(server, cli, options):
    # G3
    for n in range(1 if options in ("", "REENTRANT") else 5):
        take(cli, "door", f"h{n}", options, lease_ms=50 + 20 * n)
    eventually(lambda: cli("EXISTS door") == 0, "without anyone asking")
    assert hold_of(cli, "door", "h0") is None and line_of(cli, "door") == []


def test_a_ttl_by_a_user_breaks_all_holders_and_does_not_outlive_them(server, cli):
    # CONTRACT 5
    limited(cli)
    cli("PEXPIRE door 50")
    eventually(lambda: cli("EXISTS door") == 0, "the server removes the key when it says")
    limited(cli)
    cli("PEXPIRE door 3000000")
    assert cli("PTTL door") > 0
    cli("DEL door")
    take(cli, "door", "r", "SHARED")
    assert cli("TTL door") == -1


@pytest.mark.parametrize("kind", ["SHARED", "LIMIT 2"])
def test_a_key_of_another_type_in_the_way(server, cli, kind):
    cli("SET door x")
    for options in (kind, f"{kind} BLOCK 0", f"{kind} QUEUE 100", f"{kind} REENTRANT"):
        with refused("WRONGTYPE"):
            take(cli, "door", "alice", options)
    assert cli("GET door") == "x"
