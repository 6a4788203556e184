//! The waiting requests, with their order and their timeouts (G5, G7, G8).
//!
//! One queue for each lock key that has waiters: a doubly linked list through the waiters' records. So leaving from
//! the middle (a timeout, a closed connection) costs as little as leaving from the head. Queues are found by lock key,
//! waiters by their number or by (lock key, owner). The last waiter to leave removes its queue: a name without waiters
//! takes no memory.

mod check;
mod multi;
mod owners;
mod ranks;
mod rechecks;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;

use super::arena::{Arena, Id};
use super::by_hash::ByHash;
use super::deadline::{Deadlines, Seat, Timed};
use super::locks::LockId;
use super::types::{Binding, ClientId, LockKey, LockKeyBuf, Mode, Moment, OwnerBuf};

/// Number of a waiting request.
pub type WaiterId = Id<Waiter>;

/// Number of a queue.
pub type QueueId = Id<Queue>;

/// Number of a request for several locks at once.
pub type MultiId = Id<Multi>;

/// The arguments of a waiting request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The owner that asks.
    pub owner: OwnerBuf,
    /// True if the server minted the owner, so that the answer must name it.
    pub owner_is_minted: bool,
    /// The lease to grant, counted from the grant.
    pub lease_ms: u64,
    /// When the request arrived.
    pub since: Moment,
    /// When the wait times out; `None` if without limit.
    pub until: Option<Moment>,
    /// The connection that waits; `None` for a reservation, which its owner polls (QUEUE).
    pub client: Option<ClientId>,
    /// The mode in which to hold the lock.
    pub mode: Mode,
    /// The binding of the hold to its connection.
    pub binding: Binding,
    /// True if the owner asked to be counted.
    pub is_reentrant: bool,
}

impl Request {
    /// Returns true if the request can be granted only when the whole lock is free, and a connection waits for it.
    const fn waits_for_all(&self) -> bool {
        matches!(self.mode, Mode::Exclusive) && self.client.is_some()
    }
}

/// A request in the queue.
#[derive(Debug)]
pub struct Waiter {
    /// Its queue.
    pub queue: QueueId,
    /// The request.
    pub request: Request,
    /// The request for several locks that it belongs to.
    pub multi: Option<MultiId>,
    ahead: Option<WaiterId>,
    behind: Option<WaiterId>,
    /// Other requests of the same owner, in other queues.
    same_before: Option<WaiterId>,
    same_behind: Option<WaiterId>,
    /// Its slot in the ranks of its queue, if the queue has any.
    slot: usize,
    seat: Seat,
}

/// A request for several locks at once: it is in the queue of each.
#[derive(Debug)]
pub struct Multi {
    /// Its entry in each queue. The first entry represents the request: its number is used outside, and it times out.
    pub entries: Vec<WaiterId>,
    /// The queue that blocks it. Nothing that happens elsewhere helps it.
    pub held_up_in: Option<QueueId>,
    /// True if the pump was asked to examine it.
    pub is_noted: bool,
}

impl Timed for Waiter {
    fn seat(&mut self) -> &mut Seat {
        &mut self.seat
    }
}

/// The queue of one lock key.
#[derive(Debug)]
pub struct Queue {
    /// The lock key.
    pub lock_key: LockKeyBuf,
    /// True if the pump was asked to examine it.
    pub is_noted: bool,
    /// The number of waiters.
    pub len: usize,
    /// The mode that they request; all agree on its kind.
    pub mode: Mode,
    /// The lock that they wait for, as of the last look; stale once it is removed.
    pub lock: Option<LockId>,
    /// The number of waiters that request other locks too.
    pub multis: usize,
    /// The time at which to recheck whether the lock is free, when no event will report it.
    recheck_at: Option<Moment>,
    /// A lock that came to this key other than by a grant, since the last decision at this key. It ends all waits
    /// here.
    pub arrived: Option<LockId>,
    /// True if every request here is for this lock alone, as a whole, and a connection waits for it.
    all_wait_for_all: bool,
    /// The ranks of the reservations; built with the first one.
    ranks: Option<Box<ranks::Ranks>>,
    head: Option<WaiterId>,
    tail: Option<WaiterId>,
}

