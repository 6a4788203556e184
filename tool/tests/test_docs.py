"""The shell transcripts of the documentation are typed and compared, as test_docs.py of the module does with redis-cli's.

A transcript is a block fenced as ```console. A line that begins with "$ " is typed into a shell; what follows is what the
terminal shows. All transcripts of a page are one session in one shell, with a server that was empty before. After a command
that ends with "&" the test waits until the server knows of it: nobody types faster. What stands behind two blanks and "<-"
is a remark.

Tokens and UUIDs are compared as harness/transcript.py says. Machines, numbers of processes, times, and the width of
columns vary.
"""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from harness.limits import eventually
from harness.server import ROOT
from harness.transcript import REMARK, Names, same_reply

from tool import BINARY

PAGES = [ROOT / name for name in ("README.md", "docs/reference/tool.md", "docs/how-to/cron.md")]
MACHINE = re.compile(r"[\w-]+:\d+:(?=[0-9a-f]{8}-)")
TIME = re.compile(r"\b\d+(?:h|m|s|ms|us|ns)(?: \d+(?:m|s|ms|us|ns))*\b")
MARK = "-- the end of what it shows --"


class Step(NamedTuple):
    """A command, and what the page shows of it."""

    line: int
    command: str
    shown: list


def steps_of(text):
    """The steps of all shell transcripts of a page."""
    steps, fence = [], None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fence = line[3:] if fence is None else None
        elif fence == "console":
            line = REMARK.sub("", line)
            if line.startswith("$ "):
                steps.append(Step(number, line[2:], []))
            elif line:
                steps[-1].shown.append(line)
    return steps


def plain(line):
    """A line without what varies."""
    return re.sub(r" {2,}", " ", TIME.sub("TIME", MACHINE.sub("MACHINE:", line))).strip()


class Shell:
    """A shell that finds the tool and the server."""

    def __init__(self, server, folder):
        self.server = server
        environment = {
            "PATH": f"{Path(BINARY).parent}:/usr/bin:/bin",
            "REDISLOCK_URL": f"redis://127.0.0.1:{server.port}",
        }
        self.process = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=folder,
        )

    def type(self, command):
        """Types a command, and returns what it shows. `$?` stays what it was."""
        before = self.known()
        self.process.stdin.write(f"{command}\n{{ (exit_code=$?; echo '{MARK}'; exit $exit_code); }}\n")
        self.process.stdin.flush()
        lines = list(iter(lambda: self.process.stdout.readline().rstrip("\n"), MARK))
        if command.endswith("&"):
            eventually(lambda: self.known() != before, f"the server knows of: {command}")
        return [line for line in lines if line]

    def known(self):
        info = self.server.info("redislock")
        return info["redislock_locks"], info["redislock_waiters"]

    def close(self):
        # The commands that it has started in the background end with their locks.
        self.server.admin("FLUSHALL")
        self.process.stdin.close()
        self.process.stdout.read()
        self.process.wait(60)


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: page.name
)
def test_every_shell_transcript_is_what_happens(start_server, tmp_path, page):
    shell, names = Shell(start_server(), tmp_path), Names()
    try:
        for step in steps_of(page.read_text()):
            real = shell.type(names.typed(step.command))
            told = [plain(line) for line in step.shown]
            assert same_reply(told, [plain(line) for line in real], names), "\n".join(
                [f"line {step.line}: {step.command}", "the page:", *step.shown, "really:", *real]
            )
    finally:
        shell.close()


def test_the_pages_that_should_have_shell_transcripts_have_some():
    for page in PAGES:
        assert len(steps_of(page.read_text())) >= 3, page


def test_the_comparison_sees_what_it_should():
    def same(told, real):
        return same_reply([plain(told)], [plain(real)], Names())

    uuid = "0b0e5f5c-6a07-4d5f-93a3-1f6b5a4b7d11"
    assert same(f"'a' is held by web1:42:{uuid} for 2s", f"'a' is held by other-host:7:{uuid} for 1s 20ms")
    assert not same(f"'a' is held by web1:42:{uuid} for 2s", f"'b' is held by web1:42:{uuid} for 2s")
    assert same("NAME  KIND", "NAME       KIND") and not same("NAME  KIND", "NAME  KINDS")
    assert same("token 1795243208114201", "token 1795000000000001") and not same("token 7", "token 8")
    assert not same("75", "0")


def test_the_page_lists_every_option_of_run_with_its_default(tool):
    tool.environment["COLUMNS"] = "100"
    listed = re.findall(r"^\| (`--.*?) \| (.*?) \|", (ROOT / "docs" / "reference" / "tool.md").read_text(), re.MULTILINE)
    page = {option: default for cell, default in listed for option in re.findall(r"--[a-z-]+", cell)}
    own = tool("run", "-h").stdout.split("\nServer:\n")[0]
    entries = re.findall(r"^ {2,6}(?:-\w, )?(--[a-z-]+)(.*\n(?: {20,}.*\n)*)", own, re.MULTILINE)
    real = {option: re.search(r"\[default: (\S+?)\]|$", text)[1] for option, text in entries if option != "--help"}
    assert set(page) == set(real) and len(real) > 15
    assert {option: page[option] for option in real if real[option]} == {k: v for k, v in real.items() if v}
