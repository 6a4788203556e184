//! Decides LOCK.ACQUIRE of a client, on a primary. [`super::macquire`] does the same for several locks in one step.

use super::key_step::KeyStep;
use super::requests::Acquired::{Busy, Granted, Refused};
use super::requests::{Acquired, Admission, Ask, KeyRef, Refusal};
use super::state::Table;
use crate::lock::effect::{Answer, Change, Effects, Event, Existing, LockId, Record, Step, WaiterId};
use crate::lock::queue::QueueId;
use crate::lock::token::Travel;
use crate::lock::tuning::count_max;
use crate::lock::types::{COUNT_MAX, LockKey, Mode, Now, Token};

/// What the owner of a request has in the queue that the request is about to join.
struct Standing {
    /// Its owner's entry in this queue.
    own: Option<WaiterId>,
    /// True if that entry belongs to an equal request.
    is_same: bool,
}

impl Table {
    /// Grants an exclusive lock in the common case: no key is there, no request waits on the server, and no setting
    /// restricts grants. Returns the step and the event to publish; `None` if [`Self::acquire`] must decide, and
    /// nothing has changed.
    #[inline(always)]
    pub fn acquire_at_once(
        &mut self,
        now: Now,
        lock_key: LockKey<'_>,
        ask: &Ask<'_>,
    ) -> Option<(Step<Token>, Event)> {
        if self.restrictions.are_on() || self.queues.waiters() > 0 {
            return None;
        }
        let (token, travel) = self.clock.mint(now.wall_us)?;
        let Some(lock) = self.locks.insert(now.boot, lock_key, Some(&ask.hold(token))) else {
            self.clock.waste();
            return None;
        };
        self.stats.grants += 1;
        let as_asked = travel == Travel::Implicit && !ask.must_be_explicit;
        let record = if as_asked { Record::AsAsked } else { Record::Hold(lock) };
        Some((Step { reply: token, change: Change::Stored(lock), record }, Event::Acquired))
    }

    /// Decides LOCK.ACQUIRE.
    pub fn acquire(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        ask: &Ask<'_>,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Step<Acquired> {
        let mut ctx = self.open_step(now.boot, key_ref, fx);
        self.expire_due_holds(now.boot, &mut ctx, Some(ask.owner), None, fx);
        // Few holds are undelivered at any time.
        if !self.undelivered.is_empty() && ctx.held_as(&self.locks) != Some(ask.mode) {
            self.revoke_own(now.boot, &mut ctx, ask, fx);
        }
        self.admit_queue(now, &mut ctx, admission, fx);
        let reply = self.take_or_wait(now, &mut ctx, ask, fx);
        if matches!(reply, Granted(_)) {
            // An owner that now holds less may unblock others.
            self.admit_queue(now, &mut ctx, admission, fx);
        }
        self.step(&ctx, reply)
    }

    /// Decides a request after the queue was served.
    pub(super) fn take_or_wait(
        &mut self,
        now: Now,
        ctx: &mut KeyStep<'_>,
        ask: &Ask<'_>,
        fx: &mut Effects,
    ) -> Acquired {
        let held_as = ctx.held_as(&self.locks);
        if held_as.is_none() && ctx.key_ref.existing == Existing::Other {
            return Refused(Refusal::WrongType);
        }
        let queue = self.queues.at(ctx.key_ref.lock_key);
        if let Some(other) = self.other_kind(held_as, queue, ask.mode) {
            return Refused(Refusal::OtherKind(other));
        }
        if let Some((holder, hold)) = ctx.own(&self.locks, ask.owner) {
            let count = hold.count();
            return match (held_as, ask.mode) {
                (Some(Mode::Shared), Mode::Exclusive) => Refused(Refusal::Held(0)),
                _ if self.restrictions.refuses_unconfirmed(ask, true) => Refused(Refusal::Unconfirmable),
                (Some(Mode::Exclusive), Mode::Shared) => self.downgrade(now, ctx, holder, ask, fx),
                _ if ask.is_reentrant && count >= count_max(COUNT_MAX) => Refused(Refusal::TooManyTimes),
                _ => self.hold_again(now, ctx, holder, ask, fx),
            };
        }
        if self.restrictions.refuses_unconfirmed(ask, false) {
            return Refused(Refusal::Unconfirmable);
        }
        if self.restrictions.is_leaving() {
            return Refused(Refusal::Leaving);
        }
        let own = queue.and_then(|queue| self.queues.of_owner(queue, ask.owner));
        let is_same = own
            .and_then(|own| self.queues.waiter(own))
            .is_some_and(|own| own.multi.is_none() && own.request.mode == ask.mode);
        match (queue, own) {
            (None, _) if self.fits(ctx, ask.mode, 0) => self.take(now, ctx, ask, fx),
            // Only reservations are ahead, so it is granted as if it had been in the queue already.
            (Some(queue), None) if self.fits_beside(ctx, queue, ask.mode, None) => {
                self.take(now, ctx, ask, fx)
            }
            (Some(queue), Some(own)) if is_same && self.is_turn_of(ctx, queue, own) => {
                let since = self.queues.waiter(own).map(|own| own.request.since);
                let reply = self.take_instead(now, ctx, ask, own, fx);
                if let (Granted(_), Some(since)) = (&reply, since) {
                    self.count_waited(now.boot, since, 1);
                }
                reply
            }
            _ => self.wait(now, ctx, ask, Standing { own, is_same }, fx),
        }
    }

