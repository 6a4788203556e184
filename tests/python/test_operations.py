"""docs/OPERATIONS.md is run step by step: see harness/console.py."""

import subprocess
from pathlib import Path

import pytest

from harness.console import Machine, is_shown, modules, sections_of
from harness.server import ROOT

pytestmark = pytest.mark.timeout(600)  # the old module may have to be built

PAGE = ROOT / "docs" / "OPERATIONS.md"
SECTIONS = sections_of(PAGE.read_text())


@pytest.fixture
def machine(tmp_path):
    """Makes a machine: machine("no module")."""
    made = []

    def make(begins):
        built = subprocess.run([ROOT / "scripts" / "old-module"], stdout=subprocess.PIPE, text=True, check=True)
        made.append(Machine(tmp_path, modules(Path(built.stdout.strip())), begins))
        return made[0]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_step_does_what_the_page_shows(machine, heading):
    begins, steps = SECTIONS[heading]
    one = machine(begins)
    for step in steps:
        one.check(step)


@pytest.mark.once
def test_the_page_has_its_steps():
    assert sum(len(steps) for _, steps in SECTIONS.values()) > 50


@pytest.mark.once
def test_the_comparison_sees_what_it_should():
    assert is_shown(["OK"], ["OK"]) and is_shown([], [])
    assert not is_shown(["OK"], []) and not is_shown([], ["OK"])
    assert not is_shown(["OK"], ["OK", "OK"]) and not is_shown(["a:1"], ["a:12"])
    assert is_shown(["... lock: ... left"], ["# lock: 3 left"])
    assert is_shown(["...", "z"], ["a", "b", "z"]) and not is_shown(["...", "z"], ["a", "b"])


@pytest.mark.once
def test_blocks_are_read_with_their_servers_and_output():
    text = "## A\n<!-- at first: x.so -->\n```console\n$ one\nout\n$ two\n```\n```sh\n$ no\n```\n## B\n```text\n$ no\n```\n"
    ((heading, (begins, steps)),) = sections_of(text).items()
    assert (heading, begins) == ("A", "x.so")
    assert [(step.line, step.command, step.output) for step in steps] == [(4, "one", ["out"]), (6, "two", [])]
