"""The features of the locks that can be used together: the data, and the page that is printed from it.

test_combinations.py tries each cell on real servers. `scripts/combinations` prints docs/reference/combinations.md.
"""

#: Each feature, and its description.
FEATURES = {
    "SHARED": "`LOCK.ACQUIRE ... SHARED`: one of many readers",
    "LIMIT": "`LOCK.ACQUIRE ... LIMIT n`: one of n holders",
    "MACQUIRE": "`LOCK.MACQUIRE`: several locks in one step",
    "BLOCK": "`BLOCK ms`: the request waits in the queue",
    "QUEUE": "`QUEUE ms`: the owner keeps a position in the queue",
    "REENTRANT": "`LOCK.ACQUIRE ... REENTRANT`: the hold counts",
    "EPHEMERAL": "`EPHEMERAL ms`: the lease is cut when the connection closes",
    "KEEPALIVE": "`KEEPALIVE`: the lease does not run while the connection is open",
    "RAISE": "`LOCK.RENEW ... RAISE token`: the hold gets a higher token",
    "EXEC": "`LOCK.EXEC`: a command that runs if the token is live",
    "confirm": "`redislock.confirm` is `all` or `majority`",
    "quarantine": "a quarantine lasts (`redislock.quarantine`)",
    "legacy": "`redislock.legacy-strings` is `yes`, and an old client's string is in the key",
    "RESTORE": "`RESTORE` brings the lock back under its name, in place of what is there",
    "move": "the lock's slot moves to another node of the cluster",
    "evict": "the server may evict locks, and `redislock.allow-eviction` is `no`",
    "leaving": "`redislock.leaving` is `yes`",
}

#: The codes in a cell of `TOGETHER`.
CODES = {
    "+": "They work together.",
    "S": "A syntax error.",
    "X": "An error: only the token of an exclusive hold can be raised.",
    "C": "An error that names `redislock.confirm`. An earlier waiter gets it at its turn; an earlier hold stays.",
    "G": "`CONFIG SET` and the start of the server refuse both together.",
    "M": "`confirm` needs `quarantine`: `CONFIG SET` and the start of the server refuse it alone.",
    "K": "`LOCKKIND`.",
    "N": "Not granted now: nil. With `BLOCK` the request waits, with `QUEUE` it keeps its position.",
    "Q": "`QUARANTINE` for a new hold. A holder's own request is granted.",
    "E": "An error: this server may evict locks. Holders get it, too, but can still renew and release.",
    "L": "An error that names `redislock.leaving`, for a new hold. A holder's own request is granted.",
    "U": "The wait ends with `UNBLOCKED`.",
    "V": "The kept position ends, and the owner is not notified.",
    "D": "The client is redirected to the node that has the slot.",
    "T": "It travels with the lock.",
    "0": "`LOCK.RENEW` answers 0: a string has no token.",
    "F": "`FENCED`: a string has no token.",
    "A": "A dead token is live again, if the payload was dumped while it was live.",
    ".": "Does not apply.",
}

#: Each pair of features, in the order of `FEATURES`. A cell with two codes: of a hold, and of a wait.
TOGETHER = """
           LIMIT MACQUIRE BLOCK QUEUE REENTRANT EPHEMERAL KEEPALIVE RAISE EXEC confirm quarantine legacy RESTORE move evict leaving
SHARED     S     +        +     +     S         +         +         X     +    +       Q          N      T       T    E     L
LIMIT      -     S        +     +     S         +         +         X     +    +       Q          K      T       T    E     L
MACQUIRE   -     -        +     S     S         S         S         +     +    +       Q          N      TU      TD   E     L
BLOCK      -     -        -     S     +         +         +         .     .    +       N          N      U       D    E     L
QUEUE      -     -        -     -     +         +         +         .     .    +       N          N      V       V    E     L
REENTRANT  -     -        -     -     -         +         +         +     +    C       Q          N      T       T    E     L
EPHEMERAL  -     -        -     -     -         -         +         +     +    +       Q          N      T       T    E     L
KEEPALIVE  -     -        -     -     -         -         -         +     +    C       Q          N      T       T    E     L
RAISE      -     -        -     -     -         -         -         -     +    C       +          0      T       T    +     +
EXEC       -     -        -     -     -         -         -         -     -    +       +          F      A       D    +     +
confirm    -     -        -     -     -         -         -         -     -    -       M          G      +       T    E     +
quarantine -     -        -     -     -         -         -         -     -    -       -          +      +       +    E     +
legacy     -     -        -     -     -         -         -         -     -    -       -          -      +       D    +     +
"""

