//! What the table keeps.

use std::collections::VecDeque;

use super::away::Away;
use super::closed::ClosedConnections;
use super::noted::{Noted, PutOff};
use super::outbox::Outbox;
use super::terms::Limits;
use super::undelivered::Undelivered;
use crate::lock::deadlock::{Link, Looked};
use crate::lock::effect::Task;
use crate::lock::locks::Locks;
use crate::lock::lowered;
use crate::lock::queue::Queues;
use crate::lock::stats::Stats;
use crate::lock::token::TokenClock;
use crate::lock::types::Moment;

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
    pub(super) noted: VecDeque<Noted>,
    /// How many notes there were when the pump last threw some away.
    pub(super) noted_then: usize,
    /// Holds whose owners may not have been told of them.
    pub(super) undelivered: Undelivered,
    /// Those of them that are to be revoked. They are the first that the pump is to look at.
    pub(super) to_revoke: VecDeque<Task>,
    /// Holds that readers are to be told of as they are now. That grants nothing.
    pub(super) untold: VecDeque<Task>,
    /// What the server may not do yet, by when it is tried again.
    pub(super) put_off: PutOff,
    pub(super) closed: ClosedConnections,
    pub(super) outbox: Outbox,
    pub(super) stats: Stats,
    pub(super) limits: Limits,
    /// Until when nothing new is granted.
    pub(super) quarantine: Option<Quarantine>,
    /// Whether grants and renewals have to be confirmed, and are told later.
    pub(super) confirms: bool,
    /// Whether nothing new is granted because the module is to go.
    pub(super) is_leaving: bool,
    /// True in a quarantine, while grants must be confirmed, or while the module is being unloaded: the shortcuts are
    /// closed then.
    pub(super) is_restricted: bool,
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

/// While a server that may have forgotten locks grants none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quarantine {
    pub(super) since: Moment,
    pub(super) length_ms: u64,
}

impl Quarantine {
    pub(super) const fn until(self) -> Moment {
        self.since.plus_ms(self.length_ms)
    }
}
