"""Locks of all kinds whose slot moves to another node (CONTRACT 4, CONTRACT 5).

Holders keep owner, token, count and lease; waiters are sent on; no lock is granted twice (G1, G7, G12). Both ways: keys
one by one, and the server's own move of a whole slot.
"""

import time

import pytest

from harness.cluster import NODE, WAYS, Cluster, is_up, redirected, try_to_move
from harness.kinds import (
    ask, ask_all, close_and_settle, count, count_and_share, hold_of, line_of, owners_of, release, take, take_all,
)  # fmt: skip
from harness.limits import A_WHILE_SECONDS, eventually
from harness.replies import lock_info
from harness.server import IS_VALKEY
from harness.walk import assert_same_leases, give_up, leases_of, locks_of
from harness.wire import ServerError, refused

by_all_ways = pytest.mark.parametrize("way", WAYS)


@pytest.fixture
def cluster(start_server):
    """Two nodes; "{b}" is the first's."""
    return Cluster(start_server)


def fill(cli):
    """Holds of all kinds, with leases of their own."""
    count_and_share(cli, "{b}read", "r0", 3, lease_ms=2_000_000)
    for n in range(3):
        take(cli, "{b}read", f"r{n}", "SHARED", lease_ms=2_000_000 + n * 500_000)
        take(cli, "{b}pool", f"p{n}", "LIMIT 4", lease_ms=2_000_000 + n * 500_000)
        take(cli, "{b}count", "alice", "REENTRANT")
    for n in range(30):
        take(cli, "{b}crowd", f"m{n}", "LIMIT 1000000", lease_ms=2_000_000 + n * 50_000)
    for n in range(0, 30, 3):
        release(cli, "{b}crowd", f"m{n}")
    take(cli, "{b}down", "alice")
    take(cli, "{b}down", "alice", "SHARED")
    take_all(cli, "{b}m1 {b}m2", "all")
    take_all(cli, "{b}s1 {b}s2", "all", "SHARED")
    take(cli, "{b}s1", "other", "SHARED")


def assert_all_can_be_given_up(cli, locks):
    """Owners, tokens, counts and kinds are really there; and no lock stays."""
    for key, (_, holds) in locks.items():
        give_up(cli, key, holds)
        assert cli("EXISTS", key) == 0


# Holds


@by_all_ways
def test_holders_keep_what_they_have(cluster, way):
    # G13, G2, G4
    source, target = (node.connect() for node in cluster.nodes)
    fill(source)
    before, leases = locks_of(source, with_ties=False), leases_of(source)
    cluster.move(way, "{b}")
    eventually(lambda: source("DBSIZE") == 0)
    assert locks_of(target, with_ties=False) == before
    assert_same_leases(leases, leases_of(target))
    eventually(lambda: (count(source, "locks"), count(source, "holds")) == (0, 0))
    assert (count(target, "locks"), count(target, "holds")) == (len(before), len(leases))
    highest = max(hold[1] for _, holds in before.values() for hold in holds)
    assert take(target, "{b}fresh", "new") > highest
    assert_all_can_be_given_up(target, before)


@by_all_ways
def test_holders_move_there_and_back_with_their_slot(cluster, way):
    # G13: nothing of the first stay is left
    source, target = (node.connect() for node in cluster.nodes)
    fill(source)
    before = locks_of(source, with_ties=False)
    for turn in range(3):
        cluster.move(way, "{b}", source=0)
        eventually(lambda: source("DBSIZE") == 0)
        assert locks_of(target, with_ties=False) == before, turn
        cluster.move(way, "{b}", source=1)
        eventually(lambda: target("DBSIZE") == 0)
        assert locks_of(source, with_ties=False) == before, turn
    assert_all_can_be_given_up(source, before)
    # The server may free what has left in the background.
    eventually(lambda: count(source, "holds") == count(target, "holds") == 0)


