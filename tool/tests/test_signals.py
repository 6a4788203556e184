"""Signals and terminals."""

import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time

import pytest
from harness.limits import SOON_SECONDS, eventually

from tool import BINARY, MASKS, bit, children, ended, is_alive, is_held, masks

PASSED_ON = [
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
]
#: Exits with the number of the first signal that it catches, also if a child of its group gets it.
CATCHER = """
import os, signal, time
for number in range(1, 32):
    if number not in (9, 17, 19):
        signal.signal(number, lambda got, _: os._exit(got))
with open(os.path.join(os.environ["DIR"], "pid"), "w") as out:
    out.write(f"{os.getpid()}\\n")
while True:
    time.sleep(60)
"""


@pytest.mark.parametrize("number", PASSED_ON)
def test_signal_goes_to_the_command(shared, tool, name, number):
    environment = {**tool.environment, "DIR": str(tool.directory)}
    process = tool.start("run", name, sys.executable, "-c", CATCHER, env=environment)
    tool.number("pid")
    process.send_signal(number)
    assert ended(process)[0] == number
    assert not is_held(shared, name)


def test_signal_goes_to_the_whole_group(tool, name):
    # The outer shell has its handler before the inner one says that it runs; a signal ends its first wait.
    script = "trap : USR1; sh -c 'trap \"echo 1 > $DIR/inner; exit\" USR1; echo $$ > $DIR/pid; while :; do sleep 0.05; done' & wait; wait"
    process = tool.shell(name, script=script)
    tool.number("pid")
    process.send_signal(signal.SIGUSR1)
    assert ended(process)[0] == 0 and tool.number("inner") == 1


def test_terminated_command_that_is_stopped_continues_to_end(shared, tool, name):
    process = tool.shell(name, script="trap 'exit 7' TERM; echo $$ > $DIR/pid; while :; do sleep 0.05; done")
    pid = tool.number("pid")
    os.kill(pid, signal.SIGSTOP)
    assert "is stopped" in process.stderr.readline()
    process.terminate()
    assert ended(process)[0] == 7
    assert not is_alive(pid) and not is_held(shared, name)


@pytest.mark.parametrize("number", [each for each in PASSED_ON if each != signal.SIGWINCH])
def test_signal_ends_a_wait_and_the_tool_dies_by_it(shared, tool, name, number):
    shared.admin("LOCK.ACQUIRE", name, "somebody", "PX", 60000)
    process = tool.start("run", "--wait", "forever", name, "true")
    eventually(lambda: shared.admin("LOCK.INFO", name)[9] == 1, "it waits")
    process.send_signal(signal.SIGWINCH)
    time.sleep(0.1)
    assert process.poll() is None
    process.send_signal(number)
    assert ended(process)[0] == -number
    assert shared.admin("LOCK.INFO", name)[9] == 0, "it has left the queue"
    shared.admin("LOCK.RELEASE", name, "somebody")


def ignoring_hup():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_ignored_hup_stays_ignored(shared, tool, name):
    """As below nohup."""
    environment = {**tool.environment, "DIR": str(tool.directory)}
    plain = subprocess.run(MASKS, preexec_fn=ignoring_hup, capture_output=True, text=True, check=True)
    script = f"{shlex.join(MASKS)} > $DIR/masks; echo $$ > $DIR/pid; while [ ! -e $DIR/go ]; do sleep 0.01; done"
    process = tool.start("run", name, "sh", "-c", script, env=environment, preexec_fn=ignoring_hup)
    pid = tool.number("pid")
    process.send_signal(signal.SIGHUP)
    os.killpg(pid, signal.SIGHUP)
    time.sleep(0.1)
    assert process.poll() is None and is_alive(pid)
    (tool.directory / "go").touch()
    assert ended(process)[0] == 0
    found = masks((tool.directory / "masks").read_text())
    assert found == masks(plain.stdout) and found["SigIgn"] & bit(signal.SIGHUP)


class Terminal:
    """A session with a terminal, in which an interactive shell runs."""

    def __init__(self, environment):
        self.pid, self.end = pty.fork()
        if self.pid == 0:
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-i"], {**environment, "PS1": "$ ", "TERM": "dumb"})
        self.text = ""

    def type(self, text):
        os.write(self.end, text.encode())

    def until(self, what):
        """Reads until the terminal shows this; returns all before it."""
        deadline = time.monotonic() + SOON_SECONDS
        while what not in self.text:
            assert time.monotonic() < deadline, f"{what!r} is not in {self.text!r}"
            if select.select([self.end], [], [], 0.1)[0]:
                self.text += os.read(self.end, 4096).decode(errors="replace")
        before, _, self.text = self.text.partition(what)
        return before

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.end)
        os.waitpid(self.pid, 0)


