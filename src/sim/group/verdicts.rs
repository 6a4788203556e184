//! The invariants after each step, about the replies to clients.
//!
//! * **One holder** (G1, and the table in docs/reference/failover-guarantees.md). An owner *believes* that it holds a
//!   lock from the reply that grants it until its lease expires, or until it gives the lock up. The lease counts from
//!   the time when a server carried out the request. No two beliefs exclude each other.
//! * **Tokens rise** (G4): a new token that an owner receives is higher than any that a client had received of the
//!   same lock before it was minted. Over lost grants that is promised only under a bound. The wall clocks and the
//!   lead of the tokens differ by less than the quarantine, less the 10 ms by which tokens may lag. So it is judged
//!   only in plans that leave the clocks alone. With confirmed grants, no owner is told either that it holds a lock
//!   alone under an older token than another owner has received.
//! * **Ownership is true** (G2, G9, G10) at the server that granted it, and as long as that life of the server
//!   continues. An owner that believes that it holds a lock can renew it, release it, and receives the same token
//!   again.
//! * **One answer** to each request (G7), unless its connection or its server is lost.

use super::asks::{Kind, Request};
use super::queues::Queues;
use super::{LOCKS, Verdict, lock_at};
use crate::lock::types::{Binding, Mode, Token};
use crate::sim::single::input::Keys;
use crate::sim::single::server::{At, Name};

/// The belief of an owner.
#[derive(Clone, Copy, Debug)]
struct Belief {
    owner: Name,
    token: Token,
    mode: Mode,
    until: u64,
    /// The server, and its life, that sent the grant.
    term: u32,
    /// The binding to its connection.
    binding: Binding,
    connection: u64,
    lease_us: u64,
    /// True if an older request of its owner was granted the lock since, under a new token, which may not have been
    /// delivered.
    is_outdated: bool,
}

/// While its connection is open.
const FOREVER: u64 = u64::MAX;

impl Belief {
    /// From here on only its lease, which starts now, keeps it alive.
    const fn run_from(&mut self, time: u64) {
        if self.until == FOREVER {
            self.until = time + self.lease_us;
        }
    }

    /// Lowers the belief of an owner that requests this lease at this time, which may be shorter than before. Until
    /// the reply arrives it counts on the shorter one.
    fn lower_to(&mut self, time: u64, lease_us: u64) {
        self.lease_us = self.lease_us.min(lease_us);
        if self.until != FOREVER {
            self.until = self.until.min(time + lease_us);
        }
    }

    /// Returns true if both can be held at the same time.
    const fn allows(&self, other: Mode) -> bool {
        matches!((self.mode, other), (Mode::Shared, Mode::Shared) | (Mode::Limit(_), Mode::Limit(_)))
    }
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Judge {
    /// Requests that were not answered yet.
    open: Vec<u32>,
    beliefs: [Vec<Belief>; LOCKS.len()],
    /// For each lock, the newest token that an owner received, the server that sent it, and the owner.
    told: [(u64, u32, Option<Name>); LOCKS.len()],
    /// Tokens are compared only within the life of one server.
    compares_within_terms: bool,
    /// True if grants are delivered once replicas have acknowledged them.
    is_confirmed: bool,
    /// The number of decisions.
    decisions: u32,
    /// All holds of each lock up to this decision are broken, by a user that has notified the owners.
    broken: [u32; LOCKS.len()],
    /// All holds of each lock up to this decision were decided at another shard: no connection keeps them alive.
    moved: [u32; LOCKS.len()],
    /// The requests that wait.
    pub(super) queues: Queues,
}

impl Judge {
    pub(super) fn new(compares_within_terms: bool, is_confirmed: bool) -> Self {
        Self { compares_within_terms, is_confirmed, ..Self::default() }
    }

    pub(super) fn asked(&mut self, request: &Request, time: u64) {
        self.open.push(request.number);
        if matches!(request.kind, Kind::Renew { .. }) {
            self.beliefs_of(request).for_each(|belief| belief.lower_to(time, request.lease_ms * 1_000));
        }
    }

