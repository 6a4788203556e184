"""The blocks of one lock object that are entered now."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from ._hold import BaseHold

H = TypeVar("H", bound=BaseHold)


class Inside(Generic[H]):
    """Each thread, or each task, that is in a block of one lock object, and the hold that it has there."""

    def __init__(self, *, has_owner: bool) -> None:
        #: An empty list: it is about to enter. Each change of this dictionary is one step, so any thread may do it.
        self._holds: dict[Hashable, list[H]] = {}
        #: With an owner of the user's, all threads and tasks count as one: the server would give each of them the same
        #: hold.
        self._has_owner = has_owner

    def begin(self, who: Hashable) -> list[H]:
        """A place for the hold that it will have. Raises RuntimeError if it has one already."""
        place: list[H] = []
        if self._holds.setdefault(self._key(who), place) is not place:
            other = ", with another owner," if self._has_owner else ""
            raise RuntimeError(f"this lock is entered already: make another one{other} for each block")
        return place

    def has_failed(self, who: Hashable) -> None:
        """Gives back the place: it got no hold."""
        self._holds.pop(self._key(who), None)

    def end(self, who: Hashable, error: BaseException | None) -> H | None:
        """The hold with which it leaves; None if there is none.

        A block may end in another thread or task than it began, if only one of them is inside. Otherwise nobody knows
        whose block it is: RuntimeError, or a note to the error of the block.
        """
        place = self._holds.pop(self._key(who), None)
        if place is None:
            inside = [key for key, its in list(self._holds.items()) if its]
            if len(inside) > 1:
                unknown = "leave a lock in the thread or task that has entered it, for several are inside"
                if error is None:
                    raise RuntimeError(unknown)
                error.add_note(unknown)
                return None
            place = self._holds.pop(inside[0], None) if inside else None
        return place[0] if place else None

    def _key(self, who: Hashable) -> Hashable:
        return None if self._has_owner else who
