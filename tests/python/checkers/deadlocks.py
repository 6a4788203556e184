"""G11: a deadlock names owners who may have waited there, and no two owners wait for each other for long."""

import re
from itertools import pairwise

from .evidence import EXCLUSIVE, LATE_SECONDS, LOST
from .spans import is_minted, requests_by_owner

LINK = re.compile(r"'([^']*)' waits for '([^']*)' and there for '([^']*)'")


def false_cycles(evidence):
    """G11: checks the cycle that a refusal names, as far as it is visible from outside."""
    asked = requests_by_owner(evidence)
    holds = {}
    for hold in evidence.holds:
        holds.setdefault((hold.lock, hold.owner), []).append(hold)

    def may_wait(owner, lock, error):
        waits = (r for r in asked.get((lock, owner), []) if r.block is not None or r.place)
        return any(
            r.sent <= error.answered and r.answered + r.place >= error.sent for r in waits
        )

    def may_hold(owner, lock, error):
        return any(
            hold.born <= error.answered and min(hold.dead, hold.latest + LATE_SECONDS) >= error.sent
            for hold in holds.get((lock, owner), [])
        )

    found = []
    for error in evidence.history:
        if error.code != "DEADLOCK":
            continue
        links = LINK.findall(error.error)
        is_whole = " more" not in error.error.rpartition("'")[2]
        ends = [(one[2], other[0]) for one, other in pairwise([*links, *links[:1]])]
        if not is_whole:
            ends.pop()
        if not links or any(one != other for one, other in ends):
            found.append(f"no cycle: {error}")
        elif is_whole and error.owner not in {link[0] for link in links} | {"*"}:
            # Of a semaphore all holders are stuck, and the cycle goes through one of them.
            if not any(may_hold(error.owner, lock, error) for _, lock, _ in links):
                found.append(f"a cycle of others: {error}")
        for owner, lock, awaited in links:
            if not (owner == error.owner or is_minted(owner) or may_wait(owner, lock, error)):
                found.append(f"{owner} did not wait for {lock}: {error}")
            is_known = awaited not in evidence.unheard and not is_minted(awaited)
            is_there = may_hold(awaited, lock, error) or may_wait(awaited, lock, error)
            if is_known and not is_there:
                found.append(f"{awaited} was not at {lock}: {error}")
    return found


def missed_deadlocks(evidence):
    """G11: two owners that waited for each other's locks, and neither was refused."""
    waits, at_lock, holds, found = {}, {}, {}, []
    for request in evidence.history:
        is_wait = request.command == "acquire" and request.block is not None and request.error != LOST
        if is_wait and request.mode == EXCLUSIVE and request.answered - request.sent > evidence.stall_seconds:
            waits.setdefault((request.lock, request.owner), []).append(request)
            at_lock.setdefault(request.lock, []).append(request)
    for hold in evidence.holds:
        if hold.mode == EXCLUSIVE and not hold.modes and hold.end - hold.start > evidence.stall_seconds:
            holds.setdefault(hold.owner, []).append(hold)
    for hold in (hold for owned in holds.values() for hold in owned):
        for other in at_lock.get(hold.lock, ()):
            for theirs in holds.get(other.owner, ()):
                for wait in waits.get((theirs.lock, hold.owner), ()):
                    start = max(hold.start, theirs.start, wait.sent, other.sent)
                    end = min(hold.end, theirs.end, wait.answered, other.answered)
                    if end - start > evidence.stall_seconds and wait.sent <= other.sent:
                        found.append(f"a deadlock that nobody was told of: {wait} and {other}")
    return found
