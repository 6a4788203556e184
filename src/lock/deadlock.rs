//! Deadlocks: waits that can only end each other (G11).
//!
//! A request waits for owners to release their holds, and for requests ahead of it that wait for other locks too. An
//! owner that waits for nothing may release anything at any time. So the search goes through the requests until no
//! other one can be granted. Only a timeout or a lease can end the rest, and a request that would be part of it is
//! refused. (This is the AND-OR model of Knapp, "Deadlock Detection in Distributed Databases", 1987. A request for
//! several locks needs all of them, one for a semaphore any of its permits, an owner with several requests any of
//! them.)
//!
//! The search runs for every request that is about to wait, so that no older cycle can exist. Its work is linear in
//! the holders and requests that it examines, which [`STEPS_MAX`] bounds. Each request counts its unmet conditions,
//! and the search removes a request that can be granted from the conditions that it blocks. It assumes that
//! everything beyond the bound can be granted. So it misses longer cycles, and never reports one that does not exist.

mod cycle;

use std::ops::Range;

use hashbrown::HashMap;

use super::locks::{LockId, Locks};
use super::queue::{Queue, Queues, Waiter, WaiterId};
#[cfg(test)]
use super::tests::visits::count;
use super::tuning;
use super::tuning::Bound;
use super::types::{LockKeyBuf, Mode, Moment, OwnerBuf};

/// The most holders and requests that the search examines for one request that is about to wait.
pub const STEPS_MAX: usize = 4096;

/// Returns true if a search stops after examining `steps` holders and requests. A test may end it earlier.
fn is_spent(steps: usize) -> bool {
    tuning::is_search_spent(steps, STEPS_MAX)
}

/// Counts visits, in tests only.
#[cfg(not(test))]
#[inline(always)]
const fn count(_visits: usize) {}

/// One wait of a cycle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// The owner that waits.
    pub owner: OwnerBuf,
    /// The lock that it waits for.
    pub lock_key: LockKeyBuf,
    /// The owner that must release the lock, or get it first. The next link's owner.
    pub awaited: OwnerBuf,
}

/// A condition that must be met first.
#[derive(Clone, Copy)]
enum Blocker {
    /// This owner releases its holds.
    Owner(usize),
    /// This request is granted.
    Request(usize),
}

/// A reason why a request can never be granted.
#[derive(Clone, Copy)]
struct Edge {
    at: WaiterId,
    blocker: Blocker,
}

/// A condition at one lock: all blockers must end, or for a semaphore any of them. `unmet` counts those that are
/// left.
struct Condition {
    at: WaiterId,
    request: usize,
    /// Their range among the blockers of all conditions.
    blockers: Range<usize>,
    unmet: usize,
}

struct Request {
    /// The entry that represents the request.
    first_entry: WaiterId,
    /// The range of its conditions among those of all requests.
    conditions: Range<usize>,
    /// The number of unmet conditions. At 0 it can be granted.
    unmet: usize,
    /// Its owner, if a request waits for that owner.
    owner: Option<usize>,
}

struct Owner {
    /// The range of its requests among those of all owners.
    requests: Range<usize>,
    can_go_on: bool,
}

/// The input of a search.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    /// The requests that wait.
    pub queues: &'a Queues,
    /// The locks that are held.
    pub locks: &'a Locks,
    /// The time of the search: a hold whose lease has expired blocks no request.
    pub now: Moment,
    /// The most holders that a shared lock may have.
    pub holders_max: usize,
    /// Requests to ignore, by their first entries: they are about to be replaced.
    pub but: &'a [WaiterId],
}

struct Graph<'a> {
    scope: Scope<'a>,
    steps: usize,
    requests: Vec<Request>,
    by_first_entry: HashMap<WaiterId, usize>,
    owners: Vec<Owner>,
    /// Owners by the first of their requests that is found.
    by_first: HashMap<WaiterId, usize>,
    requests_of_owners: Vec<usize>,
    conditions: Vec<Condition>,
    blockers: Vec<Blocker>,
}

/// The size of the last search, for which the next one reserves room.
#[derive(Clone, Copy, Default, Debug)]
pub struct Looked {
    requests: usize,
    owners: usize,
}

