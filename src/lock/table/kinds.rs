//! Requests of all kinds: what [`super::decide`] does not do for the plain exclusive lock on its short path.

use super::context::StepContext;
use super::state::Table;
use super::terms::Acquired::{Busy, Granted, Refused};
use super::terms::{Acquired, Admission, Ask, KeyRef, Refusal, Release, Renewal};
use crate::lock::effect::{Answer, Change, Effects, Event, Existing, Legacy, LockId, Record, Step, WaiterId};
use crate::lock::lowered::count_max;
use crate::lock::token::Travel;
use crate::lock::types::{COUNT_MAX, Mode, Moment, Now, Token};

/// Where a request stands that is about to wait.
struct Standing {
    /// Its owner's entry in this queue.
    own: Option<WaiterId>,
    /// That entry is of a request like this.
    is_same: bool,
}

impl Table {
    /// LOCK.ACQUIRE, of any kind, at any lock.
    pub(super) fn acquire_any(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        ask: &Ask<'_>,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Step<Acquired> {
        let mut ctx = self.open_step(now.boot, key_ref, fx);
        // Nobody holds it and nobody waits anywhere.
        if ctx.key_ref.existing == Existing::Nothing
            && self.queues.waiters() == 0
            && !self.is_closed()
            && !ask.cannot_confirm
        {
            let reply = self.take(now, &mut ctx, ask, fx);
            return self.step(&ctx, reply);
        }
        self.end_overs(now.boot, &mut ctx, Some(ask.owner), None, fx);
        if ctx.held_as(&self.locks) != Some(ask.mode) {
            self.revoke_own(now.boot, &mut ctx, ask, fx);
        }
        self.admit_queue(now, &mut ctx, admission, fx);
        let reply = self.take_or_wait(now, &mut ctx, ask, fx);
        if matches!(reply, Granted(_)) {
            // An owner that holds less than before may let others in.
            self.admit_queue(now, &mut ctx, admission, fx);
        }
        self.step(&ctx, reply)
    }

