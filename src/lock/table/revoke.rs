//! Requests and replies that concern [undelivered](super::undelivered) holds, and their revocation.

use super::key_step::KeyStep;
use super::requests::{Admission, Ask, KeyRef};
use super::state::Table;
use crate::lock::effect::{Effects, Event, LockId, Record, Step, Task};
use crate::lock::types::{ClientId, LockKey, Moment, Now, Token};

impl Table {
    /// Notes that the owner asked for this hold again or renewed it. The reply is sent at once, or once replicas
    /// confirm.
    pub(super) fn note_asked_again(&mut self, holder: LockId, client: Option<ClientId>) {
        self.locks.note_shown(holder, client);
        if let Some(token) = self.locks.hold(holder).map(|hold| hold.token()) {
            self.undelivered.note_asked_again(token, holder, self.restrictions.confirms());
        }
    }

    /// Notes that a reply which names this hold was sent to its owner.
    pub fn delivered(&mut self, lock_key: LockKey<'_>, token: Token) {
        if let Some(holder) = self.undelivered.at(&self.locks, lock_key, token) {
            self.undelivered.note_delivered(token, holder);
        }
    }

    /// Notes that a reply which names this hold will never be sent. If it was the last one, the pump revokes the hold
    /// before it does anything else.
    pub fn dropped(&mut self, lock_key: LockKey<'_>, token: Token) {
        if let Some(holder) = self.undelivered.at(&self.locks, lock_key, token)
            && self.undelivered.drop_reply(token, holder)
        {
            self.notes.note_task(Task::Revoke(lock_key.to_owned(), token));
        }
    }

    /// Forgets undelivered holds of this grant that have ended, once the pump has looked at this key and found
    /// `found`. Holds to be revoked whose lock has left the key are forgotten, too, even if they are not freed yet.
    pub fn forget_gone(&mut self, lock_key: LockKey<'_>, token: Token, found: Option<LockId>) {
        self.undelivered.forget_gone(&self.locks, lock_key, token, found);
    }

    /// Returns the remaining lease, in milliseconds, of a grant that is not delivered yet.
    #[must_use]
    pub fn left_of_undelivered(&self, now: Moment, token: Token) -> Option<u64> {
        self.undelivered.left_ms(&self.locks, now, token)
    }

    /// Returns how many replies that name this hold are outstanding; `None` if it is delivered. For tests.
    #[cfg(test)]
    pub fn outstanding(&self, lock: LockId, token: Token) -> Option<u32> {
        let (holder, _) = self.locks.hold_with(lock, token)?;
        self.undelivered.outstanding(token, holder)
    }

    /// Returns the number of undelivered grants. For tests.
    #[cfg(test)]
    pub fn undelivered(&self) -> usize {
        self.undelivered.len()
    }

    /// Ends the owner's hold if it is to be revoked, before the owner gets something else here.
    pub(super) fn revoke_own(&mut self, now: Moment, ctx: &mut KeyStep<'_>, ask: &Ask<'_>, fx: &mut Effects) {
        let own = ctx.own(&self.locks, ask.owner).map(|(holder, hold)| (holder, hold.token()));
        if let Some((holder, token)) = own
            && !ask.cannot_confirm
            && self.undelivered.is_to_revoke(token, holder)
        {
            self.revoke_hold(now, ctx, (token, holder), fx);
        }
    }

    /// Ends this hold as a release would.
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

    /// Ends this hold, and counts and publishes it as released. Returns true if there was one.
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

    /// Ends the hold with this token if it is still to be revoked, and serves the next waiters.
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