    /// Returns the mode of the holders or of the queue, if it excludes a request of this mode.
    pub(super) fn other_kind(
        &self,
        held_as: Option<Mode>,
        queue: Option<QueueId>,
        mode: Mode,
    ) -> Option<Mode> {
        let in_queue = queue.and_then(|queue| self.queues.queue(queue)).map(|queue| queue.mode);
        held_as.into_iter().chain(in_queue).find(|other| !other.agrees_with(mode))
    }

    /// Grants a lock that is free for this request.
    fn take(&mut self, now: Now, ctx: &mut KeyStep<'_>, ask: &Ask<'_>, fx: &mut Effects) -> Acquired {
        let Some((token, travel)) = self.clock.mint(now.wall_us) else {
            return Refused(Refusal::NoTokens);
        };
        // Replicates the request itself only if the step has no other record: a reader may still see what this step
        // ended.
        let as_asked = travel == Travel::Implicit && !ask.must_be_explicit && !ctx.replicates();
        let Some(record) = self.begin_granted(now.boot, ctx, (ask.mode, &ask.hold(token)), false) else {
            self.clock.waste();
            return Refused(Refusal::TooManyLocks);
        };
        fx.publish(Event::Acquired);
        ctx.replicate(if as_asked { Record::AsAsked } else { record }, fx);
        Granted(token)
    }

    /// Grants like [`Self::take`], and replaces an older request of the owner that still waits.
    fn take_instead(
        &mut self,
        now: Now,
        ctx: &mut KeyStep<'_>,
        ask: &Ask<'_>,
        older: WaiterId,
        fx: &mut Effects,
    ) -> Acquired {
        let reply = self.take(now, ctx, ask, fx);
        if matches!(reply, Granted(_)) {
            self.answer(older, Answer::Replaced, fx);
        }
        reply
    }

    /// Extends the hold of an owner that asks again in the same mode (G9): the token stays, and a lease is never
    /// shortened.
    fn hold_again(
        &mut self,
        now: Now,
        ctx: &mut KeyStep<'_>,
        holder: LockId,
        ask: &Ask<'_>,
        fx: &mut Effects,
    ) -> Acquired {
        let Some(hold) = self.locks.hold(holder) else {
            return Busy;
        };
        let (token, count, was) = (hold.token(), hold.count(), hold.binding());
        let is_longer = hold.ends_before(now.boot, ask.lease_ms);
        // The first grant was not delivered, so the count starts here.
        let is_counted = ask.is_reentrant && !self.undelivered.is_to_revoke(token, holder);
        self.note_asked_again(holder, ask.client);
        let binding = if ask.binding.is_none() { was } else { ask.binding };
        let stands_still = self.locks.rebind(holder, now.boot, binding, ask.bind_to);
        if is_longer {
            self.locks.extend(holder, now.boot, ask.lease_ms);
        }
        if is_counted {
            self.locks.set_count(holder, count + 1);
        }
        let is_same = (binding.ephemeral_ms, binding.is_keepalive) == (was.ephemeral_ms, was.is_keepalive);
        if is_longer || is_counted || !is_same || stands_still {
            ctx.touch();
            // A hold that this step has recorded already is recorded in its final form.
            let is_named = stands_still || ctx.replicates() || is_counted != ask.is_reentrant;
            let record = if is_named { self.record_of(ctx, holder) } else { Record::AsAsked };
            ctx.replicate(record, fx);
        }
        Granted(token)
    }

