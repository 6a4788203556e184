"""The conclusions from the requests of many clients about the holds of locks of all kinds.

Each client writes down every request: the time of sending, the time of the reply, its content. All clients of one
machine share a monotonic clock. An unknown moment (when between the two the server acted, when it saw a connection
close) is chosen in favour of the server:

    start    from here on the hold is certain: the first reply that told of it
    until    up to here its lease lasts in any case, counted from the request that set it
    proof    it lived when a request that was sent then was carried out
    dead     it was over when a reply came that says so
    latest   here its lease is over in any case; endless for a hold that is tied

A hold is certain from its start to its last proof, and on to the end of its lease if no
DEL may have come between.
"""

from bisect import bisect_left, bisect_right
from itertools import accumulate
from math import inf
from typing import NamedTuple, Optional

EXCLUSIVE, SHARED = "exclusive", "shared"


class Request(NamedTuple):
    """One request of one client, and its reply."""

    #: acquire, macquire, renew, release, fence, info, heldby, del, close; LOCK.EXEC is count (of INCR, whose replies
    #: give the order) or write (of SET GET, which returns the earlier value). Not to the server: use (of a resource
    #: that refuses old tokens; 1 if it took this one), and end (the state when all was done)
    command: str
    keys: tuple
    owner: str  # the one that asks; of heldby: the one that is asked about
    sent: float
    answered: float
    reply: object = None
    #: LOST: the client left without reading the reply; UNANSWERED: none came
    error: str = ""
    mode: str = EXCLUSIVE  # exclusive, shared, or "limit 3"
    lease: float = 0.0
    block: Optional[float] = None  # endless for BLOCK 0
    place: float = 0.0  # QUEUE
    reentrant: bool = False
    ephemeral: Optional[float] = None
    keepalive: bool = False
    token: Optional[int] = None
    connection: str = ""
    gone: float = inf  # when a client was away that did not read the reply

    @property
    def lock(self):
        """Its only key."""
        return self.keys[0]

    @property
    def is_acquire(self):
        """Returns whether it asks for locks."""
        return self.command in ("acquire", "macquire")

    @property
    def is_granted(self):
        """Returns whether it asked for locks and got them."""
        return self.is_acquire and not self.error and self.reply is not None

    @property
    def code(self):
        """The first word of its error."""
        return self.error.partition(" ")[0]


LOST, UNANSWERED = "LOST", "UNANSWERED"

#: Within this time the server has noticed a change of a connection, and has done the work that follows.
CLOSE_SECONDS = 1.0

#: The time that a hold may be seen to live beyond its lease: generous, as all ask the clock.
LATE_SECONDS = 0.1

#: A grant, or a verdict, that takes longer than this is not late but forgotten. A test that slows its server down gives
#: `faults` more.
STALL_SECONDS = 1.0


class Seen(NamedTuple):
    """A reply to LOCK.INFO."""

    kind: str  # a mode
    holders: tuple  # of (owner, token, count)
    queue: tuple  # of (owner, state)
    holds: int = 0  # how many hold it, where the reply shows the first of them only


class Hold:
    """One owner's possession of one lock under one token."""

    def __init__(self, lock, owner, request):
        self.lock, self.owner, self.token = lock, owner, request.reply
        self.mode = request.mode
        self.born, self.start = request.sent, request.answered
        self.until, self.latest = request.sent + request.lease, request.answered + request.lease
        self.proof, self.proved_by = -inf, None
        self.dead, self.denied_by = inf, None
        self.counts = (1, 1)  # at least and at most
        self.modes = []  # what it was before: (mode, until when)
        self.ephemeral, self.kept = None, None
        self.connection = request.connection
        self.is_of_several = request.command == "macquire"
        self.cut = inf  # by a DEL

    def __repr__(self):
        return (
            f"<{self.mode} hold of {self.lock} by {self.owner}, token {self.token}, "
            f"{self.start:.6f} to {self.end:.6f}>"
        )

    @property
    def end(self):
        """Until when it is certain."""
        return max(self.proof, min(self.until, self.cut))

    def covers(self, request):
        """Returns whether it certainly lived all the time that this request took."""
        return self.start <= request.sent and request.answered <= self.end

    def is_proved(self, request):
        """Notes that it lived when this request was carried out."""
        self.start = min(self.start, request.answered)
        if request.sent > self.proof:
            self.proof, self.proved_by = request.sent, request

    def is_denied(self, request):
        """Notes that it had ended when this reply came, if it had begun when the request was sent."""
        self.until = min(self.until, request.sent)
        if request.sent >= self.start and request.answered < self.dead:
            self.dead, self.denied_by = request.answered, request

    def is_tied(self, request):
        """Its lease, after a request over this connection that named these ties."""
        was_open = self.connection == request.connection
        self.connection = request.connection
        was_kept = self.kept
        if request.ephemeral is not None or request.keepalive:
            self.ephemeral = request.ephemeral
            self.kept = request.lease if request.keepalive else None
        if self.kept is not None:
            self.kept = max(request.lease, was_kept or 0.0) if was_open else request.lease
            self.until = inf
        elif was_kept is not None:
            self.until = request.sent + request.lease
        if self.kept is not None or self.ephemeral is not None:
            self.latest = inf

    def closes(self, request):
        """The connection that it is tied to begins to close."""
        if self.kept is not None and self.until == inf:
            self.until = request.sent + self.kept
        if self.ephemeral is not None:
            self.until = min(self.until, request.sent + self.ephemeral)
        left = min(seconds for seconds in (self.kept, self.ephemeral) if seconds is not None)
        self.latest = request.answered + CLOSE_SECONDS + left

    def spans(self):
        """Its certain time, in pieces of one mode: (start, end, mode)."""
        start = self.start
        for mode, until in self.modes:
            if until > start:
                yield start, until, mode
                start = until
        if self.end > start:
            yield start, self.end, self.mode