    /// Handles the server's answer to a request.
    pub(super) fn answered(&mut self, request: &Request) -> Verdict {
        match self.open.iter().position(|number| *number == request.number) {
            Some(at) => {
                self.open.swap_remove(at);
                Ok(())
            }
            None => Err(format!("G7: {request:?} was answered twice")),
        }
    }

    /// Handles a request that can no longer be answered: its connection or its server is lost.
    pub(super) fn closed(&mut self, request: &Request) {
        self.queues.leaves(request);
        self.open.retain(|number| *number != request.number);
    }

    /// Returns the number of unanswered requests.
    pub(super) const fn unanswered(&self) -> usize {
        self.open.len()
    }

    /// Returns the newest token that any client received of these locks, if a new one must be higher.
    pub(super) fn newest_told(&self, keys: Keys, term: u32) -> u64 {
        let told = keys.iter().map(|at| self.told[lock_at(at)]);
        told.filter(|told| !self.compares_within_terms || told.1 == term)
            .map(|told| told.0)
            .max()
            .unwrap_or(0)
    }

    fn belief(&self, at: At, owner: Name, time: u64) -> Option<&Belief> {
        self.beliefs[lock_at(at)].iter().find(|belief| belief.owner == owner && belief.until > time)
    }

    /// Returns the beliefs of the requesting owner about the requested locks.
    fn beliefs_of(&mut self, request: &Request) -> impl Iterator<Item = &mut Belief> {
        let (keys, owner) = (request.keys, request.owner);
        let beliefs = self.beliefs.iter_mut().zip(LOCKS).filter(move |(_, at)| keys.contains(*at));
        beliefs.flat_map(|(beliefs, _)| beliefs).filter(move |belief| belief.owner == owner)
    }

    /// Returns the token of the requesting owner's belief at this same server, if it requests exactly those locks.
    pub(super) fn sure_token(&self, request: &Request, time: u64) -> Option<Token> {
        let mut sure = None;
        for at in request.keys.iter() {
            let belief = self.belief(at, request.owner, time)?;
            // An owner that lost the answer to RAISE names an outdated token.
            let is_named = request.token.is_none_or(|token| token == belief.token);
            let is_named = is_named && !belief.is_outdated;
            let is_same = belief.term == request.term && belief.mode == request.mode && is_named;
            if !is_same || sure.is_some_and(|sure| sure != belief.token) {
                return None;
            }
            sure = Some(belief.token);
        }
        sure
    }

    /// Checks that an owner that rightly believes that it holds these locks has them.
    pub(super) fn must_be(&self, request: &Request, sure: Option<Token>, got: Option<Token>) -> Verdict {
        if sure.is_none() || sure == got {
            return Ok(());
        }
        Err(format!("G2, G9, G10: it believes in {sure:?} and is told {got:?}: {request:?}"))
    }

    /// Returns the number of a decision.
    pub(super) const fn decide(&mut self) -> u32 {
        self.decisions += 1;
        self.decisions
    }

    /// Notes that holds of this lock are broken, and that each owner that counted on one is notified.
    pub(super) fn broken(&mut self, at: At) {
        self.broken[lock_at(at)] = self.decisions;
        self.beliefs[lock_at(at)].clear();
    }

    /// Notes that a lock moves from one server, in this life of it, to another one: its holds continue there.
    pub(super) fn moved(&mut self, at: At, [from, to]: [u32; 2], time: u64) {
        self.moved[lock_at(at)] = self.decisions;
        for belief in &mut self.beliefs[lock_at(at)] {
            belief.run_from(time);
            if belief.term == from {
                belief.term = to;
            }
        }
    }

    /// Notes that a waiting request is granted these locks. Its owner's earlier holds continue under the new token.
    pub(super) fn outdate(&mut self, request: &Request) {
        self.beliefs_of(request).for_each(|belief| belief.is_outdated = true);
    }

