"""Tries mutants of the core and the engine, and compares with docs/internals/mutants.md."""

import argparse
import json
import os
import re
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import build, listing, results, tests
from .listing import Text, short

# First the files that a wrong grant would come from.
FIRST = ("table/", "table.rs", "queue", "token.rs", "confirm.rs", "deadlock.rs", "locks.rs", "locks/")

# Its slow tests are the random lives, and those notice most. With optimisation they take seconds: so all are asked at
# once, in the second round.
ENGINE = "src/engine/"


def say(text):
    """Reports its progress."""
    print(f"mutants: {text}", flush=True)


class Run:
    """Mutants, and how to try them: by the quick tests, in a build that is quick, or by all, in one that runs fast."""

    def __init__(self, run, mutants, is_quick):
        self.results, self.mutants, self.is_quick = run, mutants, is_quick
        name, self.optimisation = ("quick", 0) if is_quick else ("all", 1)
        self.root, self.builds = run.root, run.builds / name
        self.package = build.Package(self.root, self.builds, self.optimisation)
        self.sources = self.package.sources
        self.killers = defaultdict(Counter)
        # The core does not use the engine, so its own tests never reach it.
        self.asked = ("engine::", "sim::") if all(mutant.file.startswith(ENGINE) for mutant in mutants) else ""
        self.single = None
        self.lock = threading.Lock()
        known = {mutant.name: "known" for mutant in mutants if run.known(mutant) == results.UNVIABLE}
        executable, self.schemata, self.alone, self.unviable = build.all_in_one(self.package, mutants, say, known)
        self.binary = tests.Binary(executable)
        self.reached = self.reach()
        say(f"{len(self.reached)} tests, {sum(one['seconds'] for one in self.reached.values()):.0f} s")

    def reach(self):
        """The functions that each test reaches; kept for as long as the binary is the same."""
        known = self.builds / "reached.json"
        mark = os.stat(self.binary.path).st_mtime
        found = json.loads(known.read_text()) if known.exists() else {}
        if found.get("mark") != mark:
            found = {"mark": mark, "tests": {}}
        names = self.binary.names()
        names = [name for name in names if name.startswith(self.asked) and not tests.SEEKING.search(name)]
        for name in names:
            if name not in found["tests"] and not (self.is_quick and tests.SLOW.search(name)):
                found["tests"][name] = self.binary.reached(name)
                known.write_text(json.dumps(found))
        return {name: found["tests"][name] for name in names if name in found["tests"]}

    def tests_of(self, mutant):
        """The tests that may notice a mutant, with their seconds."""
        if mutant.function is None or mutant.name in self.alone:
            return {name: one["seconds"] for name, one in self.reached.items()}
        file, start = mutant.file, mutant.function
        number = self.schemata.numbers_of.get((file, start))
        return {name: one["seconds"] for name, one in self.reached.items() if number in one["functions"]}

    def attempt(self, mutant):
        """Tries one mutant and keeps the result; in several threads, but for those that are built alone."""
        text, kept = self.sources[mutant.file], self.results.files[mutant.file]
        if mutant.name in self.unviable:
            return kept.put(mutant, text, results.UNVIABLE, why=self.unviable[mutant.name])
        binary, variables = self.binary, {"MUTANT": str(self.schemata.numbers[mutant.name])}
        if mutant.name in self.alone:
            binary, variables = self.build_alone(mutant), {}
            if binary is None:
                return kept.put(mutant, text, results.UNVIABLE, why="it is not built")
        before, wanted = kept.known.get(mutant.name, {}).get("by"), self.tests_of(mutant)
        killers = self.killers[mutant.file]
        with self.lock:
            first = dict.fromkeys([before, *(name for name, _ in killers.most_common(2))])
        name, is_late = tests.noticed(binary, wanted, list(first), **variables)
        if name is None:
            # A mutant that has survived all tests is not tried again with the slow ones.
            is_open = self.is_quick and self.results.known(mutant) != results.SURVIVED
            return kept.put(mutant, text, results.OPEN if is_open else results.SURVIVED, line=mutant.line)
        with self.lock:
            killers[name] += 1
        return kept.put(mutant, text, results.LATE if is_late else results.KILLED, name)

    def build_alone(self, mutant):
        """The test binary of the core with this one change, or `None`."""
        if self.single is None:
            self.single = build.Package(self.root, self.builds / "single", self.optimisation)
        text = self.sources[mutant.file]
        self.single.write(mutant.file, Text(text).mutated(mutant))
        executable, _ = self.single.cargo("test", "--no-run")
        self.single.write(mutant.file, text)
        return executable and tests.Binary(executable)


