"""Rounds from a seed, and the report of a fault."""

import argparse
import random
import re
import time
from collections import Counter
from typing import NamedTuple

from harness.server import NAME, VERSION, Yard

from .group import Chain
from .play import Player
from .script import Author
from .shrink import kind_of, shrunk

#: The number of rounds that are played on the same servers.
EPISODE = 10
STEPS = 40
#: The lowest number of rests in a run, or it proves nothing.
RESTS_MIN = 20
CROWDED = "    ... and so on"


class Found(NamedTuple):
    """A round in which something was wrong."""

    number: int
    steps: list
    faults: list
    lines: list


class Differ:
    """Rounds of one seed, on servers that are started as they are needed."""

    def __init__(self, seed, groups=None, environment=None, tell=lambda line: None):
        self.seed, self.groups, self.environment, self.tell = seed, groups, environment, tell
        self.yard = self.chain = self.episode = None
        self.rests, self.commands = 0, Counter()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ends()

    def script(self, number):
        """The steps of a round, each with its number."""
        return list(enumerate(Author(f"{self.seed}.{number}", self.groups).steps(STEPS), 1))

    def plays(self, number, steps):
        """Plays these steps of a round; returns the player."""
        episode = number // EPISODE
        if episode != self.episode:
            self.ends()
            self.yard = Yard()
            self.chain = Chain(self.yard, f"{self.seed}.{episode}", self.environment)
            self.episode = episode
        player = Player(self.chain, f"{self.seed}.{number}", self.tell)
        try:
            player.plays(steps)
        except Exception as failure:  # a server that is broken answers nothing sensible
            player.faults.append(f"answers: {type(failure).__name__}: {failure}")
        if not all(node.is_alive() for node in self.chain.nodes):
            player.faults.append(self.death())
        self.rests += player.rests
        self.commands.update(str(request.words[0]) for request in player.requests)
        return player

    def round(self, number):
        """Plays a round; returns its fault, or None."""
        steps = self.script(number)
        player = self.plays(number, steps)
        if not player.faults:
            return None
        done = [(at, step) for at, step in steps if at <= player.number]
        return Found(number, done, player.faults, player.lines)

    def shrinks(self, found, seconds):
        """Looks for fewer steps that show the fault; returns the shortest that it has found."""
        best = [found]

        def shows(steps):
            if steps[-1][1].act not in ("rest", "copies", "reload", "roles", "failover", "anew"):
                return False
            player = self.plays(found.number, steps)
            is_same = bool(player.faults) and kind_of(player.faults) == kind_of(found.faults)
            if is_same:
                best[0] = Found(found.number, steps, player.faults, player.lines)
            return is_same

        shrunk(found.steps, shows, seconds)
        return best[0]

    def death(self):
        """Ends all servers, of which one is dead; returns the facts about it."""
        try:
            self.ends()
        except AssertionError as failure:
            return f"death: {failure}"
        return "death: a server ended"

    def ends(self):
        """Ends all servers; one that broke is a fault without a judge."""
        yard, self.yard, self.chain, self.episode = self.yard, None, None, None
        if yard is not None:
            yard.close()


def told(found, seed, groups=None):
    """The report that people need to see a fault, and to see it again."""
    steps = ",".join(str(at) for at, _ in found.steps)
    lines = [f"== round {found.number} of seed {seed}, {len(found.steps)} steps", *without_crowds(found.lines), ""]
    lines += [f"   FAULT {fault}" for fault in found.faults[:10]]
    again = f"scripts/differ --server {NAME} --seed {seed} --round {found.number} --steps {steps}"
    again += f" --groups {' '.join(groups)}" if groups else ""
    return "\n".join([*lines, f"   again: {again}"])


def without_crowds(lines):
    """The lines, but of many requests of one crowd only the first and the last."""
    crowd = re.compile(r" r\d+ PX ")
    kept = []
    for number, line in enumerate(lines):
        around = lines[max(0, number - 1) : number + 2]
        if len(around) < 3 or not all(crowd.search(each) for each in around):
            kept.append(line)
        elif kept[-1] != CROWDED:
            kept.append(CROWDED)
    return kept


def main():
    """The command; its exit status."""
    words = arguments()
    print(f"differ on {NAME} ({VERSION}), seed {words.seed}, {words.seconds:.0f} s", flush=True)
    tell = (lambda line: print(line, flush=True)) if words.notes else (lambda line: None)
    bad, rounds = [], 0
    with Differ(words.seed, words.groups, tell=tell) as differ:
        if words.round is not None:
            return again(differ, words)
        deadline = time.monotonic() + words.seconds
        while time.monotonic() < deadline and len(bad) < words.most:
            found = differ.round(words.first + rounds)
            rounds += 1
            if found is not None:
                bad.append(differ.shrinks(found, words.shrink))
                print(told(bad[-1], words.seed, words.groups), flush=True)
        kinds = ", ".join(f"{name} {number}" for name, number in sorted(differ.commands.items()))
        print(f"differ: {rounds} rounds, {differ.rests} rests, {len(bad)} with faults; {kinds}")
        if differ.rests < RESTS_MIN and not bad:
            print(f"differ: only {differ.rests} rests prove nothing")
        return 1 if bad or differ.rests < RESTS_MIN else 0


def again(differ, words):
    """Plays one round, or some of its steps."""
    steps = differ.script(words.round)
    if words.steps:
        wanted = {int(step) for step in words.steps.split(",")}
        steps = [(at, step) for at, step in steps if at in wanted]
    player = differ.plays(words.round, steps)
    found = Found(words.round, steps, player.faults, player.lines)
    print(told(found, words.seed, words.groups) if player.faults else "differ: nothing was wrong")
    return 1 if player.faults else 0


def arguments():
    """The arguments of the caller."""
    parser = argparse.ArgumentParser(prog="scripts/differ", description="Random scripts on a primary and its copies.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long rounds are begun (60)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="repeats the scripts of a run")
    groups = Author.GROUPS
    parser.add_argument("--groups", nargs="+", choices=groups, help=f"only these steps, of {', '.join(groups)}")
    parser.add_argument("--first", type=int, default=0, help="the round to begin with (0)")
    parser.add_argument("--most", type=int, default=5, help="how many rounds with faults are enough (5)")
    parser.add_argument("--shrink", type=float, default=20.0, help="seconds to look for fewer steps (20)")
    parser.add_argument("--round", type=int, help="this round alone")
    parser.add_argument("--steps", help="of the round these alone, as in 1,4,5")
    parser.add_argument("--notes", action="store_true", help="tell of every command as it is sent")
    return parser.parse_args()
