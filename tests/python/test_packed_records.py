"""Names and owners of every form come back byte by byte, whatever way a lock is kept in and travels.

A lock is written as narrowly as its name and its owner allow. They may have a number at the end of the name, a word
that many names begin with, a UUID, a database. Other names are kept as they are, outside of the record if it has no
room. No client may see a difference.
"""

import os
import random
import time
import uuid

import pytest

from harness.limits import SLOW_FACTOR, SOON_SECONDS, eventually
from harness.payload import dump
from harness.replies import holder, lock_info, module_info, owner_of
from harness.wire import ServerError

UUID = b"5e0f3a0c-2b8e-4d43-9c4e-6f0a4f5d3b21"

NAMES = [
    b"", b"0", b"00", b"7", b"door", b"lock:order:123456", b"lock:order:000001", b"lock:order:1",
    b"lock:order:01", b"lock:order:", b"1" * 17, b"9" * 18, b"0" * 18, b"9" * 19, b"n" + b"9" * 18,
    b"n" + b"0" * 19, b"n" + b"0" * 20 + b"1", b"n" + b"18446744073709551615",
    b"n" + b"18446744073709551616", b"n" + b"9" * 40, b"12a", b"a-1", b"a+1", b"a 1",
    b"w" * 63 + b"5", b"w" * 64 + b"5", b"w" * 65 + b"5", b"p" * 107, b"p" * 108, b"p" * 109,
    b"p" * 108 + b"12", b"q" * 8_191, b"q" * 8_192 + b"17", b"q" * 20_000, b"\x00", b"\x000",
    b"0\x00", b"\xff\xfe\xfd1", b"\xff" * 40,
    "caf\u00e9:\u0663".encode(),  # an Arabic-Indic digit is no digit
    "d\u00fcr".encode() + b"007", b"a\r\nb\r\n9", b"/1:;0", UUID, b"user:" + UUID,
]

OWNERS = [
    UUID, UUID.upper(), UUID[:-1] + b"F", UUID[:-1] + b"g", UUID[:-1], UUID + b"0",
    UUID.replace(b"-", b""), UUID.replace(b"-", b"_"), b"5e0f3a0-c2b8e-4d43-9c4e-6f0a4f5d3b21",
    b"-" * 36, b"0" * 36, b"00000000-0000-0000-0000-000000000000",
    b"ffffffff-ffff-ffff-ffff-ffffffffffff", UUID[:8] + b"\xad" + UUID[9:],
    bytes(byte | 0x80 for byte in UUID), b"{" + UUID + b"}", b"a", b"\x00", b"\xff", b" ",
    b"16 bytes of text", bytes(range(256)), b"\xff" * 255, b"x" * 256, b"**",
]

DATABASES = (0, 1, 15)


def text(value):
    """Bytes as the harness shows them."""
    return value.decode("utf-8", "surrogateescape")


def every_pair():
    """All names, each with some owners, so that each owner meets names of every kind."""
    for number, name in enumerate(NAMES):
        yield name, OWNERS[number % len(OWNERS)]


def fill(server, lease_ms=600_000, databases=DATABASES):
    """Locks of all forms in several databases: {(database, name): (owner, token)}."""
    held = {}
    for step, database in enumerate(databases):
        cli = server.connect(db=database)
        for number, name in enumerate(NAMES):
            owner = OWNERS[(number + 7 * step) % len(OWNERS)]
            token = cli("LOCK.ACQUIRE", name, owner, "PX", lease_ms)
            assert token > 0
            held[database, name] = (owner, token)
    return held


