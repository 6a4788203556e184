//! Holds with data that a record has no room for, a count or a binding: see [`super::hold_ext`].

use super::hold_ext::{BoundHolds, HoldExt};
use super::id::LockId;
use super::new_hold::NewHold;
use super::record::Flag;
use super::store::{Locks, tick};
use crate::lock::types::{Binding, ClientId, Moment};

impl Locks {
    /// Sets the number of releases that end a hold.
    pub fn set_count(&mut self, id: LockId, count: u32) {
        if self.hold(id).is_some_and(|hold| hold.count() != count) {
            self.change_ext(id, |ext| ext.count = count);
        }
    }

    pub(super) fn change_ext(&mut self, id: LockId, change: impl FnOnce(&mut HoldExt)) {
        self.put_on_wheel(id);
        self.change_ext_alone(id, change);
    }

    fn change_ext_alone(&mut self, id: LockId, change: impl FnOnce(&mut HoldExt)) {
        if self.head(id).is_none() {
            return;
        }
        let has_ext = self.hold_exts.change(id, change);
        if let Some(head) = self.head_mut(id) {
            head.set(Flag::HoldExt, has_ext);
        }
    }

    #[cold]
    pub(super) fn forget_ext(&mut self, id: LockId) {
        self.hold_exts.remove(id);
        if let Some(head) = self.head_mut(id) {
            head.set(Flag::HoldExt, false);
        }
    }

    /// Returns true if a hold has data outside its record.
    #[inline(always)]
    #[must_use]
    pub fn has_ext(&self, id: LockId) -> bool {
        self.hold_exts.len() > 0 && self.head(id).is_some_and(|(head, _)| head.has(Flag::HoldExt))
    }

    /// Returns true if the lease of this hold is paused or not on the wheel yet.
    #[must_use]
    pub fn is_paused(&self, id: LockId) -> bool {
        self.hold(id).is_some() && self.hold_exts.get(id.index()).is_some_and(|kept| kept.binding.is_paused())
    }

    /// Stores the part of a new hold that does not fit its record.
    #[inline]
    pub(super) fn bind_new(&mut self, id: LockId, hold: &NewHold<'_>) {
        if !hold.binding.is_none() {
            self.bind(id, hold.client, hold);
        }
    }

    #[cold]
    fn bind(&mut self, id: LockId, client: Option<ClientId>, hold: &NewHold<'_>) {
        self.change_ext(id, |ext| {
            (ext.binding, ext.lease_ms, ext.bound_to) = (hold.binding, hold.lease_ms, client);
        });
        if hold.binding.is_paused() {
            self.leases.remove(&mut self.records, id.index());
        }
    }

    /// Renews a hold whose lease may be paused. Returns false if the lease runs.
    #[cold]
    pub(super) fn extend_paused(&mut self, id: LockId, lease_ms: u64) -> bool {
        if !self.is_paused(id) {
            return false;
        }
        self.change_ext(id, |ext| ext.lease_ms = lease_ms);
        true
    }

    /// Sets the binding of a hold, to this connection or, if none is named, to the one that it had. Returns true if
    /// the lease is paused from now on: then readers must receive the remaining time.
    pub fn rebind(&mut self, id: LockId, now: Moment, binding: Binding, client: Option<ClientId>) -> bool {
        self.put_on_wheel(id);
        let Some((was, left_ms)) = self.hold(id).map(|hold| (hold.binding(), hold.left_ms(now))) else {
            return false;
        };
        if was.is_none() && binding.is_none() {
            return false;
        }
        // Without a connection, the lease keeps running or stays paused.
        let is_running = binding.is_keepalive && was.is_running && client.is_none();
        let binding = Binding { is_running, ..binding };
        self.change_ext(id, |ext| {
            (ext.binding, ext.bound_to) = (binding, client.or(ext.bound_to).filter(|_| !binding.is_none()));
            ext.lease_ms = if binding.is_paused() { left_ms } else { 0 };
        });
        if was.is_paused() != binding.is_paused() {
            self.leases.remove(&mut self.records, id.index());
            if !binding.is_paused() {
                self.set_until(id, now, now.plus_ms(left_ms).0);
            }
        }
        !was.is_paused() && binding.is_paused()
    }

    /// Removes and returns the holds that are bound to a closed connection, each for [`Self::unbind`].
    pub fn take_bound_to(&mut self, client: ClientId) -> BoundHolds {
        self.hold_exts.take_bound_to(client).into_iter()
    }

    /// Returns the connection that this hold is bound to, while it is open.
    #[must_use]
    pub fn connection_of(&self, id: LockId) -> Option<ClientId> {
        if self.has_ext(id) { self.hold_exts.bound_to(id.index()) } else { None }
    }

    /// Handles the close of a connection, at this moment, for a hold that is bound to it. The lease runs from that
    /// moment, and is cut if the owner asked for that. Returns true if the hold still exists and is bound to that
    /// connection.
    pub fn unbind(&mut self, id: LockId, client: ClientId, closed_at: Moment) -> bool {
        #[cfg(test)]
        crate::lock::tests::visits::count(1);
        let is_bound = self.hold(id).is_some() && self.hold_exts.bound_to(id.index()) == Some(client);
        if is_bound {
            self.run_from(id, closed_at, true);
        }
        is_bound
    }

