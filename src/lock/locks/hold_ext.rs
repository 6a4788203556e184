//! Data that few holds have: a count above one, a binding to a connection. It is stored outside of the record, so
//! that other holds do not pay for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_set};

use hashbrown::{HashMap, hash_map};

use super::id::LockId;
use crate::lock::types::{Binding, ClientId, Moment};

/// The data of a hold that is not in its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HoldExt {
    /// The number of releases that end the hold.
    pub(super) count: u32,
    pub(super) binding: Binding,
    /// The full lease, while it is paused.
    pub(super) lease_ms: u64,
    /// The connection that the hold was bound to at its last change. It may be forgotten: ask [`HoldExts::bound_to`].
    pub(super) bound_to: Option<ClientId>,
    /// The life in which it was changed last.
    life: u64,
}

impl Default for HoldExt {
    fn default() -> Self {
        Self { count: 1, binding: Binding::NONE, lease_ms: 0, bound_to: None, life: 0 }
    }
}

impl HoldExt {
    /// Returns true if it adds nothing to the record.
    fn is_plain(&self) -> bool {
        let Self { count, binding, lease_ms, bound_to, .. } = *self;
        (count, binding, lease_ms, bound_to) == (1, Binding::NONE, 0, None)
    }

    /// Returns true if it is bound to a connection, not counting connections of lives before `forgotten`.
    const fn is_bound(&self, forgotten: u64) -> bool {
        self.bound_to.is_some() && self.life >= forgotten
    }

    /// Returns true if it is a keepalive hold without a connection, not counting connections of lives before
    /// `forgotten`.
    const fn is_orphaned(&self, forgotten: u64) -> bool {
        self.binding.is_paused() && !self.is_bound(forgotten)
    }

    /// Forgets its connection, if all connections of lives before this one are forgotten.
    fn forget_connection(&mut self, forgotten: u64) {
        if self.life < forgotten {
            self.bound_to = None;
        }
    }
}

/// Holds that were bound to one connection.
pub type BoundHolds = btree_set::IntoIter<LockId>;

/// The holds that are bound to each connection.
type Bound = HashMap<ClientId, BTreeSet<LockId>>;

/// Bindings to connections that are no longer in use. They are removed one by one, because trees take time to drop.
#[derive(Default)]
pub(super) struct Unbound {
    holds: BoundHolds,
    connections: hash_map::IntoIter<ClientId, BTreeSet<LockId>>,
}

impl Iterator for Unbound {
    type Item = LockId;

    fn next(&mut self) -> Option<LockId> {
        loop {
            if let Some(hold) = self.holds.next() {
                return Some(hold);
            }
            self.holds = self.connections.next()?.1.into_iter();
        }
    }
}

/// Orphaned holds whose leases all run from the same moment.
#[derive(Clone, Copy)]
struct Run {
    at: Moment,
    /// It applies to the holds that were last changed before this life.
    life: u64,
    /// The value of [`HoldExts::forgotten`] at that time.
    forgotten: u64,
}

impl Run {
    const fn concerns(self, ext: &HoldExt) -> bool {
        ext.life < self.life && ext.is_orphaned(self.forgotten)
    }
}

/// The extensions of all locks, by the index of the record.
///
/// A change of all holds at once is one number here, however many there are. It applies to a hold if the hold was
/// last changed in an earlier life. Their places in the lists below follow, a few at a time.
#[derive(Default)]
pub(super) struct HoldExts {
    /// A tree, because a hash table of a million doubles in one piece.
    of: BTreeMap<u32, HoldExt>,
    bound: Bound,
    /// The current life. A life begins when all connections are forgotten, and when the leases of orphaned holds
    /// start.
    life: u64,
    /// Connections of lives before this one are forgotten.
    forgotten: u64,
    /// The holds that were bound to forgotten connections.
    unbound: VecDeque<Unbound>,
    /// Orphaned holds, except for those in `unbound` and in `running`.
    orphans: BTreeSet<u32>,
    /// Orphaned holds whose leases were started.
    run: Option<Run>,
    /// Holds of that run that are not on the wheel yet, except for those in `unbound`. Some were changed since.
    running: BTreeSet<u32>,
    /// The number of holds that are paused, or that run but are not on the wheel yet.
    paused: usize,
    /// The number of holds whose lease a connection pauses.
    kept: usize,
    /// The number of holds with a binding, whether its connection is open or not.
    with_binding: usize,
}

impl HoldExts {
    pub(super) fn get(&self, index: u32) -> Option<&HoldExt> {
        self.of.get(&index)
    }

    /// Returns the connection that a hold is bound to, while it is open.
    pub(super) fn bound_to(&self, index: u32) -> Option<ClientId> {
        let ext = self.get(index)?;
        ext.bound_to.filter(|_| ext.is_bound(self.forgotten))
    }

