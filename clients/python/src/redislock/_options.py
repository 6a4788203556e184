"""What the sync and the asyncio client accept, read once for both."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable
from typing import Any, TypedDict

from ._rules import OWNER_MOST, SHORTEST_LEASE, Name, as_bytes, check_seconds


class Options(TypedDict, total=False):
    """The options of each lock. Times are seconds."""

    #: How long to wait; 0: not at all; None, which is the default: for as long as it takes.
    wait: float | None
    #: The lease. Default: that of Locks.
    lease: float
    #: Whether the lease is renewed while the lock is held. Default: it is.
    renew: bool
    #: The hold ends at the latest after this time: its last lease is cut to it. Default: no limit.
    max_hold: float | None
    #: The lock stays taken for this time from the grant at least, whatever becomes of the holder. Default: it does not.
    min_hold: float | None
    #: The owner, instead of a fresh one: 1 to 256 bytes, and not "*". Give the locks of one task the same: the server
    #: then sees its deadlocks.
    owner: Name


def check_options(options: Options) -> None:
    """Refuses an unknown option, a time that is none, and what does not say whether to renew."""
    for name in options:
        if name not in Options.__annotations__:
            raise TypeError(f"a lock has no option {name!r}; it has {', '.join(Options.__annotations__)}")
    for name in ("wait", "lease", "min_hold", "max_hold"):
        value: Any = options.get(name)
        if value is not None or (name == "lease" and name in options):
            check_seconds(name, value, 0.0 if name == "wait" else SHORTEST_LEASE)
    min_hold, max_hold = options.get("min_hold"), options.get("max_hold")
    if min_hold is not None and max_hold is not None and min_hold > max_hold:
        raise ValueError(f"min_hold must be max_hold ({max_hold:g} seconds) or less, not {min_hold!r}")
    if (owner := options.get("owner")) is not None:
        named = as_bytes(owner, "owner")
        if named == b"*" or len(named) > OWNER_MOST:
            # The server makes an owner of its own of "*": each repetition of a request would be another one.
            raise ValueError(f"owner must be 1 to {OWNER_MOST} bytes, and not *, not {owner!r}")
    if not isinstance(renew := options.get("renew", True), bool):
        raise TypeError(f"renew is True or False, not {renew!r}")


def check_template(template: str, function: Callable[..., Any]) -> None:
    """Refuses a name that speaks of an argument that the function does not have."""
    arguments = inspect.signature(function).parameters
    for _, field, _, _ in string.Formatter().parse(template):
        if field is not None and field.split(".")[0].split("[")[0] not in arguments:
            raise ValueError(f"{template!r} names {field!r}, which is no argument of {name_of(function)}")


def check_function(function: Callable[..., Any]) -> None:
    """Refuses a function whose calls only make what runs later, without the lock."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{name_of(function)} is a generator, which runs when its call is over, without the lock")


def check_result(function: Callable[..., Any], result: object) -> None:
    """Refuses a result that is yet to run, which would be without the lock."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result) or inspect.isgenerator(result):
            result.close()
        text = f"{name_of(function)} has returned {result!r}, which runs when its call is over, without the lock"
        raise TypeError(text)


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, or of what functools.partial calls."""
    called = getattr(function, "func", function)
    return str(getattr(called, "__name__", called))


def check_calls(**calls: object) -> None:
    """Refuses what cannot be called, under its name."""
    for argument, call in calls.items():
        if call is not None and not callable(call):
            raise TypeError(f"{argument} must be a function, not {call!r}")


def name_of_call(template: str, function: Callable[..., Any], arguments: Any, keywords: Any) -> str:
    """The name of the lock of one call: "report:{id}" with the call's own argument `id`."""
    bound = inspect.signature(function).bind(*arguments, **keywords)
    bound.apply_defaults()
    return template.format(**bound.arguments)


def check_busy(busy: str) -> None:
    """Refuses a word that is not known."""
    if busy not in ("raise", "skip"):
        raise ValueError(f'busy is "raise" or "skip", not {busy!r}')
