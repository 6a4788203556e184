"""`redislock run`: the command, its exit, the lock around it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from harness.limits import eventually
from harness.server import CLI

from tool import BINARY, MASKS, bit, ended, holder, is_alive, is_held, masks, unusual_signals


def test_command_runs_under_the_lock_and_gets_its_token(shared, tool, name):
    script = 'echo "$REDISLOCK_NAME"; echo "$REDISLOCK_TOKEN"; echo "$REDISLOCK_OWNER"; exec "$0" -p $1 lock.info "$REDISLOCK_NAME"'
    done = tool("run", "--label", "nightly", name, "sh", "-c", script, CLI, str(shared.port))
    assert done.returncode == 0, done.stderr
    lock, token, owner, *info = done.stdout.splitlines()
    assert lock == name and int(token) > 0 and ":nightly:" in owner
    assert owner in info and token in info and done.stderr == ""
    assert not is_held(shared, name)


def test_environment_is_otherwise_unchanged(tool, name):
    tool.environment = {"ONLY": "this", "REDISLOCK_URL": tool.environment["REDISLOCK_URL"], "PATH": os.environ["PATH"]}
    done = tool("run", name, "env", "-0")
    found = dict(pair.split("=", 1) for pair in done.stdout.rstrip("\0").split("\0"))
    added = {"REDISLOCK_NAME", "REDISLOCK_TOKEN", "REDISLOCK_OWNER"}
    assert set(found) == added | set(tool.environment)


def test_standard_streams_are_the_commands(tool, name):
    done = tool("run", name, "sh", "-c", "cat; echo err >&2", input="a\0b\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\0b\n", "err\n")


@pytest.mark.parametrize("code", [0, 1, 75, 79, 255])
def test_exit_code_is_the_commands(tool, name, code):
    assert tool("run", name, "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGRTMIN + 3])
def test_tool_dies_by_the_signal_that_killed_the_command(shared, tool, name, number):
    done = tool("run", name, "sh", "-c", f"ulimit -c 0; kill -{int(number)} $$")
    assert done.returncode == -number
    assert not is_held(shared, name)


def test_words_of_the_command_are_verbatim(tool, name):
    words = ["-x", "--wait", "--", "$HOME", "two words", "*", ""]
    done = tool("run", name, sys.executable, "-c", "import sys; print(sys.argv[1:])", *words)
    assert done.stdout.strip() == repr(words)
    done = tool("run", name, "--", "echo", "--", "-n")
    assert done.stdout == "-- -n\n"


@pytest.mark.parametrize(
    ("program", "code"), [("no-such-program", 127), ("/etc/passwd", 126), ("/", 126)]
)
def test_command_that_cannot_run_ends_as_in_a_shell(shared, tool, name, program, code):
    done = tool("run", "--min-hold", "60s", name, program)
    assert done.returncode == code and done.stderr.count("\n") == 1 and program in done.stderr
    assert not is_held(shared, name), "the lock is free for a machine that has the command"


def test_busy_lock_is_refused_with_its_holder(shared, tool, name):
    token = shared.admin("LOCK.ACQUIRE", name, "somebody", "PX", 60000)
    for options, code in [([], 75), (["--busy-code", "9"], 9), (["--wait", "50ms"], 75)]:
        done = tool("run", *options, name, "true")
        assert done.returncode == code and done.stderr.count("\n") == 1
        assert name in done.stderr and "somebody" in done.stderr and str(token) in done.stderr
    done = tool("run", "--on-busy", "skip", name, "true")
    assert (done.returncode, done.stderr) == (0, "")
    assert shared.admin("LOCK.ACQUIRE", name, "other", "PX", 1000) is None, "no request is left behind"
    shared.admin("LOCK.RELEASE", name, "somebody")
    assert shared.admin("LOCK.ACQUIRE", name, "other", "PX", 1000) is not None


def test_skip_is_for_a_busy_lock_alone(tool, name):
    assert tool("run", "--on-busy", "skip", name, "false").returncode == 1
    tool.environment["REDISLOCK_URL"] = "redis://127.0.0.1:1"
    assert tool("run", "--on-busy", "skip", name, "true").returncode == 69


def test_waiter_runs_when_the_lock_is_released(shared, tool, name):
    shared.admin("LOCK.ACQUIRE", name, "somebody", "PX", 60000)
    waiter = tool.start("run", "--wait", "forever", name, "true")
    eventually(lambda: shared.info("redislock")["redislock_waiters"] != "0")
    assert waiter.poll() is None
    shared.admin("LOCK.RELEASE", name, "somebody")
    assert ended(waiter)[0] == 0


def test_lock_is_renewed_while_the_command_runs(shared, tool, name):
    process = tool.shell("--lease", "3s", name, script="sleep 5")
    first = eventually(lambda: holder(shared, name))
    seen = set()
    while process.poll() is None:
        found = holder(shared, name)
        seen.add(found["token"] if found else process.poll())
        time.sleep(0.02)
    assert ended(process)[0] == 0
    assert seen - {None, 0} == {first["token"]}


def test_many_at_once_for_one_lock_run_one_after_the_other(shared, tool, name):
    script = 'mkdir "$DIR/in" || exit 99; sleep 0.01; rmdir "$DIR/in"; echo x >> "$DIR/done"'
    processes = [tool.shell("--wait", "100s", name, script=script) for _ in range(100)]
    codes = [ended(process, 110)[0] for process in processes]
    assert codes == [0] * 100
    assert (tool.directory / "done").read_text().count("x") == 100


def test_semaphore_and_shared_holders_run_together(shared, tool, name):
    for options in (["--semaphore", "2"], ["--shared"]):
        script = 'echo x >> "$DIR/started"; while [ $(wc -l < "$DIR/started") -lt 2 ]; do sleep 0.01; done'
        pair = [tool.shell(*options, name, script=script) for _ in range(2)]
        assert [ended(process)[0] for process in pair] == [0, 0]
        (tool.directory / "started").unlink()
    holder_of_one = tool.shell("--semaphore", "1", name, script="sleep 60")
    eventually(lambda: is_held(shared, name))
    assert tool("run", "--semaphore", "1", name, "true").returncode == 75
    assert tool("run", "--semaphore", "2", name, "true").returncode == 78
    holder_of_one.terminate()


def test_prefix_stands_before_the_name(shared, tool, name):
    done = tool("run", "--prefix", "cron:", name, "sh", "-c", 'echo "$REDISLOCK_NAME"')
    assert done.stdout == f"cron:{name}\n"


def test_name_is_any_bytes(shared, tool):
    process = tool.start("run", b"\xff\xfe name", "sleep", "60")
    eventually(lambda: is_held(shared, b"\xff\xfe name"))
    process.terminate()
    assert ended(process)[0] == -signal.SIGTERM


# How long the lock stays taken.


def test_min_hold_is_kept_by_the_server(shared, tool, name):
    done = tool("run", "--min-hold", "60s", name, "true")
    assert done.returncode == 0
    found = holder(shared, name)
    assert 50_000 < found["lease-left-ms"] <= 60_000, "the rest, and not a lease more"


def test_min_hold_outlives_a_killed_tool(shared, tool, name):
    process = tool.shell("--lease", "3s", "--min-hold", "60s", name, script="echo $$ > $DIR/pid; sleep 60")
    pid = tool.number("pid")
    process.kill()
    eventually(lambda: not is_alive(pid))
    assert holder(shared, name)["lease-left-ms"] > 40_000


def test_min_hold_that_has_passed_delays_no_release(shared, tool, name):
    done = tool("run", "--lease", "3s", "--min-hold", "500ms", name, "sleep", "1")
    assert done.returncode == 0 and not is_held(shared, name)


def test_max_hold_ends_the_command(shared, tool, name):
    script = 'trap "" TERM; echo $$ > $DIR/pid; while :; do sleep 0.1; done'
    process = tool.shell("--max-hold", "500ms", "--kill-after", "1s", name, script=script)
    pid = tool.number("pid")
    code, said = ended(process)
    assert code == 124 and "--max-hold" in said and not is_alive(pid)
    assert not is_held(shared, name)
    assert tool("run", "--max-hold", "60s", name, "sh", "-c", "exit 3").returncode == 3


def test_min_hold_beyond_the_longest_lease_names_the_option(tool, name):
    done = tool("run", "--min-hold", "2h", name, "true")
    assert done.returncode == 78 and done.stderr.startswith("redislock: --min-hold must be from ")
    done = tool("run", "--lease", "2h", name, "true")
    assert done.returncode == 78 and done.stderr.startswith("redislock: --lease must be from ")


def test_quarantine_bounds_min_hold(start_server, tool_for, name):
    tool = tool_for(start_server(module_arguments=["quarantine", "40000"]).port)
    done = tool("run", "--on-busy", "skip", "--min-hold", "50s", name, "true")
    assert done.returncode == 78 and " to 40s (" in done.stderr and "redislock.quarantine" in done.stderr


# Servers.


def test_refusals_have_their_exit_codes(start_server, tool_for, name, tmp_path):
    server = start_server()
    tool = tool_for(server.port)
    server.admin("SET", name, "a value")
    assert tool("run", name, "true").returncode == 78
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    server.admin("ACL", "SETUSER", "ann", "on", ">secret", "~*", "+@all", "-lock.acquire")
    tool.environment["REDISLOCK_URL"] = f"redis://ann@127.0.0.1:{server.port}"
    done = tool("run", "--password-file", str(password), "free", "true")
    assert done.returncode == 77 and done.stderr.count("\n") == 1, done.stderr
    server.admin("CONFIG", "SET", "requirepass", "secret")
    tool.environment["REDISLOCK_URL"] = f"redis://127.0.0.1:{server.port}"
    done = tool("run", "free", "true")
    assert done.returncode == 77 and done.stderr.count("\n") == 1, done.stderr
    done = tool("run", "--password-file", str(password), "free", "true")
    assert done.returncode == 0, done.stderr
    password.write_text("wrong\n")
    done = tool("run", "--password-file", str(password), "free", "true")
    assert done.returncode == 77 and done.stderr.count("\n") == 1, done.stderr
    tool.environment["REDISLOCK_URL"] = f"redis://:secret@127.0.0.1:{server.port}"
    assert tool("run", "free", "true").returncode == 0, "other users do not see the environment"


def test_server_without_the_module_is_named(start_server, tool_for):
    server = start_server(with_module=False)
    done = tool_for(server.port)("run", "k", "true")
    assert done.returncode == 78 and "loadmodule" in done.stderr


def test_quarantine_and_missing_replicas_are_unavailable(start_server, tool_for):
    server = start_server(module_arguments=["quarantine", "60000"])
    done = tool_for(server.port)("run", "k", "true")
    assert done.returncode == 69, done.stderr
    server = start_server(module_arguments=["confirm", "all", "group-size", "2", "quarantine", "3000"])
    done = tool_for(server.port)("run", "--lease", "3s", "--wait", "6s", "k", "true")
    assert done.returncode == 69 and "replicas" in done.stderr, done.stderr


def test_full_queue_is_unavailable(start_server, tool_for, name):
    server = start_server()
    server.admin("CONFIG", "SET", "redislock.max-waiters-per-lock", "0")
    server.admin("LOCK.ACQUIRE", name, "somebody", "PX", 60000)
    for options in ([], ["--on-busy", "skip"]):
        done = tool_for(server.port)("run", "--wait", "300ms", *options, name, "true")
        assert done.returncode == 69 and done.stderr.count("\n") == 1, done.stderr


# Events.


def test_events_are_lines_of_json(tool, name):
    done = tool("run", "--json", "--label", "l", name, "sh", "-c", "exit 3")
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert [event["event"] for event in events] == ["granted", "began", "released", "exit"]
    assert all(event["lock"] == name and ":l:" in event["owner"] and event["ts"].endswith("Z") for event in events)
    assert len({event["token"] for event in events}) == 1 and events[-1]["exit"] == 3


def test_full_pipe_delays_no_renewal(shared, tool, name):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        pass
    os.set_blocking(writer, True)
    process = tool.start("run", "--json", "--lease", "3s", name, "sleep", "6", stderr=writer)
    os.close(writer)
    first = eventually(lambda: holder(shared, name))
    time.sleep(4)
    assert holder(shared, name)["token"] == first["token"]
    assert process.wait(30) == 0
    os.close(reader)


def test_reader_sees_the_end_of_what_the_command_wrote(tool, name):
    script = "echo line; exec >/dev/null; sleep 60"
    began = time.monotonic()
    process = tool.start("run", name, "sh", "-c", script, stdout=subprocess.PIPE)
    assert process.stdout.read() == "line\n", "neither the tool nor its guard keeps the pipe open"
    assert time.monotonic() - began < 40
    process.terminate()


def test_command_gets_the_default_of_sigpipe(tool, name):
    script = "import signal; signal.signal(signal.SIGPIPE, signal.SIG_IGN); import os; os.execvp(os.sys.argv[1], os.sys.argv[1:])"
    words = [sys.executable, "-c", script, BINARY, "run", name, *MASKS]
    done = subprocess.run(words, env=tool.environment, capture_output=True, text=True, check=True)
    assert not masks(done.stdout)["SigIgn"] & bit(signal.SIGPIPE)


@pytest.mark.parametrize("prepare", [None, unusual_signals], ids=["as-inherited", "unusual"])
def test_command_inherits_what_is_blocked_and_ignored(tool, name, prepare):
    """CI may start the tests with signals ignored: the command gets what any child of the tests gets."""
    plain = subprocess.run(MASKS, preexec_fn=prepare, capture_output=True, text=True, check=True)
    done = tool("run", name, *MASKS, preexec_fn=prepare)
    assert (done.returncode, done.stderr) == (0, "")
    assert masks(done.stdout) == masks(plain.stdout)


def test_ignored_sigchld_hides_no_exit_code(shared, tool, name):
    done = tool("run", name, "sh", "-c", "sleep 0.1; exit 3", preexec_fn=unusual_signals)
    assert (done.returncode, done.stderr) == (3, "")
    assert not is_held(shared, name)


def test_release_that_is_not_answered_keeps_the_exit_code(start_server, tool_for, name):
    server = start_server()
    tool = tool_for(server.port)
    process = tool.shell(name, script="echo $$ > $DIR/pid; while [ ! -e $DIR/go ]; do sleep 0.01; done; exit 5")
    tool.number("pid")
    server.process.send_signal(signal.SIGSTOP)
    (tool.directory / "go").touch()
    code, said = ended(process)
    server.process.send_signal(signal.SIGCONT)
    assert code == 5 and said.count("\n") == 1 and "may stay taken for" in said, said


def test_start_is_quick(tool):
    took = []
    for _ in range(20):
        began = time.monotonic()
        tool("--version")
        took.append(time.monotonic() - began)
    assert min(took) < 0.15
