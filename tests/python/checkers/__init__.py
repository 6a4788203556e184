"""The checkers: violations that no lock can have shown, from any point of view (docs/internals/history-checker.md).

They read two things. A *history* is all that clients asked and were replied. A *view* is the state of all locks on one
server at one moment. Each file defends guarantees, and has the checks of both:

    exclusivity   G1, G2, G12   who held a lock together, and whether what anybody saw agrees with it
    tokens        G4            tokens rise, and a resource takes no old one
    fifo          G5            waiters are granted in the order of the queue
    liveness      G6            nobody waits beside a lock that is free
    answers       G7, G9        each request is answered, and by a reply that it can get
    deadlocks     G11           a deadlock is one, and none is missed
    replication   G13           a copy has what its primary has
    events        G15           a lock can have had these events, in this order
    counts        G3, G8        INFO counts what is there, and what was published and told
    many          G1, G2, G4    what an owner may rely on if several servers decide

    from checkers import MANY, faults
    assert faults(history) == []             at any time one server decided
    assert faults(history, MANY) == []       several servers decided, perhaps without knowing of each other

Also: evidence.py (conclusions from requests to one server), spans.py (these as spans of time), view.py,
journal.py (histories as files), and __main__.py, the program that judges such files.
"""

from . import many
from .answers import early_nils, strange_errors, unanswered
from .counts import left_overs
from .deadlocks import false_cycles, missed_deadlocks
from .evidence import LOST, STALL_SECONDS, UNANSWERED, Evidence, Request, Seen
from .exclusivity import overlaps, parts_of_grants, wrong_kinds, wrong_views
from .fifo import passed_in_queue
from .journal import MANY, ONE, keep
from .liveness import idle_locks, idle_places
from .many import Break
from .tokens import deceived_resources, disordered_writes, token_faults

__all__ = ["LOST", "MANY", "ONE", "STALL_SECONDS", "UNANSWERED", "Break", "Request", "Seen", "faults", "keep"]

#: The checks of a history of one server, in the order in which their faults are listed.
OF_HISTORIES = (
    overlaps, token_faults, disordered_writes, early_nils, strange_errors, wrong_views, wrong_kinds, parts_of_grants,
    passed_in_queue, false_cycles, unanswered, idle_locks, idle_places, missed_deadlocks, deceived_resources, left_overs,
)  # fmt: skip


def faults(history, servers=ONE, stall_seconds=STALL_SECONDS, **known):
    """All that locks which keep their guarantees cannot have done.

    Of many servers these may be known: `breaks` of locks on purpose, `limits` of locks that several may hold. And
    `forgets_nothing`, if a server that was restarted has all that it had.

    One server may take `stall_seconds` to grant a lock that is free, or to see a deadlock.
    """
    if servers == MANY:
        return many.faults(history, **known)
    evidence = Evidence(history, stall_seconds)
    return evidence.faults + [fault for check in OF_HISTORIES for fault in check(evidence)]