    /// Returns since when the lease of this hold runs, if it is not on the wheel yet.
    pub(super) fn runs_since(&self, ext: &HoldExt) -> Option<Moment> {
        self.run.filter(|run| run.concerns(ext)).map(|run| run.at)
    }

    /// Changes the extension of a lock. Returns true if the lock still needs one.
    pub(super) fn change(&mut self, id: LockId, change: impl FnOnce(&mut HoldExt)) -> bool {
        let (index, life, forgotten) = (id.index(), self.life, self.forgotten);
        let ext = self.of.entry(index).or_default();
        ext.forget_connection(forgotten);
        ext.life = life;
        let before = *ext;
        change(ext);
        let after = *ext;
        self.count(&before, &after);
        if after.is_orphaned(forgotten) {
            self.orphans.insert(index);
        } else if before.is_orphaned(forgotten) {
            self.orphans.remove(&index);
        }
        let is_plain = after.is_plain();
        if is_plain {
            self.of.remove(&index);
        }
        if before.bound_to != after.bound_to {
            before.bound_to.into_iter().for_each(|client| self.unbind(id, client));
            if let Some(client) = after.bound_to {
                self.bound.entry(client).or_default().insert(id);
            }
        }
        !is_plain
    }

    /// Updates the counts for a hold that changed.
    fn count(&mut self, before: &HoldExt, after: &HoldExt) {
        let forgotten = self.forgotten;
        let counts = |ext: &HoldExt| {
            let is_paused = ext.binding.is_paused();
            let is_kept = is_paused && ext.is_bound(forgotten);
            [is_paused, is_kept, !ext.binding.is_none()].map(usize::from)
        };
        let (was, is) = (counts(before), counts(after));
        self.paused = self.paused + is[0] - was[0];
        self.kept = self.kept + is[1] - was[1];
        self.with_binding = self.with_binding + is[2] - was[2];
    }

    /// Removes the extension of a lock.
    pub(super) fn remove(&mut self, id: LockId) {
        if let Some(mut ext) = self.of.remove(&id.index()) {
            ext.forget_connection(self.forgotten);
            self.count(&ext, &HoldExt::default());
            self.orphans.remove(&id.index());
            ext.bound_to.into_iter().for_each(|client| self.unbind(id, client));
        }
    }

    fn unbind(&mut self, id: LockId, client: ClientId) {
        if let Some(of_client) = self.bound.get_mut(&client) {
            of_client.remove(&id);
            if of_client.is_empty() {
                self.bound.remove(&client);
            }
        }
    }

    /// Removes and returns the holds that are bound to this connection, which was closed.
    pub(super) fn take_bound_to(&mut self, client: ClientId) -> BTreeSet<LockId> {
        self.bound.remove(&client).unwrap_or_default()
    }

    /// Forgets all connections in one step, also the closed ones that the holds in `closed` were bound to.
    pub(super) fn forget_connections(&mut self, closed: impl Iterator<Item = BoundHolds>) {
        self.life += 1;
        (self.forgotten, self.kept) = (self.life, 0);
        self.unbound.extend(closed.map(|holds| Unbound { holds, ..Unbound::default() }));
        if !self.bound.is_empty() {
            let connections = std::mem::take(&mut self.bound).into_iter();
            self.unbound.push_back(Unbound { connections, ..Unbound::default() });
        }
    }

    /// Returns true if some unbound holds are not classified as orphaned or not yet.
    pub(super) fn has_unbound(&self) -> bool {
        !self.unbound.is_empty()
    }

    /// Classifies one unbound hold: it is orphaned if a forgotten connection paused its lease.
    pub(super) fn sort_one(&mut self) {
        let Some(unbound) = self.unbound.front_mut() else {
            return;
        };
        let Some(index) = unbound.next().map(LockId::index) else {
            self.unbound.pop_front();
            return;
        };
        // A hold that was changed since is in the right list.
        if let Some(ext) = self.of.get(&index)
            && ext.life < self.forgotten
            && ext.is_orphaned(self.forgotten)
        {
            let is_running = self.runs_since(ext).is_some();
            if is_running { &mut self.running } else { &mut self.orphans }.insert(index);
        }
    }

    /// Returns the records of orphaned holds, from this one on.
    pub(super) fn orphaned(&self, from: u32) -> impl Iterator<Item = u32> {
        self.orphans.range(from..).copied()
    }

