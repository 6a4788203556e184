//! Queues: derives the positions of requests from the messages of clients and servers, and checks that no request is
//! passed (G5).
//!
//! A request gets its number when its server queues it. A repeated request keeps the number of the first (G9). When a
//! lock gets a new grant, no request with a lower number may wait for it. That holds for a newcomer, which has no
//! number yet, and for each of the locks of a request for several (G12). The checks read no queue of the core.
//!
//! These may be passed, or pass others:
//!
//! * A request that waits no longer: it was answered, its server has found its connection closed, it was withdrawn by
//!   its owner's release, or it has timed out.
//! * A reservation (QUEUE) for a reader lets readers pass; one for a permit of the semaphore, requests that leave it a
//!   permit.
//!
//! And these are left out, because from outside they may or may not still wait:
//!
//! * The request of an owner that asks again, in that very step: it may take its own entry, or leave it for another
//!   one. The reply says which.
//! * An owner that a RESTORE (a slot that moved) has given the lock that it waits for. It waits no longer, and if it
//!   only had a reservation, it is not notified. It is granted nothing new.
//! * A request that was repeated after it had timed out: it keeps its number if the server had not looked yet.
//! * Places of locks whose slot has left: their owners are not notified either.

use super::asks::{Kind, Outcome, Request};
use super::points::Point;
use super::{Group, LOCKS, NODES, Verdict};
use crate::lock::table::Limits;
use crate::lock::types::{Mode, Token};
use crate::sim::server::look::Fate;
use crate::sim::single::input::Keys;
use crate::sim::single::server::{At, Name};

/// Over the longest wait of a life, a server's clock differs by less than this from the time that no server knows.
const CLOCKS_DIFFER_US: u64 = 5_000;

/// A waiting request.
#[derive(Clone, Copy, Debug)]
struct QueueEntry {
    /// A request with a lower number came before.
    number: u64,
    /// The newest of its owner's requests for it.
    request: Request,
    /// When it times out; `None` if without limit.
    until: Option<u64>,
    /// True if its owner repeats it in this step.
    is_asked_again: bool,
    /// True if its fate is unknown.
    is_left_out: bool,
}

impl QueueEntry {
    fn is_over(&self, time: u64) -> bool {
        self.until.is_some_and(|until| until <= time)
    }

    /// Returns true if a request for this mode may be granted alongside it.
    fn lets_in(&self, mode: Mode) -> bool {
        self.request.is_reservation() && mode == self.request.mode && mode != Mode::Exclusive
    }

    fn concerns(&self, owner: Name, keys: Keys) -> bool {
        self.request.owner == owner && keys.iter().any(|at| self.request.keys.contains(at))
    }

    /// Returns true if it is for a request like this.
    fn is_for(&self, request: &Request) -> bool {
        let Request { owner, keys, mode, .. } = self.request;
        owner == request.owner && mode == request.mode && keys.is_same_set(request.keys)
    }
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Queues {
    /// The requests that wait at each server, in no particular order.
    entries: [Vec<QueueEntry>; NODES],
    /// The last number that was issued.
    given: u64,
    /// Set if the owner that repeats a request in this step was granted its older request, in this mode.
    served: Option<Mode>,
}

impl Queues {
    /// Handles a request that reaches its server.
    fn asks(&mut self, request: &Request) {
        self.served = None;
        for entry in &mut self.entries[request.node] {
            entry.is_asked_again = entry.concerns(request.owner, request.keys);
        }
    }

    /// Queues a request: its owner's older requests are removed, and one like it passes on its number. Returns true
    /// if there was one.
    fn joins(&mut self, request: &Request, time: u64) -> bool {
        let entries = &mut self.entries[request.node];
        let older = entries.iter().find(|entry| entry.is_asked_again && entry.is_for(request)).copied();
        entries.retain(|entry| !entry.is_asked_again);
        self.given += 1;
        let wait_ms = match request.kind {
            Kind::Acquire { wait_ms, .. } => wait_ms.filter(|&ms| ms > 0),
            _ => None,
        };
        entries.push(QueueEntry {
            number: older.map_or(self.given, |older| older.number),
            request: *request,
            until: wait_ms.map(|ms| time + ms * 1_000),
            is_asked_again: false,
            is_left_out: older.is_some_and(|older| older.is_left_out || older.is_over(time)),
        });
        older.is_some()
    }

    /// Handles a grant: no request of its owner stays in the queue.
    fn make_way(&mut self, request: &Request) {
        self.entries[request.node].retain(|entry| !entry.is_asked_again);
    }

