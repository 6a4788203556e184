"""The arithmetic of `make growth`: exponents, verdicts, and that each row has bounds that can fail."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benches"))

from bench.publish import filled, placed  # noqa: E402  (its folder is known only now)
from growth import plot, publish, report, run  # noqa: E402
from growth.fit import Bound, Point, exponent, judged  # noqa: E402
from growth.rows import CONSTANT, LINEAR, MANY, SHORT, Row, short  # noqa: E402

COUNTS = (1_000, 10_000, 100_000)


def points(cost, turn_ms=lambda count: 1.0, ratio=None):
    return [Point(count, cost(count), turn_ms(count), ratio) for count in COUNTS]


@pytest.mark.parametrize("power", [0, 0.5, 1, 2])
def test_the_exponent_is_that_of_the_cost(power):
    assert exponent(points(lambda count: 7 * count**power)) == pytest.approx(power, abs=1e-9)


def test_a_constant_that_is_known_hides_no_growth():
    seen = points(lambda count: 1e6 + count)
    assert exponent(seen) < 0.05
    assert exponent(seen, floor=1e6) == pytest.approx(1)


def test_a_cost_that_is_the_constant_alone_does_not_grow():
    assert exponent(points(lambda count: 100.0), floor=100.0) == 0


def test_noise_of_some_per_cent_moves_an_exponent_little():
    noise = dict(zip(COUNTS, (1.1, 0.9, 1.1), strict=True))
    assert exponent(points(lambda count: count * noise[count])) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("power", "bound", "holds"), [(0, CONSTANT, True), (1, CONSTANT, False), (1, LINEAR, True), (2, LINEAR, False)])
def test_a_row_fails_that_grows_faster_than_it_may(power, bound, holds):
    verdict = judged(Row("made up", {"exponent": bound}), points(lambda count: count**power))
    assert (verdict.faults == []) == holds, verdict
    assert not verdict.unmet


@pytest.mark.parametrize(("turn_ms", "fails"), [(4.9, False), (5.1, True)])
def test_one_turn_that_is_too_long_fails_at_whatever_size(turn_ms, fails):
    longest = {1_000: turn_ms, 10_000: 1.0, 100_000: 2.0}
    verdict = judged(Row("made up", {"turn": Bound(5)}), points(lambda count: 1.0, longest.get))
    assert bool(verdict.faults) == fails


def test_a_ratio_that_is_too_high_fails():
    row = Row("made up", {"ratio": Bound(1.2)})
    assert judged(row, points(lambda count: 1.0, ratio=1.3)).faults
    assert not judged(row, points(lambda count: 1.0, ratio=1.1)).faults


def test_the_cost_of_the_most_has_a_bound_of_its_own():
    row = Row("made up", {"cost": Bound(50_000)})
    assert judged(row, points(lambda count: count)).faults
    assert not judged(row, points(lambda count: count / 10)).faults


def test_a_figure_within_its_bound_and_above_its_goal_is_reported_with_its_reason():
    row = Row("made up", {"turn": Bound(50, 5, "because")})
    verdict = judged(row, points(lambda count: 1.0, lambda count: 20.0))
    assert not verdict.faults
    assert len(verdict.unmet) == 1 and "because" in verdict.unmet[0]


def test_a_bound_above_what_is_wanted_needs_a_reason():
    with pytest.raises(ValueError, match="needs a reason"):
        Bound(50, 5)


def test_every_row_has_a_name_of_its_own_and_bounds():
    count = sum(len(scene.commands) for scene in run.SCENES) + len(run.EVENTS)
    rows = run.rows()
    assert len(rows) == count > 100
    for key, (row, _, sizes) in rows.items():
        assert row.bounds and "exponent" in row.bounds, key
        assert all(bound.of(True).limit >= bound.limit for bound in row.bounds.values()), key
        assert list(sizes) == sorted(set(sizes)) and len(sizes) >= 3, key


def test_the_short_form_goes_up_to_thirty_thousand():
    assert short(MANY) == short(MANY[:3]) == SHORT
    assert short((1, 4, 16, 64)) == (1, 4, 16)
    assert max(job.count for job in run.jobs(run.rows(), True)) == 30_000


def names(job):
    """The rows that a job measures."""
    if job.kind == "event":
        return {run.key_of(run.EVENTS[job.number])}
    return {f"{what} | {run.SCENES[job.number].many}" for what in job.only}


def test_valkey_may_have_bounds_of_its_own():
    bound = Bound(1.2, on_valkey=3)
    assert (bound.of(False).limit, bound.of(True).limit, Bound(5).of(True).limit) == (1.2, 3, 5)


def test_all_rows_are_measured_at_all_sizes():
    wanted = run.rows()
    todo = run.jobs(wanted, False)
    for key, (row, unit, sizes) in wanted.items():
        kinds = ("counts", "turns") if unit == run.INSTRUCTIONS else ("event",)
        for kind in kinds:
            there = {
                job.count
                for job in todo
                if job.kind == kind and key in names(job)
            }
            assert there >= set(sizes), key


def test_what_is_measured_again_counts_by_its_lower_figures():
    assert run.lower(Point(1, 5.0, 3.0, None), Point(1, 6.0, 2.0, None)) == Point(1, 5.0, 2.0, None)


def result():
    """A made-up run of all rows, each linear."""
    rows = []
    for key, (row, unit, sizes) in run.rows().items():
        seen = [Point(count, 3.0 * count, 0.01 * count, None) for count in sizes]
        bounds = {name: [bound.limit, bound.goal, bound.why] for name, bound in row.bounds.items()}
        verdict = judged(row, seen)
        rows.append({"row": key, "unit": unit, "bounds": bounds, "points": [vars(p) for p in seen], "verdict": vars(verdict)})
    return {"facts": {"measured": "Redis 7.0.15", "date": "today", "took": "1 s"}, "rows": rows}


def test_the_report_marks_what_is_above_its_bound():
    text = report.told(result())
    (line,) = [line for line in report.tables(result()).splitlines() if line.startswith("| FLUSHALL SYNC, and of strings")]
    assert "1,000: 3,000 us" in line and "1,000,000: 3,000 ms" in line
    assert "ACQUIRE + RELEASE | locks: exponent 1, at most 0.05 is allowed" in text
    assert report.table(report.HEAD, [report.line(row) for row in result()["rows"]]).count("above its bound") > 50


def test_the_report_tells_what_is_wanted_and_why_it_is_not_so():
    unmet = result()
    unmet["rows"][0]["verdict"]["unmet"] = ["turn 15.4, 5 is wanted: because"]
    assert "| ACQUIRE + RELEASE | locks | turn 15.4 | 5 | because |" in report.reasons(unmet)


def test_the_plot_is_a_picture_for_light_and_dark():
    text = plot.svg(result())
    ElementTree.fromstring(text)
    assert "prefers-color-scheme: dark" in text
    assert all(name in text for name in plot.COSTS.values()) and all(name in text for name in plot.TURNS.values())


def test_a_place_of_the_page_is_filled_and_others_are_left():
    page = "a\n<!-- measured: growth -->\nof before\n<!-- end -->\nb\n<!-- measured: run -->\nrun\n<!-- end -->\n"
    text = placed(page, lambda name: publish.section([result()]) if name == "growth" else None)
    assert "of before" not in text and "Redis 7.0.15" in text and "<!-- measured: run -->\nrun\n" in text
    assert "\nof before\n" in filled(page, [], {"scenarios": "memory"})


def test_the_tables_are_next_to_the_page():
    tables = report.tables(result())
    assert tables in publish.whole(result())
    assert tables not in publish.section([result()])


def test_the_names_in_the_plot_keep_their_distance_and_stay_inside():
    assert plot.apart([10, 50], 15, 100) == [10, 50]
    assert plot.apart([10, 12, 13], 15, 100) == [10, 25, 40]
    assert plot.apart([10, 95, 96, 99], 15, 100) == [10, 70, 85, 100]