    /// Starts the leases of all orphaned holds at this moment. Returns false if some have to wait until all that were
    /// started before are on the wheel.
    pub(super) fn let_run(&mut self, at: Moment) -> bool {
        if self.run.is_some() {
            return self.orphans.is_empty() && self.unbound.is_empty();
        }
        if self.has_orphaned() {
            self.life += 1;
            self.run = Some(Run { at, life: self.life, forgotten: self.forgotten });
            self.running = std::mem::take(&mut self.orphans);
        }
        true
    }

    /// Returns true if holds run that may not be on the wheel yet.
    pub(super) const fn has_running(&self) -> bool {
        self.run.is_some()
    }

    /// Takes one of the holds whose lease was started, to put it on the wheel. `None` if none was found this time.
    pub(super) fn next_running(&mut self) -> Option<u32> {
        if self.running.is_empty() {
            if self.has_unbound() {
                self.sort_one();
            } else {
                self.run = None;
            }
        }
        self.running.pop_first()
    }

    /// Returns true if any hold has a binding, whether its connection is open or not.
    pub(super) const fn has_bindings(&self) -> bool {
        self.with_binding > 0
    }

    /// Returns true if any hold is orphaned.
    pub(super) const fn has_orphaned(&self) -> bool {
        self.paused > self.kept
    }

    /// Removes and returns all holds that were bound to a connection, when all connections are closed.
    pub(super) fn take_unbound(&mut self) -> VecDeque<Unbound> {
        self.forget_connections(std::iter::empty());
        std::mem::take(&mut self.unbound)
    }

    /// Drops the extension of a lock that is removed with all others.
    pub(super) fn drop_one(&mut self, index: u32) {
        self.of.remove(&index);
        self.orphans.remove(&index);
        self.running.remove(&index);
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.of.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::locks::id::Epoch;

    const KEPT: Binding = Binding { ephemeral_ms: None, is_keepalive: true, is_running: false };
    const CUT: Binding = Binding { ephemeral_ms: Some(5), is_keepalive: false, is_running: false };

    const fn lock(index: u32) -> LockId {
        LockId::new(Epoch::new(0), index, 1)
    }

    /// Binds a lock to a connection, or to none.
    fn bind(hold_exts: &mut HoldExts, index: u32, binding: Binding, client: Option<u64>) -> bool {
        hold_exts.change(lock(index), |ext| {
            ext.binding = binding;
            ext.bound_to = client.map(ClientId);
        })
    }

    fn bound(hold_exts: &HoldExts, client: u64) -> Vec<LockId> {
        hold_exts.bound.get(&ClientId(client)).into_iter().flatten().copied().collect()
    }

    #[test]
    fn an_empty_extension_is_not_kept() {
        let mut hold_exts = HoldExts::default();
        assert!(bind(&mut hold_exts, 1, CUT, None));
        assert!(!bind(&mut hold_exts, 1, Binding::NONE, None));
        assert_eq!((hold_exts.len(), hold_exts.get(1)), (0, None));
    }

    #[test]
    fn bindings_are_counted_and_found_by_their_connection() {
        let mut hold_exts = HoldExts::default();
        let told = |hold_exts: &HoldExts| {
            (hold_exts.has_bindings(), hold_exts.has_orphaned(), hold_exts.orphaned(0).count())
        };
        assert_eq!(told(&hold_exts), (false, false, 0));
        bind(&mut hold_exts, 1, KEPT, Some(7));
        bind(&mut hold_exts, 2, CUT, Some(7));
        assert_eq!((told(&hold_exts), bound(&hold_exts, 7)), ((true, false, 0), vec![lock(1), lock(2)]));
        // An ephemeral hold with its connection, and a keepalive hold without any.
        bind(&mut hold_exts, 2, CUT, None);
        bind(&mut hold_exts, 3, KEPT, None);
        assert_eq!((told(&hold_exts), bound(&hold_exts, 7)), ((true, true, 1), vec![lock(1)]));
        assert_eq!(hold_exts.orphaned(0).collect::<Vec<_>>(), [3]);
        assert_eq!((hold_exts.orphaned(3).count(), hold_exts.orphaned(4).count()), (1, 0));
        // Repeating it changes nothing.
        bind(&mut hold_exts, 3, KEPT, None);
        assert_eq!(told(&hold_exts), (true, true, 1));
        bind(&mut hold_exts, 3, KEPT, Some(8));
        assert_eq!((told(&hold_exts), bound(&hold_exts, 8)), ((true, false, 0), vec![lock(3)]));
        bind(&mut hold_exts, 1, KEPT, None);
        hold_exts.remove(lock(1));
        assert_eq!(told(&hold_exts), (true, false, 0));
        for index in [2, 3] {
            assert!(hold_exts.has_bindings());
            hold_exts.remove(lock(index));
        }
        assert_eq!((told(&hold_exts), hold_exts.bound.len()), ((false, false, 0), 0));
    }
}
