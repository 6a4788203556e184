"""Judges histories in files: `scripts/check-history FILE...` (docs/internals/history-checker.md)."""

import sys
import time

from . import faults
from .journal import NotAHistory, read

USAGE = "usage: scripts/check-history FILE...    (- is standard input; 0: no fault, 1: faults, 2: not a history)"
SHOWN = 20


def check(name):
    """Judges one file, and says so; whether there is no fault."""
    began = time.monotonic()
    with sys.stdin if name == "-" else open(name, encoding="utf-8") as file:
        requests, servers = read(file)
    found = faults(requests, servers)
    seconds = time.monotonic() - began
    print(f"{name}: {len(requests)} requests, {len(found)} faults, {seconds:.1f} s")
    for fault in found[:SHOWN]:
        print(f"   {fault}")
    return not found


def main(names):
    """The exit code."""
    if not names or names[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if names else sys.stderr)
        return 0 if names else 2
    is_clean = True
    for name in names:
        try:
            is_clean &= check(name)
        except (NotAHistory, OSError, UnicodeDecodeError) as reason:
            print(f"check-history: {name}: {reason}", file=sys.stderr)
            return 2
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