#: The hold of an owner, as a name for each row of `AGAIN`.
HOLDS = {
    "exclusive": "an exclusive hold, of all named keys under one token",
    "SHARED": "a shared hold, of all named keys under one token",
    "LIMIT": "one of n permits (`LIMIT n`)",
    "some": "an exclusive hold of some of the named keys, or of all under several tokens",
    "exclusive-revoked": "an exclusive hold about to be revoked: no reply has delivered it, and none is outstanding",
    "SHARED-revoked": "a shared hold about to be revoked",
    "LIMIT-revoked": "one of n permits, about to be revoked",
    "wait": "a waiting request (`BLOCK`) or a kept position (`QUEUE`), while another owner holds the lock",
}

#: The owner's request, without `BLOCK` and without `QUEUE`, as a name for each column of `AGAIN`.
REQUESTS = {
    "exclusive": "`LOCK.ACQUIRE`",
    "SHARED": "`LOCK.ACQUIRE ... SHARED`",
    "LIMIT": "`LOCK.ACQUIRE ... LIMIT n`, the same n",
    "other-LIMIT": "`LOCK.ACQUIRE ... LIMIT m`, another number",
    "MACQUIRE": "`LOCK.MACQUIRE`",
    "MACQUIRE-SHARED": "`LOCK.MACQUIRE ... SHARED`",
    "RENEW": "`LOCK.RENEW`",
    "RAISE": "`LOCK.RENEW ... RAISE`",
}

#: The codes in a cell of `AGAIN`.
REPLIES = {
    "t": "The token that the owner has: a retry. The lease is never shortened.",
    "d": "A downgrade: the same token, and other readers may join.",
    "H": "`LOCKHELD`; nothing changes.",
    "K": "`LOCKKIND`; nothing changes.",
    "1": "1: done.",
    "0": "0: nothing is held.",
    "X": "An error: only the token of an exclusive hold can be raised.",
    "g": "A new token: the hold is revoked first, and the request is then treated like any other owner's.",
    "C": "An error that names `redislock.confirm`, where replicas confirm grants.",
    "n": "nil; the wait and the position stay.",
}

#: The owner's hold against its request.
AGAIN = """
           exclusive SHARED LIMIT other-LIMIT MACQUIRE MACQUIRE-SHARED RENEW RAISE
exclusive  t         d      K     K           t        H               1     1
SHARED     H         t      K     K           H        t               1     X
LIMIT      K         K      t     K           K        K               1     X
some       t         d      K     K           H        H               1     1
exclusive-revoked t g   g     g           t        g               1     C
SHARED-revoked g    t      g     g           g        t               1     C
LIMIT-revoked g     g      t     g           g        g               1     C
wait       n         n      K     K           n        n               0     0
"""


def cells(text):
    """The cells of a table as {(row, column): codes}. "-" stands where the pair is in the table already."""
    header, *rows = (line.split() for line in text.split("\n") if line)
    found = {}
    for name, *codes in rows:
        assert len(codes) == len(header), f"row {name}"
        found.update({(name, column): code for column, code in zip(header, codes) if code != "-"})
    return found


def table(text):
    """The table in Markdown."""
    header, *rows = (line.split() for line in text.split("\n") if line)
    lines = ["| | " + " | ".join(header) + " |", "|---" * (len(header) + 1) + "|"]
    for name, *codes in rows:
        spaced = (" ".join(code).replace("-", "") for code in codes)
        lines.append(f"| **{name}** | " + " | ".join(spaced) + " |")
    return "\n".join(lines)


def names(meanings):
    """Names and their meanings, in Markdown."""
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {meaning} |" for name, meaning in meanings.items())])


def page():
    """The page for users."""
    return f"""\
# What goes together

<!-- Printed by scripts/combinations from tests/python/harness/combinations.py. Change the data there. -->

This page says which features can be used together, and what the server answers if two cannot.
`tests/python/test_combinations.py` tries each cell on a real server. The [pages of the commands](commands/acquire.md)
list the errors, and [the contract](../internals/contract.md) has the rules.

## Feature and feature

Each pair stands in the table once. If a cell has two codes, the first is for a hold, and the second for a wait.

{table(TOGETHER)}

{names(CODES)}

The features:

{names(FEATURES)}

## What an owner has, and what it asks for

An owner asks for a lock that it already holds or waits for, without `BLOCK` or `QUEUE`. With either of them all answers
but nil are the same. Where the table has n, the newer request takes over the position of the older one.

{table(AGAIN)}

{names(REPLIES)}

What the owner has:

{names(HOLDS)}

What it asks for:

{names(REQUESTS)}

[LOCK.RELEASE](commands/release.md) answers 1 if the owner holds the lock, and otherwise 0. In both cases it ends the
owner's wait for that lock.
"""