@by_all_ways
def test_leases_end_one_by_one_after_the_move(cluster, way):
    # G3, G6
    source, target = (node.connect() for node in cluster.nodes)
    take(source, "{b}read", "long", "SHARED")
    take(source, "{b}read", "short", "SHARED", lease_ms=3000)
    take(source, "{b}pool", "long", "LIMIT 2")
    take(source, "{b}pool", "short", "LIMIT 2", lease_ms=3000)
    take_all(source, "{b}m1 {b}m2", "short", lease_ms=3000)
    cluster.move(way, "{b}")
    waiter = ask(cluster.nodes[1], "{b}pool", "next", "LIMIT 2")
    both = ask_all(cluster.nodes[1], "{b}m1 {b}new", "next")
    assert isinstance(waiter.answer(), int)
    assert isinstance(both.answer(), int)
    eventually(lambda: owners_of(target, "{b}read") == ["long"])
    assert owners_of(target, "{b}pool") == ["long", "next"]
    eventually(lambda: target("EXISTS {b}m2") == 0)


@by_all_ways
def test_ties_stay_behind(cluster, way):
    # CONTRACT 2: to the node where the lock is now no such connection is known
    source, target = (node.connect() for node in cluster.nodes)
    task = cluster.nodes[0].connect()
    tokens = {
        "{b}kept": take(task, "{b}kept", "alice", "KEEPALIVE", lease_ms=3_000_000),
        "{b}cut": take(task, "{b}cut", "alice", "EPHEMERAL 0"),
        "{b}mixed": take(task, "{b}mixed", "alice", "SHARED EPHEMERAL 500 KEEPALIVE", lease_ms=3_000_000),
    }
    cluster.move(way, "{b}")
    close_and_settle(cluster.nodes[0], task)
    for key, token in tokens.items():
        assert target("LOCK.FENCE", key, token) == 1, key
        assert 2_900_000 < hold_of(target, key, "alice")["lease-left-ms"]
    # It can be tied there.
    task = cluster.nodes[1].connect()
    assert take(task, "{b}cut", "alice") == tokens["{b}cut"]
    close_and_settle(cluster.nodes[1], task)
    eventually(lambda: target("EXISTS {b}cut") == 0, "tied to the connection that asked again")


@pytest.mark.skipif("atomically" not in WAYS, reason="no move of a whole slot")
def test_a_kept_lease_does_not_run_before_the_slot_is_the_new_nodes(cluster):
    # G2: its connection is open, and the old node's the slot, while the copy waits at the new one
    source, target = (node.connect() for node in cluster.nodes)
    task = cluster.nodes[0].connect()
    lease_ms = 600_000
    take(task, "{b}kept", "alice", "KEEPALIVE", lease_ms=lease_ms)
    source.pipeline(*[("SET", f"{{b}}{n}", "x" * 2000) for n in range(40_000)])
    slot = cluster.slot("{b}")
    still_ours = asked = time.monotonic()
    cluster.order(slot)
    while cluster.owner_seen_by(cluster.nodes[1], slot) == cluster.ids[0]:
        # From before the question: the slot may leave while the answer is on its way.
        still_ours = asked
        # The new node has leases of its own to look after.
        take(target, "{a}other", "x", lease_ms=1)
        asked = time.monotonic()
    left_ms = hold_of(target, "{b}kept", "alice")["lease-left-ms"]
    assert left_ms >= lease_ms - 1 - (time.monotonic() - still_ours) * 1000


@pytest.mark.skipif("atomically" not in WAYS, reason="no move of a whole slot")
def test_what_happens_during_the_move_is_not_lost(cluster):
    # G13: all kinds of steps, while the slot is on its way
    source, target = (node.connect() for node in cluster.nodes)
    source.pipeline(*[("SET", f"{{b}}{n}", "x" * 1000) for n in range(20_000)])
    fill(source)
    slot = cluster.slot("{b}")
    cluster.order(slot)
    done = 0
    for n in range(40):
        replies = source.pipeline(
            f"LOCK.ACQUIRE {{b}}new{n} x PX 3600000 REENTRANT", f"LOCK.ACQUIRE {{b}}new{n} x PX 3600000 REENTRANT",
            f"LOCK.ACQUIRE {{b}}new{n} x PX 3600000 SHARED",
            f"LOCK.ACQUIRE {{b}}new{n} y PX 3600000 SHARED", f"LOCK.MACQUIRE 2 {{b}}p{n} {{b}}q{n} z PX 3600000",
            f"LOCK.ACQUIRE {{b}}limit a{n} PX 3600000 LIMIT 1000", f"LOCK.RELEASE {{b}}limit a{n - 5}",
        )  # fmt: skip
        if any(isinstance(reply, Exception) for reply in replies):
            break
        done += 1
    eventually(lambda: all(cluster.owner_seen_by(node, slot) == cluster.ids[1] for node in cluster.nodes), "it has moved")
    for n in range(done):
        holds = {hold["owner"]: hold["count"] for hold in lock_info(target, f"{{b}}new{n}")["holders"]}
        assert holds == {"x": 2, "y": 1}, n
        assert owners_of(target, f"{{b}}p{n}") == owners_of(target, f"{{b}}q{n}") == ["z"]
        assert target("LOCK.FENCE", f"{{b}}p{n}") == target("LOCK.FENCE", f"{{b}}q{n}")
    expected = {f"a{n}" for n in range(max(0, done - 5), done)}
    assert expected <= set(owners_of(target, "{b}limit"))


