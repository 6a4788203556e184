"""Certain holds as spans of time, and requests by their owners: the common queries of several checkers."""

from .evidence import EXCLUSIVE


def is_limit(mode):
    """Returns whether this is the mode of a semaphore."""
    return mode.startswith("limit")


def agree(one, other):
    """Returns whether a lock can be requested in both modes at the same time."""
    return one == other or not (is_limit(one) or is_limit(other))


def go_together(one, other):
    """Returns whether a lock can be held in both modes at the same time."""
    return one == other != EXCLUSIVE


def spans_by_lock(evidence):
    """All certain holds in pieces of one mode: {lock: [(start, end, mode, hold)]}."""
    found = {}
    for hold in evidence.holds:
        for start, end, mode in hold.spans():
            found.setdefault(hold.lock, []).append((start, end, mode, hold))
    for spans in found.values():
        spans.sort(key=lambda span: span[0])
    return found


def certain_at(evidence, requests):
    """For each request: the certain spans of its locks that cover all of its time."""
    by_lock = {}
    for request in requests:
        for key in request.keys:
            by_lock.setdefault(key, []).append(request)
    spans = spans_by_lock(evidence)
    for lock, asked in by_lock.items():
        coming = iter(spans.get(lock, []))
        coming_span = next(coming, None)
        live = []
        for request in sorted(asked, key=lambda request: request.sent):
            while coming_span is not None and coming_span[0] <= request.sent:
                live.append(coming_span)
                coming_span = next(coming, None)
            live = [span for span in live if span[1] >= request.sent]
            yield lock, request, [span for span in live if span[1] >= request.answered]


def requests_by_owner(evidence):
    """All requests for locks: {(lock, owner): [request]}."""
    found = {}
    for request in evidence.history:
        for key in request.keys if request.is_acquire else ():
            found.setdefault((key, request.owner), []).append(request)
    return found


def is_minted(owner):
    """Returns whether the server made this owner; a client that is refused does not learn its name."""
    return len(owner) == 36 and owner.count("-") == 4
