"""G15, CONTRACT 5: whether a lock can have had these events, in this order."""

from .view import COUNTED, END_EVENTS, NOTHING

#: The number of holds that a payload may bring, in addition to those that are there in the end.
RESTORED_MAX = 8

#: The server events that begin and end the life of a value that a user wrote.
WRITTEN = {"set", "sunionstore"}
GONE = {"del", "expired", "rename_from", "move_from", "evicted", "restore", "rename_to", "move_to", "copy_to"}


def disordered(before, after, events):
    """G15: events as ((db, name), event), between two views of a quiet server.

    The state that is followed is the number of holders of each lock. RESTORE brings holds that are not published. So
    there may be several answers; the one that INFO gives must be among them.
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
    """Returns whether these events can make `end` holders of `start`."""
    # A state has four numbers:
    # - how many hold;
    # - how many holds were replaced whose end was not published yet;
    # - the number of holds that had expired when the others were broken, which may be published after those;
    # - how many payloads are still to be restored. The server reports RESTORE at once, and so perhaps before earlier
    # events of locks. It may come anywhere.
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
    """The possible states after one event of the lock."""
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
    """CONTRACT 5: a written value stays until a user or the server removes it. Flushes and swaps are reported with no
    place.

    A grant before the write may be published after it, with the end of its hold after that. That happens when the end
    of an earlier hold was still to be published (G15). So a grant is held against the module if no end follows it.
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
        elif event in END_EVENTS:
            granted.discard(place)
    missing = [place for place in written if after.places[place].type in ("none", "redislock")]
    found += told_as_granted_over(granted)
    return found + [f"overwritten: {place}: what was written is gone" for place in missing]


def told_as_granted_over(places):
    return [f"overwritten: {place}: a lock was granted over what was written" for place in places]
