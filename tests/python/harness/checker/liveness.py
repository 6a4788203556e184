"""Whether what has to happen did: the part of `verdict` that waits, ends and a resource tell of.

    G6     nobody waits beside a lock that has been free for longer than STALL_SECONDS, nor
           beside holders who had a place for it as long as that
    G7     every request was answered
    G11    no two owners wait longer than that for what the other one certainly holds
    G4     a resource that refuses old tokens never takes one after a newer one, and never
           refuses an owner that certainly holds alone
    G3, G8, G13  when all was done nothing was left, every lock could be taken by as many as
           it lets in, the replica was equal, and what the server counted is what was told

Each goes through the history in the order of time, once for each lock: n log n.
"""

from bisect import bisect_left, bisect_right
from math import inf

from .evidence import ENDS, EXCLUSIVE, LATE_SECONDS, LOST, SHARED, UNANSWERED

#: A grant, or a verdict, that takes longer than this is not late but forgotten.
STALL_SECONDS = 1.0


def stalls(evidence):
    """All faults of these kinds."""
    found = unanswered(evidence) + idle_locks(evidence) + idle_places(evidence)
    return found + missed_deadlocks(evidence) + deceived_resources(evidence) + left_overs(evidence)


def unanswered(evidence):
    """G7: requests that nobody ever answered."""
    return [f"never answered: {r}" for r in evidence.history if r.error == UNANSWERED]


# G6


def idle_locks(evidence):
    """G6: somebody waited, and for all that anybody knows nobody held the lock."""
    taken = may_be_taken(evidence)
    gaps = {lock: gaps_between([span[:2] for span in spans]) for lock, spans in taken.items()}
    found = []
    for wait in waits_for_one(evidence):
        seconds = longest_in(evidence, wait, gaps.get(wait.lock, ([-inf], [inf])))
        if seconds > STALL_SECONDS:
            found.append(f"free for {seconds:.3f} s beside a waiter: {wait}")
    return found


