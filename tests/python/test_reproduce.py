"""`scripts/package reproduce` compares two builds of one commit, and finds a build that depends on its folder."""

import os
import shutil
import subprocess

import pytest

from harness.server import ROOT

pytestmark = pytest.mark.once

#: A compiler of modules: a file with the commit, and with the folder if it is told so.
COMPILER = """#!/bin/sh
set -e
mkdir -p "$CARGO_TARGET_DIR/release"
git rev-parse HEAD >"$CARGO_TARGET_DIR/release/libredislock.so"
[ -z "$NAMES_ITS_FOLDER" ] || pwd >>"$CARGO_TARGET_DIR/release/libredislock.so"
git -C "$CHANGED" -c user.name=x -c user.email=x@y commit --quiet --allow-empty -m "A commit during a build"
"""


def reproduce(folder, **more):
    scripts = folder / "scripts"
    scripts.mkdir()
    shutil.copy(ROOT / "scripts" / "package", scripts)
    for name, text in (("prepare", "#!/bin/sh\n"), ("compiler", COMPILER)):
        (scripts / name).write_text(text)
        (scripts / name).chmod(0o755)
    me = ("-c", "user.name=x", "-c", "user.email=x@y")
    for command in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "-m", "The commit that is built")):
        subprocess.run(["git", *me, *command], cwd=folder, check=True)
    settings = {**os.environ, "CARGO": str(scripts / "compiler"), "CHANGED": str(folder), **more}
    return subprocess.run([scripts / "package", "reproduce"], env=settings, capture_output=True, text=True)


def test_a_commit_during_the_first_build_does_not_change_what_is_compared(tmp_path):
    ended = reproduce(tmp_path)
    assert ended.returncode == 0 and "are the same" in ended.stdout, ended.stderr


def test_a_build_that_names_its_folder_is_found(tmp_path):
    ended = reproduce(tmp_path, NAMES_ITS_FOLDER="yes")
    assert ended.returncode == 1 and "differ" in ended.stdout + ended.stderr
