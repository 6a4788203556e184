//! Owners that wait for what they hold: a RESTORE has brought their hold.
//!
//! They are told of it as if they asked only now (G9). The hold lasts as long as they asked for, and is bound as they
//! asked. It counts once more where that was asked for.

use super::context::StepContext;
use super::state::*;
use crate::lock::lowered::count_max;
use crate::lock::queue::Waiter;
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
            self.queues.waiter(waiter).filter(|its| self.waits_for_own(ctx, its)).map(|_| waiter)
        };
        let waiters: Vec<WaiterId> = self.locks.holders(lock).filter_map(own).collect();
        for waiter in waiters {
            self.answer_holder(now, ctx, waiter, admission, fx);
        }
    }

    /// Whether a request waits for just what its owner holds.
    pub(super) fn waits_for_own(&self, ctx: &StepContext<'_>, waiter: &Waiter) -> bool {
        let request = &waiter.request;
        waiter.multi.is_none()
            && self.held_as(ctx) == Some(request.mode)
            && self.own(ctx, &request.owner).is_some()
    }

    /// Tells this one. `false`: it may not have more than it holds now, and waits.
    pub(super) fn answer_holder(
        &mut self,
        now: Now,
        ctx: &mut StepContext<'_>,
        id: WaiterId,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> bool {
        let Some(request) = self.queues.waiter(id).map(|waiter| waiter.request.clone()) else {
            return true;
        };
        if let Some(candidate) = candidate(&request, ctx.key_ref.lock_key, None) {
            match self.admit(id, candidate, admission, fx) {
                Decision::Granted => {}
                Decision::Refused(_) => return true,
                Decision::NotNow => return false,
            }
            self.hold_as_asked(now.boot, ctx, &request, fx);
        }
        if let Some(token) = self.own(ctx, &request.owner).map(|(_, hold)| hold.token()) {
            self.answer(id, request.granted(ctx.key_ref.lock_key, Vec::new(), token), fx);
        }
        true
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
        let (holder, hold) = self.own(ctx, owner)?;
        let (token, count, was) = (hold.token(), hold.count(), hold.binding());
        let more = if is_reentrant { count.saturating_add(1).min(count_max(COUNT_MAX)) } else { count };
        let is_longer = hold.ends_before(now, lease_ms);
        if !is_longer && more == count && request.binding.is_none() && was.is_none() {
            return None;
        }
        let earlier = self.locks.earlier(holder, mode, token, more > count);
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
        if is_longer || more > count || !is_same || stands_still {
            ctx.touch();
            ctx.replicate(self.record_of(ctx, holder), fx);
        }
        Some(())
    }
}
