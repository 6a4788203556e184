"""The arithmetic of the benchmarks: what is compared with what, which way, and when a target holds."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benches"))

from bench import report, targets  # noqa: E402  (its folder is known only now)
from bench.measure import OURS, Figure, in_turns  # noqa: E402
from bench.results import baseline, compared, read_csv, write_csv  # noqa: E402
from bench.targets import TARGETS, judged  # noqa: E402


def instructions(subject, *values, server="Redis 7.0.15", setting="pipelined by 16, no persistence"):
    return Figure("instructions", server, setting, subject, "instructions per pair", values)


def hand_overs(subject, *values, server="Redis 7.0.15"):
    return Figure("handover", server, "100 contenders, hold 0 ms", subject, "hand-overs per second", values)


def test_subjects_take_turns_in_shifting_order():
    order = []

    def once(name):
        order.append(name)
        return {"place": len(order)}

    seen = in_turns(2, {name: lambda name=name: once(name) for name in "abc"})
    assert order == ["a", "b", "c", "b", "c", "a"]
    assert seen == {"a": {"place": (1, 6)}, "b": {"place": (2, 4)}, "c": {"place": (3, 5)}}


def test_ratios_are_taken_within_a_round():
    ours, other = instructions(OURS, 1.0, 20.0, 300.0), instructions("SET NX PX + DEL", 2.0, 20.0, 100.0)
    seen = compared(other, ours)
    assert (seen.median, seen.low, seen.high) == (1.0, 0.5, 3.0)


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
    return [(one.server, one.holds) for target in TARGETS for one in judged(target, list(figures))]


@pytest.mark.parametrize(("server", "ours", "holds"), [
    ("Redis 7.0.15", 100.0, True), ("Redis 7.0.15", 101.0, False), ("Valkey 9.1.2", 91.0, False), ("Valkey 9.1.2", 90.0, True),
])
def test_a_bound_on_instructions_holds_with_fewer(server, ours, holds):
    seen = verdicts(instructions(OURS, ours, server=server), instructions("SET NX PX + DEL", 100.0, server=server))
    assert seen == [(server, holds)]


@pytest.mark.parametrize(("ours", "holds"), [(95.0, True), (85.0, False)])
def test_a_bound_on_hand_overs_holds_with_more(ours, holds):
    assert verdicts(hand_overs(OURS, ours), hand_overs("BLPOP token", 100.0)) == [("Redis 7.0.15", holds)]


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
