//! Data that few holds have: a count above one, a binding to a connection. It is stored outside of the record,
//! so that the usual hold does not pay for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_set};

use hashbrown::{HashMap, hash_map};

use super::id::LockId;
use crate::lock::types::{Binding, ClientId, Moment};

/// The data of a hold that is not in its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overflow {
    /// The number of releases that it takes.
    pub(super) count: u32,
    pub(super) binding: Binding,
    /// The full lease, while it does not run.
    pub(super) lease_ms: u64,
    /// The connection that the hold was bound to when it was changed last. It may be forgotten: ask
    /// [`Overflows::bound_to`].
    pub(super) bound_to: Option<ClientId>,
    /// When it was changed last, in lives.
    life: u64,
}

impl Default for Overflow {
    fn default() -> Self {
        Self { count: 1, binding: Binding::NONE, lease_ms: 0, bound_to: None, life: 0 }
    }
}

impl Overflow {
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

    /// Forgets its connection, if all of lives before this one are forgotten.
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

/// Bindings to connections that are no longer in use. They are taken out one by one, because trees take time to
/// drop.
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

/// Orphaned holds whose leases run since one moment.
#[derive(Clone, Copy)]
struct Run {
    at: Moment,
    /// It concerns the holds that were last changed before this life.
    life: u64,
    /// What [`Overflows::forgotten`] was.
    forgotten: u64,
}

impl Run {
    const fn concerns(self, overflow: &Overflow) -> bool {
        overflow.life < self.life && overflow.is_orphaned(self.forgotten)
    }
}

/// All of it, by the index of the record.
///
/// A change that concerns all holds at once is one number here, however many there are. The life in which a
/// hold was changed last decides whether it concerns that hold. Their places in the lists below follow some at
/// a time.
#[derive(Default)]
pub(super) struct Overflows {
    /// A tree, because a hash table of a million doubles in one piece.
    of: BTreeMap<u32, Overflow>,
    bound: Bound,
    /// A life begins when all connections are forgotten, and when orphaned holds are let run.
    life: u64,
    /// Connections of lives before this one are forgotten.
    forgotten: u64,
    /// The holds that were bound to forgotten connections.
    unbound: VecDeque<Unbound>,
    /// Holds that are orphaned, but for those in `unbound` and in `running`.
    orphans: BTreeSet<u32>,
    /// Orphaned holds that are let run.
    run: Option<Run>,
    /// Holds of that run that are not on the wheel yet, but for those in `unbound`. Some were changed since.
    running: BTreeSet<u32>,
    /// The number of holds that are paused, or that run but are not on the wheel yet.
    paused: usize,
    /// The number of holds that a connection keeps alive.
    kept: usize,
    /// The number of holds with a binding, whether its connection is open or not.
    with_binding: usize,
}

impl Overflows {
    pub(super) fn get(&self, index: u32) -> Option<&Overflow> {
        self.of.get(&index)
    }

    /// The connection that a hold is bound to, while it is open.
    pub(super) fn bound_to(&self, index: u32) -> Option<ClientId> {
        let overflow = self.get(index)?;
        overflow.bound_to.filter(|_| overflow.is_bound(self.forgotten))
    }

    /// Since when the lease of this hold runs, if it is not on the wheel yet.
    pub(super) fn runs_since(&self, overflow: &Overflow) -> Option<Moment> {
        self.run.filter(|run| run.concerns(overflow)).map(|run| run.at)
    }

