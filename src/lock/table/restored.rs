//! Owners that wait for what they hold: a RESTORE has brought their hold.
//!
//! They are told of it as if they asked only now (G9). The hold lasts as long as they asked for, and is bound as they
//! asked. It counts once more where that was asked for. An exclusive holder that asked for SHARED holds so from here
//! on. A shared holder that asked for the whole lock waits ahead of everybody. A semaphore is another kind of lock.
//!
//! Of a lock with few holders the pump looks up each holder in the queue, whenever it settles the lock. When a lock of
//! several holders was loaded, the pump also goes through the queue, some waiters in a step. So it finds upgrades in
//! their order, and holders that are some of many.

use super::context::StepContext;
use super::state::*;
use crate::lock::lowered::count_max;
use crate::lock::queue::Waiter;
use crate::lock::queue::anew::Anew;
use crate::lock::types::COUNT_MAX;

impl Table {
    /// Tells all of them at this key, if there are not too many holders to look at.
    pub(super) fn answer_holders(
        &mut self,
        now: Now,
        ctx: &mut StepContext<'_>,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) {
        let Some((lock, queue)) = ctx.lock.zip(self.queues.at(ctx.key_ref.lock_key)) else {
            return;
        };
        if self.locks.is_large(lock) {
            return;
        }
        let own = |(_, hold): (LockId, Hold<'_>)| {
            let waiter = self.queues.of_owner(queue, &hold.owner())?;
            let is_told = |its: &&Waiter| self.waits_for_own(now.boot, ctx, its);
            self.queues.waiter(waiter).filter(is_told).map(|_| waiter)
        };
        let waiters: Vec<WaiterId> = self.locks.holders(lock).filter_map(own).collect();
        for waiter in waiters {
            self.answer_holder(now, ctx, waiter, admission, fx);
        }
    }

    /// Looks at some of those who waited when a lock of several holders was loaded here. `false`: the pump looks again,
    /// and nobody comes in before.
    ///
    /// The last one is looked at first. Of several upgrades one can wait: that is the one that came first.
    pub(super) fn decide_anew(
        &mut self,
        now: Now,
        ctx: &mut StepContext<'_>,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> bool {
        let Some(queue) = self.queues.at(ctx.key_ref.lock_key) else {
            return true;
        };
        if !ctx.lock.is_some_and(LockId::is_list) {
            // One holder has been told already.
            self.queues.set_undecided(queue, None);
        }
        while let Some(id) = self.queues.undecided(queue) {
            if are_enough(ctx.served) {
                self.note_queue(queue);
                return false;
            }
            ctx.served += 1;
            self.queues.set_undecided(queue, self.queues.ahead(id));
            let anew = self.queues.waiter(id).and_then(|waiter| self.anew(now.boot, ctx, waiter));
            if anew.is_none() {
                continue;
            }
            if !self.answer_holder(now, ctx, id, admission, fx) {
                self.queues.set_undecided(queue, Some(id));
                return false;
            }
            if anew == Some(Anew::Upgrade) && self.queues.undecided(queue).is_some() {
                // A search for deadlocks is enough for one step.
                self.note_queue(queue);
                return false;
            }
        }
        true
    }

    /// What becomes of this request if its owner's hold decides that.
    fn anew(&self, now: Moment, ctx: &StepContext<'_>, waiter: &Waiter) -> Option<Anew> {
        let anew = waiter.anew(self.held_as(ctx)?)?;
        self.own(ctx, &waiter.request.owner).filter(|(_, hold)| !hold.is_over(now)).map(|_| anew)
    }

    /// Whether a request is answered because of what its owner holds.
    pub(super) fn waits_for_own(&self, now: Moment, ctx: &StepContext<'_>, waiter: &Waiter) -> bool {
        self.anew(now, ctx, waiter).is_some_and(|anew| anew != Anew::Upgrade)
    }

