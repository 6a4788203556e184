"""The distribution of our pair's instructions: the server around the module, its calls that the module needs, the
module.

A run under callgrind for each pair, as in `instructions`. A function that the module calls is counted with everything
below it; the module's own functions, without the functions that they call. The server's sum is the cost of a module
that makes the same calls and takes no instructions of its own.
"""

from __future__ import annotations

from collections import Counter

from ..context import Bench
from ..measure import OURS, Figure
from ..profile import Function, Profile, read
from ..servers import Release, Server, module
from ..subjects import CHEAPEST, pairs
from . import instructions

PAIRS = 2_000
KEYS = 200

#: Calls with less than this are counted together.
SMALL = 40

TOTAL = "a pair, in all"
OF_SERVER = "the server's part of it: a module of no instructions"
OF_CHEAPEST = f"{CHEAPEST}, in all"
FIRST = (TOTAL, OF_SERVER, OF_CHEAPEST)

#: Parts of the module by how the names of their functions begin; the first that fits.
PARTS = (
    ("redislock::command::", "module: reading the arguments"),
    ("redislock::lock::locks::", "module: the record (owner, name, slot, deadline)"),
    ("redislock::lock::table::state::begin_hold", "module: the record (owner, name, slot, deadline)"),
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
    parts[OF_SERVER] = sum(count for name, count in parts.items() if name.startswith("server, "))
    return parts


def profiled(release: Release, name: str) -> Profile:
    """The profile of a run of this pair on a fresh server, without what comes before it."""
    with Server(release, *instructions.QUIET, under=instructions.CALLGRIND) as server, server.connect() as connection:
        (pair,) = (pair for pair in pairs(release, connection) if pair.name == name)
        instructions.run_pairs(connection, pair, KEYS, KEYS)
        instructions.counted(server)
        instructions.run_pairs(connection, pair, PAIRS, KEYS)
        return read(instructions.dumped(server))


def measure(release: Release) -> list[Figure]:
    instructions.require_callgrind()
    parts = told(profiled(release, OURS))
    parts[OF_CHEAPEST] = profiled(release, CHEAPEST).total
    small = {name: count for name, count in parts.items() if name.startswith("server, called") and count < SMALL * PAIRS}
    for name in small:
        del parts[name]
    parts["server, called by the module: others"] = sum(small.values())
    setting = f"pipelined by {instructions.BATCH_COMMANDS}, no persistence"
    others = sorted((item for item in parts.items() if item[0] not in FIRST), key=lambda item: -item[1])
    ordered = [(name, parts[name]) for name in FIRST] + others
    return [
        Figure("breakdown", release.label, setting, name, instructions.METRIC, (count / PAIRS,))
        for name, count in ordered
    ]


def run(bench: Bench) -> list[Figure]:
    return [figure for release in bench.releases for figure in measure(release)]
