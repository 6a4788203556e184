"""Builds of the core and the engine, without a server: the one with all mutants, and those of single ones."""

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

from .listing import PARTS
from .schemata import Schemata

PROFILE = """
[profile.test]
opt-level = OPTIMISATION
debug = false
incremental = true
codegen-units = 16
[profile.test.package."*"]
opt-level = 1
[profile.test.build-override]
opt-level = 0
"""

# It is compared with the file that is there, so it is written in the same form. The findings of fuzzing are tried here,
# too.
LIBRARY = """#![allow(warnings)]
pub mod command;
pub mod engine;
pub mod lock;
mod sabotage;
#[cfg(test)]
mod sim;
#[cfg(test)]
#[path = "../tests/fuzz/targets/mod.rs"]
mod fuzz;
"""
# An operation that a function cannot do while it is compiled.
IN_CONSTANTS = re.compile(r"cannot call non-const (?:associated )?(?:function|method) `([^`]*)`")


class Failed(Exception):
    """A package that cannot be built."""


class Package:
    """A package of all that is built without a server, in a directory of its own."""

    def __init__(self, root, directory, optimisation):
        self.root, self.directory = Path(root), Path(directory)
        self.sources = {
            str(path.relative_to(root)): path.read_text()
            for part in PARTS
            for path in sorted(self.root.glob(f"{part}/**/*"))
            if path.is_file()
        }
        manifest = tomllib.loads((self.root / "Cargo.toml").read_text())
        used = "\n".join(text for path, text in self.sources.items() if path.endswith(".rs"))
        needed = {
            name: wanted if isinstance(wanted, dict) else {"version": wanted}
            for name, wanted in manifest["dependencies"].items()
            if re.search(rf"\b{name.replace('-', '_')}::", used)
        }
        lines = ["[package]", 'name = "core"', 'version = "0.0.0"', 'edition = "2024"', "autotests = false", "[workspace]"]
        for name, wanted in needed.items():
            values = ((key, str(value).lower() if isinstance(value, bool) else value) for key, value in wanted.items())
            lines += [f"[dependencies.{name}]"]
            lines += [f"{key} = {value if value in ('true', 'false') else json.dumps(value)}" for key, value in values]
        self.write("Cargo.toml", "\n".join(lines) + PROFILE.replace("OPTIMISATION", str(optimisation)))
        self.write("Cargo.lock", (self.root / "Cargo.lock").read_text(), once=True)
        self.write("src/sabotage.rs", (self.root / "src/sabotage.rs").read_text())
        self.write("src/lib.rs", LIBRARY)
        if not (self.directory / "tests").exists():
            (self.directory / "tests").symlink_to(self.root / "tests")
        for path, text in self.sources.items():
            self.write(path, text)

    def write(self, path, text, once=False):
        """Writes a file, unless its content is the same: an older file is not built again."""
        target = self.directory / path
        if target.exists() and (once or target.read_text() == text):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def cargo(self, *words):
        """The output of cargo: its last artifact that can be run, and the compiler's errors."""
        command = [os.environ.get("CARGO", "cargo"), *words, "--lib", "--message-format=json"]
        variables = {**os.environ, "CARGO_TARGET_DIR": str(self.directory / "target")}
        ended = subprocess.run(
            command, cwd=self.directory, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        executable, errors = None, []
        for line in ended.stdout.splitlines():
            if not line.startswith("{"):
                continue
            message = json.loads(line)
            executable = message.get("executable") or executable
            error = message.get("message")
            if message["reason"] == "compiler-message" and error["level"].startswith("error") and error["spans"]:
                errors.append(error)
        if ended.returncode and not errors:
            raise Failed(ended.stderr)
        return executable if not ended.returncode else None, errors


def primary(error):
    """The place that the compiler points to."""
    span = next(span for span in error["spans"] if span["is_primary"])
    while span["file_name"].startswith("/") and span.get("expansion"):
        span = span["expansion"]["span"]
    return span["file_name"], span["line_start"]


def all_in_one(package, mutants, say, left_out):
    """The test binary with all mutants in it, the mutants it could not hold, and those that cannot be built at all.

    `left_out` are mutants that are known not to build."""
    package.write("src/lib.rs", LIBRARY + "mod mutant;\n")
    memory = package.directory / "alone.json"
    known = json.loads(memory.read_text()) if memory.exists() else {"alone": [], "kept": []}
    names = {mutant.name for mutant in mutants}
    left_out, alone, kept_const = dict(left_out), names & {*known["alone"]}, {*known["kept"]}
    for round_number in range(1, 31):
        schemata = Schemata(rust(package.sources), mutants, kept_const, {*left_out, *alone})
        alone |= {mutant.name for mutant in schemata.alone}
        package.write("src/mutant.rs", schemata.choice)
        for path, text in schemata.sources.items():
            # A chain of functions that are compiled into each other, each with all its changes, takes 24 GB.
            package.write(path, text.replace("#[inline(always)]", "#[inline(never)]"))
        _, errors = package.cargo("check", "--profile", "test")
        if not errors:
            executable, errors = package.cargo("test", "--no-run")
        if not errors:
            memory.write_text(json.dumps({"alone": sorted(alone), "kept": sorted(kept_const)}))
            return executable, schemata, alone, left_out
        before = len(left_out), len(alone), len(kept_const)
        for error in errors:
            judge(error, schemata, mutants, left_out, alone, kept_const)
        say(f"build {round_number}: {len(errors)} errors; {len(left_out)} cannot be built, {len(alone)} alone")
        if before == (len(left_out), len(alone), len(kept_const)):
            raise Failed(errors[0]["rendered"])
    raise Failed("it does not come to an end")


def judge(error, schemata, mutants, left_out, alone, kept_const):
    """Leaves out the mutant that an error is about, or one that hinders others."""
    in_constants = IN_CONSTANTS.search(error["message"])
    if in_constants:
        name = re.sub(r"::<.*?>", "", in_constants[1]).split("::")[-1]
        kept_const.add(name)
        return
    places = [primary(error), *((span["file_name"], span["line_start"]) for span in error["spans"])]
    for place in places:
        if place in schemata.whole:
            alone.update(mutant.name for mutant in schemata.whole[place])
            return
        if place in schemata.places:
            left_out[schemata.places[place].name] = error["message"]
            return
    raise Failed(error["rendered"])


def rust(sources):
    """The files that are Rust's and have mutants or may be asked by them; none that tests alone have."""
    shipped = (path for path in sources if "/tests" not in path and not path.startswith("src/sim/"))
    return {path: sources[path] for path in shipped if path.endswith(".rs")}
