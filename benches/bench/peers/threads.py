"""Contenders that are threads of Python: for libraries, which are used as they are.

    python -m bench.peers.threads MODULE PORT [OPTION...]

It speaks the lines of benches/contend/main.rs. MODULE is one of this folder with a class `Contender`, made with the
server's port, a number and the options, once for each: see the protocol below.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from typing import Protocol

#: Threads of Python that only wait need little.
STACK_BYTES = 256 << 10


#: The time for which a contender may still wait after the end of a run, if it has a timeout.
GRACE_S = 0.2


class Contender(Protocol):
    def take(self, patience_s: float) -> bool:
        """Waits for the lock. May give up after that time, which is past the end of the run."""

    def free(self) -> None: ...


def turns(who: int, contender: Contender, hold: float, opening: int, end: int, seen: list[list[int]]) -> None:
    """Takes turns until the end. A lock that is granted before the opening is kept until then. Threads append to a list
    in one piece."""
    now = time.monotonic_ns
    while (asked := now()) < end:
        if not contender.take((end - asked) / 1e9 + GRACE_S):
            seen.append([who, asked, 0, 0])
            return
        granted = now()
        if keep := max(hold, (opening - granted) / 1e9):
            time.sleep(keep)
        freed = now()
        contender.free()
        seen.append([who, asked, granted, freed])


def run(contenders: list[Contender], hold: float, opening: int, end: int) -> dict:
    seen: list[list[int]] = []
    threads = [
        threading.Thread(target=turns, args=(who, contender, hold, opening, end, seen), daemon=True)
        for who, contender in enumerate(contenders)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"turns": seen}


def main(module: str, port: str, *options: str) -> None:
    make = importlib.import_module(f".{module}", __package__).Contender
    threading.stack_size(STACK_BYTES)
    contenders: list[Contender] = []
    for line in sys.stdin:
        verb, count, *rest = line.split()
        answer: dict = {}
        if verb == "open":
            contenders += [make(int(port), who, *options) for who in range(len(contenders), int(count))]
        else:
            hold_us, opening, end = map(int, rest)
            answer = run(contenders[: int(count)], hold_us / 1e6, opening, end)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