    /// Notes that a server has raised the token of a hold; its owner may never receive it.
    pub(super) fn raised(&mut self, request: &Request, token: Token) {
        let term = request.term;
        let told_here = self.beliefs_of(request).filter(|belief| belief.term == term);
        told_here.for_each(|belief| belief.token = token);
    }

    /// Notes that a client closed its connection.
    pub(super) fn disconnected(&mut self, connection: u64, time: u64) {
        for belief in self.beliefs.iter_mut().flatten().filter(|belief| belief.connection == connection) {
            belief.run_from(time);
            if let Some(ms) = belief.binding.ephemeral_ms {
                belief.until = belief.until.min(time + ms * 1_000);
            }
        }
    }

    /// Returns the time until which a decision lets an owner believe in its hold.
    fn until(&self, at: At, request: &Request) -> u64 {
        let is_paused = request.binding.is_keepalive && request.decision > self.moved[lock_at(at)];
        if is_paused { FOREVER } else { request.done + request.lease_ms * 1_000 }
    }

    /// Notes that a client receives the grant of its request. Returns the end of its belief.
    pub(super) fn believe(&mut self, request: &Request, token: Token, time: u64) -> Result<u64, String> {
        if let Some(floor) = request.floor.filter(|floor| token.get() <= *floor) {
            return Err(format!("G4: {floor} was told before {token} was minted: {request:?}"));
        }
        let mut shortest = FOREVER;
        for at in request.keys.iter() {
            let (lock, until) = (lock_at(at), self.until(at, request));
            if token.get() > self.told[lock].0 || self.compares_within_terms {
                self.told[lock] = (token.get(), request.term, Some(request.owner));
            }
            let beliefs = &mut self.beliefs[lock];
            beliefs.retain(|belief| belief.until > time);
            let before = beliefs.iter().position(|belief| belief.owner == request.owner);
            let before = before.map(|before| beliefs.swap_remove(before));
            let until = until.max(before.map_or(0, |before| before.until));
            if until <= time || request.decision <= self.broken[lock] {
                shortest = 0;
                continue;
            }
            shortest = shortest.min(until);
            let (newest, _, whose) = self.told[lock];
            let is_passed = token.get() < newest && whose != Some(request.owner);
            let is_judged = self.is_confirmed && !self.compares_within_terms;
            if is_passed && is_judged && request.mode == Mode::Exclusive {
                return Err(format!("G4: {newest} was told to {whose:?} before {token} to {request:?}"));
            }
            let other = beliefs.iter().find(|belief| !belief.allows(request.mode));
            let is_full = matches!(request.mode, Mode::Limit(limit) if beliefs.len() >= limit as usize);
            if other.is_some() || is_full {
                return Err(format!("G1: beside {beliefs:?} at {at} {token} was told to {request:?}"));
            }
            let Request { owner, mode, term, binding, connection, .. } = *request;
            let lease_us = request.lease_ms * 1_000;
            let is_outdated = false;
            beliefs.push(Belief {
                owner,
                token,
                mode,
                until,
                term,
                binding,
                connection,
                lease_us,
                is_outdated,
            });
        }
        Ok(shortest)
    }

    /// Notes that a client receives a longer lease.
    pub(super) fn renewed(&mut self, request: &Request, time: u64) -> Result<u64, String> {
        let owner = request.owner;
        let renewed = request.keys.first().and_then(|at| self.belief(at, owner, time).copied());
        match renewed {
            // Its renewal came too late, or it has given the lock up since.
            None => Ok(0),
            Some(belief) => {
                let renewed = Request { floor: None, mode: belief.mode, ..*request };
                self.believe(&renewed, request.renewed.unwrap_or(belief.token), time)
            }
        }
    }

    /// An owner gives up its believed holds.
    pub(super) fn give_up(&mut self, keys: Keys, owner: Name) {
        for at in keys.iter() {
            self.beliefs[lock_at(at)].retain(|belief| belief.owner != owner);
        }
    }
}
