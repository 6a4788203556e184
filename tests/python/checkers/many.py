"""The promises that owners may rely on, whatever happens to the servers: the judgement of several that may not know of
each other.

    certain span   from the reply to a grant or a renewal until its lease, counted from
                   the moment that the request was sent; or until the owner sent its
                   release, or a renewal for less; or until somebody broke the lock on
                   purpose (`Break`)
    G1             certain spans of two owners of one lock do not overlap; of a semaphore, as many may as it lets in
    G2             if the servers forget nothing, no owner was told 0 before its lease can have ended
    G4             tokens rise over all servers and locks

A request without an answer proves nothing. For one server `checkers.faults` concludes more: one server carries out
requests one by one and forgets nothing, so a reply proves something about the time before it, too. Here it does not. A
server may have lost its data, and one that was promoted answers for holds that it never received.
"""

from collections import defaultdict
from math import inf
from typing import NamedTuple, Optional

from .evidence import LOST, UNANSWERED
from .tokens import falling_tokens, twice_given


def faults(history, breaks=(), limits=None, forgets_nothing=False):
    """G1, and G4 over all servers; G2 where a server comes back with all that it had."""
    history = [request._replace(keys=(key,)) for request in history for key in request.keys]
    found = double_holders(history, breaks, limits) + token_faults(history, limits)
    return found + (early_ends(never_broken(history, breaks)) if forgets_nothing else [])


class Hold(NamedTuple):
    """A stretch of time in which the lock was certainly held."""

    lock: str
    owner: str
    token: int
    start: float
    end: float


#: The replies for a hold that may have begun: by the first word of the error.
MAY_HAVE_BEGUN = {"NOREPLICAS", "UNBLOCKED", LOST, UNANSWERED}


class Break(NamedTuple):
    """A user ended the holds of a lock on purpose, or of all, at some moment between two."""

    lock: Optional[str]
    sent: float
    answered: float


def broken_at(request, breaks):
    """When the claim of a request may have been ended on purpose at the earliest."""
    mine = [each.sent for each in breaks if each.lock in (None, request.lock) and each.answered > request.sent]
    return min(mine, default=inf)


def certain_spans(history, breaks=()):
    """The stretches of time in which an owner may rely on its lock."""
    latest_end, spans = {}, []
    for request in sorted(history, key=lambda request: request.sent, reverse=True):
        hold = request.lock, request.owner
        limit = latest_end.get(hold, inf)
        lease_end = request.sent + request.lease
        if is_promise(request):
            end = min(lease_end, limit, broken_at(request, breaks))
            spans.append(Hold(*hold, request.reply, request.answered, end))
        if request.command == "release":
            latest_end[hold] = request.sent
        elif request.command == "renew":
            latest_end[hold] = min(lease_end, limit)
    return sorted((span for span in spans if span.end > span.start), key=lambda span: span.start)


def is_promise(request):
    """Returns whether the owner received the lock."""
    if request.command == "renew":
        return request.reply == 1
    return request.is_granted


def double_holders(history, breaks=(), limits=None):
    """G1: certain spans of one lock that overlap and have different owners, more of them than `limits` allows, or 1."""
    found, current = [], {}
    for span in certain_spans(history, breaks):
        others = [other for other in current.get(span.lock, []) if other.end > span.start]
        rivals = [other for other in others if other.owner != span.owner]
        limit = (limits or {}).get(span.lock, 1)
        if limit == 1:
            found += [f"two holders: {rival} and {span}" for rival in rivals]
        elif len({rival.owner for rival in rivals}) >= limit:
            found.append(f"more than {limit} holders: {rivals} and {span}")
        current[span.lock] = [*others, span]
    return found


def token_faults(history, limits=None):
    """G4: tokens rise over all servers and locks.

    A request that was refused for want of replicas, or lost, may have begun a hold all the same. A server may have been
    promoted before it received the end of the hold. If its owner asks again there, it receives the token from then. So
    of two locks the tokens rise by when each hold was first asked for. Of one lock that is held alone they rise by the
    times of the replies.
    """
    grants = [request for request in history if request.is_granted]
    first_asked = first_asks(history)
    found = twice_given(grants, lambda grant: grant.owner)
    found += falling_tokens(grants, lambda grant: first_asked[grant])
    by_lock = {}
    for grant in grants:
        by_lock.setdefault(grant.lock, []).append(grant)
    for lock in by_lock.keys() - (limits or {}).keys():
        found += falling_tokens(by_lock[lock])
    return list(dict.fromkeys(found))


def first_asks(history):
    """When each grant was asked for first: by its own request, or by an earlier one of its owner that got no answer. It
    is the first one since the owner received this lock."""
    found, unanswered = {}, {}
    for request in sorted(history, key=lambda request: request.sent):
        if not request.is_acquire:
            continue
        hold = request.lock, request.owner
        if request.reply is not None:
            found[request] = unanswered.pop(hold, request.sent)
        elif may_have_begun(request.error):
            unanswered.setdefault(hold, request.sent)
    return found


def may_have_begun(error):
    """Returns whether a request for a lock may have begun a hold without its owner knowing."""
    return error.partition(" ")[0] in MAY_HAVE_BEGUN


def never_broken(history, breaks):
    """The requests of those owners whose holds no client can have ended on purpose."""
    holds = defaultdict(list)
    for request in history:
        holds[request.lock, request.owner].append(request)
    return [request for each in holds.values() if not is_broken(each, breaks) for request in each]


def is_broken(requests, breaks):
    """Returns whether a client may have ended a hold on purpose between the first and the last of these requests."""
    first, last = min(each.sent for each in requests), max(each.answered for each in requests)
    met = [each for each in breaks if each.answered > first and each.sent < last]
    return any(each.lock in (None, requests[0].lock) for each in met)


def early_ends(history):
    """G2: owners that lost their hold while its lease ran, according to a reply."""
    found, lease_ends = [], {}
    for request in sorted(history, key=lambda request: request.sent):
        where = request.lock, request.owner
        end = lease_ends.get(where)
        if request.is_granted:
            lease_ends[where] = max(end or 0, request.sent + request.lease)
        elif not request.is_acquire and request.reply == 0:
            if end is not None and request.answered < end:
                found.append(f"ended early: {request}")
            lease_ends.pop(where, None)
        elif request.command == "renew":
            lease_ends[where] = request.sent + request.lease
        elif request.command == "release":
            lease_ends.pop(where, None)
    return found
