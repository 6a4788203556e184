//! Who waits, in what order, until when (G5, G7, G8).
//!
//! One queue for each place that somebody waits for: a doubly linked list through the waiters' records,
//! so that leaving from the middle (a timeout, a closed connection) costs as little as leaving from the
//! head. Queues are found by place, waiters by their number or by (place, owner). The last waiter to
//! leave takes its queue with it: a name that nobody waits for leaves nothing behind.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};

use super::arena::{Arena, Id};
use super::deadline::{Deadlines, Seat, Timed};
use super::effect::WaiterId;
use super::types::{ClientId, Moment, Place, PlaceBuf};

/// Number of a queue.
pub type QueueId = Id<Queue>;

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
    /// The connection that waits.
    pub client: ClientId,
}

/// A request in line.
#[derive(Debug)]
pub struct Waiter {
    /// The line it stands in.
    pub queue: QueueId,
    /// What it asked for.
    pub request: Request,
    ahead: Option<WaiterId>,
    behind: Option<WaiterId>,
    seat: Seat,
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

    /// Puts a request at the end of the line at this place.
    pub fn join(&mut self, place: Place<'_>, request: Request) -> WaiterId {
        let queue = self.at(place).unwrap_or_else(|| {
            let queue = self.queues.insert(Queue {
                place: place.to_owned(),
                is_noted: false,
                len: 0,
                head: None,
                tail: None,
            });
            self.by_place.insert(place.to_owned(), queue);
            queue
        });
        let last = self.queues.get(queue).and_then(|q| q.tail);
        self.insert(queue, request, last, None)
    }

    /// Lets a newer request of the same owner take over the place in line of `old`, which is returned.
    pub fn take_over(&mut self, old: WaiterId, request: Request) -> Option<(Waiter, WaiterId)> {
        let (queue, ahead) = self.waiters.get(old).map(|w| (w.queue, w.ahead))?;
        // First in, then out: the line must not become empty in between.
        let new = self.insert(queue, request, ahead, Some(old));
        Some((self.leave(old)?, new))
    }

    fn insert(
        &mut self,
        queue: QueueId,
        request: Request,
        ahead: Option<WaiterId>,
        behind: Option<WaiterId>,
    ) -> WaiterId {
        let until = request.until;
        let hash = self.hash(queue, &request.owner);
        let id = self.waiters.insert(Waiter { queue, request, ahead, behind, seat: Seat::NONE });
        self.link(queue, ahead, Some(id));
        self.link(queue, Some(id), behind);
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.len += 1;
        }
        let (waiters, hasher) = (&self.waiters, &self.hasher);
        self.by_owner.insert_unique(hash, id, |&id| {
            waiters.get(id).map_or(0, |w| hasher.hash_one((w.queue, &*w.request.owner)))
        });
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

    /// Takes a request out of its line, wherever it stands.
    pub fn leave(&mut self, id: WaiterId) -> Option<Waiter> {
        self.timeouts.clear(&mut self.waiters, id);
        let hash = {
            let waiter = self.waiters.get(id)?;
            self.hash(waiter.queue, &waiter.request.owner)
        };
        if let Ok(entry) = self.by_owner.find_entry(hash, |&other| other == id) {
            entry.remove();
        }
        let waiter = self.waiters.remove(id)?;
        self.link(waiter.queue, waiter.ahead, waiter.behind);
        let is_empty = self.queues.get_mut(waiter.queue).is_some_and(|queue| {
            queue.len -= 1;
            queue.len == 0
        });
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
                if (waiter.seat == Seat::NONE) != waiter.request.until.is_none() {
                    return Err(format!("{waiter_id:?} has the wrong timeout"));
                }
                ahead = Some(waiter_id);
                count += 1;
            }
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
