"""LOCK.ACQUIRE ... SHARED: the promises to readers and writers, and the changes from one to the other.

G1 (readers together or one writer), G5 (first come, first served; consecutive readers are granted together), G9;
LOCKHELD and downgrade. The tests that shared locks have in common with the others are in test_files.py,
test_replicas.py and test_seeing.py. The limits on their number are in test_max_holders_and_waiters.py. The tests of
others for their readers-writer locks are in test_other_suites_readers_writers.py.
"""

import pytest

from harness.kinds import ask, count, hold_of, kind_of, line_of, owners_of, release, take
from harness.limits import eventually
from harness.replies import lock_info
from harness.wire import encode, refused


def test_readers_hold_together_each_with_a_token_of_its_own(cli):
    # G1, G4
    tokens = [take(cli, "door", f"r{n}", "SHARED") for n in range(20)]
    assert tokens == sorted(set(tokens))
    assert owners_of(cli, "door") == [f"r{n}" for n in range(20)]
    assert kind_of(cli, "door") == ("shared", None)
    assert all(cli("LOCK.FENCE", "door", token) == 1 for token in tokens)
    assert cli("LOCK.FENCE door") == tokens[-1], "the newest live token"
    assert cli("LOCK.FENCE", "door", tokens[-1] + 1) == 0
    assert (count(cli, "locks"), count(cli, "holds")) == (1, 20)


def test_each_reader_releases_for_itself(cli):
    # G10
    tokens = [take(cli, "door", f"r{n}", "SHARED") for n in range(3)]
    release(cli, "door", "r1")
    assert cli("LOCK.RELEASE door r1") == 0
    assert [cli("LOCK.FENCE", "door", token) for token in tokens] == [1, 0, 1]
    release(cli, "door", "r2", "TOKEN", tokens[2])
    assert cli("LOCK.FENCE door") == tokens[0], "the newest that lives"
    assert cli("LOCK.RELEASE", "door", "r0", "TOKEN", tokens[2]) == 0
    release(cli, "door", "r0")
    assert cli("DBSIZE") == 0, "no residue"


def test_each_reader_has_a_lease_of_its_own(cli):
    # G2, G3
    take(cli, "door", "long", "SHARED")
    take(cli, "door", "short", "SHARED", lease_ms=100)
    take(cli, "door", "renewed", "SHARED", lease_ms=100)
    assert cli("LOCK.RENEW door renewed PX 3600000") == 1
    eventually(lambda: owners_of(cli, "door") == ["long", "renewed"], "one lease ends")
    assert cli("LOCK.RENEW door short PX 1000") == 0
    assert hold_of(cli, "door", "renewed")["lease-left-ms"] > 3_000_000
    assert count(cli, "expirations") >= 1


def test_the_same_reader_again_gets_its_token_and_no_second_hold(cli):
    # G9
    token = take(cli, "door", "r", "SHARED", lease_ms=50_000)
    take(cli, "door", "other", "SHARED")
    assert take(cli, "door", "r", "SHARED", lease_ms=20_000) == token
    assert hold_of(cli, "door", "r")["lease-left-ms"] > 20_000, "never shortened"
    assert take(cli, "door", "r", "SHARED") == token
    assert hold_of(cli, "door", "r")["lease-left-ms"] > 50_000
    assert hold_of(cli, "door", "r")["count"] == 1
    assert len(owners_of(cli, "door")) == 2


@pytest.mark.parametrize("held", ["", "SHARED"])
def test_a_writer_and_a_reader_exclude_each_other(cli, held):
    # G1
    take(cli, "door", "alice", held)
    assert take(cli, "door", "bob", "" if held else "SHARED") is None
    assert owners_of(cli, "door") == ["alice"]


def test_a_writer_waits_for_the_last_reader(server, cli):
    # G1, G6
    take(cli, "door", "r1", "SHARED")
    newest = take(cli, "door", "r2", "SHARED")
    writer = ask(server, "door", "w")
    assert writer.waits()
    release(cli, "door", "r1")
    assert writer.waits()
    release(cli, "door", "r2")
    assert writer.answer() > newest
    assert kind_of(cli, "door") == ("exclusive", None)
    assert owners_of(cli, "door") == ["w"]


def test_readers_that_wait_next_to_each_other_come_in_together(server, cli):
    # G5
    take(cli, "door", "alice")
    waiters = {
        name: ask(server, "door", name, "SHARED" if name[0] == "r" else "")
        for name in ("r1", "r2", "w1", "r3", "r4", "r5", "w2", "w3", "r6")
    }
    modes = [waiter["mode"] for waiter in lock_info(cli, "door", "FULL")["queue"]]
    assert modes == [
        {"r": "shared", "w": "exclusive"}[name[0]] for name in waiters
    ]
    release(cli, "door", "alice")
    last = 0
    for batch in (["r1", "r2"], ["w1"], ["r3", "r4", "r5"], ["w2"], ["w3"], ["r6"]):
        tokens = [waiters.pop(name).answer() for name in batch]
        assert tokens == sorted(set(tokens)) and tokens[0] > last
        last = tokens[-1]
        assert owners_of(cli, "door") == batch
        assert line_of(cli, "door") == list(waiters)
        for name in batch:
            if waiters:
                assert next(iter(waiters.values())).waits(), "not before all have left"
            release(cli, "door", name)
    assert cli("DBSIZE") == 0


