"""Private copies of a server's source, in which its own tests run beside each other."""

import shutil
import subprocess
from pathlib import Path

CONFIGURATIONS = ("default.conf", "minimal.conf")
# A file of tests of our own, which must differ.
CONTROL = "unit/no-module-is-loaded"


def copy_of(source, into, module=None):
    """A tree that shares all but the tests with the source; with a module, every server loads it."""
    into.mkdir(parents=True)
    for entry in source.iterdir():
        if entry.name != "tests":
            (into / entry.name).symlink_to(entry)
    shutil.copytree(source / "tests", into / "tests", symlinks=True, ignore=shutil.ignore_patterns("tmp"))
    (into / "tests" / "tmp").mkdir()
    shutil.copy(Path(__file__).with_name("control.tcl"), into / "tests" / f"{CONTROL}.tcl")
    if module:
        for name in CONFIGURATIONS:
            with open(into / "tests" / "assets" / name, "a") as configuration:
                configuration.write(f"\nloadmodule {module}\n")
    return into


def change(path: Path, old, new):
    """Replaces what must be there exactly once, or the source is another one than is known."""
    text = path.read_text(encoding="latin-1")
    if text.count(old) != 1:
        raise SystemExit(f"server-suites: {path} has {text.count(old)} times, not once: {old}")
    path.write_text(text.replace(old, new), encoding="latin-1")


def files_of(source):
    """The files that the suite would run, without those that try modules: they load other ones instead."""
    told = subprocess.run(["./runtest", "--list-tests"], cwd=source, capture_output=True, text=True, check=True)
    names = [name for name in told.stdout.split() if "/" in name]
    return sorted(name for name in names if not name.startswith("unit/moduleapi/"))
