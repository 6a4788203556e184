"""The wheel and the source distribution, installed in an environment of their own. `check` builds them first."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

#: The version of the one dependency, so that this test gives the same result every day.
PINNED = Path(__file__).parents[1] / "requirements.txt"
DISTRIBUTIONS = Path(os.environ.get("REDISLOCK_PYTHON_DIST", "dist"))
USE = """
import redis, redislock, sys
with redislock.Locks(redis.Redis(port=int(sys.argv[1]))) as locks, locks.lock("k", wait=5) as hold:
    print(hold.token)
"""


def as_wheel(distribution: Path, folder: Path) -> Path:
    """The file that pip installs of it: of a source distribution the wheel that it builds, here with the tools of the
    check."""
    if distribution.suffix == ".whl":
        return distribution
    options = ["--quiet", "--disable-pip-version-check", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "-w", folder, distribution], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_each_distribution_takes_a_lock_in_a_fresh_environment(kind: str, server: Any, tmp_path: Path) -> None:
    (distribution,) = DISTRIBUTIONS.glob(kind)
    wheel = as_wheel(distribution, tmp_path)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(PINNED)]
    subprocess.run([*pip, str(wheel)], check=True)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [python, "-c", USE, str(server.port)], capture_output=True, text=True, env=clean, cwd=tmp_path, check=True
    )
    assert int(ran.stdout) > 0
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True
    )
    names = {line.partition("==")[0] for line in listed.stdout.splitlines()}
    assert names - {"pip", "setuptools"} <= {"redis", "redislock", "async-timeout"}, "one dependency"


def test_the_source_distribution_has_exactly_what_it_needs() -> None:
    (source,) = DISTRIBUTIONS.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"src/redislock/py.typed", "src/redislock/sync.py", "README.md", "pyproject.toml"} <= names
    assert not any(name.startswith(("tests", "check", "adapter")) for name in names)
