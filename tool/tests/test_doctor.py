"""`doctor` finds what the documentation warns of."""

import itertools
import json
import re
import signal
import time
from pathlib import Path

import pytest
from harness import wall_clock
from harness.cluster import Cluster
from harness.limits import eventually
from harness.proxy import BACK, Proxy
from harness.replicas import AT_ONCE, is_linked
from harness.sentinel import GROUP, watched
from harness.server import IS_VALKEY, ROOT


@pytest.fixture
def examine(tool_for):
    """Runs doctor on a server: its exit code, and what each check has found."""

    def run(port, *words, url=None):
        tool = tool_for(port)
        tool.environment["REDISLOCK_URL"] = url or tool.environment["REDISLOCK_URL"]
        done = tool("doctor", "--json", *words)
        assert done.returncode in (0, 1, 2, 3), done.stderr
        found = {}
        for row in json.loads(done.stdout):
            found.setdefault(row["check"], []).append(row)
        return done.returncode, found

    return run


def levels(found):
    return {check: sorted({row["level"] for row in rows}) for check, rows in found.items()}


def worst_of(found, check):
    (level,) = levels(found)[check]
    return level


SOUND = ["--appendonly", "yes", "--appendfsync", "always"]


def test_sound_server_has_no_finding(start_server, examine):
    server = start_server(*SOUND)
    code, found = examine(server.port, "--active", "--prefix", "cron:")
    assert code == 0, found
    assert set(sum(levels(found).values(), [])) == {"ok"}
    assert list(found) == [
        "module", "server", "settings", "eviction", "confirm", "leases", "persistence", "rights", "limits", "round-trips",
        "address", "commands", "clocks", "active",
    ]  # fmt: skip
    assert server.admin("DBSIZE") == 0


@pytest.mark.parametrize(
    ("settings", "check", "level"),
    [
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "eviction", "error"),
        ({"appendfsync": "everysec"}, "persistence", "warning"),
        ({"appendonly": "no"}, "persistence", "warning"),
        ({"timeout": "60"}, "limits", "warning"),
        ({"tcp-keepalive": "0"}, "limits", "warning"),
        ({"maxmemory": "1mb"}, "limits", "warning"),
        ({"redislock.max-lease": "10000"}, "leases", "error"),
    ],
    ids=str,
)
def test_setting_that_harms_is_found(start_server, examine, settings, check, level):
    server = start_server(*SOUND)
    for name, value in settings.items():
        server.admin("CONFIG", "SET", name, value)
    code, found = examine(server.port)
    assert worst_of(found, check) == level and code == {"warning": 1, "error": 2}[level], found
    (row,) = found[check]
    assert row["advice"] and row["page"]
    others = {each for name, each in levels(found).items() if name != check for each in each}
    assert others == {"ok"}


def test_min_hold_above_the_quarantine_is_found(start_server, examine):
    server = start_server(*SOUND, module_arguments=["quarantine", "40000"])
    assert worst_of(examine(server.port, "--min-hold", "50s")[1], "leases") == "error"
    # It is in the quarantine of its start.
    assert worst_of(examine(server.port)[1], "leases") == "warning"
    assert worst_of(examine(server.port)[1], "persistence") == "ok"


def test_server_without_the_module_is_found(start_server, examine):
    server = start_server(with_module=False)
    code, found = examine(server.port, "--active")
    assert code == 2 and worst_of(found, "module") == "error" and worst_of(found, "active") == "error"
    skipped = {check for check, rows in levels(found).items() if rows == ["skipped"]}
    assert skipped == {"settings", "confirm", "leases", "persistence", "rights", "clocks"}
    assert {row["text"] for check in skipped for row in found[check]} == {f"127.0.0.1:{server.port} has no module redislock"}


def test_settings_are_not_compared_with_those_of_a_server_without_the_module(start_server, examine):
    bare, replica = start_server(*AT_ONCE, with_module=False), start_server(*SOUND, *AT_ONCE)
    replica.admin("REPLICAOF", "127.0.0.1", bare.port)
    is_linked(replica)
    code, found = examine(bare.port)
    assert code == 2 and worst_of(found, "module") == "error"
    assert worst_of(found, "settings") == worst_of(found, "clocks") == "skipped"


