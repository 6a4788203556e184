"""The service for systemd and the CronJob for Kubernetes of docs/reference/tool.md, run as these would run them.

The machine of the tests has no systemd as its first process and no cluster: the tests read the texts of the page and do
what they say.
"""

import json
import os
import re
import shlex
import signal
import subprocess

import pytest
from harness.limits import eventually
from harness.server import ROOT

from tool import BINARY, children, ended, is_alive, is_held

PAGE = (ROOT / "docs" / "reference" / "tool.md").read_text()
#: What systemd and Kubernetes wait before they kill, beyond the pause of the tool and what a release may take.
KILL_AFTER_SECONDS, RELEASE_SECONDS = 10, 5


def block_of(language):
    """The only block of the page in this language."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return text


@pytest.fixture
def server(start_server):
    """A server that asks for the password of the unit's credential."""
    server = start_server()
    server.admin("ACL", "SETUSER", "default", ">secret")
    return server


@pytest.fixture
def service(server, tool_for, tmp_path):
    """What the unit of the page says, and the words and the environment of its command."""
    lines = [line.partition("=") for line in block_of("ini").splitlines() if "=" in line]
    unit = {(name, value.partition("=")[0]) if name == "Environment" else name: value for name, _, value in lines}
    folder = tmp_path / "credentials"
    folder.mkdir()
    name, _ = unit["LoadCredential"].split(":")
    (folder / name).write_text("secret\n")
    (folder / name).chmod(0o440)
    report = tmp_path / "report"
    report.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.05; done\n")
    report.chmod(0o755)
    tool = tool_for(server.port)
    tool.environment["CREDENTIALS_DIRECTORY"] = str(folder)
    line = unit["ExecStart"].replace("%d", str(folder)).replace("/usr/local/bin/report", str(report))
    program, *words = shlex.split(line)
    assert program == "/usr/bin/redislock"
    return unit, tool, words


def test_unit_is_one_that_systemd_takes(tmp_path):
    path = tmp_path / "report.service"
    path.write_text(block_of("ini").replace("/usr/bin/redislock", BINARY))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False)
    told = [line for line in done.stderr.splitlines() if "report.service" in line]
    assert not told, told
    path.write_text(path.read_text().replace("KillMode=mixed", "KillModus=mixed"))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False)
    assert "KillModus" in done.stderr, "it sees what it does not know"


def test_unit_runs_its_command_once_and_ends_well_where_another_was_first(server, service, tmp_path):
    unit, tool, words = service
    first = tool.start(*words)
    command = tool.number("pid")
    second = tool(*words)
    assert second.returncode == int(unit["SuccessExitStatus"]) and "is held by" in second.stderr
    (tmp_path / "go").touch()
    assert ended(first)[0] == 0 and not is_alive(command)
    assert is_held(server, "nightly-report"), "for --min-hold"


def test_stop_of_the_unit_ends_its_command_before_systemd_kills(server, service):
    unit, tool, words = service
    assert unit["KillMode"] == "mixed", "TERM for the tool alone"
    process = tool.start(*words)
    command = tool.number("pid")
    process.send_signal(signal.SIGTERM)
    code, _ = ended(process, KILL_AFTER_SECONDS + RELEASE_SECONDS)
    assert code == -signal.SIGTERM and not is_alive(command)


def test_unit_without_its_credential_says_what_is_missing(server, service):
    _, tool, words = service
    os.unlink(words[words.index("--password-file") + 1])
    done = tool(*words)
    assert done.returncode == 64 and done.stderr.startswith("redislock: --password-file: "), done.stderr


def read_yaml(text):
    """The part of YAML that the page uses, read by the standard library: mappings, lists of mappings, and flow style."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.strip().removeprefix("- ").partition(": ")
        if value:
            found.setdefault(name, value.strip('"'))
    words = found["command"].strip("[]").split(", ")
    return found, words


def test_cron_job_runs_once_and_other_pods_succeed(start_server, tool_for, tmp_path):
    server = start_server()
    job, (program, *words) = read_yaml(block_of("yaml"))
    assert (job["kind"], job["concurrencyPolicy"], job["restartPolicy"], program) == ("CronJob", "Forbid", "Never", "redislock")
    assert int(job["terminationGracePeriodSeconds"]) > KILL_AFTER_SECONDS + RELEASE_SECONDS
    assert "REDISLOCK_URL" in block_of("yaml") and "secretKeyRef" in block_of("yaml")
    report = tmp_path / "report"
    report.write_text(f"#!/bin/sh\necho ran >> {tmp_path}/runs\n")
    report.chmod(0o755)
    words[words.index("/usr/local/bin/report")] = str(report)
    tool = tool_for(server.port)
    for _ in range(3):
        done = tool(*words)
        assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "runs").read_text() == "ran\n"
    assert is_held(server, "nightly-report")


def test_deleted_pod_ends_its_command_and_frees_the_lock_after_min_hold(start_server, tool_for, tmp_path):
    """Kubernetes sends TERM to the first process of the container, and KILL when the grace is over."""
    server = start_server()
    job, (_, *words) = read_yaml(block_of("yaml"))
    words[words.index("/usr/local/bin/report")] = "sleep"
    tool = tool_for(server.port)
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    process = subprocess.Popen([*unshare, BINARY, *words, "600"], env=tool.environment, stderr=subprocess.PIPE, text=True)
    tool.started.append(process)
    eventually(lambda: is_held(server, "nightly-report"), "it runs")
    (first,) = children(process.pid)
    eventually(lambda: any(children(guard) for guard in children(first)), "its command runs")
    os.kill(first, signal.SIGTERM)
    code, said = ended(process, int(job["terminationGracePeriodSeconds"]))
    assert code == 128 + signal.SIGTERM, said
    info = json.loads(tool("info", "--json", "nightly-report").stdout)
    assert info["holders"], "for --min-hold"
