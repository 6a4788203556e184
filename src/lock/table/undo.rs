//! What has to be confirmed before its owner may be told, and is undone if it is not (CONTRACT 6).
//!
//! The table only tells what began and undoes what it is told to. [`confirm`](crate::lock::confirm) knows who waits for
//! what.

use super::context::StepContext;
use super::state::*;

impl Table {
    /// Whether grants have to be confirmed from here on.
    pub fn set_confirms(&mut self, confirms: bool) {
        self.begun = confirms.then(Vec::new);
        self.note_restrictions();
    }

    /// What has begun since this was asked last.
    pub fn take_begun(&mut self) -> Vec<PendingGrant> {
        self.begun.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes note of what an owner has now that it did not have before: one count more, and the lock alone.
    #[inline]
    pub(super) fn note_pending_grant(
        &mut self,
        lock_key: LockKey<'_>,
        token: Token,
        (owner, lease_ms): (&[u8], u64),
        (counts, is_upgrade): (bool, bool),
    ) {
        if let Some(begun) = &mut self.begun {
            let undo = UndoRecord::of(owner, counts, is_upgrade);
            begun.push(PendingGrant { lock_key: lock_key.to_owned(), token, was: None, lease_ms, undo });
        }
    }

    /// Takes note that a hold goes on under another token. What was noted of it last is about that.
    pub(super) fn note_new_token(&mut self, lock_key: LockKey<'_>, owner: &[u8], was: Token, token: Token) {
        if let Some(begun) = &mut self.begun {
            let undo = UndoRecord { owner: owner.into(), ..UndoRecord::NOTHING };
            let lock_key = lock_key.to_owned();
            match begun.last_mut().filter(|last| last.token == token && last.lock_key == lock_key) {
                Some(last) => last.was = Some(was),
                None => {
                    begun.push(PendingGrant { lock_key, token, was: Some(was), lease_ms: u64::MAX, undo })
                }
            }
        }
    }

    /// Whether the short path is closed.
    pub(super) const fn note_restrictions(&mut self) {
        self.is_restricted = self.is_closed() || self.begun.is_some();
    }

    /// Whether nothing is done for a request because no grant could be confirmed.
    ///
    /// In a quarantine, a client that holds nothing waits for its end, or is told of it. One that asks again for its
    /// hold is refused then, too: the server may know of a hold that its primary has undone and that nobody was ever
    /// told of. If such a hold were made longer, it could outlast the quarantine, and be told under its old token after
    /// somebody else was told of a newer one (G4).
    pub(super) const fn refuses_unconfirmed(&self, ask: &Ask<'_>, is_held_by_it: bool) -> bool {
        ask.cannot_confirm && (is_held_by_it || self.quarantine.is_none())
    }

    /// Undoes what a grant did, if the hold with this token still lasts, and lets in the next waiter. Nobody else's
    /// hold is touched, nor a later one of the same owner.
    pub fn undo(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        (token, undo): (Token, UndoRecord),
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Step<()> {
        let mut ctx = self.open_step(now.boot, key_ref, fx);
        self.end_overs(now.boot, &mut ctx, None, None, fx);
        let held = ctx.lock.and_then(|lock| self.locks.hold_with(lock, token));
        let held = held.filter(|(_, hold)| hold.is_of(&undo.owner) && !hold.is_over(now.boot));
        match held.map(|(holder, hold)| (holder, hold.count())) {
            Some((holder, ..=1)) if undo.counts => {
                self.end_one(now.boot, &mut ctx, holder);
                self.stats.releases += 1;
                fx.publish(Event::Released);
                ctx.replicate(Record::Ended(token), fx);
            }
            Some((holder, count)) => self.hold_less(now.boot, &mut ctx, (holder, count), &undo, fx),
            None => {}
        }
        self.admit_queue(now, &mut ctx, admission, fx);
        self.step(&ctx, ())
    }

    /// The hold goes on, with one count less or with others beside it as before.
    fn hold_less(
        &mut self,
        now: Moment,
        ctx: &mut StepContext<'_>,
        (holder, count): (LockId, u32),
        undo: &UndoRecord,
        fx: &mut Effects,
    ) {
        let is_alone = undo.is_upgrade && self.held_as(ctx) == Some(Mode::Exclusive);
        if undo.counts {
            self.locks.set_count(holder, count - 1);
        }
        if is_alone {
            ctx.lock = self.locks.convert_to_shared(holder, now, Mode::Shared).or(ctx.lock);
            self.last_as_before(now, ctx, &undo.owner);
        }
        let Some((holder, hold)) = self.own(ctx, &undo.owner).filter(|_| undo.counts || is_alone) else {
            return;
        };
        if hold.is_over(now) {
            self.expire(now, ctx, holder, fx);
        } else {
            ctx.touch();
            ctx.replicate(self.record_of(ctx, holder), fx);
        }
    }

    /// An upgrade that its owner had waited for is undone: the lease and the binding are those of the shared hold again.
    /// Otherwise a connection that was refused the upgrade would keep the hold or cut it, and that of the hold would not.
    fn last_as_before(&mut self, now: Moment, ctx: &StepContext<'_>, owner: &[u8]) {
        if self.has_closed() {
            // Where it may be bound to again.
            self.unbind_own(ctx, owner);
        }
        let Some((holder, _)) = self.own(ctx, owner) else {
            return;
        };
        match self.locks.take_earlier(holder) {
            Some(earlier) if earlier.mode == Mode::Shared => self.locks.put_back(holder, now, *earlier),
            // Its owner was granted more since.
            later => self.locks.keep_earlier(holder, later),
        }
    }
}
