"""G4: tokens rise, no two grants share one, and a resource that compares them takes no old one."""

from math import inf

from .evidence import EXCLUSIVE


def with_highest_before(asked, told):
    """Each of `asked`, pairs of a moment and a request, with the highest token of `told` before that moment.

    `told` are pairs of a moment and a token.
    """
    told, highest, index = sorted(told), 0, 0
    for moment, request in sorted(asked, key=lambda pair: pair[0]):
        while index < len(told) and told[index][0] < moment:
            highest = max(highest, told[index][1])
            index += 1
        yield request, highest


def grants_of(evidence):
    """{token: (time of the request, time of the first reply, locks, owners)}"""
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
    asked = [(grant[0], token) for token, grant in grants.items()]
    for token, highest in with_highest_before(asked, [(grant[1], token) for token, grant in grants.items()]):
        if token < highest:
            found.append(f"token went down: {token} for {grants[token][3]} after {highest}")
    return found


def disordered_writes(evidence):
    """G4: the commands of LOCK.EXEC, in the order in which they ran."""
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


def twice_given(grants, hold_of):
    """G4: tokens of two holds."""
    found, holds = [], {}
    for grant in grants:
        first = holds.setdefault(grant.reply, hold_of(grant))
        if first != hold_of(grant):
            found.append(f"one token, two holds: {first} and {grant}")
    return found


def falling_tokens(grants, asked=lambda grant: grant.sent):
    """G4: by the time that a grant was asked for, no token answered before may have been higher."""
    told = [(grant.answered, grant.reply) for grant in grants]
    first_told = {token: moment for moment, token in sorted(told, reverse=True)}
    return [
        f"token went down: {grant} after {highest}"
        for grant, highest in with_highest_before([(asked(grant), grant) for grant in grants], told)
        if grant.reply < highest and first_told[grant.reply] >= asked(grant)
    ]


def deceived_resources(evidence):
    """G4: the uses of a resource that keeps the highest token it has seen."""
    found, by_resource = [], {}
    for request in evidence.history:
        if request.command == "use":
            by_resource.setdefault((request.lock, request.connection), []).append(request)
    for uses in by_resource.values():
        taken = [(use.answered, use.token) for use in uses if use.reply == 1]
        for use, highest in with_highest_before([(use.sent, use) for use in uses], taken):
            if use.reply == 1 and use.token < highest:
                found.append(f"the resource took an old token: {use} after {highest}")
    for use in evidence.history:
        hold = evidence.by_token.get((use.lock, use.token)) if use.command == "use" else None
        is_alone = hold is not None and hold.mode == EXCLUSIVE and not hold.modes
        if is_alone and use.reply == 0 and hold.covers(use):
            found.append(f"the resource had seen a newer token: {use} while {hold}")
    return found