# Clients that wait


@by_all_ways
def test_all_waiters_of_a_slot_that_moves_are_redirected(cluster, way):
    # G1, G7
    node = cluster.nodes[0]
    source, target = node.connect(), cluster.nodes[1].connect()
    fill(source)
    take(source, "{b}pool", "p3", "LIMIT 4")
    before = locks_of(source, with_ties=False)
    requests = [
        ask(node, "{b}read", "w0"), ask(node, "{b}read", "w"), ask(node, "{b}read", "late", "SHARED"),
        ask(node, "{b}pool", "q", "LIMIT 4"), ask(node, "{b}count", "bob", "REENTRANT"),
        ask_all(node, "{b}m1 {b}free", "bob"), ask(node, "{b}free", "behind"),
        ask_all(node, "{b}free2 {b}s1 {b}count", "carol"), ask(node, "{b}free2", "behind", "SHARED"),
        ask(node, "{b}down", "dave"),
    ]  # fmt: skip
    take(source, "{b}count", "place", "QUEUE 3600000")
    take(source, "{b}pool", "place", "LIMIT 4 QUEUE 3600000")
    assert all(request.is_blocked() for request in requests)
    cluster.move(way, "{b}")
    told = [redirected(request) for request in requests]
    if way == "atomically":
        wanted = f"MOVED {cluster.slot('{b}')} 127.0.0.1:{cluster.nodes[1].port}"
        assert {error.line for error in told} == {wanted}
    eventually(lambda: count(source, "waiters") == 0, "no place in line is left")
    assert locks_of(target, with_ties=False) == before, "nobody was granted anything"
    # They come again, there.
    heir = ask_all(cluster.nodes[1], "{b}m1 {b}free", "bob")
    release(target, "{b}m1", "all")
    assert isinstance(heir.answer(), int)
    for request in requests:
        request.leave()


@by_all_ways
def test_waiters_are_redirected_where_no_key_is_yet(cluster, way):
    # CONTRACT 4, G7: no deletion here can reveal the move
    node = cluster.nodes[0]
    source, target = node.connect(), cluster.nodes[1].connect()
    take(source, "{b}door", "h")
    take(source, "{b}door", "place", "QUEUE 3600000")
    release(source, "{b}door", "h")
    waiters = [ask(node, "{b}door", "w"), ask_all(node, "{b}door {b}gate", "all")]
    assert source("DBSIZE") == 0
    cluster.move(way, "{b}")
    assert isinstance(take(target, "{b}door", "new"), int), "the old node's line is not known here"
    for waiter in waiters:
        redirected(waiter)


def test_a_request_for_several_is_not_granted_when_one_of_them_has_gone(cluster):
    # G1, G12: the key that moved looks like a free one
    node = cluster.nodes[0]
    source, target = node.connect(), cluster.nodes[1].connect()
    for key in ("{b}1", "{b}2", "{b}3"):
        take(source, key, "h")
    both = ask_all(node, "{b}1 {b}2", "both")
    behind = ask(node, "{b}2", "behind")
    slot = cluster.slot("{b}")
    cluster.begin(slot)
    assert both.waits()
    cluster.carry("{b}1")
    redirected(both)
    # A lock that is still here is still handed on here.
    release(source, "{b}2", "h")
    assert isinstance(behind.answer(), int)
    assert owners_of(source, "{b}2") == ["behind"]
    cluster.carry("{b}2", "{b}3")
    cluster.end(slot)
    assert owners_of(target, "{b}1") == ["h"]
    assert owners_of(target, "{b}2") == ["behind"]
    assert source("DBSIZE") == 0
    assert count(source, "waiters") == 0