    /// Changes the overflow record of a lock. Returns whether there is anything left to say.
    pub(super) fn change(&mut self, id: LockId, change: impl FnOnce(&mut Overflow)) -> bool {
        let (index, life, forgotten) = (id.index(), self.life, self.forgotten);
        let overflow = self.of.entry(index).or_default();
        overflow.forget_connection(forgotten);
        overflow.life = life;
        let before = *overflow;
        change(overflow);
        let after = *overflow;
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

    /// Replaces the count of the hold as it was by that of the hold as it is.
    fn count(&mut self, before: &Overflow, after: &Overflow) {
        let forgotten = self.forgotten;
        let counts = |overflow: &Overflow| {
            let is_paused = overflow.binding.is_paused();
            let is_kept = is_paused && overflow.is_bound(forgotten);
            [is_paused, is_kept, !overflow.binding.is_none()].map(usize::from)
        };
        let (was, is) = (counts(before), counts(after));
        self.paused = self.paused + is[0] - was[0];
        self.kept = self.kept + is[1] - was[1];
        self.with_binding = self.with_binding + is[2] - was[2];
    }

    /// Forgets a lock.
    pub(super) fn remove(&mut self, id: LockId) {
        if let Some(mut overflow) = self.of.remove(&id.index()) {
            overflow.forget_connection(self.forgotten);
            self.count(&overflow, &Overflow::default());
            self.orphans.remove(&id.index());
            overflow.bound_to.into_iter().for_each(|client| self.unbind(id, client));
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

    /// Returns true if some holds are not classified yet as kept alive by a forgotten connection or not.
    pub(super) fn has_unbound(&self) -> bool {
        !self.unbound.is_empty()
    }

    /// Finds out of one hold whether a connection that is forgotten kept it alive.
    pub(super) fn sort_one(&mut self) {
        let Some(unbound) = self.unbound.front_mut() else {
            return;
        };
        let Some(index) = unbound.next().map(LockId::index) else {
            self.unbound.pop_front();
            return;
        };
        // A hold that was changed since is in the right list.
        if let Some(overflow) = self.of.get(&index)
            && overflow.life < self.forgotten
            && overflow.is_orphaned(self.forgotten)
        {
            let is_running = self.runs_since(overflow).is_some();
            if is_running { &mut self.running } else { &mut self.orphans }.insert(index);
        }
    }

    /// The records of holds that are orphaned, from this one on.
    pub(super) fn orphaned(&self, from: u32) -> impl Iterator<Item = u32> {
        self.orphans.range(from..).copied()
    }

    /// Lets the leases of all orphaned holds run from this moment on. `false`: some have to wait until all are on the
    /// wheel that were let run before.
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

    /// Takes one of the holds that were let run, to put it on the wheel. `None`: none was found this time.
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

    /// Drops the overflow record of a lock that is removed with all others.
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
    fn bind(overflows: &mut Overflows, index: u32, binding: Binding, client: Option<u64>) -> bool {
        overflows.change(lock(index), |overflow| {
            overflow.binding = binding;
            overflow.bound_to = client.map(ClientId);
        })
    }

    fn bound(overflows: &Overflows, client: u64) -> Vec<LockId> {
        overflows.bound.get(&ClientId(client)).into_iter().flatten().copied().collect()
    }

    #[test]
    fn an_empty_overflow_is_not_kept() {
        let mut overflows = Overflows::default();
        assert!(bind(&mut overflows, 1, CUT, None));
        assert!(!bind(&mut overflows, 1, Binding::NONE, None));
        assert_eq!((overflows.len(), overflows.get(1)), (0, None));
    }

    #[test]
    fn bindings_are_counted_and_found_by_their_connection() {
        let mut overflows = Overflows::default();
        let told = |overflows: &Overflows| {
            (overflows.has_bindings(), overflows.has_orphaned(), overflows.orphaned(0).count())
        };
        assert_eq!(told(&overflows), (false, false, 0));
        bind(&mut overflows, 1, KEPT, Some(7));
        bind(&mut overflows, 2, CUT, Some(7));
        assert_eq!((told(&overflows), bound(&overflows, 7)), ((true, false, 0), vec![lock(1), lock(2)]));
        // An ephemeral hold with its connection, and a keepalive hold without any.
        bind(&mut overflows, 2, CUT, None);
        bind(&mut overflows, 3, KEPT, None);
        assert_eq!((told(&overflows), bound(&overflows, 7)), ((true, true, 1), vec![lock(1)]));
        assert_eq!(overflows.orphaned(0).collect::<Vec<_>>(), [3]);
        assert_eq!((overflows.orphaned(3).count(), overflows.orphaned(4).count()), (1, 0));
        // The same again changes nothing.
        bind(&mut overflows, 3, KEPT, None);
        assert_eq!(told(&overflows), (true, true, 1));
        bind(&mut overflows, 3, KEPT, Some(8));
        assert_eq!((told(&overflows), bound(&overflows, 8)), ((true, false, 0), vec![lock(3)]));
        bind(&mut overflows, 1, KEPT, None);
        overflows.remove(lock(1));
        assert_eq!(told(&overflows), (true, false, 0));
        for index in [2, 3] {
            assert!(overflows.has_bindings());
            overflows.remove(lock(index));
        }
        assert_eq!((told(&overflows), overflows.bound.len()), ((false, false, 0), 0));
    }
}
