//! Closed connections, and the holds bound to them.

use super::key_step::KeyStep;
use super::state::Table;
use crate::lock::effect::LockId;
use crate::lock::tuning;
use crate::lock::types::{ClientId, LockKeyBuf, Moment};

/// How many holds of a connection are unbound at once when it closes.
const UNBOUND_MAX: usize = 32;

impl Table {
    /// Handles a closed connection: leases that it kept alive start to run, and holds that end with it are cut short.
    pub fn disconnected(&mut self, now: Moment, client: ClientId) {
        let is_first = !self.sessions.has_closed();
        self.sessions.close(&mut self.locks, now, client);
        if is_first {
            self.unbind_some(tuning::unbound_max(UNBOUND_MAX));
        }
    }

    /// First ends what a closed connection of this owner still has to end, so that it cannot cut a later grant short.
    #[cold]
    pub(super) fn unbind_own(&mut self, ctx: &KeyStep<'_>, owner: &[u8]) {
        if let Some((hold, _)) = ctx.own(&self.locks, owner)
            && self.sessions.unbind(&mut self.locks, hold)
        {
            self.replicate_again(hold);
        }
    }

    /// Unbinds the next `count_max` holds of closed connections. Each may give the pump a task, so the pump calls
    /// this for one at a time, and never has a million tasks at once.
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

    /// Returns true if leases have started to run that were not replicated yet.
    #[inline]
    #[must_use]
    pub const fn has_running(&self) -> bool {
        self.locks.has_running()
    }

    /// Returns true if any hold has a binding, or may get one in this step: from a waiter that is granted.
    #[inline]
    #[must_use]
    pub const fn may_have_bindings(&self) -> bool {
        self.locks.has_bindings() || self.queues.have_bindings()
    }

    /// Forgets all connections: another server decides now, so they keep no hold alive and end none.
    pub fn forget_connections(&mut self) {
        self.sessions.forget(&mut self.locks);
    }

    /// Returns true if some unbound holds were not classified yet.
    #[must_use]
    pub fn has_unbound(&self) -> bool {
        self.locks.has_unbound()
    }

    /// Classifies the next `count_max` unbound holds: orphaned or not. Returns true once all are.
    pub fn sort_unbound(&mut self, count_max: usize) -> bool {
        self.locks.sort_unbound(count_max);
        !self.has_unbound()
    }

    /// Returns true if any hold is orphaned.
    #[must_use]
    pub const fn has_orphaned(&self) -> bool {
        self.locks.has_orphaned()
    }

    /// Returns some orphaned holds, from this record on, and their lock keys.
    #[must_use]
    pub fn orphaned(&self, from: u32, count_max: usize) -> Vec<(LockId, LockKeyBuf)> {
        let orphaned = self.locks.orphaned(from).take(count_max);
        orphaned.filter_map(|lock| Some((lock, self.locks.get(lock)?.lock_key()?))).collect()
    }

    /// Lets the leases of these holds run at their full length, as no connection keeps them alive.
    pub fn let_run(&mut self, holds: &[LockId], now: Moment) {
        for &hold in holds {
            self.locks.let_run(hold, now);
            self.replicate_again(hold);
        }
    }

    /// Lets leases run that closed connections kept alive, as this server decides now. The pump replicates that, hold
    /// by hold. Returns false if some must wait for earlier ones to be replicated.
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