def assert_held(server, held):
    """Each lock has its owner and its token, to the byte, and every other owner and token is rejected."""
    for database in sorted({database for database, _ in held}):
        cli = server.connect(db=database)
        mine = {name: hold for (db, name), hold in held.items() if db == database}
        replies = cli.pipeline(
            *[("LOCK.INFO", name) for name in mine],
            *[("LOCK.FENCE", name) for name in mine],
            *[("LOCK.FENCE", name, token) for name, (_, token) in mine.items()],
            *[("LOCK.FENCE", name, token + 1) for name, (_, token) in mine.items()],
        )
        count = len(mine)
        for number, (name, (owner, token)) in enumerate(mine.items()):
            info = replies[number]
            assert not isinstance(info, (ServerError, type(None))), (database, name, info)
            fields = dict(zip(info[::2], info[1::2]))
            hold = fields["holders"][0]
            hold = dict(zip(hold[::2], hold[1::2]))
            assert os.fsencode(hold["owner"]) == owner, (database, name)
            assert hold["token"] == token, (database, name)
            assert replies[count + number] == token
            assert replies[2 * count + number] == 1
            assert replies[3 * count + number] == 0
        # It is denied to other owners, and granted to its own.
        for name, (owner, token) in mine.items():
            others = [other for other in OWNERS if other != owner]
            denied = cli.pipeline(
                *[("LOCK.RELEASE", name, other) for other in others],
                *[("LOCK.RENEW", name, other, "PX", 5) for other in others[:6]],
                ("LOCK.RELEASE", name, owner, "TOKEN", token + 1),
            )
            assert set(denied) == {0}, (database, name, owner)
        assert set(cli.pipeline(*[("LOCK.RENEW", n, o, "PX", 600_000) for n, (o, _) in mine.items()])) == {1}
        size = cli("DBSIZE")
        assert size == count, (database, size)


def release(server, held):
    """Each is given up by its own owner, and nothing is left."""
    for database in sorted({database for database, _ in held}):
        cli = server.connect(db=database)
        mine = [(name, *hold) for (db, name), hold in held.items() if db == database]
        commands = [("LOCK.RELEASE", name, owner, "TOKEN", token) for name, owner, token in mine]
        assert set(cli.pipeline(*commands)) == {1}
    eventually(lambda: module_info(server.connect())["locks"] == "0", "what was flushed is forgotten")
    assert module_info(server.connect())["holds"] == "0"


# As they are


def test_all_names_and_owners_are_held_and_given_up(server):
    held = fill(server, databases=range(16))
    assert_held(server, held)
    release(server, held)


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_bytes_of_the_answers(server, protocol):
    cli = server.connect(protocol=protocol)
    for name, owner in every_pair():
        token = cli("LOCK.ACQUIRE", name, owner, "PX", 60000)
        wanted = b"$%d\r\n%s\r\n" % (len(owner), owner)
        reply = cli.bytes_of("LOCK.INFO", name)
        assert b"$5\r\nowner\r\n" + wanted + b"$5\r\ntoken\r\n:%d\r\n" % token in reply
        assert cli.bytes_of("LOCK.FENCE", name) == b":%d\r\n" % token


def test_every_owner_on_one_lock(cli):
    # Each asks again and is known; no other is.
    for name in (b"", b"lock:order:123456", b"p" * 108, b"q" * 9_000):
        for owner in OWNERS:
            token = cli("LOCK.ACQUIRE", name, owner, "PX", 60000)
            replies = cli.pipeline(*[("LOCK.ACQUIRE", name, other, "PX", 60000) for other in OWNERS])
            assert replies == [token if other == owner else None for other in OWNERS], owner
            assert cli("LOCK.RELEASE", name, owner) == 1
    assert cli("DBSIZE") == 0


def test_names_that_differ_in_a_zero_are_different_locks(cli):
    names = [b"n" + b"0" * zeros + digits for zeros in range(21) for digits in (b"", b"1", b"10")]
    tokens = cli.pipeline(*[("LOCK.ACQUIRE", name, UUID, "PX", 60000) for name in names])
    assert len(set(tokens)) == len(names) == cli("DBSIZE")
    assert cli.pipeline(*[("LOCK.FENCE", name) for name in names]) == tokens
    assert sorted(os.fsencode(key) for key in cli("KEYS *")) == sorted(names)