    /// Handles a request that does not wait: the earlier waits of its owner are unchanged. A holder may have lost an
    /// entry.
    fn stay(&mut self, request: &Request, holds: bool) {
        let entries = &mut self.entries[request.node];
        entries.retain(|entry| !(holds && entry.is_asked_again && entry.request.is_reservation()));
        entries.iter_mut().for_each(|entry| entry.is_asked_again = false);
    }

    /// Removes exactly this request.
    pub(super) fn leaves(&mut self, request: &Request) {
        self.entries[request.node].retain(|entry| entry.request.number != request.number);
    }

    /// Handles a release: it withdraws its owner's waits for these locks.
    pub(super) fn withdraws(&mut self, request: &Request) {
        self.entries[request.node].retain(|entry| !entry.concerns(request.owner, request.keys));
    }

    /// Forgets all waiters of this server.
    pub(super) fn forget(&mut self, n: usize) {
        self.entries[n].clear();
    }

    /// Handles a slot that is not this server's: requests with only a reservation may have lost it, and are not
    /// notified.
    fn sent_on(&mut self, n: usize, at: At) {
        let entries = self.entries[n].iter_mut();
        let of_slot =
            entries.filter(|entry| entry.request.is_reservation() && entry.request.keys.contains(at));
        of_slot.for_each(|entry| entry.is_left_out = true);
    }

    /// Notes that these owners hold the lock here, by a RESTORE.
    pub(super) fn restored(&mut self, n: usize, at: At, is_holder: impl Fn(Name) -> bool) {
        for entry in self.entries[n].iter_mut().filter(|entry| entry.request.keys.contains(at)) {
            entry.is_left_out |= is_holder(entry.request.owner);
        }
    }

    /// Returns the entries ahead of a request in the queue of one of its keys.
    fn ahead(&self, n: usize, of: &QueueEntry, at: At) -> impl Iterator<Item = &QueueEntry> {
        let number = of.number;
        self.entries[n].iter().filter(move |other| other.request.keys.contains(at) && other.number < number)
    }

    /// Returns the entries of the queue that a grant to this request has passed.
    fn passed(&self, request: &Request, time: u64) -> impl Iterator<Item = &QueueEntry> {
        let entries = &self.entries[request.node];
        let own = entries.iter().find(|entry| entry.is_for(request));
        let number = own.map_or(u64::MAX, |own| own.number);
        let is_judged = own.is_none_or(|own| !own.is_left_out);
        entries.iter().filter(move |other| {
            let waits = !other.is_asked_again && !other.is_over(time);
            let is_same_queue = request.keys.iter().any(|at| other.request.keys.contains(at));
            is_judged && waits && !other.is_left_out && is_same_queue && other.number < number
        })
    }
}

impl Group {
    /// Called before a request for a lock is judged.
    pub(super) fn note_asked(&mut self, request: &Request) {
        self.judge.queues.asks(request);
    }

    /// Judges its immediate reply.
    pub(super) fn judge_reply(&mut self, request: &Request, outcome: Outcome, newest_before: u64) -> Verdict {
        let served = self.judge.queues.served;
        // In this step its older request was granted the lock, which it now shares with others.
        let is_downgrade = served == Some(Mode::Exclusive) && request.mode == Mode::Shared;
        let is_served = served == Some(request.mode) || is_downgrade;
        match outcome {
            Outcome::Granted(token) if token.get() <= newest_before || is_served => {
                self.judge.queues.stay(request, true);
            }
            Outcome::Granted(token) => {
                self.must_be_next(request, token)?;
                self.judge.queues.make_way(request);
            }
            Outcome::Waiting => self.note_waiting(request),
            Outcome::Busy if request.is_reservation() => self.note_waiting(request),
            _ => self.judge.queues.stay(request, false),
        }
        Ok(())
    }

    fn note_waiting(&mut self, request: &Request) {
        if self.judge.queues.joins(request, self.time) {
            self.see(Point::KeptItsTurn);
        }
    }

    /// Judges the reply to a request that has waited.
    pub(super) fn judge_end(&mut self, request: &Request, fate: Fate) -> Verdict {
        match fate {
            Fate::Granted(token) => {
                self.must_be_next(request, token)?;
                let entries = &self.judge.queues.entries[request.node];
                let asks_again =
                    |entry: &&QueueEntry| entry.request.number == request.number && entry.is_asked_again;
                if let Some(own) = entries.iter().find(asks_again) {
                    self.judge.queues.served = Some(own.request.mode);
                }
                self.judge.queues.leaves(request);
            }
            // The request that replaced it is judged in this same step.
            Fate::Replaced => {}
            _ => self.judge.queues.leaves(request),
        }
        Ok(())
    }

