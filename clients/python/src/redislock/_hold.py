"""The part of a hold that the sync and the asyncio client share."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from . import hooks as _hooks
from ._rules import (
    DOUBT,
    LONGEST_PAUSE,
    SHORTEST_LEASE,
    WATCH_AFTER,
    Grant,
    Wanted,
    check_lease,
    clock,
    deadline,
    may_pass,
    renewal,
)
from .errors import ConnectionFailedError, LockLostError, RedislockError, ServerRefusedError, about

if TYPE_CHECKING:
    from ._keeper import Keeper

logger = logging.getLogger("redislock")
_NEVER = math.inf
_numbers = itertools.count(1)


class Local:
    """An object that belongs to one process."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled, because it belongs to this process. Give another "
            "process the address of the server and the name of the lock, and create Locks there"
        )


class BaseHold(Local):
    """One lock, or several that were acquired together, until they are released or lost."""

    #: The locks object that made it.
    _locks: Any = None

    def __init__(
        self,
        keeper: Keeper,
        wanted: Wanted,
        grant: Grant,
        *,
        renew: bool,
        max_hold: float | None,
        lease: float,
        min_hold: float,
    ) -> None:
        self._keeper, self._wanted = keeper, wanted
        self._pid, self._number = keeper.pid, next(_numbers)
        self._alive = [True]  # popped by the thread that ends the hold: one of several
        self._renewing = asyncio.Lock()
        #: The shortest lease of an unanswered renewal, and the time until which it may still reach the server.
        self._stray = (_NEVER, 0.0)
        self._reason: str | None = None
        #: The server's reason for the loss, and the number of consecutive failed renewals with the last error.
        self._cause = ""
        self._failures = 0
        self._failure: RedislockError | None = None
        self._has_block = False
        #: The way it ended, unless it was lost, and whether another process may adopt it.
        self._ended, self._may_detach = "release", not self._locks._is_group
        self._listeners: list[Callable[[str], object]] = []
        #: The time at which the hold ends at the latest.
        self._over_at = _NEVER if max_hold is None else grant.sent + max_hold
        #: The lease that the next renewal asks for, unless min_hold requires more.
        self._lease, self._is_renewed = lease, renew
        wanted.parked_until = clock() + min_hold if min_hold else 0.0
        self.token = grant.token
        self._granted_at = clock()
        self._watch_at = self._granted_at + WATCH_AFTER
        self._count_from(grant.sent, wanted.lease)
        keeper.keep(self)
        if not renew:
            self._pin()  # its lease ends it, whether or not anybody has it

    def __repr__(self) -> str:
        state = "given up" if not self._alive and self._reason is None else self.lost or "held"
        return f"<{type(self).__name__} {self.name!r} token={self.token} {state}>"

    @property
    def name(self) -> str:
        """The name of the lock, or of the first of them."""
        return self._wanted.name

    @property
    def owner(self) -> str:
        """The owner, as LOCK.INFO shows it: the label and a UUID, unless you set one."""
        return self._wanted.owner.decode(errors="replace")

    @property
    def remaining(self) -> float:
        """The time in seconds for which the lock is certainly held, by the clock of this machine."""
        return max(0.0, self._deadline - clock()) if self._alive and self._is_ours() else 0.0

    @property
    def lost(self) -> str | None:
        """The reason for the loss of the hold; None if it was not lost."""
        if not self._is_ours():
            return "fork"
        if self._alive and clock() >= self._deadline:
            self._lose("deadline", is_told=True)
        return self._reason

    @property
    def cause(self) -> str | None:
        """The evidence of the loss: the server's reply, or the error of the last renewal. None if nothing failed."""
        if self.lost is None:
            return None
        return self._cause or (None if self._failure is None else str(self._failure))

    def check(self) -> float:
        """Returns the seconds that remain. Raises LockLostError if the hold has ended. Asks no server."""
        if (reason := self.lost or (None if self._alive else self._ended)) is not None:
            raise self._error(reason)
        return self.remaining

    def _check_extension(self, lease: float) -> None:
        """Refuses a lease that would end after max_hold."""
        if (most := self._over_at - clock()) < lease:
            raise ValueError(
                f"a lease of {lease:g} seconds would exceed max_hold, of which {max(0.0, most):.1f} are left"
            )

    def _error(self, reason: str) -> LockLostError:
        names = self._wanted.all_names
        why = f"{reason}: {self.cause}" if self.cause else reason
        error = LockLostError(f"lost lock {names!r} ({why})", reason=reason, lock=names, token=self.token)
        error.__cause__ = self._failure if reason == "deadline" else None
        return error

    def _renewal_failed(self, failure: RedislockError) -> None:
        """Records the failure, and reports the first one of an outage."""
        self._failures, self._failure = self._failures + 1, failure
        _hooks.call(self._keeper.hooks, "renewal_failed", self.name, failure)
        if self._failures == 1:
            logger.warning("could not renew %r, will retry, with %.1f s left: %s", self.name, self.remaining, failure)

    def _renewal_succeeded(self) -> None:
        if self._failures:
            logger.warning("renewed %r after %d failed renewals", self.name, self._failures)
        self._failures, self._failure = 0, None

    def _is_heard(self) -> bool:
        """True if the program is notified of a loss."""
        return self._has_block or bool(self._listeners)

    def _is_ours(self) -> bool:
        """True in the process that acquired the hold. A forked child holds nothing."""
        return os.getpid() == self._pid

    def _count_from(self, sent: float, lease: float) -> None:
        """Starts the lease. An older renewal that arrives late may still shorten it, so only that shorter lease is
        certain."""
        stray, until = self._stray
        surely = min(lease, stray) if sent < until else lease
        self._wanted.lease, self._deadline = lease, deadline(sent, surely)
        self._renew_next(renewal(sent, surely))

    def _may_come_late(self, lease: float) -> None:
        """Records that a renewal for this lease went unanswered."""
        stray, until = self._stray
        self._stray = (min(lease, stray) if clock() < until else lease, clock() + DOUBT)

    def _renew_next(self, at: float) -> None:
        # A last lease that is too short for the server adds nothing.
        self._is_last = self._over_at - max(at, self._deadline) < SHORTEST_LEASE
        self._renew_at = at if self._is_renewed and not self._is_last else _NEVER

    async def _detach(self, lease: float | None) -> str:
        """Detaches the hold, once no renewal can arrive late any longer: it would shorten the adopter's lease."""
        self.check()
        if not self._may_detach:
            raise ValueError("a hold of a leader or of Redlock cannot be detached")
        if lease is not None:
            check_lease(lease)
            self._check_extension(lease)
        was_renewed, self._is_renewed = self._is_renewed, False
        try:
            await self._keeper.renew(self, lease)
            if clock() < self._stray[1]:
                raise ConnectionFailedError(f"a renewal of {self.name} was not answered, and may still come late")
        except BaseException:
            self._is_renewed = was_renewed
            self._renew_next(clock() + LONGEST_PAUSE)
            raise
        self._ended = "detached"
        if not self._finish():
            self.check()
        _hooks.call(self._keeper.hooks, "detached", self.name, clock() - self._granted_at)
        wanted, cut = self._wanted, self._wanted.prefixed
        names = [name[cut:].decode(errors="surrogateescape") for name in wanted.names]
        owner = wanted.owner.decode(errors="surrogateescape")
        ticket = {"names": names, "kind": wanted.kind, "limit": wanted.limit, "owner": owner, "token": self.token}
        return json.dumps(ticket)

    def _run_out(self) -> None:
        """Stops its renewals, because it is unclear which body works under it."""
        self._is_renewed, self._renew_at = False, _NEVER

    def _due(self) -> float:
        return min(self._watch_at, self._renew_at, self._deadline)

    def _finish(self, reason: str | None = None) -> bool:
        """Ends the hold and stops tracking it. Returns whether this call ended it."""
        try:
            self._alive.pop()
        except IndexError:
            return False
        self._reason = reason
        self._keeper.drop(self, is_lost=reason is not None)
        return True

    def _pin(self) -> None:
        """Keeps the hold from being garbage-collected: code must be notified of its loss, or works under it."""
        self._keeper.pinned[self] = None
        if not self._alive:  # it ended in this moment, perhaps in another thread
            self._keeper.pinned.pop(self, None)

    def _unpin(self) -> None:
        """Allows the hold to be garbage-collected."""
        if self._is_renewed:
            self._keeper.pinned.pop(self, None)

    def _lose(self, reason: str, cause: str = "", *, is_told: bool = False) -> bool:
        """Ends the hold as lost. Returns whether this call ended it. The holder is notified, and may still work under
        the server's hold, which ends with the holder's release or with its lease."""
        if reason == "deadline" and self._is_last and not self._failures:
            reason = "max_hold"
        if not self._finish(reason):
            return False
        self._cause = cause or self._cause
        self._log_loss(reason, is_told or self._is_heard())
        _hooks.call(self._keeper.hooks, "lost", self.name, clock() - self._granted_at, reason)
        self._tell(reason)
        return True

    def _log_loss(self, reason: str, is_told: bool) -> None:
        level = logging.INFO if reason == "close" else logging.WARNING if is_told else logging.ERROR
        held, cause = clock() - self._granted_at, self.cause or "no renewal has failed"
        nobody = "" if is_told else "; nothing in the program is notified until it checks"
        logger.log(level, "lost %r after %.1f s (%s): %s%s", self.name, held, reason, cause, nobody)

    def _give_up(self) -> bool:
        """Returns whether a release must be sent: not if one was sent before.

        Raises LockLostError if the hold is lost.
        """
        if self.lost is None and self._finish():
            return True
        if (reason := self.lost) is not None:
            if self._is_ours():
                self._keeper.give_up_left(self)
            raise self._error(reason)
        return False

    async def _release(self) -> None:
        """Releases it. If the task is cancelled meanwhile, the release continues in the background."""
        if self._give_up():
            keeper = self._keeper
            keeper.releasing += 1
            try:
                with about(self.name):
                    self._given_up(await keeper.release(self._wanted, self.token))
            finally:
                keeper.releasing -= 1

    def _check_grant(self) -> None:
        """Raises LockLostError if the reply took as long as the lease.

        No body works under the hold, so it is released.
        """
        if self.lost is not None:
            self._give_up()

    def _given_up(self, was_there: bool) -> None:
        """Ends a hold that the server has released. If it was lost before, that is reported now."""
        hooks, held = self._keeper.hooks, clock() - self._granted_at
        if was_there:
            _hooks.call(hooks, "released", self.name, held)
            return
        self._reason, self._cause = "release", "the server answered 0 to LOCK.RELEASE"
        self._log_loss("release", is_told=True)
        _hooks.call(hooks, "lost", self.name, held, "release")
        raise self._error("release")

    def _not_given_up(self, failure: RedislockError) -> None:
        """Logs the outcome of a failed release that is reported to no caller."""
        if isinstance(failure, ServerRefusedError) and not may_pass(failure.message):
            logger.warning("%s was not released, and stays taken until its lease expires: %s", self.name, failure)
        elif not isinstance(failure, LockLostError):
            logger.warning("the release of %s continues in the background: %s", self.name, failure)

    def _tell(self, reason: str) -> None:
        """Notifies the holder of the loss."""
