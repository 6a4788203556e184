"""The blocks of one lock object that have been entered and not left."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Hashable
from contextlib import AsyncExitStack, ExitStack
from contextvars import ContextVar
from types import FrameType
from typing import Any, Generic, TypeVar

from ._hold import BaseHold

H = TypeVar("H", bound=BaseHold)
_UNKNOWN = "leave a lock in the block, or else in the thread or task, that has entered it, for several are inside"
_METHODS = ("__enter__", "__exit__", "__aenter__", "__aexit__")


class Block(Generic[H]):
    """A block that has entered a lock: the frame of a `with` statement, or a stack of contexts.

    Both may be left in another thread or task than they were entered in. So a frame is identified by more than its
    thread: a worker thread may have entered for several generators, and leave for others.
    """

    def __init__(self, inside: Inside[H], who: Hashable) -> None:
        self.who = who
        #: None while it enters.
        self.hold: H | None = None
        self.is_unclear = False
        where = _where()
        self.frame = where if isinstance(where, FrameType) else None
        # A stack without references will never be left, so its entries are dropped.
        self._stack = None if self.frame else weakref.ref(where, lambda _: inside.drop(self))

    def is_at(self, where: object) -> bool:
        """Returns whether this frame or stack has entered."""
        return where is (self.frame if self._stack is None else self._stack())

    def is_of(self, who: Hashable) -> bool:
        """Returns whether this thread or task is in the block: not in a generator, for instance, that continues
        elsewhere."""
        if self.who is not who or self.frame is None:
            return False
        return not self.frame.f_code.co_flags & inspect.CO_GENERATOR or self.runs()

    def runs(self) -> bool:
        """Returns whether the caller runs inside the block."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is not None


#: The blocks in which this code runs.
_above: ContextVar[tuple[weakref.ref[Block[Any]], ...]] = ContextVar("redislock", default=())


def blocks_above(who: Hashable) -> list[Block[Any]]:
    """Returns the blocks that this thread or task has entered and not left. It cannot leave them while it waits."""
    blocks = [found for each in _above.get() if (found := each()) is not None]
    return [block for block in blocks if block.is_of(who)]


class Inside(Generic[H]):
    """The blocks that have entered one lock object, and the hold that each has there."""

    def __init__(self, *, has_owner: bool) -> None:
        #: Each change of this dictionary is one step, so any thread may do it.
        self.blocks: dict[Hashable, Block[H]] = {}
        #: With an owner of the user's, all blocks count as one: the server would give each of them the same hold.
        self._has_owner = has_owner

    def begin(self, who: Hashable) -> Block[H]:
        """Registers a block that enters. Raises RuntimeError if it would wait for itself."""
        block = Block(self, who)
        for each in list(self.blocks.values()):
            if each.is_unclear and each.hold and not each.hold._alive and each.who is who and not each.runs():
                self.blocks.pop(each, None)
            elif each.is_of(who) or each.is_at(_where()):
                self._refuse()
        if self.blocks.setdefault(None if self._has_owner else block, block) is not block:
            self._refuse()
        return block

    def entered(self, block: Block[H], hold: H) -> None:
        """Records the hold with which a block has entered."""
        block.hold = hold
        _above.set((*_above.get(), weakref.ref(block)))

    def _refuse(self) -> None:
        other = ", with another owner," if self._has_owner else ""
        raise RuntimeError(f"this lock is entered already: create another one{other} for each block")

    def drop(self, block: Block[H]) -> None:
        """Forgets this block, which has left or got no hold."""
        key = None if self._has_owner else block
        _above.set(tuple(each for each in _above.get() if each() not in (block, None)))
        if self.blocks.get(key) is block:
            self.blocks.pop(key, None)

    def left(self) -> H | None:
        """Returns the hold with which the calling frame or stack leaves; None if it entered with none."""
        where = _where()
        for each in list(self.blocks.values()):
            if each.is_at(where) and each.hold is not None:
                self.drop(each)
                return each.hold
        return None

    def end(self, who: Hashable, error: BaseException | None) -> H | None:
        """Returns the hold with which a block leaves; None if there is none.

        If its owner is unclear, raises RuntimeError, or adds a note to the block's own error. All holds that may be
        meant are then left to expire.
        """
        if (hold := self.left()) is not None:
            return hold
        inside = [each for each in list(self.blocks.values()) if each.hold is not None]
        found = inside if len(inside) == 1 else [each for each in inside if each.is_of(who)]
        if found:
            self.drop(found[-1])
            return found[-1].hold
        for each in inside:
            each.is_unclear = True
            if each.hold is not None:
                each.hold._run_out()
        if inside and error is None:
            raise RuntimeError(_UNKNOWN)
        if inside and error is not None:
            error.add_note(_UNKNOWN)
        return None


def _where() -> Any:
    """Returns the frame that enters or leaves a lock, or the stack of contexts that does it."""
    last: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_name in _METHODS or frame.f_globals.get("__name__") in _PASSED):
        if frame.f_globals.get("__name__") == "contextlib":
            stack = frame.f_locals.get("self")
            if isinstance(stack, ExitStack | AsyncExitStack):
                return stack._exit_callbacks  # type: ignore[union-attr]  # which pop_all() moves to another one
        last, frame = frame, frame.f_back
    return frame or last


_PASSED = (__name__, "redislock.compat", "contextlib")
