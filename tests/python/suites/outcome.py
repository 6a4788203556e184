"""The results of a run of a file of tests, and the comparison of two of them."""

import re
from collections import Counter

LINE = re.compile(r"(?<!\*\*\* )\[(ok|err|exception|skip|ignore|TIMEOUT)\]: ?(.*)$")
MILLISECONDS = re.compile(r" \(\d+ ms\)$")
PLACE = re.compile(r" in tests/\S+\.tcl$")
# The parts of a name that vary with a process, a port, a seed or chance, and their substitutes.
VARIES = re.compile(r"0x[0-9a-f]+|\d{5,}|#\d+|(?:epoch|x =) \d+")
OF_CHANCE = re.compile(r"\bN\b")
TEST_OF_GROUP = re.compile(r"^\d\d:\d\d:\d\d> ", re.MULTILINE)
WHOLE_FILE = "(the file)"
# The number of runs of a test with the module and without, if it fails the first time with it.
REPETITIONS = 3
# The number of additional failures with the module from which a test is said to differ because of it.
SURE = 2


def outcomes(log, code):
    """The count of each result of each test of a file: {name: Counter}."""
    found = {}
    for line in log.splitlines():
        match = LINE.search(line)
        if not match:
            continue
        status, name = match.groups()
        if status in ("exception", "TIMEOUT") or (status == "err" and not PLACE.search(name)):
            # Not a test: the rest of a message that ended the file, such as "child process exited abnormally".
            status, name = "err", WHOLE_FILE
        name = PLACE.sub("", MILLISECONDS.sub("", name))
        if status == "ignore":
            name = name.split(": ")[0]
        found.setdefault(VARIES.sub("N", name), Counter())[status] += 1
    return with_its_end(found, code)


def outcomes_of_group(log, code):
    """The count of each result of each test, of a suite with another log, as those of clusters and sentinels have."""
    found = {}
    for unit in log.split("Testing unit: ")[1:]:
        file, *tests = TEST_OF_GROUP.split(unit)
        for test in tests:
            name = f"{file.split()[0]}: {test.splitlines()[0].split(': ')[0]}"
            is_ok = re.search(r"(^|[: .])OK$", test, re.MULTILINE)
            found.setdefault(VARIES.sub("N", name), Counter())["ok" if is_ok else "err"] += 1
    return with_its_end(found, code)


def with_its_end(found, code):
    """Adds a failure of the whole file, if it failed and no test of it did."""
    if code and not any(counts["err"] for counts in found.values()):
        found[WHOLE_FILE] = Counter(err=1)
    return found


def failed(found, name, of):
    """Returns whether a test failed, or did not come to its end where it did in another run."""
    counts, wanted = found.get(name, Counter()), of.get(name, Counter())["ok"]
    if OF_CHANCE.search(name):
        # The loop of failovers waits for one only if chance has hit a primary: once is as good as twice.
        wanted = min(wanted, 1)
    return counts["err"] > 0 or counts["ok"] < wanted


def suspects(without, with_module):
    """The tests that did not pass with the module as often as they should: {name: failed without it}."""
    names = sorted({*without, *with_module})
    both = {name: without.get(name, Counter()) | with_module.get(name, Counter()) for name in names}
    return {name: failed(without, name, both) for name in names if failed(with_module, name, both)}


class Trial:
    """A test that failed with the module, and how it fares when repeated both ways."""

    def __init__(self, file, name, failed_without):
        self.file = file
        self.name = name
        self.runs = {"with": 1, "without": 1}
        self.failures = {"with": 1, "without": int(failed_without)}

    def add(self, side, found, expected):
        """Counts a repetition."""
        self.runs[side] += 1
        self.failures[side] += failed(found, self.name, expected)

    @property
    def is_sure(self):
        """Returns whether the module is to blame, and not chance."""
        return self.failures["with"] - self.failures["without"] >= SURE

    @property
    def verdict(self):
        """The verdict in words."""
        if self.is_sure:
            return "differs"
        return "fails either way" if self.failures == self.runs else "fails at times"

    def __str__(self):
        told = [f"{side} the module {self.failures[side]} of {self.runs[side]}" for side in ("with", "without")]
        return f"{self.file}: {self.name}: failed {', '.join(told)}"


def judged(trials, expected, seen):
    """The faults: [tests that differ and are not listed], [listed ones that do not differ].

    `expected` are the (file, test) that are listed, `seen` the files that were run.
    """
    sure = {(trial.file, trial.name): trial for trial in trials if trial.is_sure}
    unlisted = [str(trial) for key, trial in sure.items() if key not in expected]
    stale = [f"{file}: {name}" for file, name in expected if file in seen and (file, name) not in sure]
    return unlisted, stale