def test_more_words_than_are_kept_once(server):
    # 255 of them have a seat; the others are kept with their names.
    cli, other = server.connect(), server.connect(db=3)
    names = [f"word-{word}:{number}" for word in range(700) for number in (0, 17)]
    for connection in (cli, other):
        tokens = connection.pipeline(*[("LOCK.ACQUIRE", name, UUID, "PX", 60000) for name in names])
        assert connection.pipeline(*[("LOCK.FENCE", name) for name in names]) == tokens
    # Seats are given up and taken by other words, while some names keep theirs.
    assert set(cli.pipeline(*[("LOCK.RELEASE", name, UUID) for name in names[::2]])) == {1}
    new = [f"other-{word}:5" for word in range(700)]
    tokens = cli.pipeline(*[("LOCK.ACQUIRE", name, UUID, "PX", 60000) for name in new])
    assert cli.pipeline(*[("LOCK.FENCE", name) for name in new]) == tokens
    assert set(cli.pipeline(*[("LOCK.RELEASE", name, UUID) for name in names[1::2]])) == {1}
    assert set(cli.pipeline(*[("LOCK.RELEASE", name, UUID) for name in new])) == {1}
    assert set(other.pipeline(*[("LOCK.RELEASE", name, UUID) for name in names])) == {1}
    assert module_info(cli)["locks"] == "0"


def test_slots_that_are_used_again_show_nothing_of_before(cli):
    # Every kind of record in every kind of slot, many times over, against a dictionary.
    chance = random.Random(7)
    held = {}
    for _ in range(60):
        commands, expected = [], []
        for _ in range(100):
            name, owner = chance.choice(NAMES), chance.choice(OWNERS)
            now = held.get(name)
            if chance.random() < 0.5:
                commands.append(("LOCK.ACQUIRE", name, owner, "PX", 600_000))
                expected.append("taken" if now in (None, owner) else None)
                held.setdefault(name, owner)
            else:
                owner = now if now and chance.random() < 0.7 else owner
                commands.append(("LOCK.RELEASE", name, owner))
                expected.append(int(now == owner))
                if now == owner:
                    del held[name]
        replies = cli.pipeline(*commands)
        for command, reply, wanted in zip(commands, replies, expected):
            assert (reply > 0 if wanted == "taken" else reply == wanted), (command, reply, wanted)
    for name in NAMES:
        owner = owner_of(cli, name)
        assert (owner and os.fsencode(owner)) == held.get(name)


def test_a_number_that_comes_again_is_another_lock(server, cli):
    # A slot counts its lives in seven bits. A life that was released must not be taken for one that is deleted now.
    broken = int(module_info(cli)["broken"])
    cli("LOCK.ACQUIRE door alice PX 60000")
    assert cli("LOCK.RELEASE door alice") == 1
    for _ in range(300):
        cli("LOCK.ACQUIRE door alice PX 60000")
        assert cli("DEL door") == 1
        assert module_info(cli)["locks"] == "0"
    eventually(lambda: int(module_info(cli)["broken"]) == broken + 300, "each is told of")


# One owner after the other


def test_a_lock_is_handed_over_to_owners_of_every_form(server, cli):
    # The record stays where it is, and its owner becomes longer, shorter, a UUID, none.
    for name in (b"7", b"lock:order:123456", b"p" * 108, b"q" * 9_000):
        line = OWNERS
        last = cli("LOCK.ACQUIRE", name, line[0], "PX", 60000)
        waiting = [server.ask("LOCK.ACQUIRE", name, owner, "PX", 60000, "BLOCK", 0) for owner in line[1:]]
        queue = lock_info(cli, name, "FULL")["queue"]
        assert [os.fsencode(waiter["owner"]) for waiter in queue] == line[1:]
        for before, owner, request in zip(line, line[1:], waiting):
            assert cli("LOCK.RELEASE", name, before) == 1
            token = request.answer()
            assert token > last
            last = token
            hold = holder(cli, name)
            assert (os.fsencode(hold["owner"]), hold["token"]) == (owner, token)
            assert cli("LOCK.RELEASE", name, before) == 0
            request.leave()
        assert cli("LOCK.RELEASE", name, line[-1]) == 1
    assert module_info(cli)["locks"] == "0"


