//! Who waits, in what order, until when (G5, G7, G8).
//!
//! One queue for each place that somebody waits for: a doubly linked list through the waiters' records,
//! so that leaving from the middle (a timeout, a closed connection) costs as little as leaving from the
//! head. Queues are found by place, waiters by their number or by (place, owner). The last waiter to
//! leave takes its queue with it: a name that nobody waits for leaves nothing behind.

mod looks;
mod owners;
mod parties;
mod ranks;

use std::collections::BTreeMap;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};

use super::arena::{Arena, Id};
use super::deadline::{Deadlines, Seat, Timed};
use super::locks::LockId;
use super::types::{ClientId, Mode, Moment, Place, PlaceBuf, Tie};
use crate::sabotage::{self, Rule};

/// Number of a waiting request.
pub type WaiterId = Id<Waiter>;

/// Number of a queue.
pub type QueueId = Id<Queue>;

/// Number of a request for several locks at once.
pub type PartyId = Id<Party>;

/// What a waiting request asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Who asks.
    pub owner: Box<[u8]>,
    /// Whether the server minted the owner, and the answer must name it.
    pub owner_is_minted: bool,
    /// The lease to grant, counted from the grant.
    pub lease_ms: u64,
    /// When it came.
    pub since: Moment,
    /// Until when it waits; `None`: without limit.
    pub until: Option<Moment>,
    /// The connection that waits. `None`: a place in line that its owner asks after now and then (QUEUE).
    pub client: Option<ClientId>,
    /// How the lock is to be held.
    pub mode: Mode,
    /// What is to tie the hold to its connection.
    pub tie: Tie,
    /// A shared holder wants to hold alone: it stands ahead of everybody.
    pub is_upgrade: bool,
    /// Whether the grant counts, if its owner holds by then.
    pub is_reentrant: bool,
}

impl Request {
    /// Whether it can only be granted when the whole lock is free.
    const fn is_plain(&self) -> bool {
        matches!(self.mode, Mode::Exclusive) && self.client.is_some() && !self.is_upgrade
    }
}

/// A request in line.
#[derive(Debug)]
pub struct Waiter {
    /// The line it stands in.
    pub queue: QueueId,
    /// What it asked for.
    pub request: Request,
    /// The request for several locks that it is a part of.
    pub party: Option<PartyId>,
    ahead: Option<WaiterId>,
    behind: Option<WaiterId>,
    /// Other requests of the same owner, in other lines.
    same_before: Option<WaiterId>,
    same_behind: Option<WaiterId>,
    /// Where it stands in the ranks of its line, if that has any.
    slot: usize,
    seat: Seat,
}

/// A request for several locks at once: it stands in the line of each.
#[derive(Debug)]
pub struct Party {
    /// Its place in each line. The first one stands for all: it is known to the outside, and times out.
    pub stands: Vec<WaiterId>,
    /// The line that it was found to wait for. Nothing that happens elsewhere helps it.
    pub held_up_in: Option<QueueId>,
    /// Whether the pump has been asked to look at it.
    pub is_noted: bool,
}

impl Timed for Waiter {
    fn seat(&mut self) -> &mut Seat {
        &mut self.seat
    }
}

/// The line of one place.
#[derive(Debug)]
pub struct Queue {
    /// Which place.
    pub place: PlaceBuf,
    /// Whether the pump has been asked to look at it.
    pub is_noted: bool,
    /// How many wait.
    pub len: usize,
    /// How they want to hold the lock; all agree on its kind.
    pub mode: Mode,
    /// The lock that they wait for, as of the last look; stale once it is gone.
    pub lock: Option<LockId>,
    /// How many of them want other locks too.
    pub parties: usize,
    /// When to look whether the lock is free, because nobody will tell.
    look_at: Option<Moment>,
    /// Everybody here wants the whole lock, and nothing else.
    is_plain: bool,
    /// Where reservations stand; begins with the first one.
    ranks: Option<Box<ranks::Ranks>>,
    head: Option<WaiterId>,
    tail: Option<WaiterId>,
}

