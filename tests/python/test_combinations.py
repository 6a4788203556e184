"""The features that can be combined, and those that cannot: each cell of the two tables of harness/combinations.py, on
real servers.

The cells of a slot that moves are tried by one move, all others one by one.
"""

import subprocess
from functools import partial

import pytest

from harness.cluster import REDIRECTIONS, WAYS, Cluster
from harness.combinations import AGAIN, CODES, FEATURES, HOLDS, REPLIES, REQUESTS, TOGETHER, cells
from harness.kinds import LONG_MS, ask, ask_all, hold_of, line_of, owners_of, release, take, take_all
from harness.limits import eventually
from harness.payload import dump
from harness.replies import lock_info
from harness.server import ROOT, StartFailed
from harness.wire import ServerError

CELLS = cells(TOGETHER)
#: Options of LOCK.ACQUIRE.
OPTIONS = {
    "SHARED": "SHARED", "LIMIT": "LIMIT 1", "BLOCK": "BLOCK 0", "QUEUE": f"QUEUE {LONG_MS}", "REENTRANT": "REENTRANT",
    "EPHEMERAL": "EPHEMERAL 5000", "KEEPALIVE": "KEEPALIVE",
}  # fmt: skip
#: The settings of a server that confirms: it is alone in its group.
CONFIRMS = ("redislock.quarantine", LONG_MS, "redislock.confirm", "all", "redislock.group-size", 1)
EVICTS = ("maxmemory", 1_000_000_000, "maxmemory-policy", "allkeys-lru")


def code_of(error):
    """The code of the table that an error is."""
    codes = {
        "LOCKKIND": "K", "LOCKHELD": "H", "QUARANTINE": "Q", "UNBLOCKED": "U", "FENCED": "F", **dict.fromkeys(REDIRECTIONS, "D"),
    }  # fmt: skip
    words = {
        "syntax error": "S", "QUEUE needs": "S", "RAISE is for exclusive locks": "X", "redislock.confirm": "C",
        "this server may evict locks": "E", "redislock.leaving": "L",
    }  # fmt: skip
    found = [code for word, code in words.items() if error.code == "ERR" and word in error.line]
    return codes.get(error.code) or found[0]


def outcome(action):
    """The reply, or the code of the table that an error is."""
    try:
        return action()
    except ServerError as error:
        return code_of(error)


