//! Deadlocks: waits that only each other could end (G11).
//!
//! A request waits for owners to give up what they hold, and for requests ahead of it that wait for other locks
//! too. An owner who waits for nothing may give up anything at any time. So whatever can come true is found by
//! going through the requests until nothing new comes true; what is left can only be ended from outside, by a
//! timeout or a lease, and a request that would be left is refused. (The AND-OR model of Knapp, "Deadlock Detection
//! in Distributed Databases", 1987: a request for several locks needs all of them, one for a semaphore any of its
//! places, an owner with several requests any of them.)
//!
//! Asked at every request that is about to wait, so that no cycle is ever there before. The work is bounded by
//! [`STEPS_MAX`]; what lies beyond counts as able to come true, so a cycle that is longer is not found, and none is
//! reported that is not there.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::effect::WaiterId;
use super::locks::{LockId, Locks};
use super::queue::{Queue, Queues, Waiter};
use super::types::{Mode, Moment, PlaceBuf};

/// How many holders and requests are looked at for one request that is about to wait.
pub const STEPS_MAX: usize = 4096;

/// One wait of a cycle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// Who waits.
    pub owner: Box<[u8]>,
    /// For which lock.
    pub place: PlaceBuf,
    /// Who has to give it up, or to get it first. The next link's owner.
    pub awaited: Box<[u8]>,
}

/// Something that has to come true first.
#[derive(Clone, Copy)]
enum Blocker {
    /// This owner gives up what it holds.
    Owner(usize),
    /// This request is granted.
    Request(usize),
}

/// What a request waits for in vain.
#[derive(Clone, Copy)]
struct Edge {
    at: WaiterId,
    blocker: Blocker,
}

/// What has to come true at one lock: all of it, or for a semaphore any of it.
struct Condition {
    at: WaiterId,
    is_any: bool,
    blockers: Vec<Blocker>,
}

struct Request {
    /// The one that stands for all.
    lead: WaiterId,
    conditions: Vec<Condition>,
    can_come_true: bool,
}

struct Owner<'a> {
    name: std::borrow::Cow<'a, [u8]>,
    requests: Vec<usize>,
    can_go_on: bool,
}

struct Graph<'a> {
    queues: &'a Queues,
    locks: &'a Locks,
    now: Moment,
    holders_max: usize,
    steps: usize,
    requests: Vec<Request>,
    by_lead: HashMap<WaiterId, usize>,
    owners: Vec<Owner<'a>>,
    by_name: HashMap<std::borrow::Cow<'a, [u8]>, usize>,
}

/// The cycle that this request, which stands in line, closes; `None` if it closes none. A shared lock has room for
/// `holders_max`.
#[must_use]
pub fn find(
    queues: &Queues,
    locks: &Locks,
    now: Moment,
    holders_max: usize,
    waiter: WaiterId,
) -> Option<Vec<Link>> {
    if !may_close_one(queues, locks, waiter) {
        return None;
    }
    let mut graph = Graph {
        queues,
        locks,
        now,
        holders_max,
        steps: 0,
        requests: Vec::new(),
        by_lead: HashMap::new(),
        owners: Vec::new(),
        by_name: HashMap::new(),
    };
    let start = graph.request(waiter)?;
    let mut next = start;
    while next < graph.requests.len() {
        graph.expand(next);
        next += 1;
    }
    graph.settle();
    (!graph.requests[start].can_come_true).then(|| graph.cycle(start))
}

/// The lock that a line waits for, if its number still stands for a hold at this place.
fn lock_of(queue: &Queue, locks: &Locks) -> Option<LockId> {
    let place = queue.place.as_place();
    queue.lock.filter(|&lock| {
        let newest = locks.newest_hold(lock).and_then(|(member, _)| locks.get(member));
        newest.is_some_and(|lock| lock.is_at(place))
    })
}

/// The usual case, at little cost: who holds the lock waits for nothing.
fn may_close_one(queues: &Queues, locks: &Locks, waiter: WaiterId) -> bool {
    const HOLDERS_LOOKED_AT: usize = 8;
    let Some(waiter) = queues.waiter(waiter) else {
        return false;
    };
    let Some(queue) = queues.queue(waiter.queue).filter(|queue| queue.parties == 0) else {
        return true;
    };
    let Some(lock) = lock_of(queue, locks) else {
        return false;
    };
    if locks.holders_of(lock) > HOLDERS_LOOKED_AT {
        return true;
    }
    locks.holders(lock).any(|(_, hold)| queues.all_of_owner(&hold.owner()).next().is_some())
}

