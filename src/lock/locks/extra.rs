//! What few holds have: a count above one, a tie to a connection. It lies beside the record, so that the usual hold
//! does not pay for it.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use super::id::LockId;
use crate::lock::types::{ClientId, Tie};

/// What a record says nothing about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extra {
    /// How many releases it takes.
    pub(super) count: u32,
    pub(super) tie: Tie,
    /// The full lease, while it does not run.
    pub(super) lease_ms: u64,
    /// The connection that the hold is tied to, while it is open.
    pub(super) bound_to: Option<ClientId>,
}

impl Default for Extra {
    fn default() -> Self {
        Self { count: 1, tie: Tie::NONE, lease_ms: 0, bound_to: None }
    }
}

impl Extra {
    /// Whether it is kept alive, and by no connection of this process.
    fn is_foreign(&self) -> bool {
        self.tie.is_paused() && self.bound_to.is_none()
    }

    /// Whether it says nothing that the record does not say.
    fn is_plain(&self) -> bool {
        *self == Self::default()
    }
}

/// The holds that are tied to each connection.
pub(super) type Bound = HashMap<ClientId, BTreeSet<LockId>>;

/// All of it, by the index of the record.
#[derive(Default)]
pub(super) struct Extras {
    of: HashMap<u32, Extra>,
    bound: Bound,
    /// How many holds are kept alive by a connection of another life.
    foreign: usize,
    /// How many holds have a tie, whether its connection is open or not.
    tied: usize,
}

impl Extras {
    pub(super) fn get(&self, index: u32) -> Option<&Extra> {
        self.of.get(&index)
    }

    /// Changes what is said of a lock. Returns whether there is anything left to say.
    pub(super) fn change(&mut self, id: LockId, change: impl FnOnce(&mut Extra)) -> bool {
        let extra = self.of.entry(id.index()).or_default();
        let (before, was_foreign, was_tied) = (extra.bound_to, extra.is_foreign(), !extra.tie.is_none());
        change(extra);
        let (after, is_plain) = (extra.bound_to, extra.is_plain());
        self.foreign = self.foreign + usize::from(extra.is_foreign()) - usize::from(was_foreign);
        self.tied = self.tied + usize::from(!extra.tie.is_none()) - usize::from(was_tied);
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
        if let Some(extra) = self.of.remove(&id.index()) {
            self.foreign -= usize::from(extra.is_foreign());
            self.tied -= usize::from(!extra.tie.is_none());
            self.unbind(id, extra.bound_to);
        }
        if self.of.is_empty() && self.of.capacity() > 1024 {
            self.of = HashMap::new();
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

    /// The holds that are tied to this connection.
    pub(super) fn bound_to(&self, client: ClientId) -> impl Iterator<Item = LockId> + '_ {
        self.bound.get(&client).into_iter().flatten().copied()
    }

    /// All holds that are tied to a connection.
    pub(super) fn all_bound(&self) -> Vec<LockId> {
        self.bound.values().flatten().copied().collect()
    }

    /// The records of holds that are kept alive by a connection of another life.
    pub(super) fn foreign(&self) -> impl Iterator<Item = u32> {
        self.of.iter().filter(|(_, extra)| extra.is_foreign()).map(|(index, _)| *index)
    }

    /// Whether any hold has a tie, whether its connection is open or not.
    pub(super) const fn has_ties(&self) -> bool {
        self.tied > 0
    }

    /// Whether any hold is kept alive by a connection of another life.
    pub(super) const fn has_foreign(&self) -> bool {
        self.foreign > 0
    }

    /// The holds of each connection that any is tied to, of extras that are gone.
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
    use crate::lock::locks::id::Set;

    const KEPT: Tie = Tie { ephemeral_ms: None, is_kept_alive: true, is_running: false };
    const CUT: Tie = Tie { ephemeral_ms: Some(5), is_kept_alive: false, is_running: false };

    const fn lock(index: u32) -> LockId {
        LockId::new(Set::new(0), index, 1)
    }

    /// Ties a lock to a connection, or to none.
    fn tie(extras: &mut Extras, index: u32, tie: Tie, client: Option<u64>) -> bool {
        extras.change(lock(index), |extra| {
            extra.tie = tie;
            extra.bound_to = client.map(ClientId);
        })
    }

    fn bound(extras: &Extras, client: u64) -> Vec<LockId> {
        extras.bound_to(ClientId(client)).collect()
    }

    #[test]
    fn what_says_nothing_is_not_kept() {
        let mut extras = Extras::default();
        assert!(tie(&mut extras, 1, CUT, None));
        assert!(!tie(&mut extras, 1, Tie::NONE, None));
        assert_eq!((extras.len(), extras.get(1)), (0, None));
    }

    #[test]
    fn ties_are_counted_and_found_by_their_connection() {
        let mut extras = Extras::default();
        let told = |extras: &Extras| (extras.has_ties(), extras.has_foreign(), extras.foreign().count());
        assert_eq!((told(&extras), extras.all_bound()), ((false, false, 0), vec![]));
        tie(&mut extras, 1, KEPT, Some(7));
        tie(&mut extras, 2, CUT, Some(7));
        assert_eq!((told(&extras), bound(&extras, 7)), ((true, false, 0), vec![lock(1), lock(2)]));
        // One that is cut with its connection, and one that is kept alive, without any.
        tie(&mut extras, 2, CUT, None);
        tie(&mut extras, 3, KEPT, None);
        assert_eq!((told(&extras), bound(&extras, 7)), ((true, true, 1), vec![lock(1)]));
        assert_eq!(extras.foreign().collect::<Vec<_>>(), [3]);
        assert_eq!(extras.all_bound(), [lock(1)]);
        // The same again changes nothing.
        tie(&mut extras, 3, KEPT, None);
        assert_eq!(told(&extras), (true, true, 1));
        tie(&mut extras, 3, KEPT, Some(8));
        assert_eq!((told(&extras), bound(&extras, 8)), ((true, false, 0), vec![lock(3)]));
        tie(&mut extras, 1, KEPT, None);
        extras.remove(lock(1));
        assert_eq!(told(&extras), (true, false, 0));
        for index in [2, 3] {
            assert!(extras.has_ties());
            extras.remove(lock(index));
        }
        assert_eq!((told(&extras), extras.all_bound()), ((false, false, 0), vec![]));
    }

    #[test]
    fn memory_comes_back_when_all_are_gone() {
        let mut extras = Extras::default();
        for index in 0..5_000 {
            tie(&mut extras, index, CUT, Some(7));
        }
        assert!(extras.of.capacity() >= 5_000);
        for index in 0..5_000 {
            // How much room the map reports while entries go depends on where chance has put them.
            assert!(extras.of.capacity() > 0 && extras.get(index).is_some());
            extras.remove(lock(index));
        }
        assert_eq!(extras.of.capacity(), 0);
        // A few do not cost an allocation each.
        tie(&mut extras, 1, CUT, None);
        extras.remove(lock(1));
        assert!(extras.of.capacity() > 0);
    }
}
