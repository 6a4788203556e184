//! What the table keeps.

use std::collections::VecDeque;

use super::away::Away;
use super::closed::ClosedConnections;
use super::noted::Notes;
use super::outbox::Outbox;
use super::restrictions::Restrictions;
use super::terms::Limits;
use super::undelivered::Undelivered;
use crate::lock::deadlock::{Link, Looked};
use crate::lock::locks::Locks;
use crate::lock::lowered;
use crate::lock::queue::Queues;
use crate::lock::stats::Stats;
use crate::lock::token::TokenClock;

/// How many waiters of a lock are let in or refused in one step. The rest come in with the next steps of the
/// pump, and until then a newcomer stands behind them.
const SERVED_A_STEP: usize = 64;

/// Whether a step that has served `served` waiters leaves the rest to the pump.
pub(super) fn are_enough(served: usize) -> bool {
    served >= lowered::served_max(SERVED_A_STEP)
}

/// The locks of one server. See the [module](self).
#[derive(Default)]
pub struct Table {
    pub(super) locks: Locks,
    pub(super) queues: Queues,
    pub(super) clock: TokenClock,
    /// How many sets of locks were set aside.
    pub(super) epochs: u32,
    /// How many there were when the keyspace was last emptied or replaced: it may have values of any set since then.
    pub(super) epochs_then: u32,
    /// What the pump must look at.
    pub(super) notes: Notes,
    /// Holds whose owners may not have been told of them.
    pub(super) undelivered: Undelivered,
    pub(super) closed: ClosedConnections,
    pub(super) outbox: Outbox,
    pub(super) stats: Stats,
    pub(super) limits: Limits,
    /// What keeps this server from granting locks.
    pub(super) restrictions: Restrictions,
    /// Why the request refused last would have waited for itself.
    pub(super) cycle: Vec<Link>,
    /// How much the search for it looked at last.
    pub(super) looked: Looked,
    /// Clients that wait in vain, and were not told so yet.
    pub(super) away: VecDeque<Away>,
}

impl Table {
    /// Sets the limits, from the next request on. Nobody who waits already is turned away.
    pub fn set_limits(&mut self, limits: Limits) {
        let has_room = limits.holders_max > self.limits.holders_max;
        self.limits = limits;
        if has_room {
            self.note_everything();
        }
    }

    /// The clock of tokens.
    pub const fn clock(&mut self) -> &mut TokenClock {
        &mut self.clock
    }
}