def test_a_reader_does_not_pass_a_waiting_writer(server, cli):
    # G5: a stream of readers does not starve a writer
    take(cli, "door", "r1", "SHARED")
    writer = ask(server, "door", "w")
    assert take(cli, "door", "r2", "SHARED") is None
    late = ask(server, "door", "r3", "SHARED")
    assert late.waits()
    assert take(cli, "door", "r1", "SHARED") is not None, "a holder is not a newcomer"
    release(cli, "door", "r1")
    assert isinstance(writer.answer(), int)
    assert late.waits()
    release(cli, "door", "w")
    assert isinstance(late.answer(), int)


def test_a_stream_of_writers_does_not_starve_a_reader(server, cli):
    # G5
    take(cli, "door", "w0")
    writers = [ask(server, "door", f"w{n}") for n in (1, 2)]
    reader = ask(server, "door", "r", "SHARED")
    later = [ask(server, "door", f"w{n}") for n in (3, 4)]
    for n, writer in enumerate(writers):
        release(cli, "door", f"w{n}")
        writer.answer()
    release(cli, "door", "w2")
    assert isinstance(reader.answer(), int)
    assert all(writer.waits() for writer in later)


@pytest.mark.parametrize("end", ["close", "timeout", "withdraw", "UNBLOCK"])
def test_readers_come_in_when_the_writer_ahead_of_them_gives_up(server, cli, end):
    # G6: a wait that ends unblocks others
    take(cli, "door", "r1", "SHARED")
    writer = ask(server, "door", "w", block_ms=400 if end == "timeout" else 0)
    readers = [ask(server, "door", f"r{n}", "SHARED") for n in (2, 3)]
    if end == "close":
        writer.leave()
    elif end == "withdraw":
        cli("LOCK.RELEASE door w")
    elif end == "UNBLOCK":
        cli("CLIENT", "UNBLOCK", writer.client_id)
    if end != "close":
        assert writer.answer() is None
    assert all(isinstance(reader.answer(), int) for reader in readers)
    assert owners_of(cli, "door") == ["r1", "r2", "r3"]


def test_no_request_slips_in_between_a_release_and_the_next_batch(server, cli):
    # G5: release and newcomers arrive in one packet
    take(cli, "door", "alice")
    waiters = [ask(server, "door", name, "SHARED") for name in ("r1", "r2")]
    writer = ask(server, "door", "w")
    cli.send_bytes(
        encode("LOCK.RELEASE door alice")
        + encode("LOCK.ACQUIRE door late PX 60000 SHARED")
        + encode("LOCK.ACQUIRE door later PX 60000")
    )
    assert [cli.read(), cli.read(), cli.read()] == [1, None, None]
    assert all(isinstance(waiter.answer(), int) for waiter in waiters)
    assert writer.waits()
    assert owners_of(cli, "door") == ["r1", "r2"]


# A reader asks for the whole lock


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("options", ["", "BLOCK 0", "BLOCK 100", "QUEUE 1000", "REENTRANT", "EPHEMERAL 0 KEEPALIVE"])
def test_a_reader_that_asks_for_the_whole_lock_is_refused_and_nothing_changes(cli, others, options):
    # CONTRACT 2: with or without BLOCK and QUEUE
    token = take(cli, "door", "r1", "SHARED", lease_ms=50_000)
    if others:
        take(cli, "door", "r2", "SHARED")
    before = lock_info(cli, "door", "FULL")
    with refused("LOCKHELD", "'door'", "release every key that this request names"):
        take(cli, "door", "r1", options, lease_ms=3_000_000)
    assert cli("LOCK.FENCE", "door", token) == 1
    hold, after = hold_of(cli, "door", "r1"), lock_info(cli, "door", "FULL")
    assert hold["lease-left-ms"] <= 50_000 and hold["count"] == 1
    assert [held["token"] for held in after["holders"]] == [held["token"] for held in before["holders"]]
    assert line_of(cli, "door") == []
    assert take(cli, "door", "r3", "SHARED") is not None, "nobody waits"


def test_a_reader_that_releases_first_gets_the_whole_lock_behind_those_who_wait(server, cli):
    # the remedy that the error names; G5
    old = take(cli, "door", "r1", "SHARED")
    writer = ask(server, "door", "w")
    with refused("LOCKHELD"):
        take(cli, "door", "r1", "BLOCK 0")
    release(cli, "door", "r1")
    assert writer.answer() > old
    again = ask(server, "door", "r1")
    assert again.waits()
    release(cli, "door", "w")
    assert isinstance(again.answer(), int)
    assert kind_of(cli, "door") == ("exclusive", None)


