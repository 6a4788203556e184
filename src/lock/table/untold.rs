//! Grants that their owners were not told of, because their connections had closed: they are taken back (G8).

use super::context::StepContext;
use super::state::*;

/// This hold, unless its owner knows of it.
fn not_told((id, hold): (LockId, Hold<'_>)) -> Option<LockId> {
    (!hold.is_acknowledged()).then_some(id)
}

impl Table {
    /// A grant could not be delivered: the pump is to take it back, before it looks at anything else. Or another
    /// request of its owner could go on with a hold that nobody was told of.
    pub fn note_undelivered(&mut self, lock_key: LockKeyBuf, token: Token) {
        self.undelivered.push_back(Task::TakeBack(lock_key, token));
    }

    /// The owner was told of this grant.
    #[inline]
    pub fn note_told(&mut self, lock_key: LockKey<'_>, token: Token) {
        if self.locks.has_untold()
            && let Some(hold) = self.locks.untold(lock_key, token)
        {
            self.locks.note_told(hold, token);
        }
    }

    /// A grant whose client was gone before it was told is as good as released, unless the owner asked again
    /// meanwhile and was told then (G9).
    pub fn take_back(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        token: Token,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Step<()> {
        if !self.is_plain(key_ref) {
            return self.take_back_any(now, key_ref, token, admission, fx);
        }
        let own = self.live(now.boot, key_ref.existing).filter(|(_, hold)| hold.token() == token);
        let Some(id) = own.and_then(not_told) else {
            return self.settle(now, key_ref, None, admission, fx);
        };
        self.locks.end(id, now.boot);
        self.stats.releases += 1;
        fx.publish(Event::Released);
        self.pass_on(now, key_ref, Record::Ended(token), admission, fx)
    }

    fn take_back_any(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        token: Token,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Step<()> {
        let mut ctx = self.open_step(now.boot, key_ref, fx);
        match ctx.lock.and_then(|lock| self.locks.hold_with(lock, token)).and_then(not_told) {
            Some(holder) => self.end_untold(now.boot, &mut ctx, holder, fx),
            None => self.forget_untold(&mut ctx, token, fx),
        }
        self.end_overs(now.boot, &mut ctx, None, None, fx);
        self.admit_queue(now, &mut ctx, admission, fx);
        self.step(&ctx, ())
    }

    /// Takes back what the owner of this hold was granted last: the hold, or what is more of it than there was before.
    fn end_untold(&mut self, now: Moment, ctx: &mut StepContext<'_>, holder: LockId, fx: &mut Effects) {
        let Some(owner) = self.locks.hold(holder).map(|hold| hold.owner().to_vec()) else {
            return;
        };
        if self.has_closed() {
            // Where it may be bound to again.
            self.unbind_own(ctx, &owner);
        }
        let earlier = self.locks.take_earlier(holder);
        let count = self.locks.hold(holder).map_or(0, Hold::count);
        match earlier {
            Some(earlier) if earlier.is_over(now) => self.expire(now, ctx, holder, fx),
            // The owner may have released what it knew of.
            Some(earlier) if count > u32::from(earlier.counts) => {
                let count = count - u32::from(earlier.counts);
                self.put_back(now, ctx, (&owner, count), *earlier, fx);
            }
            // It is ended as others are whose leases are over.
            None if self.locks.hold(holder).is_some_and(|hold| hold.is_over(now)) => {}
            _ => {
                if let Some(ended) = self.end_one(now, ctx, holder) {
                    self.stats.releases += 1;
                    fx.publish(Event::Released);
                    ctx.replicate(Record::Ended(ended.token), fx);
                }
            }
        }
    }

    /// Takes back a grant where the hold has gone on since under another token.
    fn forget_untold(&mut self, ctx: &mut StepContext<'_>, token: Token, fx: &mut Effects) {
        let holder = self.locks.untold(ctx.key_ref.lock_key, token);
        if let Some(holder) = holder.filter(|&holder| self.stands_for(ctx.key_ref.existing, holder))
            && self.locks.forget_grant(holder, token)
        {
            ctx.touch();
            ctx.replicate(self.record_of(ctx, holder), fx);
        }
    }

    /// The owner holds again what it held before, as often as that.
    fn put_back(
        &mut self,
        now: Moment,
        ctx: &mut StepContext<'_>,
        (owner, count): (&[u8], u32),
        earlier: Earlier,
        fx: &mut Effects,
    ) -> Option<()> {
        let (lock, held_as) = (ctx.lock?, self.held_as(ctx)?);
        let (holder, was) = self.own(ctx, owner).map(|(holder, hold)| (holder, hold.token()))?;
        // It asked for less than it had, and others may hold beside it by now. And one of them may have this token.
        let mode = if self.locks.holders_of(lock) > 1 { held_as } else { earlier.mode };
        let is_taken = self.locks.hold_with(lock, earlier.token).is_some();
        let token = if is_taken { was } else { earlier.token };
        if (mode, token) == (held_as, was) {
            ctx.touch();
        } else {
            self.go_on(now, ctx, holder, mode, token)?;
            self.note_new_token(ctx.key_ref.lock_key, owner, was, token);
        }
        let (holder, _) = self.own(ctx, owner)?;
        self.locks.set_count(holder, count);
        self.locks.put_back(holder, now, earlier);
        ctx.replicate(self.record_of(ctx, holder), fx);
        Some(())
    }
}
