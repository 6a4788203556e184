"""Private copies of a server's source, in which its own tests run at the same time."""

import shutil
import subprocess
from pathlib import Path

CONFIGURATIONS = ("default.conf", "minimal.conf")
# A file of tests of our own, which must differ.
CONTROL = "unit/no-module-is-loaded"
# The folders of tests of groups of servers, which have a script of their own each.
GROUPS = {"cluster/tests/": "./runtest-cluster", "sentinel/tests/": "./runtest-sentinel"}
LAST_LINE = 'puts $cfg "logfile log.txt"'
PORTS = 400  # of a copy


def is_redis(source):
    """Returns whether it is Redis, and not Valkey."""
    return (source / "redis.conf").exists()


def copy_of(source, into, port, module=None):
    """A tree that shares all but the tests with the source; with a module, every server loads it.

    Its groups of servers, whose script has no option for it, take their ports from `port` on.
    """
    into.mkdir(parents=True)
    for entry in source.iterdir():
        if entry.name != "tests":
            (into / entry.name).symlink_to(entry)
    shutil.copytree(source / "tests", into / "tests", symlinks=True, ignore=shutil.ignore_patterns("tmp"))
    for folder in ("tmp", "cluster/tmp", "sentinel/tmp"):
        (into / "tests" / folder).mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("control.tcl"), into / "tests" / f"{CONTROL}.tcl")
    groups = into / "tests" / "instances.tcl"
    for kind, first in (("sentinel", port + PORTS // 2), ("redis" if is_redis(source) else "valkey", port)):
        before = {"sentinel": 20000}.get(kind, 30000)
        change(groups, f"set ::{kind}_base_port {before}", f"set ::{kind}_base_port {first}")
    if module:
        load = f'if {{$type ne "sentinel"}} {{ puts $cfg "loadmodule {module}" }}'
        change(groups, LAST_LINE, f"{LAST_LINE}\n        {load}")
        for name in CONFIGURATIONS:
            with open(into / "tests" / "assets" / name, "a") as configuration:
                configuration.write(f"\nloadmodule {module}\n")
    return into


def change(path: Path, old, new):
    """Replaces a text that must be there exactly once, or the source is not the known one."""
    text = path.read_text(encoding="latin-1")
    if text.count(old) != 1:
        raise SystemExit(f"server-suites: {path} has {text.count(old)} times, not once: {old}")
    path.write_text(text.replace(old, new), encoding="latin-1")


def files_of(source):
    """The files that the suite would run, without those that try modules: they load other ones instead."""
    told = subprocess.run(["./runtest", "--list-tests"], cwd=source, capture_output=True, text=True, check=True)
    names = [name for name in told.stdout.split() if "/" in name]
    for folder in GROUPS:
        names += [f"{folder}{path.stem}" for path in (source / "tests" / folder).glob("*.tcl")]
    return sorted(name for name in names if not name.startswith("unit/moduleapi/"))


def script_for(file):
    """The script that runs a file of tests of groups of servers; nothing for other files."""
    return next((script for folder, script in GROUPS.items() if file.startswith(folder)), None)
