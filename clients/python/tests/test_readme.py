"""The examples of README.md, and of the project's, are run as they stand, each in a process of its own."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from .servers import Port, eventually

FOLDER = Path(__file__).parents[1]
README = (FOLDER / "README.md").read_text() + (FOLDER.parents[1] / "README.md").read_text()
EXAMPLES = [found.groups() for found in re.finditer(r"(<!-- three servers -->\n)?```python\n(.*?)```", README, re.S)]
OUTPUTS = [
    "held with token", "held for 30 more seconds", "paid", "report of monday", "the report of this minute",
    "lost by push", "held by a majority", "in order",
    "True", "held with token",
]  # fmt: skip


def test_each_example_has_an_output_that_is_looked_for() -> None:
    assert len(EXAMPLES) == len(OUTPUTS)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example(number: int, start_server: Any, tmp_path: Path) -> None:
    needs_three, source = EXAMPLES[number]
    servers = [start_server() for _ in range(3 if needs_three else 1)]
    ports = {7001 + index: server.port for index, server in enumerate(servers)}
    for written, port in ports.items():
        source = source.replace(str(written), str(port))
    source = re.sub(r"Redis\((port=6379)?\)", f"Redis(port={servers[0].port})", source)
    path = tmp_path / "example.py"
    path.write_text(source)
    ran = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=50, env=dict(os.environ), check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert OUTPUTS[number] in ran.stdout
    for server in servers:
        found = server.info("redislock")
        left = str(int("min_hold" in source and "testing" not in source))
        assert (found["redislock_holds"], found["redislock_waiters"]) == (left, "0")


def test_the_server_that_it_starts_leaves_no_file(start_server: Any, tmp_path: Path) -> None:
    known, port = start_server(), Port()
    (line,) = [line for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith("redis-server ")]
    words = shlex.split(line, comments=True)
    words[0] = known.info("server")["executable"]
    words[-1] = os.environ.get("REDISLOCK_MODULE", str(FOLDER.parents[1] / "target/release/libredislock.so"))
    port.give_back()
    with subprocess.Popen([*words, "--port", str(port.number)], cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        with redis.Redis(port=port.number) as client:
            eventually(lambda: answers(client), "it has started")
            client.set("k", "v")
        process.terminate()
        process.wait(20)
    assert list(tmp_path.iterdir()) == []


def answers(client: redis.Redis) -> bool:
    """Returns whether there is a server."""
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