    /// Returns true if a hold is orphaned.
    #[must_use]
    pub const fn has_orphaned(&self) -> bool {
        self.hold_exts.has_orphaned()
    }

    /// Returns the orphaned holds, by their records from this one on.
    pub fn orphaned(&self, from: u32) -> impl Iterator<Item = LockId> {
        let orphaned = self.hold_exts.orphaned(from);
        orphaned.filter_map(|index| Some(self.id(index, self.records.head(index)?.0.generation())))
    }

    /// Forgets all connections, because they belong to an earlier life of the server. This includes the closed ones
    /// that the holds in `closed` were bound to. [`Self::sort_unbound`] finds out which holds are orphaned.
    pub fn forget_connections(&mut self, closed: impl Iterator<Item = BoundHolds>) {
        self.hold_exts.forget_connections(closed);
    }

    /// Returns true if some holds are not classified as orphaned or bound yet.
    #[must_use]
    pub fn has_unbound(&self) -> bool {
        self.hold_exts.has_unbound()
    }

    /// Classifies the next `count_max` unbound holds as orphaned or not.
    pub fn sort_unbound(&mut self, count_max: usize) {
        for _ in 0..count_max {
            self.hold_exts.sort_one();
        }
    }

    /// Starts the leases that connections of an earlier life paused, from this moment on and at their full length.
    /// All of them run at once; [`Self::next_running`] puts them on the wheel, one by one. Returns false if some have
    /// to wait for those that were started before.
    pub fn let_orphaned_run(&mut self, at: Moment) -> bool {
        self.hold_exts.let_run(at)
    }

    /// Returns true if a lease of that kind may not be on the wheel yet.
    #[must_use]
    pub const fn has_running(&self) -> bool {
        self.hold_exts.has_running()
    }

    /// Puts the lease of one of these holds on the wheel. Returns the hold, if it still exists and its lease runs.
    pub fn next_running(&mut self) -> Option<LockId> {
        let index = self.hold_exts.next_running()?;
        let id = self.id(index, self.records.head(index)?.0.generation());
        self.put_on_wheel(id);
        self.hold(id).is_some_and(|hold| hold.binding().is_running).then_some(id)
    }

    /// Puts the lease of this hold on the wheel, if it runs and is not on it yet.
    pub(super) fn put_on_wheel(&mut self, id: LockId) {
        if self.hold_exts.has_running()
            && self.hold(id).is_some()
            && let Some(ext) = self.hold_exts.get(id.index())
            && let Some(at) = self.hold_exts.runs_since(ext)
        {
            self.run_from(id, at, false);
        }
    }

    /// Starts the lease of this hold now, at its full length: no connection pauses it any more.
    pub fn let_run(&mut self, id: LockId, now: Moment) {
        self.run_from(id, now, false);
    }

    fn run_from(&mut self, id: LockId, now: Moment, is_cut: bool) {
        let Some((left_ms, ext)) =
            self.hold(id).map(|hold| hold.left_ms(now)).zip(self.hold_exts.get(id.index()))
        else {
            return;
        };
        let binding = ext.binding;
        self.change_ext_alone(id, |ext| {
            (ext.bound_to, ext.lease_ms) = (None, 0);
            ext.binding.is_running = binding.is_keepalive;
        });
        let cut_ms = binding.ephemeral_ms.filter(|&ms| is_cut && ms < left_ms);
        if binding.is_paused() || cut_ms.is_some() {
            self.leases.remove(&mut self.records, id.index());
            self.set_until(id, now, now.plus_ms(cut_ms.unwrap_or(left_ms)).0);
        }
    }

    /// Returns true if any hold has a binding, whether its connection is open or not.
    #[must_use]
    pub const fn has_bindings(&self) -> bool {
        self.hold_exts.has_bindings()
    }

    /// Sets the end of the lease, to the microsecond.
    pub(super) fn set_until(&mut self, id: LockId, now: Moment, until_us: u64) {
        if self.is_paused(id) {
            return;
        }
        self.leases.remove(&mut self.records, id.index());
        if let Some(head) = self.head_mut(id) {
            head.set_until_us(until_us);
        }
        self.leases.insert(&mut self.records, id.index(), tick(until_us), now.0 / 1_000);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::held_by_ann;
    use super::*;

    #[test]
    fn a_hold_has_no_ext_because_another_one_has() {
        let mut locks = Locks::default();
        let (counted, plain) = (held_by_ann(&mut locks, 1, None), held_by_ann(&mut locks, 2, None));
        let has_ext = |locks: &Locks| [counted, plain].map(|id| locks.has_ext(id));
        assert_eq!(has_ext(&locks), [false, false]);
        locks.set_count(counted, 2);
        assert_eq!(has_ext(&locks), [true, false]);
        locks.set_count(counted, 1);
        assert_eq!(has_ext(&locks), [false, false]);
    }
}
