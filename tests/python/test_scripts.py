"""scripts/run without what it needs, and the times that scripts/beside prints."""

import os
import re
import shutil
import subprocess

import pytest

from harness.server import ROOT

pytestmark = pytest.mark.once


@pytest.fixture
def start(tmp_path):
    """Runs scripts/run to its end, with few programs in PATH. Returns its status, and what it printed."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bash", "dirname", "realpath"):
        (programs / name).symlink_to(shutil.which(name))

    def run(**environment):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("REDISLOCK_")}
        environment = {**clean, "PATH": str(programs), **environment}
        done = subprocess.run([ROOT / "scripts" / "run"], env=environment, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    return run


def test_run_names_the_program_or_the_module_that_is_missing(start, tmp_path):
    status, text = start()
    assert status == 1 and "'redis-server'" in text and "scripts/prepare run" in text and text.count("\n") == 1
    status, text = start(REDISLOCK_SERVER="redis-8.0 8.0.1 /no/redis-server /no/redis-cli")
    assert status == 1 and "'/no/redis-server'" in text and text.count("\n") == 1
    (tmp_path / "programs" / "redis-server").symlink_to("/bin/true")
    status, text = start(CARGO_TARGET_DIR=str(tmp_path))
    assert status == 1 and f"{tmp_path}/release/libredislock.so" in text and text.count("\n") == 1


SCRIPT = """
set -euo pipefail
source "$1/scripts/beside"
fails() { false; echo goes on; }
step printf '100 %%\\n'
beside "a name" true
step show_all
took fails
"""


def test_all_steps_print_their_times_in_one_format():
    words = ["bash", "-c", SCRIPT, "-", ROOT]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    lines = done.stdout.splitlines()
    times = re.findall(r"^== took \d+ s \(processors: user \d+ s, system \d+ s\): (.*)$", done.stdout, re.MULTILINE)
    assert times == ["printf 100 %%\\n", "a name", "show_all", "fails"]
    assert [line for line in lines if not line.startswith("== took")] == ["100 %", "", "== a name"]
    assert done.returncode == 1
