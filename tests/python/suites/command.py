"""`scripts/server-suites`: the same tests with the module and without, and the differences."""

import argparse
import shutil
import signal
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path

from . import fuzz
from .copies import CONTROL, files_of
from .outcome import REPETITIONS, Trial, failed, judged, suspects
from .runner import Runner, end_all

ROOT = Path(__file__).resolve().parents[3]
LISTED = Path(__file__).with_name("listed.toml")


def listed(name, kind):
    """The listed entries for a server: {(file, test or None): reason}."""
    entries = tomllib.loads(LISTED.read_text()).get(kind, [])
    return {
        (entry["file"], entry.get("test")): entry["reason"] for entry in entries if name in entry["servers"]
    }


def arguments():
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(prog="scripts/server-suites")
    parser.add_argument("server", nargs="+", help="NAME=DIRECTORY of a source with its programs built")
    parser.add_argument("--module", required=True, type=Path)
    parser.add_argument("--files", nargs="*", help="only these files of tests, such as unit/expire")
    parser.add_argument("--slots", type=int, default=4, help="how many files run at a time")
    # The buses of clusters are 10000 above, and should be below the ports that systems give out by themselves.
    parser.add_argument("--port", type=int, default=20111, help="the first of 450 for each that runs at a time")
    parser.add_argument("--fuzz-seconds", type=int, default=60, help="of each of four kinds of fuzzing; 0: none")
    parser.add_argument("--only-fuzz", action="store_true", help="no tests but the fuzzing")
    return parser.parse_args()


def compare(name, runner, files):
    """Runs the files both ways and the differing ones again, and returns the faults."""
    began = time.monotonic()
    runs = runner.run([(file, side) for file in files for side in ("without", "with")])
    found = {(run.file, run.side): run.found for run in runs}
    trials = [
        Trial(file, test, before)
        for file in files
        for test, before in suspects(found[file, "without"], found[file, "with"]).items()
    ]
    # A test that failed without the module, too, differs by chance at most.
    again = sorted({trial.file for trial in trials if not trial.failures["without"]})
    if again:
        print(f"== {name}: again, as they failed with the module alone: {' '.join(again)}", flush=True)
    jobs = [(file, side) for _ in range(REPETITIONS) for file in again for side in ("without", "with")]
    for run in runner.run(jobs):
        for trial in trials:
            if trial.file == run.file:
                trial.add(run.side, run.found, most(found, run.file))
    unlisted, stale = judged(trials, [(CONTROL, "no module is loaded"), *listed(name, "differs")], files)
    report(name, found, trials, time.monotonic() - began)
    return [f"differs: {one}" for one in unlisted] + [f"is listed, but does not differ: {one}" for one in stale]


def most(found, file):
    """The highest number of times that each test of a file passed."""
    without, with_module = found[file, "without"], found[file, "with"]
    return {name: without.get(name, Counter()) | with_module.get(name, Counter()) for name in {*without, *with_module}}


def report(name, found, trials, seconds):
    """Prints figures, and each test that did not do the same in both ways."""
    for side in ("without", "with"):
        total = Counter()
        for (_, its_side), tests in found.items():
            if its_side == side:
                for counts in tests.values():
                    total.update(counts)
        figures = ", ".join(f"{total[status]} {status}" for status in ("ok", "err", "ignore", "skip"))
        print(f"== {name}, {side} the module: {figures}")
    print(f"== {name}: {len(found) // 2} files, {seconds:.0f} s")
    for (file, side), tests in sorted(found.items()):
        if side == "without":
            for test in sorted(tests):
                if failed(tests, test, {}):
                    print(f"   fails without the module: {file}: {test}")
    for trial in trials:
        print(f"   {trial.verdict}: {trial}")


def fresh(path):
    """The folder, empty."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def suite(name, source, options, work):
    """All tests of a server; returns the faults."""
    logs = ROOT / "target" / "suites" / name
    module = options.module.resolve()
    skipped = {file: reason for (file, _), reason in listed(name, "skipped").items()}
    files = [CONTROL, *(options.files or [file for file in files_of(source) if file not in skipped])]
    wrong = []
    if not options.only_fuzz:
        print(f"== {name}: {len(files)} files of tests, {len(skipped)} skipped, logs in {logs}", flush=True)
        runner = Runner(source, module, work / name, fresh(logs / "tests"), options.slots, options.port)
        wrong += compare(name, runner, files)
    if options.fuzz_seconds:
        copies, logs, seconds = work / f"{name}f", fresh(logs / "fuzz"), options.fuzz_seconds
        wrong += fuzz.run(name, source, module, copies, logs, options.port, seconds)
    return [f"{name}: {one}" for one in wrong]


def main():
    """Runs everything, and fails if anything is wrong."""
    options = arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_all)
    wrong = []
    # Sockets have short names, so their folders must have them.
    with tempfile.TemporaryDirectory(prefix="suites-", dir="/tmp") as work:
        for server in options.server:
            name, source = server.split("=", 1)
            wrong += suite(name, Path(source), options, Path(work))
    for one in wrong:
        print(f"WRONG: {one}")
    print(f"== {'failed' if wrong else 'the same result with the module as without'}")
    return 1 if wrong else 0