/// All lines. See the [module](self).
#[derive(Default)]
pub struct Queues {
    queues: Arena<Queue>,
    waiters: Arena<Waiter>,
    by_place: HashMap<PlaceBuf, QueueId>,
    by_owner: HashTable<WaiterId>,
    /// One request of each owner, the others behind it.
    owners: HashTable<WaiterId>,
    parties: Arena<Party>,
    /// Lines that somebody left whose going may let others in.
    left: Vec<QueueId>,
    /// Lines to be looked at, by when.
    looks: BTreeMap<(Moment, u64), QueueId>,
    hasher: DefaultHashBuilder,
    timeouts: Deadlines<Waiter>,
}

impl Queues {
    /// How many requests wait, over all places.
    #[must_use]
    pub const fn waiters(&self) -> usize {
        self.waiters.len()
    }

    /// The line at this place.
    #[must_use]
    pub fn at(&self, place: Place<'_>) -> Option<QueueId> {
        if self.by_place.is_empty() {
            return None;
        }
        self.by_place.get(&place).copied()
    }

    /// The line with this number.
    #[must_use]
    pub fn queue(&self, queue: QueueId) -> Option<&Queue> {
        self.queues.get(queue)
    }

    /// The line with this number, to mark it.
    pub fn queue_mut(&mut self, queue: QueueId) -> Option<&mut Queue> {
        self.queues.get_mut(queue)
    }

    /// The locks in these databases are gone, though their values may live on for a while.
    pub fn forget_locks(&mut self, is_concerned: impl Fn(u32) -> bool) {
        let ids: Vec<QueueId> = self.queues.iter().map(|(id, _)| id).collect();
        for id in ids {
            if let Some(queue) = self.queues.get_mut(id).filter(|queue| is_concerned(queue.place.db)) {
                queue.lock = None;
            }
        }
    }

    /// All lines, in no particular order.
    pub fn queues(&self) -> impl Iterator<Item = (QueueId, &Queue)> {
        self.queues.iter()
    }

    /// The waiter with this number.
    #[must_use]
    pub fn waiter(&self, waiter: WaiterId) -> Option<&Waiter> {
        self.waiters.get(waiter)
    }

    /// Who is next in this line.
    #[must_use]
    pub fn head(&self, queue: QueueId) -> Option<WaiterId> {
        self.queues.get(queue)?.head
    }