class Deletions:
    """The DELs of one lock that found something."""

    def __init__(self, requests):
        by_answer = sorted(requests, key=lambda request: request.answered)
        self.answered = [request.answered for request in by_answer]
        self.first_sent = _least_from([request.sent for request in by_answer])
        self.requests = sorted(requests, key=lambda request: request.sent)
        self.sent = [request.sent for request in self.requests]

    def cut(self, hold):
        """When the first of those was sent that may have broken it after its last proof."""
        return self.first_sent[bisect_right(self.answered, max(hold.born, hold.proof))]

    def surely_after(self, moment):
        """The requests that were carried out later than this."""
        return self.requests[bisect_left(self.sent, moment) :]


def _least_from(numbers):
    """For each place the least number from there on; one more for the end."""
    return list(accumulate(reversed([*numbers, inf]), min))[::-1]


class Evidence:
    """All holds of a history, and the violations that show already."""

    def __init__(self, history, stall_seconds=STALL_SECONDS):
        self.stall_seconds = stall_seconds
        self.history = sorted(history, key=lambda request: request.sent)
        self.last_answer = max((r.answered for r in history if r.answered < inf), default=0.0)
        self.faults = []
        self.holds = []
        self.by_token = {}  # (lock, token): hold
        self.current = {}  # (lock, owner): hold
        self.runs = {}  # lock: [(request, whether its hold was exclusive)]
        self.tied = {}  # connection: holds
        self.unheard = {r.owner for r in history if r.error in (LOST, UNANSWERED)}
        self.deletions = self._deletions()
        for request in self.history:
            see = getattr(self, f"_see_{request.command}", None)
            if see is not None and request.error not in (LOST, UNANSWERED):
                see(request)
        self._look_from_outside()

    def fault(self, what, *about):
        """Notes a violation."""
        self.faults.append(f"{what}: " + ", ".join(map(str, about)))

    def _deletions(self):
        found = {}
        for request in self.history:
            if request.command == "del" and request.reply == 1:
                found.setdefault(request.lock, []).append(request)
        return {lock: Deletions(requests) for lock, requests in found.items()}

    def _update(self, hold):
        if hold.lock in self.deletions:
            hold.cut = self.deletions[hold.lock].cut(hold)

    def _covers(self, hold, request):
        self._update(hold)
        return hold.covers(request)

    def _own(self, request):
        """The hold of the owner that a request is about, if it means that one."""
        hold = self.current.get((request.lock, request.owner))
        if hold is None or request.token not in (None, hold.token):
            return None
        return hold

    def _prove(self, hold, request):
        if request.sent > hold.latest + LATE_SECONDS:
            self.fault("outlived its lease", hold, request)
        hold.is_proved(request)

    # Requests of the owner

    def _see_acquire(self, request):
        own = [self.current.get((key, request.owner)) for key in request.keys]
        if not request.is_granted:
            if self._is_owed(own, request):
                self.fault("the holder asked again and was refused", own, request)
            return
        for key, hold in zip(request.keys, own):
            if hold is not None and hold.token == request.reply:
                self._again(hold, request)
            else:
                self._begins(key, hold, request)

    _see_macquire = _see_acquire

    def _is_owed(self, own, request):
        """The owner holds all that it asks for already, so it must be granted (G9)."""
        modes = {EXCLUSIVE, SHARED} if request.mode == SHARED else {request.mode}
        if any(hold is None or hold.mode not in modes for hold in own):
            return False
        one_token = len({hold.token for hold in own}) == 1
        return one_token and all(self._covers(hold, request) for hold in own)

    def _again(self, hold, request):
        if (hold.mode, request.mode) == (SHARED, EXCLUSIVE):
            self.fault("a reader was granted the whole lock", hold, request)
        self._prove(hold, request)
        hold.start = min(hold.start, request.answered)
        hold.until = max(hold.until, request.sent + request.lease)
        hold.latest = max(hold.latest, request.answered + request.lease)
        hold.is_tied(request)
        self._bind(hold)
        if request.reentrant:
            hold.counts = tuple(count + 1 for count in hold.counts)
        if hold.mode != request.mode:
            hold.modes.append((hold.mode, request.sent))
            hold.mode = request.mode

    def _begins(self, key, old, request):
        new = Hold(key, request.owner, request)
        if old is not None and new.token < old.token and request.sent < old.start:
            self._came_before(old, new)
            return
        if old is not None:
            if self._covers(old, request):
                self.fault("another token while it held", old, request)
            old.until = min(old.until, request.sent)
            if request.answered < old.dead:
                old.dead, old.denied_by = request.answered, request
        new.is_tied(request)
        self.holds.append(new)
        self.by_token[key, new.token] = new
        self.current[key, request.owner] = new
        self._bind(new)

    def _came_before(self, later, hold):
        """Notes that of two concurrent requests the one sent later was served first, and that its hold has ended."""
        hold.until, hold.dead = hold.start, later.start
        hold.denied_by = hold.born
        self.holds.append(hold)
        self.by_token[hold.lock, hold.token] = hold

    def _bind(self, hold):
        if hold.kept is not None or hold.ephemeral is not None:
            self.tied.setdefault(hold.connection, {})[id(hold)] = hold

    def _see_close(self, request):
        for hold in self.tied.pop(request.connection, {}).values():
            if hold.connection == request.connection:
                hold.closes(request)

    def _proved(self, request):
        """The hold that this reply was about; None if it was about none, or about an unknown one."""
        hold = self._own(request)
        if request.reply != 1:
            self._told_no(hold, request)
            return None
        if hold is None:
            self._unknown(request)
            return None
        self._prove(hold, request)
        return hold

    def _see_renew(self, request):
        hold = self._proved(request)
        if hold is None:
            return
        hold.until = request.sent + request.lease
        hold.latest = request.answered + request.lease
        if hold.kept is not None:
            hold.kept = request.lease
        hold.connection = ""  # what it was kept for does not count any more
        hold.is_tied(request)
        self._bind(hold)

    def _see_release(self, request):
        hold = self._proved(request)
        if hold is None:
            return
        least, most = (count - 1 for count in hold.counts)
        hold.counts = max(least, 1), most
        if least < 1:
            hold.until = min(hold.until, request.sent)
        if most < 1 and request.answered < hold.dead:
            hold.dead, hold.denied_by = request.answered, request

    def _unknown(self, request):
        if request.owner not in self.unheard:
            self.fault("it holds nothing with this token", request)

    def _told_no(self, hold, request):
        if hold is None:
            return
        if self._covers(hold, request):
            self.fault("ended early", hold, request)
        hold.is_denied(request)

    def _see_info(self, request):
        """The count as the owner itself sees it."""
        hold = self.current.get((request.lock, request.owner))
        if hold is None or request.reply is None:
            return
        for owner, token, count in request.reply.holders:
            if (owner, token) == (hold.owner, hold.token):
                if not hold.counts[0] <= count <= hold.counts[1]:
                    self.fault(f"counts {hold.counts} were right", hold, request)

    def _see_count(self, request):
        if request.error:
            return
        hold = self.current.get((request.lock, request.owner))
        is_own = hold is not None and hold.token == request.token
        is_exclusive = is_own and hold.mode == EXCLUSIVE
        self.runs.setdefault(request.lock, []).append((request, is_exclusive))

    _see_write = _see_count

    # Holds as every client sees them

    def _look_from_outside(self):
        told = {}  # token: the first reply that tells of it
        for request in self.history:
            for lock, token in lives_seen(request):
                told[token] = min(told.get(token, inf), request.answered)
                hold = self.by_token.get((lock, token))
                if hold is not None:
                    hold.is_proved(request)
            for lock, token in ends_seen(request):
                hold = self.by_token.get((lock, token))
                if hold is not None and request.sent >= hold.start:
                    if request.answered < hold.dead:
                        hold.dead, hold.denied_by = request.answered, request
        for hold in self.holds:
            # All locks of one request are taken in one step (G12).
            hold.start = min(hold.start, told.get(hold.token, inf))
            self._update(hold)
            if hold.lock in self.deletions:
                for request in self.deletions[hold.lock].surely_after(hold.start):
                    if request.answered < hold.dead:
                        hold.dead, hold.denied_by = request.answered, request
                    if request.sent > hold.dead:
                        break
            if hold.proof > hold.dead:
                self.fault("lives on after its end", hold, hold.denied_by, hold.proved_by)
            elif hold.proof > hold.latest + LATE_SECONDS and hold.dead == inf:
                self.fault("outlived its lease", hold, hold.proved_by)


def lives_seen(request):
    """The (lock, token) pairs that were live when this was carried out."""
    if request.error or request.reply is None:
        return []
    if request.command == "fence":
        if request.token is None:
            return [(request.lock, request.reply)]
        return [(request.lock, request.token)] if request.reply == 1 else []
    if request.command == "info":
        return [(request.lock, token) for _, token, _ in request.reply.holders]
    if request.command == "heldby":
        return [(lock, token) for lock, state, _, token in request.reply if state == "held"]
    if request.command in ("count", "write"):
        return [(request.lock, request.token)]
    return []


def ends_seen(request):
    """The (lock, token) pairs that were not live when this was carried out."""
    is_refused = request.command in ("count", "write") and request.code == "FENCED"
    is_denied = request.command == "fence" and request.token is not None and request.reply == 0
    return [(request.lock, request.token)] if is_refused or is_denied else []