def test_an_empty_lock_is_taken_by_owners_of_every_form(cli):
    for number, owner in enumerate(OWNERS):
        name = NAMES[number % len(NAMES)]
        cli("LOCK.ACQUIRE", "some:1", b"x", "PX", 60000)
        cli("RENAME", "some:1", name)
        assert cli("LOCK.INFO", name) is None
        token = cli("LOCK.ACQUIRE", name, owner, "PX", 60000)
        hold = holder(cli, name)
        assert (os.fsencode(hold["owner"]), hold["token"]) == (owner, token)
        assert cli("LOCK.RELEASE", name, owner) == 1
    assert cli("DBSIZE") == 0


# Ends


def test_leases_of_all_forms_end(server):
    fill(server, lease_ms=300)
    eventually(lambda: module_info(server.connect())["locks"] == "0", "all leases end")
    for database in DATABASES:
        assert server.connect(db=database)("DBSIZE") == 0


def test_renewed_leases_end_when_they_should(cli):
    # From long to short, from short to long, on all of the wheel's levels, around their borders.
    lengths = [60_000, 65_536, 262_143, 262_144, 262_145, 524_288, 600_000, 3_600_000]
    chance = random.Random(3)
    names = [(name, OWNERS[number % len(OWNERS)]) for number, name in enumerate(NAMES)]
    for name, owner in names:
        cli("LOCK.ACQUIRE", name, owner, "PX", 600_000)
    for _ in range(20):
        commands = [("LOCK.RENEW", n, o, "PX", chance.choice(lengths)) for n, o in names]
        assert set(cli.pipeline(*commands)) == {1}
    tokens = cli.pipeline(*[("LOCK.FENCE", name) for name, _ in names])
    start = time.monotonic()
    assert set(cli.pipeline(*[("LOCK.RENEW", n, o, "PX", 500) for n, o in names])) == {1}
    last = {}
    while len(last) < len(names):
        fences = cli.pipeline(*[("LOCK.FENCE", name, token) for (name, _), token in zip(names, tokens)])
        for (name, _), fence in zip(names, fences):
            if fence == 0:
                last.setdefault(name, time.monotonic() - start)
        assert time.monotonic() - start < SOON_SECONDS
    assert min(last.values()) >= 0.500
    eventually(lambda: cli("DBSIZE") == 0, "the keys go")


# Ways that a lock travels


def test_packed_records_survive_a_reload(server, cli):
    # G13
    held = fill(server)
    before = cli("DEBUG DIGEST")
    cli("DEBUG RELOAD")
    assert cli("DEBUG DIGEST") == before
    assert_held(server, held)
    release(server, held)


OPTIONS = {
    "rdb": ["--save", "3600 1"],
    "aof": ["--appendonly", "yes", "--appendfsync", "always"],
    "rewritten": ["--appendonly", "yes", "--appendfsync", "always", "--aof-use-rdb-preamble", "no"],
}


@pytest.mark.parametrize("way", OPTIONS)
def test_packed_records_survive_a_restart(start_server, way):
    # G13
    server = start_server(*OPTIONS[way])
    held = fill(server)
    if way == "rdb":
        server.admin("SAVE")
    if way == "rewritten":
        server.admin("BGREWRITEAOF")
        eventually(lambda: server.info("persistence")["aof_rewrite_in_progress"] == "0", "it is written")
    server.kill()
    server.start()
    assert_held(server, held)
    release(server, held)


def test_a_replica_has_the_same(start_server):
    # G13: by a full synchronisation, and by the stream
    primary = start_server("--repl-diskless-sync-delay", "0")
    held = fill(primary, databases=(0, 1))
    replica = start_server("--replicaof", f"127.0.0.1 {primary.port}")
    eventually(lambda: replica.info("replication")["master_link_status"] == "up", "the link is up")
    # By records that name owner and token, and by the client's own words.
    held.update(fill(primary, databases=(2, 15)))
    connections = {database: primary.connect(db=database) for database in (0, 1, 2, 15)}
    for (database, name), (owner, _) in list(held.items())[::3]:
        assert connections[database]("LOCK.RELEASE", name, owner) == 1
        del held[database, name]
    digest = primary.admin("DEBUG DIGEST")
    eventually(lambda: replica.admin("DEBUG DIGEST") == digest, "the replica has the same")
    replica.admin("REPLICAOF NO ONE")
    assert_held(replica, held)
    release(replica, held)