    /// Returns the record of one hold of the lock, for readers.
    pub(super) fn record_of(&self, ctx: &KeyStep<'_>, holder: LockId) -> Record {
        match ctx.lock {
            Some(lock) if lock.is_list() => Record::Holder(lock, holder),
            _ => Record::Hold(holder),
        }
    }

    /// Converts an exclusive hold to a shared one.
    fn downgrade(
        &mut self,
        now: Now,
        ctx: &mut KeyStep<'_>,
        exclusive: LockId,
        ask: &Ask<'_>,
        fx: &mut Effects,
    ) -> Acquired {
        let Some(holders) = self.locks.convert_to_shared(exclusive, now.boot, Mode::Shared) else {
            return Refused(Refusal::TooManyLocks);
        };
        ctx.lock = Some(holders);
        ctx.touch();
        let Some((holder, hold)) = ctx.own(&self.locks, ask.owner) else {
            return Busy;
        };
        let (token, was) = (hold.token(), hold.binding());
        let is_longer = hold.ends_before(now.boot, ask.lease_ms);
        self.undelivered.note_moved(token, exclusive, holder);
        self.locks.rebind(
            holder,
            now.boot,
            if ask.binding.is_none() { was } else { ask.binding },
            ask.bind_to,
        );
        if is_longer {
            self.locks.extend(holder, now.boot, ask.lease_ms);
        }
        self.note_asked_again(holder, ask.client);
        ctx.replicate(Record::Holder(holders, holder), fx);
        Granted(token)
    }

    /// Adds the request to the queue, or puts it in place of its owner's older entry (G9).
    fn wait(
        &mut self,
        now: Now,
        ctx: &mut KeyStep<'_>,
        ask: &Ask<'_>,
        standing: Standing,
        fx: &mut Effects,
    ) -> Acquired {
        let Some(wait) = ask.wait else {
            if let Some(left_ms) = self.quarantine_left_ms(now.boot) {
                return Refused(Refusal::Quarantine(left_ms));
            }
            return Busy;
        };
        let mut request = ask.request(now.boot, wait);
        if let Some(old) = standing.own {
            if standing.is_same {
                request.since = self.queues.waiter(old).map_or(now.boot, |old| old.request.since);
                let Some((left, new)) = self.queues.replace_waiter(old, request) else {
                    return Busy;
                };
                if let Some(client) = left.request.client {
                    fx.answer(old, client, Answer::Replaced);
                }
                return wait.reply(new);
            }
            // The older request may be all that is ahead of it.
            let is_free = match self.queues.at(ctx.key_ref.lock_key) {
                Some(queue) => self.fits_beside(ctx, queue, ask.mode, Some(old)),
                None => self.fits(ctx, ask.mode, 0),
            };
            if is_free {
                return self.take_instead(now, ctx, ask, old, fx);
            }
        }
        // A refused request replaces nothing (G9). The older request is answered once the newer one is in the queue.
        let older: Vec<WaiterId> = standing.own.map(|old| self.queues.first_entry(old)).into_iter().collect();
        if let Some(refusal) = self.is_full(self.queues.at(ctx.key_ref.lock_key), 1, &self.queues_of(&older))
        {
            return Refused(refusal);
        }
        let new = self.queues.join(ctx.key_ref.lock_key, request);
        self.set_lock_of_queue(ctx, self.queues.waiter(new).map(|new| new.queue));
        if self.would_never_end(now.boot, new, &older) {
            return Refused(Refusal::Deadlock);
        }
        for old in older {
            self.answer(old, Answer::Replaced, fx);
        }
        wait.reply(new)
    }
}
