"""G13: whether a copy has the locks, leases and times to live of its primary."""

#: The difference of leases and times to live between two looks: longer than a round, shorter than a lost part.
AGE_MS = 60_000


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
    """The differences between two servers in the value of one name."""
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