def test_dump_and_restore_keep_owner_and_token(start_server, server, cli):
    target = start_server()
    other = target.connect()
    pairs = list(every_pair())
    tokens = [cli("LOCK.ACQUIRE", name, owner, "PX", 60000) for name, owner in pairs]
    for (name, owner), token in zip(pairs, tokens):
        other("RESTORE", name, 0, dump(cli, name))
        hold = holder(other, name)
        assert (os.fsencode(hold["owner"]), hold["token"]) == (owner, token)
        # Put over one that is there.
        other("RESTORE", name, 0, dump(cli, name), "REPLACE")
        assert other("LOCK.FENCE", name, token) == 1
        # Under another name it has no hold.
        other("RESTORE", name + b"!", 0, dump(cli, name))
        assert other("LOCK.INFO", name + b"!") is None
        assert other("DEL", name + b"!") == 1
    assert set(other.pipeline(*[("LOCK.RELEASE", name, owner) for name, owner in pairs])) == {1}
    assert other("DBSIZE") == 0


def test_names_that_look_alike_are_not_the_same_name(cli):
    # A hold is tied to its name; a packed name must distinguish all of these.
    alike = [b"n1", b"n01", b"n001", b"n10", b"n", b"N1", b"n1\x00", b"m1", b"nn1", b"n" + b"0" * 18 + b"1"]
    for name in alike:
        cli("LOCK.ACQUIRE", name, UUID, "PX", 60000)
        payload = dump(cli, name)
        for other in alike:
            if other != name:
                cli("RESTORE", other, 0, payload)
                assert cli("LOCK.INFO", other) is None, (name, other)
                cli("DEL", other)
        assert owner_of(cli, name) == text(UUID)
        cli("RENAME", name, b"elsewhere")
        cli("RENAME", b"elsewhere", name)
        assert cli("LOCK.INFO", name) is None
        assert cli("DEL", name) == 1


def test_renaming_and_moving_break_all_forms(server):
    cli, there = server.connect(), server.connect(db=5)
    for name, owner in every_pair():
        cli("LOCK.ACQUIRE", name, owner, "PX", 60000)
        cli("RENAME", name, b"new:" + name)
        assert cli("LOCK.INFO", b"new:" + name) is None
        assert cli("LOCK.ACQUIRE", b"new:" + name, owner, "PX", 60000) > 0
        assert cli("MOVE", b"new:" + name, 5) == 1
        assert there("LOCK.INFO", b"new:" + name) is None
        assert there("LOCK.ACQUIRE", b"new:" + name, OWNERS[3], "PX", 60000) > 0
        assert there("LOCK.RELEASE", b"new:" + name, OWNERS[3]) == 1
        try:
            copied = there("COPY", name, b"copy")
        except ServerError:
            copied = 0
        assert copied == 0
    assert (cli("DBSIZE"), there("DBSIZE")) == (0, 0)


def test_swapped_databases_hold_nothing_and_others_continue(server):
    held = fill(server)
    server.admin("SWAPDB 0 1")
    for database in (0, 1):
        cli = server.connect(db=database)
        assert set(cli.pipeline(*[("LOCK.FENCE", name) for name in NAMES])) == {None}
        assert cli("DBSIZE") == len(NAMES)
        # Empty locks, free to be taken under their new names.
        for number, name in enumerate(NAMES):
            owner = OWNERS[(number + 3) % len(OWNERS)]
            held[database, name] = (owner, cli("LOCK.ACQUIRE", name, owner, "PX", 60000))
    assert_held(server, held)
    release(server, held)


