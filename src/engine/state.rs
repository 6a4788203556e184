//! What the engine keeps of one server.

use crate::lock::tuning::Bound;
use std::hash::Hash;

use super::blocked_clients::{Clients, Reply};
use super::hot_locks::HotLocks;
use super::unflushed_replies::UnflushedReplies;
use super::uninstall_status::Obstacle;
use crate::lock::confirm::{Confirmations, Rule};
use crate::lock::effect::{Change, Effects, Existing, LockId};
use crate::lock::table::Table;
use crate::lock::types::{ClientId, LockKeyBuf, Moment};

/// Wakes the event loop.
pub trait Alarm {
    /// Runs the pump at this moment, whatever it was set to before. `false`: it cannot be set. Calls nobody.
    fn set(&mut self, at: Moment) -> bool;
}

/// What the engine keeps of a server whose blocked clients are `B`, and that is woken by `A`.
#[derive(Default)]
pub struct State<B, A> {
    /// The locks.
    pub table: Table,
    /// A buffer for effects, so that a step allocates nothing in the usual case.
    pub fx: Effects,
    /// The clients that are blocked.
    pub clients: Clients<B>,
    /// The grants of this turn of the event loop.
    pub sent: UnflushedReplies,
    /// The replies that wait for replicas.
    pub confirm: Confirm,
    /// Locks whose values were freed elsewhere, to be forgotten.
    pub dead: Vec<LockId>,
    /// The time of the pump's next run without a cause.
    pub wake: Wake<A>,
    /// The pump's state between its runs.
    pub pump: Pump,
    /// The position at which the last sweep ended.
    pub sweep: Sweep,
    /// The locks that are requested most while they are held.
    pub contended: HotLocks,
    /// True if strings could be locks when the settings were last changed.
    pub counts_strings: bool,
}

/// The time of the pump's next run without a cause.
#[derive(Default)]
pub struct Wake<A> {
    /// The server's handle of it.
    pub alarm: A,
    /// When it will go off; `None`: it is not set.
    armed: Option<Moment>,
}

impl<A: Alarm> Wake<A> {
    /// Sees to it that the pump runs at `next`, or earlier. An alarm that is set for an earlier moment is left alone:
    /// what it was set for is usually gone, and setting it costs a system call.
    #[inline]
    pub fn at(&mut self, next: Option<Moment>) {
        if let Some(next) = next
            && self.armed.is_none_or(|armed| next < armed)
            && self.alarm.set(next)
        {
            self.armed = Some(next);
        }
    }

    /// Notes that it went off.
    pub const fn went_off(&mut self) {
        self.armed = None;
    }
}

/// The state of confirmations.
#[derive(Default)]
pub struct Confirm {
    /// Which acknowledgements are needed; `None`: none.
    pub rule: Option<Rule>,
    /// The replies that wait for them.
    pub all: Confirmations,
    /// The replicas were not asked yet how far they are, because nothing may be written.
    pub must_ask: bool,
    /// When the engine last looked which replicas there are.
    pub looked_at: Moment,
    /// The log says already that the server does not tell of its replicas.
    pub silence_is_logged: bool,
    /// How many replicas there were too many when the log was last told.
    pub too_many_are_logged: u64,
    /// The number of confirmed grants.
    pub confirmed: u64,
    /// The number of grants that were not confirmed.
    pub failed: u64,
}

/// The pump's state between its runs.
#[derive(Default)]
pub struct Pump {
    /// Since when a run is asked for that has not begun.
    pub requested: Option<Moment>,
    /// The last run did not get to the end of its work.
    pub has_backlog: bool,
    /// Clients whose answer got lost.
    pub unanswered: Vec<ClientId>,
    /// A new append-only file was begun: it must learn how far the tokens are.
    pub must_tick: bool,
    /// How many moves of slots as a whole are on their way out: nothing without a key may be replicated meanwhile.
    pub moves: usize,
    /// A quarantine has begun, and the log does not report its end yet.
    pub is_quarantined: bool,
    /// True if grants and expiries are this server's to decide, as of the last look.
    pub decides: bool,
    /// What the log is to be told of broken locks: the first, and how many others.
    pub broken: Option<(LockKeyBuf, u64)>,
    /// The last reason in the log that keeps the module from leaving.
    pub obstacle_in_log: Obstacle,
}

/// The position at which the last sweep ended.
#[derive(Default)]
pub struct Sweep {
    /// Some queues need a look.
    pub is_due: bool,
    /// From which place on queues are looked at.
    pub queues: usize,
    /// From which record on leases of another life are looked at.
    pub orphans: u32,
    /// The number of keys per question to the server, if a test lowers it.
    pub most: Option<usize>,
}

impl<B: Copy + Eq + Hash, A: Alarm> State<B, A> {
    /// Does for the core what is left to do after a step. Forgets a lock without a key, and has the pump run when the
    /// next thing ends. Returns the effects of the step.
    #[inline]
    pub fn after_step(&mut self, change: Change, existing: Existing) -> Effects {
        self.after_change(change, existing);
        self.fx.take()
    }

    /// Does as [`Self::after_step`] after a step whose effects are not in the buffer.
    #[inline(always)]
    pub fn after_change(&mut self, change: Change, existing: Existing) {
        match (change, existing) {
            (Change::Deleted, Existing::Lock(lock)) => _ = self.table.forget_free(lock),
            _ => self.rearm(),
        }
        if self.table.has_tasks() || self.table.has_running() {
            // At once: somebody's turn may have come elsewhere, or leases that run may not be told yet.
            self.wake.at(Some(Moment::default()));
        }
    }

    /// Returns true if there is anything that only the pump does, and that needs no time to pass.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.table.has_tasks()
            || self.table.has_away()
            || self.table.has_unbound()
            || self.confirm.all.has_gone()
            || self.clients.has_paced()
    }

    /// A reply that names holds was sent.
    pub fn delivered(&mut self, reply: &Reply) {
        reply.for_each_hold(|lock_key, token| self.table.delivered(lock_key, token));
    }

    /// A reply that names holds is never sent.
    pub fn dropped(&mut self, reply: &Reply) {
        reply.for_each_hold(|lock_key, token| self.table.dropped(lock_key, token));
    }

    /// Tells the core from when on the replicas that are connected can confirm grants.
    pub fn note_when_confirmable(&mut self) {
        let confirm = &self.confirm;
        let from = confirm.rule.and_then(|rule| confirm.all.confirms_from(rule));
        self.table.set_confirmable_from(from.unwrap_or_default());
    }

    /// Sees to it that the pump runs when the next thing ends.
    #[inline]
    pub fn rearm(&mut self) {
        let next = self.table.next_deadline(self.pump.decides);
        self.wake.at(next);
    }

    /// Gives back the memory of a storm of waiters, but for room for a few.
    pub fn give_back_memory(&mut self) {
        const KEPT: Bound = Bound::of(64, 4);
        self.clients.give_back_memory();
        if self.fx.is_drained() && self.fx.capacity() > KEPT.get() {
            self.fx = Effects::default();
        }
    }
}
