//! The requests of one owner, in all queues: chained to each other, the newest one found by a hash of the owner.

use std::hash::BuildHasher;

use hashbrown::hash_table::Entry;

use super::{Queues, Waiter};
use crate::lock::effect::WaiterId;

impl Queues {
    /// All requests of this owner, in all queues.
    pub fn all_of_owner(&self, owner: &[u8]) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        let hash = self.hasher.hash_one(owner);
        let is_same = |&id: &WaiterId| self.waiters.get(id).is_some_and(|w| *w.request.owner == *owner);
        let first = self.owners.find(hash, is_same).copied();
        std::iter::successors(first, |&id| self.waiters.get(id)?.same_behind)
            .filter_map(|id| Some((id, self.waiters.get(id)?)))
    }

    /// How many owners wait for anything.
    pub fn waiting_owners(&self) -> usize {
        self.owners.len()
    }

    /// All owners who wait for anything, in no order.
    pub fn all_waiting_owners(&self) -> impl Iterator<Item = &[u8]> {
        self.owners.iter().filter_map(|&id| Some(&*self.waiters.get(id)?.request.owner))
    }

    /// Makes a request be found by its owner.
    pub(super) fn enlist(&mut self, id: WaiterId) {
        let (waiters, hasher) = (&self.waiters, &self.hasher);
        let Some(owner) = waiters.get(id).map(|w| &*w.request.owner) else {
            return;
        };
        let hash = hasher.hash_one(owner);
        let is_same = |&id: &WaiterId| waiters.get(id).is_some_and(|w| *w.request.owner == *owner);
        let hash_of = |&id: &WaiterId| waiters.get(id).map_or(0, |w| hasher.hash_one(&*w.request.owner));
        let before = match self.owners.entry(hash, is_same, hash_of) {
            Entry::Occupied(mut entry) => Some(std::mem::replace(entry.get_mut(), id)),
            Entry::Vacant(entry) => {
                entry.insert(id);
                None
            }
        };
        if let Some(next) = before {
            self.link_same(Some(id), Some(next));
        }
    }

    /// Makes a request not be found by its owner any more.
    pub(super) fn delist(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get(id) else {
            return;
        };
        let (before, behind) = (waiter.same_before, waiter.same_behind);
        if before.is_none() {
            let hash = self.hasher.hash_one(&*waiter.request.owner);
            if let Ok(mut entry) = self.owners.find_entry(hash, |&other| other == id) {
                match behind {
                    Some(behind) => *entry.get_mut() = behind,
                    None => _ = entry.remove(),
                }
            }
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