class Scene:
    """One server, and the effects of a cell's features there, always at the lock `door`."""

    def __init__(self, server, *features, owner="alice"):
        self.server, self.features, self.owner = server, features, owner
        self.cli, self.other = server.connect(), server.connect()
        self.options = " ".join(OPTIONS[name] for name in features if name in OPTIONS)
        self.is_many = "MACQUIRE" in features

    def request(self, key="door", owner=None):
        """Requests the features, over a connection that does not wait."""
        owner = owner or self.owner
        if self.is_many:
            return take_all(self.cli, f"{key} {key}-2", owner, self.options)
        return take(self.cli, key, owner, self.options)

    def waiting(self, key="door"):
        """The request with BLOCK."""
        options = self.options.replace(OPTIONS["BLOCK"], "")
        if self.is_many:
            return ask_all(self.server, f"{key} {key}-2", self.owner, options)
        return ask(self.server, key, self.owner, options)

    def occupy(self, key="door"):
        """Another owner takes the lock, and blocks all others."""
        take(self.other, key, "bob", OPTIONS["LIMIT"] if "LIMIT" in self.features else "")

    def acquire(self):
        """Requests the features, at once or after a wait: the token, or the code of an error."""
        if "BLOCK" in self.features or "QUEUE" in self.features:
            self.occupy()
        if "BLOCK" not in self.features or "QUEUE" in self.features:
            told = outcome(self.request)
            if told is not None:
                return told
            assert line_of(self.other, "door") == [self.owner], "it keeps a position"
            release(self.other, "door", "bob")
            return outcome(self.request)
        request = self.waiting()
        assert request.waits()
        release(self.other, "door", "bob")
        # Ties belong to this connection.
        self.cli = request.connection
        return outcome(request.answer)

    def raise_token(self, token):
        """LOCK.RENEW ... RAISE: 1, or the code of an error."""
        return outcome(lambda: self.cli("LOCK.RENEW", "door", self.owner, "PX", LONG_MS, "RAISE", token))

    def run(self, token):
        """LOCK.EXEC: the reply of INCR, or the code of an error."""
        return outcome(lambda: self.cli("LOCK.EXEC", "door", token, "INCR", "door-n"))

    def has_effect(self, token):
        """Each of the features works. Returns `+`, or the code of an error."""
        hold, info = hold_of(self.cli, "door", self.owner), lock_info(self.cli, "door")
        assert hold["token"] == token
        assert info["kind"] == ("shared" if "SHARED" in self.features else "limit" if "LIMIT" in self.features else "exclusive")
        if self.is_many:
            assert self.cli("LOCK.FENCE", "door-2") == token
        if "EPHEMERAL" in self.features:
            assert hold["ephemeral-ms"] == 5000
        if "KEEPALIVE" in self.features:
            assert hold["keepalive"] == 1
        if "REENTRANT" in self.features:
            count = hold["count"]
            assert take(self.cli, "door", self.owner, self.options) == token
            assert hold_of(self.cli, "door", self.owner)["count"] == count + 1
        old = token
        if "RAISE" in self.features:
            token += 5000
            told = self.raise_token(token)
            if told != 1:
                assert self.cli("LOCK.FENCE", "door") == old
                return told
            assert self.cli("LOCK.FENCE", "door") == token
        if "EXEC" in self.features:
            assert self.run(token) == 1
            assert old == token or self.run(old) == "F"
        return "+"

    def together(self):
        """The code of the cell of these features."""
        token = self.acquire()
        return self.has_effect(token) if isinstance(token, int) else token


# The circumstances. Each returns the code of a cell: the result of a feature there.


def begin_quarantine(server):
    """As a promotion does. The server knows its locks, and its clients have to connect again."""
    server.admin("CONFIG", "SET", "redislock.quarantine", LONG_MS)
    server.admin("REPLICAOF", "127.0.0.1", 1)
    server.admin("REPLICAOF NO ONE")


def with_confirm(start_server, name):
    server = start_server()
    assert server.admin("CONFIG", "SET", *CONFIRMS) == "OK"
    return Scene(server, name).together()


def in_quarantine(start_server, name):
    server = start_server()
    scene = Scene(server, name)
    if name == "confirm":
        return needs_quarantine(start_server, server)
    is_wait = name in ("BLOCK", "QUEUE")
    token = None if is_wait else scene.request()
    begin_quarantine(server)
    scene.cli, scene.other = server.connect(), server.connect()
    if is_wait:
        told = outcome(scene.waiting if name == "BLOCK" else scene.request)
        assert (told is None) if name == "QUEUE" else told.waits()
        assert line_of(scene.cli, "door") == ["alice"]
        return "N"
    if name in ("RAISE", "EXEC"):
        return scene.has_effect(token)
    assert scene.request() == token, "what is held is granted again"
    assert scene.has_effect(token) == "+"
    return outcome(lambda: scene.request("gate", "bob"))


def needs_quarantine(start_server, server):
    """No confirmations without a quarantine."""
    told = outcome(lambda: server.admin("CONFIG", "SET", "redislock.group-size", 1, "redislock.confirm", "all"))
    assert told == "C"
    with pytest.raises(StartFailed, match="redislock.quarantine"):
        start_server(module_arguments=("confirm", "all", "group-size", "1"))
    return "M"


