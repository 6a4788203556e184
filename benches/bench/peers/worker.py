"""Programs that contend for a lock, spoken to in lines: see benches/contend/main.rs."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence

from .turns import Run, Turn

#: No measurement takes as long.
ANSWER_SECONDS_MAX = 120.0


class Worker:
    """One peer's contenders, in one process or a few that share them out. Use it in a `with` statement."""

    def __init__(self, *command: object, processes: int = 1, cwd: object = None) -> None:
        self.errors = tempfile.TemporaryFile("w+")
        self.standing = 0  # how many stand in line since the last run
        self.processes = [
            subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
                cwd=cwd,
            )
            for _ in range(processes)
        ]

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        self.errors.close()

    def open(self, contenders: int) -> None:
        """Opens the connections of `contenders` contenders. Connections that are open stay open."""
        self._ask([f"open {share}" for share in self._shares(contenders)])

    def run(
        self, contenders: int, hold_us: int, line_up: float, warm_up: float, window: float, *, stay: bool = False
    ) -> Run:
        """All contenders line up and then take turns. After the end they leave, or stay in line for the next run,
        which benches/contend can do."""
        shares = self._shares(contenders)
        opening = time.monotonic_ns() + int(line_up * 1e9)
        start = opening + int(warm_up * 1e9)
        end = start + int(window * 1e9)
        answers = self._ask([f"run {share} {hold_us} {opening} {end}{' stay' * stay}" for share in shares])
        self.standing = contenders if stay else 0
        turns, first = [], 0
        for share, answer in zip(shares, answers, strict=True):
            turns += [Turn(first + who, *times) for who, *times in answer["turns"]]
            first += share
        granted = sorted((turn for turn in turns if turn.granted), key=lambda turn: turn.granted)
        run = Run(contenders, opening, start, end, granted, [turn for turn in turns if not turn.granted])
        run.check()
        return run

    def _shares(self, contenders: int) -> list[int]:
        count = len(self.processes)
        return [contenders // count + (number < contenders % count) for number in range(count)]

    def ask(self, line: str) -> dict:
        """Says one line to the only process, and returns its answer."""
        self.say(line)
        return self.answer()

    def say(self, line: str) -> None:
        """Says one line to the only process, whose answer is still to come."""
        (process,) = self.processes
        process.stdin.write(line + "\n")
        process.stdin.flush()

    def answer(self) -> dict:
        """The answer of the only process, which is killed if there is none for too long."""
        (process,) = self.processes
        limit = threading.Timer(ANSWER_SECONDS_MAX, process.kill)
        limit.start()
        try:
            return self._answer(process)
        finally:
            limit.cancel()

    def _ask(self, lines: Sequence[str]) -> list[dict]:
        for process, line in zip(self.processes, lines, strict=True):
            process.stdin.write(line + "\n")
            process.stdin.flush()
        return [self._answer(process) for process in self.processes]

    def _answer(self, process: subprocess.Popen) -> dict:
        line = process.stdout.readline()
        if not line:
            self.errors.seek(0)
            raise RuntimeError(f"{process.args}: {self.errors.read()[-2000:]}")
        return json.loads(line)