def test_a_request_for_a_lock_that_is_not_there_yet_is_sent_on(cluster):
    # G1: in a slot that moves, a key that is not here may be there already
    node = cluster.nodes[0]
    source = node.connect()
    take(source, "{b}1", "h")
    both = ask_all(node, "{b}1 {b}new", "both")
    slot = cluster.slot("{b}")
    cluster.begin(slot)
    answer = cluster.nodes[1].connect().pipeline("ASKING", "LOCK.ACQUIRE {b}new other PX 3600000")[1]
    assert isinstance(answer, int)
    release(source, "{b}1", "h")
    redirected(both)
    cluster.end(slot)
    assert source("DBSIZE") == 0


@pytest.mark.parametrize("kind", ["SHARED", "LIMIT 3"])
def test_a_moving_lock_of_several_holders_grants_no_request(cluster, kind):
    # G1: the old node has forgotten all holders
    node = cluster.nodes[0]
    source, target = node.connect(), cluster.nodes[1].connect()
    for n in range(3):
        take(source, "{b}lock", f"h{n}", kind)
    waiters = [ask(node, "{b}lock", f"w{n}", kind if kind != "SHARED" else "") for n in range(3)]
    slot = cluster.slot("{b}")
    cluster.begin(slot)
    cluster.carry("{b}lock")
    for waiter in waiters:
        redirected(waiter)
    with refused("ASK", str(slot)):
        source("LOCK.RELEASE {b}lock h0")
    assert target.pipeline("ASKING", "LOCK.RELEASE {b}lock h0") == ["OK", 1]
    replies = target.pipeline("ASKING", f"LOCK.ACQUIRE {{b}}lock new PX 60000 {kind}")
    assert isinstance(replies[1], int)
    cluster.end(slot)
    assert owners_of(target, "{b}lock") == ["h1", "h2", "new"]


def test_leases_that_end_before_the_slot_is_ours_end_when_it_is(cluster):
    # G3: the node that has the key does not own its slot yet
    source, target = (node.connect() for node in cluster.nodes)
    take(source, "{b}read", "long", "SHARED")
    take(source, "{b}read", "short", "SHARED", lease_ms=500)
    take(source, "{b}gone", "short", "LIMIT 1", lease_ms=500)
    slot = cluster.slot("{b}")
    cluster.begin(slot)
    cluster.carry("{b}read", "{b}gone")
    waited = ask(cluster.nodes[1], "clock-{a}", "x", lease_ms=700)
    waited.answer()
    eventually(lambda: target("EXISTS clock-{a}") == 0)
    cluster.end(slot)
    eventually(lambda: owners_of(target, "{b}read") == ["long"])
    eventually(lambda: target("EXISTS {b}gone") == 0)
    assert isinstance(ask(cluster.nodes[1], "{b}gone", "next", "LIMIT 1").answer(), int)


# Where requests go


def test_tokens_of_free_locks_do_not_come_twice_when_slots_move(cluster):
    # G4: only the clock shows a node the tokens that another one gave out for a lock that is free again
    first, second = (node.connect() for node in cluster.nodes)
    last = 0
    for turn in range(50):
        for cli, key in ((second, "{a}x"), (first, "{b}x"), (second, "{a}y"), (first, "{b}y")):
            token = take(cli, key, f"owner-{turn}")
            assert token > last, (turn, key)
            last = token
            release(cli, key, f"owner-{turn}")


