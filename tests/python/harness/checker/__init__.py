"""The checker of histories: what no lock can have done, told from what its clients saw (docs/HISTORY_CHECKER.md).

    from harness.checker import MANY, faults
    assert faults(history) == []             at any time one server decided
    assert faults(history, MANY) == []       several servers decided, perhaps without knowing of each other

    evidence.py   what a request is, and what requests to one server prove of holds
    verdict.py    whether locks of one server can have made a history; liveness.py: whether what has to happen did
    many.py       what an owner may rely on whatever becomes of the servers
    journal.py    histories as files; __main__.py: the program that judges them
"""

from . import many, verdict
from .evidence import LOST, UNANSWERED, Request, Seen
from .journal import MANY, ONE, keep
from .many import Break

__all__ = ["LOST", "MANY", "ONE", "UNANSWERED", "Break", "Request", "Seen", "faults", "keep"]


def faults(history, servers=ONE, **known):
    """All that locks which keep their guarantees cannot have done.

    Of many servers these may be known: `breaks` of locks on purpose, `limits` of locks that several may hold. And
    `forgets_nothing`, if a server that was restarted has all that it had.
    """
    return many.faults(history, **known) if servers == MANY else verdict.faults(history, **known)
