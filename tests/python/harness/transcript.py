"""Transcripts in the documentation, and their comparison with the real output.

A transcript is a block fenced as ```text that has a line with a prompt. It is typed
into redis-cli word for word, on a terminal, as a reader would:

    127.0.0.1:6379> COMMAND     typed into the first window; what follows is the reply
    client-b> COMMAND           typed into another window, named by its letter
    client-b: REPLY             what that window shows after it had to wait

A command without a reply waits: the test sees to it that the server has parked the client before the next line is
typed. All transcripts of a page are one session on one server that was empty before. A remark follows two blanks and
"<-".

Everything must be the same, but for the parts that always differ:

    a number of 13 digits or more    is a token. Any token will do, but where the page
                                     shows the same token twice it must be the same, and
                                     of two different ones the greater must be greater.
                                     A command is typed with the real one.
    a UUID                           likewise, without order
    the values named in VARIES       any number, any commit
    (1.23s)                          how long a reply took: left out
    ... alone on a line              any lines, once a reply
"""

import os
import pty
import re
import select
import subprocess
import time
import tty
from typing import NamedTuple

from .limits import SOON_SECONDS, eventually
from .server import CLI

PROMPT = re.compile(r"(127\.0\.0\.1:6379\S*|client-[a-z])> (.*)")
LATE = re.compile(r"(client-[a-z]): (.*)")
REMARK = re.compile(r"\s{2,}<- .*")
TOOK = re.compile(r"\(\d+\.\d\ds\)")
TOKEN = re.compile(r"\b\d{13,}\b")
NAME = re.compile(
    rf"{TOKEN.pattern}|\b[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}\b"
)
VARIES = re.compile(
    r'"(lease-left-ms|held-ms|waited-ms|client-id)"'
    r"|redislock_(commit|wait_ms_\w+|hold_ms_\w+|token_lead_us):"
)
TYPING_SECONDS = 0.05  # nobody types faster
# The prompt of redis-cli when it is ready for the next command.
READY = re.compile(r"(?:^|\n)127\.0\.0\.1:(\d+)(\S*)> $")


class Step(NamedTuple):
    """A command and the reply that the page shows, or a reply that comes late."""

    line: int
    window: str
    prompt: str
    command: str  # empty: the reply of a command that had to wait
    reply: list


def steps_of(text):
    """The steps of all transcripts of a page."""
    steps, fence = [], None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fence = line[3:].strip() if fence is None else None
            inside = False
            continue
        if fence != "text":
            continue
        line = REMARK.sub("", line)
        if found := PROMPT.fullmatch(line):
            prompt, command = found.groups()
            window = prompt if prompt.startswith("client") else "127.0.0.1:6379"
            steps.append(Step(number, window, prompt, command, []))
            inside = True
        elif found := LATE.fullmatch(line):
            steps.append(Step(number, found[1], "", "", [found[2]]))
        elif inside and line:
            steps[-1].reply.append(line)
    return steps


class Window:
    """redis-cli on a terminal of its own."""

    def __init__(self, port):
        self.terminal, other_end = pty.openpty()
        tty.setraw(other_end)  # or the terminal would show what is typed
        # A dumb terminal keeps redis-cli from drawing hints and colours.
        surroundings = {**os.environ, "TERM": "dumb", "REDISCLI_HISTFILE": "/dev/null"}
        self.process = subprocess.Popen(
            [CLI, "-p", str(port)],
            stdin=other_end,
            stdout=other_end,
            stderr=other_end,
            env=surroundings,
            start_new_session=True,
        )
        os.close(other_end)
        self.prompt = ""
        self.shown = ""
        self.read()

    def type(self, command):
        """Types a command and presses return."""
        self.shown = ""
        time.sleep(TYPING_SECONDS)
        os.write(self.terminal, command.encode() + b"\n")

    def read(self, limit=SOON_SECONDS):
        """The lines up to the next prompt."""
        deadline = time.monotonic() + limit
        while not self.is_ready():
            left = deadline - time.monotonic()
            assert left > 0, f"redis-cli shows no prompt, but: {self.shown!r}"
            self._look(left)
        ready = READY.search(self.shown)
        self.prompt = f"127.0.0.1:6379{ready[2]}"
        lines = self.shown[: ready.start()].replace("\r", "").splitlines()
        return [line.rstrip() for line in lines if line and not TOOK.fullmatch(line)]

    def is_ready(self):
        """Returns whether redis-cli asks for the next command."""
        self._look(0)
        return bool(READY.search(self.shown))

    def close(self):
        """Ends redis-cli."""
        self.process.kill()
        self.process.wait(SOON_SECONDS)
        os.close(self.terminal)

    def _look(self, seconds):
        if select.select([self.terminal], [], [], seconds)[0]:
            self.shown += os.read(self.terminal, 65536).decode(errors="replace")


