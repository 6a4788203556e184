"""No process of a command outlives the lease, whatever becomes of the tool, of the server, or of the command."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness.limits import eventually
from harness.proxy import BACK, Proxy
from harness.server import CLI

from tool import BINARY, children, died_before, ended, holder, is_alive, is_held

#: Ignores SIGTERM, as does what it starts; a child leaves the session by a double fork.
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def note(file):
    with open(os.path.join(os.environ["DIR"], file), "w") as out:
        out.write(f"{os.getpid()}\\n")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        note("escaped")
        time.sleep(600)
    os._exit(0)
os.wait()
note("command")
time.sleep(600)
"""
#: Shells in shells, in groups of their own.
NESTED = """
sh -c 'sh -c "echo \\$\\$ > $DIR/inner.new; mv $DIR/inner.new $DIR/inner; sleep 600; true" & echo $$ > $DIR/middle.new
mv $DIR/middle.new $DIR/middle; wait; true' &
setsid sh -c 'echo $$ > $DIR/session.new; mv $DIR/session.new $DIR/session; sleep 600; true' &
echo $$ > $DIR/outer.new; mv $DIR/outer.new $DIR/outer
wait; true
"""


def stubborn(tool, *options):
    """Starts the stubborn command: the tool, and the processes of the command."""
    environment = {**tool.environment, "DIR": str(tool.directory)}
    process = tool.start("run", *options, sys.executable, "-c", STUBBORN, env=environment)
    return process, [tool.number("command"), tool.number("escaped")]


def nested(tool, *options):
    """Starts the shells in shells."""
    process = tool.shell(*options, script=NESTED)
    return process, [tool.number(file) for file in ("outer", "middle", "inner", "session")]


COMMANDS = pytest.mark.parametrize("start", [stubborn, nested])


@COMMANDS
def test_killed_tool_takes_its_command_with_it(shared, tool, name, start):
    process, pids = start(tool, "--lease", "30s", name)
    process.kill()
    assert died_before(shared, name, pids, limit=10), "at the pipe's end, long before the lease ends"


@COMMANDS
def test_killed_group_of_the_tool_takes_its_command_with_it(shared, tool, name, start):
    """As a supervisor does that kills the group of what it started: the guard is in another one."""
    environment = {**tool.environment, "DIR": str(tool.directory)}
    command = [sys.executable, "-c", STUBBORN] if start is stubborn else ["sh", "-c", NESTED]
    process = tool.start("run", name, *command, env=environment, start_new_session=True)
    files = ("command", "escaped") if start is stubborn else ("outer", "middle", "inner", "session")
    pids = [tool.number(file) for file in files]
    os.killpg(process.pid, signal.SIGKILL)
    assert died_before(shared, name, pids, limit=10)


@COMMANDS
def test_stopped_tool_loses_its_command_before_the_lease_ends(shared, tool, name, start):
    process, pids = start(tool, "--lease", "5s", "--kill-after", "500ms", name)
    process.send_signal(signal.SIGSTOP)
    assert died_before(shared, name, pids), "the command was dead while the lock was still held"
    eventually(lambda: not is_held(shared, name))
    process.send_signal(signal.SIGCONT)
    code, said = ended(process)
    assert code == 79, said


@COMMANDS
def test_stopped_server_ends_the_command_before_the_lease_ends(start_server, tool_for, name, start):
    server = start_server()
    process, pids = start(tool_for(server.port), "--lease", "15s", "--kill-after", "500ms", name)
    # Before the renewal, so that three seconds are left for a machine that shows the end late.
    time.sleep(3)
    server.process.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    eventually(lambda: not any(is_alive(pid) for pid in pids), limit=60)
    assert time.monotonic() - stopped < 15.0, "the lease began before the server stopped"
    code, said = ended(process)
    server.process.send_signal(signal.SIGCONT)
    assert code == 79 and "could not be renewed in time" in said, said


def test_mute_network_ends_the_command_while_the_lock_is_held(start_server, tool_for, name):
    server = start_server()
    door = Proxy(server.port)
    process, pids = stubborn(tool_for(door.port), "--lease", "5s", "--kill-after", "500ms", name)
    door.stall(BACK)
    assert died_before(server, name, pids)
    assert ended(process)[0] == 79
    door.close()


def test_network_that_comes_back_in_time_ends_nothing(start_server, tool_for, name):
    server = start_server()
    door = Proxy(server.port)
    tool = tool_for(door.port)
    process = tool.shell("--lease", "10s", "--kill-after", "500ms", name, script="echo $$ > $DIR/pid; sleep 9; exit 4")
    tool.number("pid")
    door.cut()
    time.sleep(4.5)
    door.mend()
    assert ended(process)[0] == 4
    door.close()


@COMMANDS
def test_broken_lock_ends_the_command(shared, tool, name, start):
    process, pids = start(tool, "--lease", "30s", "--kill-after", "500ms", name)
    shared.admin("DEL", name)
    code, said = ended(process)
    assert code == 79 and "lost" in said, said
    assert not any(is_alive(pid) for pid in pids)


def test_broken_lock_asks_before_it_kills(shared, tool, name):
    process = tool.shell(name, script="trap 'echo 1 > $DIR/asked; exit 3' TERM; echo $$ > $DIR/pid; while :; do sleep 0.1; done")
    tool.number("pid")
    shared.admin("DEL", name)
    assert ended(process)[0] == 79
    assert tool.number("asked") == 1


def test_broken_lock_kills_at_once_where_that_is_asked_for(shared, tool, name):
    process = tool.shell(
        "--on-loss", "kill", name, script="trap 'echo 1 > $DIR/asked' TERM; echo $$ > $DIR/pid; while :; do sleep 0.1; done"
    )
    pid = tool.number("pid")
    shared.admin("DEL", name)
    assert ended(process)[0] == 79
    assert not is_alive(pid) and not (tool.directory / "asked").exists()