/// Returns the cycle that this queued request closes, if any.
#[must_use]
pub fn find(scope: Scope<'_>, waiter: WaiterId, looked: &mut Looked) -> Option<Vec<Link>> {
    if !may_close_one(scope.queues, scope.locks, waiter) {
        return None;
    }
    let mut graph = Graph {
        scope,
        steps: 0,
        requests: Vec::with_capacity(looked.requests),
        by_first_entry: HashMap::with_capacity(looked.requests),
        owners: Vec::with_capacity(looked.owners),
        by_first: HashMap::with_capacity(looked.owners),
        requests_of_owners: Vec::with_capacity(looked.requests),
        conditions: Vec::with_capacity(looked.requests),
        blockers: Vec::with_capacity(looked.requests),
    };
    let (start, mut next) = (graph.request(waiter)?, 0);
    while next < graph.requests.len() {
        graph.expand(next);
        next += 1;
    }
    graph.settle();
    *looked = Looked { requests: graph.requests.len(), owners: graph.owners.len() };
    (graph.requests[start].unmet > 0).then(|| graph.cycle(start))
}

impl<'a> Graph<'a> {
    /// Returns the node of a request; `None` if the bound is reached.
    fn request(&mut self, waiter: WaiterId) -> Option<usize> {
        self.scope.queues.waiter(waiter)?;
        let first_entry = self.scope.queues.first_entry(waiter);
        if let Some(&known) = self.by_first_entry.get(&first_entry) {
            return Some(known);
        }
        if is_spent(self.steps) {
            return None;
        }
        let number = self.requests.len();
        self.requests.push(Request { first_entry, conditions: 0..0, unmet: 0, owner: None });
        self.by_first_entry.insert(first_entry, number);
        Some(number)
    }

    /// Returns true if this request is ignored: it is about to be replaced, or it has timed out and the pump has not
    /// run yet.
    fn is_left_out(&self, waiter: WaiterId) -> bool {
        let Scope { queues, now, but, .. } = self.scope;
        let first = queues.first_entry(waiter);
        let until = queues.waiter(first).and_then(|first| first.request.until);
        until.is_some_and(|until| until <= now) || but.contains(&first)
    }

    /// Returns the node of an owner that waits. `None` if the owner can continue, because it waits for nothing or the
    /// bound is reached.
    fn owner(&mut self, name: &[u8]) -> Option<usize> {
        let queues = self.scope.queues;
        let mut waits = queues.all_of_owner(name).map(|(id, _)| id).peekable();
        let first = *waits.peek()?;
        if let Some(&known) = self.by_first.get(&first) {
            return Some(known).filter(|&known| !self.owners[known].can_go_on);
        }
        let (number, begin) = (self.owners.len(), self.requests_of_owners.len());
        let mut is_beyond = false;
        for wait in waits {
            self.steps += 1;
            if self.is_left_out(wait) {
                continue;
            }
            // A request beyond the bound is taken to be grantable.
            let Some(request) = self.request(wait) else {
                is_beyond = true;
                break;
            };
            // A request for several locks waits in several queues.
            if self.requests[request].owner.replace(number) != Some(number) {
                self.requests_of_owners.push(request);
            }
        }
        let requests = begin..self.requests_of_owners.len();
        let can_go_on = is_beyond || requests.is_empty();
        self.owners.push(Owner { requests, can_go_on });
        self.by_first.insert(first, number);
        (!can_go_on).then_some(number)
    }

    /// Finds the conditions of a request.
    fn expand(&mut self, number: usize) {
        let (queues, first_entry, begin) =
            (self.scope.queues, self.requests[number].first_entry, self.conditions.len());
        let multi = queues.waiter(first_entry).and_then(|waiter| queues.multi(waiter.multi?));
        if queues.entries(first_entry).any(|entry| self.is_about_to_end(entry)) {
            return;
        }
        match multi {
            // It counts once for each of its keys, because each takes the work of a request for one lock.
            Some(multi) => {
                for &entry in &multi.entries {
                    self.steps += usize::from(entry != first_entry);
                    if is_spent(self.steps) {
                        break;
                    }
                    self.examine(number, entry);
                }
            }
            None => self.examine(number, first_entry),
        }
        self.requests[number].conditions = begin..self.conditions.len();
    }

