//! Holds of which no reply was sent to their owners yet: each is delivered or revoked (G8).
//!
//! A hold that begins for a client that is answered later is undelivered until a reply that tells of it was sent. A
//! reply of this kind is outstanding until it is sent, dropped or not confirmed. When the last one is gone and none
//! was sent, the hold is to be revoked: the pump ends it as a release does. Whether that is still so is decided then.
//! Until then its owner may ask for it again, and so adopts it.
//!
//! What is kept here belongs to one hold, by its token and its record. A hold that comes to the same key by a
//! payload, a slot or a file is another one, and delivered, as are all of which nothing is kept.

use super::context::StepContext;
use super::state::Table;
use super::terms::{Admission, Ask, KeyRef};
use crate::lock::effect::{Effects, Event, LockId, Record, Step, Task};
use crate::lock::types::{ClientId, LockKey, Moment, Now, Token};

impl Table {
    /// The owner of this hold asked for it again or renewed it, and is told so: at once, or when replicas have it.
    pub(super) fn note_asked_again(&mut self, holder: LockId, client: Option<ClientId>) {
        self.locks.note_shown(holder, client);
        if let Some(token) = self.locks.hold(holder).map(|hold| hold.token())
            && let Some(fate) = self.undelivered.of(token, holder)
        {
            if self.restrictions.confirms() {
                fate.outstanding += 1;
            } else {
                self.note_delivered(token, holder);
            }
        }
    }

    /// Nothing is kept of this hold from here on: it is delivered.
    pub(super) fn note_delivered(&mut self, token: Token, holder: LockId) {
        self.undelivered.forget(token, |fate| fate.hold == holder);
    }

    /// A hold goes on by another record.
    pub(super) fn note_moved(&mut self, token: Token, from: LockId, to: LockId) {
        if let Some(fate) = self.undelivered.of(token, from) {
            fate.hold = to;
        }
    }

    /// A reply that names this hold was sent to its owner.
    pub fn delivered(&mut self, lock_key: LockKey<'_>, token: Token) {
        if let Some(holder) = self.undelivered_at(lock_key, token) {
            self.note_delivered(token, holder);
        }
    }

    /// A reply that names this hold is never sent. If it was the last one, the pump is to revoke the hold, before
    /// it looks at anything else.
    pub fn dropped(&mut self, lock_key: LockKey<'_>, token: Token) {
        if let Some(holder) = self.undelivered_at(lock_key, token)
            && let Some(fate) = self.undelivered.of(token, holder)
        {
            fate.outstanding = fate.outstanding.saturating_sub(1);
            if fate.outstanding == 0 {
                self.notes.note_task(Task::Revoke(lock_key.to_owned(), token));
            }
        }
    }

    /// The undelivered hold with this token at this key. Forgets those of its grant that have ended.
    fn undelivered_at(&mut self, lock_key: LockKey<'_>, token: Token) -> Option<LockId> {
        if self.undelivered.0.is_empty() {
            return None;
        }
        self.forget_ended(token);
        let locks = &self.locks;
        let mut fates = self.undelivered.0.get(&token)?.iter();
        fates.find(|fate| locks.get(fate.hold).is_some_and(|lock| lock.is_at(lock_key))).map(|fate| fate.hold)
    }

    /// Returns true if this hold will be revoked, unless its owner asks for it again before.
    pub(super) fn is_to_revoke(&mut self, token: Token, holder: LockId) -> bool {
        self.undelivered.of(token, holder).is_some_and(|fate| fate.outstanding == 0)
    }

    /// Forgets what is kept of holds of this grant that have ended.
    fn forget_ended(&mut self, token: Token) {
        let locks = &self.locks;
        self.undelivered.forget(token, |fate| locks.hold(fate.hold).is_none_or(|hold| hold.token() != token));
    }