def test_broken_lock_warns_where_that_is_asked_for(shared, tool, name):
    script = "echo $$ > $DIR/pid; while [ ! -e $DIR/go ]; do sleep 0.01; done; exit 6"
    process = tool.shell("--on-loss", "warn", name, script=script)
    pid = tool.number("pid")
    shared.admin("DEL", name)
    assert "lost" in process.stderr.readline()
    assert shared.admin("LOCK.ACQUIRE", name, "other", "PX", 60000)
    assert is_alive(pid)
    (tool.directory / "go").touch()
    assert ended(process)[0] == 6
    assert holder(shared, name)["owner"] == "other"


#: Notes, when it is asked to end, whether the lock is still held.
LEFT = r"""
import os, signal, subprocess, sys, time
def end(*_):
    time.sleep(0.3)
    held = subprocess.run([*sys.argv[1:], "exists", os.environ["REDISLOCK_NAME"]], capture_output=True).stdout
    open("ended", "wb").write(held)
    os._exit(0)
if os.fork():
    while not os.path.exists("left"):
        time.sleep(0.01)
    os._exit(3)
os.setsid()
signal.signal(signal.SIGTERM, end)
open("left", "w").close()
time.sleep(600)
"""


def test_what_a_command_leaves_is_ended_before_the_release(shared, tool, name):
    cli = [CLI, "-p", str(shared.port)]
    process = tool.start("run", name, sys.executable, "-c", LEFT, *cli, cwd=tool.directory)
    assert ended(process)[0] == 3
    assert tool.number("ended") == 1 and not is_held(shared, name)


def test_what_ignores_sigterm_is_killed_after_the_pause(shared, tool, name):
    script = "trap '' TERM; setsid sleep 600 & echo $! > $DIR/left; exit 3"
    began = time.monotonic()
    process = tool.shell("--kill-after", "700ms", name, script=script)
    left = tool.number("left")
    assert ended(process)[0] == 3
    assert time.monotonic() - began >= 0.7 and not is_alive(left) and not is_held(shared, name)


def test_daemons_may_be_left_behind(shared, tool, name):
    process = tool.shell("--leave-children", name, script="setsid sleep 600 >/dev/null 2>&1 & echo $! > $DIR/left; exit 3")
    left = tool.number("left")
    assert ended(process)[0] == 3
    assert is_alive(left) and not is_held(shared, name)
    os.kill(left, signal.SIGKILL)


def guard_of(process):
    """The process between the tool and its command."""
    (guard,) = children(process.pid)
    return guard


def test_tool_replaces_a_guard_that_was_killed(shared, tool, name):
    process, pids = stubborn(tool, name)
    os.kill(guard_of(process), signal.SIGKILL)
    code, said = ended(process)
    assert code == 125 and "guard" in said, said
    assert not any(is_alive(pid) for pid in pids) and not is_held(shared, name)


def test_tool_kills_beside_a_guard_that_is_stopped(start_server, tool_for, name):
    server = start_server()
    process, pids = stubborn(tool_for(server.port), "--lease", "3s", name)
    guard = guard_of(process)
    os.kill(guard, signal.SIGSTOP)
    server.process.send_signal(signal.SIGSTOP)
    code, said = ended(process, 30)
    server.process.send_signal(signal.SIGCONT)
    assert code == 79, said
    assert not any(is_alive(pid) for pid in pids)
    eventually(lambda: not is_alive(guard), "it sees the end of the tool")


def test_guard_has_one_thread_and_a_group_of_its_own(tool, name):
    process = tool.shell(name, script="echo $$ > $DIR/pid; exec sleep 600")
    command = tool.number("pid")
    guard = guard_of(process)
    assert len(list(Path(f"/proc/{guard}/task").iterdir())) == 1
    assert len({os.getpgid(process.pid), os.getpgid(guard), os.getpgid(command)}) == 3
    assert os.getpgid(command) == command and children(guard) == [command]
    os.kill(guard, signal.SIGTERM)
    os.kill(guard, signal.SIGHUP)
    assert is_alive(command) and is_alive(guard)
    process.terminate()
    assert ended(process)[0] == -signal.SIGTERM


def test_command_that_forks_without_end_is_killed(shared, tool, name):
    """Each process starts the next one and ends, so that no look at the processes finds the one that runs."""
    script = "import os, time\nwhile True:\n    if os.fork():\n        os._exit(0)\n    os.setsid()\n    time.sleep(0.001)\n"
    process = tool.start("run", "--kill-after", "200ms", name, sys.executable, "-c", script)
    code, said = ended(process, 40)
    assert code == 0, said
    assert not is_held(shared, name)


def test_first_process_of_a_namespace_reaps_and_kills(shared, tool, name):
    """As in a container: the tool is PID 1, where signals without a handler do nothing."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    environment = {**tool.environment, "DIR": str(tool.directory)}
    script = "trap 'exit 9' TERM; echo $$ > $DIR/pid; while :; do sleep 0.1; done"
    process = subprocess.Popen(
        [*unshare, BINARY, "run", name, "sh", "-c", script], env=environment, stderr=subprocess.PIPE, text=True
    )
    tool.started.append(process)
    tool.number("pid")
    (first,) = children(process.pid)
    os.kill(first, signal.SIGTERM)
    code, said = ended(process)
    assert code == 9, said
    assert not is_held(shared, name)
    done = subprocess.run(
        [*unshare, BINARY, "run", name, "sh", "-c", "kill -KILL $$"], env=environment, check=False, timeout=30
    )
    assert done.returncode == 128 + signal.SIGKILL
