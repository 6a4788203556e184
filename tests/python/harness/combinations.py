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
    "REENTRANT": "`LOCK.ACQUIRE ... REENTRANT`: repeated requests are counted",
    "EPHEMERAL": "`EPHEMERAL ms`: the lease is cut to `ms` when the connection closes",
    "KEEPALIVE": "`KEEPALIVE`: the lease is paused while the connection is open",
    "RAISE": "`LOCK.RENEW ... RAISE token`: the hold gets a higher token",
    "EXEC": "`LOCK.EXEC`: a command that runs if the token is live",
    "confirm": "`redislock.confirm` is `all` or `majority`",
    "quarantine": "the server is in a quarantine (`redislock.quarantine`)",
    "legacy": "`redislock.legacy-strings` is `yes`, and the key holds an old client's string",
    "RESTORE": "`RESTORE` brings the lock back under its own name, replacing what is there",
    "move": "the lock's slot moves to another node of the cluster",
    "evict": "the server may evict locks, and `redislock.allow-eviction` is `no`",
    "leaving": "`redislock.leaving` is `yes`",
}

#: The codes in a cell of `TOGETHER`.
CODES = {
    "+": "They work together.",
    "S": "A syntax error.",
    "X": "An error: only the token of an exclusive hold can be raised.",
    "C": "An error that names `redislock.confirm`. Earlier waiters get it at their turn; earlier holds stay.",
    "G": "The server refuses both together, at its start and in `CONFIG SET`.",
    "M": "The server refuses `confirm` without `quarantine`, at its start and in `CONFIG SET`.",
    "K": "`LOCKKIND`.",
    "N": "Not granted now: nil. With `BLOCK` the request waits; with `QUEUE` its owner keeps a position.",
    "Q": "`QUARANTINE` for a new hold. Holders that ask again get their token.",
    "E": "The error `this server may evict locks`. Holders get it, too, but can still renew and release.",
    "L": "An error that names `redislock.leaving`, for a new hold. Holders that ask again get their token.",
    "U": "The wait ends with `UNBLOCKED`.",
    "V": "The kept position ends, and the owner is not notified.",
    "D": "The client is redirected to the node that has the slot.",
    "T": "The lock keeps the feature of the row, but a lease that `KEEPALIVE` had paused begins to run.",
    "0": "`LOCK.RENEW` returns 0, because a string has no token.",
    "F": "`FENCED`, because a string has no token.",
    "A": "A dead token becomes live again if the payload was dumped while it was live.",
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
    "exclusive": "an exclusive hold on all requested keys, under one token",
    "SHARED": "a shared hold on all requested keys, under one token",
    "LIMIT": "one of n permits (`LIMIT n`)",
    "some": "an exclusive hold on some of the requested keys, or on all under several tokens",
    "exclusive-revoked": "an exclusive hold about to be revoked: no positive reply for it was sent, and none is on its way",
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
    "t": "The token that the owner has, as for a retry. The lease is never shortened.",
    "d": "The same token: the hold is downgraded, and other readers may join.",
    "H": "`LOCKHELD`; nothing changes.",
    "K": "`LOCKKIND`; nothing changes.",
    "1": "1: renewed.",
    "0": "0: the owner holds nothing.",
    "X": "An error: only the token of an exclusive hold can be raised.",
    "g": "A new token: the server first revokes the hold, and then treats the request like any other owner's.",
    "C": "An error that names `redislock.confirm`, if that setting is `all` or `majority`.",
    "n": "nil; the wait or the position stays.",
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

This page says which features can be used together, and what happens if two cannot.
`tests/python/test_combinations.py` tries each cell on a real server. The [pages of the commands](commands/acquire.md)
list the errors, and [the contract](../internals/contract.md) has the rules.

## Feature and feature

Each pair is in the table once: for an empty cell, see the row of the other feature. If a cell has two codes, the first
is for a hold, and the second for a wait.

{table(TOGETHER)}

{names(CODES)}

The features:

{names(FEATURES)}

## What an owner has, and what it asks for

Each row is what an owner already has, and each column what it asks for, without `BLOCK` or `QUEUE`. With one of these
options the replies are the same, except where the table says n: there the newer request takes over the position of the
older one.

{table(AGAIN)}

{names(REPLIES)}

What the owner has:

{names(HOLDS)}

What it asks for:

{names(REQUESTS)}

[LOCK.RELEASE](commands/release.md) returns 1 if the owner holds the lock, and otherwise 0. Either way, it ends the
owner's wait for that lock.
"""
