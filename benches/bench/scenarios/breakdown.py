"""Where the instructions of our pair go: the server around the module, its calls that the module needs, the module.

One run under callgrind, as in `instructions`. What the module calls is told with everything below it; what the
module's own functions take, without what they call.
"""

from __future__ import annotations

import subprocess
from collections import Counter

from ..context import Bench
from ..measure import OURS, Figure
from ..profile import Function, Profile, read
from ..servers import Release, Server, module
from ..subjects import pairs
from . import instructions

PAIRS = 2_000
KEYS = 200

#: Calls below this are told together.
SMALL = 40

TOTAL = "a pair, in all"

#: Parts of the module by how the names of their functions begin; the first that fits.
PARTS = (
    ("redislock::command::", "module: reading the arguments"),
    ("redislock::lock::locks::", "module: the record (owner, name, slot, deadline)"),
    ("redislock::lock::table::begin_hold", "module: the record (owner, name, slot, deadline)"),
    ("redislock::lock::table::decide::is_of", "module: the record (owner, name, slot, deadline)"),
    ("redislock::redis::clock::", "module: the clocks"),
    ("", "module: deciding and carrying out"),
)


def part(name: str) -> str:
    return next(part for begin, part in PARTS if name.startswith(begin))


def is_ours(function: Function) -> bool:
    return function.object == str(module().resolve())


def api_name(name: str) -> str:
    """`RM_OpenKey`, `VM_OpenKey`: the same call on Redis and Valkey."""
    return f"server, called by the module: {name[3:]}"


def told(profile: Profile) -> Counter[str]:
    """Instructions of the run by part."""
    parts: Counter[str] = Counter()
    for function, count in profile.own.items():
        if is_ours(function):
            parts[part(function.name)] += count
    entered = 0
    for (caller, callee), count in profile.calls.items():
        if is_ours(callee) and not is_ours(caller):
            # Entered from a call of our own (the callbacks of a key that goes): counted there already.
            is_callback = not caller.name.endswith("ModuleCommandDispatcher")
            entered += 0 if is_callback else count
        elif is_ours(caller) and not is_ours(callee):
            is_api = callee.name.startswith(("RM_", "VM_"))
            parts[api_name(callee.name) if is_api else "module: libraries (copying, comparing, clocks)"] += count
    parts[TOTAL] = profile.total
    parts["server, around the module: reading, dispatching, freeing, sending"] = profile.total - entered
    return parts


def measure(release: Release) -> list[Figure]:
    instructions.require_callgrind()
    with Server(release, *instructions.QUIET, under=instructions.CALLGRIND) as server, server.connect() as connection:
        pair = next(pair for pair in pairs(release, connection) if pair.name == OURS)
        instructions.run_pairs(connection, pair, KEYS, KEYS)
        instructions.counted(server)
        before = set(server.folder.glob("callgrind.out.*"))
        instructions.run_pairs(connection, pair, PAIRS, KEYS)
        command = ["callgrind_control", "--dump", str(server.process.pid)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (dump,) = set(server.folder.glob("callgrind.out.*")) - before
        parts = told(read(dump))
    small = {name: count for name, count in parts.items() if name.startswith("server, called") and count < SMALL * PAIRS}
    for name in small:
        del parts[name]
    parts["server, called by the module: others"] = sum(small.values())
    setting = f"pipelined by {instructions.BATCH_COMMANDS}, no persistence"
    ordered = sorted(parts.items(), key=lambda item: (item[0] != TOTAL, -item[1]))
    return [
        Figure("breakdown", release.label, setting, name, instructions.METRIC, (count / PAIRS,))
        for name, count in ordered
    ]


def run(bench: Bench) -> list[Figure]:
    return [figure for release in bench.releases for figure in measure(release)]