    /// Decides this one anew. `false`: it may not have more than it holds now, and waits.
    pub(super) fn answer_holder(
        &mut self,
        now: Now,
        ctx: &mut StepContext<'_>,
        id: WaiterId,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> bool {
        let Some(waiter) = self.queues.waiter(id) else {
            return true;
        };
        let (request, anew) = (waiter.request.clone(), self.anew(now.boot, ctx, waiter));
        if let Some(candidate) = candidate(&request, ctx.key_ref.lock_key, None) {
            match self.admit(id, candidate, admission, fx) {
                Decision::Granted => {}
                Decision::Refused(_) => return true,
                Decision::NotNow => return false,
            }
            let refusal = match anew {
                None => return true,
                Some(Anew::Upgrade) => return self.stand_ahead(now.boot, id, candidate.client, fx),
                Some(Anew::OtherKind(held_as)) => Some(Answer::OtherKind(held_as)),
                Some(Anew::Downgrade) if !self.locks.has_room() => Some(Answer::Refused(TOO_MANY_LOCKS)),
                Some(Anew::Downgrade | Anew::Same) => None,
            };
            if let Some(refusal) = refusal {
                self.answer(id, refusal, fx);
                return true;
            }
            self.hold_as_asked(now.boot, ctx, &request, fx);
        }
        if let Some(token) = self.own(ctx, &request.owner).map(|(_, hold)| hold.token()) {
            self.answer(id, request.granted(ctx.key_ref.lock_key, Vec::new(), token), fx);
        }
        true
    }

    /// A shared holder waits for the whole lock, ahead of everybody from here on. Unless that would never end (G11).
    fn stand_ahead(&mut self, now: Moment, id: WaiterId, client: ClientId, fx: &mut Effects) -> bool {
        self.queues.move_to_head(id);
        self.has_searched = true;
        if self.closes_cycle(now, id, &[], true) {
            fx.answer(id, client, Answer::Deadlock(self.take_cycle()));
        }
        true
    }

    /// Whether a search for deadlocks has run in a step of the pump since this was asked last: it may have taken long.
    pub fn take_searched(&mut self) -> bool {
        std::mem::take(&mut self.has_searched)
    }

    /// What its owner holds goes on as this request asked for it.
    fn hold_as_asked(
        &mut self,
        now: Moment,
        ctx: &mut StepContext<'_>,
        request: &Request,
        fx: &mut Effects,
    ) -> Option<()> {
        let Request { ref owner, lease_ms, mode, client, is_reentrant, .. } = *request;
        let (held_as, (holder, hold)) = (self.held_as(ctx)?, self.own(ctx, owner)?);
        let (token, count, was) = (hold.token(), hold.count(), hold.binding());
        let more = if is_reentrant { count.saturating_add(1).min(count_max(COUNT_MAX)) } else { count };
        let (is_longer, is_downgrade) = (hold.ends_before(now, lease_ms), held_as != mode);
        if !is_longer && !is_downgrade && more == count && request.binding.is_none() && was.is_none() {
            return None;
        }
        let earlier = self.locks.earlier(holder, held_as, token, more > count);
        if is_downgrade {
            self.go_on(now, ctx, holder, mode, token)?;
        }
        let (holder, _) = self.own(ctx, owner)?;
        let binding = if request.binding.is_none() { was } else { request.binding };
        let stands_still = self.locks.rebind(holder, now, binding, client);
        if is_longer {
            self.locks.extend(holder, now, lease_ms);
        }
        self.locks.set_count(holder, more);
        self.locks.note_granted(holder, client, earlier);
        if more > count {
            self.note_pending_grant(ctx.key_ref.lock_key, token, (owner, lease_ms), (true, false));
        }
        let is_same = (binding.ephemeral_ms, binding.is_keepalive) == (was.ephemeral_ms, was.is_keepalive);
        if is_longer || is_downgrade || more > count || !is_same || stands_still {
            ctx.touch();
            ctx.replicate(self.record_of(ctx, holder), fx);
        }
        Some(())
    }
}
