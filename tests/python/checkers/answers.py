"""G7, G9: whether each request was answered, and by a reply that it can get."""

from .evidence import LOST, UNANSWERED
from .spans import requests_by_owner

EXPECTED = {
    "acquire": {LOST, UNANSWERED, "LOCKKIND", "LOCKHELD", "DEADLOCK", "UNBLOCKED"},
    "macquire": {LOST, UNANSWERED, "LOCKKIND", "LOCKHELD", "DEADLOCK", "UNBLOCKED"},
    "count": {"FENCED", UNANSWERED},
    "write": {"FENCED", UNANSWERED},
}

#: Replies to a newer request of the same owner that took the older one's place; any other error leaves the older one. A
#: waiter gets WRONGTYPE, too, if another client wrote over the lock after that.
NOT_REFUSED = {None, "WRONGTYPE", "UNBLOCKED"}


def unanswered(evidence):
    """G7: requests that were never answered."""
    return [f"never answered: {r}" for r in evidence.history if r.error == UNANSWERED]


def early_nils(evidence):
    """G7: nil before the end of the wait."""
    released = {}
    for request in evidence.history:
        if request.command == "release":
            released.setdefault((request.lock, request.owner), []).append(request)
    found = []
    for request in evidence.history:
        if not request.is_acquire or request.error or request.reply is not None:
            continue
        if request.block is None or request.answered - request.sent >= request.block:
            continue
        withdrawals = (r for key in request.keys for r in released.get((key, request.owner), []))
        if not any(r.sent <= request.answered and request.sent <= r.answered for r in withdrawals):
            found.append(f"nil too early: {request}")
    return found


def strange_errors(evidence):
    """Errors that no request of the load can cause."""
    found = []
    asked = requests_by_owner(evidence)
    for request in evidence.history:
        expected = EXPECTED.get(request.command, {UNANSWERED})
        if request.error and request.code not in expected:
            found.append(f"strange error: {request}")
        if request.code == "LOCKHELD" and request.owner not in evidence.unheard:
            holds = (h for h in evidence.holds if h.owner == request.owner and h.lock in request.keys)
            if not any(hold.born <= request.answered for hold in holds):
                found.append(f"it held none of them: {request}")
        if request.code == "UNBLOCKED":
            own = (r for key in request.keys for r in asked[key, request.owner])
            others = [r for r in own if r is not request and r.answered >= request.sent]
            if not any(r.sent <= request.answered for r in others):
                found.append(f"nobody took its place: {request}")
    return found


def misanswered(requests):
    """G9: requests in the order in which they were sent; each knows its reply, if there was one."""
    found = []
    for number, request in enumerate(requests):
        if request.code == "UNBLOCKED" and "newer request" in request.reply.line:
            newer = [each for each in requests[number + 1 :] if each.may_replace(request)]
            if all(each.code not in NOT_REFUSED for each in newer):
                found.append(f"answers: it lost its place to a request that was refused: {request}, by {newer}")
    return found
