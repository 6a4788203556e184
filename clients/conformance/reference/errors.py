"""Distinguishable errors."""

import re

from breaks import is_broken


class LockError(Exception):
    """Any of them; `more` is sent with the kind."""

    #: True if a server refused the request and granted nothing for it.
    granted_nothing = False

    def __init__(self, message="", **more):
        super().__init__(message)
        self.more = more


class LockTimeout(LockError):
    """It was not granted in time."""


class LockLost(LockError):
    """The hold has ended."""


class Deadlock(LockError):
    """The wait would never end."""


class Fenced(LockError):
    """The token is dead."""


class AlreadyHeld(LockError):
    """The owner, or the task that asks, holds it already."""


class LockKindMismatch(LockError):
    """The lock is of another kind."""


class QueueFull(LockError):
    """Too many wait."""


class Quarantine(LockError):
    """Nothing is granted yet."""


class NotConfirmed(LockError):
    """Too few replicas."""


class ModuleMissing(LockError):
    """The commands are not known."""


class ConnectionFailed(LockError):
    """No server was reached."""


class Other(LockError):
    """All else."""


#: Codes that have an error of their own. All others are `Other`.
CODES = {
    "LOCKKIND": LockKindMismatch,
    "LOCKHELD": AlreadyHeld,
    "LOCKQUEUE": QueueFull,
    "DEADLOCK": Deadlock,
    "FENCED": Fenced,
    "QUARANTINE": Quarantine,
    "NOREPLICAS": NotConfirmed,
}
#: Refusals that prove that no earlier attempt was granted either.
NEVER_GRANTED = (AlreadyHeld, LockKindMismatch, QueueFull, Deadlock)


#: Errors of a server that is not, or no longer, the one to ask.
ELSEWHERE = ("READONLY", "UNBLOCKED", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "LOADING")
#: The driver has classes of its own for some codes, and takes these off the text.
CODE_OF = {
    "ReadOnlyError": "READONLY", "MovedError": "MOVED", "AskError": "ASK", "TryAgainError": "TRYAGAIN",
    "ClusterDownError": "CLUSTERDOWN", "MasterDownError": "MASTERDOWN", "BusyLoadingError": "LOADING",
}  # fmt: skip


def said_by(error):
    """Returns the server's message, or the failure, as text that begins with the server's code."""
    name = type(error).__name__
    text = str(error) or name
    if name in CODE_OF and not text.startswith(CODE_OF[name]):
        text = f"{CODE_OF[name]} {text}"
    return text + (": the address leads to a replica" if text.startswith("READONLY") else "")


def translated(error, is_doubtful=False):
    """Translates an error of the driver to one of these. If `is_doubtful`, an earlier attempt may have been granted."""
    found = _translated(error)
    is_clear = not is_doubtful and not isinstance(found, NotConfirmed)
    found.granted_nothing = is_clear or isinstance(found, NEVER_GRANTED)
    return found


def _translated(error):
    text = str(error)
    kind = CODES.get(text.partition(" ")[0])
    if is_broken("one-kind-of-error"):
        return Other(text)
    if kind is Deadlock:
        return Deadlock(text, cycle=re.findall(r"'(.*?)' waits for '(.*?)' and there for '(.*?)'", text))
    if kind is Quarantine:
        return Quarantine(text, left_ms=int(text.split()[1]))
    if kind is not None:
        return kind(text)
    if "unknown command" in text:
        return ModuleMissing(f"{text}: load the module, by `loadmodule /path/to/libredislock.so` in the configuration")
    return Other(f"{getattr(error, 'status_code', '')} {type(error).__name__} {text}")