    /// Decides such a request, once the queue was looked at.
    pub(super) fn take_or_wait(
        &mut self,
        now: Now,
        ctx: &mut StepContext<'_>,
        ask: &Ask<'_>,
        fx: &mut Effects,
    ) -> Acquired {
        let held_as = ctx.held_as(&self.locks);
        if held_as.is_none() && ctx.key_ref.existing == Existing::Other {
            return Refused(Refusal::WrongType);
        }
        let queue = self.queues.at(ctx.key_ref.lock_key);
        if let Some(other) = self.other_kind(ctx, ask.mode) {
            return Refused(Refusal::OtherKind(other));
        }
        if let Some((holder, hold)) = ctx.own(&self.locks, ask.owner) {
            let count = hold.count();
            return match (held_as, ask.mode) {
                (Some(Mode::Shared), Mode::Exclusive) => Refused(Refusal::Held(0)),
                _ if self.refuses_unconfirmed(ask, true) => Refused(Refusal::Unconfirmable),
                (Some(Mode::Exclusive), Mode::Shared) => self.downgrade(now, ctx, holder, ask, fx),
                _ if ask.is_reentrant && count >= count_max(COUNT_MAX) => Refused(Refusal::TooManyTimes),
                _ => self.hold_again(now, ctx, holder, ask, fx),
            };
        }
        if self.refuses_unconfirmed(ask, false) {
            return Refused(Refusal::Unconfirmable);
        }
        if self.is_leaving {
            return Refused(Refusal::Leaving);
        }
        let own = queue.and_then(|queue| self.queues.of_owner(queue, ask.owner));
        let is_same = own
            .and_then(|own| self.queues.waiter(own))
            .is_some_and(|own| own.multi.is_none() && own.request.mode == ask.mode);
        match (queue, own) {
            (None, _) if self.fits(ctx, ask.mode, 0) => self.take(now, ctx, ask, fx),
            // Beside those who only have a reservation, as if it had been in the queue already.
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

    /// How the lock is held or waited for, if that excludes a request of this mode.
    pub(super) fn other_kind(&self, ctx: &StepContext<'_>, mode: Mode) -> Option<Mode> {
        let queue = self.queues.at(ctx.key_ref.lock_key).and_then(|queue| self.queues.queue(queue));
        let in_queue = queue.map(|queue| queue.mode);
        ctx.held_as(&self.locks).into_iter().chain(in_queue).find(|other| !other.agrees_with(mode))
    }

    /// The lock is there to be taken.
    fn take(&mut self, now: Now, ctx: &mut StepContext<'_>, ask: &Ask<'_>, fx: &mut Effects) -> Acquired {
        let Some((token, travel)) = self.clock.mint(now.wall_us) else {
            return Refused(Refusal::NoTokens);
        };
        // Word for word only if nothing else is told: a reader may still see what this step has ended.
        let as_asked = travel == Travel::Implicit && !ask.must_be_explicit && !ctx.replicates();
        let Some(record) = self.begin_granted(now.boot, ctx, (ask.mode, &ask.hold(token)), false) else {
            self.clock.waste();
            return Refused(Refusal::TooManyLocks);
        };
        fx.publish(Event::Acquired);
        ctx.replicate(if as_asked { Record::AsAsked } else { record }, fx);
        Granted(token)
    }

    /// Does as [`Self::take`] where an older request of the owner waits, which a grant replaces.
    fn take_instead(
        &mut self,
        now: Now,
        ctx: &mut StepContext<'_>,
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

    /// G9: the same owner again, in the same way: the same token, and a lease that is never shortened.
    fn hold_again(
        &mut self,
        now: Now,
        ctx: &mut StepContext<'_>,
        holder: LockId,
        ask: &Ask<'_>,
        fx: &mut Effects,
    ) -> Acquired {
        let Some(hold) = self.locks.hold(holder) else {
            return Busy;
        };
        let (token, count, was) = (hold.token(), hold.count(), hold.binding());
        let is_longer = hold.ends_before(now.boot, ask.lease_ms);
        // The owner was not told of what it has: it counts from here.
        let is_counted = ask.is_reentrant && !self.is_to_revoke(token, holder);
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
            // A hold that was told in this step already is told as it is in the end.
            let is_named = stands_still || ctx.replicates() || is_counted != ask.is_reentrant;
            let record = if is_named { self.record_of(ctx, holder) } else { Record::AsAsked };
            ctx.replicate(record, fx);
        }
        Granted(token)
    }

    /// What readers are told of one hold of the lock.
    pub(super) fn record_of(&self, ctx: &StepContext<'_>, holder: LockId) -> Record {
        match ctx.lock {
            Some(lock) if lock.is_list() => Record::Holder(lock, holder),
            _ => Record::Hold(holder),
        }
    }

    /// An exclusive holder lets others in beside it.
    fn downgrade(
        &mut self,
        now: Now,
        ctx: &mut StepContext<'_>,
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
        self.note_moved(token, exclusive, holder);
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

    /// Puts the request in the queue, or in the queue entry that its owner has already (G9).
    fn wait(
        &mut self,
        now: Now,
        ctx: &mut StepContext<'_>,
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
                let Some((left, new)) = self.queues.take_over(old, request) else {
                    return Busy;
                };
                if let Some(client) = left.request.client {
                    fx.answer(old, client, Answer::Replaced);
                }
                return wait.reply(new);
            }
            // Perhaps nothing but the older request is in its way.
            let is_free = match self.queues.at(ctx.key_ref.lock_key) {
                Some(queue) => self.fits_beside(ctx, queue, ask.mode, Some(old)),
                None => self.fits(ctx, ask.mode, 0),
            };
            if is_free {
                return self.take_instead(now, ctx, ask, old, fx);
            }
        }
        // One that is refused takes over nothing (G9): the older request is told when the newer one stands in the queue.
        let older: Vec<WaiterId> = standing.own.map(|old| self.queues.first_entry(old)).into_iter().collect();
        if let Some(refusal) = self.is_full(self.queues.at(ctx.key_ref.lock_key), 1, &older) {
            return Refused(refusal);
        }
        let new = self.queues.join(ctx.key_ref.lock_key, request);
        self.assert_nobody_waits_for_own(ctx.key_ref.lock_key, ctx.lock);
        self.set_lock_of_queue(ctx);
        if self.would_never_end(now.boot, new, &older) {
            return Refused(Refusal::Deadlock);
        }
        for old in older {
            self.answer(old, Answer::Replaced, fx);
        }
        wait.reply(new)
    }

    /// LOCK.RELEASE, of any kind.
    pub(super) fn release_any(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        release: &Release<'_>,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Step<Option<bool>> {
        let Release { owner, token } = *release;
        let mut ctx = self.open_step(now.boot, key_ref, fx);
        if ctx.legacy.is_some_and(|legacy| legacy.is_own) && token.is_none() {
            ctx.end_legacy();
            self.stats.releases += 1;
            fx.publish(Event::Released);
            ctx.replicate(Record::Deleted, fx);
            self.admit_queue(now, &mut ctx, admission, fx);
            return self.step(&ctx, Some(true));
        }
        let mut own = self.own_live(now.boot, &ctx, owner, token);
        // The others' leases matter to nobody but those who wait, and the pump.
        if own.is_none() || self.queues.waiters() > 0 {
            self.end_overs(now.boot, &mut ctx, Some(owner), None, fx);
            own = self.own_live(now.boot, &ctx, owner, token);
        }
        if let Some((holder, count)) = own {
            if count > 1 {
                self.locks.set_count(holder, count - 1);
                ctx.touch();
            } else {
                self.end_released(now.boot, &mut ctx, holder, fx);
            }
            ctx.replicate(Record::AsAsked, fx);
        }
        self.admit_queue(now, &mut ctx, admission, fx);
        self.step(&ctx, Some(own.is_some()))
    }

    /// This owner's hold, if its lease is not over and it has this token, and how many releases it takes.
    fn own_live(
        &self,
        now: Moment,
        ctx: &StepContext<'_>,
        owner: &[u8],
        token: Option<Token>,
    ) -> Option<(LockId, u32)> {
        let (holder, hold) = ctx.own(&self.locks, owner)?;
        let is_meant = !hold.is_over(now) && token.is_none_or(|token| token == hold.token());
        is_meant.then(|| (holder, hold.count()))
    }

    /// LOCK.RENEW, of any kind.
    pub(super) fn renew_any(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        renewal: &Renewal<'_>,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Step<Result<bool, Refusal>> {
        let mut ctx = self.open_step(now.boot, key_ref, fx);
        if let Some(legacy) = ctx.legacy {
            let is_own = legacy.is_own && renewal.token.is_none() && renewal.raise.is_none();
            if !is_own {
                return Step::unchanged(Ok(false));
            }
            ctx.legacy = Some(Legacy { until: now.boot.plus_ms(renewal.lease_ms), ..legacy });
            self.close(&ctx);
            let (change, record) = (Change::Lives(renewal.lease_ms), Record::Lives(renewal.lease_ms));
            return Step { reply: Ok(true), change, record };
        }
        self.end_overs(now.boot, &mut ctx, Some(renewal.owner), None, fx);
        let own = ctx.own(&self.locks, renewal.owner);
        let own = own.filter(|(_, hold)| renewal.token.is_none_or(|token| token == hold.token()));
        let own = own.map(|(holder, hold)| (holder, hold.binding()));
        let several =
            ctx.held_as(&self.locks).filter(|&mode| renewal.raise.is_some() && mode != Mode::Exclusive);
        let reply = match several.filter(|_| own.is_some()) {
            Some(mode) => Err(Refusal::Several(mode)),
            None => Ok(own.is_some()),
        };
        if let Some((holder, binding)) = own.filter(|_| reply.is_ok()) {
            let stands_still = self.locks.rebind(holder, now.boot, binding, renewal.bind_to);
            self.locks.extend(holder, now.boot, renewal.lease_ms);
            self.note_asked_again(holder, renewal.client);
            if let Some(raise) = renewal.raise {
                self.raise_token(&ctx, holder, raise);
            }
            ctx.touch();
            // A reader knows the hold by the token that it had: it is told of another one first.
            if !stands_still || renewal.raise.is_some() {
                ctx.replicate(Record::AsAsked, fx);
            }
            if stands_still {
                ctx.replicate(self.record_of(&ctx, holder), fx);
            }
        }
        self.admit_queue(now, &mut ctx, admission, fx);
        self.step(&ctx, reply)
    }

    /// Ends what is over at this key, and lets in all who can come in.
    pub(super) fn settle_any(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        due: Option<LockId>,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Step<()> {
        let mut ctx = self.open_step(now.boot, key_ref, fx);
        if self.end_some_lapsed(now.boot, key_ref.lock_key, fx) {
            // What else there is to do here comes behind the rest of them.
            self.note(key_ref.lock_key);
            return Step::unchanged(());
        }
        self.end_overs(now.boot, &mut ctx, None, due, fx);
        self.admit_queue(now, &mut ctx, admission, fx);
        self.step(&ctx, ())
    }
}
