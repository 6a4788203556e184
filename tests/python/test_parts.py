"""The way in which servers share the tests among them, and the kit the drivers of a client."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "clients" / "conformance"))
from kit.__main__ import of_this_part, part_of  # noqa: E402

#: A file that depends on the server, and one that does not.
FILES = ("test_leaving.py", "test_ties.py")


def collected(part):
    """The tests of these files that a server runs that has this part: (of the first file, of the second)."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--collect-only", *FILES]
    environment = {**os.environ, "REDISLOCK_PART": part, "REDISLOCK_TOOLS_ARE_TESTED": ""}
    done = subprocess.run(
        command, cwd=Path(__file__).parent, env=environment, text=True, timeout=60, check=True, stdout=subprocess.PIPE
    )
    lines = [line for line in done.stdout.splitlines() if "::" in line]
    return [sorted(line for line in lines if file in line) for file in FILES]


@pytest.mark.once
def test_each_test_runs_on_one_of_those_that_share_and_on_all_if_it_asks_which_server_it_is():
    asks, other = collected("0/1")
    parts = [collected(f"{number}/3") for number in range(3)]
    assert len(asks) > 10 and [part[0] for part in parts] == [asks] * 3
    assert sorted(test for part in parts for test in part[1]) == other
    assert all(len(part[1]) > len(other) / 6 for part in parts)


@pytest.mark.once
def test_parts_have_each_driver_of_a_client_once():
    drivers = {name: {"block"} for name in ("sync", "aio", "threads")}
    named = lambda part: list(of_this_part(drivers, part_of(part)))
    assert (named("0/1"), named("first"), named("last")) == (list(drivers), ["sync"], ["threads"])
    assert (named("0/2"), named("1/2")) == (["sync", "threads"], ["aio"])
    assert list(of_this_part({"alone": set()}, part_of("1/2"))) == ["alone"]


@pytest.mark.once
@pytest.mark.parametrize("wrong", ["", "2", "2/2", "0/0", "-1/2", "a/b", "0/1/2", "middle"])
def test_a_part_that_is_none_is_refused(wrong):
    with pytest.raises(argparse.ArgumentTypeError, match="I/N with I less than N"):
        part_of(wrong)
