//! The fields of the table.

use std::collections::VecDeque;

use super::event_queue::EventQueue;
use super::rejected_waiters::RejectedWaiters;
use super::requests::Limits;
use super::restrictions::Restrictions;
use super::sessions::Sessions;
use super::task_queue::Notes;
use super::undelivered::Undelivered;
use crate::lock::deadlock::{Link, Looked};
use crate::lock::locks::Locks;
use crate::lock::queue::Queues;
use crate::lock::stats::Stats;
use crate::lock::token::TokenClock;
use crate::lock::tuning;

/// How many waiters of a lock one step grants or refuses. The pump serves the rest in its next steps; until then,
/// newcomers queue after them.
const SERVED_A_STEP: usize = 64;

/// Returns true if a step that has served this many waiters leaves the rest to the pump.
pub(super) fn are_enough(served: usize) -> bool {
    served >= tuning::served_max(SERVED_A_STEP)
}

/// The locks of one server. See the [module](self).
#[derive(Default)]
pub struct Table {
    pub(super) locks: Locks,
    pub(super) queues: Queues,
    pub(super) clock: TokenClock,
    /// The number of sets of locks that were replaced.
    pub(super) epochs: u32,
    /// The value of `epochs` when the keyspace was last emptied or replaced: since then it may hold values of any
    /// later set.
    pub(super) epochs_then: u32,
    /// The tasks of the pump.
    pub(super) notes: Notes,
    /// Holds whose grants were not delivered yet.
    pub(super) undelivered: Undelivered,
    /// Connections that have closed.
    pub(super) sessions: Sessions,
    pub(super) events: EventQueue,
    pub(super) stats: Stats,
    pub(super) limits: Limits,
    /// The reasons why this server may not grant locks.
    pub(super) restrictions: Restrictions,
    /// The cycle that the last refused request would have closed.
    pub(super) cycle: Vec<Link>,
    /// The number of steps that the last search for a cycle took.
    pub(super) looked: Looked,
    /// Waiters that were set aside and not answered yet.
    pub(super) rejected: VecDeque<RejectedWaiters>,
}

impl Table {
    /// Sets the limits for later requests. Current waiters stay.
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