def test_several_keys_are_in_one_slot_of_this_node(cluster):
    here, there = (node.connect() for node in cluster.nodes)
    slot = here("CLUSTER KEYSLOT {a}")
    for tail in ("", " BLOCK 0", " SHARED", " SHARED BLOCK 10"):
        for keys in ("a b", "b a", "b {b}x d", "{a}x {c}x"):
            # A node of Valkey sees the first key alone, and sends the client to where that is.
            is_sent_on = IS_VALKEY and keys[0] != "b"
            with refused("MOVED" if is_sent_on else "CROSSSLOT"):
                take_all(here, keys, "alice", tail)
            with refused("CROSSSLOT"):
                take_all(there if is_sent_on else here, keys, "alice", tail)
        with refused("MOVED", f"{slot} 127.0.0.1:{cluster.nodes[1].port}"):
            take_all(here, "{a}x {a}y", "alice", tail)
    assert here("DBSIZE") == there("DBSIZE") == count(here, "waiters") == 0
    line = "LOCK.MACQUIRE 2 a b alice PX 60000 BLOCK 0".split()
    assert here("COMMAND", "GETKEYS", *line) == ["a", "b"]
    token = take_all(there, "{a}x {a}y", "alice")
    assert there("LOCK.FENCE {a}x") == there("LOCK.FENCE {a}y") == token
    script = "return redis.call('LOCK.MACQUIRE', 2, KEYS[1], KEYS[2], 'alice', 'PX', 60000)"
    assert isinstance(here("EVAL", script, 2, "{b}x", "{b}y"), int)
    replies = here.pipeline("MULTI", "LOCK.MACQUIRE 2 {b}1 {b}2 w PX 60000", "LOCK.MACQUIRE 2 {b}1 a w PX 60000", "EXEC")
    if IS_VALKEY:
        assert replies[2] == "QUEUED" and isinstance(replies[3][0], int) and replies[3][1].code == "CROSSSLOT"
    else:
        assert replies[2].code == "CROSSSLOT" and replies[3].code == "EXECABORT"


@pytest.mark.parametrize("options", ["SHARED", "LIMIT 3", "REENTRANT", "QUEUE 100", "EPHEMERAL 0", "KEEPALIVE", "REENTRANT BLOCK 0"])
def test_all_kinds_of_requests_are_sent_to_the_right_node(cluster, options):
    here, there = (node.connect() for node in cluster.nodes)
    with refused("MOVED"):
        take(here, "{a}lock", "alice", options)
    assert isinstance(take(there, "{a}lock", "alice", options), int)
    with refused("MOVED"):
        here("LOCK.RELEASE {a}lock alice")
    assert line_of(there, "{a}lock") == []


def test_no_request_is_granted_in_a_cluster_that_is_down_though_it_allows_reads(start_server):
    # CONTRACT 4, G6: a client that asks now is refused as well
    node = start_server(*NODE, "--cluster-allow-reads-when-down", "yes")
    node.admin("CLUSTER ADDSLOTSRANGE 0 16383")
    eventually(lambda: is_up(node), "the cluster is up")
    node.admin("CONFIG SET cluster-require-full-coverage yes")
    take(node.admin, "door", "alice", lease_ms=500)
    bob = node.ask("LOCK.ACQUIRE door bob PX 60000 BLOCK 0")
    other = (node.admin("CLUSTER KEYSLOT door") + 1) % 16384
    node.admin("CLUSTER", "DELSLOTS", other)
    eventually(lambda: "cluster_state:fail" in node.admin("CLUSTER INFO"), "the cluster is down")
    with refused("CLUSTERDOWN"):
        node.admin("LOCK.ACQUIRE door carol PX 60000")
    with pytest.raises(ServerError) as refusal:
        bob.answer()
    # Redis rejects its waiters itself, if it comes by before the lease has expired.
    assert refusal.value.code in ("TRYAGAIN", "CLUSTERDOWN")


def test_heldby_lists_this_node_only(cluster):
    here, there = (node.connect() for node in cluster.nodes)
    take(here, "{b}x", "alice", "SHARED")
    take_all(there, "{a}x {a}y", "alice")
    assert [row[0] for row in here("LOCK.HELDBY alice")] == ["{b}x"]
    assert [row[0] for row in there("LOCK.HELDBY alice")] == ["{a}x", "{a}y"]


def ticks(server):
    """The number of records of the token clock in its append-only file."""
    return sum(path.read_bytes().count(b"LOCK.TICK") for path in (server.directory / "appendonlydir").glob("*.aof"))