def with_legacy(start_server, name):
    server = start_server()
    scene = Scene(server, name)
    if name == "confirm":
        assert server.admin("CONFIG", "SET", *CONFIRMS) == "OK"
        assert outcome(lambda: server.admin("CONFIG SET redislock.legacy-strings yes")) == "C"
        with pytest.raises(StartFailed, match="redislock.legacy-strings"):
            start_server(module_arguments=("confirm", "all", "group-size", "1", "quarantine", "9", "legacy-strings", "yes"))
        return "G"
    server.admin("CONFIG SET redislock.legacy-strings yes")
    if name == "quarantine":
        begin_quarantine(server)
        return an_old_client_goes_on(server)
    assert scene.cli("SET", "door", "old", "NX", "PX", LONG_MS) == "OK"
    if name == "RAISE":
        return str(outcome(lambda: scene.cli("LOCK.RENEW", "door", "old", "PX", LONG_MS, "RAISE", 5)))
    if name == "EXEC":
        return scene.run(5)
    if name == "BLOCK":
        request = scene.waiting()
        assert request.waits()
        scene.cli("DEL door")
        assert isinstance(request.answer(), int)
        return "N"
    told = outcome(scene.request)
    if name == "QUEUE":
        scene.cli("DEL door")
        assert isinstance(scene.request(), int)
    return "N" if told is None else told


def an_old_client_goes_on(server):
    """An old client takes a lock as ever, it keeps others out, and it can be renewed and released."""
    cli = server.connect()
    assert cli("SET", "door", "old", "NX", "PX", LONG_MS) == "OK"
    assert outcome(lambda: take(cli, "door", "new")) in (None, "E", "L", "Q")
    assert cli("LOCK.RENEW", "door", "old", "PX", LONG_MS) == 1
    assert cli("LOCK.RELEASE", "door", "old") == 1
    return "+"


def restored(start_server, name):
    server = start_server()
    scene, cli = Scene(server, name), server.connect()
    if name in ("confirm", "quarantine"):
        return restored_there(server, name)
    if name == "legacy":
        return a_string_comes(server)
    if name in ("BLOCK", "QUEUE"):
        return waits_end(scene)
    token = scene.request()
    if name == "RAISE":
        token += 5000
        assert scene.raise_token(token) == 1
    if name == "REENTRANT":
        scene.request()
    if name == "EXEC":
        payload = dump(cli, "door")
        release(cli, "door", "alice")
        assert scene.run(token) == "F"
        cli("RESTORE", "door", 0, payload, "REPLACE")
        return "A" if scene.run(token) == 1 else "F"
    code = travels(cli, lambda payload: (cli("DEL door"), cli("RESTORE", "door", 0, payload)))
    if name != "MACQUIRE":
        return code
    waiter = ask_all(server, "door free", "bob")
    cli("RESTORE", "door", 0, dump(cli, "door"), "REPLACE")
    return code + outcome(waiter.answer)


def travels(cli, bring):
    """A lock that comes by its payload is unchanged. Its owner's connection does not come with it."""
    before = hold_of(cli, "door", "alice")
    bring(dump(cli, "door"))
    after = hold_of(cli, "door", "alice")
    for part in ("token", "count", "ephemeral-ms"):
        assert after[part] == before[part], part
    assert after["lease-left-ms"] > LONG_MS - 100_000
    eventually(lambda: hold_of(cli, "door", "alice")["keepalive"] == 0, "the lease runs")
    return "T"


def restored_there(server, name):
    """A hold that RESTORE brings is one, though none would be granted now."""
    cli = server.connect()
    token = take(cli, "door", "alice")
    payload = dump(cli, "door")
    cli("DEL door")
    if name == "confirm":
        cli("CONFIG", "SET", *CONFIRMS[:-1], 2)
        code = "NOREPLICAS"
    else:
        begin_quarantine(server)
        cli, code = server.connect(), "QUARANTINE"
    with pytest.raises(ServerError, match=code):
        take(cli, "gate", "alice")
    assert cli("RESTORE", "door", 0, payload) == "OK"
    assert cli("LOCK.FENCE", "door", token) == 1
    return "+"


