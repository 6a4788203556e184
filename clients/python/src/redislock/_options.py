"""The options that the sync and the asyncio client accept, checked in one place."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable
from typing import Any, TypedDict

from ._rules import OWNER_MOST, SHORTEST_LEASE, Name, as_bytes, check_seconds


class Options(TypedDict, total=False):
    """The options of each lock. Times are seconds."""

    #: Seconds to wait for the lock; 0 does not wait. Default: None, no limit.
    wait: float | None
    #: Seconds for which the server keeps the lock unless it is renewed. Default: the lease of Locks.
    lease: float
    #: True to renew the lease while the lock is held. Default: True.
    renew: bool
    #: Seconds that the hold lasts at most. The last lease is shortened to fit. Default: no limit.
    max_hold: float | None
    #: Seconds that the lock stays taken at least, counted from its grant, whatever happens to the holder. Default:
    #: none.
    min_hold: float | None
    #: One owner for the several locks of a task, so that the server detects its deadlocks: 1 to 256 bytes, and not "*".
    #: Default: the label and a new UUID.
    owner: Name


def check_options(options: Options) -> None:
    """Refuses an unknown option, an invalid time, and a `renew` that is not a bool."""
    for name, value in options.items():
        if name not in Options.__annotations__:
            raise TypeError(f"a lock has no option {name!r}; it has {', '.join(Options.__annotations__)}")
        if name in ("wait", "lease", "min_hold", "max_hold") and (value is not None or name == "lease"):
            check_seconds(name, value, 0.0 if name == "wait" else SHORTEST_LEASE)
    min_hold, max_hold = options.get("min_hold"), options.get("max_hold")
    if min_hold is not None and max_hold is not None and min_hold > max_hold:
        raise ValueError(f"min_hold must be max_hold ({max_hold:g} seconds) or less, not {min_hold!r}")
    if (owner := options.get("owner")) is not None:
        named = as_bytes(owner, "owner")
        if named == b"*" or len(named) > OWNER_MOST:
            # For "*", the server generates an owner: each repetition of a request would have a new one.
            raise ValueError(f"owner must be 1 to {OWNER_MOST} bytes, and not *, not {owner!r}")
    if not isinstance(renew := options.get("renew", True), bool):
        raise TypeError(f"renew must be True or False, not {renew!r}")


def check_template(template: str, function: Callable[..., Any]) -> None:
    """Refuses a lock name that refers to an argument the function does not have."""
    arguments = inspect.signature(function).parameters
    for _, field, _, _ in string.Formatter().parse(template):
        if field is not None and field.split(".")[0].split("[")[0] not in arguments:
            raise ValueError(f"{template!r} names {field!r}, which is not an argument of {name_of(function)}")


def check_function(function: Callable[..., Any]) -> None:
    """Refuses a function whose calls return work that would run later, without the lock."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{name_of(function)} is a generator, which runs after the call, without the lock")


def check_result(function: Callable[..., Any], result: object) -> None:
    """Refuses a result that has not run yet, which would run without the lock."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result) or inspect.isgenerator(result):
            result.close()
        text = f"{name_of(function)} has returned {result!r}, which runs after the call, without the lock"
        raise TypeError(text)


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of a function, or of the function that functools.partial calls."""
    called = getattr(function, "func", function)
    return str(getattr(called, "__name__", called))


def check_calls(**calls: object) -> None:
    """Refuses anything that cannot be called, with its name in the error."""
    for argument, call in calls.items():
        if call is not None and not callable(call):
            raise TypeError(f"{argument} must be a function, not {call!r}")


def name_of_call(template: str, function: Callable[..., Any], arguments: Any, keywords: Any) -> str:
    """Returns the lock name of one call: "report:{id}" with the call's own argument `id`."""
    bound = inspect.signature(function).bind(*arguments, **keywords)
    bound.apply_defaults()
    return template.format(**bound.arguments)


def check_busy(busy: str) -> None:
    """Refuses an unknown word."""
    if busy not in ("raise", "skip"):
        raise ValueError(f'busy must be "raise" or "skip", not {busy!r}')
