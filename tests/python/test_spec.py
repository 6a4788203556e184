"""The checker of the specifications sees planted faults, and pages name configurations that exist.

The configurations themselves are checked by `make spec`.
"""

import re
import runpy
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = runpy.run_path(str(ROOT / "scripts" / "spec"))

END = "1500 states generated, {} distinct states found, {} states left on queue.\n"
HOLDS = "Model checking completed. No error has been found.\n" + END.format(300, 0)
STEPS = "".join(f"State {number}: <Grant of module Redlock>\n/\\ held = 1\n\n" for number in (1, 2, 3))
VIOLATED = "Error: Invariant OneHolder is violated.\nError: The behavior up to this point is:\n" + STEPS
RANDOM = "Progress: 4000 states checked.\n"


def expecting(verdict, states, **more):
    entry = {"name": "it", "theorem": "T1", "module": "Redlock", "with": {"Raises": True}}
    modules = {"Redlock": {"Raises": False, "Lease": 2}}
    return SPEC["configuration"](entry | {"verdict": verdict, "states": states} | more, modules)


RUNS = {"runs": 100, "run_steps": 40}


def each(cases):
    return pytest.mark.parametrize("case", cases.values(), ids=cases.keys())


@each(
    {
        "holds": (HOLDS, expecting("holds", 300)),
        "violated": (VIOLATED + END.format(70, 12), expecting("violated", 70, steps=2)),
        "not in random runs": (RANDOM, expecting("not violated", 4000, **RUNS)),
        "in random runs": (VIOLATED + RANDOM, expecting("violated", 0, steps=2, **RUNS)),
    }
)
def test_what_is_as_expected_is_seen_so(case):
    output, one = case
    assert SPEC["found_in"](output, one) == one.expected


@each(
    {
        "other states": (HOLDS, expecting("holds", 301)),
        "holds": (HOLDS, expecting("violated", 300, steps=2)),
        "violated": (VIOLATED + END.format(70, 12), expecting("holds", 70)),
        "fewer steps": (VIOLATED + END.format(70, 12), expecting("violated", 70, steps=3)),
        "later": (VIOLATED + END.format(71, 12), expecting("violated", 70, steps=2)),
        "not in random runs": (RANDOM, expecting("violated", 0, steps=2, **RUNS)),
        "fewer steps in random runs": (VIOLATED + RANDOM, expecting("violated", 0, steps=3, **RUNS)),
    }
)
def test_what_is_not_as_expected_is_seen(case):
    output, one = case
    assert SPEC["found_in"](output, one) != one.expected


@each(
    {
        "nothing": "",
        "states left": HOLDS.replace(" 0 states left", " 9 states left"),
        "an error": HOLDS + "Error: Something else went wrong.\n",
        "an exception": "java.lang.RuntimeException: no more memory\n" + HOLDS,
        "another invariant": VIOLATED.replace("OneHolder", "TokensRise") + END.format(70, 12),
    }
)
def test_an_output_without_a_verdict_is_refused(case):
    with pytest.raises(SPEC["Wrong"]):
        SPEC["found_in"](case, expecting("holds", 300))


@pytest.fixture
def check(monkeypatch, tmp_path):
    """Checks configurations with a model checker that always says the same."""
    checker = tmp_path / "checker"
    checker.touch()
    check = SPEC["check"]
    for name, value in {"jar": lambda: checker, "output_of": lambda one, jar: HOLDS, "CACHE": tmp_path}.items():
        monkeypatch.setitem(check.__globals__, name, value)
    return check


def test_the_run_fails_and_says_what_was_expected_and_found(check, capsys):
    assert check([expecting("holds", 300)], trusts_notes=False) == 0
    assert check([expecting("holds", 300), expecting("holds", 299)], trusts_notes=True) == 1
    assert "expected: holds, 299 states; found: holds, 300 states" in capsys.readouterr().out


def test_what_came_out_as_expected_is_checked_again_when_anything_in_it_has_changed(check, capsys, monkeypatch):
    one, module = expecting("holds", 300), SPEC["SPEC"] / f"{expecting('holds', 300).module}.tla"
    new_folder = shutil.copytree(SPEC["SPEC"], check.__globals__["CACHE"] / "changed")
    (new_folder / module.name).write_text(module.read_text() + "\n")

    def is_checked(one, trusts_notes=True):
        assert check([one], trusts_notes) == 0
        return "as before" not in capsys.readouterr().out

    assert is_checked(one) and not is_checked(one)
    assert is_checked(one, trusts_notes=False)
    assert is_checked(expecting("holds", 300, invariant="TokensRise"))
    monkeypatch.setitem(check.__globals__, "SPEC", new_folder)
    assert is_checked(one) and not is_checked(one)
    (check.__globals__["CACHE"] / "checker").write_text("another version")
    assert is_checked(one)


def test_constants_are_what_the_model_checker_reads():
    told = [SPEC["tla"](value) for value in (True, False, 3, "even awaited", ["s1", "s2"])]
    assert told == ["TRUE", "FALSE", "3", '"even awaited"', "{s1, s2}"]
    with pytest.raises(SPEC["Wrong"]):
        expecting("holds", 300, **{"with": {"Raise": True}})


def test_the_page_shows_the_configurations_as_they_are():
    assert SPEC["README"].read_text() == SPEC["page_with"](SPEC["table"]())


def test_every_theorem_has_what_holds_and_what_fails_among_the_small_ones():
    seen = {(one.theorem, one.verdict) for one in SPEC["configurations"]() if one.small}
    theorems = {one.theorem for one in SPEC["configurations"]()}
    assert theorems >= {"T1", "T2", "T3", "T4", "T5", "undo", "tokens"}
    assert seen >= {(theorem, verdict) for theorem in theorems for verdict in ("holds", "violated")}


def test_every_configuration_that_a_page_names_exists():
    text = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    named = set(re.findall(r"`spec:([\w-]+)`", text))
    assert len(named) > 20
    assert named <= {one.name for one in SPEC["configurations"]()}