@pytest.fixture
def terminal(tool):
    made = Terminal({**tool.environment, "TOOL": BINARY, "DIR": str(tool.directory)})
    yield made
    made.close()


def test_command_reads_from_the_terminal(terminal, name):
    terminal.type(f"$TOOL run '{name}' sh -c 'read line; echo got:$line'\n")
    time.sleep(0.3)
    terminal.type("hello\n")
    terminal.until("got:hello")
    terminal.type("read again; echo shell:$again\n")
    time.sleep(0.3)
    terminal.type("here\n")
    terminal.until("shell:here")


def test_interrupt_key_reaches_the_command_and_gives_the_terminal_back(shared, terminal, tool, name):
    script = 'trap "echo caught; exit 4" INT; echo $$ > $DIR/pid; while :; do sleep 0.05; done'
    terminal.type(f"$TOOL run '{name}' sh -c '{script}'; echo code:$?\n")
    tool.number("pid")
    terminal.type("\x03")
    terminal.until("caught\r\n")
    terminal.until("code:4")
    assert not is_held(shared, name)


#: No shell: dash that is stopped between vfork and exec of a child waits for that without being stopped itself.
READER = """
import os, time
with open(os.path.join(os.environ["DIR"], "pid"), "w") as out:
    out.write(f"{os.getpid()}\\n")
while not os.path.exists(os.path.join(os.environ["DIR"], "go")):
    time.sleep(0.02)
print("got:" + input())
"""


def test_suspended_command_stops_the_tool_until_it_is_continued(shared, terminal, tool, name):
    (tool.directory / "reader.py").write_text(READER)
    terminal.type(f"$TOOL run '{name}' {sys.executable} $DIR/reader.py\n")
    command = tool.number("pid")
    terminal.type("\x1a")
    terminal.until("is stopped; without the tool")
    terminal.until("Stopped")
    assert is_held(shared, name)
    terminal.type("fg\n")
    terminal.until("fg")
    (tool.directory / "go").touch()
    time.sleep(0.3)
    terminal.type("again\n")
    terminal.until("got:again")
    eventually(lambda: not is_alive(command) and not is_held(shared, name))


def test_guard_keeps_its_clock_while_the_command_is_suspended(shared, terminal, tool, name):
    terminal.type(f"$TOOL run --lease 3s '{name}' sh -c 'echo $$ > $DIR/pid; exec sleep 600'\n")
    command = tool.number("pid")
    terminal.type("\x1a")
    terminal.until("Stopped")
    eventually(lambda: not is_alive(command))
    terminal.type("fg; echo code:$?\n")
    terminal.until("code:79")


def test_closed_terminal_ends_the_command(shared, tool, name):
    terminal = Terminal({**tool.environment, "TOOL": BINARY, "DIR": str(tool.directory)})
    terminal.type(f"$TOOL run '{name}' sh -c 'echo $$ > $DIR/pid; sleep 600; true'\n")
    command = tool.number("pid")
    (running,) = children(terminal.pid)
    os.close(terminal.end)
    eventually(lambda: not is_alive(command) and not is_alive(running))
    os.waitpid(terminal.pid, 0)
    eventually(lambda: not is_held(shared, name))


def test_nohup_keeps_the_command_when_its_terminal_is_closed(shared, tool, name):
    terminal = Terminal({**tool.environment, "TOOL": BINARY, "DIR": str(tool.directory)})
    script = "echo $$ > $DIR/pid; while [ ! -e $DIR/go ]; do sleep 0.05; done; echo ended > $DIR/end"
    terminal.type(f"nohup $TOOL run '{name}' sh -c '{script}' > $DIR/out 2>&1 &\n")
    command = tool.number("pid")
    os.close(terminal.end)
    os.waitpid(terminal.pid, 0)
    time.sleep(0.3)
    assert is_alive(command) and is_held(shared, name)
    (tool.directory / "go").touch()
    eventually(lambda: (tool.directory / "end").exists() and not is_held(shared, name), "it ends by itself")
