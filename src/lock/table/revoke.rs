//! Requests and replies that bear on holds that are [not delivered yet](super::undelivered), and their revocation.

use super::key_step::KeyStep;
use super::requests::{Admission, Ask, KeyRef};
use super::state::Table;
use crate::lock::effect::{Effects, Event, LockId, Record, Step, Task};
use crate::lock::types::{ClientId, LockKey, Moment, Now, Token};

impl Table {
    /// The owner of this hold asked for it again or renewed it, and is told so: at once, or when replicas have it.
    pub(super) fn note_asked_again(&mut self, holder: LockId, client: Option<ClientId>) {
        self.locks.note_shown(holder, client);
        if let Some(token) = self.locks.hold(holder).map(|hold| hold.token()) {
            self.undelivered.note_asked_again(token, holder, self.restrictions.confirms());
        }
    }

    /// A reply that names this hold was sent to its owner.
    pub fn delivered(&mut self, lock_key: LockKey<'_>, token: Token) {
        if let Some(holder) = self.undelivered.at(&self.locks, lock_key, token) {
            self.undelivered.note_delivered(token, holder);
        }
    }

    /// A reply that names this hold is never sent. If it was the last one, the pump is to revoke the hold, before
    /// it looks at anything else.
    pub fn dropped(&mut self, lock_key: LockKey<'_>, token: Token) {
        if let Some(holder) = self.undelivered.at(&self.locks, lock_key, token)
            && self.undelivered.drop_reply(token, holder)
        {
            self.notes.note_task(Task::Revoke(lock_key.to_owned(), token));
        }
    }

    /// The pump has looked for a hold of this grant at this key, and has found this one. Forgets those that have ended.
    /// Forgets others that were to be revoked here, too: their lock has left the key, and may not be freed yet.
    pub fn forget_gone(&mut self, lock_key: LockKey<'_>, token: Token, found: Option<LockId>) {
        self.undelivered.forget_gone(&self.locks, lock_key, token, found);
    }

    /// The remaining lease of a grant that was not delivered yet, in milliseconds.
    #[must_use]
    pub fn left_of_undelivered(&self, now: Moment, token: Token) -> Option<u64> {
        self.undelivered.left_ms(&self.locks, now, token)
    }

    /// How many replies are outstanding that tell of this hold; `None`: it is delivered. For tests.
    #[cfg(test)]
    pub fn outstanding(&self, lock: LockId, token: Token) -> Option<u32> {
        let (holder, _) = self.locks.hold_with(lock, token)?;
        self.undelivered.outstanding(token, holder)
    }

    /// Of how many grants it is not known yet whether their owners learn of them. For tests.
    #[cfg(test)]
    pub fn undelivered(&self) -> usize {
        self.undelivered.len()
    }

    /// This owner asks for something else than its hold here. Ends the hold first, if it has to be revoked.
    pub(super) fn revoke_own(&mut self, now: Moment, ctx: &mut KeyStep<'_>, ask: &Ask<'_>, fx: &mut Effects) {
        let own = ctx.own(&self.locks, ask.owner).map(|(holder, hold)| (holder, hold.token()));
        if let Some((holder, token)) = own
            && !ask.cannot_confirm
            && self.undelivered.is_to_revoke(token, holder)
        {
            self.revoke_hold(now, ctx, (token, holder), fx);
        }
    }

    /// Ends this hold as a release does.
    fn revoke_hold(
        &mut self,
        now: Moment,
        ctx: &mut KeyStep<'_>,
        (token, holder): (Token, LockId),
        fx: &mut Effects,
    ) {
        self.undelivered.note_delivered(token, holder);
        if self.end_released(now, ctx, holder, fx) {
            ctx.replicate(Record::Ended(token), fx);
        }
    }

    /// Ends this hold, and counts and publishes that as a release. Whether there was one.
    pub(super) fn end_released(
        &mut self,
        now: Moment,
        ctx: &mut KeyStep<'_>,
        holder: LockId,
        fx: &mut Effects,
    ) -> bool {
        let Some(ended) = ctx.end_one(&mut self.locks, now, holder) else {
            return false;
        };
        self.stats.releases += 1;
        self.stats.holds.add(ended.held_ms);
        fx.publish(Event::Released);
        true
    }

    /// Ends the hold with this token if it is still to be revoked, and lets in the next waiters.
    pub fn revoke(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        token: Token,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Step<()> {
        let mut ctx = self.open_step(now.boot, key_ref, fx);
        let held = ctx.lock.and_then(|lock| self.locks.hold_with(lock, token));
        let owner = held.map(|(_, hold)| hold.owner().to_vec());
        self.expire_due_holds(now.boot, &mut ctx, owner.as_deref(), None, fx);
        let held = ctx.lock.and_then(|lock| self.locks.hold_with(lock, token)).map(|(holder, _)| holder);
        if let Some(holder) = held.filter(|&holder| self.undelivered.is_to_revoke(token, holder)) {
            self.revoke_hold(now.boot, &mut ctx, (token, holder), fx);
        }
        self.undelivered.forget_gone(&self.locks, key_ref.lock_key, token, held);
        self.admit_queue(now, &mut ctx, admission, fx);
        self.step(&ctx, ())
    }
}
