"""Pages that an operator follows step by step, and a machine on which the steps are run.

A block fenced as ```console has commands after "$ "; the lines up to the next command are the output. The commands are
run by bash, word for word but for what the page calls the machine:

    6379, 6380, 6381           the ports of the servers: a primary and its replicas
    26379                      the port of the sentinel
    /srv/one, /srv/two, ...    the directories of the servers, each with its redis.conf
    /usr/lib/redis/modules     where the modules are
    redis-server, redis-cli    those of the server under test

A remark above the blocks describes the initial state. It begins with the module, or "no module". After commas it has
settings of the module, without "redislock.", and may have "three servers" (instead of two) and "a sentinel". With "a
dead primary" the primary is killed as soon as its replicas follow it.

"..." in a line of output stands for any text, alone on a line for any lines. A command that only looks (LOOKS) is
repeated until it prints the output of the page, as an operator would look again. A word after "console" is the server
that the block is for: "redis-7.0", or "others".
"""

import os
import pty
import re
import select
import signal
import subprocess
import time
import tty
from typing import NamedTuple

from .limits import SOON_SECONDS, eventually
from .sentinel import DOWN_AFTER_MS, PERIODS
from .server import BINARY, CLI, MODULE, NAME, Port, answers

LOOKS = re.compile(
    r"redis-cli -p \d+ (INFO|SCAN|EXISTS|GET|LOCK\.FENCE|LOCK\.INFO|PING|DBSIZE|ROLE|ACL LIST|CONFIG GET"
    r"|SENTINEL GET-MASTER-ADDR-BY-NAME)|grep|tail"
)
ACTS = re.compile(r"SHUTDOWN|CONFIG SET|CONFIG REWRITE|redis-server|FAILOVER|BGREWRITEAOF|SAVE|sed|echo")
BUSY = re.compile(r"SHUTDOWN|FAILOVER|BGREWRITEAOF")
#: The servers of a page and their ports.
PORTS = {"one": "6379", "two": "6380", "three": "6381"}
SENTINEL = "26379"


class Step(NamedTuple):
    """A command and its output."""

    line: int
    command: str
    output: list


def sections_of(text):
    """The headings of a page whose parts have steps, each with its initial servers and its steps."""
    sections, heading, begins, fence = {}, None, None, None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fence = line[3:].strip() if fence is None else None
            continue
        if fence is None:
            if found := re.fullmatch(r"## (.*)", line):
                heading, begins = found[1], None
            elif found := re.fullmatch(r"<!-- at first: (.*) -->", line):
                begins = found[1]
        elif is_ours(fence) and line.startswith("$ "):
            sections.setdefault(heading, (begins, []))[1].append(Step(number, line[2:], []))
        elif is_ours(fence):
            sections[heading][1][-1].output.append(line)
    return sections


def is_ours(fence):
    """Returns whether a block is for the server under test."""
    word, _, server = fence.partition(" ")
    return word == "console" and server in ("", NAME, "" if NAME == "redis-7.0" else "others")


def is_in(process, place):
    """Returns whether a process, or one of its threads, runs in this directory."""
    try:
        return os.readlink(f"{process}/cwd") == str(place)
    except OSError:
        return False  # it has ended


