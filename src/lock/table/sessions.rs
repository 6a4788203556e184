//! Closed connections whose holds are not all unbound yet. There may be a million holds, so the pump unbinds them.

use std::collections::{BTreeMap, VecDeque};

use crate::lock::effect::LockId;
use crate::lock::locks::{BoundHolds, Locks};
use crate::lock::types::{ClientId, Moment};

/// See the [module](self).
#[derive(Default)]
pub(super) struct Sessions {
    /// The closed connections, in the order in which they closed.
    closed: VecDeque<Closed>,
    /// When each connection closed; the server never reuses their numbers. A tree, because a hash table doubles in
    /// one piece.
    closed_at: BTreeMap<ClientId, Moment>,
}

/// A closed connection, and the holds bound to it.
struct Closed {
    client: ClientId,
    at: Moment,
    holds: BoundHolds,
}

impl Sessions {
    /// Returns true if any closed connection still has holds to unbind.
    #[inline]
    pub(super) fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Adds a connection that has closed.
    pub(super) fn close(&mut self, locks: &mut Locks, at: Moment, client: ClientId) {
        self.closed_at.insert(client, at);
        self.closed.push_back(Closed { client, at, holds: locks.take_bound_to(client) });
    }

    /// Unbinds this hold if its connection has closed. Returns true if that must be replicated.
    pub(super) fn unbind(&self, locks: &mut Locks, hold: LockId) -> bool {
        locks.connection_of(hold).is_some_and(|client| {
            self.closed_at.get(&client).is_some_and(|&at| locks.unbind(hold, client, at))
        })
    }

    /// Unbinds the next hold of the connection that closed first. Returns the hold if that must be replicated.
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

    /// Checks that the two indexes agree.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.closed.len(), self.closed_at.len());
        assert!(self.closed.iter().all(|closed| self.closed_at.get(&closed.client) == Some(&closed.at)));
    }
}
