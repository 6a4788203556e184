"""G5: waiters are granted in the order in which they were seen in the queue."""

from bisect import bisect_right
from itertools import accumulate, pairwise

from .evidence import EXCLUSIVE
from .spans import requests_by_owner


def passed_in_queue(evidence):
    """G5: a waiter that was seen ahead of another, both blocked, was granted before."""
    asked = requests_by_owner(evidence)
    newcomers = newcomers_of(asked)
    found = []
    for look in evidence.history:
        if look.command != "info" or look.reply is None:
            continue
        line = []
        for owner, state in look.reply.queue:
            waits = [
                r for r in asked.get((look.lock, owner), [])
                if r.sent <= look.answered and r.answered >= look.sent
            ]  # fmt: skip
            # With several requests at once it is not known which of them was seen.
            if state == "blocked" and len(waits) == 1 and waits[0].is_granted:
                line.append(waits[0])
        for ahead, behind in pairwise(line):
            if behind.reply < ahead.reply:
                found.append(f"passed in line: {behind} came before {ahead}, seen in {look}")
        sent, lowest = newcomers.get(look.lock, ((), ()))
        first = bisect_right(sent, look.answered)
        for ahead in line if first < len(sent) else ():
            if lowest[first].reply < ahead.reply:
                found.append(f"passed in line: {lowest[first]} came after {ahead}, seen in {look}")
    return found


def newcomers_of(asked):
    """Requests for a whole lock by owners who were never there before, and were granted: {lock: (sent, requests)}.
    They are listed by when they were sent, with the one of the lowest token from there on."""
    by_lock = {}
    for (lock, _), requests in asked.items():
        first = requests[0]  # evidence has sorted them
        if first.is_granted and first.mode == EXCLUSIVE:
            by_lock.setdefault(lock, []).append(first)
    found = {}
    for lock, requests in by_lock.items():
        requests.sort(key=lambda request: request.sent)
        lowest = [*accumulate(reversed(requests), lambda a, b: min(a, b, key=lambda r: r.reply))]
        found[lock] = [request.sent for request in requests], lowest[::-1]
    return found
