//! Connections that have closed, whose holds are not all unbound yet.

use std::collections::{BTreeMap, VecDeque};

use crate::lock::locks::BoundHolds;
use crate::lock::types::{ClientId, Moment};

/// See the [module](self).
#[derive(Default)]
pub(super) struct ClosedConnections {
    /// In the order in which they closed.
    all: VecDeque<Closed>,
    /// When each closed. It closes once: the server uses no number twice. A tree, because a hash table doubles in one
    /// piece.
    closed_at: BTreeMap<ClientId, Moment>,
}

/// A connection that has closed, and what was bound to it.
pub(super) struct Closed {
    pub(super) client: ClientId,
    pub(super) at: Moment,
    pub(super) holds: BoundHolds,
}

impl ClosedConnections {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn push(&mut self, closed: Closed) {
        self.closed_at.insert(closed.client, closed.at);
        self.all.push_back(closed);
    }

    /// The one that closed first.
    pub(super) fn front_mut(&mut self) -> Option<&mut Closed> {
        self.all.front_mut()
    }

    /// The first one has no hold left.
    pub(super) fn pop(&mut self) {
        if let Some(closed) = self.all.pop_front() {
            self.closed_at.remove(&closed.client);
        }
    }

    /// When this connection closed, if it did and not all of its holds are unbound.
    pub(super) fn closed_at(&self, client: ClientId) -> Option<Moment> {
        self.closed_at.get(&client).copied()
    }

    /// The holds that were bound to each of them.
    pub(super) fn into_holds(self) -> impl Iterator<Item = BoundHolds> {
        self.all.into_iter().map(|closed| closed.holds)
    }

    /// Checks that each is found by its number, and nothing else is.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.all.len(), self.closed_at.len());
        assert!(self.all.iter().all(|closed| self.closed_at(closed.client) == Some(closed.at)));
    }
}
