"""The actions and findings, added up and written down."""

import json
from collections import Counter

#: The least that must happen in a run of a topology, or it proves nothing.
FAULTS_MIN = 20
GRANTS_MIN = 100


def summed(outcomes):
    """One line for all rounds of a topology."""
    made = sum((Counter(outcome.made) for outcome in outcomes), Counter())
    return {
        "topology": outcomes[0].topology,
        "modes": sorted({outcome.mode for outcome in outcomes}),
        "rounds": len(outcomes),
        "seconds": round(sum(outcome.seconds for outcome in outcomes)),
        "faults": sum(made.values()),
        "made": dict(sorted(made.items())),
        "refused": dict(sum((Counter(outcome.refused) for outcome in outcomes), Counter())),
        "grants": sum(outcome.grants for outcome in outcomes),
        "told": dict(sum((Counter(outcome.told) for outcome in outcomes), Counter())),
        "wrong": [f"{outcome.seed} ({outcome.mode}): {text}" for outcome in outcomes for text in outcome.wrong],
    }


def too_little(line):
    """The reason why a run of a topology proves nothing."""
    found = []
    if line["faults"] < FAULTS_MIN:
        found.append(f"only {line['faults']} faults")
    if line["grants"] < GRANTS_MIN:
        found.append(f"only {line['grants']} grants")
    return found


def is_good(lines):
    """Returns whether enough was done, and nothing was wrong."""
    return not any(line["wrong"] or too_little(line) for line in lines)


def as_json(run):
    """The report for other programs."""
    return json.dumps(run, indent=1)


def as_markdown(run):
    """The report for people: the runs, and a row for each topology."""
    rows = ["| topology | modes | rounds | seconds | faults | grants | wrong |", "|---|---|---|---|---|---|---|"]
    for line in run["topologies"]:
        words = [line[name] for name in ("rounds", "seconds", "faults", "grants")]
        words = [line["topology"], "; ".join(line["modes"]), *words, len(line["wrong"])]
        rows.append("| " + " | ".join(map(str, words)) + " |")
    kinds = sum((Counter(line["made"]) for line in run["topologies"]), Counter())
    faults = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    head = f"{run['began']}, {run['server']} {run['version']}, seed {run['seed']}: `{run['command']}`"
    return "\n".join([head, "", *rows, "", f"Faults: {faults}.", ""])


def shortened(text, size=240):
    """Its beginning and its end: a file has all of it."""
    return text if len(text) <= 2 * size else f"{text[:size]} ... {text[-size:]}"


def as_text(line):
    """The report of one topology for the user who looks on."""
    made = ", ".join(f"{kind} {count}" for kind, count in line["made"].items())
    verdict = "; ".join([*too_little(line), *map(shortened, line["wrong"][:5])]) or "nothing wrong"
    counts = f"{line['rounds']} rounds in {line['seconds']} s, {line['faults']} faults, {line['grants']} grants"
    lines = [f"{line['topology']}: {counts}: {verdict}", f"made: {made}", f"refused: {line['refused']}"]
    return "\n    ".join([*lines, f"clients were told: {line['told']}"])