    /// From the move of a slot until a turn of its event loop, a server redirects the waiters there.
    pub(super) fn note_sent_on(&mut self, n: usize) {
        if self.plan.has_moves {
            for at in LOCKS.into_iter().filter(|&at| !self.is_ours(n, at)).collect::<Vec<_>>() {
                self.judge.queues.sent_on(n, at);
            }
        }
    }

    /// Checks that no waiting connection could be granted its locks (G6). Called when the pump has nothing left to do
    /// on a server that may grant.
    ///
    /// It works by brute force over these waiters, and over the holders in a dump. No bound of the core is known
    /// here. A request has its turn on two conditions. Only owners with reservations that let it pass are ahead of
    /// it. There is also room alongside all holders and all those reservations. A request for several locks must have
    /// its turn at each of them.
    pub(super) fn no_request_waits_for_a_free_lock(&mut self, n: usize) -> Verdict {
        if self.nodes[n].waits.is_empty() || self.is_quarantined(n) {
            return Ok(());
        }
        let queues = &self.judge.queues;
        let is_judged = |entry: &&QueueEntry| {
            // A request that was granted, and is notified once replicas have confirmed that, no longer waits for the
            // lock.
            let mut waits = self.nodes[n].waits.iter().map(|wait| wait.request.number);
            let is_waiting = waits.any(|number| number == entry.request.number);
            is_waiting
                && !entry.is_left_out
                && !entry.is_over(self.time)
                && entry.request.keys.iter().all(|at| self.is_ours(n, at))
        };
        let judged: Vec<&QueueEntry> = queues.entries[n].iter().filter(is_judged).collect();
        for entry in &judged {
            let has_its_turn = entry.request.keys.iter().all(|at| {
                // By its own clock, the server may have reached the end of a wait a little later.
                let is_ending = |other: &QueueEntry| {
                    other.is_over(self.time) && !other.is_over(self.time.saturating_sub(CLOCKS_DIFFER_US))
                };
                let is_unknown = |other: &QueueEntry| other.is_left_out || is_ending(other);
                let is_acknowledged = !queues.ahead(n, entry, at).any(is_unknown);
                let lets_in =
                    |other: &QueueEntry| other.is_over(self.time) || other.lets_in(entry.request.mode);
                let is_next = is_acknowledged && queues.ahead(n, entry, at).all(lets_in);
                let kept = queues.ahead(n, entry, at).filter(|other| !other.is_over(self.time)).count();
                is_next && self.has_room(n, at, entry, kept)
            });
            if has_its_turn {
                return Err(format!("G6: {:?} waits at n{n} for what is free", entry.request));
            }
        }
        let is_any = !judged.is_empty();
        if is_any {
            self.see(Point::WaitedForGood);
        }
        Ok(())
    }

    /// Returns true if a lock has room for this request alongside `kept` reservations. An expired lease that the
    /// server may not end yet, because its slot was not here, still takes its place.
    fn has_room(&self, n: usize, at: At, entry: &QueueEntry, kept: usize) -> bool {
        let holders_max = Limits::default().holders_max;
        let saved = self.nodes[n].saved(at);
        let others = saved.iter().flat_map(|saved| &saved.holds).count();
        match entry.request.mode {
            Mode::Exclusive => others + kept == 0,
            mode if others > 0 && saved.is_some_and(|saved| saved.mode != mode) => false,
            Mode::Shared => others + kept < holders_max,
            Mode::Limit(limit) => others + kept < limit as usize,
        }
    }

    /// Checks that a new grant goes to the first of the waiting requests.
    fn must_be_next(&mut self, request: &Request, token: Token) -> Verdict {
        let mut kept = Vec::new();
        for other in self.judge.queues.passed(request, self.time) {
            if !other.lets_in(request.mode) {
                return Err(format!("G5: {:?} waits, and {token} was granted to {request:?}", other.request));
            }
            kept.push(other.request.owner);
        }
        if !kept.is_empty() {
            self.see(Point::PassedPlace);
        }
        let (Mode::Limit(limit), Some(at), false) = (request.mode, request.keys.first(), kept.is_empty())
        else {
            return Ok(());
        };
        // An owner with a reservation may have been granted it in the same step.
        let holders = self.nodes[request.node].saved(at).map_or(0, |saved| {
            saved
                .holds
                .iter()
                .filter(|hold| !kept.iter().any(|owner| *owner.as_bytes() == *hold.owner))
                .count()
        });
        if holders + kept.len() > limit as usize {
            return Err(format!("G5: {kept:?} keep places, and {token} was granted to {request:?}"));
        }
        Ok(())
    }
}