def test_rights_that_are_missing_are_found(start_server, examine, tmp_path):
    server = start_server(*SOUND)
    password = tmp_path / "password"
    password.write_text("secret")
    password.chmod(0o600)
    login = ["--password-file", str(password)]
    url = f"redis://ann@127.0.0.1:{server.port}"
    for rule, level in (("-lock.renew", "error"), ("-client|tracking", "warning"), ("-lock.heldby", "warning")):
        server.admin("ACL", "SETUSER", "ann", "reset", "on", ">secret", "~*", "+@all", rule)
        assert worst_of(examine(0, *login, url=url)[1], "rights") == level, rule
    server.admin("ACL", "SETUSER", "ann", "reset", "on", ">secret", "~*", "+@all", "-config", "-acl", "-info", "-command")


#: The checks that need these commands.
NEEDS = {
    "info": {"module", "server", "confirm", "leases", "limits", "address", "clocks"},
    "config|get": {"settings", "eviction", "leases", "persistence", "limits"},
    "acl|whoami": {"rights"},
    "acl|dryrun": {"rights"},
    "command|info": {"commands"},
    "time": {"clocks"},
}


def test_check_that_cannot_be_made_is_no_ok(start_server, examine):
    server = start_server(*SOUND)
    for command, checks in NEEDS.items():
        server.admin("ACL", "SETUSER", "default", "+@all", f"-{command}")
        code, found = examine(server.port)
        skipped = {check for check, rows in levels(found).items() if rows == ["skipped"]}
        assert (code, skipped) == (3, checks), command
        rows = [row for check in checks for row in found[check]]
        assert all(f"refused {command.replace('|', ' ').upper()}" in row["text"] and row["advice"] for row in rows), rows


def test_skipped_check_hides_no_error_and_is_hidden_by_no_warning(start_server, examine):
    server = start_server(*SOUND, "--timeout", "60")
    assert examine(server.port)[0] == 1
    server.admin("ACL", "SETUSER", "default", "-command|info")
    assert examine(server.port)[0] == 3
    server.admin("CONFIG", "SET", "redislock.max-lease", "10000")
    assert examine(server.port)[0] == 2


def test_page_names_the_rights_that_the_checks_need():
    page = (ROOT / "docs" / "reference" / "tool.md").read_text().split("## redislock doctor")[1]
    assert set(re.search(r"`(\+ping .*?)`", page)[1].split()) == {"+ping", *(f"+{command}" for command in NEEDS)}


def test_sentinel_that_does_not_tell_its_patience_is_no_ok(start_server, examine):
    server = start_server(*SOUND, *AT_ONCE)
    is_linked(start_server(*SOUND, *AT_ONCE, "--replicaof", "127.0.0.1", server.port))
    (sentinel,) = watched(start_server, server.port, replicas=1, sentinels=1)
    sentinel.admin("ACL", "SETUSER", "default", "-sentinel|master")
    code, found = examine(0, url=f"redis+sentinel://127.0.0.1:{sentinel.port}/{GROUP}")
    assert code == 3 and worst_of(found, "sentinel") == "skipped"


@pytest.mark.parametrize("command", ["SCAN", "COMMAND", "ROLE"])
def test_command_that_is_renamed_is_found(start_server, examine, command):
    server = start_server(*SOUND, "--rename-command", command, "")
    (row,) = examine(server.port)[1]["commands"]
    assert row["level"] == "warning" and command in row["text"]


def test_sentinel_is_followed_to_the_replica(start_server, examine):
    server = start_server(*SOUND)
    replica = start_server(*SOUND, "--replicaof", "127.0.0.1", server.port)
    is_linked(replica)
    (sentinel, *_) = watched(start_server, server.port, replicas=1, sentinels=1)
    url = f"redis+sentinel://127.0.0.1:{sentinel.port}/{GROUP}"
    code, found = examine(0, url=url)
    assert "2 of 2 nodes" in found["module"][0]["text"], found
    assert worst_of(found, "confirm") == "warning" and worst_of(found, "sentinel") == "ok" and code == 1
    replica.admin("CONFIG", "SET", "redislock.max-lease", "5000")
    assert worst_of(examine(0, url=url)[1], "settings") == "error"
    sentinel.set("down-after-milliseconds", 20_000)
    assert worst_of(examine(0, url=url)[1], "sentinel") == "warning"
    (row,) = examine(0, "--lease", "120s", url=url)[1]["sentinel"]
    assert row["level"] == "warning" and "server_timeout 10s" in row["text"]
    assert worst_of(examine(0, "--lease", "120s", "--server-timeout", "30s", url=url)[1], "sentinel") == "ok"
    replica.kill()
    code, found = examine(0, url=url)
    assert code == 2 and "does not answer" in found["module"][0]["text"]