def a_string_comes(server):
    """A string that RESTORE brings is a lock, and those that wait for the one before wait for it."""
    cli = server.connect()
    cli("CONFIG SET redislock.legacy-strings yes")
    cli("SET", "door", "old", "PX", LONG_MS)
    payload = dump(cli, "door")
    waiter = ask(server, "door", "alice")
    assert cli("RESTORE", "door", LONG_MS, payload, "REPLACE") == "OK"
    assert waiter.waits()
    cli("DEL door")
    assert isinstance(waiter.answer(), int)
    return "+"


def waits_end(scene):
    """The fate of a waiter when a lock arrives: the code of its end."""
    scene.occupy()
    payload = dump(scene.other, "door")
    waiter = scene.waiting() if "BLOCK" in scene.features else None
    assert waiter or scene.request() is None
    assert line_of(scene.cli, "door") == ["alice"]
    assert scene.other("RESTORE", "door", 0, payload, "REPLACE") == "OK"
    eventually(lambda: line_of(scene.cli, "door") == [], "the wait ends")
    return outcome(waiter.answer) if waiter else "V"


def where_locks_are_evicted(start_server, name):
    server = start_server()
    scene = Scene(server, name)
    if name in ("RAISE", "EXEC", "legacy"):
        token = scene.request()
        server.admin("CONFIG", "SET", *EVICTS)
        if name != "legacy":
            return scene.has_effect(token)
        release(scene.cli, "door", "alice")
        server.admin("CONFIG SET redislock.legacy-strings yes")
        return an_old_client_goes_on(server)
    if name == "confirm":
        server.admin("CONFIG", "SET", *CONFIRMS)
    if name == "quarantine":
        begin_quarantine(server)
    else:
        take(scene.cli, "door", "alice")
    server.admin("CONFIG", "SET", *EVICTS)
    assert outcome(lambda: scene.request("gate", "bob")) == "E"
    return outcome(scene.request)


def where_the_module_leaves(start_server, name):
    server = start_server()
    scene = Scene(server, name)
    if name == "confirm":
        server.admin("CONFIG", "SET", *CONFIRMS)
    is_wait = name in ("BLOCK", "QUEUE")
    token = None if is_wait else scene.request()
    if name == "quarantine":
        begin_quarantine(server)
        scene.cli = server.connect()
    server.admin("CONFIG SET redislock.leaving yes")
    if name == "legacy":
        release(scene.cli, "door", "alice")
        server.admin("CONFIG SET redislock.legacy-strings yes")
        return an_old_client_goes_on(server)
    if not is_wait:
        assert scene.request() == token, "what is held is granted again"
        told = scene.has_effect(token)
        if name in ("RAISE", "EXEC", "confirm", "quarantine"):
            assert outcome(lambda: scene.request("gate", "bob")) in ("L", "Q")
            return told
        assert told == "+"
    return outcome(lambda: scene.request("gate", "bob"))


CIRCUMSTANCES = {
    "confirm": with_confirm, "quarantine": in_quarantine, "legacy": with_legacy, "RESTORE": restored,
    "evict": where_locks_are_evicted, "leaving": where_the_module_leaves,
}  # fmt: skip


def tried(pairs, column):
    """The cells of one column, or of the features that are asked for together (`column` is None)."""
    return [pair for pair in pairs if (pair[1] == column if column else pair[1] not in (*CIRCUMSTANCES, "move"))]


@pytest.mark.parametrize("row, column", [pair for pair in tried(CELLS, None) if CELLS[pair] != "."])
def test_two_features_of_a_request(server, row, column):
    assert Scene(server, row, column).together() == CELLS[row, column]


@pytest.mark.parametrize("row, column", [pair for column in CIRCUMSTANCES for pair in tried(CELLS, column)])
def test_a_feature_where_something_else_is_set_or_happens(start_server, row, column):
    assert CIRCUMSTANCES[column](start_server, row) == CELLS[row, column]


