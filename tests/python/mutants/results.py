"""The result of each mutant, kept outside of the tree: a run continues where another one stopped."""

import hashlib
import json
import re
import threading
from collections import Counter
from pathlib import Path

from .listing import Text, short

KILLED, LATE, UNVIABLE, SURVIVED = "killed", "timeout", "unviable", "survived"
# The quick tests do not notice; the others were not asked yet.
OPEN = "open"
# A page's row: | `mutant` | reason |
ROW = re.compile(r"^\| `([^`]+: .+)` \| (.+) \|$", re.MULTILINE)
# A page's tables, one for each part that is changed.
COUNTS = re.compile(r"(<!-- counts of (src/\w+) -->\n).*?(<!-- end of counts -->)", re.DOTALL)
KILLED_PERCENT_MIN = 95


class Results:
    """The results of the mutants of one file.

    One is good for as long as the text of the mutant's function is the same, and, if it was killed, its test is there.
    """

    def __init__(self, directory, file):
        self.path = Path(directory) / (short(file).replace("/", "-") + ".json")
        self.lock = threading.Lock()
        self.known = json.loads(self.path.read_text()) if self.path.exists() else {}

    def get(self, mutant, text, tests):
        """The result of a mutant, if it is still valid."""
        known = self.known.get(mutant.name)
        if not known or known["of"] != fingerprint(mutant, text):
            return None
        return known if known["result"] != KILLED or known["by"].split("::")[-1] in tests else None

    def put(self, mutant, text, result, by=None, **more):
        """Keeps a result, at once."""
        with self.lock:
            self.known[mutant.name] = {"result": result, "by": by, "of": fingerprint(mutant, text), **more}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            written = self.path.with_suffix(".new")
            written.write_text(json.dumps(self.known, indent=1, sort_keys=True))
            written.replace(self.path)


def fingerprint(mutant, text):
    """The fingerprint of the mutant's function; of its line, if it stands in none."""
    source = Text(text)
    start, end = mutant.function or ((mutant.line, 1), (mutant.line + 1, 1))
    return hashlib.sha256(source.text[source.at(start) : source.at(end)].encode()).hexdigest()[:16]


def reasons(page):
    """The survivors that a page lists, with their reasons."""
    return {name.replace("\\|", "|"): reason for name, reason in ROW.findall(page)}


def table(by_file):
    """The counts of every file as a page's table; `by_file` has the results of each."""
    kinds = (KILLED, LATE, UNVIABLE, SURVIVED, OPEN)
    heads = ["file", "mutants", "killed", "timed out", "unviable", "survived", "not by quick tests", "not tried"]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * 7]
    total = Counter()
    for file, found in sorted(by_file.items()):
        counts = Counter(found)
        total += counts
        row = [len(found), *(counts[kind] for kind in kinds), counts[None]]
        lines.append(f"| {short(file)} | " + " | ".join(map(str, row)) + " |")
    row = [total.total(), *(total[kind] for kind in kinds), total[None]]
    lines.append("| all | " + " | ".join(map(str, row)) + " |")
    return "\n".join(lines) + "\n"


def written(page, by_file):
    """The page with the counts of each part of which anything is known."""

    def counts(found):
        part = {file: known for file, known in by_file.items() if file.startswith(found[2] + "/")}
        return found[1] + table(part) + found[3] if any(map(any, part.values())) else found[0]

    return COUNTS.sub(counts, page)


def percent(found):
    """The percentage that was noticed, of those that could be built and were tried."""
    counts = Counter(found)
    killed = counts[KILLED] + counts[LATE]
    return 100 * killed / max(killed + counts[SURVIVED], 1)
