"""scripts/twice and the kit, which repeat what has failed, where REDISLOCK_REPEATED names a file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "clients" / "conformance"))
from kit.runner import may_repeat  # noqa: E402

TWICE = Path(__file__).parents[2] / "scripts" / "twice"
#: Fails at its first call in a folder: this makes a file there.
FAILS_ONCE = 'test -e "$1/called" || { touch "$1/called"; exit 4; }'

pytestmark = pytest.mark.once


def twice(*command, repeated):
    """Runs scripts/twice; what came of it."""
    environment = {**os.environ, "REDISLOCK_REPEATED": str(repeated or "")}
    return subprocess.run([TWICE, *command], env=environment, text=True, timeout=60, stdout=subprocess.PIPE)


def fails_once(folder, repeated):
    """Runs a command that fails at its first call in this folder; its status."""
    folder.mkdir()
    return twice("bash", "-c", FAILS_ONCE, "-", folder, repeated=repeated).returncode


def test_what_fails_once_is_repeated_and_noted_three_times_at_most(tmp_path):
    notes = tmp_path / "notes"
    notes.touch()
    assert twice("true", repeated=notes).returncode == 0 and notes.read_text() == ""
    assert [fails_once(tmp_path / str(number), notes) for number in range(4)] == [0, 0, 0, 4]
    assert len(notes.read_text().splitlines()) == 3


def test_what_fails_again_fails_and_nothing_is_repeated_without_a_file_for_notes(tmp_path):
    notes = tmp_path / "notes"
    notes.touch()
    assert twice("false", repeated=notes).returncode == 1
    assert fails_once(tmp_path / "alone", None) == 4


def pytest_on(folder, repeated, *tests):
    """Runs tests with this conftest.py, those that fail twice; (status, what it printed)."""
    conftest = (Path(__file__).parent / "conftest.py").read_text().partition("GRAVE = ")[2].partition("\n\n\n#:")[0]
    (folder / "conftest.py").write_text(f"GRAVE = {conftest}\n")
    (folder / "test_it.py").write_text(
        "from pathlib import Path\n"
        "def first(name):\n"
        "    called = Path(__file__).with_name(name)\n"
        "    was = called.exists()\n"
        "    called.touch()\n"
        "    return not was\n" + "".join(tests)
    )
    done = twice("--failed-only", sys.executable, "-m", "pytest", "-q", "-n", "2", folder, repeated=repeated)
    return done.returncode, done.stdout


PASSES = "def test_passes():\n    pass\n"
ONCE = "def test_once():\n    assert not first('once')\n"
GRAVE = "def test_grave():\n    faults = lambda: ['two holders'] if first('grave') else []\n    assert faults() == []\n"


def test_only_the_tests_that_failed_are_repeated(tmp_path):
    notes = tmp_path / "notes"
    notes.touch()
    status, said = pytest_on(tmp_path, notes, PASSES, ONCE)
    assert status == 0 and "1 failed, 1 passed" in said, said
    assert said.splitlines()[-1].startswith("1 passed"), said


def test_a_failure_that_tells_of_a_wrong_grant_is_not_repeated(tmp_path):
    notes = tmp_path / "notes"
    notes.touch()
    status, said = pytest_on(tmp_path, notes, PASSES, ONCE, GRAVE)
    assert status == 9 and "is repeated" not in said, said
    assert notes.read_text() == ""


def test_the_kit_repeats_as_often(tmp_path, monkeypatch):
    notes = tmp_path / "notes"
    notes.touch()
    monkeypatch.setenv("REDISLOCK_REPEATED", str(notes))
    assert [may_repeat("one case") for _ in range(4)] == [True, True, True, False]
    assert notes.read_text().splitlines() == ["the kit over one case"] * 3
    monkeypatch.delenv("REDISLOCK_REPEATED")
    assert not may_repeat("one case")
