//! Connections that close, and what was bound to them.

use super::key_step::KeyStep;
use super::state::Table;
use crate::lock::effect::LockId;
use crate::lock::tuning;
use crate::lock::types::{ClientId, LockKeyBuf, Moment};

/// The number of holds of a connection that are unbound at once when it closes.
const UNBOUND_MAX: usize = 32;

impl Table {
    /// A connection has closed: what it kept alive runs out from here, what it was to end with is cut.
    pub fn disconnected(&mut self, now: Moment, client: ClientId) {
        let is_first = !self.sessions.has_closed();
        self.sessions.close(&mut self.locks, now, client);
        if is_first {
            self.unbind_some(tuning::unbound_max(UNBOUND_MAX));
        }
    }

    /// The owner asks for what it holds. First ends what a closed connection of the owner's still has to end, so that
    /// it does not cut later what the owner is granted now.
    #[cold]
    pub(super) fn unbind_own(&mut self, ctx: &KeyStep<'_>, owner: &[u8]) {
        if let Some((hold, _)) = ctx.own(&self.locks, owner)
            && self.sessions.unbind(&mut self.locks, hold)
        {
            self.replicate_again(hold);
        }
    }

    /// Unbinds the next `count_max` holds of connections that have closed. Each one gives the pump something to do. So
    /// the pump asks for one at a time, and a million tasks are never there at once.
    pub(super) fn unbind_some(&mut self, count_max: usize) {
        for _ in 0..count_max {
            if let Some(hold) = self.sessions.unbind_next(&mut self.locks) {
                self.replicate_again(hold);
            }
        }
    }

    /// Returns true if any hold has a binding, whether its connection is open or not.
    #[inline]
    #[must_use]
    pub const fn has_bindings(&self) -> bool {
        self.locks.has_bindings()
    }

    /// Returns true if leases run that the pump has not told others of yet.
    #[inline]
    #[must_use]
    pub const fn has_running(&self) -> bool {
        self.locks.has_running()
    }

    /// Returns true if any hold has a binding, or may have one before a step is over:
    /// one may come out of the queue.
    #[inline]
    #[must_use]
    pub const fn may_have_bindings(&self) -> bool {
        self.locks.has_bindings() || self.queues.have_bindings()
    }

    /// Forgets all connections: another server decides from here on, so none of this one keeps anything alive, or ends
    /// it.
    pub fn forget_connections(&mut self) {
        self.sessions.forget(&mut self.locks);
    }

    /// Returns true if it is to be found out yet which holds are orphaned.
    #[must_use]
    pub fn has_unbound(&self) -> bool {
        self.locks.has_unbound()
    }

    /// Finds out whether the next `count_max` unbound holds are orphaned. Returns whether that is known of all.
    pub fn sort_unbound(&mut self, count_max: usize) -> bool {
        self.locks.sort_unbound(count_max);
        !self.has_unbound()
    }

    /// Returns true if any hold is orphaned.
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

    /// Lets the leases of these holds run from here, at their full length: no connection keeps them alive.
    pub fn let_run(&mut self, holds: &[LockId], now: Moment) {
        for &hold in holds {
            self.locks.let_run(hold, now);
            self.replicate_again(hold);
        }
    }

    /// Lets the leases run from here that closed connections kept alive: this server decides now. The pump tells
    /// readers, hold by hold. `false`: some have to wait for those that were let run before.
    pub fn let_orphaned_run(&mut self, now: Moment) -> bool {
        self.locks.let_orphaned_run(now)
    }
}

#[cfg(test)]
mod tests {
    use super::super::requests::{Decision, KeyRef};
    use super::*;
    use crate::lock::effect::{Effects, Existing};
    use crate::lock::locks::NewHold;
    use crate::lock::tests::legacy::ask;
    use crate::lock::tests::visits;
    use crate::lock::types::{Binding, LockKey, Mode, Now};

    const NOW: Moment = Moment(9_000_000);
    const CUT: Binding = Binding { ephemeral_ms: Some(5), is_keepalive: false, is_running: false };

    /// A lock that its owner, named alike, holds as long as this connection is open.
    fn with_bound(table: &mut Table, name: &str, client: u64) -> LockId {
        let token = table.clock.mint(0).expect("there are tokens").0;
        let owner = name.as_bytes();
        let new = NewHold { owner, token, lease_ms: 9_000, client: Some(ClientId(client)), binding: CUT };
        table.locks.insert(NOW, LockKey { db: 0, name: owner }, Some(&new)).expect("there is room")
    }

    /// A table in which connection 1 has closed, and some of its many holds are still bound to it.
    fn with_closed() -> Table {
        let mut table = Table::default();
        for number in 0..=UNBOUND_MAX {
            with_bound(&mut table, &format!("first:{number}"), 1);
        }
        table.disconnected(NOW, ClientId(1));
        assert!(table.sessions.has_closed());
        table
    }

    /// Lets the pump unbind all that is bound to closed connections.
    fn unbind_all(table: &mut Table) {
        while table.sessions.has_closed() {
            table.unbind_some(1);
        }
        table.sessions.check();
    }

    #[test]
    fn an_owner_that_asks_costs_no_look_at_each_connection_that_has_closed() {
        let mut table = with_closed();
        let held: Vec<LockId> =
            (2..1_000).map(|client| with_bound(&mut table, &format!("lock:{client}"), client)).collect();
        let alone = with_bound(&mut table, "alone", 5_000);
        (2..1_000).for_each(|client| table.disconnected(NOW, ClientId(client)));
        let left_ms = |table: &Table, id| table.locks.hold(id).map(|hold| hold.left_ms(NOW));
        for (id, name, looks, left) in
            [(held[498], &b"lock:500"[..], 1, 5), (held[498], b"lock:500", 0, 5), (alone, b"alone", 0, 9_000)]
        {
            let key_ref = KeyRef { lock_key: LockKey { db: 0, name }, existing: Existing::Lock(id) };
            visits::take();
            table.unbind_own(&KeyStep::new(key_ref), name);
            assert_eq!((visits::take(), left_ms(&table, id)), (looks, Some(left)), "{name:?}");
        }
        // What its owner asks for then is not cut when the pump comes to that connection.
        let key_ref =
            KeyRef { lock_key: LockKey { db: 0, name: b"lock:500" }, existing: Existing::Lock(held[498]) };
        let asked = ask(b"lock:500", Mode::Exclusive, None);
        let now = Now { boot: NOW, wall_us: 0 };
        let _ = table.acquire(now, key_ref, &asked, &mut |_| Decision::Granted, &mut Effects::default());
        unbind_all(&mut table);
        assert_eq!(left_ms(&table, held[498]), Some(50));
        assert!(held.iter().all(|&id| left_ms(&table, id).is_some_and(|left| left < 100)));
        assert_eq!(left_ms(&table, alone), Some(9_000), "its connection is open");
    }
}
