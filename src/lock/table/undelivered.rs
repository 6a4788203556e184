//! Holds whose owners have not been sent a reply yet: each is delivered or revoked (G8).
//!
//! A hold that begins for a client that is answered later is undelivered until a reply which names it is sent. That
//! reply is outstanding until it is sent, dropped, or fails to be confirmed. Once the last one is gone and none was
//! sent, the pump revokes the hold: it ends it as a release would, if the hold is still undelivered by then. Until
//! then, the owner can ask for it again, and so adopt it.
//!
//! An entry belongs to one hold, by its token and its record. A hold that arrives at the same key from a payload, a
//! slot or a file is another one. It counts as delivered, as do all holds without an entry.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::task_queue::Notes;
use crate::lock::effect::{LockId, Task};
use crate::lock::locks::Locks;
use crate::lock::types::{LockKey, Moment, Token};

/// The undelivered holds; see the [module](self). Most grants have one hold.
#[derive(Default)]
pub(super) struct Undelivered {
    fates: HashMap<Token, SmallVec<[Fate; 1]>>,
}

/// What is known about one undelivered hold.
#[derive(Debug)]
struct Fate {
    /// Its record.
    hold: LockId,
    /// The number of outstanding replies that name it.
    outstanding: u32,
}

impl Undelivered {
    /// Returns true if all holds are delivered, which is the common case.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.fates.is_empty()
    }

    /// Adds a hold that has begun, with one outstanding reply.
    pub(super) fn begin(&mut self, token: Token, hold: LockId) {
        self.fates.entry(token).or_default().push(Fate { hold, outstanding: 1 });
    }

    /// Notes that the owner asked for this hold again. The reply is sent at once, or once replicas confirm.
    pub(super) fn note_asked_again(&mut self, token: Token, hold: LockId, confirms: bool) {
        if let Some(fate) = self.of(token, hold) {
            if confirms {
                fate.outstanding += 1;
            } else {
                self.note_delivered(token, hold);
            }
        }
    }

    /// Removes a hold that is delivered.
    pub(super) fn note_delivered(&mut self, token: Token, hold: LockId) {
        self.forget(token, |fate| fate.hold == hold);
    }

    /// Follows a hold that continues in another record.
    pub(super) fn note_moved(&mut self, token: Token, from: LockId, to: LockId) {
        if let Some(fate) = self.of(token, from) {
            fate.hold = to;
        }
    }

    /// Notes that a reply which names this hold will never be sent. Returns true if the hold must be revoked now.
    pub(super) fn drop_reply(&mut self, token: Token, hold: LockId) -> bool {
        self.of(token, hold).is_some_and(|fate| {
            fate.outstanding = fate.outstanding.saturating_sub(1);
            fate.outstanding == 0
        })
    }

    /// Returns true if this hold will be revoked unless its owner asks for it again first.
    pub(super) fn is_to_revoke(&mut self, token: Token, hold: LockId) -> bool {
        self.of(token, hold).is_some_and(|fate| fate.outstanding == 0)
    }

    /// Returns the undelivered hold with this token at this key. Forgets holds of its grant that have ended.
    pub(super) fn at(&mut self, locks: &Locks, lock_key: LockKey<'_>, token: Token) -> Option<LockId> {
        if self.is_empty() {
            return None;
        }
        self.forget_ended(locks, token);
        let mut fates = self.fates.get(&token)?.iter();
        fates.find(|fate| locks.get(fate.hold).is_some_and(|lock| lock.is_at(lock_key))).map(|fate| fate.hold)
    }

    /// Forgets holds of this grant that have ended, and holds to be revoked whose lock has left this key, even if
    /// they are not freed yet. Keeps the one that was `found` there.
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

    /// Returns the remaining lease of a grant, in milliseconds.
    pub(super) fn left_ms(&self, locks: &Locks, now: Moment, token: Token) -> Option<u64> {
        let holds = self.fates.get(&token)?.iter().filter_map(|fate| locks.hold(fate.hold));
        holds.map(|hold| hold.left_ms(now)).min()
    }

    /// Returns an error if a hold that is to be revoked was forgotten.
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

    /// Returns how many replies that name this hold are outstanding; `None` if it is delivered.
    #[cfg(test)]
    pub(super) fn outstanding(&self, token: Token, hold: LockId) -> Option<u32> {
        self.fates.get(&token)?.iter().find(|fate| fate.hold == hold).map(|fate| fate.outstanding)
    }

    /// Returns the number of undelivered grants.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.fates.len()
    }

    /// Returns what is known about this hold, if it is undelivered.
    fn of(&mut self, token: Token, hold: LockId) -> Option<&mut Fate> {
        // The common case.
        if self.is_empty() {
            return None;
        }
        self.fates.get_mut(&token)?.iter_mut().find(|fate| fate.hold == hold)
    }

    /// Forgets holds of this grant that have ended.
    fn forget_ended(&mut self, locks: &Locks, token: Token) {
        self.forget(token, |fate| locks.hold(fate.hold).is_none_or(|hold| hold.token() != token));
    }

    /// Forgets the holds of a grant for which `is_gone` is true.
    fn forget(&mut self, token: Token, is_gone: impl Fn(&Fate) -> bool) {
        if let Some(fates) = self.fates.get_mut(&token) {
            fates.retain(|fate| !is_gone(fate));
            if fates.is_empty() {
                self.fates.remove(&token);
            }
        }
    }
}
