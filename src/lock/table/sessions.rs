//! Connections that have closed, whose holds are not all unbound yet: there may be a million, so the pump does it.

use std::collections::{BTreeMap, VecDeque};

use crate::lock::effect::LockId;
use crate::lock::locks::{BoundHolds, Locks};
use crate::lock::types::{ClientId, Moment};

/// See the [module](self).
#[derive(Default)]
pub(super) struct Sessions {
    /// In the order in which they closed.
    closed: VecDeque<Closed>,
    /// When each closed. It closes once: the server uses no number twice. A tree, because a hash table doubles in one
    /// piece.
    closed_at: BTreeMap<ClientId, Moment>,
}

/// A connection that has closed, and what was bound to it.
struct Closed {
    client: ClientId,
    at: Moment,
    holds: BoundHolds,
}

impl Sessions {
    /// Returns true if there are holds yet that connections were to unbind that have closed.
    #[inline]
    pub(super) fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// A connection has closed.
    pub(super) fn close(&mut self, locks: &mut Locks, at: Moment, client: ClientId) {
        self.closed_at.insert(client, at);
        self.closed.push_back(Closed { client, at, holds: locks.take_bound_to(client) });
    }

    /// Unbinds this hold if its connection has closed. Returns true if readers have to learn of it.
    pub(super) fn unbind(&self, locks: &mut Locks, hold: LockId) -> bool {
        locks.connection_of(hold).is_some_and(|client| {
            self.closed_at.get(&client).is_some_and(|&at| locks.unbind(hold, client, at))
        })
    }

    /// Unbinds the next hold of the connection that closed first, or is done with that. Returns the hold if readers have
    /// to learn of it.
    pub(super) fn unbind_next(&mut self, locks: &mut Locks) -> Option<LockId> {
        let Closed { client, at, holds } = self.closed.front_mut()?;
        let Some(hold) = holds.next() else {
            self.closed_at.remove(client);
            self.closed.pop_front();
            return None;
        };
        locks.unbind(hold, *client, *at).then_some(hold)
    }

    /// Forgets all connections.
    pub(super) fn forget(&mut self, locks: &mut Locks) {
        self.closed_at.clear();
        locks.forget_connections(std::mem::take(&mut self.closed).into_iter().map(|closed| closed.holds));
    }

    /// Checks that each is found by its number, and nothing else is.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.closed.len(), self.closed_at.len());
        assert!(self.closed.iter().all(|closed| self.closed_at.get(&closed.client) == Some(&closed.at)));
    }
}
