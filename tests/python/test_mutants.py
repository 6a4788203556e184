"""The mutation testing of the core and the engine: its builds, its tests, and the mutants that it lets pass."""

import dataclasses
import re
from pathlib import Path

from mutants import results, tests
from mutants.build import LIBRARY
from mutants.command import chosen, judge
from mutants.listing import PARTS, Mutant, Text, short
from mutants.schemata import Schemata

SOURCE = """/// A lock's { brace.
pub const fn left(&self, now: u64) -> u64 {
    self.end - now
}
fn all(&self) -> impl Iterator<Item = u64> {
    self.ends.iter().copied()
}
const MAX: u64 = 1 << 4;
"""
FILE = "src/lock/lease.rs"
MINUS = Mutant("lease.rs: replace - with +", FILE, 3, ((1, 1), (4, 2)), ((3, 14), (3, 15)), "+")
EMPTY = Mutant("lease.rs: replace all", FILE, 6, ((5, 1), (7, 2)), ((6, 5), (6, 30)), "::std::iter::empty()")
CONSTANT = Mutant("lease.rs: replace << with >>", FILE, 8, None, ((8, 20), (8, 22)), ">>")
MUTANTS = [MINUS, EMPTY, CONSTANT]


def test_every_mutant_is_a_body_of_its_function():
    schemata = Schemata({FILE: SOURCE}, MUTANTS)
    text = schemata.sources[FILE]
    assert "pub fn left(&self, now: u64) -> u64 { match crate::mutant::living(0) {" in text
    assert "1 => {\n    self.end + now\n}," in text and "_ => {\n    self.end - now\n}," in text
    assert "2 => Box::new({\n    ::std::iter::empty()\n}) as Box<dyn Iterator<Item = u64> + '_>," in text
    assert schemata.alone == [CONSTANT] and "1 << 4" in text
    lines = [line for line, text in enumerate(text.splitlines(), 1) if "self.end + now" in text]
    assert [schemata.places[FILE, line] for line in lines] == [MINUS]


def test_a_function_that_constants_need_is_left_as_it_is():
    schemata = Schemata({FILE: SOURCE}, MUTANTS, kept_const={"left"})
    assert "pub const fn left(&self, now: u64) -> u64 {\n    self.end - now\n}\n" in schemata.sources[FILE]
    assert MINUS in schemata.alone


def test_a_result_holds_until_its_function_or_its_test_changes(tmp_path):
    results.Results(tmp_path, FILE).put(MINUS, SOURCE, results.KILLED, "a_lease_ends")
    kept = results.Results(tmp_path, FILE)
    assert kept.get(MINUS, SOURCE, {"a_lease_ends"})["result"] == results.KILLED
    assert kept.get(MINUS, SOURCE.replace("16", "17").replace("<< 4", "<< 5"), {"a_lease_ends"})
    assert kept.get(MINUS, SOURCE, {"another"}) is None
    assert kept.get(MINUS, SOURCE.replace("end - now", "end -  now"), {"a_lease_ends"}) is None


def test_tests_that_noticed_others_run_first_and_slow_tests_last():
    seconds = {"slow": 3.0, "quick": 0.1, "slower": 9.0, "also quick": 0.2, "known": 5.0}
    assert tests.batches(seconds, ["known", "gone"]) == [["known"], ["quick", "also quick"], ["slow"], ["slower"]]


def test_text_is_mutated_where_the_span_says():
    assert Text(SOURCE).mutated(CONSTANT).endswith("1 >> 4;\n")


def test_a_part_of_which_nothing_is_known_keeps_its_counts():
    tables = [f"<!-- counts of src/{part} -->\n{part}\n<!-- end of counts -->" for part in ("lock", "engine")]
    known = {FILE: [None], "src/engine/pump.rs": [results.KILLED, None]}
    page = results.written("\n".join(tables), known)
    assert page.startswith(tables[0]) and "| engine/pump.rs | 2 | 1 | 0 | 0 | 0 | 0 | 1 |\n| all | 2 |" in page


class Tried:
    """A run that has ended."""

    def __init__(self, found):
        self.found = found

    def known(self, mutant):
        return self.found[mutant.name]


def test_a_file_of_the_engine_is_distinguished_from_one_of_the_core():
    assert [short(f"src/{file}") for file in ("lock/confirm.rs", "engine/confirm.rs")] == ["confirm.rs", "engine/confirm.rs"]


def test_the_engine_is_asked_all_tests_at_once_and_the_core_the_quick_ones_first():
    pump = dataclasses.replace(MINUS, name="engine/pump.rs: replace - with +", file="src/engine/pump.rs")
    run = Tried({pump.name: None, MINUS.name: None, EMPTY.name: results.OPEN, CONSTANT.name: results.KILLED})
    assert chosen(run, [*MUTANTS, pump], True, (None,), False) == [MINUS]
    assert chosen(run, [*MUTANTS, pump], False, (None,), False) == [EMPTY, pump]
    assert chosen(run, [*MUTANTS, pump], True, (None,), True) == MUTANTS


def verdict(page, listed, *found):
    run = Tried(dict(zip((mutant.name for mutant in MUTANTS), found)))
    return judge(run, MUTANTS, results.reasons(listed), page, False)


def test_a_surviving_mutant_needs_a_reason_and_few_may_survive(tmp_path, monkeypatch):
    killed, survived = results.KILLED, results.SURVIVED
    row = f"| `{MINUS.name}` | nothing comes of it |\n"
    assert verdict(tmp_path, "", killed, results.LATE, killed) == 0
    assert verdict(tmp_path, "", killed, killed, results.UNVIABLE) == 0
    assert verdict(tmp_path, row, survived, killed, killed) == 1  # two thirds are too few
    monkeypatch.setattr(results, "KILLED_PERCENT_MIN", 60)
    assert verdict(tmp_path, row, survived, killed, killed) == 0
    assert verdict(tmp_path, "", survived, killed, killed) == 1


ROOT = Path(__file__).resolve().parents[2]


def code():
    """The lines of all sources that are built without a server, by file, without comments."""
    files = [path for part in PARTS for path in sorted((ROOT / part).rglob("*.rs"))]
    lines = {path: [line.split("//")[0] for line in path.read_text().splitlines()] for path in files}
    return {str(path.relative_to(ROOT)): "\n".join(each) for path, each in lines.items()}


def test_the_library_has_every_module_that_its_sources_name():
    named = {name for text in code().values() for name in re.findall(r"\bcrate::([a-z_]+)\b", text)}
    assert named <= {*re.findall(r"\bmod (\w+);", LIBRARY)}


def test_patterns_of_slow_and_seeking_tests_match_tests():
    paths = [
        "::".join([*file.removeprefix("src/").removesuffix(".rs").removesuffix("/mod").split("/"), name])
        for file, text in code().items()
        for name in re.findall(r"#\[test\]\n(?:\s*#.*\n)*\s*fn (\w+)", text)
    ]
    slow = {path for path in paths if tests.SLOW.search(path)}
    for part in ("sim::model::", "sim::generators::", "sim::group::", "sim::life::", "sim::stories::deadlocks::"):
        assert any(path.startswith(part) for path in slow), part
    assert any("::ranks_are" in path for path in slow) and any("::a_wheel_agrees" in path for path in slow)
    assert [path for path in paths if tests.SEEKING.search(path)]