class Machine:
    """Servers in directories of their own, and a shell."""

    def __init__(self, directory, modules, begins):
        self.directory = directory
        module, *rest = begins.split(", ")
        self.servers = [name for name in PORTS if name != "three" or "three servers" in rest]
        self.ports = {PORTS[name]: Port() for name in self.servers}
        if "a sentinel" in rest:
            self.ports[SENTINEL] = Port()
        self.names = {
            "/srv/": f"{directory}/srv/",
            "/usr/lib/redis/modules/": f"{directory}/modules/",
            **{shown: str(self.ports[shown].number) for shown in sorted(self.ports, key=len, reverse=True)},
        }
        self._make_tools()
        (directory / "modules").mkdir()
        for name, path in modules.items():
            (directory / "modules" / name).symlink_to(path)
        lines = [] if module == "no module" else [f"loadmodule {directory}/modules/{module}"]
        lines += [f"redislock.{each}" for each in rest if each not in ("three servers", "a sentinel", "a dead primary")]
        for name in self.servers:
            self._make_server(name, lines)
        for name in self.servers[1:]:
            look = f"redis-cli -p {PORTS[name]} INFO replication"
            eventually(lambda: "master_link_status:up" in self.run(look), "the replica has its primary's data")
        self._hand_on()
        if SENTINEL in self.ports:
            self._make_sentinel()
        if "a dead primary" in rest:
            os.kill(self._process_of("one"), signal.SIGKILL)
            eventually(lambda: self._process_of("one") is None, "the primary is dead")

    def _make_tools(self):
        tools = self.directory / "bin"
        tools.mkdir()
        (tools / "redis-server").symlink_to(BINARY)
        (tools / "redis-cli").symlink_to(CLI)
        self.environment = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "LC_ALL": "C",
            "TERM": "dumb",
        }

    def _make_server(self, name, more):
        place = self.directory / "srv" / name
        place.mkdir(parents=True)
        lines = [
            f"port {self.names[PORTS[name]]}",
            "bind 127.0.0.1",
            f"dir {place}",
            f"logfile {place}/log",
            f"pidfile {place}/pid",
            "daemonize yes",
            "appendonly yes",
            "repl-diskless-sync-delay 0",
            *more,
        ]
        if name == "three":
            lines.append("replica-priority 200")  # so that the sentinel takes the other one
        if name != "one":
            lines.append(f"replicaof 127.0.0.1 {self.names[PORTS['one']]}")
        (place / "redis.conf").write_text("\n".join(lines) + "\n")
        self.run(f"redis-server /srv/{name}/redis.conf")
        eventually(lambda: answers(self.ports[PORTS[name]].number), "the server starts")

    def _hand_on(self):
        """Waits until the replicas receive the primary's writes: a link is up a moment before that."""
        self.run(f"redis-cli -p {PORTS['one']} PUBLISH nobody hears")

        def has_arrived():
            lines = self.run(f"redis-cli -p {PORTS['one']} INFO replication")
            (written,) = [line.split(":")[1] for line in lines if line.startswith("master_repl_offset:")]
            return len([line for line in lines if f",offset={written}," in line]) == len(self.servers) - 1

        eventually(has_arrived, "the replicas have what was written")

    def _make_sentinel(self):
        """A sentinel that decides alone, in a hurry, and calls the group mymaster."""
        place = self.directory / "srv" / "sentinel"
        place.mkdir()
        lines = [f"port {self.names[SENTINEL]}", "bind 127.0.0.1", f"dir {place}", f"logfile {place}/log"]
        lines += [f"pidfile {place}/pid", "daemonize yes"]
        (place / "redis.conf").write_text("\n".join(lines) + "\n")
        self.run("redis-server /srv/sentinel/redis.conf --sentinel")
        eventually(lambda: answers(self.ports[SENTINEL].number), "the sentinel starts")
        for name, period_ms in PERIODS.items():
            said = self.run(f"redis-cli -p {SENTINEL} SENTINEL DEBUG {name} {period_ms}")
            assert said == ["OK"], f"{said}: is it the sentinel that answers? Its log: {(place / 'log').read_text()}"
        assert self.run(f"redis-cli -p {SENTINEL} SENTINEL MONITOR mymaster 127.0.0.1 {PORTS['one']} 1") == ["OK"]
        assert self.run(f"redis-cli -p {SENTINEL} SENTINEL SET mymaster down-after-milliseconds {DOWN_AFTER_MS}") == ["OK"]
        look = f"redis-cli -p {SENTINEL} SENTINEL REPLICAS mymaster | grep -c master-link-status"
        eventually(lambda: self.run(look) == [str(len(self.servers) - 1)], "the sentinel knows the replicas")

    def check(self, step):
        """Runs a step; its output must be that of the page."""
        deadline = time.monotonic() + SOON_SECONDS
        while not is_shown(step.output, printed := self.run(step.command)):
            if not may_be_repeated(step, printed) or time.monotonic() > deadline:
                shown = "\n".join(printed)
                raise AssertionError(f"line {step.line}: {step.command}\n{shown}\n{self.logs()}")
            time.sleep(0.05)
        name = next((each for each in self.servers if re.search(rf"-p {PORTS[each]}|/{each}/", step.command)), None)
        if "SHUTDOWN" in step.command:
            eventually(lambda: self._process_of(name) is None, "the server has ended")
        if step.command.startswith("redis-server"):
            eventually(lambda: self._has_started(name), "the server has started, or given up")

    def _process_of(self, name):
        """The number of a server's process; none if it has ended, though its file may lie there."""
        place = self.directory / "srv" / name
        try:
            number = int((place / "pid").read_text())
            threads = os.listdir(f"/proc/{number}/task")
        except (OSError, ValueError):
            return None
        # The last of its threads closes its port.
        return number if any(is_in(f"/proc/{number}/task/{thread}", place) for thread in threads) else None

    def _has_started(self, name):
        """Returns whether a server answers, or has ended because it cannot start."""
        if answers(self.ports[PORTS[name]].number):
            return True
        return (self.directory / "srv" / name / "pid").exists() and self._process_of(name) is None

    def run(self, command):
        """Runs a command on a terminal; returns the lines that it prints, in the page's words."""
        if found := re.match(r"redis-server /srv/(\w+)/", command):
            eventually(lambda: self._process_of(found[1]) is None, "the server before this one has ended")
            (self.directory / "srv" / found[1] / "pid").unlink(missing_ok=True)
        for shown, real in self.names.items():
            command = command.replace(shown, real)
        terminal, other_end = pty.openpty()
        tty.setraw(other_end)
        process = subprocess.Popen(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=other_end,
            stderr=other_end,
            cwd=self.directory,
            env=self.environment,
        )
        os.close(other_end)
        printed = b""
        has_ended = False
        while True:
            if select.select([terminal], [], [], 0.02)[0]:
                try:
                    chunk = os.read(terminal, 65536)
                except OSError:
                    break  # nobody has the other end any more
                if not chunk:
                    break
                printed += chunk
            elif has_ended:
                break  # a server that was started may have kept it
            else:
                # The output just before its end is searched once more.
                has_ended = process.poll() is not None
        process.wait(SOON_SECONDS)
        os.close(terminal)
        text = printed.decode(errors="replace").replace("\r", "")
        for shown, real in self.names.items():
            text = text.replace(real, shown)
        return text.strip("\n").split("\n") if text.strip() else []

    def logs(self):
        """The ends of both logs."""
        texts = [path.read_text(errors="replace") for path in self.directory.glob("srv/*/log")]
        return "\n".join("\n".join(text.splitlines()[-25:]) for text in texts)

    def close(self):
        """Ends what runs."""
        for name in (*self.servers, "sentinel"):
            if (process := self._process_of(name)) is not None:
                os.kill(process, signal.SIGKILL)
        for port in self.ports.values():
            port.give_back()


def may_be_repeated(step, printed):
    """Returns whether an operator would look again, or repeat a command that the server refused because it is busy."""
    is_look = LOOKS.search(step.command) and not ACTS.search(step.command)
    was_busy = BUSY.search(step.command) and any(line.startswith("(error)") for line in printed)
    return bool(is_look or was_busy)


def is_shown(expected, printed):
    """Returns whether the page shows this output."""
    pattern = ""
    for line in expected:
        if line == "...":
            pattern += r"(?:[^\n]*\n)*"
        else:
            pattern += ".*".join(map(re.escape, line.rstrip().split("..."))) + r"\s*\n"
    return re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in printed)) is not None


def modules(newer):
    """The modules that pages name."""
    return {"libredislock.so": MODULE, "libredislock-0.3.0.so": MODULE, "libredislock-0.4.0.so": newer}