@pytest.mark.parametrize("way", WAYS)
def test_each_feature_in_a_slot_that_moves(start_server, way):
    cluster = Cluster(start_server, module_arguments=("quarantine", LONG_MS))
    node, target = cluster.nodes
    rows = [row for row, column in CELLS if column == "move"]
    there, here, found = target.connect(), node.connect(), {}
    keys = {row: f"{{b}}{row}" for row in rows}
    holds = [row for row in rows if row not in ("BLOCK", "QUEUE", "legacy")]
    here("CONFIG SET redislock.quarantine 0")
    assert outcome(lambda: take(there, "{a}", "alice")) == "Q", "the target is in a quarantine"
    here("CONFIG", "SET", *CONFIRMS)
    take(here, keys["confirm"], "alice")
    here("CONFIG SET redislock.confirm local redislock.quarantine 0 redislock.legacy-strings yes")
    for row in holds:
        if row == "MACQUIRE":
            take_all(here, f"{keys[row]} {keys[row]}-2", "alice")
        else:
            take(here, keys[row], "alice", OPTIONS.get(row, ""))
    take(here, keys["REENTRANT"], "alice", "REENTRANT")
    here("LOCK.RENEW", keys["RAISE"], "alice", "PX", LONG_MS, "RAISE", here("LOCK.FENCE", keys["RAISE"]) + 5000)
    before = {row: hold_of(here, keys[row], "alice") for row in holds}
    for key in (keys["BLOCK"], keys["QUEUE"]):
        take(here, key, "bob")
    here("SET", keys["legacy"], "old", "PX", LONG_MS)
    waiters = {row: ask(node, keys[row], "alice") for row in ("BLOCK", "legacy")}
    waiters["MACQUIRE"] = ask_all(node, f"{keys['MACQUIRE']} {{b}}free", "carol")
    assert take(here, keys["QUEUE"], "alice", OPTIONS["QUEUE"]) is None
    cluster.move(way, "{b}")
    for row in holds:
        after = hold_of(there, keys[row], "alice")
        for part in ("token", "count", "ephemeral-ms"):
            assert after[part] == before[row][part], (row, part)
        found[row] = "T"
    found["quarantine"] = "+"
    found["EXEC"] = outcome(lambda: here("LOCK.EXEC", keys["EXEC"], before["EXEC"]["token"], "INCR", f"{keys['EXEC']}-n"))
    for row, waiter in waiters.items():
        found[row] = found.get(row, "") + outcome(waiter.answer)
    found["QUEUE"] = "V" if line_of(there, keys["QUEUE"]) == [] else "T"
    assert found == {row: CELLS[row, "move"] for row in rows}


# The owner's hold, and its request


AGAIN_CELLS = cells(AGAIN)
ASKED = {
    "exclusive": take, "SHARED": lambda *names: take(*names, "SHARED"), "LIMIT": lambda *names: take(*names, "LIMIT 3"),
    "other-LIMIT": lambda *names: take(*names, "LIMIT 4"),
    "MACQUIRE": lambda cli, key, owner: take_all(cli, f"{key} gate", owner),
    "MACQUIRE-SHARED": lambda cli, key, owner: take_all(cli, f"{key} gate", owner, "SHARED"),
    "RENEW": lambda cli, key, owner: cli("LOCK.RENEW", key, owner, "PX", LONG_MS),
    "RAISE": lambda cli, key, owner: cli("LOCK.RENEW", key, owner, "PX", LONG_MS, "RAISE", 5),
}  # fmt: skip


def state(cli):
    """All holders of both locks with their tokens, and all owners that wait."""
    infos = [lock_info(cli, key, "FULL") or {"kind": None, "holders": [], "queue": []} for key in ("door", "gate")]
    holds = [[(hold["owner"], hold["token"], hold["count"]) for hold in info["holders"]] for info in infos]
    return [info["kind"] for info in infos], holds, [[waiter["owner"] for waiter in info["queue"]] for info in infos]


