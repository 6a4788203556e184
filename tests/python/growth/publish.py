"""Puts the last full runs into the documentation. The unmet goals go into docs/internals/benchmarks.md. The tables of Redis 7.0,
the plot, and the figures of all servers go into the folder next to it."""

import csv
import json
import sys

from bench.publish import BESIDE, GROWTH, GROWTH_FILES, PAGE, placed
from bench.report import head
from bench.servers import ROOT

from . import plot, report
from .run import RESULTS

#: Whose tables the page shows; of the others it says how many rows are within their bounds.
FIRST = "redis-7.0"
COLUMNS = ("server", "many", "what", "unit", "count", "cost", "turn_ms", "ratio")


def runs():
    """The last full run of each server, that of the page first."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    found = {name: result for name, result in found.items() if not name.endswith("-short")}
    if FIRST not in found:
        raise RuntimeError(f"{FIRST} was not measured")
    return [found.pop(FIRST), *found.values()]


def said_of(result):
    """One line about a server whose tables are not shown."""
    rows = result["rows"]
    above = [row["row"] for row in rows if row["verdict"]["faults"]]
    unmet = [row["row"] for row in rows if row["verdict"]["unmet"]]
    told = f"{result['facts']['measured']}, {result['facts']['date']}: {len(rows) - len(above)} of {len(rows)} rows are"
    return f"- {told} within their bounds, of which some are wider there;\n  {len(unmet)} are not what is wanted."


def section(results):
    """The section of the page."""
    first, *others = results
    unmet = report.reasons(first) or "Everything is as it is wanted."
    parts = [head(first["facts"]), "What is not as it is wanted:", unmet]
    if others:
        parts.append("On other servers:\n\n" + "\n".join(map(said_of, others)))
    return "\n\n".join(parts)


def whole(result):
    """The tables, in a page of their own."""
    first = "# Growth, row by row\n\nHow to read it stands in [Benchmarks](../benchmarks.md#growth)."
    return "\n\n".join([first, head(result["facts"]), report.tables(result)]) + "\n"


def write_csv(path, results):
    """Every point of every row."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for result in results:
            for row in result["rows"]:
                what, _, many = row["row"].partition(" | ")
                for point in row["points"]:
                    figures = [point[name] for name in ("cost", "turn_ms", "ratio")]
                    cells = ["" if value is None else f"{value:.6g}" for value in figures]
                    writer.writerow([result["facts"]["measured"], many, what, row["unit"], point["count"], *cells])


def publish():
    """Writes the page, and the files next to it."""
    results = runs()
    PAGE.write_text(placed(PAGE.read_text(), lambda name: section(results) if name == GROWTH else None))
    table, page, picture = (BESIDE / name for name in GROWTH_FILES)
    write_csv(table, results)
    page.write_text(whole(results[0]))
    picture.write_text(plot.svg(results[0]))
    return f"{PAGE.relative_to(ROOT)} shows the run of {results[0]['facts']['date']}"


if __name__ == "__main__":
    try:
        print(f"growth: {publish()}")
    except (OSError, RuntimeError, ValueError, KeyError) as reason:
        sys.exit(f"growth: there is no full run to show: {reason!r}")