def test_every_primary_of_a_cluster_is_examined(start_server, examine):
    cluster = Cluster(start_server, *SOUND)
    url = f"redis+cluster://127.0.0.1:{cluster.nodes[1].port}"
    code, found = examine(0, "--active", url=url)
    assert code == 0, found
    assert len(found["active"]) == len(found["eviction"]) == 2
    cluster.nodes[0].admin("CONFIG", "SET", "timeout", "60")
    assert levels(examine(0, url=url)[1])["limits"] == ["ok", "warning"]


def test_lines_name_the_check_and_what_to_do(start_server, tool_for):
    server = start_server("--timeout", "60")
    done = tool_for(server.port)("doctor")
    line = next(line for line in done.stdout.splitlines() if " limits: " in line)
    assert done.returncode == 1 and line.startswith("warning") and "Set timeout 0 (redis.conf.example)" in line


# Ten misconfigurations, on one server, under Sentinel, and in a cluster.


def settings(**values):
    """Sets these; `_` stands for `-`, and `__` for a dot."""

    def apply(node):
        for name, value in values.items():
            node.admin("CONFIG", "SET", name.replace("__", ".").replace("_", "-"), value)

    return apply


def without(rule):
    return lambda node: node.admin("ACL", "SETUSER", "default", rule)


def crowded(node):
    """As many clients as the server takes, but a few."""
    connections = [node.connect() for _ in range(60)]
    node.admin("CONFIG", "SET", "maxclients", 66)
    return lambda: [connection.close() for connection in connections]


def clock_of_another_time(node):
    node.clock.set_ahead(5)


MISCONFIGURATIONS = [
    ("eviction", "error", settings(maxmemory="100mb", maxmemory_policy="allkeys-lru")),
    ("persistence", "warning", settings(appendfsync="everysec")),
    ("persistence", "warning", settings(appendonly="no")),
    ("limits", "warning", settings(timeout="60")),
    ("limits", "warning", settings(tcp_keepalive="0")),
    ("limits", "warning", settings(maxmemory="1mb")),
    ("limits", "warning", crowded),
    ("leases", "error", settings(redislock__max_lease="10000")),
    ("leases", "error", settings(redislock__leaving="yes")),
    ("confirm", "error", settings(redislock__quarantine="60000", redislock__group_size="8", redislock__confirm="all")),
    ("rights", "error", without("-lock.renew")),
    ("rights", "warning", without("-client|tracking")),
    ("clocks", "warning", clock_of_another_time),
]


def repair(node):
    """Undoes all of them."""
    node.admin("ACL", "SETUSER", "default", "+@all")
    settings(maxclients="10000", maxmemory="0", maxmemory_policy="noeviction", timeout="0", tcp_keepalive="300")(node)
    settings(redislock__confirm="local", redislock__quarantine="0", redislock__group_size="0", redislock__leaving="no")(node)
    settings(redislock__max_lease="3600000", appendonly="yes", appendfsync="always")(node)
    node.clock.set_ahead(0)
    eventually(lambda: node.info("persistence")["aof_rewrite_in_progress"] == "0", "its file is written")


@pytest.fixture
def start_clocked(start_server, tmp_path):
    """Starts sound servers, each with a wall clock of its own as `clock`."""
    library, number = wall_clock.build(tmp_path), iter(range(100))

    def start(*options, **more):
        clock = wall_clock.WallClock(library, tmp_path / f"clock{next(number)}")
        server = start_server(*options, *SOUND, environment=clock.environment, **more)
        server.clock = clock
        return server

    return start


def one_server(start_clocked, start_server):
    server = start_clocked()
    return server, f"redis://127.0.0.1:{server.port}"


def under_sentinel(start_clocked, start_server):
    server = start_clocked(*AT_ONCE)
    is_linked(start_clocked(*AT_ONCE, "--replicaof", "127.0.0.1", server.port))
    (sentinel,) = watched(start_server, server.port, replicas=1, sentinels=1)
    return server, f"redis+sentinel://127.0.0.1:{sentinel.port}/{GROUP}"


def in_a_cluster(start_clocked, start_server):
    cluster = Cluster(start_clocked)
    return cluster.nodes[0], f"redis+cluster://127.0.0.1:{cluster.nodes[1].port}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("place", [one_server, under_sentinel, in_a_cluster])
def test_each_misconfiguration_is_found(start_clocked, start_server, examine, place):
    node, url = place(start_clocked, start_server)
    sound = levels(examine(0, url=url)[1])
    for check, level, apply in MISCONFIGURATIONS:
        undo = apply(node)
        code, found = examine(0, url=url)
        rows = [row for row in found[check] if row["level"] == level and row["advice"] and row["page"]]
        assert rows and code >= {"warning": 1, "error": 2}[level], (check, apply, found)
        if callable(undo):
            undo()
        repair(node)
        assert levels(examine(0, url=url)[1]) == sound, "what was found is repaired"