    /// Everybody in this line, first come first.
    pub fn line(&self, queue: QueueId) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        std::iter::successors(self.head(queue), |&id| self.waiters.get(id)?.behind)
            .filter_map(|id| Some((id, self.waiters.get(id)?)))
    }

    /// The next timeout.
    #[must_use]
    pub fn first_timeout(&self) -> Option<(Moment, WaiterId)> {
        self.timeouts.first()
    }

    /// This owner's request in this line.
    #[must_use]
    pub fn of_owner(&self, queue: QueueId, owner: &[u8]) -> Option<WaiterId> {
        let hash = self.hash(queue, owner);
        let same = |&id: &WaiterId| {
            let waiter = self.waiters.get(id);
            waiter.is_some_and(|w| w.queue == queue && *w.request.owner == *owner)
        };
        self.by_owner.find(hash, same).copied()
    }

    fn hash(&self, queue: QueueId, owner: &[u8]) -> u64 {
        self.hasher.hash_one((queue, owner))
    }

    /// The request for several locks with this number.
    #[must_use]
    pub fn party(&self, party: PartyId) -> Option<&Party> {
        self.parties.get(party)
    }

    /// The request for several locks with this number, to note what holds it up.
    pub fn party_mut(&mut self, party: PartyId) -> Option<&mut Party> {
        self.parties.get_mut(party)
    }

    /// The request that stands for this one, which may be for several locks.
    #[must_use]
    pub fn lead(&self, waiter: WaiterId) -> WaiterId {
        let party = self.waiters.get(waiter).and_then(|waiter| self.parties.get(waiter.party?));
        party.and_then(|party| party.stands.first().copied()).unwrap_or(waiter)
    }

    /// All places of a request, which may be for several locks, by the one that stands for it.
    pub fn stands(&self, lead: WaiterId) -> impl Iterator<Item = WaiterId> {
        let waiter = self.waiters.get(lead);
        let party = waiter.and_then(|waiter| self.parties.get(waiter.party?));
        let single = waiter.filter(|_| party.is_none()).map(|_| lead);
        party.into_iter().flat_map(|party| party.stands.iter().copied()).chain(single)
    }

    /// Who stands behind this one.
    #[must_use]
    pub fn behind(&self, waiter: WaiterId) -> Option<WaiterId> {
        self.waiters.get(waiter)?.behind
    }

    /// Who stands ahead of this one.
    #[must_use]
    pub fn ahead(&self, waiter: WaiterId) -> Option<WaiterId> {
        self.waiters.get(waiter)?.ahead
    }

    /// Whether everybody in line at this place wants the whole lock, and nothing else.
    #[must_use]
    pub fn is_plain(&self, queue: QueueId) -> bool {
        self.queues.get(queue).is_none_or(|queue| queue.is_plain)
    }

    /// Whether somebody left a line whose going may let others in.
    #[inline]
    #[must_use]
    pub const fn has_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// A line that somebody left whose going may let others in.
    pub fn next_left(&mut self) -> Option<QueueId> {
        self.left.pop()
    }

    fn open(&mut self, place: Place<'_>, mode: Mode) -> QueueId {
        self.at(place).unwrap_or_else(|| {
            let queue = self.queues.insert(Queue {
                place: place.to_owned(),
                is_noted: false,
                len: 0,
                mode,
                lock: None,
                parties: 0,
                look_at: None,
                is_plain: true,
                ranks: None,
                head: None,
                tail: None,
            });
            self.by_place.insert(place.to_owned(), queue);
            queue
        })
    }

    /// Puts a request at the end of the line at this place; one of a holder who wants to hold alone, at its head.
    pub fn join(&mut self, place: Place<'_>, request: Request) -> WaiterId {
        let queue = self.open(place, request.mode);
        let (ahead, behind) = match self.queues.get(queue) {
            Some(queue) if request.is_upgrade || sabotage::removes(Rule::Fifo) => (None, queue.head),
            Some(queue) => (queue.tail, None),
            None => (None, None),
        };
        let id = self.insert(queue, request, None, ahead, behind);
        self.enter_rank(id, None);
        id
    }

    /// Lets a newer request of the same owner take over the place in line of `old`, which is returned.
    pub fn take_over(&mut self, old: WaiterId, request: Request) -> Option<(Waiter, WaiterId)> {
        let (queue, ahead, party) = self.waiters.get(old).map(|w| (w.queue, w.ahead, w.party))?;
        if party.is_some() {
            return None;
        }
        // First in, then out: the line must not become empty in between.
        let new = self.insert(queue, request, None, ahead, Some(old));
        self.enter_rank(new, Some(old));
        Some((self.take_out(old)?, new))
    }

    fn insert(
        &mut self,
        queue: QueueId,
        request: Request,
        party: Option<PartyId>,
        ahead: Option<WaiterId>,
        behind: Option<WaiterId>,
    ) -> WaiterId {
        let until = request.until;
        let is_plain = request.is_plain() && party.is_none();
        let hash = self.hash(queue, &request.owner);
        let waiter = Waiter {
            queue,
            request,
            party,
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
            queue.parties += usize::from(party.is_some());
            queue.is_plain &= is_plain;
        }
        let (waiters, hasher) = (&self.waiters, &self.hasher);
        self.by_owner.insert_unique(hash, id, |&id| {
            waiters.get(id).map_or(0, |w| hasher.hash_one((w.queue, &*w.request.owner)))
        });
        self.enlist(id);
        if let Some(until) = until {
            self.timeouts.set(&mut self.waiters, id, until);
        }
        id
    }

    /// Makes two neighbours know each other; `None` is the end of the line on that side.
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

    /// Takes a request out of its line, wherever it stands; one for several locks out of all of them, and then what
    /// is returned is the one that stood for all.
    pub fn leave(&mut self, id: WaiterId) -> Option<Waiter> {
        let Some(party) = self.waiters.get(id)?.party else {
            return self.take_out(id);
        };
        let mut stands = self.parties.remove(party)?.stands.into_iter();
        let lead = self.take_out(stands.next()?);
        for stand in stands {
            self.take_out(stand);
        }
        lead
    }

    fn take_out(&mut self, id: WaiterId) -> Option<Waiter> {
        self.timeouts.clear(&mut self.waiters, id);
        let hash = {
            let waiter = self.waiters.get(id)?;
            self.hash(waiter.queue, &waiter.request.owner)
        };
        if let Ok(entry) = self.by_owner.find_entry(hash, |&other| other == id) {
            entry.remove();
        }
        self.delist(id);
        self.leave_rank(id);
        let waiter = self.waiters.remove(id)?;
        self.link(waiter.queue, waiter.ahead, waiter.behind);
        let is_empty = self.queues.get_mut(waiter.queue).is_some_and(|queue| {
            queue.len -= 1;
            queue.parties -= usize::from(waiter.party.is_some());
            // Thousands are let into one lock in one step.
            if queue.len > 0 && !queue.is_plain && self.left.last() != Some(&waiter.queue) {
                self.left.push(waiter.queue);
            }
            queue.len == 0
        });
        if is_empty {
            self.look_at(waiter.queue, None);
        }
        if is_empty && let Some(queue) = self.queues.remove(waiter.queue) {
            self.by_place.remove(&queue.place.as_place());
        }
        self.give_back_memory();
        Some(waiter)
    }

    /// After a storm the maps shrink again.
    fn give_back_memory(&mut self) {
        if self.waiters.is_empty() && self.by_owner.capacity() > 1024 {
            self.by_owner = HashTable::new();
            self.owners = HashTable::new();
            self.by_place = HashMap::new();
        }
    }

    /// Tells what is wrong with the lines, if anything is.
    pub fn check(&self) -> Result<(), String> {
        let mut count = 0;
        for (id, queue) in self.queues.iter() {
            if self.by_place.get(&queue.place.as_place()) != Some(&id) {
                return Err(format!("line {id:?} is not found by its place"));
            }
            let mut ahead = None;
            for (number, (waiter_id, waiter)) in self.line(id).enumerate() {
                if waiter.ahead != ahead || waiter.queue != id || number >= queue.len {
                    return Err(format!("line {id:?} is broken at {waiter_id:?}"));
                }
                if self.of_owner(id, &waiter.request.owner) != Some(waiter_id) {
                    return Err(format!("{waiter_id:?} is not found by its owner, or not alone"));
                }
                if !self.all_of_owner(&waiter.request.owner).any(|(other, _)| other == waiter_id) {
                    return Err(format!("{waiter_id:?} is not found among its owner's"));
                }
                if waiter
                    .party
                    .is_some_and(|party| self.party(party).is_none_or(|p| !p.stands.contains(&waiter_id)))
                {
                    return Err(format!("{waiter_id:?} has left its party"));
                }
                if !waiter.request.mode.agrees_with(queue.mode) {
                    return Err(format!("{waiter_id:?} is of another kind than its line"));
                }
                if (waiter.seat == Seat::NONE) != waiter.request.until.is_none() {
                    return Err(format!("{waiter_id:?} has the wrong timeout"));
                }
                ahead = Some(waiter_id);
                count += 1;
            }
            self.check_ranks(id)?;
            if queue.tail != ahead || ahead.is_none() {
                return Err(format!("line {id:?} has a wrong end or is empty"));
            }
        }
        if count != self.waiters.len()
            || self.by_owner.len() != count
            || self.by_place.len() != self.queues.len()
        {
            return Err("a waiter stands in no line".to_owned());
        }
        self.timeouts.check(&self.waiters, |waiter| waiter.seat)
    }
}

#[cfg(test)]
mod tests;
