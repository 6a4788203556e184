"""Rounds from a seed, and the report of a difference."""

import argparse
import os
import random
import subprocess
import tempfile
import time
from pathlib import Path

from differ.shrink import shrunk
from harness.server import NAME, ROOT, VERSION

from .real import Real, build
from .script import CLUSTER, Author
from .told import CHANCE, differences, simulated

STEPS = 60
#: The number of rounds that the simulated server plays at a time.
AT_ONCE = 20
#: The lowest number of rounds in a run, or it proves nothing.
ROUNDS_MIN = 3
TEST = "sim::play::simulated_server_plays"


class Likeness:
    """Plays rounds on both sides."""

    def __init__(self, directory, seed, groups=None):
        self.directory, self.seed, self.groups = Path(directory), seed, groups
        self.library, self.played = build(self.directory), 0

    def script(self, number):
        """The steps of a round."""
        return Author(f"{self.seed}.{number}", self.groups).steps(STEPS)

    def scripts(self, numbers):
        """(number, steps, the simulated server's output) of these rounds, some at a time."""
        for start in range(0, len(numbers), AT_ONCE):
            some = numbers[start : start + AT_ONCE]
            scripts = [self.script(number) for number in some]
            yield from zip(some, scripts, self.simulated(scripts))

    def simulated(self, rounds):
        """The simulated server's output for these rounds."""
        path = self.directory / "script"
        path.write_text("".join(f"{step}\n" for steps in rounds for step in steps))
        binary = os.environ["REDISLOCK_LIB_TEST"]
        done = subprocess.run(
            [binary, "--exact", TEST], cwd=ROOT, env={**os.environ, "REDISLOCK_PLAYS": str(path)}, capture_output=True
        )
        if done.returncode != 0:
            for steps in rounds if len(rounds) > 1 else ():
                self.simulated([steps])
            said = "\n".join([*(step.replace("\t", " ") for step in rounds[0]), done.stdout.decode()[-1500:]])
            raise AssertionError(f"the simulated server ended itself: {said}")
        return simulated(path.with_name("script.played").read_text())

    def compares(self, steps, ours=None):
        """The first step in which the two differ: its number and the lines; None if there is none."""
        ours = ours or self.simulated([steps])[0]
        self.played += 1
        real = Real(self.library, self.directory, self.played, is_cluster=steps[0] == CLUSTER)
        is_reloaded = False
        try:
            for number, ((step, lines), (_, simulated_lines)) in enumerate(zip(real.plays(steps), ours)):
                if CHANCE in simulated_lines:
                    break
                is_reloaded = is_reloaded or step == "reload"
                if found := differences(simulated_lines, lines, is_reloaded):
                    return number, found
        finally:
            real.ends()
        return None

    def shrinks(self, steps, found, seconds):
        """Fewer steps that show a difference of the same kind."""
        best = [(steps, found)]
        kind = found[1][0].split("\t")[0]

        def shows(some):
            if some[0] != steps[0]:
                return False
            again = self.compares(some)
            if again is None or again[1][0].split("\t")[0] != kind:
                return False
            best[0] = (some, again)
            return True

        shrunk(steps[: found[0] + 1], shows, seconds)
        return best[0]


def told(steps, found, number, seed):
    """The report that people need to see a difference, and to see it again."""
    lines = [f"== round {number} of seed {seed}"]
    lines += [f"  {at:3} {step.replace(chr(9), ' ')}" for at, step in enumerate(steps[: found[0] + 1])]
    lines += ["", *(f"   {line}" for line in found[1])]
    return "\n".join([*lines, f"   again: scripts/likeness --server {NAME} --seed {seed} --first {number} --rounds 1"])


def main():
    """The command; its exit status."""
    words = arguments()
    print(f"likeness of {NAME} ({VERSION}), seed {words.seed}", flush=True)
    bad, played, steps_played = 0, 0, 0
    deadline = time.monotonic() + words.seconds
    with tempfile.TemporaryDirectory(prefix="redislock-likeness-") as directory:
        likeness = Likeness(directory, words.seed, words.groups)
        numbers = range(words.first, words.first + words.rounds)
        for number, steps, ours in likeness.scripts(numbers):
            if time.monotonic() > deadline or bad == words.most:
                break
            played, steps_played = played + 1, steps_played + len(steps)
            if found := likeness.compares(steps, ours):
                bad += 1
                steps, found = likeness.shrinks(steps, found, words.shrink)
                print(told(steps, found, number, words.seed), flush=True)
    print(f"likeness: {played} rounds, {steps_played} steps, {bad} with a difference")
    is_too_little = not bad and played < min(ROUNDS_MIN, words.rounds)
    if is_too_little:
        print(f"likeness: only {played} rounds prove nothing")
    return 1 if bad or is_too_little else 0


def arguments():
    """The arguments of the caller."""
    parser = argparse.ArgumentParser(prog="scripts/likeness", description="The simulated server against a real one.")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="repeats the scripts of a run")
    parser.add_argument("--rounds", type=int, default=2_000, help="how many rounds at most (2000)")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long rounds are begun (30)")
    parser.add_argument("--first", type=int, default=0, help="the round to begin with (0)")
    parser.add_argument("--most", type=int, default=3, help="how many rounds with a difference are enough (3)")
    parser.add_argument("--shrink", type=float, default=20.0, help="seconds to look for fewer steps (20)")
    groups = Author.GROUPS
    parser.add_argument("--groups", nargs="+", choices=groups, help=f"only these steps, of {', '.join(groups)}")
    return parser.parse_args()