impl<'a> Graph<'a> {
    /// The node of a request. `None`: the bound is reached.
    fn request(&mut self, waiter: WaiterId) -> Option<usize> {
        let stand = self.queues.waiter(waiter)?;
        let lead = match stand.party.and_then(|party| self.queues.party(party)) {
            Some(party) => *party.stands.first()?,
            None => waiter,
        };
        if let Some(&known) = self.by_lead.get(&lead) {
            return Some(known);
        }
        if self.steps >= STEPS_MAX {
            return None;
        }
        self.requests.push(Request { lead, conditions: Vec::new(), can_come_true: false });
        self.by_lead.insert(lead, self.requests.len() - 1);
        Some(self.requests.len() - 1)
    }

    /// The node of an owner who waits. `None`: it waits for nothing, or the bound is reached.
    fn owner(&mut self, name: std::borrow::Cow<'a, [u8]>) -> Option<usize> {
        if let Some(&known) = self.by_name.get(&name) {
            return Some(known);
        }
        let waits: Vec<WaiterId> =
            self.queues.all_of_owner(&name).map(|(id, _)| id).take(STEPS_MAX).collect();
        self.steps += waits.len();
        let mut requests = Vec::new();
        for wait in waits {
            // What lies beyond the bound may come true.
            let request = self.request(wait)?;
            if !requests.contains(&request) {
                requests.push(request);
            }
        }
        if requests.is_empty() {
            return None;
        }
        self.owners.push(Owner { name: name.clone(), requests, can_go_on: false });
        self.by_name.insert(name, self.owners.len() - 1);
        Some(self.owners.len() - 1)
    }

    /// Finds out what a request waits for.
    fn expand(&mut self, number: usize) {
        let lead = self.requests[number].lead;
        let Some(waiter) = self.queues.waiter(lead) else {
            self.requests[number].can_come_true = true;
            return;
        };
        let stands = match waiter.party.and_then(|party| self.queues.party(party)) {
            Some(party) => party.stands.clone(),
            None => vec![lead],
        };
        for stand in stands {
            let conditions = self.conditions(stand);
            self.requests[number].conditions.extend(conditions);
        }
    }

    fn conditions(&mut self, stand: WaiterId) -> Vec<Condition> {
        let queues = self.queues;
        let (Some(waiter), mut found) = (queues.waiter(stand), Vec::new()) else {
            return Vec::new();
        };
        let Some(queue) = queues.queue(waiter.queue) else {
            return found;
        };
        let lock = lock_of(queue, self.locks);
        // What those ahead wait for, it waits for too, so most of them need no look. Unless that is its own hold.
        let holds = lock.and_then(|lock| self.locks.hold_of(lock, &waiter.request.owner)).is_some();
        let is_single = waiter.party.is_none() && !waiter.request.is_upgrade;
        if holds && is_single && lock.and_then(|lock| self.locks.mode(lock)) == Some(waiter.request.mode) {
            // A RESTORE made it hold what it waits for: it is about to be told.
            return found;
        }
        let looked_for = if holds { usize::MAX } else { queue.parties };
        let (ahead, is_behind_exclusive) = self.ahead(stand, waiter, looked_for);
        if !ahead.is_empty() {
            let blockers = ahead.into_iter().map(Blocker::Request).collect();
            found.push(Condition { at: stand, is_any: false, blockers });
        }
        let held_as = lock.and_then(|lock| self.locks.mode(lock));
        let Some((lock, held_as)) = lock.zip(held_as) else {
            return found;
        };
        let is_any = match waiter.request.mode {
            // Of another kind it is after a RESTORE only: then all of them are in the way.
            Mode::Limit(_) if held_as != waiter.request.mode => false,
            Mode::Limit(limit) if self.locks.holders_of(lock) < limit as usize => return found,
            Mode::Limit(_) => true,
            // There is room beside the others, or will be when any of them goes.
            Mode::Shared if held_as == Mode::Shared && !is_behind_exclusive => {
                if self.locks.holders_of(lock) < self.holders_max {
                    return found;
                }
                true
            }
            _ => false,
        };
        let mut blockers = Vec::new();
        for (_, hold) in self.locks.holders(lock) {
            self.steps += 1;
            let can_go = self.steps >= STEPS_MAX || hold.is_over(self.now);
            let blocker =
                if can_go || hold.is_of(&waiter.request.owner) { None } else { self.owner(hold.owner()) };
            match blocker {
                Some(owner) => blockers.push(Blocker::Owner(owner)),
                // Any of them is enough, and this one is free to go.
                None if is_any => return found,
                None => {}
            }
        }
        found.push(Condition { at: stand, is_any, blockers });
        found
    }

