"""What may not have been seen: pure functions, with no server and no constant of the module.

Each gives its faults as texts, which begin with what was asked:

    differs     a copy has other locks, leases or times to live than the primary (G13)
    events      the events of a lock are not in an order that a lock can have (G15)
    overwritten a grant took the place of what a user wrote (CONTRACT 5)
    counts      INFO counts something else than LOCK.INFO and LOCK.HELDBY list, or than was published
    idle        a waiter could be granted (G6)
    answers     a request was answered wrongly, twice or not at all (G7, G9)
"""

from .look import NOTHING, NOW, TOTALS

#: By how much leases and times to live may differ between two looks: longer than a round, shorter than what is lost.
AGE_MS = 60_000
#: How many holds a payload may bring, beside those that are there in the end.
RESTORED_MAX = 8

#: Which server events begin and end the life of a value that a user wrote.
WRITTEN = {"set", "sunionstore"}
GONE = {"del", "expired", "rename_from", "move_from", "evicted", "restore", "rename_to", "move_to", "copy_to"}
#: The events of a lock, and which counter counts each.
COUNTED = {
    "lock.acquired": "grants",
    "lock.released": "releases",
    "lock.expired": "expirations",
    "lock.broken": "broken",
}
ENDS = {"lock.released", "lock.expired", "lock.broken"}
#: Replies to a newer request of the same owner that took the older one's place; any other error leaves the older one. A
#: waiter gets WRONGTYPE, too, if another client wrote over the lock after that.
NOT_REFUSED = {None, "WRONGTYPE", "UNBLOCKED"}


# Copies


def differing(primary, copies):
    """G13: {name: view} against the primary's."""
    found = []
    for name, copy in copies.items():
        pairs = [(primary.places[place], copy.places[place], place) for place in primary.places]
        lines = [line for pair in pairs for line in differences(*pair)]
        if copy.digest != primary.digest and not lines:
            lines = ["the digests"]
        found += [f"differs: {name}: {line}" for line in lines]
        if copy.info["holds"] != primary.info["holds"]:
            found.append(f"differs: {name}: INFO counts {copy.info['holds']} holds, not {primary.info['holds']}")
    return found


def differences(here, there, place):
    """How two servers differ in what one name stands for."""
    if here.type != there.type:
        return [f"{place}: type {here.type}, there {there.type}"]
    found = []
    if (here.ttl < 0) != (there.ttl < 0) or abs(here.ttl - there.ttl) > AGE_MS:
        found.append(f"{place}: time to live {here.ttl}, there {there.ttl}")
    ours, theirs = ({hold["owner"]: hold for hold in seen.holders} for seen in (here, there))
    for owner in ours.keys() | theirs.keys():
        mine, other = ours.get(owner), theirs.get(owner)
        if mine is None or other is None:
            found.append(f"{place}: {owner} holds {'there' if mine is None else 'here'} only")
        elif any(mine[name] != other[name] for name in ("token", "count")):
            found.append(f"{place}: {owner} holds {mine}, there {other}")
        elif abs(mine["lease-left-ms"] - other["lease-left-ms"]) > AGE_MS:
            found.append(f"{place}: {owner} has {mine['lease-left-ms']} ms left, there {other['lease-left-ms']}")
    if here.holders and there.holders and (here.kind, here.limit) != (there.kind, there.limit):
        found.append(f"{place}: {here.kind} {here.limit}, there {there.kind} {there.limit}")
    return found


# Events


def disordered(before, after, events):
    """G15: events as ((db, name), event), between two views of a quiet server.

    What is followed of each lock is how many hold it. RESTORE brings holds that are not published. So there may be several answers; the one that INFO gives must be among them.
    """
    found, told = [], {}
    for place, event in events:
        if place is not None:
            told.setdefault(place, []).append(event)
    for place in after.places:
        start, end = (len(view.places.get(place, NOTHING).holders) for view in (before, after))
        told_here = [event for event in told.get(place, []) if event in COUNTED or event == "restore"]
        if not can_lead(start, end, told_here):
            found.append(f"events: {place}: {start} held, then {' '.join(told_here) or 'no event'}, and now {end} hold")
    return found


def can_lead(start, end, events):
    """Whether these events can make `end` holders of `start`."""
    # A state has four numbers:
    # - how many hold;
    # - how many holds were replaced whose end was not published yet;
    # - how many were over when the others were broken, which may be published behind those;
    # - how many payloads are still to be restored.
    # The server tells of RESTORE at once, and so perhaps ahead of what happened to locks before it. It may come
    # anywhere.
    states = with_restored({(start, 0, 0, events.count("restore"))}, end)
    for event in events:
        if event != "restore":
            states = {state for old in states for state in after_event(*old, event)}
            states = with_restored(states, end)
    return (end, 0, 0, 0) in states