class Names:
    """The real token or UUID for each one of the page."""

    def __init__(self):
        self.real = {}

    def typed(self, command):
        """A command of the page, with the real values of the page's names."""
        return NAME.sub(lambda name: self.real.get(name[0], name[0]), command)

    def agree(self, told, real):
        """Returns whether one name can stand for the other, from now on too."""
        if bool(TOKEN.fullmatch(told)) != bool(TOKEN.fullmatch(real)):
            return False
        if told in self.real or real in self.real.values():
            return self.real.get(told) == real
        for other, other_real in self.real.items():
            if TOKEN.fullmatch(other) and TOKEN.fullmatch(told):
                if (int(other) < int(told)) != (int(other_real) < int(real)):
                    return False
        self.real[told] = real
        return True


def same_line(told, real, before, names):
    """Returns whether a line of the page stands for a real one; `before` is the line above."""
    above = VARIES.search(before)
    varies = VARIES.search(told) or (above and above[1] and "=>" not in before)
    if varies and (told.rstrip().endswith("(nil)") == real.rstrip().endswith("(nil)")):
        head = re.compile(r"^(.*?(?:\(integer\) |:))\S+$")
        return head.sub(r"\1", told) == head.sub(r"\1", real)
    if NAME.sub("?", told) != NAME.sub("?", real):
        return False
    pairs = zip(NAME.findall(told), NAME.findall(real))
    return all([names.agree(*pair) for pair in pairs])


def same_reply(told, real, names):
    """Returns whether the reply of the page stands for the real one."""
    told = [line for line in told if not TOOK.fullmatch(line)]
    if "..." in told:
        cut = told.index("...")
        rest = len(told) - cut - 1
        if len(real) < cut + rest:
            return False
        told = told[:cut] + told[cut + 1 :]
        real = real[:cut] + real[len(real) - rest :]
    lines = zip(told, real, ["", *told])
    return len(told) == len(real) and all([same_line(*line, names) for line in lines])


class Session:
    """The windows in which the transcripts of a page are typed."""

    def __init__(self, server):
        self.server = server
        self.windows = {}
        self.waiting = set()
        self.names = Names()

    def run(self, step):
        """One step; returns the real output of the window."""
        if not step.command:
            assert step.window in self.waiting, f"line {step.line}: nobody waits"
            self.waiting.remove(step.window)
            return self.windows[step.window].read()
        if step.window not in self.windows:
            self.windows[step.window] = Window(self.server.port)
        window = self.windows[step.window]
        if step.prompt.startswith("127"):
            assert step.prompt == window.prompt, f"line {step.line}: {window.prompt}"
        window.type(self.names.typed(step.command))
        if step.reply:
            return window.read()
        self.waiting.add(step.window)
        eventually(self._all_are_parked, f"line {step.line}: waits, or has a reply")
        return []

    def check(self, step):
        """One step, which must show the output of the page."""
        real = self.run(step)
        if step.reply:
            assert same_reply(step.reply, real, self.names), "\n".join(
                [f"line {step.line}: {step.command}", "the page:", *step.reply]
                + ["the server:", *real]
            )

    def _all_are_parked(self):
        blocked = int(self.server.info("clients")["blocked_clients"])
        return blocked == sum(
            not self.windows[name].is_ready() for name in self.waiting
        )

    def close(self):
        """Closes the windows; no client may still wait for a reply that the page shows."""
        for window in self.windows.values():
            window.close()