def reply_code(reply, token, before, after):
    """The code of the table that a reply is."""
    if reply is None:
        assert after == before, "nothing changes"
        return "n"
    if reply in (0, 1):
        return str(reply)
    if isinstance(reply, str):
        assert after == before, "nothing changes"
        return reply
    assert reply == token
    return "t" if after == before else "d"


#: The variants of a row, if it has more than one.
WAYS_OF = {"wait": ["BLOCK", "QUEUE"], "some": ["one of two keys", "several tokens"]}


@pytest.mark.parametrize("row, column, way", [(*cell, way) for cell in AGAIN_CELLS for way in WAYS_OF.get(cell[0], [""]) if not cell[0].endswith("-revoked")])
def test_an_owner_asks_again(server, cli, row, column, way):
    token = None
    if row in ("exclusive", "SHARED"):
        token = take_all(cli, "door gate", "alice", "SHARED" if row == "SHARED" else "")
    elif row == "LIMIT":
        token = take(cli, "door", "alice", "LIMIT 3")
        take(cli, "gate", "alice", "LIMIT 3")
    elif row == "some":
        token = take(cli, "door", "alice")
        if way == "several tokens":
            take(cli, "gate", "alice")
    else:
        take(cli, "door", "bob")
        if way == "QUEUE":
            take(cli, "door", "alice", "QUEUE", LONG_MS)
        else:
            ask(server, "door", "alice")
    before = state(cli)
    reply = outcome(lambda: ASKED[column](cli, "door", "alice"))
    assert reply_code(reply, token, before, state(cli)) == AGAIN_CELLS[row, column]


def test_a_plain_request_at_the_owners_turn_is_granted(server, cli):
    take(cli, "door", "bob")
    take(cli, "door", "alice", "QUEUE", LONG_MS)
    release(cli, "door", "bob")
    assert take(cli, "door", "carol") is None, "it is alice's turn"
    assert isinstance(take(cli, "door", "alice"), int)
    assert owners_of(cli, "door") == ["alice"] and line_of(cli, "door") == []


# The page


@pytest.mark.once
def test_the_tables_are_whole():
    names = list(FEATURES)
    pairs = {(a, b) for n, a in enumerate(names) for b in names[n + 1 :]}
    circumstances = names[names.index("RESTORE") :]
    assert set(CELLS) == {pair for pair in pairs if pair[0] not in circumstances}
    assert set("".join(CELLS.values())) == set(CODES), "each code is used, and each is explained"
    assert set(AGAIN_CELLS) == {(row, column) for row in HOLDS for column in REQUESTS}
    assert set(AGAIN_CELLS.values()) == set(REPLIES)


@pytest.mark.once
def test_the_page_is_what_the_script_prints(tmp_path):
    script = ROOT / "scripts" / "combinations"
    assert subprocess.run([script, "--check"], check=False).returncode == 0
    copied = tmp_path / "scripts"
    copied.mkdir()
    (copied / "combinations").write_text(script.read_text())
    (tmp_path / "docs" / "reference").mkdir(parents=True)
    harness = tmp_path / "tests" / "python" / "harness"
    harness.mkdir(parents=True)
    data = (ROOT / "tests" / "python" / "harness" / "combinations.py").read_text()
    (harness / "combinations.py").write_text(data)
    run = partial(subprocess.run, capture_output=True, text=True, check=False)
    told = run(["python3", copied / "combinations", "--check"])
    assert told.returncode == 1 and "docs/reference/combinations.md is not" in told.stderr
    assert run(["python3", copied / "combinations"]).returncode == 0
    assert run(["python3", copied / "combinations", "--check"]).returncode == 0
    (harness / "combinations.py").write_text(data.replace("They work together.", "They work."))
    assert run(["python3", copied / "combinations", "--check"]).returncode == 1