    /// The requests that stand ahead, all or as many as there are for several locks, and whether one that stands there
    /// wants the whole lock.
    fn ahead(&mut self, stand: WaiterId, waiter: &Waiter, looked_for: usize) -> (Vec<usize>, bool) {
        let (is_all, own) = (looked_for == usize::MAX, usize::from(waiter.party.is_some()));
        let (mut left, mut found, mut is_behind_exclusive) =
            (looked_for.saturating_sub(own), Vec::new(), false);
        let mut must_look = waiter.request.mode == Mode::Shared;
        let mut at = self.queues.ahead(stand);
        while (left > 0 || must_look)
            && self.steps < STEPS_MAX
            && let Some((id, other)) = at.and_then(|id| Some((id, self.queues.waiter(id)?)))
        {
            self.steps += 1;
            if other.request.mode == Mode::Exclusive {
                (is_behind_exclusive, must_look) = (true, false);
            }
            if other.party.is_some() || is_all {
                left -= 1;
                found.extend(self.request(id));
            }
            at = self.queues.ahead(id);
        }
        (found, is_behind_exclusive)
    }

    /// Lets come true whatever can.
    fn settle(&mut self) {
        loop {
            let mut is_settled = true;
            for number in 0..self.requests.len() {
                if !self.requests[number].can_come_true
                    && self.requests[number].conditions.iter().all(|condition| self.is_met(condition))
                {
                    self.requests[number].can_come_true = true;
                    is_settled = false;
                }
            }
            for number in 0..self.owners.len() {
                let requests = &self.owners[number].requests;
                if !self.owners[number].can_go_on && requests.iter().any(|&r| self.requests[r].can_come_true)
                {
                    self.owners[number].can_go_on = true;
                    is_settled = false;
                }
            }
            if is_settled {
                return;
            }
        }
    }

    fn is_met(&self, condition: &Condition) -> bool {
        let mut blockers = condition.blockers.iter();
        let is_gone = |blocker: &Blocker| match *blocker {
            Blocker::Owner(owner) => self.owners[owner].can_go_on,
            Blocker::Request(request) => self.requests[request].can_come_true,
        };
        if condition.is_any { blockers.any(is_gone) } else { blockers.all(is_gone) }
    }

    /// The shortest way from a wait that cannot end to itself; if there is none, to a cycle that it waits for: one that
    /// a grant has closed, to an owner who waited on several connections.
    fn cycle(&self, start: usize) -> Vec<Link> {
        let mut came_by: HashMap<usize, (usize, Edge)> = HashMap::new();
        let mut reached = vec![start];
        while !reached.is_empty() && !came_by.contains_key(&start) {
            let mut next = Vec::new();
            for from in reached {
                self.edges(from, |edge, to| {
                    if let Entry::Vacant(vacant) = came_by.entry(to) {
                        vacant.insert((from, edge));
                        next.push(to);
                    }
                });
            }
            reached = next;
        }
        if !came_by.contains_key(&start) {
            return self.any_cycle(start);
        }
        let (mut cycle, mut at) = (Vec::new(), start);
        while let Some((from, edge)) = came_by.remove(&at) {
            cycle.extend(self.link(edge));
            at = from;
        }
        cycle.reverse();
        cycle
    }

    /// From one wait that cannot end to the next, until one comes again.
    fn any_cycle(&self, start: usize) -> Vec<Link> {
        let (mut path, mut request): (Vec<(usize, Edge)>, usize) = (Vec::new(), start);
        while !path.iter().any(|step| step.0 == request) {
            let mut first = None;
            self.edges(request, |edge, to| first = first.or(Some((edge, to))));
            let Some((edge, next)) = first else {
                break;
            };
            path.push((request, edge));
            request = next;
        }
        let first = path.iter().position(|step| step.0 == request).unwrap_or(0);
        path.drain(first..).filter_map(|step| self.link(step.1)).collect()
    }

    /// All requests that one waits for in vain, or whose owner it waits for.
    fn edges(&self, request: usize, mut found: impl FnMut(Edge, usize)) {
        for condition in self.requests[request].conditions.iter().filter(|condition| !self.is_met(condition))
        {
            for &blocker in &condition.blockers {
                let edge = Edge { at: condition.at, blocker };
                match blocker {
                    Blocker::Owner(owner) if !self.owners[owner].can_go_on => {
                        self.owners[owner].requests.iter().for_each(|&request| found(edge, request));
                    }
                    Blocker::Request(other) if !self.requests[other].can_come_true => found(edge, other),
                    Blocker::Owner(_) | Blocker::Request(_) => {}
                }
            }
        }
    }

    fn link(&self, edge: Edge) -> Option<Link> {
        let waiter = self.queues.waiter(edge.at)?;
        let awaited = match edge.blocker {
            Blocker::Owner(owner) => (*self.owners[owner].name).into(),
            Blocker::Request(other) => self.queues.waiter(self.requests[other].lead)?.request.owner.clone(),
        };
        let place = self.queues.queue(waiter.queue)?.place.clone();
        Some(Link { owner: waiter.request.owner.clone(), place, awaited })
    }
}
