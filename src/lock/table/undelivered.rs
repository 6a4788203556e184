//! Holds of which no reply was sent to their owners yet: each is delivered or revoked (G8).
//!
//! A hold that begins for a client that is answered later is undelivered until a reply that tells of it was sent. A
//! reply of this kind is outstanding until it is sent, dropped or not confirmed. When the last one is gone and none
//! was sent, the hold is to be revoked: the pump ends it as a release does. Whether that is still so is decided then.
//! Until then its owner may ask for it again, and so adopts it.
//!
//! What is kept here belongs to one hold, by its token and its record. A hold that comes to the same key by a
//! payload, a slot or a file is another one, and delivered, as are all of which nothing is kept.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::task_queue::Notes;
use crate::lock::effect::{LockId, Task};
use crate::lock::locks::Locks;
use crate::lock::types::{LockKey, Moment, Token};

/// See the [module](self). Most grants are of one hold.
#[derive(Default)]
pub(super) struct Undelivered {
    fates: HashMap<Token, SmallVec<[Fate; 1]>>,
}

/// Facts about one undelivered hold.
#[derive(Debug)]
struct Fate {
    /// Its record.
    hold: LockId,
    /// The number of outstanding replies that name it.
    outstanding: u32,
}

impl Undelivered {
    /// Returns true if all holds are delivered, as is usual.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.fates.is_empty()
    }

    /// Notes that a hold has begun, which one reply will name.
    pub(super) fn begin(&mut self, token: Token, hold: LockId) {
        self.fates.entry(token).or_default().push(Fate { hold, outstanding: 1 });
    }

    /// Its owner asked for this hold again. The reply comes at once, or when replicas have confirmed it.
    pub(super) fn note_asked_again(&mut self, token: Token, hold: LockId, confirms: bool) {
        if let Some(fate) = self.of(token, hold) {
            if confirms {
                fate.outstanding += 1;
            } else {
                self.note_delivered(token, hold);
            }
        }
    }

    /// Nothing is kept of this hold from here on: it is delivered.
    pub(super) fn note_delivered(&mut self, token: Token, hold: LockId) {
        self.forget(token, |fate| fate.hold == hold);
    }

    /// A hold goes on by another record.
    pub(super) fn note_moved(&mut self, token: Token, from: LockId, to: LockId) {
        if let Some(fate) = self.of(token, from) {
            fate.hold = to;
        }
    }

    /// A reply that names this hold is never sent. Returns true if the hold is to be revoked.
    pub(super) fn drop_reply(&mut self, token: Token, hold: LockId) -> bool {
        self.of(token, hold).is_some_and(|fate| {
            fate.outstanding = fate.outstanding.saturating_sub(1);
            fate.outstanding == 0
        })
    }

    /// Returns true if this hold will be revoked, unless its owner asks for it again before.
    pub(super) fn is_to_revoke(&mut self, token: Token, hold: LockId) -> bool {
        self.of(token, hold).is_some_and(|fate| fate.outstanding == 0)
    }

    /// The undelivered hold with this token at this key. Forgets those of its grant that have ended.
    pub(super) fn at(&mut self, locks: &Locks, lock_key: LockKey<'_>, token: Token) -> Option<LockId> {
        if self.is_empty() {
            return None;
        }
        self.forget_ended(locks, token);
        let mut fates = self.fates.get(&token)?.iter();
        fates.find(|fate| locks.get(fate.hold).is_some_and(|lock| lock.is_at(lock_key))).map(|fate| fate.hold)
    }

    /// Forgets holds of this grant that have ended, and those that were to be revoked at this key. The lock of these
    /// has left the key, and may not be freed yet. The one that was `found` there stays.
    pub(super) fn forget_gone(
        &mut self,
        locks: &Locks,
        lock_key: LockKey<'_>,
        token: Token,
        found: Option<LockId>,
    ) {
        self.forget_ended(locks, token);
        let was_here = |id| locks.get(id).is_some_and(|lock| lock.is_at(lock_key));
        self.forget(token, |fate| fate.outstanding == 0 && Some(fate.hold) != found && was_here(fate.hold));
    }

    /// The remaining lease of a grant, in milliseconds.
    pub(super) fn left_ms(&self, locks: &Locks, now: Moment, token: Token) -> Option<u64> {
        let holds = self.fates.get(&token)?.iter().filter_map(|fate| locks.hold(fate.hold));
        holds.map(|hold| hold.left_ms(now)).min()
    }

    /// Tells what is wrong, if anything is: a hold that is to be revoked must not be forgotten.
    pub(super) fn check(&self, locks: &Locks, notes: &Notes) -> Result<(), String> {
        for (&token, fates) in &self.fates {
            for fate in fates.iter().filter(|fate| fate.outstanding == 0) {
                let is_noted =
                    notes.revocations().any(|task| matches!(task, Task::Revoke(_, noted) if *noted == token));
                let is_there = locks.hold(fate.hold).is_some_and(|hold| hold.token() == token);
                if is_there && !is_noted {
                    return Err(format!("{token:?} is to be revoked, and nobody knows"));
                }
            }
        }
        Ok(())
    }

    /// How many replies are outstanding that tell of this hold; `None`: it is delivered.
    #[cfg(test)]
    pub(super) fn outstanding(&self, token: Token, hold: LockId) -> Option<u32> {
        self.fates.get(&token)?.iter().find(|fate| fate.hold == hold).map(|fate| fate.outstanding)
    }

    /// The number of grants that are not delivered.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.fates.len()
    }

    /// The facts about this hold, if it is undelivered.
    fn of(&mut self, token: Token, hold: LockId) -> Option<&mut Fate> {
        // The usual case.
        if self.is_empty() {
            return None;
        }
        self.fates.get_mut(&token)?.iter_mut().find(|fate| fate.hold == hold)
    }

    /// Forgets what is kept of holds of this grant that have ended.
    fn forget_ended(&mut self, locks: &Locks, token: Token) {
        self.forget(token, |fate| locks.hold(fate.hold).is_none_or(|hold| hold.token() != token));
    }

    /// Forgets those holds of a grant of which this is true.
    fn forget(&mut self, token: Token, is_gone: impl Fn(&Fate) -> bool) {
        if let Some(fates) = self.fates.get_mut(&token) {
            fates.retain(|fate| !is_gone(fate));
            if fates.is_empty() {
                self.fates.remove(&token);
            }
        }
    }
}
