"""G1, G2, G12: joint holders of a lock, and the replies of all clients about them."""

from math import inf

from .evidence import EXCLUSIVE, LOST, SHARED, UNANSWERED
from .spans import agree, certain_at, go_together, is_limit, spans_by_lock


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


def wrong_views(evidence):
    """G1, G2: the replies of LOCK.FENCE, INFO, HELDBY, EXEC and DEL against the certain spans."""
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
    """Returns whether a reply denies a certain hold."""
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
    """Holders without a grant, or that exclude each other."""
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