def test_a_reader_whose_lease_has_expired_may_ask_for_the_whole_lock(cli):
    # G3: it holds nothing
    take(cli, "door", "r1", "SHARED", lease_ms=50)
    eventually(lambda: owners_of(cli, "door") == [], "the lease ends")
    assert isinstance(take(cli, "door", "r1"), int)


def test_the_kind_comes_before_the_hold_and_the_hold_before_the_queue(server, cli):
    # CONTRACT 9: the order of refusals
    cli("CONFIG SET redislock.max-waiters-per-lock 1")
    take(cli, "door", "r1", "SHARED")
    ask(server, "door", "w")
    with refused("LOCKKIND"):
        take(cli, "door", "r1", "LIMIT 2 BLOCK 0")
    with refused("LOCKHELD"):
        take(cli, "door", "r1", "BLOCK 0")
    with refused("LOCKQUEUE"):
        take(cli, "door", "w2", "BLOCK 0")


# Downgrade


def test_a_downgrade_keeps_the_token_and_lets_readers_at_the_head_in(server, cli):
    # G5, G6
    token = take(cli, "door", "w")
    names = ["r1", "r2", "w2", "r3"]
    waiters = {name: ask(server, "door", name, "SHARED" if name[0] == "r" else "") for name in names}
    assert take(cli, "door", "w", "SHARED") == token
    assert all(waiters[name].answer() > token for name in ("r1", "r2"))
    assert owners_of(cli, "door") == ["w", "r1", "r2"]
    assert kind_of(cli, "door") == ("shared", None)
    assert waiters["w2"].waits() and waiters["r3"].waits()
    assert cli("LOCK.FENCE", "door", token) == 1
    for name in ("w", "r1", "r2"):
        release(cli, "door", name)
    assert isinstance(waiters["w2"].answer(), int)


def test_a_downgrade_does_not_let_readers_past_a_waiting_writer(server, cli):
    # G5
    take(cli, "door", "w")
    writer = ask(server, "door", "w2")
    reader = ask(server, "door", "r", "SHARED")
    take(cli, "door", "w", "SHARED")
    assert writer.waits() and reader.waits()
    release(cli, "door", "w")
    assert isinstance(writer.answer(), int)


def test_a_downgrade_never_shortens_the_lease(cli):
    # G2
    take(cli, "door", "w", lease_ms=50_000)
    take(cli, "door", "w", "SHARED", lease_ms=1000)
    assert hold_of(cli, "door", "w")["lease-left-ms"] > 1000
    assert hold_of(cli, "door", "w")["lease-left-ms"] <= 50_000


def test_taken_and_downgraded_many_times(cli):
    # G4
    last = 0
    for _ in range(20):
        token = take(cli, "door", "alice")
        assert token > last
        last = token
        assert take(cli, "door", "alice", "SHARED") == token
        release(cli, "door", "alice")
    assert cli("DBSIZE") == 0
    assert (count(cli, "locks"), count(cli, "holds")) == (0, 0)


# Kinds that do not go together


@pytest.mark.parametrize("held", ["", "SHARED"])
@pytest.mark.parametrize("options", ["LIMIT 2", "LIMIT 1", "LIMIT 2 BLOCK 0", "LIMIT 2 QUEUE 1000"])
def test_a_semaphore_is_another_kind(cli, held, options):
    token = take(cli, "door", "alice", held)
    for owner in ("bob", "alice"):
        with refused("LOCKKIND"):
            take(cli, "door", owner, options)
    assert cli("LOCK.FENCE", "door", token) == 1
    assert line_of(cli, "door") == []


def test_the_kind_is_free_again_without_holders_and_waiters(cli):
    take(cli, "door", "alice", "SHARED")
    release(cli, "door", "alice")
    assert isinstance(take(cli, "door", "bob", "LIMIT 2"), int)


# How many


def test_a_thousand_readers(server, cli):
    # G1, G6
    commands = [f"LOCK.ACQUIRE door r{n} PX 3600000 SHARED" for n in range(1000)]
    tokens = cli.pipeline(*commands)
    assert tokens == sorted(set(tokens))
    writer = ask(server, "door", "w")
    order = [n * 7 % 1000 for n in range(1000)]
    assert cli.pipeline(*[f"LOCK.RELEASE door r{n}" for n in order[:-1]]) == [1] * 999
    assert writer.waits()
    release(cli, "door", f"r{order[-1]}")
    assert writer.answer() > tokens[-1]


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_reader_that_asked_for_an_owner_gets_one(server, protocol):
    cli = server.connect(protocol)
    owner, token = take(cli, "door", "*", "SHARED")
    other, second = take(cli, "door", "*", "SHARED")
    assert owner != other and second > token
    assert owners_of(cli, "door") == [owner, other]
    writer = ask(server, "door", "*", protocol=protocol)
    release(cli, "door", owner)
    release(cli, "door", other)
    name, third = writer.answer()
    assert owners_of(cli, "door") == [name] and third > second
