"""The server's own fuzzer of payloads (integration/corrupt-dump-fuzzer), extended with locks."""

import re
import time
from pathlib import Path

from .copies import PORTS, change, copy_of
from .outcome import outcomes
from .runner import finish

LOCKS = Path(__file__).with_name("locks.tcl")
FUZZER = "integration/corrupt-dump-fuzzer"
DONE = re.compile(r"Done (\d+) cycles in (\d+) seconds")
RESTORED = re.compile(r"RESTORE: successful: (\d+), rejected: (\d+)")
TRAFFIC = re.compile(r"commands sent in traffic: (\d+), crashes during traffic: (\d+)")
LOCK_RESTORED = "Lock restored"
ENDED_BY_LOCK = "A lock ended the server"
# However slow the machine is. Of these some ten are locks that are taken in, if all types are tried; a run with
# hardly any proves nothing.
CYCLES_MIN = 60
TAKEN_MIN = 3


def prepared(source, module, into, port, seconds, only_locks):
    """A copy whose fuzzer makes locks, too, or nothing else, and sends them the commands of clients."""
    copy = copy_of(source, into, port, module)
    fuzzer = copy / "tests" / f"{FUZZER}.tcl"
    change(fuzzer, "proc generate_types {} {", "proc generate_types {} {\n    generate_locks")
    change(fuzzer, "set min_duration 10 ", f"set min_duration {seconds} ")
    change(fuzzer, "set min_cycles 10 ", f"set min_cycles {CYCLES_MIN} ")
    text = fuzzer.read_text(encoding="latin-1")
    # A type that a release knows may expire, and so may a lock; it checks the former.
    text = text.replace("assert_morethan [s expired_subkeys]", "ended_by_itself $k [s expired_subkeys]")
    head = f"set ::only_locks {int(only_locks)}\n" + LOCKS.read_text()
    fuzzer.write_text(head + text, encoding="latin-1")
    return copy


def total(log, pattern):
    """The sums of a line's two numbers, at any position."""
    rows = [(int(match[1]), int(match[2])) for match in pattern.finditer(log)]
    return sum(row[0] for row in rows), sum(row[1] for row in rows)


def figures(log):
    """The sums of the numbers that each of the fuzzer's tests printed in the end."""
    cycles, seconds = total(log, DONE)
    taken, refused = total(log, RESTORED)
    commands, crashes = total(log, TRAFFIC)
    return {
        "cycles": cycles,
        "seconds": seconds,
        "taken": taken,
        "refused": refused,
        "commands": commands,
        "crashes": crashes,
        "locks taken": log.count(LOCK_RESTORED),
        "ended by locks": log.count(ENDED_BY_LOCK),
    }


def wrong_with(told, found, only_locks):
    """The findings of a run of the fuzzer against the module."""
    wrong = [f"{name} failed" for name, counts in found.items() if counts["err"]]
    if told["locks taken"] < TAKEN_MIN:
        wrong.append("hardly any payload of a lock was taken in")
    # Some other types may end a server with an assertion if payloads are not checked first.
    if told["ended by locks"] or only_locks and (told["crashes"] or told["taken"] + told["refused"] != told["cycles"]):
        wrong.append("the server ended because of a payload of a lock")
    return wrong


def run(name, source, module, work, logs, port, seconds):
    """Locks among all types, then locks alone."""
    wrong = []
    for only_locks in (False, True):
        kind = "locks-alone" if only_locks else "all-types"
        copy = prepared(source, module, work / kind, port, seconds, only_locks)
        command = ["./runtest", "--single", FUZZER, "--clients", "1", "--verbose", "--dump-logs"]
        command += ["--baseport", str(port), "--portcount", str(PORTS)]
        path = logs / f"{kind}.log"
        began = time.monotonic()
        with open(path, "wb") as out:
            code = finish(command, copy, out)
        log = path.read_text(errors="replace")
        told = figures(log)
        print(f"== {name}: fuzzed payloads, {kind}, {time.monotonic() - began:.0f} s: {told}", flush=True)
        wrong += [f"fuzzing {kind}: {one}" for one in wrong_with(told, outcomes(log, code), only_locks)]
    return wrong
