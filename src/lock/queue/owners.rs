//! The requests of one owner in all queues: linked to each other, with the newest one found by a hash of the owner.

use std::hash::BuildHasher;

use super::{Queues, Waiter};
use crate::lock::effect::WaiterId;

impl Queues {
    /// Returns all requests of this owner, in all queues.
    pub fn all_of_owner(&self, owner: &[u8]) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        let hash = self.hasher.hash_one(owner);
        let is_same = |id| self.waiters.get(id).is_some_and(|w| *w.request.owner == *owner);
        let first = self.owners.find(hash, is_same);
        std::iter::successors(first, |&id| self.waiters.get(id)?.same_behind)
            .filter_map(|id| Some((id, self.waiters.get(id)?)))
    }

    /// Returns the number of owners that wait.
    pub fn waiting_owners(&self) -> usize {
        self.owners.len()
    }

    /// Returns all owners that wait, in no particular order.
    pub fn all_waiting_owners(&self) -> impl Iterator<Item = &[u8]> {
        self.owners.iter().filter_map(|id| Some(&*self.waiters.get(id)?.request.owner))
    }

    /// Adds a request to the index by owner.
    pub(super) fn enlist(&mut self, id: WaiterId) {
        let Some(owner) = self.waiters.get(id).map(|w| &*w.request.owner) else {
            return;
        };
        let hash = self.hasher.hash_one(owner);
        let is_same = |id| self.waiters.get(id).is_some_and(|w| *w.request.owner == *owner);
        if let Some(next) = self.owners.find(hash, is_same) {
            self.owners.replace(hash, next, id);
            self.link_same(Some(id), Some(next));
        } else {
            self.owners.insert(hash, id);
        }
    }

    /// Removes a request from the index by owner.
    pub(super) fn delist(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get(id) else {
            return;
        };
        let (before, behind) = (waiter.same_before, waiter.same_behind);
        if before.is_none() {
            let hash = self.hasher.hash_one(&*waiter.request.owner);
            match behind {
                Some(behind) => self.owners.replace(hash, id, behind),
                None => self.owners.remove(hash, id),
            };
        }
        self.link_same(before, behind);
    }

    fn link_same(&mut self, before: Option<WaiterId>, behind: Option<WaiterId>) {
        if let Some(waiter) = before.and_then(|id| self.waiters.get_mut(id)) {
            waiter.same_behind = behind;
        }
        if let Some(waiter) = behind.and_then(|id| self.waiters.get_mut(id)) {
            waiter.same_before = before;
        }
    }
}
