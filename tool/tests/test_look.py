"""`ls`, `info`, `held-by` and `break`."""

import contextlib
import json
import os
import pty
import subprocess
import time

import pytest
from harness.cluster import Cluster
from harness.limits import eventually
from harness.sentinel import GROUP, watched

from tool import holder, is_held


@pytest.fixture
def server(start_server):
    return start_server()


@pytest.fixture
def own(server, tool_for):
    """The tool, for a server of the test's own."""
    return tool_for(server.port)


def wait_for(server, name, owner):
    request = server.ask("LOCK.ACQUIRE", name, owner, "PX", 60000, "BLOCK", 60000)
    eventually(lambda: owner in str(server.admin("LOCK.INFO", name)))
    return request


def test_ls_shows_the_longest_waited_for_first(server, own):
    first = server.admin("LOCK.ACQUIRE", "a", "ann", "PX", 60000)
    server.admin("LOCK.ACQUIRE", "b", "ben", "PX", 60000)
    server.admin("LOCK.ACQUIRE", "c", "cid", "PX", 60000)
    server.admin("LOCK.ACQUIRE", "pool", "one", "PX", 60000, "LIMIT", 3)
    server.admin("LOCK.ACQUIRE", "pool", "two", "PX", 60000, "LIMIT", 3)
    server.admin("SET", "no lock", "x")
    wait_for(server, "c", "waiter-of-c")
    time.sleep(0.05)
    wait_for(server, "b", "waiter-of-b")
    done = own("ls")
    head, *rows = done.stdout.splitlines()
    assert done.returncode == 0 and head.split()[:4] == ["NAME", "KIND", "HOLDER", "TOKEN"]
    names = [row.split()[0] for row in rows]
    assert names[:2] == ["c", "b"] and sorted(names[2:]) == ["a", "pool"]
    row = next(row for row in rows if row.startswith("a "))
    assert row.split()[:4] == ["a", "exclusive", "ann", str(first)]
    assert "2/3" in done.stdout and "one +1" in done.stdout
    found = json.loads(own("ls", "--json").stdout)
    assert found["scanned_percent"] == 100 and [lock["name"] for lock in found["locks"]][:2] == ["c", "b"]
    assert found["locks"][0]["queue"][0]["owner"] == "waiter-of-c" and found["locks"][0]["longest_wait_ms"] > 0
    assert [lock["name"] for lock in json.loads(own("ls", "--json", "p*").stdout)["locks"]] == ["pool"]


def test_ls_keeps_to_its_budget(server, own):
    server.admin("DEBUG", "POPULATE", 5000)
    server.admin("LOCK.ACQUIRE", "k", "ann", "PX", 60000)
    done = own("ls", "--budget", "1000")
    assert "scanned 19 %" in done.stdout or "scanned 20 %" in done.stdout, done.stdout
    assert json.loads(own("ls", "--json", "--budget", "1000").stdout)["scanned_percent"] < 25
    assert json.loads(own("ls", "--json").stdout)["locks"][0]["name"] == "k"


def test_ls_watches_until_nobody_reads(server, own):
    process = own.start("ls", "--watch=50ms", "--json", stdout=subprocess.PIPE)
    assert json.loads(process.stdout.readline())["locks"] == []
    server.admin("LOCK.ACQUIRE", "k", "ann", "PX", 60000)
    eventually(lambda: "ann" in process.stdout.readline())
    process.stdout.close()
    process.stdout = None
    assert process.wait(30) == 0


def test_names_cannot_move_the_cursor(server, own):
    server.admin("LOCK.ACQUIRE", b"k\x1b[2J\n\xff", "a\rb", "PX", 60000)
    for words in (["ls"], ["info", b"k\x1b[2J\n\xff"], ["held-by", "a\rb"]):
        done = own(*words)
        assert done.returncode == 0 and "\x1b" not in done.stdout and "\r" not in done.stdout
        assert "\\u{1b}[2J\\n" in done.stdout, done.stdout


def test_info_shows_holders_and_waiters(server, own):
    token = server.admin("LOCK.ACQUIRE", "k", "ann", "PX", 60000)
    wait_for(server, "k", "ben")
    done = own("info", "k")
    assert done.returncode == 0
    for part in ("exclusive", "ann", str(token), "ben", "blocked"):
        assert part in done.stdout
    found = json.loads(own("info", "--json", "k").stdout)
    assert found["holders"][0]["token"] == token and found["waiters"] == 1
    assert json.loads(own("info", "--json", "free").stdout) is None
    assert "nobody holds 'free'" in own("info", "free").stdout
    server.admin("SET", "text", "x")
    assert own("info", "text").returncode == 78
    assert own("info", "").returncode == 64


def test_held_by_shows_what_an_owner_has(server, own):
    token = server.admin("LOCK.ACQUIRE", "k", "ann", "PX", 60000)
    server.admin("LOCK.ACQUIRE", "other", "ben", "PX", 60000)
    wait_for(server, "other", "ann")
    done = own("held-by", "ann")
    assert done.returncode == 0 and done.stdout.splitlines()[1].split()[:4] == ["k", "held", "exclusive", str(token)]
    found = json.loads(own("held-by", "--json", "ann").stdout)
    assert [(lock["name"], lock["state"], lock["token"]) for lock in found] == [
        ("k", "held", token), ("other", "waiting", None),
    ]  # fmt: skip
    assert json.loads(own("held-by", "--json", "nobody").stdout) == []
    assert own("held-by", "x" * 257).returncode == 64