/// All queues. See the [module](self).
#[derive(Default)]
pub struct Queues {
    queues: Arena<Queue>,
    waiters: Arena<Waiter>,
    by_key: ByHash<QueueId>,
    /// The queue that was looked up last.
    asked_for: Cell<Option<QueueId>>,
    by_owner: ByHash<WaiterId>,
    /// One request of each owner, which links to the owner's others.
    owners: ByHash<WaiterId>,
    multis: Arena<Multi>,
    /// The number of requests for holds with a binding to their connections.
    binding: usize,
    /// Queues that a waiter left, which may unblock others.
    left: Vec<QueueId>,
    /// Queues to recheck, by time.
    rechecks: BTreeMap<(Moment, u64), QueueId>,
    hasher: DefaultHashBuilder,
    timeouts: Deadlines<Waiter>,
}

impl Queues {
    /// Returns the number of waiting requests, over all keys.
    #[must_use]
    pub const fn waiters(&self) -> usize {
        self.waiters.len()
    }

    /// Returns true if any request is for a hold with a binding to its connection.
    #[inline]
    #[must_use]
    pub const fn have_bindings(&self) -> bool {
        self.binding > 0
    }

    /// Returns the queue at this key.
    #[must_use]
    pub fn at(&self, lock_key: LockKey<'_>) -> Option<QueueId> {
        if self.by_key.is_empty() {
            return None;
        }
        let is_at = |id| self.queues.get(id).is_some_and(|queue| queue.lock_key.as_key() == lock_key);
        // Passing a lock to its next owner looks the queue up seven times.
        let asked_for = self.asked_for.get().filter(|&id| is_at(id));
        asked_for.or_else(|| {
            let found = self.by_key.find(self.hasher.hash_one(lock_key), is_at);
            self.asked_for.set(found);
            found
        })
    }

    /// Returns the queue with this number.
    #[must_use]
    pub fn queue(&self, queue: QueueId) -> Option<&Queue> {
        self.queues.get(queue)
    }

    /// Returns the queue with this number, to mark it.
    pub fn queue_mut(&mut self, queue: QueueId) -> Option<&mut Queue> {
        self.queues.get_mut(queue)
    }

    /// Returns an empty set of queues to replace this one. It issues none of these numbers again.
    #[must_use]
    pub fn successor(&self) -> Self {
        Self {
            queues: self.queues.successor(),
            waiters: self.waiters.successor(),
            multis: self.multis.successor(),
            ..Self::default()
        }
    }

    /// Returns the first queue at or after this place: see [`Arena::first_from`].
    pub fn first_from(&self, place: &mut usize) -> Option<QueueId> {
        self.queues.first_from(place)
    }

    /// Returns all queues, in no particular order.
    pub fn queues(&self) -> impl Iterator<Item = (QueueId, &Queue)> {
        self.queues.iter()
    }

    /// Returns all queues, to mark them, in no particular order.
    pub fn queues_mut(&mut self) -> impl Iterator<Item = (QueueId, &mut Queue)> {
        self.queues.iter_mut()
    }

    /// Returns the waiter with this number.
    #[must_use]
    pub fn waiter(&self, waiter: WaiterId) -> Option<&Waiter> {
        self.waiters.get(waiter)
    }

    /// Returns the first waiter of this queue.
    #[must_use]
    pub fn head(&self, queue: QueueId) -> Option<WaiterId> {
        self.queues.get(queue)?.head
    }

    /// Returns the next timeout.
    #[must_use]
    pub fn first_timeout(&self) -> Option<(Moment, WaiterId)> {
        self.timeouts.first()
    }

