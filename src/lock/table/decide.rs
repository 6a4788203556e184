//! A client asks, on a primary: acquire, release, renew.

use super::{Acquired::*, *};

/// A request for a lock.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Who asks: 1 to 256 bytes.
    pub owner: &'a [u8],
    /// Whether the server has just minted the owner.
    pub owner_is_minted: bool,
    /// For how long.
    pub lease_ms: u64,
    /// Whether to wait in line.
    pub block: Option<Block>,
    /// The connection.
    pub client: Option<ClientId>,
    /// Whether a grant must travel as a record that names owner and token, because the client's own
    /// words do not tell them, or because somebody reads only a part of the stream.
    pub must_be_named: bool,
}

/// A wait in line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// The connection to answer.
    pub client: ClientId,
    /// Until when; `None`: without limit.
    pub until: Option<Moment>,
}

/// The outcome of an acquire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acquired {
    /// The lock is the owner's, under this token.
    Granted(Token),
    /// It is not; nothing was changed.
    Busy,
    /// The request stands in line.
    Waiting(WaiterId),
    /// The request cannot be served.
    Refused(Refusal),
}

/// Why a request cannot be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The key holds a value of another type.
    WrongType,
    /// This many wait for the lock already.
    LineIsFull(usize),
    /// This many wait on the server already.
    ServerIsFull(usize),
    /// No token is left.
    NoTokens,
    /// No number for a lock is left.
    TooManyLocks,
}

impl Table {
    /// LOCK.ACQUIRE.
    pub fn acquire(
        &mut self,
        now: Now,
        place: Place<'_>,
        found: Found,
        ask: &Ask<'_>,
        gate: Gate<'_>,
        fx: &mut Effects,
    ) -> Step<Acquired> {
        let over = self.end_if_over(now.boot, found, fx);
        if self.live(now.boot, found).is_none() {
            // G5: those who wait come first, also while their grant is still on its way.
            if let Some(step) = self.grant_next(now, place, found, gate, fx) {
                let found = match step.change {
                    Change::Stored(id) => Found::Lock(id),
                    _ => found,
                };
                return self.join_holder(now, place, found, ask, step, fx);
            }
            return self.take_free(now, place, found, ask, over, fx);
        }
        self.join_holder(now, place, found, ask, Step::unchanged(()), fx)
    }

    /// Somebody holds the lock: the owner itself, who is granted again (G9), or another one.
    fn join_holder(
        &mut self,
        now: Now,
        place: Place<'_>,
        found: Found,
        ask: &Ask<'_>,
        step: Step<()>,
        fx: &mut Effects,
    ) -> Step<Acquired> {
        if let Some((id, hold)) = self.live(now.boot, found)
            && hold.is_of(ask.owner)
        {
            return self.grant_again(now, id, ask, step);
        }
        match ask.block {
            Some(block) => {
                let reply = self.wait_in_line(now, place, ask, block, fx);
                step.reply(reply)
            }
            None => step.reply(Busy),
        }
    }

    /// G9: the same owner again: the same token, and a lease that is never shortened.
    fn grant_again(&mut self, now: Now, id: LockId, ask: &Ask<'_>, step: Step<()>) -> Step<Acquired> {
        let Some(hold) = self.locks.hold(id) else {
            return step.reply(Busy);
        };
        let (token, is_longer) = (hold.token(), hold.ends_before(now.boot, ask.lease_ms));
        self.locks.note_known(id, ask.client);
        if !is_longer {
            return step.reply(Granted(token));
        }
        self.locks.extend(id, now.boot, ask.lease_ms);
        let (change, record) = match step.record {
            Record::Nothing => (Change::Touched, Record::AsAsked),
            told => (step.change, told),
        };
        Step { reply: Granted(token), change, record }
    }

    /// Nobody holds the lock and nobody waits for it.
    fn take_free(
        &mut self,
        now: Now,
        place: Place<'_>,
        found: Found,
        ask: &Ask<'_>,
        over: Option<Token>,
        fx: &mut Effects,
    ) -> Step<Acquired> {
        if found == Found::Other {
            return Step::unchanged(Refused(Refusal::WrongType));
        }
        let refused = |reply| match over {
            Some(token) => {
                Step { reply: Refused(reply), change: Change::Deleted, record: Record::Ended(token) }
            }
            None => Step::unchanged(Refused(reply)),
        };
        let Some((token, travel)) = self.clock.mint(now.wall_us) else {
            return refused(Refusal::NoTokens);
        };
        let new = NewHold { owner: ask.owner, token, lease_ms: ask.lease_ms, client: ask.client };
        let Some((id, change)) = begin_hold(&mut self.locks, now.boot, place, found, &new) else {
            return refused(Refusal::TooManyLocks);
        };
        self.stats.grants += 1;
        fx.publish(Event::Acquired);
        // Word for word, a reader takes the request of an owner that it still sees holding for a
        // retry; so a grant right after that owner's own lease ran out is named.
        let as_asked = travel == Travel::Counted && !ask.must_be_named && over.is_none();
        Step {
            reply: Granted(token),
            change,
            record: if as_asked { Record::AsAsked } else { Record::Hold(id) },
        }
    }

