"""LOCK.ACQUIRE ... SHARED: what readers and writers are promised, and who changes from one to the other.

G1 (readers together or one writer), G5 (first come, first served; consecutive readers
come in together), G9; upgrade and downgrade. What shared locks have in common with the
others is in test_files.py, test_replicas.py and test_seeing.py. How many there may be is in
test_max_holders_and_waiters.py. What others test their readers-writer locks for is in
test_other_suites_readers_writers.py.
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
    # G6: a wait that ends lets others in
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


def test_nobody_slips_in_between_a_release_and_the_next_batch(server, cli):
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


# Upgrade


def test_the_only_reader_upgrades_at_once_with_a_new_token(cli):
    # G4: a reader may have been told the old token
    old = take(cli, "door", "r", "SHARED", lease_ms=50_000)
    new = take(cli, "door", "r")
    assert new > old
    assert [cli("LOCK.FENCE", "door", token) for token in (old, new)] == [0, 1]
    assert kind_of(cli, "door") == ("exclusive", None)
    assert owners_of(cli, "door") == ["r"]
    assert take(cli, "door", "other", "SHARED") is None
    release(cli, "door", "r")
    assert cli("DBSIZE") == 0, "one hold, not two"


def test_an_upgrade_waits_ahead_of_everybody_and_keeps_its_shared_hold(server, cli):
    # G5, its first exception
    old = take(cli, "door", "r1", "SHARED")
    other = take(cli, "door", "r2", "SHARED")
    first = ask(server, "door", "w1")
    upgrade = ask(server, "door", "r1")
    assert upgrade.waits()
    assert line_of(cli, "door") == ["r1", "w1"]
    assert owners_of(cli, "door") == ["r1", "r2"]
    assert cli("LOCK.FENCE", "door", old) == 1
    assert take(cli, "door", "late", "SHARED") is None, "nobody passes it"
    release(cli, "door", "r2", "TOKEN", other)
    new = upgrade.answer()
    assert new > other
    assert [cli("LOCK.FENCE", "door", token) for token in (old, new)] == [0, 1]
    assert owners_of(cli, "door") == ["r1"]
    assert kind_of(cli, "door") == ("exclusive", None)
    assert first.waits()
    release(cli, "door", "r1")
    assert isinstance(first.answer(), int)


def test_an_upgrade_without_wait_gets_nil_and_keeps_its_hold(cli):
    token = take(cli, "door", "r1", "SHARED")
    take(cli, "door", "r2", "SHARED")
    assert take(cli, "door", "r1") is None
    assert cli("LOCK.FENCE", "door", token) == 1
    assert take(cli, "door", "r3", "SHARED") is not None, "nobody waits"


def test_a_second_upgrade_would_wait_for_the_first(server, cli):
    # G11: each waits for the other to give up its shared hold
    for name in ("r1", "r2", "r3"):
        take(cli, "door", name, "SHARED")
    upgrade = ask(server, "door", "r1")
    with refused("DEADLOCK", "'r1'", "'r2'", "'door'"):
        take(cli, "door", "r2", "BLOCK 0")
    assert owners_of(cli, "door") == ["r1", "r2", "r3"], "the refused one still reads"
    assert line_of(cli, "door") == ["r1"]
    assert upgrade.waits()
    release(cli, "door", "r2")
    release(cli, "door", "r3")
    assert isinstance(upgrade.answer(), int)


def test_a_second_upgrader_is_told_so_although_it_would_not_wait(server, cli):
    for owner in ("alice", "bob"):
        take(cli, "door", owner, "SHARED")
    ask(server, "door", "alice")
    with refused("DEADLOCK"):
        take(cli, "door", "bob")


@pytest.mark.parametrize("end", ["close", "timeout", "withdraw", "UNBLOCK"])
def test_an_upgrade_that_is_given_up_leaves_the_shared_hold(server, cli, end):
    # G8, G10: a connection that closes ends the wait, not the hold
    token = take(cli, "door", "r1", "SHARED")
    take(cli, "door", "r2", "SHARED")
    upgrade = ask(server, "door", "r1", block_ms=300 if end == "timeout" else 0)
    reader = ask(server, "door", "r3", "SHARED")
    assert end == "timeout" or reader.waits()
    if end == "close":
        upgrade.leave()
    elif end == "UNBLOCK":
        cli("CLIENT", "UNBLOCK", upgrade.client_id)
    elif end == "withdraw":
        # RELEASE gives up the hold and withdraws the request (CONTRACT 2)
        release(cli, "door", "r1")
    if end != "close":
        assert upgrade.answer() is None
    assert isinstance(reader.answer(), int)
    assert cli("LOCK.FENCE", "door", token) == (0 if end == "withdraw" else 1)


def test_an_upgrade_whose_shared_lease_ends_meanwhile_still_waits(server, cli):
    # G3, G7: it held nothing any more, and gets the lock in its turn
    take(cli, "door", "r1", "SHARED", lease_ms=100)
    take(cli, "door", "r2", "SHARED")
    upgrade = ask(server, "door", "r1")
    eventually(lambda: owners_of(cli, "door") == ["r2"], "the shared lease ends")
    assert upgrade.waits()
    release(cli, "door", "r2")
    assert isinstance(upgrade.answer(), int)
    assert owners_of(cli, "door") == ["r1"]


def test_an_upgrade_sent_again_takes_over_its_place(server, cli):
    # G9
    take(cli, "door", "r1", "SHARED")
    take(cli, "door", "r2", "SHARED")
    old = ask(server, "door", "r1")
    writer = ask(server, "door", "w")
    new = ask(server, "door", "r1")
    with refused("UNBLOCKED"):
        old.answer()
    assert line_of(cli, "door") == ["r1", "w"]
    release(cli, "door", "r2")
    assert isinstance(new.answer(), int)
    assert writer.waits()


def test_an_upgraders_shared_retry_is_still_a_retry(server, cli):
    # G9: same owner, same mode
    token = take(cli, "door", "r1", "SHARED")
    take(cli, "door", "r2", "SHARED")
    upgrade = ask(server, "door", "r1")
    assert take(cli, "door", "r1", "SHARED") == token
    assert upgrade.waits()


def test_an_upgrade_does_not_shorten_the_lease(server, cli):
    take(cli, "door", "alice", "SHARED", lease_ms=60_000)
    take(cli, "door", "alice", lease_ms=1000)
    assert hold_of(cli, "door", "alice")["lease-left-ms"] > 1000


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


def test_down_and_up_many_times(cli):
    # G4
    token = take(cli, "door", "alice")
    for _ in range(20):
        assert take(cli, "door", "alice", "SHARED") == token
        new = take(cli, "door", "alice")
        assert new > token
        token = new
    assert cli("LOCK.FENCE door") == token
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


def test_the_kind_is_free_again_when_nobody_holds_or_waits(cli):
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
