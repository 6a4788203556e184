"""Measures: the commands of a scene, or an event, at one size."""

import subprocess
import tempfile
from functools import partial
from statistics import median

from bench.scenarios.instructions import CALLGRIND, QUIET, counted
from bench.servers import Server, encode, replicated

from .fit import Point
from .meter import Meter
from .rows import nothing_more
from .stage import Stage

#: Rounds of a command before it is measured: tables grow to their size.
WARM_UP = 5
#: Commands that are sent one by one, so that a turn is one of them.
SINGLES = 40


class Repeater:
    """Sends rounds of a command's steps, and checks each reply."""

    def __init__(self, stage):
        self.stage = stage
        self._done = {}

    def rounds(self, command, times):
        """The steps of `times` rounds that have not been sent yet, encoded, with the beginnings of their replies."""
        start = self._done.get(command.what, 0)
        self._done[command.what] = start + times
        for number in range(start, start + times):
            for step in command.steps:
                words, _, wanted = step.partition(" -> ")
                words = words.format(i=number, j=number + 1, **self.stage.known)
                yield encode(*words.split()), wanted.encode()

    def at_once(self, command, times):
        """Sends all rounds in one piece: turns and packets cost as little as they can."""
        steps = list(self.rounds(command, times))
        self.stage.admin.socket.sendall(b"".join(words for words, _ in steps))
        for words, wanted in steps:
            self._check(words, wanted)

    def one_by_one(self, command, times):
        """Each in a turn of its own."""
        for words, wanted in self.rounds(command, times):
            self.stage.admin.socket.sendall(words)
            self._check(words, wanted)

    def _check(self, words, wanted):
        reader = self.stage.admin.reader
        head = reader.peek(1)[:1]
        seen = reader.peek(3)[:3] if head == b"$" else b""
        reply = self.stage.admin.read()
        line = reply if head not in b"$*%~" else head + (b"-1" if seen == b"$-1" else b"")
        assert line.startswith(wanted), f"{words!r}: {line[:200]!r} instead of {wanted!r}"


def instructions(scene, count):
    """Instructions of each command of a scene, by its name. Building is not counted."""
    options = (*scene.options(count), *QUIET)
    with Stage(count, None, *options, under=(*CALLGRIND, "--instr-atstart=no")) as stage:
        scene.build(stage)
        repeater = Repeater(stage)
        for command in scene.commands:
            repeater.at_once(command, WARM_UP)
        switch = ["callgrind_control", "--instr=on", str(stage.server.process.pid)]
        subprocess.run(switch, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        counted(stage.server)
        found = {}
        for command in scene.commands:
            repeater.at_once(command, command.times)
            found[command.what] = counted(stage.server) / command.times
        return found


def turns(scene, count, rounds):
    """The longest turn of each command of a scene in milliseconds: the median of some rounds."""
    with tempfile.TemporaryDirectory() as directory, Stage(count, Meter(directory), *scene.options(count)) as stage:
        scene.build(stage)
        stage.meter.rest()
        repeater = Repeater(stage)
        found = {}
        for command in scene.commands:
            repeater.at_once(command, WARM_UP)
            singles = min(SINGLES, command.times)

            def act(_, command=command, singles=singles):
                repeater.one_by_one(command, singles)

            found[command.what] = median(stage.turns(act, is_brief=True).longest_ms for _ in range(rounds))
        stage.meter.close()
        return found


def once(event, count, build, act, then=nothing_more):
    """The server's work for an event, on servers of its own."""
    with tempfile.TemporaryDirectory() as directory:
        start = partial(replicated, replicas=event.replicas(count)) if event.replicas(count) else Server
        with Stage(count, Meter(directory), *event.options(count), start=start) as stage:
            build(stage)
            seen = stage.turns(act)
            while not stage.is_so(then):
                seen = stage.meter.read()
            stage.meter.close()
            return seen


def happened(event, count, number):
    """Round `number` of an event: a point. The comparison follows it, and comes first in every other round."""
    runs = [(event.build, event.act, event.then), *filter(None, [event.beside])]
    order = runs[:: -1 if number % 2 else 1]
    found = {run: once(event, count, *run) for run in order}
    seen, *other = (found[run] for run in runs)
    ratio = seen.total_us / other[0].total_us if other else None
    return Point(count, seen.total_us / event.times, seen.longest_ms, ratio)
