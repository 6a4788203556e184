"""The examples do what they claim on a real server, and notice when they do not."""

import os
import re
import subprocess
import sys

import pytest

from harness.limits import SLOW_FACTOR, VALGRIND
from harness.server import ROOT

EXAMPLES = ROOT / "examples"
#: Examples that use the client library for Python. Examples for Node and Rust are run by the tests of those clients.
OVER_CLIENTS = EXAMPLES / "clients"
LIMIT_SECONDS = 100 * SLOW_FACTOR

pytestmark = pytest.mark.timeout(120)


def run(server, name, *options):
    """Runs an example; returns its exit code and output."""
    surroundings = {
        **os.environ,
        "REDIS_URL": f"redis://127.0.0.1:{server.port}",
        "PYTHONPATH": str(ROOT / "clients" / "python" / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *options],
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("attempt", range(3))
def test_with_the_lock_sales_never_exceed_the_stock(server, attempt):
    code, output = run(server, "oversold_stock.py")
    assert (code, "10 items, with a lock: 10 sold" in output) == (0, True), output
    assert server.admin("DBSIZE") == 0


@pytest.mark.parametrize("attempt", range(3))
def test_without_the_lock_the_stock_is_oversold(server, attempt):
    code, output = run(server, "oversold_stock.py", "--without-lock")
    assert code == 0, output
    assert int(re.search(r"without a lock: (\d+) sold", output)[1]) > 10


def test_the_scheduled_job_runs_once_a_minute(server):
    code, output = run(server, "scheduled_job.py")
    assert (code, "3 minutes: the job ran 3 times" in output) == (0, True), output
    assert len(set(re.findall(r"^(\S+): instance-\d runs", output, re.MULTILINE))) == 3


def test_the_late_write_is_turned_away_by_its_token(server):
    code, output = run(server, "paused_holder.py")
    assert (code, "the balance was 100, is 101" in output) == (0, True), output
    assert re.search(r"adds 1 to 100 with token \d+: written", output)
    assert re.search(r"adds 10 to 100 with token \d+: turned away", output)


def test_without_the_fence_the_late_write_destroys_the_other(server):
    code, output = run(server, "paused_holder.py", "--without-fence")
    assert (code, "the balance was 100, is 110" in output) == (0, True), output


def test_the_late_write_to_the_server_is_turned_away(server):
    code, output = run(server, "late_writer.py")
    assert (code, "the total was 100, is 101" in output) == (0, True), output
    assert re.search(r"adds 1 to 100 with token \d+: written", output)
    assert re.search(r"adds 10 to 100 with token \d+: turned away", output)
    assert server.admin("DBSIZE") == 0


def test_a_plain_late_write_to_the_server_destroys_the_other(server):
    code, output = run(server, "late_writer.py", "--without-exec")
    assert (code, "the total was 100, is 110" in output) == (0, True), output


#: The expected output of an example, and that with an option that leaves out the lock.
KINDS = {
    ("few_at_a_time.py",): r"20 jobs, 3 places, with a lock: 3 at once",
    ("few_at_a_time.py", "--without-lock"): r"without a lock: ([4-9]|1\d|20) at once",
    ("one_writer_many_readers.py",): r"with a lock: a half was seen 0 times",
    ("one_writer_many_readers.py", "--without-lock"): r"a half was seen [1-9]\d* times",
    ("transfers.py",): r"90 transfers, with locks: 4 of 4 accounts are right",
    ("transfers.py", "--without-lock"): r"90 transfers, without locks: [0-3] of 4 accounts",
    ("nested_calls.py",): r"with REENTRANT: 0 came in between",
    ("nested_calls.py", "--without-reentrant"): r"without REENTRANT: 3 came in between",
    ("many_tasks_one_connection.py",): r"100 tasks over one connection, 1 at once, in order",
    ("killed_worker.py",): r"with a tie: while the worker lived, the other waited",
    ("killed_worker.py", "--without-tie"): r"without a tie: .* the other came in",
    ("clients/worker.py",): r"40 payments, with a lock: 40 are in the balances",
    ("clients/worker.py", "--without-lock"): r"without a lock: [1-3]?\d are in the balances",
    ("clients/semaphore.py",): r"20 jobs, 3 places, with a lock: 3 at once",
    ("clients/semaphore.py", "--without-lock"): r"without a lock: ([4-9]|1\d|20) at once",
    ("clients/leader.py",): r"the first leads with token \d+\nthe second leads with token \d+\n",
}


@pytest.mark.parametrize("command", KINDS, ids=" ".join)
def test_an_example_of_a_kind_of_lock_does_what_it_says(server, command):
    code, output = run(server, *command)
    assert code == 0, output
    assert re.search(KINDS[command], output), output
    assert server.admin("DBSIZE") == 0


def addresses(*servers):
    """The arguments of redlock.py in place of an URL."""
    return [f"127.0.0.1:{server.port}" for server in servers]


@pytest.mark.skipif(VALGRIND, reason="the servers have little time to answer")
def test_over_several_servers_one_at_a_time_has_the_lock(start_server):
    servers = [start_server() for _ in range(3)]
    code, output = run(servers[0], "redlock.py", *addresses(*servers))
    assert code == 0, output
    found = re.search(r"held with token (\d+) for .*; another gets None\n.* with token (\d+)\n", output)
    assert int(found[1]) < int(found[2]), output
    assert [server.admin("DBSIZE") for server in servers] == [0] * 3


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_fails_where_there_are_no_locks(start_server, name):
    server = start_server(with_module=False)
    options = addresses(server) if name == "redlock.py" else []
    code, output = run(server, name, *options)
    assert code != 0, output
    assert "unknown command" in output


@pytest.mark.parametrize(
    "path", sorted({*EXAMPLES.glob("**/*.py")} - {EXAMPLES / "redlock.py"}), ids=lambda path: path.name
)
def test_an_example_refuses_a_server_that_is_in_use(server, path):
    server.admin("SET", "somebody", "else's")
    code, output = run(server, path)
    assert code != 0, output
    assert "keys already" in output and "REDISLOCK_EXAMPLES" in output, output
    assert f"127.0.0.1:{server.port}" in output, output
    assert server.admin("KEYS", "*") == ["somebody"]


def test_an_example_writes_next_to_other_keys_on_request(server, monkeypatch):
    monkeypatch.setenv("REDISLOCK_EXAMPLES", "anywhere")
    server.admin("SET", "somebody", "else's")
    code, output = run(server, "nested_calls.py")
    assert code == 0, output
    assert f"writes to 127.0.0.1:{server.port}" in output
    assert server.admin("KEYS", "*") == ["somebody"]


@pytest.mark.parametrize("path", sorted(OVER_CLIENTS.glob("*.py")), ids=lambda path: path.name)
def test_an_example_over_the_client_fails_where_there_are_no_locks(start_server, path):
    code, output = run(start_server(with_module=False), path)
    assert code != 0, output
    assert "ModuleMissing" in output


def test_each_program_over_the_clients_is_there_in_three_languages_and_on_the_page():
    page = (EXAMPLES / "README.md").read_text()
    names = {path.name for path in OVER_CLIENTS.iterdir() if path.is_file()}
    stems = {name.partition(".")[0] for name in names}
    assert len(stems) >= 3
    assert names == {f"{stem}.{end}" for stem in stems for end in ("py", "mts", "rs")}
    assert all(f"(clients/{name})" in page for name in names)


@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.glob("**/*.py")), ids=lambda path: path.name
)
def test_an_example_is_short_and_uses_no_scripts(path):
    text = path.read_text()
    assert len(text.splitlines()) < 100
    assert not re.search(r"EVAL|register_script|\blua\b", text)
    assert path.name in (EXAMPLES / "README.md").read_text()
