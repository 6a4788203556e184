"""Whether locks of all kinds can have made a history.

    G1     certain holds of one lock go together: alone, shared with shared, at most n of
           LIMIT n; and what anybody saw agrees with them
    G2     nobody was told that a hold is over before it can have been, nor that it lives
           when it cannot (`evidence`)
    G4     of two grants, one answered before the other was asked for, the later has the
           higher token. One token is one grant's. A write under an older token never comes
           after one under a newer token that was held alone
    G5     waiters that were seen in the queue were granted in that order
    G7     nil not before the wait was over, unless the owner withdrew
    G9     an owner that holds and asks again gets the same token (`evidence`)
    G11    a deadlock names owners who may have waited there, for owners who may have been there
    G3, G6, G7, G8, G13  that what has to happen does (`liveness`)
    G12    a request for several has all or none, whenever somebody looks
"""

import re
from bisect import bisect_right
from itertools import accumulate, pairwise
from math import inf

from .evidence import EXCLUSIVE, LATE_SECONDS, LOST, SHARED, UNANSWERED, Evidence
from .liveness import stalls

LINK = re.compile(r"'([^']*)' waits for '([^']*)' and there for '([^']*)'")


def faults(history):
    """All that locks which keep their guarantees cannot have done."""
    evidence = Evidence(history)
    found = list(evidence.faults)
    for check in (
        overlaps, token_faults, disordered_writes, early_nils, strange_errors, wrong_views,
        wrong_kinds, parts_of_grants, passed_in_queue, false_cycles, stalls,
    ):  # fmt: skip
        found += check(evidence)
    return found


def is_limit(mode):
    """Whether this is the mode of a semaphore."""
    return mode.startswith("limit")


def agree(one, other):
    """Whether a lock can be asked for in both ways at the same time."""
    return one == other or not (is_limit(one) or is_limit(other))


def go_together(one, other):
    """Whether a lock can be held in both ways at the same time."""
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


def overlaps(evidence):
    """G1"""
    found = []
    for spans in spans_by_lock(evidence).values():
        live = []
        for span in spans:
            start, _, mode, hold = span
            live = [other for other in live if other[1] > start and other[3] is not hold]
            for other in live:
                if not go_together(mode, other[2]):
                    found.append(f"two holders: {other[3]} and {hold}")
            live.append(span)
            same = sum(other[2] == mode for other in live)
            if is_limit(mode) and same > int(mode.split()[1]):
                found.append(f"{same} holders: {[other[3] for other in live]}")
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


# G4


def grants_of(evidence):
    """{token: (when it was asked for, when it was told first, locks, owners)}"""
    found = {}
    for request in evidence.history:
        if request.is_granted:
            sent, answered, locks, owners = found.get(request.reply, (inf, inf, set(), set()))
            found[request.reply] = (
                min(sent, request.sent),
                min(answered, request.answered),
                locks | set(request.keys),
                owners | {request.owner},
            )
    return found


def token_faults(evidence):
    """G4: tokens that go down, or that two grants share."""
    found, grants = [], grants_of(evidence)
    several = {}
    for request in evidence.history:
        if request.is_granted and request.command == "macquire":
            several.setdefault(request.reply, set()).update(request.keys)
    for token, (_, _, locks, owners) in grants.items():
        if len(owners) > 1 or (len(locks) > 1 and not locks <= several.get(token, set())):
            found.append(f"one token, two grants: {token} for {owners} and {locks}")
    answered = sorted((answered, token) for token, (_, answered, _, _) in grants.items())
    highest, index = 0, 0
    for sent, token in sorted((grant[0], token) for token, grant in grants.items()):
        while index < len(answered) and answered[index][0] < sent:
            highest = max(highest, answered[index][1])
            index += 1
        if token < highest:
            found.append(f"token went down: {token} for {grants[token][3]} after {highest}")
    return found


def disordered_writes(evidence):
    """G4: what LOCK.EXEC ran, in the order in which it ran."""
    found = []
    for lock, runs in evidence.runs.items():
        counts = sorted(
            ((run, alone) for run, alone in runs if run.command == "count"),
            key=lambda pair: pair[0].reply,
        )
        numbers = [run.reply for run, _ in counts]
        if numbers != list(range(1, len(numbers) + 1)):
            found.append(f"not every command ran once: {lock} counts {numbers}")
        highest = 0
        for run, is_alone in counts:
            if run.token < highest:
                found.append(f"ran after a newer token: {run} after {highest}")
            highest = max(highest, run.token if is_alone else 0)
        for run, is_alone in runs:
            if run.command == "write" and is_alone and int(run.reply or 0) > run.token:
                found.append(f"ran after a newer token: {run}")
    return found


# Replies


def early_nils(evidence):
    """G7: nil before the wait was over."""
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


EXPECTED = {
    "acquire": {LOST, UNANSWERED, "LOCKKIND", "LOCKHELD", "DEADLOCK", "UNBLOCKED"},
    "macquire": {LOST, UNANSWERED, "LOCKKIND", "LOCKHELD", "DEADLOCK", "UNBLOCKED"},
    "count": {"FENCED", UNANSWERED},
    "write": {"FENCED", UNANSWERED},
}


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


