"""The report of a run: where, with what, every figure with its ratio, and the targets."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from .measure import OURS, Figure, Ratio
from .results import baseline, blocks, compared
from .servers import ROOT
from .targets import ELSE, FAILS, HOLDS, TARGETS, UNDECIDED, judged

SCENARIO_TITLES = {
    "instructions": "Instructions of the server per acquire and release",
    "breakdown": "Where the instructions of our pair go",
    "uncontended": "Uncontended acquire and release",
    "handover": "Hand-over under contention",
    "confirm": "Grants that replicas confirm",
    "memory": "Memory per held lock",
    "scale": "Scale: an unrelated PING while much happens",
    "others": "The cost to others",
    "clients": "The client libraries",
    "tool": "A command under a lock",
    "rivals": "Side by side with what people use",
}


def number(value: float) -> str:
    """Four digits that count."""
    if value == 0 or not 1e-3 <= abs(value) < 1e12:
        return f"{value:.3g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def spread(figure: Figure) -> str:
    if figure.low == figure.high:
        return number(figure.median)
    return f"{number(figure.median)} [{number(figure.low)} - {number(figure.high)}]"


def ratio(seen: Ratio) -> str:
    if f"{seen.low:.3f}" == f"{seen.high:.3f}":
        return f"{seen.median:.3f}"
    return f"{seen.median:.3f} [{seen.low:.3f} - {seen.high:.3f}]"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changed = " with changes that are not committed" if git("status", "--porcelain", "--untracked-files=no") else ""
    return f"{git('rev-parse', '--short=12', 'HEAD') or 'unknown'}{changed}"


def memory_gib() -> float:
    first = Path("/proc/meminfo").read_text().splitlines()[0]
    return int(first.split()[1]) / (1 << 20)


def machine(cores: int) -> dict[str, str]:
    return {
        "processor": f"{cpu_model()}, {cores} cores",
        "memory": f"{memory_gib():.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
    }


def head(facts: Mapping[str, str]) -> str:
    return table(("", ""), facts.items())


def compared_with(figure: Figure, block: list[Figure]) -> str:
    other = baseline(figure, block)
    if other is None or (other.median == 0 or figure.median == 0):
        return ""
    if 0 in (*figure.values, *other.values):
        return ""
    told = ratio(compared(figure, other))
    return told if other.server == figure.server else f"{told} ({other.server})"


def section(scenario: str, metric: str, block: list[Figure]) -> str:
    has_ours = any(figure.subject == OURS for figure in block)
    direction = "more is better" if block[0].is_more_better else "less is better"
    against = f"{OURS} / it" if has_ours else "it / the first"
    rows = [(f.server, f.setting, f.subject, spread(f), compared_with(f, block)) for f in block]
    title = f"### {metric}\n\n{direction[0].upper()}{direction[1:]}."
    return f"{title}\n\n{table(('server', 'setting', 'subject', 'median [low - high]', against), rows)}"


def target_rows(figures: list[Figure]) -> list[tuple[str, ...]]:
    rows = []
    for target in TARGETS:
        found = list(judged(target, figures))
        if not found:
            bounds = ", ".join(f"{name or 'else'}: {target.told_bound(name)}" for name in target.bounds)
            bounds = target.told_bound(ELSE) if len(target.bounds) == 1 else bounds
            rows.append((target.what, "", "", "not measured", bounds, ""))
        for one in found:
            seen = ratio(one.seen) if target.is_ratio else f"{number(one.seen.median)} (up to {number(one.seen.high)})"
            where = f"{one.setting}; {one.subject}" if one.subject else one.setting
            rows.append((target.what, one.server, where, seen, target.told_bound(one.server), one.verdict))
    return rows


def targets(figures: list[Figure]) -> str:
    columns = ("target", "server", "where", "median [low - high]", "bound", "")
    return f"## Targets\n\n{table(columns, target_rows(figures))}"


def unmet(figures: list[Figure]) -> str:
    """The targets that do not hold or are not decided, and how many hold."""
    rows = target_rows(figures)
    missed = [row for row in rows if row[-1] != HOLDS]
    if not missed:
        return f"All {len(rows)} hold."
    count = {verdict: sum(row[-1] == verdict for row in rows) for verdict in (HOLDS, FAILS, UNDECIDED)}
    columns = ("target", "server", "where", "median [low - high]", "bound", "")
    told = (
        f"Of {len(rows)} targets {count[HOLDS]} hold and {count[FAILS]} do not. {count[UNDECIDED]} are undecided: the\n"
        "median of so few rounds could as well lie on the other side of the bound."
    )
    return f"{told}\n\n{table(columns, missed)}"


HOW_TO_READ = (
    "Medians of the rounds, with the lowest and the highest. The subjects took turns; each ratio is the median of the\n"
    "ratios within a round, with their lowest and highest."
)


def report(figures: list[Figure], facts: Mapping[str, str]) -> str:
    parts = ["# What it costs", head(facts), HOW_TO_READ, targets(figures)]
    last = None
    for scenario, metric, block in blocks(figures):
        if scenario != last:
            parts.append(f"## {SCENARIO_TITLES.get(scenario, scenario)}")
            last = scenario
        parts.append(section(scenario, metric, block))
    return "\n\n".join(parts) + "\n"