    /// Returns true if the pump is about to end this wait, because the key has another value now.
    fn is_about_to_end(&self, entry: WaiterId) -> bool {
        let Scope { queues, locks, now, .. } = self.scope;
        let queue = queues.waiter(entry).and_then(|waiter| queues.queue(waiter.queue));
        let arrived = queue.filter(|queue| queue.arrived.is_some() && queue.arrived == queue.lock);
        let lock = arrived.and_then(|queue| lock_of(queue, locks));
        lock.is_some_and(|lock| locks.holders(lock).any(|(_, hold)| !hold.is_over(now)))
    }

    /// Finds the conditions of a request in one queue.
    fn examine(&mut self, request: usize, entry: WaiterId) {
        count(1);
        let Scope { queues, locks, now, holders_max, .. } = self.scope;
        let Some(waiter) = queues.waiter(entry) else {
            return;
        };
        let Some(queue) = queues.queue(waiter.queue) else {
            return;
        };
        let lock = lock_of(queue, locks);
        let held_as = lock.and_then(|lock| locks.mode(lock));
        let begin = self.blockers.len();
        let has_multis = queue.multis > usize::from(waiter.multi.is_some());
        let is_behind_exclusive = self.ahead(entry, waiter, has_multis);
        self.close_condition(entry, request, false, begin);
        let Some((lock, held_as)) = lock.zip(held_as) else {
            return;
        };
        let is_any = match waiter.request.mode {
            Mode::Limit(limit) if locks.holders_of(lock) < limit as usize => return,
            Mode::Limit(_) => true,
            // There is room alongside the others, or will be when any of them ends.
            Mode::Shared if held_as == Mode::Shared && !is_behind_exclusive => {
                if locks.holders_of(lock) < holders_max {
                    return;
                }
                true
            }
            _ => false,
        };
        let (begin, owners) = (self.blockers.len(), queues.waiting_owners());
        if owners < locks.holders_of(lock) && !is_spent(self.steps + owners) {
            // Not all of the holders wait.
            if !is_any {
                self.look_at_waiting_holders(lock);
                self.close_condition(entry, request, false, begin);
            }
            return;
        }
        for (_, hold) in locks.holders(lock) {
            self.steps += 1;
            count(1);
            let is_beyond = is_spent(self.steps);
            let can_go = is_beyond || hold.is_over(now);
            match if can_go { None } else { self.owner(&hold.owner()) } {
                Some(owner) => self.blockers.push(Blocker::Owner(owner)),
                // Any of them is enough, and this one can be released.
                None if is_any => return self.blockers.truncate(begin),
                None if is_beyond => break,
                None => {}
            }
        }
        self.close_condition(entry, request, is_any, begin);
    }

