"""`doctor` finds what the documentation warns of."""

import json

import pytest
from harness.cluster import Cluster
from harness.limits import eventually
from harness.sentinel import GROUP, watched


@pytest.fixture
def examine(tool_for):
    """Runs doctor on a server: its exit code, and what each check has found."""

    def run(port, *words, url=None):
        tool = tool_for(port)
        tool.environment["REDISLOCK_URL"] = url or tool.environment["REDISLOCK_URL"]
        done = tool("doctor", "--json", *words)
        assert done.returncode in (0, 1, 2), done.stderr
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
        "module", "settings", "eviction", "confirm", "leases", "persistence", "rights", "limits", "round-trips",
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
    code, found = examine(0, *login, url=url)
    skipped = {check for check, rows in levels(found).items() if rows == ["skipped"]}
    assert code == 0 and skipped >= {"module", "settings", "eviction", "leases", "persistence", "rights", "commands"}


def test_command_that_is_renamed_is_found(start_server, examine):
    server = start_server(*SOUND, "--rename-command", "SCAN", "")
    assert worst_of(examine(server.port)[1], "commands") == "warning"


def test_sentinel_is_followed_to_the_replica(start_server, examine):
    server = start_server(*SOUND)
    replica = start_server(*SOUND, "--replicaof", "127.0.0.1", str(server.port))
    eventually(lambda: replica.info("replication")["master_link_status"] == "up")
    (sentinel, *_) = watched(start_server, server.port, replicas=1, sentinels=1)
    url = f"redis+sentinel://127.0.0.1:{sentinel.port}/{GROUP}"
    code, found = examine(0, url=url)
    assert "2 of 2 nodes" in found["module"][0]["text"], found
    assert worst_of(found, "confirm") == "warning" and worst_of(found, "sentinel") == "ok" and code == 1
    replica.admin("CONFIG", "SET", "redislock.max-lease", "5000")
    assert worst_of(examine(0, url=url)[1], "settings") == "error"
    sentinel.set("down-after-milliseconds", 20_000)
    assert worst_of(examine(0, url=url)[1], "sentinel") == "warning"


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
