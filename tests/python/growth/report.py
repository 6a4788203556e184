"""The table of a run, in Markdown."""

from bench.report import head, number, table

UNITS = {"instructions": "instr.", "us": "us"}
HEAD = ("what", "with the fewest", "with the most", "exponent", "longest turn, ms", "ratio", "")


def cost(point, unit):
    """A cost with its unit."""
    if unit == "us" and point["cost"] >= 10_000:
        return f"{number(point['cost'] / 1e3)} ms"
    return f"{number(point['cost'])} {UNITS[unit]}"


def bounded(value, bound, digits):
    """A figure with its bound."""
    if value is None:
        return ""
    told = f"{round(value, digits) + 0.0:.{digits}f}"  # no minus before a zero
    return f"{told} (<= {bound[0]:g})" if bound else told


def mark(verdict):
    """The verdict on a row, in a few words."""
    if verdict["faults"]:
        return "**above its bound**"
    return "**not what is wanted**" if verdict["unmet"] else ""


def line(row):
    """One line of the table."""
    points, verdict, bounds = row["points"], row["verdict"], row["bounds"]
    what = row["row"].partition(" | ")[0]
    ends = [f"{points[at]['count']:,}: {cost(points[at], row['unit'])}" for at in (0, -1)]
    return (
        what, *ends, bounded(verdict["exponent"], bounds.get("exponent"), 2),
        bounded(verdict["turn_ms"], bounds.get("turn"), 1), bounded(verdict["ratio"], bounds.get("ratio"), 2), mark(verdict),
    )  # fmt: skip


def groups(rows):
    """The rows by the kind of the many things."""
    found = {}
    for row in rows:
        found.setdefault(row["row"].partition(" | ")[2], []).append(row)
    return found


def tables(result):
    """A table for each thing that can be many."""
    parts = []
    for many, rows in groups(result["rows"]).items():
        parts.append(f"**Many: {many}**\n\n{table(HEAD, map(line, rows))}")
    return "\n\n".join(parts)


def reasons(result):
    """A table of the unmet goals, with reasons; nothing if there are none."""
    lines = []
    for row in result["rows"]:
        for text in row["verdict"]["unmet"]:
            figure, _, rest = text.partition(", ")
            wanted, _, why = rest.partition(" is wanted: ")
            lines.append((*row["row"].split(" | "), figure, wanted, why))
    return table(("what", "many", "measured", "wanted", "because"), lines) if lines else ""


def faults(result):
    """The figures above their bounds."""
    return [f"{row['row']}: {text}" for row in result["rows"] for text in row["verdict"]["faults"]]


def told(result, is_brief=False):
    """The summary at the end of a run."""
    found, unmet = faults(result), reasons(result)
    count = len(result["rows"])
    ends = [f"{count} rows, {len(found)} figures above their bounds, in {result['facts']['took']}", *found]
    if is_brief:
        return "\n".join(ends)
    return "\n\n".join([head(result["facts"]), tables(result), unmet or "All is as it is wanted.", "\n".join(ends)])