def wrong_views(evidence):
    """G1, G2: what LOCK.FENCE, INFO, HELDBY, EXEC and DEL told against what was certain."""
    commands = {"fence", "info", "count", "write", "del"}
    looks = [r for r in evidence.history if r.command in commands and r.error not in (LOST, UNANSWERED)]
    found = []
    for _, look, spans in certain_at(evidence, looks):
        holds = [hold for _, _, _, hold in spans]
        if holds and is_against(look, spans):
            found.append(f"it was held: {look} while {holds}")
    found += wrong_pictures(evidence)
    return found


def is_against(look, spans):
    """Whether a reply denies what was certain."""
    tokens = [hold.token for _, _, _, hold in spans]
    if look.command == "fence" and look.token is None:
        return look.reply is None or look.reply < max(tokens)
    if look.command == "fence":
        return look.reply == 0 and look.token in tokens
    if look.command in ("count", "write"):
        return look.code == "FENCED" and look.token in tokens
    if look.command == "del":
        return look.reply == 0
    if look.reply is None:
        return True
    if not all(agree(mode, look.reply.kind) for _, _, mode, _ in spans):
        return True
    # LOCK.INFO shows the oldest tokens, and counts those that it leaves out.
    seen = {(owner, token) for owner, token, _ in look.reply.holders}
    missing = [hold.token for _, _, _, hold in spans if (hold.owner, hold.token) not in seen]
    newest = max((token for _, token in seen), default=0)
    left_out = max(0, look.reply.holds - len(seen))
    return len(missing) > left_out or any(token <= newest for token in missing)


def wrong_pictures(evidence):
    """Holders that nobody was made, or that cannot be together."""
    found = []
    for look in evidence.history:
        if look.error or not look.reply:
            continue
        if look.command == "info":
            holders, kind = look.reply.holders, look.reply.kind
            most = {EXCLUSIVE: 1, SHARED: inf}.get(kind) or int(kind.split()[1])
            if len(holders) > most or len({holder[0] for holder in holders}) < len(holders):
                found.append(f"too many holders: {look}")
            seen = [(look.lock, owner, token) for owner, token, _ in holders]
        elif look.command == "heldby":
            rows = [row for row in look.reply if row[1] == "held"]
            seen = [(lock, look.owner, token) for lock, _, _, token in rows]
        else:
            continue
        for lock, owner, token in seen:
            hold = evidence.by_token.get((lock, token))
            if hold is None and owner not in evidence.unheard:
                found.append(f"nobody was granted this: {owner} with {token} in {look}")
            elif hold is not None and (hold.owner != owner or look.answered < hold.born):
                found.append(f"another's token: {owner} with {token} in {look}, {hold}")
    return found


def wrong_kinds(evidence):
    """LOCKKIND is for those who do not agree with how a lock is held, and for all of them."""
    asks = [r for r in evidence.history if r.is_acquire and r.error not in (LOST, UNANSWERED)]
    found = []
    for _, request, spans in certain_at(evidence, asks):
        for _, _, mode, hold in spans:
            does_agree = agree(mode, request.mode)
            is_alone = len(request.keys) == 1  # else another key may be the reason
            if request.code == "LOCKKIND" and does_agree and is_alone:
                found.append(f"of the same kind: {request} while {hold}")
            elif request.code != "LOCKKIND" and not does_agree:
                found.append(f"of another kind: {request} while {hold}")
    return found


# Several


def parts_of_grants(evidence):
    """G12: HELDBY shows all holds of an owner at one moment."""
    by_owner, by_token = {}, {}
    for hold in evidence.holds:
        by_owner.setdefault(hold.owner, []).append(hold)
        by_token.setdefault(hold.token, []).append(hold)
    found = []
    for look in evidence.history:
        if look.command != "heldby" or look.error:
            continue
        rows = {(lock, token) for lock, state, _, token in look.reply if state == "held"}
        for hold in by_owner.get(look.owner, []):
            if hold.covers(look) and (hold.lock, hold.token) not in rows:
                found.append(f"not shown: {hold} in {look}")
        for _, token in rows:
            for hold in by_token.get(token, []):
                is_there = hold.end >= look.answered
                if is_there and (hold.lock, token) not in rows:
                    found.append(f"a part of a grant: {hold} is not in {look}")
    return found


# Lines


def requests_by_owner(evidence):
    """All requests for locks: {(lock, owner): [request]}."""
    found = {}
    for request in evidence.history:
        for key in request.keys if request.is_acquire else ():
            found.setdefault((key, request.owner), []).append(request)
    return found


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


def false_cycles(evidence):
    """G11: what can be told from outside of the cycle that a refusal names."""
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


def is_minted(owner):
    """Whether this is an owner that the server made; a client that is refused is not told its name."""
    return len(owner) == 36 and owner.count("-") == 4