@pytest.mark.skipif(not IS_VALKEY or WAYS == ["by hand"], reason="only there slots leave as a whole")
def test_nothing_without_a_key_is_written_while_slots_leave(start_server):
    # Valkey 9.1 may give up the move if a module does, by uninitialised flags.
    cluster = Cluster(start_server, "--appendonly", "yes")
    source, slot = cluster.nodes[0], cluster.slot("{b}door")
    take(source.admin, "{b}door", "alice", lease_ms=600_000)
    source.admin("DEBUG SLOTMIGRATION PREVENT-PAUSE 1")
    before = ticks(source)
    cluster.order(slot)
    # The snapshot for the other node was a child of the server's, and so is this file.
    eventually(lambda: state_of_move(source) == "waiting-to-pause", "the slot is nearly there")
    eventually(lambda: source.info("persistence")["slot_migration_fork_in_progress"] == "0", "that child is gone")
    forks = int(source.info("stats")["total_forks"])
    source.admin("BGSAVE")
    eventually(lambda: source.info("persistence")["rdb_bgsave_in_progress"] == "0", "the file is written")
    assert int(source.info("stats")["total_forks"]) == forks + 1
    take(source.admin, "{b}gate", "alice", lease_ms=600_000)
    time.sleep(0.3)
    assert ticks(source) == before
    source.admin("DEBUG SLOTMIGRATION PREVENT-PAUSE 0")
    for node in cluster.nodes:
        eventually(lambda node=node: cluster.owner_seen_by(node, slot) == cluster.ids[1], "it has moved")
    eventually(lambda: ticks(source) == before + 1, "the file is told afterwards")
    assert state_of_move(source) == "success"


def state_of_move(node):
    """The state of the newest move of slots from here."""
    newest, *_ = node.admin("CLUSTER", "GETSLOTMIGRATIONS")
    return dict(zip(newest[::2], newest[1::2]))["state"]


# The counters and events of a move


def event_listener(node):
    """A connection that receives all events of locks."""
    node.admin("CONFIG SET notify-keyspace-events KEA")
    listener = node.connect()
    listener("PSUBSCRIBE", "__keyevent@0__:lock.*")
    return listener


def heard(listener):
    """The events that have arrived, in order."""
    events = []
    while listener.has_input(A_WHILE_SECONDS):
        message = listener.read_any()
        events.append((message[2].rpartition("lock.")[2], message[3]))
    return events


@by_all_ways
def test_a_lock_that_moves_is_neither_broken_nor_acquired(cluster, way):
    # G15: it continues, and no event is published; the alert of MONITORING is for locks that were broken
    clients = [node.connect() for node in cluster.nodes]
    fill(clients[0])
    for holder in range(70):
        take(clients[0], "{b}many", f"m{holder}", "LIMIT 100")
    before = locks_of(clients[0], with_ties=False)
    listeners = [event_listener(node) for node in cluster.nodes]
    cluster.move(way, "{b}")
    eventually(lambda: clients[0]("DBSIZE") == 0)
    eventually(lambda: count(clients[0], "holds") == 0)
    assert locks_of(clients[1], with_ties=False) == before
    assert [heard(listener) for listener in listeners] == [[], []]
    assert [count(client, "broken") for client in clients] == [0, 0]
    assert not [node for node in cluster.nodes if "broken from outside" in node.log_text()]
    # A lock that is deleted there is broken as ever.
    clients[1]("DEL {b}down")
    eventually(lambda: count(clients[1], "broken") == len(before["{b}down"][1]))
    assert heard(listeners[1]) == [("broken", "{b}down")]


@by_all_ways
def test_a_lock_that_moves_away_and_back_at_once_is_not_broken(cluster, way):
    # G15: the values that the server frees after the move are not those that stand there now
    clients = [node.connect() for node in cluster.nodes]
    fill(clients[0])
    before = locks_of(clients[0], with_ties=False)
    listeners = [event_listener(node) for node in cluster.nodes]
    for turn in range(6):
        try_to_move(cluster, way, "{b}", turn % 2)
    eventually(lambda: count(clients[1], "holds") == 0)
    assert locks_of(clients[0], with_ties=False) == before
    assert [heard(listener) for listener in listeners] == [[], []]
    assert [count(client, "broken") for client in clients] == [0, 0]
    assert not [node for node in cluster.nodes if "broken from outside" in node.log_text()]
