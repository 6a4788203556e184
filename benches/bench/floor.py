"""A module that does the least that any can (tests/server/floor.c): what redislock costs is held against that, too."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

from .servers import ROOT

#: A token that blocked clients of a module hand over: no lease, no owner, nothing in the keyspace.
TOKEN = "a module's bare token"

#: A token where the module also asks the server for all that a lock's promises need it for.
PROMISES = "a module's token with the promises"

#: The argument of the module for it.
WITH_PROMISES = "promises"

#: A key whose value is a module's, says nothing and takes no memory of the module.
VALUE = "a module's empty value"

SOURCE = ROOT / "tests" / "server" / "floor.c"


@cache
def floor() -> Path:
    """Builds it."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    target.mkdir(parents=True, exist_ok=True)
    built = target / "floor.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", built, SOURCE], check=True)
    return built
