"""The crontab of docs/reference/tool.md below Debian's own cron, on two machines whose clocks differ by three seconds."""

import json
import re
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from harness import wall_clock
from harness.limits import eventually
from harness.server import BINARY as SERVER
from harness.server import CLI, MODULE, ROOT

from machines import Machine, connect, require_namespaces
from tool import BINARY

CRON = Path("/usr/sbin/cron")
#: By how much the second clock is ahead.
AHEAD_SECONDS = 3
ADDRESSES = ("10.77.0.1", "10.77.0.2")
#: Notes that it ran, by the clock of its machine.
JOB = '#!/bin/sh\necho "$(date +%s) $(hostname) $REDISLOCK_TOKEN" >> "$RUNS/$REDISLOCK_NAME"\n'


def lines_of_the_page():
    """The crontab that the page shows first."""
    page = (ROOT / "docs" / "reference" / "tool.md").read_text()
    return re.search(r"^## Cron\n+```sh\n(.*?)```", page, re.MULTILINE | re.DOTALL)[1]


@pytest.fixture
def machines(tmp_path):
    """Two machines with the tool and the job, and a server on the first one that both call redis.example.org."""
    require_namespaces()
    assert CRON.exists(), "Debian's cron is missing: scripts/prepare test installs it"
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n{ADDRESSES[0]} redis.example.org\n")
    (tmp_path / "bin").mkdir()
    shutil.copy(BINARY, tmp_path / "bin" / "redislock")
    for name in ("heartbeat", "careless"):
        (tmp_path / "bin" / name).write_text(JOB)
        (tmp_path / "bin" / name).chmod(0o755)
    library = wall_clock.build(tmp_path)
    clocks = [wall_clock.WallClock(library, tmp_path / f"clock{number}") for number in (1, 2)]
    clocks[1].set_ahead(AHEAD_SECONDS)
    made = []
    try:
        for number, clock in enumerate(clocks, 1):
            made.append(Machine(f"web{number}", tmp_path, clock.environment))
        connect(*made, ADDRESSES)
        yield made
    finally:
        for machine in made:
            machine.close()


def start_server(machine, folder):
    """A server that notes each command, when it came and from where."""
    options = f"--bind 127.0.0.1 {ADDRESSES[0]} --protected-mode no --slowlog-log-slower-than 0 --slowlog-max-len 100000"
    words = [SERVER, *options.split(), "--save", "", "--dir", folder, "--logfile", folder / "server.log"]
    machine.start(*words, "--loadmodule", MODULE)

    def answers():
        return machine.run(CLI, "PING", check=False, stderr=subprocess.STDOUT) == "PONG\n"

    eventually(answers, "the server answers", pause=0.1)


def install(machine, runs):
    """Installs the crontab of the page, and a line without --min-hold, and starts cron."""
    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "RUNS": runs, **machine.environment}
    head = "".join(f"{name}={value}\n" for name, value in variables.items())
    careless = "* * * * * redislock run --on-busy skip careless /usr/local/bin/careless\n"
    machine.run("crontab", "-", input=head + lines_of_the_page() + careless)
    machine.start(CRON, "-f")


def minute_of(seconds):
    return int(float(seconds)) // 60


def asked(machine, name):
    """The minutes, by the clock of the machine that asked, in which both machines asked for this lock."""
    seen = {address: set() for address in ADDRESSES}
    for _, at, _, words, client, *_ in json.loads(machine.run(CLI, "--json", "SLOWLOG", "GET", "-1")):
        if words[0].upper() == "LOCK.ACQUIRE" and words[1] == name:
            address = client.rpartition(":")[0]
            seen[address].add(minute_of(at + AHEAD_SECONDS * ADDRESSES.index(address)))
    return set.intersection(*seen.values())


@pytest.mark.timeout(400)
def test_crontab_of_the_page_runs_the_job_once_a_minute_on_two_machines(machines, tmp_path):
    runs = tmp_path / "runs"
    runs.mkdir()
    start_server(machines[0], tmp_path)
    clocks = [float(machine.run("date", "+%s.%N")) for machine in machines]
    assert clocks[1] - clocks[0] > AHEAD_SECONDS - 1, "their clocks differ"
    for machine in machines:
        install(machine, runs)

    def minutes():
        """The minutes in which both machines ran both lines."""
        return asked(machines[0], "heartbeat") & asked(machines[0], "careless")

    def ran(name):
        """How often the job ran in each of these minutes."""
        path = runs / name
        lines = path.read_text().splitlines() if path.exists() else []
        return Counter(minute_of(line.split()[0]) for line in lines)

    both = eventually(lambda: len(minutes()) >= 2 and minutes(), "cron runs twice", limit=300, pause=1)
    # A job that was let in is noted soon.
    eventually(lambda: all(ran("careless")[minute] == 2 for minute in both), "without --min-hold it runs on both", pause=0.1)
    time.sleep(1)
    assert {minute: ran("heartbeat")[minute] for minute in both} == dict.fromkeys(both, 1)
