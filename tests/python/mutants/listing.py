"""The mutants that cargo-mutants makes of the core and the engine, each under a name that outlives edits elsewhere in its file."""

import dataclasses
import json
import re
import subprocess
from collections import Counter

# The parts that are built without a server.
PARTS = ("src/lock", "src/command", "src/engine", "src/sim")
# The parts that are changed: the core, and the engine. Fuzzing tries the parsers of words.
CHANGED = ("src/lock", "src/engine")
# Not counted: they report to the tests the faults of a table, and nothing that is shipped calls them.
JUDGES = re.compile(r"\b(check(_many|_beside|_ranks)?|knows_its_holders_only)$")


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A small change."""

    name: str
    file: str
    line: int
    function: tuple | None
    span: tuple
    replacement: str


def of_span(span):
    """The beginning and the end of a span, as two pairs of line and column, from 1 on."""
    return tuple((span[end]["line"], span[end]["column"]) for end in ("start", "end"))


def short(file):
    """The name of a file here: as it is in the core; with its folder if it is not of the core."""
    return file.removeprefix("src/lock/").removeprefix("src/")


def read(root, tool):
    """All mutants."""
    files = (word for part in CHANGED for word in ("-f", f"{part}/**"))
    words = [tool, "mutants", "--list", "--json", "--dir", root, *files]
    found = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)
    seen, mutants = Counter(), []
    for one in found:
        place, what = re.fullmatch(r"(\S+?):\d+:\d+: (.*)", one["name"], re.DOTALL).groups()
        if one["function"] and JUDGES.search(one["function"]["function_name"]):
            continue
        # The spaces of a long replacement are the source's.
        name = f"{short(place)}: {' '.join(what.split())}"
        seen[name] += 1
        if seen[name] > 1:
            name += f" ({seen[name]})"
        function = one["function"] and of_span(one["function"]["span"])
        span = of_span(one["span"])
        mutants.append(Mutant(name, one["file"], span[0][0], function, span, one["replacement"]))
    return mutants


class Text:
    """A source file, whose places are known by line and column."""

    def __init__(self, text):
        self.text = text
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def at(self, place):
        """The offset of a line and a column."""
        line, column = place
        return self.starts[line - 1] + column - 1

    def mutated(self, mutant, start=0, end=None):
        """This part of the file, with the mutant's change in it."""
        first, last = map(self.at, mutant.span)
        return self.text[start:first] + mutant.replacement + self.text[last:end]
