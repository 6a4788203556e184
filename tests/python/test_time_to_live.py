"""A time to live that a user gives to a lock's key (CONTRACT 5, G13).

The key has it as long as a hold continues that was there when it was given, whatever else happens to that hold. A hold
that begins in a lock without any other, and a downgrade, replace the value of the key, and the key has none then. All
who read the stream, and whatever file is loaded, have to agree with the primary on that.
"""

import pytest

from harness.kinds import ask, close_and_settle, owners_of, release, take, take_all
from harness.limits import eventually
from harness.replicas import AT_ONCE, is_linked
from harness.samples import limited

#: Far beyond the end of any test, in milliseconds.
TTL_MS = 3_000_000

KINDS = ["", "SHARED", "LIMIT 3", "REENTRANT"]


def give(cli, *keys):
    """These keys have a time to live from here on."""
    for key in keys:
        assert cli("PEXPIRE", key, TTL_MS) == 1


def take_tied(server, key, kind, tie):
    """A hold that is tied to a connection of its own."""
    task = server.connect()
    take(task, key, "alice", kind, tie)
    if kind == "REENTRANT":
        take(task, key, "alice", kind)
    return task


def is_told(server, key, name, value):
    """Waits until the hold of the key's first holder has this value."""
    eventually(lambda: dict(holds(server, key)[0])[name] == value, f"{key} is told of: {name} {value}")


def holds(server, key):
    """The holders of a lock, each as pairs."""
    info = server.admin("LOCK.INFO", key)
    holders = info[info.index("holders") + 1]
    return [list(zip(hold[::2], hold[1::2])) for hold in holders]


def live(server):
    """Everything that can happen to a hold. Returns the keys that keep their time to live, and those that lose it."""
    cli, other = server.connect(), server.connect()
    kept, lost = [], []
    for kind in KINDS:
        name = kind.split()[0].lower() if kind else "plain"

        def key(what):
            return f"{what}-{name}"

        # A connection closes, and readers receive the length of the lease from there.
        cut, bare, both = key("cut"), key("bare"), key("both")
        tasks = [take_tied(server, cut, kind, "EPHEMERAL 1000000")]
        tasks += [take_tied(server, bare, kind, "KEEPALIVE")]
        tasks += [take_tied(server, both, kind, "KEEPALIVE EPHEMERAL 1000000")]
        give(cli, cut, bare, both)
        for task in tasks:
            close_and_settle(server, task)
        is_told(server, bare, "keepalive", 0)
        kept += [cut, bare, both]
        # On another connection such a lease is paused again.
        for what, words in {
            "renewed": "LOCK.RENEW {} alice PX 1000000",
            "asked": f"LOCK.ACQUIRE {{}} alice PX 1000000 {kind}",
            "raised": "LOCK.RENEW {} alice PX 1000000 RAISE {}" if kind in ("", "REENTRANT") else None,
        }.items():
            if words is None:
                continue
            task = take_tied(server, key(what), kind, "KEEPALIVE")
            give(cli, key(what))
            close_and_settle(server, task)
            is_told(server, key(what), "keepalive", 0)
            raised = dict(holds(server, key(what))[0])["token"] + 1_000_000
            other(words.format(key(what), raised))
            is_told(server, key(what), "keepalive", 1)
            kept.append(key(what))
        # Commands that are replicated word for word.
        take(cli, key("plain"), "alice", kind, lease_ms=10_000)
        give(cli, key("plain"))
        take(cli, key("plain"), "alice", kind)
        assert cli("LOCK.RENEW", key("plain"), "alice", "PX", 50_000) == 1
        kept.append(key("plain"))
        # The hold ends, and another one begins in the same step.
        take(cli, key("handed"), "alice", kind)
        give(cli, key("handed"))
        waiting = ask(server, key("handed"), "bob", "" if kind in ("", "REENTRANT") else kind)
        if waiting.waits():
            while owners_of(cli, key("handed")) == ["alice"]:
                release(cli, key("handed"), "alice")
            waiting.answer()
            lost.append(key("handed"))
        else:
            kept.append(key("handed"))
    for scene in (count_down, readers, changes, several, out_of_line):
        more_kept, more_lost = scene(server, cli)
        kept += more_kept
        lost += more_lost
    return kept, lost


def count_down(_server, cli):
    """A hold that takes several releases gets one."""
    for _ in range(3):
        take(cli, "counted", "alice", "REENTRANT")
    give(cli, "counted")
    release(cli, "counted", "alice")
    return ["counted"], []


def readers(server, cli):
    """Leases of readers end while others continue, or ask again in the very step, or begin."""
    for key in ("asks", "joins", "ends"):
        take(cli, key, "alice", "SHARED", lease_ms=30 if key == "ends" else 60_000)
        if key != "ends":
            take(cli, key, "bob", "SHARED", lease_ms=30)
    give(cli, "asks", "joins", "ends")
    # Nothing is sent meanwhile, so the next step may be the one that ends them.
    cli("DEBUG SLEEP 0.05")
    take(cli, "asks", "alice", "SHARED")
    take(cli, "joins", "carol", "SHARED")
    take(cli, "ends", "bob", "SHARED")
    eventually(lambda: "bob" not in owners_of(cli, "asks") + owners_of(cli, "joins"))
    return ["asks", "joins"], ["ends"]