# Faults that no setting makes.


class Rewriting(Proxy):
    """Replaces a text in what a server says by another one, which is as long."""

    def __init__(self, port, old, new):
        assert len(old) == len(new)
        self.old, self.new = old.encode(), new.encode()
        super().__init__(port)

    def _pass(self, way, source, sink):
        super()._pass(way, Rewriter(source, self.old, self.new) if way == BACK else source, sink)


class Rewriter:
    """A socket whose bytes are changed as they are read."""

    def __init__(self, source, old, new):
        self.source, self.old, self.new = source, old, new

    def recv(self, size):
        data = self.source.recv(size)
        while any(data.endswith(self.old[:length]) for length in range(3, len(self.old))):
            data += self.source.recv(size)  # the rest of the text, which may not be cut in two
        return data.replace(self.old, self.new)

    def __getattr__(self, name):
        return getattr(self.source, name)


class Slow(Proxy):
    """Delays what a server says, now and then."""

    def _pass(self, way, source, sink):
        super()._pass(way, Late(source) if way == BACK else source, sink)


class Late:
    """A socket that is slow each tenth time."""

    def __init__(self, source):
        self.source, self.count = source, 0

    def recv(self, size):
        data, self.count = self.source.recv(size), self.count + 1
        time.sleep(0.2 if self.count % 10 == 0 else 0)
        return data

    def __getattr__(self, name):
        return getattr(self.source, name)


class Several(Proxy):
    """Leads to several servers in turn."""

    def __init__(self, *ports):
        self.ports = itertools.cycle(ports)
        super().__init__(ports[0])

    def _join(self, client):
        self.target = next(self.ports)
        super()._join(client)


class OneAtOnce(Proxy):
    """Closes a connection at once while another one is open, as where a server's `maxclients` is reached."""

    def _join(self, client):
        if self.pairs:
            client.close()
        else:
            super()._join(client)


@pytest.fixture
def door():
    """Makes doors that are closed at the end."""
    made = []

    def make(kind, *words):
        made.append(kind(*words))
        return made[-1].port

    yield make
    for each in made:
        each.close()


def version_of(server):
    info = server.info("server")
    return f"{'valkey' if IS_VALKEY else 'redis'}_version:{info['valkey_version' if IS_VALKEY else 'redis_version']}"


def test_server_with_a_known_bug_is_found(start_server, examine, door):
    server = start_server(*SOUND)
    real = version_of(server)
    for version, strings, level in (("valkey 8.1", "yes", "warning"), ("redis 9.9", "no", "ok")):
        kind, number = version.split()
        settings(redislock__legacy_strings=strings)(server)
        text = f"{kind}_version:{number}."
        port = door(Rewriting, server.port, real, text + "9" * (len(real) - len(text)))
        (row,) = examine(port)[1]["server"]
        assert row["level"] == level and number in row["text"], row
        assert ("not tested on" in row["text"]) == (version == "redis 9.9")


def replica_behind(start_server, primary, door, old, new):
    """A replica that the primary's clients reach by a door that rewrites what it says."""
    replica = start_server(*SOUND, *AT_ONCE)
    port = door(Rewriting, replica.port, old, new)
    replica.admin("CONFIG", "SET", "replica-announce-port", port)
    replica.admin("REPLICAOF", "127.0.0.1", primary.port)
    is_linked(replica)


def test_replica_without_the_module_is_found_by_its_primary(start_server, examine, door):
    server = start_server(*SOUND, *AT_ONCE)
    replica_behind(start_server, server, door, "redislock_version", "otherlock_version")
    code, found = examine(server.port)
    assert code == 2 and worst_of(found, "module") == "error" and "no module" in found["module"][0]["text"]


def test_several_versions_of_the_module_are_found(start_server, examine, door):
    server = start_server(*SOUND, *AT_ONCE)
    version = server.info("redislock")["redislock_version"]
    old = f"redislock_version:{version}"
    replica_behind(start_server, server, door, old, "redislock_version:" + "9" * len(version))
    code, found = examine(server.port)
    assert code == 1 and worst_of(found, "module") == "warning" and "several versions" in found["module"][0]["text"]


def test_address_that_leads_to_several_servers_or_to_a_replica_is_found(start_server, examine, door):
    server, other = start_server(*SOUND), start_server(*SOUND)
    code, found = examine(door(Several, server.port, other.port))
    assert code == 2 and "2 servers" in found["address"][0]["text"]
    other.admin("REPLICAOF", "127.0.0.1", server.port)
    is_linked(other)
    code, found = examine(other.port)
    assert code == 2 and "is a replica" in found["address"][0]["text"]


