"""G6: no request waits for a lock that is free.

In a history a lock may not be free for longer than `stall_seconds` while a request waits, nor may a place among its
holders be. Each check goes through the history in the order of time, once for each lock: n log n. In a view no waiter
may be one that could be granted.
"""

from bisect import bisect_left, bisect_right
from math import inf

from .evidence import EXCLUSIVE, LATE_SECONDS, LOST, SHARED, UNANSWERED

#: A client that has disconnected may be granted a lock, which is then revoked.
CLOSING = 1.0


def idle_locks(evidence):
    """G6: requests that waited while the lock was free, as far as the history shows."""
    taken = may_be_taken(evidence)
    gaps = {lock: gaps_between([span[:2] for span in spans]) for lock, spans in taken.items()}
    found = []
    for wait in waits_for_one(evidence):
        seconds = longest_in(evidence, wait, gaps.get(wait.lock, ([-inf], [inf])))
        if seconds > evidence.stall_seconds:
            found.append(f"free for {seconds:.3f} s beside a waiter: {wait}")
    return found


def idle_places(evidence):
    """G6: requests that waited for a place among holders of their kind while there was one.

    No request for the lock in another way can have stood before it. `max-holders` is not known here, and must not have
    been reached. `idle_locks` reports locks that cannot have had any holder.
    """
    taken, lines, gaps, found = may_be_taken(evidence), in_queue(evidence), {}, []
    free = {lock: gaps_between([span[:2] for span in spans]) for lock, spans in taken.items()}
    for wait in waits_for_one(evidence):
        which = wait.lock, wait.mode
        if wait.mode == EXCLUSIVE or wait.lock not in taken:
            continue
        if which not in gaps:
            gaps[which] = gaps_between(in_the_way(taken[wait.lock] + lines[wait.lock], wait.mode))
        seconds = longest_in(evidence, wait, gaps[which])
        if seconds > evidence.stall_seconds >= longest_in(evidence, wait, free[wait.lock]):
            found.append(f"a place for {seconds:.3f} s beside a waiter: {wait}")
    return found


def waits_for_one(evidence):
    """The requests that waited for one lock, and stayed."""
    waits = (r for r in evidence.history if r.command == "acquire" and r.block is not None)
    return [wait for wait in waits if wait.error != LOST]


def longest_in(evidence, wait, gaps):
    """The longest that a request waited within one of these gaps."""
    starts, ends = gaps
    until = min(wait.answered, evidence.last_answer)
    within = range(bisect_right(ends, wait.sent), bisect_left(starts, until))
    return max((min(until, ends[number]) - max(wait.sent, starts[number]) for number in within), default=0.0)


def in_queue(evidence):
    """The requests that may have stood in each line: {lock: (start, end, how)}."""
    found = {}
    for wait in evidence.history:
        if wait.command == "acquire" and wait.block is not None:
            # The server sees later that it went.
            end = min(wait.answered, wait.gone + CLOSING)
            found.setdefault(wait.lock, []).append((wait.sent, end, f"waits {wait.mode}"))
    return found


def in_the_way(spans, mode):
    """The times (start, end) in which no request of this mode may be granted."""
    found = [(start, end) for start, end, how in spans if how not in (mode, f"waits {mode}")]
    if mode == SHARED:
        return found
    most, steps = int(mode.split()[1]), []
    for start, end, how in spans:
        if how == mode and start < end:
            steps += [(start, 1), (end, -1)]
    held, since = 0, None
    for moment, change in sorted(steps):
        held += change
        if since is None and held >= most:
            since = moment
        elif since is not None and held < most:
            found.append((since, moment))
            since = None
    return found


def may_be_taken(evidence):
    """The times in which each lock may have been held, reserved, or waited for by one of several: {lock: spans}.

    A span is (start, end, how): a mode, or nothing that goes together with anything.
    """
    found = {}
    for hold in evidence.holds:
        # The reply came soon after it had begun.
        start = max(hold.born, hold.start - evidence.stall_seconds)
        span = (start, min(hold.dead, hold.latest + LATE_SECONDS), None if hold.modes else hold.mode)
        found.setdefault(hold.lock, []).append(span)
    for request in evidence.history:
        if not request.is_acquire:
            continue
        spans = []
        if request.error == UNANSWERED and len(request.keys) == 1:
            continue
        if request.error in (LOST, UNANSWERED):
            how = request.mode if len(request.keys) == 1 and not request.place else None
            spans.append((request.sent, request.gone + request.lease + CLOSING, how))
        elif len(request.keys) > 1:
            spans.append((request.sent, request.answered, None))
        elif request.place:
            spans.append((request.sent, request.answered + request.place + LATE_SECONDS, None))
        for key in request.keys:
            found.setdefault(key, []).extend(spans)
    return found


def gaps_between(spans):
    """The time outside of these spans: (starts, ends)."""
    starts, ends, reached = [], [], -inf
    for start, end in sorted(spans):
        if start > reached:
            starts.append(reached)
            ends.append(start)
        reached = max(reached, end)
    return [*starts, reached], [*ends, inf]


def idle(view, holders_max):
    """G6: the clients that wait on a connection, and could be granted now."""
    found, parties = [], {}
    for (db, name), waiter in view.waiters():
        if waiter["state"] == "blocked" and waiter["client-id"] is not None:
            parties.setdefault((db, waiter["client-id"]), []).append((name, waiter))
    for (db, client), places in parties.items():
        seen = [(view.places[db, name], waiter) for name, waiter in places]
        if all(fits(place, waiter, holders_max, len(seen) > 1) for place, waiter in seen):
            # (If there is a string in its place, it receives that error when its turn comes.)
            is_free = all(place.type in ("none", "redislock") for place, _ in seen)
            what = "could have it and waits" if is_free else "waits for a key that is no lock"
            names = ", ".join(name for name, _ in places)
            found.append(f"idle: {places[0][1]['owner']} {what}: db {db}, {names} (client {client})")
    return found


def fits(place, waiter, holders_max, is_party):
    """Returns whether no holder of the lock, and no request ahead in the queue, blocks this one."""
    ahead = place.queue[: place.queue.index(waiter)]
    holders = [hold for hold in place.holders if hold["owner"] != waiter["owner"]]
    if any(each["state"] == "blocked" for each in ahead) or (is_party and ahead):
        return False
    if waiter["mode"] == "exclusive":
        return not ahead and not holders
    if holders and place.kind != waiter["mode"] or any(each["mode"] != waiter["mode"] for each in ahead):
        return False
    most = holders_max if waiter["mode"] == "shared" else place.limit
    return len(holders) + len(ahead) < most
