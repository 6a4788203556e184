"""What the sync and the asyncio client accept, read once for both."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from ._rules import SHORTEST_LEASE, Kind, Name, Wanted, as_bytes, check_seconds, new_owner


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
    #: The owner, instead of a fresh one: 1 to 256 bytes, and not "*". Use no owner twice.
    owner: Name


def check_options(options: Options) -> None:
    """Refuses an unknown option, a time that is none, and what does not say whether to renew."""
    for name in options:
        if name not in Options.__annotations__:
            raise TypeError(f"a lock has no option {name!r}; it has {', '.join(Options.__annotations__)}")
    for name, least in (("wait", 0.0), ("lease", SHORTEST_LEASE), ("max_hold", SHORTEST_LEASE)):
        value: Any = options.get(name)
        if value is not None or (name == "lease" and name in options):
            check_seconds(name, value, least)
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


def wanted(names: Sequence[Name], kind: Kind, limit: int | None, lease: float, options: Options) -> Wanted:
    """The request that one acquire makes of its options."""
    owner, max_hold, lease = options.get("owner"), options.get("max_hold"), options.get("lease", lease)
    return Wanted(
        names=tuple(as_bytes(name) for name in names),
        lease=lease if max_hold is None else min(lease, max_hold),
        kind=kind,
        limit=limit,
        owner=new_owner() if owner is None else as_bytes(owner),
    )


def check_leader(name: Name, lease: float, **calls: object) -> None:
    """Refuses a leader that could never lead, for an election has no caller who would be told."""
    for argument, call in calls.items():
        if call is not None and not callable(call):
            raise TypeError(f"{argument} is a function, not {call!r}")
    check_options({"lease": lease})
    wanted([name], "exclusive", None, lease, {})


def name_of_call(template: str, function: Callable[..., Any], arguments: Any, keywords: Any) -> str:
    """The name of the lock of one call: "report:{id}" with the call's own argument `id`."""
    bound = inspect.signature(function).bind(*arguments, **keywords)
    bound.apply_defaults()
    return template.format(**bound.arguments)


def check_busy(busy: str) -> None:
    """Refuses a word that is not known."""
    if busy not in ("raise", "skip"):
        raise ValueError(f'busy is "raise" or "skip", not {busy!r}')