@pytest.mark.parametrize("how", ["", "ASYNC", "SYNC"])
def test_one_database_is_flushed(server, how):
    held = fill(server)
    there = server.connect(db=1)
    there(f"FLUSHDB {how}".strip())
    assert there("DBSIZE") == 0
    held = {where: hold for where, hold in held.items() if where[0] != 1}
    eventually(lambda: module_info(there)["locks"] == str(len(held)), "the others are left")
    assert_held(server, held)
    # The same names again, before and after anything is buried.
    tokens = {name: there("LOCK.ACQUIRE", name, OWNERS[0], "PX", 60000) for name in NAMES}
    held.update({(1, name): (OWNERS[0], token) for name, token in tokens.items()})
    assert_held(server, held)


# Memory

COUNT = 100_000 // SLOW_FACTOR


def used_memory(server):
    """The memory that the server has allocated."""
    return int(server.info("memory")["used_memory"])


def take_many(cli, names, owner):
    """Takes and gives up locks in packets of a bounded size."""
    for start in range(0, len(names), 5_000):
        part = names[start : start + 5_000]
        assert None not in cli.pipeline(*[("LOCK.ACQUIRE", name, owner, "PX", 600_000) for name in part])


KINDS = {
    "usual": ([f"lock:order:{number}" for number in range(COUNT)], UUID),
    "plain": ([f"{number}:lock-of-an-order" for number in range(COUNT // 4)], b"a worker"),
    "spilled": ([f"{number}:".encode() + b"q" * 200 for number in range(COUNT // 10)], b"x" * 256),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["released", "flushed", "flushed elsewhere"])
def test_memory_comes_back(start_server, kind, way):
    names, owner = KINDS[kind]
    server = start_server()
    cli = server.connect()
    # Once in little, so that one-time allocations are done.
    take_many(cli, names[:2_000], owner)
    cli("FLUSHALL SYNC")
    eventually(lambda: module_info(cli)["locks"] == "0", "the locks are gone")
    cli("LOCK.ACQUIRE one:1 alice PX 600000")
    before = used_memory(server)
    take_many(cli, names, owner)
    full = used_memory(server)
    assert module_info(cli)["holds"] == str(len(names) + 1)
    assert full - before > 50 * len(names)
    if way == "released":
        for start in range(0, len(names), 5_000):
            part = names[start : start + 5_000]
            assert set(cli.pipeline(*[("LOCK.RELEASE", name, owner) for name in part])) == {1}
    else:
        cli("FLUSHALL SYNC" if way == "flushed" else "FLUSHALL ASYNC")
        eventually(lambda: module_info(cli)["locks"] == "0", "the locks are gone")
        cli("LOCK.ACQUIRE one:1 alice PX 600000")
    assert module_info(cli)["locks"] == "1"
    # The server's own dictionary shrinks by and by, and its connections' buffers too.
    slack = 300_000 + (full - before) // 10
    eventually(lambda: used_memory(server) - before < slack, f"{full - before} bytes come back", limit=10)
    assert owner_of(cli, "one:1") == "alice"


def test_memory_usage_follows_the_form(cli):
    cli("LOCK.ACQUIRE", "lock:order:123456", UUID, "PX", 60000)
    usual = cli("MEMORY USAGE lock:order:123456")
    cli("LOCK.ACQUIRE", b"lock:order:12345x", UUID, "PX", 60000)
    plain = cli("MEMORY USAGE lock:order:12345x")
    cli("LOCK.ACQUIRE", b"q" * 9_000, UUID, "PX", 60000)
    long = cli("MEMORY", "USAGE", b"q" * 9_000)
    assert 0 < usual < plain < 9_000 < long < 60_000


def test_uuids_that_the_server_minted_come_back(cli):
    for number in range(200):
        owner, token = cli("LOCK.ACQUIRE", f"door:{number}", "*", "PX", 60000)
        assert str(uuid.UUID(owner)) == owner
        assert (owner_of(cli, f"door:{number}"), cli(f"LOCK.FENCE door:{number}")) == (owner, token)
        assert cli("LOCK.RELEASE", f"door:{number}", owner.upper()) == int(owner == owner.upper())
        assert cli("LOCK.RELEASE", f"door:{number}", owner) == 1