    /// Returns this owner's request in this queue.
    #[must_use]
    pub fn of_owner(&self, queue: QueueId, owner: &[u8]) -> Option<WaiterId> {
        let hash = self.hash(queue, owner);
        let same = |id| {
            let waiter = self.waiters.get(id);
            waiter.is_some_and(|w| w.queue == queue && *w.request.owner == *owner)
        };
        self.by_owner.find(hash, same)
    }

    fn hash(&self, queue: QueueId, owner: &[u8]) -> u64 {
        self.hasher.hash_one((queue, owner))
    }

    /// Returns the request for several locks with this number.
    #[must_use]
    pub fn multi(&self, multi: MultiId) -> Option<&Multi> {
        self.multis.get(multi)
    }

    /// Returns the request for several locks with this number, to note the lock that blocks it.
    pub fn multi_mut(&mut self, multi: MultiId) -> Option<&mut Multi> {
        self.multis.get_mut(multi)
    }

    /// Returns the first entry of the request that this entry belongs to, which may be for several locks.
    #[must_use]
    pub fn first_entry(&self, waiter: WaiterId) -> WaiterId {
        let multi = self.waiters.get(waiter).and_then(|waiter| self.multis.get(waiter.multi?));
        multi.and_then(|multi| multi.entries.first().copied()).unwrap_or(waiter)
    }

    /// Returns all entries of a request, which may be for several locks, by the first of them.
    pub fn entries(&self, first_entry: WaiterId) -> impl Iterator<Item = WaiterId> {
        let waiter = self.waiters.get(first_entry);
        let multi = waiter.and_then(|waiter| self.multis.get(waiter.multi?));
        let single = waiter.filter(|_| multi.is_none()).map(|_| first_entry);
        multi.into_iter().flat_map(|multi| multi.entries.iter().copied()).chain(single)
    }

    /// Returns the request after this one.
    #[must_use]
    pub fn behind(&self, waiter: WaiterId) -> Option<WaiterId> {
        self.waiters.get(waiter)?.behind
    }

    /// Returns the request ahead of this one.
    #[must_use]
    pub fn ahead(&self, waiter: WaiterId) -> Option<WaiterId> {
        self.waiters.get(waiter)?.ahead
    }

    /// Notes that this lock came to the key of a queue other than by a grant.
    pub fn set_arrived(&mut self, queue: QueueId, lock: LockId) {
        if let Some(queue) = self.queues.get_mut(queue) {
            (queue.arrived, queue.lock) = (Some(lock), Some(lock));
        }
    }

    /// Returns true if a waiter left a queue, which may unblock others.
    #[inline]
    #[must_use]
    pub const fn has_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// Takes a queue that a waiter left, which may unblock others.
    pub fn next_left(&mut self) -> Option<QueueId> {
        self.left.pop()
    }

    fn open(&mut self, lock_key: LockKey<'_>, mode: Mode) -> QueueId {
        self.at(lock_key).unwrap_or_else(|| {
            let queue = self.queues.insert(Queue {
                lock_key: lock_key.to_owned(),
                is_noted: false,
                len: 0,
                mode,
                lock: None,
                multis: 0,
                recheck_at: None,
                arrived: None,
                all_wait_for_all: true,
                ranks: None,
                head: None,
                tail: None,
            });
            self.by_key.insert(self.hasher.hash_one(lock_key), queue);
            queue
        })
    }

    /// Puts a request at the end of the queue at this key.
    pub fn join(&mut self, lock_key: LockKey<'_>, request: Request) -> WaiterId {
        let queue = self.open(lock_key, request.mode);
        let (ahead, behind) = match self.queues.get(queue) {
            Some(queue) => (queue.tail, None),
            None => (None, None),
        };
        let id = self.insert(queue, request, None, ahead, behind);
        self.enter_rank(id, None);
        id
    }

    /// Replaces the request `old`, which is returned, by a newer one of the same owner, at the same position in the
    /// queue.
    pub fn replace_waiter(&mut self, old: WaiterId, request: Request) -> Option<(Waiter, WaiterId)> {
        let (queue, ahead, multi) = self.waiters.get(old).map(|w| (w.queue, w.ahead, w.multi))?;
        if multi.is_some() {
            return None;
        }
        // Inserts before it removes: the queue must not become empty in between.
        let new = self.insert(queue, request, None, ahead, Some(old));
        self.enter_rank(new, Some(old));
        Some((self.take_out(old)?, new))
    }

