//! The engine's state of one server.

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
    /// Runs the pump at this moment, whatever it was set to before. Returns false if it cannot be set. Calls nothing
    /// back.
    fn set(&mut self, at: Moment) -> bool;
}

/// The engine's state of a server whose blocked clients are `B`, and whose alarm is `A`.
#[derive(Default)]
pub struct State<B, A> {
    /// The locks.
    pub table: Table,
    /// A buffer for effects, so that a step usually allocates nothing.
    pub fx: Effects,
    /// The blocked clients.
    pub clients: Clients<B>,
    /// The grants of this turn of the event loop.
    pub sent: UnflushedReplies,
    /// The replies that wait for replicas.
    pub confirm: Confirm,
    /// Dead locks, to be forgotten: their values were freed elsewhere.
    pub dead: Vec<LockId>,
    /// The time of the pump's next run without a request.
    pub wake: Wake<A>,
    /// The pump's state between its runs.
    pub pump: Pump,
    /// The position at which the last cron run ended.
    pub sweep: Sweep,
    /// The most contended locks.
    pub contended: HotLocks,
    /// True if strings could be locks when the settings were last changed.
    pub counts_strings: bool,
}

/// The time of the pump's next run without a request.
#[derive(Default)]
pub struct Wake<A> {
    /// The server's handle of it.
    pub alarm: A,
    /// When it will go off; `None` if it is not set.
    armed: Option<Moment>,
}

impl<A: Alarm> Wake<A> {
    /// Sets the alarm so that the pump runs at `next` or earlier. Leaves an earlier alarm alone: its cause is usually
    /// gone, and setting it costs a system call.
    #[inline]
    pub fn at(&mut self, next: Option<Moment>) {
        if let Some(next) = next
            && self.armed.is_none_or(|armed| next < armed)
            && self.alarm.set(next)
        {
            self.armed = Some(next);
        }
    }

    /// Notes that the alarm went off.
    pub const fn went_off(&mut self) {
        self.armed = None;
    }
}

/// The state of confirmations.
#[derive(Default)]
pub struct Confirm {
    /// Which acknowledgements are needed; `None` if none.
    pub rule: Option<Rule>,
    /// The replies that wait for them.
    pub all: Confirmations,
    /// The replicas were not asked for their offsets yet, because nothing may be written.
    pub must_ask: bool,
    /// When the engine last read the connected replicas.
    pub looked_at: Moment,
    /// The log says already that the server does not report its replicas.
    pub silence_is_logged: bool,
    /// How many replicas too many the log last reported.
    pub too_many_are_logged: u64,
    /// The number of confirmed grants.
    pub confirmed: u64,
    /// The number of grants that were not confirmed.
    pub failed: u64,
}

/// The pump's state between its runs.
#[derive(Default)]
pub struct Pump {
    /// The time of a requested run that has not begun.
    pub requested: Option<Moment>,
    /// The last run left work undone.
    pub has_backlog: bool,
    /// Clients whose answer was lost.
    pub unanswered: Vec<ClientId>,
    /// A new append-only file has begun, and needs the clock of tokens.
    pub must_tick: bool,
    /// How many moves of whole slots from here are running: nothing without a key may be replicated meanwhile.
    pub moves: usize,
    /// A quarantine has begun, and its end was not logged yet.
    pub is_quarantined: bool,
    /// True if, in the last run, this server decided on grants and expiries.
    pub decides: bool,
    /// Broken locks to log: the first, and the number of others.
    pub broken: Option<(LockKeyBuf, u64)>,
    /// The last logged reason why the module cannot be removed.
    pub obstacle_in_log: Obstacle,
}

/// The position at which the last cron run ended.
#[derive(Default)]
pub struct Sweep {
    /// Some queues must be checked.
    pub is_due: bool,
    /// The place of the next queue to check.
    pub queues: usize,
    /// The record of the next lease of an earlier role to check.
    pub orphans: u32,
    /// The number of keys per question to the server, if a test lowers it.
    pub most: Option<usize>,
}

impl<B: Copy + Eq + Hash, A: Alarm> State<B, A> {
    /// Completes a step of the core: forgets a lock without a key, and sets the alarm. Returns the effects of the step.
    #[inline]
    pub fn after_step(&mut self, change: Change, existing: Existing) -> Effects {
        self.after_change(change, existing);
        self.fx.take()
    }

    /// As [`Self::after_step`], after a step whose effects are not in the buffer.
    #[inline(always)]
    pub fn after_change(&mut self, change: Change, existing: Existing) {
        match (change, existing) {
            (Change::Deleted, Existing::Lock(lock)) => _ = self.table.forget_free(lock),
            _ => self.rearm(),
        }
        if self.table.has_tasks() || self.table.has_running() {
            // At once: waiters elsewhere may be next, or leases that run may not be replicated yet.
            self.wake.at(Some(Moment::default()));
        }
    }

    /// Returns true if the pump has work that is due now.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.table.has_tasks()
            || self.table.has_away()
            || self.table.has_unbound()
            || self.confirm.all.has_gone()
            || self.clients.has_paced()
    }

    /// Notes that a reply which names holds was sent.
    pub fn delivered(&mut self, reply: &Reply) {
        reply.for_each_hold(|lock_key, token| self.table.delivered(lock_key, token));
    }

    /// Notes that a reply which names holds will never be sent.
    pub fn dropped(&mut self, reply: &Reply) {
        reply.for_each_hold(|lock_key, token| self.table.dropped(lock_key, token));
    }

    /// Sets the time from which the connected replicas can confirm grants.
    pub fn note_when_confirmable(&mut self) {
        let confirm = &self.confirm;
        let from = confirm.rule.and_then(|rule| confirm.all.confirms_from(rule));
        self.table.set_confirmable_from(from.unwrap_or_default());
    }

    /// Sets the alarm for the next deadline.
    #[inline]
    pub fn rearm(&mut self) {
        let next = self.table.next_deadline(self.pump.decides);
        self.wake.at(next);
    }

    /// Frees the memory of a storm of waiters, except for a few.
    pub fn give_back_memory(&mut self) {
        const KEPT: Bound = Bound::of(64, 4);
        self.clients.give_back_memory();
        if self.fx.is_drained() && self.fx.capacity() > KEPT.get() {
            self.fx = Effects::default();
        }
    }
}