    /// Puts the request in line, or in the place in line that its owner has already (G9).
    fn wait_in_line(
        &mut self,
        now: Now,
        place: Place<'_>,
        ask: &Ask<'_>,
        block: Block,
        fx: &mut Effects,
    ) -> Acquired {
        let request = Request {
            owner: ask.owner.into(),
            owner_is_minted: ask.owner_is_minted,
            lease_ms: ask.lease_ms,
            since: now.boot,
            until: block.until,
            client: block.client,
        };
        let queue = self.queues.at(place);
        if let Some(old) = queue.and_then(|queue| self.queues.of_owner(queue, ask.owner)) {
            let since = self.queues.waiter(old).map_or(now.boot, |w| w.request.since);
            if let Some((left, new)) = self.queues.take_over(old, Request { since, ..request }) {
                fx.answer(old, left.request.client, Answer::Replaced);
                return Waiting(new);
            }
            return Busy;
        }
        let in_line = queue.and_then(|queue| self.queues.queue(queue)).map_or(0, |q| q.len);
        if in_line >= self.limits.waiters_per_lock_max {
            return Refused(Refusal::LineIsFull(self.limits.waiters_per_lock_max));
        }
        if self.queues.waiters() >= self.limits.waiters_max {
            return Refused(Refusal::ServerIsFull(self.limits.waiters_max));
        }
        Waiting(self.queues.join(place, request))
    }

    /// LOCK.RELEASE. The reply is whether a hold was given up; `None`: the key holds something else.
    pub fn release(
        &mut self,
        now: Now,
        place: Place<'_>,
        found: Found,
        owner: &[u8],
        token: Option<Token>,
        gate: Gate<'_>,
        fx: &mut Effects,
    ) -> Step<Option<bool>> {
        let queue = self.queues.at(place);
        if found == Found::Other && queue.is_none() {
            return Step::unchanged(None);
        }
        if let Some(waiter) = queue.and_then(|queue| self.queues.of_owner(queue, owner)) {
            self.answer(waiter, Answer::Withdrawn, fx);
        }
        let Some((id, hold)) = self.any_hold(found) else {
            return Step::unchanged(Some(false));
        };
        if hold.is_over(now.boot) {
            let over = self.end_if_over(now.boot, found, fx);
            let record = over.map_or(Record::Nothing, Record::Ended);
            return self.pass_on(now, place, found, record, gate, fx).reply(Some(false));
        }
        if !is_of(hold, owner, token) {
            return Step::unchanged(Some(false));
        }
        if let Some(ended) = self.locks.end(id, now.boot) {
            self.stats.releases += 1;
            self.stats.holds.add(ended.held_ms);
        }
        fx.publish(Event::Released);
        self.pass_on(now, place, found, Record::AsAsked, gate, fx).reply(Some(true))
    }

    /// LOCK.RENEW. The reply is whether the hold was renewed; `None`: the key holds something else.
    pub fn renew(
        &mut self,
        now: Now,
        place: Place<'_>,
        found: Found,
        renewal: &Renewal<'_>,
        gate: Gate<'_>,
        fx: &mut Effects,
    ) -> Step<Option<bool>> {
        if found == Found::Other && self.queues.at(place).is_none() {
            return Step::unchanged(None);
        }
        if let Some(over) = self.end_if_over(now.boot, found, fx) {
            let step = self.pass_on(now, place, found, Record::Ended(over), gate, fx);
            return step.reply(Some(false));
        }
        let id = match self.live(now.boot, found) {
            Some((id, hold)) if is_of(hold, renewal.owner, renewal.token) => id,
            _ => return Step::unchanged(Some(false)),
        };
        self.locks.extend(id, now.boot, renewal.lease_ms);
        self.locks.note_known(id, renewal.client);
        Step { reply: Some(true), change: Change::Touched, record: Record::AsAsked }
    }
}

/// A request to make a lease last from now.
#[derive(Clone, Copy, Debug)]
pub struct Renewal<'a> {
    /// Whose hold.
    pub owner: &'a [u8],
    /// Only if it has this token.
    pub token: Option<Token>,
    /// For how long.
    pub lease_ms: u64,
    /// The connection.
    pub client: Option<ClientId>,
}

/// G10: a hold is touched by its own owner only, and by no older request of its owner if it names a token.
pub(super) fn is_of(hold: Hold<'_>, owner: &[u8], token: Option<Token>) -> bool {
    token.is_none_or(|token| token == hold.token()) && hold.is_of(owner)
}