def with_restored(states, end):
    """These states, and all that a RESTORE may make of them now."""
    found, newest = set(states), states
    while newest := {
        (brought, owed, late, left - 1)
        for live, replaced, late, left in newest
        if left
        for brought in {*range(RESTORED_MAX), *range(end, end + RESTORED_MAX)}
        for owed in ({0, 1} if live or replaced else {0})
    }:
        found |= newest
    return found


def after_event(live, owed, late, left, event):
    """What can be so after one event of the lock."""
    after = set()
    if event == "lock.broken":
        after |= {(live, 0, late, left)} if owed else {(0, 0, late + over, left) for over in range(live)}
    elif event == "lock.acquired":
        after |= set() if owed else {(live + 1, 0, late, left)}
    elif live:
        after.add((live - 1, owed, late, left))
    if event == "lock.expired" and late:
        after.add((live, owed, late - 1, left))
    return after


def overwritten(after, events):
    """CONTRACT 5: what was written stays until a user or the server removes it. Flushes and swaps are told as no place.

    A grant before the write may be published behind it, with the end of its hold behind that. That happens when the
    end of an earlier hold was still to be published (G15). So a grant is held against the module if no end follows it.
    """
    written, granted, found = set(), set(), []
    for place, event in events:
        if place is None:
            written.clear()
            granted.clear()
        elif event in WRITTEN or event in GONE:
            found += told_as_granted_over([place] if place in granted else [])
            granted.discard(place)
            (written.add if event in WRITTEN else written.discard)(place)
        elif event == "lock.acquired" and place in written:
            granted.add(place)
        elif event in ENDS:
            granted.discard(place)
    missing = [place for place in written if after.places[place].type in ("none", "redislock")]
    found += told_as_granted_over(granted)
    return found + [f"overwritten: {place}: what was written is gone" for place in missing]


def told_as_granted_over(places):
    return [f"overwritten: {place}: a lock was granted over what was written" for place in places]


# Counts


def miscounted(view):
    """INFO and LOCK.HELDBY against what LOCK.INFO lists."""
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
    """Whether the counters moved by what was published, and by what there is more or less now."""
    moved = {name: after.info[name] - before.info[name] for name in TOTALS}
    told = {counter: sum(event == name for _, event in events) for name, counter in COUNTED.items()}
    found = []
    for name in ("grants", "expirations"):
        if moved[name] != told[name]:
            found.append(f"counts: {moved[name]} {name} were counted and {told[name]} published")
    # One event tells of all holds of a lock that were broken.
    for name in ("releases", "broken"):
        if moved[name] < told[name] or (moved[name] and not told[name] and name == "broken"):
            found.append(f"counts: {moved[name]} {name} were counted and {told[name]} published")
    more = after.info["holds"] - before.info["holds"]
    left = moved["grants"] - moved["releases"] - moved["expirations"] - moved["broken"]
    was_restored = any(event == "restore" for _, event in events)
    if left > more or (left < more and not was_restored):
        found.append(f"counts: {moved} were counted, but {more} more hold")
    return found


# Waiting


def idle(view, holders_max):
    """G6: the clients that wait on a connection, and could be granted now."""
    found, parties = [], {}
    for (db, name), waiter in view.waiters():
        if waiter["state"] == "blocked" and waiter["client-id"] is not None:
            parties.setdefault((db, waiter["client-id"]), []).append((name, waiter))
    for (db, client), places in parties.items():
        seen = [(view.places[db, name], waiter) for name, waiter in places]
        if all(fits(place, waiter, holders_max, len(seen) > 1) for place, waiter in seen):
            # (If there is a string in its place, it is told so when its turn comes.)
            is_free = all(place.type in ("none", "redislock") for place, _ in seen)
            what = "could have it and waits" if is_free else "waits for a key that is no lock"
            names = ", ".join(name for name, _ in places)
            found.append(f"idle: {places[0][1]['owner']} {what}: db {db}, {names} (client {client})")
    return found


def fits(place, waiter, holders_max, is_party):
    """Whether nobody who holds the lock, or stands before it in line, is in the way of this one."""
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


# Answers


def misanswered(requests):
    """G9: requests in the order in which they were sent; each knows what it was answered, if it was."""
    found = []
    for number, request in enumerate(requests):
        if request.code == "UNBLOCKED" and "newer request" in request.reply.line:
            newer = [each for each in requests[number + 1 :] if each.may_replace(request)]
            if all(each.code not in NOT_REFUSED for each in newer):
                found.append(f"answers: it lost its place to a request that was refused: {request}, by {newer}")
    return found