def test_connection_that_fails_is_not_taken_for_the_same_server(start_server, examine, door):
    code, found = examine(door(OneAtOnce, start_server(*SOUND).port))
    (row,) = found["address"]
    assert code == 3 and row["level"] == "skipped" and "failed another one" in row["text"], row


def test_slow_round_trips_are_found(start_server, examine, door):
    server = start_server(*SOUND)
    port = door(Slow, server.port)
    assert worst_of(examine(port, "--lease", "3s")[1], "round-trips") == "warning"


def test_server_that_hangs_is_found(start_server, examine):
    server = start_server(*SOUND)
    server.process.send_signal(signal.SIGSTOP)
    code, found = examine(server.port)
    server.process.send_signal(signal.SIGCONT)
    assert code == 2 and "does not answer" in found["module"][0]["text"]
    assert list(found) == ["module"], "nothing else is known"


def test_replicas_that_confirm_needs_are_counted(start_server, examine):
    confirming = ["quarantine", "30000", "group-size", "2", "confirm", "all"]
    server = start_server(*SOUND, *AT_ONCE, module_arguments=confirming)
    (row,) = examine(server.port)[1]["confirm"]
    assert row["level"] == "error" and "lacks 1 replicas" in row["text"]
    replicas = [start_server(*SOUND, *AT_ONCE, module_arguments=confirming) for _ in range(2)]
    for replica, level in zip(replicas, ("ok", "error"), strict=True):
        replica.admin("REPLICAOF", "127.0.0.1", server.port)
        is_linked(replica)
        eventually(lambda level=level: worst_of(examine(server.port)[1], "confirm") == level, f"it is {level}", limit=60)
    assert "more replicas" in examine(server.port)[1]["confirm"][0]["text"]


def test_replicas_that_a_majority_cannot_count_yet_are_told_from_missing_ones(start_server, examine):
    confirming = ["quarantine", "600000", "group-size", "3", "confirm", "majority"]
    server, replica = (start_server(*SOUND, *AT_ONCE, module_arguments=confirming) for _ in range(2))
    assert "lacks 1 replicas" in examine(server.port)[1]["confirm"][0]["text"]
    replica.admin("REPLICAOF", "127.0.0.1", server.port)
    is_linked(replica)

    def is_told():
        (row,) = examine(server.port)[1]["confirm"]
        return row["level"] == "error" and "less than a quarantine ago" in row["text"]

    eventually(is_told, "it waits for the replica to count", limit=60)


def test_tokens_ahead_of_the_clock_are_found(start_clocked, examine):
    server = start_clocked()
    server.clock.set_ahead(60)
    server.admin("LOCK.ACQUIRE", "k", "ann", "PX", 1000)
    server.clock.set_ahead(0)
    (row,) = examine(server.port)[1]["clocks"]
    assert row["level"] == "warning" and "ahead of its clock" in row["text"]


def test_active_check_fails_where_a_lock_cannot_be_taken(start_server, examine):
    server = start_server(*SOUND, module_arguments=["quarantine", "60000"])
    (row,) = examine(server.port, "--active")[1]["active"]
    assert row["level"] == "error" and "QUARANTINE" in row["text"]


def test_every_check_of_the_page_has_a_fault_in_these_tests():
    page = (ROOT / "docs" / "reference" / "tool.md").read_text().split("## redislock doctor")[1].split("\n## ")[0]
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE))
    text = Path(__file__).read_text().split("def test_setting_that_harms")[1]
    asserted = set(re.findall(r'\)\[1\]\["([a-z-]+)"\]|found, "([a-z-]+)"\) ==|\[1\], "([a-z-]+)"\) ==|found\["([a-z-]+)"\]', text))
    tried = {check for check, _, _ in MISCONFIGURATIONS} | {name for names in asserted for name in names}
    assert listed and listed <= tried, listed - tried


def test_every_page_that_doctor_names_is_there():
    sources = (ROOT / "tool" / "src" / "doctor").glob("*.rs")
    pages = {page for path in sources for page in re.findall(r'"([\w/-]+\.md(?:#[a-z-]+)?)"', path.read_text())}
    assert len(pages) > 8
    for page in pages:
        path, _, anchor = page.partition("#")
        heads = re.findall(r"^#+ (.*)", (ROOT / path).read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^a-z0-9 -]", "", head.lower()).replace(" ", "-") for head in heads}
        assert not anchor or anchor in anchors, page
