//! Decides LOCK.RELEASE and LOCK.RENEW of a client, on a primary.

use super::key_step::KeyStep;
use super::requests::{Admission, KeyRef, Refusal, Release, Renewal};
use super::state::Table;
use crate::lock::effect::{Answer, Change, Effects, Event, Existing, Legacy, LockId, Record, Step};
use crate::lock::types::{Mode, Moment, Now, Token};

impl Table {
    /// Ends an exclusive hold in the common case: its record is all that is stored for it, no request waits on the
    /// server, and no setting restricts grants. Returns the step and the event to publish; `None` if
    /// [`Self::release`] must decide, and nothing has changed.
    #[inline(always)]
    pub fn release_at_once(
        &mut self,
        now: Moment,
        existing: Existing,
        owner: &[u8],
    ) -> Option<(Step<()>, Event)> {
        let Existing::Lock(id) = existing else {
            return None;
        };
        if self.restrictions.are_on() || self.queues.waiters() > 0 || id.is_list() || self.locks.has_ext(id) {
            return None;
        }
        let hold = self.locks.hold(id)?;
        if hold.is_over(now) || !hold.is_of(owner) {
            return None;
        }
        let ended = self.locks.end(id, now)?;
        self.stats.releases += 1;
        self.stats.holds.add(ended.held_ms);
        let step = Step { reply: (), change: Change::Deleted, record: Record::AsAsked };
        Some((step, Event::Released))
    }

    /// Decides LOCK.RELEASE. Replies true if a hold was released, and `None` if the key holds a value of another
    /// type.
    pub fn release(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        release: &Release<'_>,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Step<Option<bool>> {
        let Release { owner, token } = *release;
        if key_ref.existing == Existing::Other {
            self.dismiss_from_other(key_ref, fx);
            return Step::unchanged(None);
        }
        let mut ctx = self.open_step(now.boot, key_ref, fx);
        let queue = self.queues.at(key_ref.lock_key);
        if let Some(waiter) = queue.and_then(|queue| self.queues.of_owner(queue, owner)) {
            self.answer(waiter, Answer::Withdrawn, fx);
        }
        if ctx.legacy.is_some_and(|legacy| legacy.is_own) && token.is_none() {
            ctx.end_legacy();
            self.stats.releases += 1;
            fx.publish(Event::Released);
            ctx.replicate(Record::Deleted, fx);
            self.admit_queue(now, &mut ctx, admission, fx);
            return self.step(&ctx, Some(true));
        }
        // Other leases concern only waiters and the pump.
        let is_waited_for = self.queues.waiters() > 0;
        let mut own = if is_waited_for { None } else { self.own_live(now.boot, &ctx, owner, token) };
        if own.is_none() {
            self.expire_due_holds(now.boot, &mut ctx, Some(owner), None, fx);
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

    /// Returns this owner's live hold, if it has this token, and the number of releases that it takes.
    fn own_live(
        &self,
        now: Moment,
        ctx: &KeyStep<'_>,
        owner: &[u8],
        token: Option<Token>,
    ) -> Option<(LockId, u32)> {
        let own = ctx.own_with(&self.locks, owner, token).filter(|(_, hold)| !hold.is_over(now));
        own.map(|(holder, hold)| (holder, hold.count()))
    }

    /// Decides LOCK.RENEW. Replies true if the hold was renewed.
    pub fn renew(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        renewal: &Renewal<'_>,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Step<Result<bool, Refusal>> {
        if key_ref.existing == Existing::Other {
            self.dismiss_from_other(key_ref, fx);
            return Step::unchanged(Err(Refusal::WrongType));
        }
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
        self.expire_due_holds(now.boot, &mut ctx, Some(renewal.owner), None, fx);
        let own = ctx.own_with(&self.locks, renewal.owner, renewal.token);
        let own = own.map(|(holder, hold)| (holder, hold.binding()));
        let several =
            renewal.raise.and_then(|_| ctx.held_as(&self.locks)).filter(|&mode| mode != Mode::Exclusive);
        let reply = match several.filter(|_| own.is_some()) {
            Some(mode) => Err(Refusal::Several(mode)),
            None => Ok(own.is_some()),
        };
        if let Some((holder, binding)) = own.filter(|_| reply.is_ok()) {
            let stands_still =
                !binding.is_none() && self.locks.rebind(holder, now.boot, binding, renewal.bind_to);
            self.locks.extend(holder, now.boot, renewal.lease_ms);
            self.note_asked_again(holder, renewal.client);
            if let Some(raise) = renewal.raise {
                self.raise_token(&ctx, holder, raise);
            }
            ctx.touch();
            // Readers know the hold by its old token, so the change of token is replicated first.
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
}