def idle_places(evidence):
    """G6: somebody waited for a place beside holders of its kind, and there was one.

    No request for the lock in another way can have stood before it. `max-holders` is not known here, and must not have
    been reached. `idle_locks` tells of locks that nobody can have held at all.
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
        if seconds > STALL_SECONDS >= longest_in(evidence, wait, free[wait.lock]):
            found.append(f"a place for {seconds:.3f} s beside a waiter: {wait}")
    return found


def waits_for_one(evidence):
    """The requests that waited for one lock, and stayed."""
    waits = (r for r in evidence.history if r.command == "acquire" and r.block is not None)
    return [wait for wait in waits if wait.error != LOST]


def longest_in(evidence, wait, gaps):
    """How long a request waited within one of these gaps at the most."""
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
    """The times (start, end) in which no request of this mode may come in."""
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
    """When each lock may have been held, kept for somebody, or waited for by one of several: {lock: spans}.

    A span is (start, end, how): a mode, or nothing that goes together with anything.
    """
    found = {}
    for hold in evidence.holds:
        # It was told soon after it had begun.
        start = max(hold.born, hold.start - STALL_SECONDS)
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


#: A client that is gone may be granted a lock, which is then taken back.
CLOSING = 1.0


def gaps_between(spans):
    """The time outside of these spans: (starts, ends)."""
    starts, ends, reached = [], [], -inf
    for start, end in sorted(spans):
        if start > reached:
            starts.append(reached)
            ends.append(start)
        reached = max(reached, end)
    return [*starts, reached], [*ends, inf]


# G11


def missed_deadlocks(evidence):
    """G11: two owners who held what the other one waited for, and neither was refused."""
    waits, at_lock, holds, found = {}, {}, {}, []
    for request in evidence.history:
        is_wait = request.command == "acquire" and request.block is not None and request.error != LOST
        if is_wait and request.mode == EXCLUSIVE and request.answered - request.sent > STALL_SECONDS:
            waits.setdefault((request.lock, request.owner), []).append(request)
            at_lock.setdefault(request.lock, []).append(request)
    for hold in evidence.holds:
        if hold.mode == EXCLUSIVE and not hold.modes and hold.end - hold.start > STALL_SECONDS:
            holds.setdefault(hold.owner, []).append(hold)
    for hold in (hold for owned in holds.values() for hold in owned):
        for other in at_lock.get(hold.lock, ()):
            for theirs in holds.get(other.owner, ()):
                for wait in waits.get((theirs.lock, hold.owner), ()):
                    start = max(hold.start, theirs.start, wait.sent, other.sent)
                    end = min(hold.end, theirs.end, wait.answered, other.answered)
                    if end - start > STALL_SECONDS and wait.sent <= other.sent:
                        found.append(f"a deadlock that nobody was told of: {wait} and {other}")
    return found


# The resource


def deceived_resources(evidence):
    """G4: what happened at a resource that keeps the highest token it has seen."""
    found, by_resource = [], {}
    for request in evidence.history:
        if request.command == "use":
            by_resource.setdefault((request.lock, request.connection), []).append(request)
    for uses in by_resource.values():
        taken = sorted((use.answered, use.token) for use in uses if use.reply == 1)
        highest, index = 0, 0
        for use in uses:
            while index < len(taken) and taken[index][0] < use.sent:
                highest = max(highest, taken[index][1])
                index += 1
            if use.reply == 1 and use.token < highest:
                found.append(f"the resource took an old token: {use} after {highest}")
    for use in evidence.history:
        hold = evidence.by_token.get((use.lock, use.token)) if use.command == "use" else None
        is_alone = hold is not None and hold.mode == EXCLUSIVE and not hold.modes
        if is_alone and use.reply == 0 and hold.covers(use):
            found.append(f"the resource had seen a newer token: {use} while {hold}")
    return found


# When all was done


def left_overs(evidence):
    """G3, G8, G13: what the server shows at the end, against what clients were told."""
    found = []
    for end in evidence.history:
        if end.command == "end":
            found += [f"left at the end: {name} {number}" for name, number in end.reply["left"].items() if number]
            for lock, (wanted, got) in end.reply["permits"].items():
                if wanted != got:
                    found.append(f"not all permits: {got} of {wanted} of {lock}")
            if not end.reply["agrees"]:
                found.append("the replica is not equal at the end")
            found += unbalanced(evidence, end.reply["counted"])
    return found


def unbalanced(evidence, counted):
    """Counters of INFO that cannot be: {name: how often since the beginning}."""
    codes, locks_of, nils, locks_lost = {}, {}, 0, 0
    for request in evidence.history:
        codes[request.code] = codes.get(request.code, 0) + 1
        if request.is_granted:
            # It may be told again, by a retry for some of them.
            locks_of[request.reply] = max(locks_of.get(request.reply, 0), len(request.keys))
        locks_lost += len(request.keys) if request.error in (LOST, UNANSWERED) else 0
        is_nil = request.is_acquire and not request.error and request.reply is None
        nils += is_nil and request.block is not None
    lost = codes.get(LOST, 0) + codes.get(UNANSWERED, 0)
    at_least = {"fenced": codes.get("FENCED", 0), "deadlocks": codes.get("DEADLOCK", 0)}
    at_least["grants"] = sum(locks_of.values())
    most = {name: number + lost for name, number in at_least.items()} | {"timeouts": nils + lost}
    most["fenced"] -= lost
    most["grants"] += locks_lost - lost
    ends = sum(counted.get(name, 0) for name in ENDS)
    found = [
        f"counted {counted[name]} {name}, where clients were told of {at_least.get(name, 0)} and at most {limit}"
        for name, limit in most.items()
        if name in counted and not at_least.get(name, 0) <= counted[name] <= limit
    ]
    if ENDS[0] in counted and counted["grants"] != ends:
        found.append(f"counted {counted['grants']} grants, of which {ends} have ended")
    return found