def changes(_server, cli):
    """A writer reads, and a reader that has left writes."""
    for key in ("down", "again"):
        take(cli, key, "alice")
    give(cli, "down", "again")
    take(cli, "down", "alice", "SHARED")
    take(cli, "again", "alice", "SHARED")
    give(cli, "again")
    release(cli, "again", "alice")
    take(cli, "again", "alice")
    return [], ["down", "again"]


def several(server, cli):
    """LOCK.MACQUIRE: asked for again, also where another reader holds some of them."""
    take_all(cli, "one two", "alice", lease_ms=60_000)
    give(cli, "one", "two")
    take_all(cli, "one two", "alice")
    take_all(cli, "three four", "alice", "SHARED", lease_ms=60_000)
    take(cli, "four", "bob", "SHARED")
    give(cli, "three", "four")
    take_all(cli, "three four", "alice", "SHARED")
    return ["one", "two", "three", "four"], []


def out_of_line(server, cli):
    """A waiter is granted alongside others, or when a lease ends."""
    take(cli, "beside", "alice", "LIMIT 2")
    take(cli, "beside", "bob", "LIMIT 2", lease_ms=200)
    take(cli, "after", "alice", lease_ms=200)
    give(cli, "beside", "after")
    ask(server, "beside", "carol", "LIMIT 2").answer()
    ask(server, "after", "carol").answer()
    return ["beside"], ["after"]


def compared(primary, others, keys):
    """Returns whether all have the same of these keys as the primary, up to the time that has passed."""
    left = {key: primary.admin("PTTL", key) for key in keys}
    digest = primary.admin("DEBUG DIGEST")
    for other in others:
        assert other.admin("DEBUG DIGEST") == digest
        for key, left_ms in left.items():
            theirs = other.admin("PTTL", key)
            # They may have been asked later.
            assert (theirs == left_ms == -1) or abs(theirs - left_ms) < 60_000, (key, left_ms, theirs)
    return left


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_a_time_to_live_is_the_same_everywhere(start_server, preamble):
    files = ("--appendonly", "yes", "--aof-use-rdb-preamble", preamble)
    server = start_server(*AT_ONCE, *files)
    middle = start_server("--replicaof", f"127.0.0.1 {server.port}", *AT_ONCE, *files)
    is_linked(middle)
    last = start_server("--replicaof", f"127.0.0.1 {middle.port}")
    is_linked(last)
    kept, lost = live(server)
    for key in kept:
        assert server.admin("PTTL", key) > 0, f"a hold of {key} goes on"
    for key in lost:
        assert server.admin("PTTL", key) == -1, f"{key} was made anew"
    eventually(lambda: middle.admin("DEBUG DIGEST") == server.admin("DEBUG DIGEST"), "it has caught up")
    eventually(lambda: last.admin("DEBUG DIGEST") == server.admin("DEBUG DIGEST"), "it has caught up")
    left = compared(server, [middle, last], kept + lost)
    assert sum(ttl > 0 for ttl in left.values()) == len(kept)
    for rewritten in (False, True):
        for each in (server, middle):
            if rewritten:
                each.admin("BGREWRITEAOF")
                is_idle = lambda: each.info("persistence")["aof_rewrite_in_progress"] == "0"
                eventually(is_idle, "the file is written anew")
            before = {key: each.admin("PTTL", key) for key in kept + lost}
            each.admin("DEBUG LOADAOF")
            after = {key: each.admin("PTTL", key) for key in before}
            assert {key: ttl > 0 for key, ttl in after.items()} == {key: ttl > 0 for key, ttl in before.items()}


@pytest.mark.parametrize("kind", KINDS[1:3])
def test_a_users_expiry_stays_when_another_holder_joins(server, cli, kind):
    take(cli, "door", "alice", kind)
    cli("EXPIRE door 100")
    take(cli, "door", "bob", kind)
    assert cli("TTL door") > 0


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


def test_a_waiter_does_not_wait_for_the_server_to_find_an_expired_key(start_server):
    # G6. If very many keys have a time to live, the server may find this one after seconds; here it never looks.
    server = start_server()
    cli = server.connect()
    cli("DEBUG SET-ACTIVE-EXPIRE 0")
    # More than are examined in one step, and the longest name that is examined.
    doors = [f"door-{number}" for number in range(300)] + ["d" * 4096]
    for door in doors:
        take(cli, door, "alice")
    waiting = {door: ask(server, door, "bob") for door in (doors[0], doors[150], doors[-1])}
    several = server.ask("LOCK.MACQUIRE", 2, doors[1], "free", "carol", "PX", 60_000, "BLOCK", 0)
    crowd = server.connect()
    for door in doors[2:]:
        crowd("LOCK.ACQUIRE", door, "dora", "PX", 60_000, "QUEUE", 60_000)
    for door in doors:
        cli("PEXPIRE", door, 20)
    for door, request in waiting.items():
        assert request.answer() == cli("LOCK.FENCE", door)
    assert several.answer() == cli("LOCK.FENCE", doors[1])