    /// The pump has looked for a hold of this grant at this key, and has found this one. Forgets those that have ended.
    /// Forgets others that were to be revoked here, too: their lock has left the key, and may not be freed yet.
    pub fn forget_gone(&mut self, lock_key: LockKey<'_>, token: Token, found: Option<LockId>) {
        self.forget_ended(token);
        let locks = &self.locks;
        let was_here = |id| locks.get(id).is_some_and(|lock| lock.is_at(lock_key));
        self.undelivered
            .forget(token, |fate| fate.outstanding == 0 && Some(fate.hold) != found && was_here(fate.hold));
    }

    /// The remaining lease of a grant that was not delivered yet, in milliseconds.
    #[must_use]
    pub fn left_of_undelivered(&self, now: Moment, token: Token) -> Option<u64> {
        let holds = self.undelivered.0.get(&token)?.iter().filter_map(|fate| self.locks.hold(fate.hold));
        holds.map(|hold| hold.left_ms(now)).min()
    }

    /// Tells what is wrong with what is kept of undelivered holds, if anything is: one that is to be revoked must not
    /// be forgotten.
    pub(super) fn check_undelivered(&self) -> Result<(), String> {
        let tasks = || self.notes.revocations();
        for (&token, fates) in &self.undelivered.0 {
            for fate in fates.iter().filter(|fate| fate.outstanding == 0) {
                let is_noted = tasks().any(|task| matches!(task, Task::Revoke(_, noted) if *noted == token));
                let is_there = self.locks.hold(fate.hold).is_some_and(|hold| hold.token() == token);
                if is_there && !is_noted {
                    return Err(format!("{token:?} is to be revoked, and nobody knows"));
                }
            }
        }
        Ok(())
    }

    /// How many replies are outstanding that tell of this hold; `None`: it is delivered. For tests.
    #[cfg(test)]
    pub fn outstanding(&self, lock: LockId, token: Token) -> Option<u32> {
        let (holder, _) = self.locks.hold_with(lock, token)?;
        let fate = self.undelivered.0.get(&token)?.iter().find(|fate| fate.hold == holder)?;
        Some(fate.outstanding)
    }

    /// Of how many grants it is not known yet whether their owners learn of them. For tests.
    #[cfg(test)]
    pub fn undelivered(&self) -> usize {
        self.undelivered.0.len()
    }

    /// This owner asks for something else than its hold here. Ends the hold first, if it has to be revoked.
    pub(super) fn revoke_own(
        &mut self,
        now: Moment,
        ctx: &mut StepContext<'_>,
        ask: &Ask<'_>,
        fx: &mut Effects,
    ) {
        let own = ctx.own(&self.locks, ask.owner).map(|(holder, hold)| (holder, hold.token()));
        if let Some((holder, token)) = own
            && !ask.cannot_confirm
            && self.is_to_revoke(token, holder)
        {
            self.revoke_hold(now, ctx, (token, holder), fx);
        }
    }

    /// Ends this hold as a release does.
    fn revoke_hold(
        &mut self,
        now: Moment,
        ctx: &mut StepContext<'_>,
        (token, holder): (Token, LockId),
        fx: &mut Effects,
    ) {
        self.note_delivered(token, holder);
        if self.end_released(now, ctx, holder, fx) {
            ctx.replicate(Record::Ended(token), fx);
        }
    }

    /// Ends this hold, and counts and publishes that as a release. Whether there was one.
    pub(super) fn end_released(
        &mut self,
        now: Moment,
        ctx: &mut StepContext<'_>,
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
        self.end_overs(now.boot, &mut ctx, owner.as_deref(), None, fx);
        let held = ctx.lock.and_then(|lock| self.locks.hold_with(lock, token)).map(|(holder, _)| holder);
        if let Some(holder) = held.filter(|&holder| self.is_to_revoke(token, holder)) {
            self.revoke_hold(now.boot, &mut ctx, (token, holder), fx);
        }
        self.forget_gone(key_ref.lock_key, token, held);
        self.admit_queue(now, &mut ctx, admission, fx);
        self.step(&ctx, ())
    }
}