    /// Notes the owners that hold a lock and wait for something, in the order of their tokens. For a lock with more
    /// holders than there are owners that wait.
    fn look_at_waiting_holders(&mut self, lock: LockId) {
        let Scope { queues, locks, now, .. } = self.scope;
        self.steps += queues.waiting_owners();
        count(queues.waiting_owners());
        let holding = |owner: &'a [u8]| {
            let (_, hold) = locks.hold_of(lock, owner).filter(|(_, hold)| !hold.is_over(now))?;
            Some((hold.token(), owner))
        };
        let mut waiting: Vec<_> = queues.all_waiting_owners().filter_map(holding).collect();
        waiting.sort_unstable();
        for (_, owner) in waiting {
            let owner = self.owner(owner);
            self.blockers.extend(owner.map(Blocker::Owner));
        }
    }

    /// Makes the blockers from here on those of a condition, if there are any.
    fn close_condition(&mut self, at: WaiterId, request: usize, is_any: bool, begin: usize) {
        let blockers = begin..self.blockers.len();
        if !blockers.is_empty() {
            let unmet = if is_any { 1 } else { blockers.len() };
            self.conditions.push(Condition { at, request, blockers, unmet });
            self.requests[request].unmet += 1;
        }
    }

    /// Notes the nearest request for several locks ahead, if the queue `has_multis`: that one waits for all others of
    /// its kind. This request also waits for everything that the other requests ahead wait for, so they are skipped.
    /// Returns true if a request ahead wants the whole lock.
    fn ahead(&mut self, entry: WaiterId, waiter: &Waiter, has_multis: bool) -> bool {
        let (mut notes, mut is_behind_exclusive) = (has_multis, false);
        let mut must_look = waiter.request.mode == Mode::Shared;
        let mut at = self.scope.queues.ahead(entry);
        while (notes || must_look)
            && !is_spent(self.steps)
            && let Some((id, other)) = at.and_then(|id| Some((id, self.scope.queues.waiter(id)?)))
        {
            self.steps += 1;
            count(1);
            if !self.is_left_out(id) {
                if other.request.mode == Mode::Exclusive {
                    (is_behind_exclusive, must_look) = (true, false);
                }
                if notes && other.multi.is_some() {
                    notes = false;
                    let request = self.request(id);
                    self.blockers.extend(request.map(Blocker::Request));
                }
            }
            at = self.scope.queues.ahead(id);
        }
        is_behind_exclusive
    }

    /// Marks whatever can be granted: each request and owner once, and from there whatever it blocked.
    fn settle(&mut self) {
        let held_up = self.held_up();
        let mut free: Vec<usize> =
            (0..self.requests.len()).filter(|&number| self.requests[number].unmet == 0).collect();
        while let Some(number) = free.pop() {
            count(1);
            held_up.of(number).iter().for_each(|&condition| self.meet(condition, &mut free));
            if let Some(owner) = self.requests[number].owner
                && !std::mem::replace(&mut self.owners[owner].can_go_on, true)
            {
                let node = self.requests.len() + owner;
                held_up.of(node).iter().for_each(|&condition| self.meet(condition, &mut free));
            }
        }
    }

    /// Removes one of the blockers of a condition.
    fn meet(&mut self, condition: usize, free: &mut Vec<usize>) {
        count(1);
        let condition = &mut self.conditions[condition];
        if condition.unmet == 0 {
            return;
        }
        condition.unmet -= 1;
        if condition.unmet == 0 {
            let request = &mut self.requests[condition.request];
            request.unmet -= 1;
            if request.unmet == 0 {
                free.push(condition.request);
            }
        }
    }

    /// Lists the conditions that each request and each owner blocks.
    fn held_up(&self) -> HeldUp {
        let node = |blocker: Blocker| match blocker {
            Blocker::Request(request) => request,
            Blocker::Owner(owner) => self.requests.len() + owner,
        };
        // Counted first, so that all of them fit into one row.
        let mut ends = vec![0; self.requests.len() + self.owners.len() + 1];
        for &blocker in &self.blockers {
            ends[node(blocker) + 1] += 1;
        }
        for node in 1..ends.len() {
            ends[node] += ends[node - 1];
        }
        let (mut next, mut conditions) = (ends.clone(), vec![0; self.blockers.len()]);
        for (number, condition) in self.conditions.iter().enumerate() {
            for &blocker in &self.blockers[condition.blockers.clone()] {
                count(1);
                let at = &mut next[node(blocker)];
                conditions[*at] = number;
                *at += 1;
            }
        }
        HeldUp { ends, conditions }
    }
}

/// The conditions that each node blocks, concatenated by node.
struct HeldUp {
    /// The index where the conditions of each node begin and those of the node before end.
    ends: Vec<usize>,
    conditions: Vec<usize>,
}

impl HeldUp {
    fn of(&self, node: usize) -> &[usize] {
        &self.conditions[self.ends[node]..self.ends[node + 1]]
    }
}

/// Returns the lock that a queue waits for, if its number still belongs to a hold at this key.
fn lock_of(queue: &Queue, locks: &Locks) -> Option<LockId> {
    let lock_key = queue.lock_key.as_key();
    queue.lock.filter(|&lock| {
        let newest = locks.newest_hold(lock).and_then(|(holder, _)| locks.get(holder));
        newest.is_some_and(|lock| lock.is_at(lock_key))
    })
}

/// Returns false in the common case, at little cost: the holder of the lock waits for nothing.
fn may_close_one(queues: &Queues, locks: &Locks, waiter: WaiterId) -> bool {
    const HOLDERS_LOOKED_AT: Bound = Bound::of(8, 2);
    let Some(waiter) = queues.waiter(waiter) else {
        return false;
    };
    let Some(queue) = queues.queue(waiter.queue).filter(|queue| queue.multis == 0) else {
        return true;
    };
    let Some(lock) = lock_of(queue, locks) else {
        return false;
    };
    if locks.holders_of(lock) > HOLDERS_LOOKED_AT.get() {
        return true;
    }
    locks.holders(lock).any(|(_, hold)| queues.all_of_owner(&hold.owner()).next().is_some())
}
