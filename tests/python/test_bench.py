"""The arithmetic of the benchmarks: the pairs that are compared, their direction, and the moment when a target
holds."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benches"))

from bench import publish, report, screen, targets  # noqa: E402  (its folder is known only now)
from bench.measure import OURS, Figure, Ratio, cut_of, in_turns  # noqa: E402
from bench.results import baseline, compared, read_csv, write_csv  # noqa: E402
from bench.scenarios.instructions import OUR_HOUSEKEEPING  # noqa: E402
from bench.targets import TARGETS, judged  # noqa: E402
from harness.server import MODULE  # noqa: E402


def instructions(subject, *values, server="Redis 7.0.15", setting="pipelined by 16, no persistence"):
    return Figure("instructions", server, setting, subject, "instructions per pair", values)


def hand_overs(subject, *values, server="Redis 7.0.15"):
    return Figure("handover", server, "100 contenders, hold 0 ms", subject, "hand-overs per second", values)


def test_the_module_has_a_function_of_the_name_that_is_not_counted():
    """Callgrind says nothing of a name that is not there, and counts all. Without such a name, the cost of an acquire
    grew with waiters, but only where the cron came in between."""
    symbols = subprocess.run(["nm", "--demangle", MODULE], check=True, capture_output=True, text=True).stdout
    assert f" {OUR_HOUSEKEEPING}" in symbols


def test_no_subject_is_measured_before_another_one_more_often_than_after_it():
    measured = []

    def once(name):
        measured.append(name)
        return {"place": len(measured)}

    names, rounds = list("abcd"), 8
    seen = in_turns(rounds, {name: lambda name=name: once(name) for name in names})
    order = [measured[start : start + len(names)] for start in range(0, len(measured), len(names))]
    assert all(sorted(each) == names for each in order)
    for first, second in itertools.permutations(names, 2):
        assert sum(each.index(first) < each.index(second) for each in order) == rounds / 2, (first, second)
        assert sum(each.index(second) == each.index(first) + 1 for each in order) < rounds / 2, "always neighbours"
    assert seen["a"]["place"] == tuple(len(names) * at + each.index("a") + 1 for at, each in enumerate(order))


def test_ratios_are_taken_within_a_round():
    ours, other = instructions(OURS, 1.0, 20.0, 300.0), instructions("SET NX PX + DEL", 2.0, 20.0, 100.0)
    seen = compared(other, ours)
    assert (seen.median, seen.low, seen.high) == (1.0, 0.5, 3.0)


def test_a_peer_that_served_no_contender_in_a_round_is_compared_all_the_same():
    ours, other = hand_overs(OURS, 10.0, 30.0, 50.0), hand_overs("node-redlock", 5.0, 10.0, 0.0)
    seen = compared(other, ours)
    assert (seen.median, seen.low) == (3.0, 2.0) and "inf" in report.ratio(seen)


def test_figures_of_different_rounds_are_not_compared():
    ours, other = instructions(OURS, 1.0, 2.0), instructions("SET NX PX + DEL", 1.0)
    assert baseline(other, [ours, other]) is None
    with pytest.raises(ValueError):
        ours.over(other)


def test_the_baseline_is_ours_on_the_same_server_or_else_on_another():
    ours = [hand_overs(OURS, 1.0, server=server) for server in ("Redis 7.0.15", "Valkey 9.1.2")]
    here, elsewhere = hand_overs("BLPOP token", 1.0, server="Valkey 9.1.2"), hand_overs("GET_LOCK", 1.0, server="MariaDB 11")
    block = [*ours, here, elsewhere]
    assert baseline(here, block) is ours[1]
    assert baseline(elsewhere, block) is ours[0]
    assert baseline(ours[1], block) is None


def verdicts(*figures):
    return [(one.server, one.verdict == targets.HOLDS) for target in TARGETS for one in judged(target, list(figures))]


@pytest.mark.parametrize(("server", "ours", "holds"), [
    ("Redis 7.0.15", 100.0, True), ("Redis 7.0.15", 101.0, False), ("Valkey 9.1.2", 91.0, False), ("Valkey 9.1.2", 90.0, True),
])
def test_a_bound_on_instructions_holds_with_fewer(server, ours, holds):
    seen = verdicts(instructions(OURS, ours, server=server), instructions("SET NX PX + DEL", 100.0, server=server))
    assert seen == [(server, holds)]


@pytest.mark.parametrize(("ours", "holds"), [(95.0, True), (85.0, False)])
def test_a_bound_on_hand_overs_holds_with_more(ours, holds):
    assert verdicts(hand_overs(OURS, ours), hand_overs("BLPOP token", 100.0)) == [("Redis 7.0.15", holds)]


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [((95, 96, 97, 98, 99), "holds"), ((89, 96, 97, 98, 99), "undecided"), ((80, 81, 82, 83, 91), "undecided"), ((80, 81, 82, 83, 89), "does not hold")],
)
def test_a_bound_is_decided_where_all_of_five_rounds_are_on_one_side(ours, verdict):
    figures = [hand_overs(OURS, *ours), hand_overs("BLPOP token", *[100] * 5)]
    assert [one.verdict for target in TARGETS for one in judged(target, figures)] == [verdict]


def test_the_interval_of_the_median_leaves_out_rounds_that_chance_explains():
    """Three of 14 at each end; by the binomial distribution 1 in 17 medians lies outside."""
    assert [cut_of(rounds) for rounds in (1, 5, 8, 9, 14)] == [0, 0, 0, 1, 3]
    seen = Ratio.of([10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14])
    assert (seen.median, seen.low, seen.high, seen.surely) == (7.5, 1, 14, (4, 11))
    assert seen.inverse().surely == (1 / 11, 1 / 4)


def test_a_peer_on_a_server_of_its_own_is_judged_too():
    assert verdicts(hand_overs(OURS, 99.0), hand_overs("GET_LOCK", 100.0, server="MariaDB 11")) == [("Redis 7.0.15", False)]


def test_the_module_at_rest_is_judged_by_the_server_without_it():
    figures = [
        Figure("others", "Redis 7.0.15", "SET + GET", subject, "instructions per pair", (value,))
        for subject, value in (("without the module", 100.0), ("module loaded, idle", 102.0))
    ]
    assert verdicts(*figures) == [("Redis 7.0.15", False)]


def test_what_was_not_measured_is_said_to_be_so():
    text = report.report([], {"date": "today"})
    assert text.count("not measured") == len(TARGETS)
    assert "holds" not in text


def test_every_bound_has_a_fallback():
    assert all(targets.ELSE in target.bounds for target in TARGETS)


def test_figures_come_back_from_the_file(tmp_path):
    figures = [instructions(OURS, 1.5, 2.5, 3.5), hand_overs("GET_LOCK", 4.0)]
    write_csv(tmp_path / "figures.csv", figures)
    assert read_csv(tmp_path / "figures.csv") == figures


@pytest.mark.parametrize(("option", "accepted"), [("--only=foo", "uncontended"), ("--servers=foo", "redis-7.0"), ("--rounds=0", "1 to 100")])
def test_a_bad_option_is_answered_with_the_accepted_ones(option, accepted):
    done = subprocess.run([sys.executable, "-m", "bench.options", option], cwd=ROOT / "benches", capture_output=True, text=True)
    assert done.returncode == 2
    assert accepted in done.stderr


def measured_for(panel):
    """A figure of ours and of one other for each column of a table."""
    other = list(panel.subjects)[1]
    for column in panel.columns:
        for server, subject, value in (("Redis 7.0.15", OURS, 7.0), ("Redis 7.0.15", other, 9.0), ("Redis 8.6.3", other, 8.0)):
            yield Figure(column.scenario, server, column.setting, subject, column.metric, (value,))


@pytest.mark.parametrize("panel", (*screen.PANELS, *screen.RIVALS), ids=lambda panel: f"{panel.columns[0].scenario}, {panel.columns[0].setting}")
def test_a_table_of_the_first_screen_shows_ours_next_to_the_others_of_the_same_server(panel):
    text = screen.panel(panel, list(measured_for(panel)))
    ours, other = list(panel.subjects.values())[:2]
    assert f"| {ours} |" + " 7 |" * len(panel.columns) in text
    assert f"| {other} |" + " 9 |" * len(panel.columns) in text
    told = {subject for subject, _ in panel.instead} - set(list(panel.subjects)[:2])
    assert len(text.splitlines()) == 2 + 2 + 2 + len(told), "a peer that was not measured, and of which nothing is told, has no row"


def test_a_table_of_rivals_says_why_a_figure_is_missing():
    go, java, *_ = screen.RIVALS
    text = screen.panel(go, list(measured_for(go)))
    assert "| rueidislock | not measured: " in text
    ours_alone = [figure for figure in measured_for(java) if figure.subject == OURS]
    shed_lock = Figure("rivals", "Redis 7.0.15", "Java", "ShedLock", "pairs per second", (5.0,))
    rows = screen.panel(java, [*ours_alone, shed_lock]).splitlines()
    assert [row for row in rows if "ShedLock" in row] == ["| ShedLock over Redis | 5 |  |  | " + "does not wait | " * 5 + "not told | does not wait |"]


def test_a_first_screen_without_ours_is_refused():
    panel = screen.PANELS[0]
    others = [figure for figure in measured_for(panel) if figure.subject != OURS]
    with pytest.raises(RuntimeError, match="has nothing for the table"):
        screen.panel(panel, others)


@pytest.mark.parametrize(("ours", "told"), [(101.0, "0 hold and 1 do not"), (99.0, "1 hold and 0 do not")])
def test_the_page_shows_the_targets_that_do_not_hold(ours, told):
    text = report.unmet([instructions(OURS, ours), instructions("SET NX PX + DEL", 100.0)])
    assert text.startswith(f"Of {len(TARGETS)} targets {told}. 0 are undecided")
    assert ("| instructions per pair, against the cheapest | Redis 7.0.15 |" in text) == (ours > 100)


def test_a_run_of_some_scenarios_is_not_published(tmp_path):
    write_csv(tmp_path / "figures.csv", [instructions(OURS, 1.0)])
    (tmp_path / "facts.json").write_text('{"scenarios": "instructions"}')
    with pytest.raises(RuntimeError, match="measured instructions only"):
        publish.publish(tmp_path, list(publish.SCENARIOS))


def test_scenarios_of_another_run_take_the_place_of_the_same_ones_and_are_named():
    idle = [Figure("others", "Redis 7.0.15", "SET + GET", "module loaded, idle", "pairs per second", (value,)) for value in (1.0, 2.0)]
    shown, later = [instructions(OURS, 100.0), idle[0]], {"date": "2026-01-02", "commit": "abc", "scenarios": "others"}
    figures, facts = publish.put_in(shown, {"date": "2026-01-01"}, [idle[1]], later, ["others"])
    assert figures == [idle[1], instructions(OURS, 100.0)], "in the order of the scenarios"
    assert facts == {"date": "2026-01-01", publish.APART: "others: 2026-01-02, at abc"}
    figures, facts = publish.put_in(figures, facts, [], {"date": "2026-01-03", "commit": "def"}, ["tool"])
    assert facts[publish.APART] == "others: 2026-01-02, at abc; tool: 2026-01-03, at def"
    assert publish.put_in(figures, facts, idle[:1], later, ["others"])[1][publish.APART] == "tool: 2026-01-03, at def; others: 2026-01-02, at abc"
    told = publish.put_in([], {"with": "Go 1.25, Node 20"}, [], later | {"with": "Go 1.25, Java 17"}, ["others"])[1]
    assert told["with"] == "Go 1.25, Node 20, Java 17"
    page = f"{publish.MARK.format('run')}\n\n{report.head(facts)}\n\n{publish.END}\n"
    assert publish.facts_of(page) == facts


def test_each_place_of_the_page_has_a_text():
    named = set(publish.PLACE.findall(publish.PAGE.read_text()))
    assert {name for _, name, _ in named} == {"screen", "rivals", "run", "unmet", publish.GROWTH}