def test_break_ends_what_it_has_shown(server, own):
    token = server.admin("LOCK.ACQUIRE", "k", "ann", "PX", 60000)
    done = own("break", "k", stdin=subprocess.DEVNULL)
    assert done.returncode == 64 and "--yes" in done.stderr and is_held(server, "k")
    done = own("break", "--yes", "k")
    assert done.returncode == 0 and "ann" in done.stdout and str(token) in done.stdout
    assert not is_held(server, "k")
    done = own("break", "--yes", "k")
    assert done.returncode == 0 and "nobody holds" in done.stdout


class Question:
    """The tool on a terminal of its own, where it has asked something."""

    def __init__(self, tool, *words):
        self.end, inside = pty.openpty()
        self.process = tool.start(*words, stdin=inside, stdout=inside, stderr=inside)
        os.close(inside)
        self.said = ""
        eventually(self._is_asked)

    def _is_asked(self):
        self.said += os.read(self.end, 4096).decode()
        return "[y/N]" in self.said

    def answer(self, text):
        os.write(self.end, text.encode())
        code = self.process.wait(30)
        rest = b""
        with contextlib.suppress(OSError):  # of a terminal that no process has open
            while read := os.read(self.end, 4096):
                rest += read
        os.close(self.end)
        return code, rest.decode()


def test_break_asks_on_a_terminal(server, own):
    server.admin("LOCK.ACQUIRE", "k", "ann", "PX", 60000)
    assert Question(own, "break", "k").answer("n\n")[0] == 64 and is_held(server, "k")
    assert Question(own, "break", "k").answer("y\n")[0] == 0 and not is_held(server, "k")


def test_break_never_ends_the_next_hold_of_the_same_owner(server, own):
    server.admin("LOCK.ACQUIRE", "k", "ann", "PX", 60000)
    question = Question(own, "break", "k")
    server.admin("LOCK.RELEASE", "k", "ann")
    token = server.admin("LOCK.ACQUIRE", "k", "ann", "PX", 60000)
    code, said = question.answer("y\n")
    assert code == 0 and "nothing was done" in said
    assert holder(server, "k")["token"] == token


def test_break_ends_one_holder_of_a_semaphore(server, own):
    for owner in ("ann", "ben"):
        server.admin("LOCK.ACQUIRE", "pool", owner, "PX", 60000, "LIMIT", 2)
    done = own("break", "--yes", "pool")
    assert done.returncode == 64 and "--owner" in done.stderr
    assert own("break", "--yes", "--owner", "cid", "pool").returncode == 64
    assert own("break", "--yes", "--owner", "ann", "pool").returncode == 0
    assert holder(server, "pool")["owner"] == "ben"
    server.admin("LOCK.ACQUIRE", "pool", "ann", "PX", 60000, "LIMIT", 2)
    assert own("break", "--yes", "--force", "pool").returncode == 0
    assert not is_held(server, "pool")


def test_break_ends_a_run(server, own):
    process = own.start("run", "k", "sleep", "600")
    eventually(lambda: is_held(server, "k"))
    assert own("break", "--yes", "k").returncode == 0
    assert process.wait(30) == 79


def test_cluster_is_walked_and_redirections_are_followed(start_server, tool_for):
    cluster = Cluster(start_server)
    tool = tool_for(0)
    tool.environment["REDISLOCK_URL"] = f"redis+cluster://127.0.0.1:{cluster.nodes[0].port}"
    for node, name in ((0, "{b}1"), (1, "{a}1")):
        cluster.nodes[node].admin("LOCK.ACQUIRE", name, "ann", "PX", 60000)
    found = json.loads(tool("ls", "--json").stdout)
    assert {lock["name"] for lock in found["locks"]} == {"{a}1", "{b}1"}
    assert len(json.loads(tool("held-by", "--json", "ann").stdout)) == 2
    for name in ("{a}1", "{b}1"):
        assert json.loads(tool("info", "--json", name).stdout)["holders"][0]["owner"] == "ann"
        assert tool("break", "--yes", name).returncode == 0
        assert tool("run", name, "sh", "-c", "exit 3").returncode == 3
    assert json.loads(tool("ls", "--json").stdout)["locks"] == []


def test_primary_is_found_through_sentinels(start_server, tool_for):
    server = start_server()
    sentinels = watched(start_server, server.port, replicas=0)
    tool = tool_for(0)
    # The first one does not answer.
    hosts = ",".join(["127.0.0.1:1", *(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)])
    tool.environment["REDISLOCK_URL"] = f"redis+sentinel://{hosts}/{GROUP}"
    assert tool("run", "k", "sh", "-c", "exit 3").returncode == 3
    server.admin("LOCK.ACQUIRE", "k", "ann", "PX", 60000)
    assert json.loads(tool("ls", "--json").stdout)["locks"][0]["name"] == "k"
    assert tool("run", "k", "true").returncode == 75
    tool.environment["REDISLOCK_URL"] = f"redis+sentinel://{hosts}/other"
    done = tool("ls")
    assert done.returncode == 78 and "other" in done.stderr


def test_server_that_is_away_is_named(tool_for):
    tool = tool_for(1)
    for words in (["ls"], ["info", "k"], ["held-by", "ann"], ["break", "k"]):
        done = tool(*words)
        assert done.returncode == 69 and done.stderr.count("\n") == 1 and "127.0.0.1:1" in done.stderr
