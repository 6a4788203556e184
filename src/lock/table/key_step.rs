//! The state of a step of the table at one key.

use super::requests::KeyRef;
use super::state::Table;
use crate::lock::effect::{Effects, Existing, Legacy, LockId, Record};
use crate::lock::locks::{Ended, Hold, Locks};
use crate::lock::types::{Mode, Moment, Token};

/// A key while a step works on it.
pub(super) struct KeyStep<'a> {
    pub(super) key_ref: KeyRef<'a>,
    /// The lock that stands here now, held or empty.
    pub(super) lock: Option<LockId>,
    pub(super) has_ended: bool,
    pub(super) has_begun: bool,
    pub(super) is_touched: bool,
    /// The lock of an old client at this key.
    pub(super) legacy: Option<Legacy>,
    pub(super) record: Record,
    /// The number of waiters that this step has answered, at this key and those before it.
    pub(super) served: usize,
}

impl Table {
    /// Begins a step at this key: first ends the waits that a lock which has arrived there made void.
    #[inline(always)]
    pub(super) fn open_step<'a>(
        &mut self,
        now: Moment,
        key_ref: KeyRef<'a>,
        fx: &mut Effects,
    ) -> KeyStep<'a> {
        self.leave_quarantine(now);
        self.end_waits_for_arrived(now, key_ref, fx);
        KeyStep::new(key_ref)
    }
}

impl<'a> KeyStep<'a> {
    pub(super) const fn new(key_ref: KeyRef<'a>) -> Self {
        let lock = match key_ref.existing {
            Existing::Lock(lock) => Some(lock),
            _ => None,
        };
        let legacy = match key_ref.existing {
            Existing::Legacy(legacy) => Some(legacy),
            _ => None,
        };
        Self {
            key_ref,
            lock,
            has_ended: false,
            has_begun: false,
            is_touched: false,
            legacy,
            record: Record::Nothing,
            served: 0,
        }
    }

    /// Sends this record to replicas and files, after the earlier records of the step.
    pub(super) fn replicate(&mut self, record: Record, fx: &mut Effects) {
        if self.record == Record::Nothing {
            self.record = record;
        } else {
            fx.replicate(record);
        }
    }

    /// Returns true if the step has a record for replicas.
    pub(super) fn replicates(&self) -> bool {
        self.record != Record::Nothing
    }

    /// Notes that the lock of an old client was released.
    pub(super) fn end_legacy(&mut self) {
        self.legacy = None;
        self.has_ended = true;
    }

    /// Returns true if a hold has ended in this step.
    pub(super) const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Notes that a hold has begun, with no other alongside.
    pub(super) const fn note_begun(&mut self) {
        self.has_begun = true;
    }

    /// Notes that a reader can see a change of the lock, whose key stays.
    pub(super) const fn touch(&mut self) {
        self.is_touched = true;
    }
    /// The mode in which the lock is held; `None` if it is free.
    pub(super) fn held_as(&self, locks: &Locks) -> Option<Mode> {
        if self.legacy.is_some() {
            return Some(Mode::Exclusive);
        }
        locks.mode(self.lock?)
    }

    /// Returns this owner's hold.
    pub(super) fn own<'s>(&self, locks: &'s Locks, owner: &[u8]) -> Option<(LockId, Hold<'s>)> {
        locks.hold_of(self.lock?, owner)
    }

    /// Returns this owner's hold if it has this token: an older request that names a token touches no newer hold
    /// (G10).
    pub(super) fn own_with<'s>(
        &self,
        locks: &'s Locks,
        owner: &[u8],
        token: Option<Token>,
    ) -> Option<(LockId, Hold<'s>)> {
        self.own(locks, owner).filter(|(_, hold)| token.is_none_or(|token| token == hold.token()))
    }

    /// Ends one hold of the lock.
    pub(super) fn end_one(&mut self, locks: &mut Locks, now: Moment, holder: LockId) -> Option<Ended> {
        let lock = self.lock?;
        self.has_ended = true;
        if !lock.is_list() {
            return locks.end(lock, now);
        }
        let (ended, left) = locks.remove_holder(lock, holder, now)?;
        if left == 0 {
            locks.dissolve(lock);
            self.lock = None;
        }
        Some(ended)
    }
}
