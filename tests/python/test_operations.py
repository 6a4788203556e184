"""The pages in docs/operations are run step by step: see harness/console.py."""

import re
import subprocess
from pathlib import Path

import pytest

from harness.console import Machine, is_shown, modules, sections_of
from harness.server import MODULE, ROOT, StartFailed

pytestmark = pytest.mark.timeout(600)  # the newer module may have to be built

PAGES = sorted((ROOT / "docs" / "operations").glob("*.md"))
SECTIONS = {heading: section for page in PAGES for heading, section in sections_of(page.read_text()).items()}


@pytest.fixture(scope="session")
def newer():
    """The module that stands for the next release."""
    built = subprocess.run([ROOT / "scripts" / "newer-module"], stdout=subprocess.PIPE, text=True, check=True)
    return Path(built.stdout.strip())


@pytest.fixture
def machine(tmp_path, newer):
    """Makes a machine: machine("no module")."""
    made = []

    def make(begins):
        made.append(Machine(tmp_path, modules(newer), begins))
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


def commands_of(heading, word):
    """The commands of a section that have this in them."""
    return [step.command for step in SECTIONS[heading][1] if word in step.command]


@pytest.mark.once
@pytest.mark.parametrize("heading, before, after", [("Upgrade", "0.3.0", "0.4.0"), ("Roll back", "0.4.0", "0.3.0")])
def test_the_line_is_changed_whatever_name_the_module_has(heading, before, after, tmp_path):
    commands = commands_of(heading, "sed -i '/^loadmodule")
    assert len(commands) == 2
    for command in commands:
        for name in ("libredislock.so", f"libredislock-{before}.so"):
            file = tmp_path / "redis.conf"
            others = f"dir {tmp_path}\nloadmodule /opt/other.so a\n"
            file.write_text(f"{others}loadmodule /opt/redislock/{name} max-lease 5\n")
            subprocess.run(["bash", "-c", re.sub(r"/srv/\w+/redis.conf", str(file), command)], check=True)
            assert file.read_text() == f"{others}loadmodule /opt/redislock/libredislock-{after}.so max-lease 5\n"


LEFT = """user app on nopass ~lock:* +lock.acquire +ping
user other on nopass ~* +@all -@redislock
user third on nopass ~* +get +LOCK.FENCE
"""


def test_what_keeps_a_server_from_starting_is_found_before_the_module_leaves(start_server, tmp_path):
    file = tmp_path / "redis.conf"
    commands = [command.replace("/srv/two/redis.conf", str(file)) for command in commands_of("Uninstall", "/srv/two")]
    taken_out, looked = (next(each for each in commands if each.startswith(word)) for word in ("sed", "grep -n"))
    for line in LEFT.splitlines():
        file.write_text(f"loadmodule {MODULE} max-wait 5\nmaxclients 100\nredislock.max-lease 60000\n{line}\n")
        subprocess.run(["bash", "-c", taken_out], check=True)
        found = subprocess.run(["bash", "-c", looked], capture_output=True, text=True).stdout
        assert found == f"2:{line}\n"
        with pytest.raises(StartFailed, match="ACL"):
            start_server(config=file.read_text())
        file.write_text("maxclients 100\n")
        assert subprocess.run(["bash", "-c", looked], capture_output=True, text=True).stdout == ""
        start_server(config=file.read_text())


def test_a_rewrite_repeats_a_loadmodule_that_is_included(start_server, tmp_path):
    included = tmp_path / "redislock.conf"
    included.write_text(f"loadmodule {MODULE}\nredislock.max-lease 60000\n")
    server = start_server(config=f"include {included}\n")
    assert server.admin("CONFIG REWRITE") == "OK"
    server.stop()
    with pytest.raises(StartFailed, match="Can't load module from"):
        server.start()
    file = server.directory / "server.conf"
    file.write_text(re.sub(r"^loadmodule .*\n", "", file.read_text(), flags=re.MULTILINE))
    assert server.start().admin("CONFIG GET redislock.max-lease")[1] == "60000"


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
