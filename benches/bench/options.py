"""The options of `scripts/bench`. This module only checks that they are consistent."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from .measure import ROUNDS

#: In the order in which they run: what others disturb most comes first.
SCENARIOS = (
    "uncontended", "handover", "confirm", "others", "scale", "memory", "instructions", "breakdown", "clients", "tool", "rivals",
)  # fmt: skip

SERVERS = ("redis-7.0", "redis-8.6", "valkey-9.1")

#: Of a smoke run.
ROUNDS_QUICK = 1


def names_of(accepted: tuple[str, ...], what: str) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        unknown = [name for name in names if name not in accepted]
        if unknown or not names:
            told = ", ".join(unknown) or "it names none"
            raise argparse.ArgumentTypeError(f"no such {what}: {told} (one or more of {', '.join(accepted)})")
        return [name for name in accepted if name in names]

    return parse


def count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 100")
    return int(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measures what a lock costs, here and elsewhere.")

    def add_list(option: str, what: str, accepted: tuple[str, ...]) -> None:
        told = f"one or more of {', '.join(accepted)} (default: all)"
        metavar = f"{what.upper()},..."
        parser.add_argument(option, metavar=metavar, type=names_of(accepted, what), default=list(accepted), help=told)

    add_list("--only", "scenario", SCENARIOS)
    add_list("--servers", "server", SERVERS)
    parser.add_argument("--rounds", metavar="N", type=count, help=f"in which all subjects take turns ({ROUNDS}; fewer tell little)")
    parser.add_argument("--quick", action="store_true", help="a smoke run: whether it works, not what it costs")
    parser.add_argument("--load", metavar="PATH", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    arguments()
