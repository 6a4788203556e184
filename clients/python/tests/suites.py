"""Runs the tests of other libraries, from their source distributions, in a pytest of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

#: The folder to which `check` has downloaded the source distributions.
SUITES = Path(os.environ.get("REDISLOCK_PYTHON_SUITES", ""))
SECONDS = 120
OPTIONS = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:valkey", "-p", "no:timeout", "-rA", "--tb=no"]


def unpack(root: str, sources: Iterable[str], suite: Path) -> None:
    """Puts files from the folder of tests of a source distribution into packages below `suite`."""
    with tarfile.open(SUITES / f"{root}.tar.gz") as archive:
        for source in sources:
            text = archive.extractfile(f"{root}/tests/{source}")
            assert text is not None
            target = suite / source
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text.read())


def outcomes(suite: Path, environment: Mapping[str, str], *options: str) -> dict[str, str]:
    """The outcome of each test, by the name of its file and its own. One with parameters passes if it does with all."""
    command = [sys.executable, "-m", "pytest", *OPTIONS, *options, suite.name]
    done = subprocess.run(
        command,
        check=False,
        cwd=suite.parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    lines = re.findall(rf"^([A-Z]+) {suite.name}/(\S+?)::(?:\w+::)?(\w+)", done.stdout, re.MULTILINE)
    assert lines, done.stdout + done.stderr
    found: dict[str, str] = {}
    for outcome, file, name in lines:
        test = f"{file}::{name}"
        if found.setdefault(test, outcome) == "PASSED":
            found[test] = outcome
    return found
