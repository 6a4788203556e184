//! What is to be published and was not yet, in its order (G15).
//!
//! A hold that is broken from outside ends while the server is busy with somebody's command, and nothing may be
//! published there. So it is noted, and the pump publishes it. Until then whatever else happens to locks is published
//! behind it: else the next hold of a lock would be heard of before the end of the one before.
//!
//! A database that is emptied may take a million locks with it. They are set aside as a whole ([`Going`]), and the pump
//! publishes their ends, and gives back their memory, a few at a time.

use std::collections::VecDeque;

use super::noted::next_of;
use crate::lock::effect::Event;
use crate::lock::locks::{Going, Locks};
use crate::lock::types::{LockKeyBuf, Moment};

/// Something to be published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The lock that it happened to.
    pub lock_key: LockKeyBuf,
    /// What happened.
    pub event: Event,
}

/// What is in an outbox.
pub(super) enum Entry {
    Notice(Notice),
    /// All locks that went at this moment.
    Gone(Box<Going>, Moment),
    /// A lock that very many held.
    Detached(Box<Detached>),
}

/// A lock that is gone, and whose holders are let go one by one.
pub(super) struct Detached {
    pub(super) lock_key: LockKeyBuf,
    /// When it went.
    pub(super) then: Moment,
    /// Whether this server decides, and so publishes and counts.
    pub(super) is_ours: bool,
    /// How many leases were found to have been over by then, and are to be published.
    pub(super) expired: usize,
    /// Whether a hold was found that was live then: the lock was broken. That is published last.
    pub(super) is_broken: bool,
    /// Whether all its holders were let go.
    pub(super) is_drained: bool,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Outbox {
    pub(super) entries: VecDeque<Entry>,
    /// Locks that are gone, and of which nothing is published here.
    pub(super) silent: VecDeque<Going>,
    /// The last entry is what the last flush has emptied.
    pub(super) ends_with_flush: bool,
}

impl Outbox {
    pub(super) fn push(&mut self, lock_key: LockKeyBuf, event: Event) {
        self.entries.push_back(Entry::Notice(Notice { lock_key, event }));
    }

    /// These locks are gone. `published` says that the ends of their holds are published, which were live at this moment.
    pub(super) fn push_gone(&mut self, gone: Locks, published: Option<Moment>) {
        let gone = Going::new(gone);
        match published {
            Some(now) => self.entries.push_back(Entry::Gone(Box::new(gone), now)),
            None => self.silent.push_back(gone),
        }
    }

    /// Whether all is published, and the memory of what is gone given back.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.silent.is_empty()
    }

    pub(super) fn pop(&mut self) {
        drop(next_of(&mut self.entries));
    }
}
