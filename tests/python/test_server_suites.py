"""The comparison of the servers' own tests with the module and without sees the faults that it should.

The comparison itself takes an hour or so: scripts/server-suites.
"""

import tomllib
from collections import Counter

from suites.command import LISTED
from suites.fuzz import figures, wrong_with
from suites.outcome import WHOLE_FILE, Trial, judged, outcomes, outcomes_of_group, suspects

LOG = """
[ready]: 4711
Testing unit/expire
[ok]: EXPIRE - set timeouts multiple times (5 ms)
[ok]: PEXPIRE with a big value (0 ms)
[ok]: PEXPIRE with a big value (1 ms)
[ok]: seed 1234567 of a test with (brackets) (1 ms)
[err]: TTL returns time to live in seconds in tests/unit/expire.tcl
Expected '1' to be equal to '2' (context: type eval line 3 cmd {assert_equal 1 2})
[ignore]: SETRANGE with huge ranges: large memory flag not provided
[skip]: what nobody wants
*** [err]: TTL returns time to live in seconds in tests/unit/expire.tcl
"""


def test_what_a_run_says_is_read():
    assert outcomes(LOG, 1) == {
        "EXPIRE - set timeouts multiple times": Counter(ok=1),
        "PEXPIRE with a big value": Counter(ok=2),
        "seed N of a test with (brackets)": Counter(ok=1),
        "TTL returns time to live in seconds": Counter(err=1),
        "SETRANGE with huge ranges": Counter(ignore=1),
        "what nobody wants": Counter(skip=1),
    }


def test_a_run_that_ends_otherwise_has_failed_as_a_whole():
    assert outcomes("[exception]: Executing test client: I/O error", 1) == {WHOLE_FILE: Counter(err=1)}
    assert outcomes("[TIMEOUT]: the file took too long", 1) == {WHOLE_FILE: Counter(err=1)}
    assert outcomes("[err]: ess exited abnormally\nchild process exited abnormally", 1) == {WHOLE_FILE: Counter(err=1)}
    assert outcomes("[ok]: something (1 ms)", 1)[WHOLE_FILE] == Counter(err=1)
    assert WHOLE_FILE not in outcomes("[ok]: something (1 ms)", 0)


def test_what_a_run_of_a_group_says_is_read():
    log = (
        "Starting redis #0 at port 30000\nTesting unit: 00-base.tcl\n10:00:00> Cluster is up: OK\n"
        "10:00:01> Node #7 works: waiting...\nstill.. OK\nTesting unit: 01-more.tcl\n10:00:02> Cluster is up: OK\n"
        "10:00:03> It fails: FAILED: expected OK (context)\n(Jumping to next unit after error)\nCleaning up...\n"
    )
    assert outcomes_of_group(log, 1) == {
        "00-base.tcl: Cluster is up": Counter(ok=1),
        "00-base.tcl: Node N works": Counter(ok=1),
        "01-more.tcl: Cluster is up": Counter(ok=1),
        "01-more.tcl: It fails": Counter(err=1),
    }
    assert outcomes_of_group("Problems starting redis", 1) == {WHOLE_FILE: Counter(err=1)}


def test_a_test_is_suspected_if_it_failed_or_was_not_reached_with_the_module():
    without = {"a": Counter(ok=1), "b": Counter(ok=2), "c": Counter(ok=1), "d": Counter(err=1)}
    assert suspects(without, without) == {"d": True}
    without.pop("d")
    assert suspects(without, without) == {}
    assert suspects(without, {**without, "a": Counter(err=1)}) == {"a": False}
    assert suspects(without, {**without, "b": Counter(ok=1)}) == {"b": False}
    assert suspects(without, {**without, "b": Counter(ok=1, err=1)}) == {"b": False}
    assert suspects(without, {name: without[name] for name in "ab"}) == {"c": False}
    assert suspects(without, {**without, "c": Counter(ignore=1)}) == {"c": False}
    assert suspects({**without, "c": Counter(err=1)}, without) == {}
    assert suspects(without, {**without, WHOLE_FILE: Counter(err=1)}) == {WHOLE_FILE: False}
    # The number of failovers to wait for is chance; that there was one is not.
    loop = {"Wait failover by N with old N": Counter(ok=9)}
    assert suspects(loop, {"Wait failover by N with old N": Counter(ok=2)}) == {}
    assert suspects(loop, {}) == {"Wait failover by N with old N": False}
    # A test that neither run reached is suspected in neither: the failure that kept them from it is.
    assert suspects({"a": Counter(err=1)}, {"a": Counter(err=1)}) == {"a": True}


def trial(name, with_module, without):
    """A test with the outcomes of its repetitions, '.' or 'F' each."""
    made = Trial("unit/expire", name, failed_without=False)
    before = {name: Counter(ok=1)}
    for side, runs in (("with", with_module), ("without", without)):
        for run in runs:
            made.add(side, {name: Counter(err=1) if run == "F" else Counter(ok=1)}, before)
    return made


def test_chance_is_distinguished_from_cause():
    for with_module, without in (("FFF", "..."), ("F..", "..."), ("FFF", "F.F")):
        assert trial("a", with_module, without).verdict == "differs", (with_module, without)
    for with_module, without in (("...", "..."), (".F.", ".F."), ("FFF", "FFF")):
        assert trial("a", with_module, without).verdict == "fails at times", (with_module, without)
    always = Trial("unit/expire", "a", failed_without=True)
    assert always.verdict == "fails either way"


def test_what_is_listed_is_neither_more_nor_less_than_what_differs():
    differs, chance = trial("differs", "FFF", "..."), trial("chance", "...", "...")
    key, seen = ("unit/expire", "differs"), ["unit/expire"]
    assert judged([differs, chance], [key], seen) == ([], [])
    unlisted, stale = judged([differs, chance], [], seen)
    assert len(unlisted) == 1 and "4 of 4" in unlisted[0] and stale == []
    assert judged([chance], [key], seen) == ([], ["unit/expire: differs"])
    assert judged([chance], [key], ["unit/sort"]) == ([], [])


def test_every_entry_of_the_list_has_its_reason():
    for kind, entries in tomllib.loads(LISTED.read_text()).items():
        assert kind in ("skipped", "differs")
        for entry in entries:
            assert entry["servers"] and "/" in entry["file"] and len(entry["reason"]) > 20
            assert ("test" in entry) == (kind == "differs")


def fuzzed(taken, refused, crashes=0, cycles=0, more=""):
    """The findings for a run of the fuzzer with locks alone that ended so."""
    log = (
        "Lock restored\n" * taken
        + f"Done {cycles or taken + refused} cycles in 10 seconds.\n"
        + f"RESTORE: successful: {taken}, rejected: {refused}\n"
        + f"Total commands sent in traffic: 60, crashes during traffic: {crashes} (0 by signal).\n"
        + more
    )
    return wrong_with(figures(log), outcomes(log, 0), only_locks=True)


def test_a_server_that_ends_while_locks_are_damaged_is_noticed():
    assert fuzzed(20, 30) == []
    assert fuzzed(2, 30) != []
    assert fuzzed(20, 30, crashes=1) != []
    assert fuzzed(20, 30, cycles=51) != []
    assert fuzzed(20, 30, more="[err]: Fuzzer corrupt restore payloads in tests/x.tcl\n") != []
