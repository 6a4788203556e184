//! What few holds have: a count above one, a binding to a connection. It lies beside the record, so that the usual hold
//! does not pay for it.

use std::collections::{BTreeMap, BTreeSet, btree_set};

use hashbrown::HashMap;

use super::id::LockId;
use crate::lock::types::{Binding, ClientId};

/// What a record says nothing about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Overflow {
    /// How many releases it takes.
    pub(super) count: u32,
    pub(super) binding: Binding,
    /// The full lease, while it does not run.
    pub(super) lease_ms: u64,
    /// The connection that the hold is bound to, while it is open.
    pub(super) bound_to: Option<ClientId>,
}

impl Default for Overflow {
    fn default() -> Self {
        Self { count: 1, binding: Binding::NONE, lease_ms: 0, bound_to: None }
    }
}

impl Overflow {
    /// Whether it is kept alive, and by no connection of this process.
    fn is_orphaned(&self) -> bool {
        self.binding.is_paused() && self.bound_to.is_none()
    }

    /// Whether it says nothing that the record does not say.
    fn is_plain(&self) -> bool {
        *self == Self::default()
    }
}

/// Holds that were bound to one connection.
pub type BoundHolds = btree_set::IntoIter<LockId>;

/// The holds that are bound to each connection.
pub(super) type Bound = HashMap<ClientId, BTreeSet<LockId>>;

/// All of it, by the index of the record.
#[derive(Default)]
pub(super) struct Overflows {
    /// A tree, because a hash table of a million doubles in one piece.
    of: BTreeMap<u32, Overflow>,
    bound: Bound,
    /// How many holds are orphaned.
    orphaned: usize,
    /// How many holds have a binding, whether its connection is open or not.
    with_binding: usize,
}

impl Overflows {
    pub(super) fn get(&self, index: u32) -> Option<&Overflow> {
        self.of.get(&index)
    }

    /// Changes what is said of a lock. Returns whether there is anything left to say.
    pub(super) fn change(&mut self, id: LockId, change: impl FnOnce(&mut Overflow)) -> bool {
        let overflow = self.of.entry(id.index()).or_default();
        let (before, was_orphaned, was_bound) =
            (overflow.bound_to, overflow.is_orphaned(), !overflow.binding.is_none());
        change(overflow);
        let (after, is_plain) = (overflow.bound_to, overflow.is_plain());
        self.orphaned = self.orphaned + usize::from(overflow.is_orphaned()) - usize::from(was_orphaned);
        self.with_binding =
            self.with_binding + usize::from(!overflow.binding.is_none()) - usize::from(was_bound);
        if is_plain {
            self.of.remove(&id.index());
        }
        if before != after {
            self.unbind(id, before);
            if let Some(client) = after {
                self.bound.entry(client).or_default().insert(id);
            }
        }
        !is_plain
    }

    /// Forgets a lock.
    pub(super) fn remove(&mut self, id: LockId) {
        if let Some(overflow) = self.of.remove(&id.index()) {
            self.orphaned -= usize::from(overflow.is_orphaned());
            self.with_binding -= usize::from(!overflow.binding.is_none());
            self.unbind(id, overflow.bound_to);
        }
    }

    fn unbind(&mut self, id: LockId, client: Option<ClientId>) {
        let Some(client) = client else {
            return;
        };
        if let Some(of_client) = self.bound.get_mut(&client) {
            of_client.remove(&id);
            if of_client.is_empty() {
                self.bound.remove(&client);
            }
        }
    }

    /// The holds that are bound to this connection, which is gone: nobody finds them by it any more.
    pub(super) fn take_bound_to(&mut self, client: ClientId) -> BTreeSet<LockId> {
        self.bound.remove(&client).unwrap_or_default()
    }

    /// All holds that are bound to a connection.
    pub(super) fn all_bound(&self) -> Vec<LockId> {
        self.bound.values().flatten().copied().collect()
    }

    /// The records of holds that are orphaned.
    pub(super) fn orphaned(&self) -> impl Iterator<Item = u32> {
        self.of.iter().filter(|(_, overflow)| overflow.is_orphaned()).map(|(index, _)| *index)
    }

    /// Whether any hold has a binding, whether its connection is open or not.
    pub(super) const fn has_bindings(&self) -> bool {
        self.with_binding > 0
    }

    /// Whether any hold is orphaned.
    pub(super) const fn has_orphaned(&self) -> bool {
        self.orphaned > 0
    }

    /// The holds of each connection that any is bound to, of overflow records that are gone.
    pub(super) fn take_bound(&mut self) -> Bound {
        std::mem::take(&mut self.bound)
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
            (overflows.has_bindings(), overflows.has_orphaned(), overflows.orphaned().count())
        };
        assert_eq!((told(&overflows), overflows.all_bound()), ((false, false, 0), vec![]));
        bind(&mut overflows, 1, KEPT, Some(7));
        bind(&mut overflows, 2, CUT, Some(7));
        assert_eq!((told(&overflows), bound(&overflows, 7)), ((true, false, 0), vec![lock(1), lock(2)]));
        // One that is cut with its connection, and one that is kept alive, without any.
        bind(&mut overflows, 2, CUT, None);
        bind(&mut overflows, 3, KEPT, None);
        assert_eq!((told(&overflows), bound(&overflows, 7)), ((true, true, 1), vec![lock(1)]));
        assert_eq!(overflows.orphaned().collect::<Vec<_>>(), [3]);
        assert_eq!(overflows.all_bound(), [lock(1)]);
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
        assert_eq!((told(&overflows), overflows.all_bound()), ((false, false, 0), vec![]));
    }
}
