"""G3, G8: checks the counts in INFO against the state, the events, and the replies to clients."""

from .evidence import LOST, UNANSWERED
from .view import COUNTED, ENDS, NOW, TOTALS


def miscounted(view):
    """INFO and LOCK.HELDBY against LOCK.INFO."""
    held = [(place, hold) for place, hold in view.holders()]
    listed = {"locks": len({place for place, _ in held}), "holds": len(held), "waiters": len(view.waiters())}
    # Keys of empty locks (RENAME) may count as locks, too.
    most = listed | {"locks": sum(seen.type == "redislock" for seen in view.places.values())}
    found = [
        f"counts: INFO has {view.info[name]} {name}, LOCK.INFO lists {listed[name]}"
        for name in NOW
        if not listed[name] <= view.info[name] <= most[name]
    ]
    rows = {owner: [] for owner in view.held_by}
    for (_, name), hold in held:
        rows[hold["owner"]].append((name, "held", hold["token"]))
    for (_, name), waiter in view.waiters():
        rows[waiter["owner"]].append((name, "waiting", None))
    for owner, told in view.held_by.items():
        told = sorted((name, state, token or 0) for name, state, _, token in told)
        wanted = sorted((name, state, token or 0) for name, state, token in rows[owner])
        if told != wanted:
            found.append(f"counts: LOCK.HELDBY {owner} lists {told}, LOCK.INFO {wanted}")
    return found


def unbalanced(before, after, events):
    """Checks that the counters moved by the published events, and by the difference between the two states."""
    moved = {name: after.info[name] - before.info[name] for name in TOTALS}
    told = {counter: sum(event == name for _, event in events) for name, counter in COUNTED.items()}
    found = []
    for name in ("grants", "expirations"):
        if moved[name] != told[name]:
            found.append(f"counts: {moved[name]} {name} were counted and {told[name]} published")
    # One event reports all holds of a lock that were broken.
    for name in ("releases", "broken"):
        if moved[name] < told[name] or (moved[name] and not told[name] and name == "broken"):
            found.append(f"counts: {moved[name]} {name} were counted and {told[name]} published")
    more = after.info["holds"] - before.info["holds"]
    left = moved["grants"] - moved["releases"] - moved["expirations"] - moved["broken"]
    was_restored = any(event == "restore" for _, event in events)
    if left > more or (left < more and not was_restored):
        found.append(f"counts: {moved} were counted, but {more} more hold")
    return found


def left_overs(evidence):
    """G3, G8, G13: the server's state at the end, against the replies to clients."""
    found = []
    for end in evidence.history:
        if end.command == "end":
            found += [f"left at the end: {name} {number}" for name, number in end.reply["left"].items() if number]
            for lock, (wanted, got) in end.reply["permits"].items():
                if wanted != got:
                    found.append(f"not all permits: {got} of {wanted} of {lock}")
            if not end.reply["agrees"]:
                found.append("the replica is not equal at the end")
            found += counted_otherwise(evidence, end.reply["counted"])
    return found


def counted_otherwise(evidence, counted):
    """Counters of INFO that cannot be: {name: how often since the beginning}."""
    codes, locks_of, nils, locks_lost = {}, {}, 0, 0
    for request in evidence.history:
        codes[request.code] = codes.get(request.code, 0) + 1
        if request.is_granted:
            # It may be reported again, by a retry for some of them.
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