class Known:
    """The results of all mutants."""

    def __init__(self, root, cache, builds, mutants):
        self.root, self.builds = Path(root), Path(builds)
        self.files = {file: results.Results(Path(cache) / "mutants", file) for file in {one.file for one in mutants}}
        self.sources = {file: (self.root / file).read_text() for file in self.files}
        folders = [*listing.PARTS, "tests/fuzz/targets"]
        sources = "\n".join(path.read_text() for part in folders for path in sorted(self.root.glob(f"{part}/**/*.rs")))
        self.tests = set(re.findall(r"#\[test\]\n(?: *#.*\n)* *fn (\w+)", sources))

    def known(self, mutant):
        """The result of a mutant."""
        found = self.files[mutant.file].get(mutant, self.sources[mutant.file], self.tests)
        return found and found["result"]


def rank(mutant):
    """The rank of a mutant in the order of trying."""
    name = short(mutant.file)
    place = next((number for number, first in enumerate(FIRST) if name.startswith(first)), len(FIRST))
    return place, name, mutant.span


def arguments():
    """What is wanted."""
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("files", nargs="*", help="parts of the names of files or mutants; all of them")
    parser.add_argument("--again", action="store_true", help="try what is known already, too")
    parser.add_argument("--survivors", action="store_true", help="ask the quick tests about those that survived")
    parser.add_argument("--quick", action="store_true", help="ask the quick tests only")
    parser.add_argument("--judge", action="store_true", help="try none, and say what is known")
    parser.add_argument("--write", action="store_true", help="write the counts into the page")
    parser.add_argument("--tool", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--root", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--cache", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--builds", required=True, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    """Tries the mutants that are due, and judges."""
    given = arguments()
    mutants = sorted(listing.read(given.root, given.tool), key=rank)
    known = Known(given.root, given.cache, given.builds, mutants)
    page = Path(given.root) / "docs/internals/mutants.md"
    listed = results.reasons(page.read_text()) if page.exists() else {}
    wanted = [one for one in mutants if not given.files or any(part in one.name for part in given.files)]
    done = (results.SURVIVED,) if given.survivors else ()
    for is_quick in [True] if given.quick else [True, False]:
        round_of = chosen(known, wanted, is_quick, (None, *done), given.again)
        if round_of and not given.judge:
            attempt_all(Run(known, round_of, is_quick), round_of)
    return judge(known, mutants, listed, page, given.write)


def chosen(known, wanted, is_quick, kinds, again):
    """The part of `wanted` that a round tries: known ones of these kinds, or `again` all, and all that are left
    open."""
    found = []
    for one in wanted:
        is_first = is_quick != one.file.startswith(ENGINE)
        is_open = not is_quick and known.known(one) == results.OPEN
        if is_open or (is_first and (again or known.known(one) in kinds)):
            found.append(one)
    return found


def attempt_all(run, mutants):
    """Tries these; those that are built alone last."""

    def attempt(mutant):
        run.attempt(mutant)
        if run.results.known(mutant) in (results.SURVIVED, results.OPEN):
            say(f"not noticed, line {mutant.line}: {mutant.name}")

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(attempt, (one for one in mutants if one.name not in run.alone)))
    for mutant in mutants:
        if mutant.name in run.alone:
            attempt(mutant)


def judge(run, mutants, listed, page, is_written):
    """Checks that enough are noticed, and that all others have a reason to live."""
    by_file, survivors = defaultdict(list), []
    for mutant in mutants:
        known = run.known(mutant)
        by_file[mutant.file].append(known)
        if known == results.SURVIVED:
            survivors.append(mutant)
    print(results.table(by_file), end="")
    if is_written:
        page.write_text(results.written(page.read_text(), by_file))
    found = results.percent(sum(by_file.values(), []))
    say(f"{found:.1f} % of those that were tried are noticed")
    unknown = [mutant for mutant in survivors if mutant.name not in listed]
    for mutant in unknown:
        say(f"survives without a reason in docs/internals/mutants.md: {mutant.name} (line {mutant.line})")
    untried = {mutant.name for mutant in mutants if run.known(mutant) is None}
    gone = set(listed) - untried - {mutant.name for mutant in survivors}
    for name in sorted(gone):
        say(f"listed in docs/internals/mutants.md, and does not survive, or is not there: {name}")
    return 1 if unknown or found < results.KILLED_PERCENT_MIN else 0
