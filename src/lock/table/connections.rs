//! Connections that close, and what was bound to them.

use super::context::StepContext;
use super::state::*;
use crate::lock::lowered;

/// How many holds of a connection are unbound at once when it closes.
const UNBOUND_MAX: usize = 32;

impl Table {
    /// A connection has closed: what it kept alive runs out from here, what it was to end with is cut.
    pub fn disconnected(&mut self, now: Moment, client: ClientId) {
        if sabotage::removes(Rule::Disconnect) {
            return;
        }
        let (holds, is_first) = (self.locks.take_bound_to(client), self.closed.is_empty());
        self.closed.push_back(Closed { client, at: now, holds });
        if is_first {
            self.unbind_some(lowered::unbound_max(UNBOUND_MAX));
        }
    }

    /// Whether there are holds yet that connections were to unbind that have closed.
    pub(super) fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// The owner asks for what it holds. First ends what a closed connection of the owner's still has to end, so that
    /// it does not cut later what the owner is granted now.
    #[cold]
    pub(super) fn unbind_own(&mut self, ctx: &StepContext<'_>, owner: &[u8]) {
        let Some(hold) = self.own(ctx, owner).map(|(hold, _)| hold) else {
            return;
        };
        let closed: Vec<_> = self.closed.iter().map(|closed| (closed.client, closed.at)).collect();
        for (client, at) in closed {
            if self.locks.unbind(hold, client, at) {
                self.replicate_again(hold);
            }
        }
    }

    /// Goes on with the holds of connections that have closed, so many of them: there may be a million. For each one the
    /// pump has then something to do. So it asks for one at a time, and a million tasks are never there at once.
    pub(super) fn unbind_some(&mut self, count_max: usize) {
        for _ in 0..count_max {
            let Some(Closed { client, at, holds }) = self.closed.front_mut() else {
                return;
            };
            let (client, at) = (*client, *at);
            match holds.next() {
                None => _ = self.closed.pop_front(),
                Some(hold) if self.locks.unbind(hold, client, at) => self.replicate_again(hold),
                Some(_) => {}
            }
        }
    }

    /// Whether any hold has a binding, whether its connection is open or not.
    #[inline]
    #[must_use]
    pub const fn has_bindings(&self) -> bool {
        self.locks.has_bindings()
    }

    /// Whether leases run that the pump has not told others of yet.
    #[inline]
    #[must_use]
    pub const fn has_running(&self) -> bool {
        self.locks.has_running()
    }

    /// Whether any hold has a binding, or may have one before a step is over:
    /// one may come out of the queue.
    #[inline]
    #[must_use]
    pub const fn may_have_bindings(&self) -> bool {
        self.locks.has_bindings() || self.queues.have_bindings()
    }

    /// Another server decides from here on: no connection of this one keeps anything alive, or ends it.
    pub fn forget_connections(&mut self) {
        let closed = std::mem::take(&mut self.closed);
        self.locks.forget_connections(closed.into_iter().map(|closed| closed.holds));
    }

    /// Whether it is to be found out yet which holds are orphaned.
    #[must_use]
    pub fn has_unbound(&self) -> bool {
        self.locks.has_unbound()
    }

    /// Finds out of so many holds whether they are orphaned. Returns whether that is known of all.
    pub fn sort_unbound(&mut self, count_max: usize) -> bool {
        self.locks.sort_unbound(count_max);
        !self.has_unbound()
    }

    /// Whether any hold is orphaned.
    #[must_use]
    pub const fn has_orphaned(&self) -> bool {
        self.locks.has_orphaned()
    }

    /// Some of those holds, by their records from this one on, and where they are.
    #[must_use]
    pub fn orphaned(&self, from: u32, count_max: usize) -> Vec<(LockId, LockKeyBuf)> {
        let orphaned = self.locks.orphaned(from).take(count_max);
        orphaned.filter_map(|lock| Some((lock, self.locks.get(lock)?.lock_key()?))).collect()
    }

    /// No connection keeps these holds alive: their leases run from here, at their full length.
    pub fn let_run(&mut self, holds: &[LockId], now: Moment) {
        for &hold in holds {
            self.locks.let_run(hold, now);
            self.replicate_again(hold);
        }
    }

    /// This server decides: what closed connections kept alive runs out from here. The pump tells readers, hold by hold.
    /// `false`: some have to wait for those that were let run before.
    pub fn let_orphaned_run(&mut self, now: Moment) -> bool {
        self.locks.let_orphaned_run(now)
    }

    /// Goes on with one of these holds.
    pub(super) fn go_on_with_orphaned(&mut self) {
        if let Some(hold) = self.locks.next_running() {
            self.replicate_again(hold);
        }
    }
}