    fn insert(
        &mut self,
        queue: QueueId,
        request: Request,
        multi: Option<MultiId>,
        ahead: Option<WaiterId>,
        behind: Option<WaiterId>,
    ) -> WaiterId {
        let until = request.until;
        let waits_for_all = request.waits_for_all() && multi.is_none();
        let hash = self.hash(queue, &request.owner);
        self.binding += usize::from(!request.binding.is_none());
        let waiter = Waiter {
            queue,
            request,
            multi,
            ahead,
            behind,
            same_before: None,
            same_behind: None,
            slot: 0,
            seat: Seat::NONE,
        };
        let id = self.waiters.insert(waiter);
        self.link(queue, ahead, Some(id));
        self.link(queue, Some(id), behind);
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.len += 1;
            queue.multis += usize::from(multi.is_some());
            queue.all_wait_for_all &= waits_for_all;
        }
        self.by_owner.insert(hash, id);
        self.enlist(id);
        if let Some(until) = until {
            self.timeouts.set(&mut self.waiters, id, until);
        }
        id
    }

    /// Links two neighbors; `None` is the end of the queue on that side.
    fn link(&mut self, queue: QueueId, ahead: Option<WaiterId>, behind: Option<WaiterId>) {
        match ahead.and_then(|id| self.waiters.get_mut(id)) {
            Some(waiter) => waiter.behind = behind,
            None => {
                if let Some(queue) = self.queues.get_mut(queue) {
                    queue.head = behind;
                }
            }
        }
        match behind.and_then(|id| self.waiters.get_mut(id)) {
            Some(waiter) => waiter.ahead = ahead,
            None => {
                if let Some(queue) = self.queues.get_mut(queue) {
                    queue.tail = ahead;
                }
            }
        }
    }

    /// Removes a request from its queue, at any position. A request for several locks leaves all its queues, and the
    /// waiter that represents it is returned.
    pub fn leave(&mut self, id: WaiterId) -> Option<Waiter> {
        let Some(multi) = self.waiters.get(id)?.multi else {
            return self.take_out(id);
        };
        let mut entries = self.multis.remove(multi)?.entries.into_iter();
        let first_entry = self.take_out(entries.next()?);
        for entry in entries {
            self.take_out(entry);
        }
        first_entry
    }

    fn take_out(&mut self, id: WaiterId) -> Option<Waiter> {
        self.timeouts.clear(&mut self.waiters, id);
        let hash = {
            let waiter = self.waiters.get(id)?;
            self.hash(waiter.queue, &waiter.request.owner)
        };
        self.by_owner.remove(hash, id);
        self.delist(id);
        self.leave_rank(id);
        let waiter = self.waiters.remove(id)?;
        self.binding -= usize::from(!waiter.request.binding.is_none());
        self.link(waiter.queue, waiter.ahead, waiter.behind);
        let is_empty = self.queues.get_mut(waiter.queue).is_some_and(|queue| {
            queue.len -= 1;
            queue.multis -= usize::from(waiter.multi.is_some());
            // If all requests are for the whole lock, one of them is granted when a hold ends. Thousands may be granted
            // one lock in one step, so the same queue is not noted twice in a row.
            if queue.len > 0 && !queue.all_wait_for_all && self.left.last() != Some(&waiter.queue) {
                self.left.push(waiter.queue);
            }
            queue.len == 0
        });
        if is_empty {
            self.recheck_at(waiter.queue, None);
        }
        if is_empty && let Some(queue) = self.queues.remove(waiter.queue) {
            self.by_key.remove(self.hasher.hash_one(queue.lock_key.as_key()), waiter.queue);
        }
        Some(waiter)
    }
}

#[cfg(test)]
mod tests;
