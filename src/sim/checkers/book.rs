//! The state of a hold, and whether a wait can end: shared by the [judge](crate::sim::checkers::judge) and the
//! [oracle](crate::sim::oracle), in the plainest form.

use std::collections::BTreeSet;

use crate::lock::codec::SavedHold;
use crate::lock::types::{Binding, Mode, Token};
use crate::sim::single::input::{Keys, Outcome};
use crate::sim::single::server::{At, Name};

/// One owner's hold on one lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hold {
    pub(crate) owner: Name,
    pub(crate) token: Token,
    pub(crate) mode: Mode,
    /// When its lease ends, in the world's time, if the lease runs.
    pub(crate) until: u64,
    /// The full lease, while a connection pauses it.
    pub(crate) lease_ms: u64,
    pub(crate) count: u32,
    pub(crate) binding: Binding,
    /// The connection that it is bound to.
    pub(crate) client: Option<u64>,
    /// The number of replies under way that name it to its owner. `None` if one has arrived, or if it did not begin
    /// with a grant here.
    pub(crate) outstanding: Option<u32>,
}

impl Hold {
    /// Reads a hold from a payload, a file or a reader: the server that wrote that knows of the hold.
    pub(crate) fn read(owner: Name, mode: Mode, saved: &SavedHold, time: u64) -> Self {
        Self {
            owner,
            token: saved.token,
            mode,
            until: time + saved.left_ms * 1000,
            lease_ms: saved.left_ms,
            count: saved.count,
            binding: saved.binding,
            client: None,
            outstanding: None,
        }
    }

    /// Returns true if its grant was not delivered, and never will be unless the owner asks again: the next run of
    /// the pump must revoke it.
    pub(crate) fn is_ownerless(&self) -> bool {
        self.outstanding == Some(0)
    }

    /// Records the outcome of replies that named holds at this key.
    pub(crate) fn replied(&mut self, at: At, out: &Outcome) {
        let is_it = |told: &&(At, Token)| **told == (at, self.token);
        let dropped = out.undelivered.iter().filter(is_it).count() as u32;
        self.outstanding = self.outstanding.map(|count| count.saturating_sub(dropped));
        if out.delivered.iter().any(|told| is_it(&told)) {
            self.outstanding = None;
        }
    }

    /// Returns true if its lease is paused: KEEPALIVE, and its connection is open.
    pub(crate) const fn is_paused(&self) -> bool {
        self.binding.is_paused()
    }

    pub(crate) const fn is_live(&self, time: u64) -> bool {
        self.is_paused() || time < self.until
    }

    pub(crate) const fn left_ms(&self, time: u64) -> u64 {
        if self.is_paused() { self.lease_ms } else { self.until.saturating_sub(time).div_ceil(1000) }
    }

    /// Returns true if a lease of `lease_ms` milliseconds from now would end later.
    pub(crate) const fn is_shorter(&self, time: u64, lease_ms: u64) -> bool {
        if self.is_paused() { self.lease_ms < lease_ms } else { self.until < time + lease_ms * 1000 }
    }

    /// Sets its lease to end exactly `lease_ms` milliseconds from now.
    pub(crate) const fn last(&mut self, time: u64, lease_ms: u64) {
        (self.until, self.lease_ms) = (time + lease_ms * 1000, lease_ms);
    }

    /// Notes a request of the owner on this connection. The owner knows of the hold, or will when that is confirmed,
    /// and wants this binding.
    pub(crate) fn heard(&mut self, time: u64, binding: Binding, client: Option<u64>, confirms: bool) {
        self.outstanding = self.outstanding.filter(|_| confirms).map(|count| count + 1);
        let left_ms = self.left_ms(time);
        let (was_paused, was_running) = (self.is_paused(), self.binding.is_running);
        // It is paused again only for a connection.
        let is_running = binding.is_keepalive && was_running && client.is_none();
        self.binding = Binding { is_running, ..binding };
        if was_paused != self.is_paused() {
            self.last(time, left_ms);
        }
        self.client = client.or(self.client).filter(|_| !binding.is_none());
    }

    /// Closes this connection: leases bound to it run from here.
    pub(crate) fn close(&mut self, client: u64, time: u64) {
        if self.client == Some(client) {
            self.untied(time, true);
        }
    }

    /// Ends the binding, because the connection has closed or belongs to an earlier life. The lease runs from here,
    /// until the owner comes back.
    pub(crate) fn untied(&mut self, time: u64, is_cut: bool) {
        let left_ms = self.left_ms(time);
        let cut_ms = self.binding.ephemeral_ms.filter(|&cut_ms| is_cut && cut_ms < left_ms);
        if self.is_paused() || cut_ms.is_some() {
            self.until = time + cut_ms.unwrap_or(left_ms) * 1000;
        }
        self.binding.is_running = self.binding.is_keepalive;
        self.client = None;
    }
}

/// Returns true if a lock can be held in this mode alongside these holders (CONTRACT 2), with `reserved` places kept
/// free.
pub(crate) fn is_free_for(mode: Mode, others: &[Mode], reserved: usize, holders_max: usize) -> bool {
    let taken = others.len() + reserved;
    others.iter().all(|other| match (mode, *other) {
        (Mode::Shared, Mode::Shared) => true,
        (Mode::Limit(own), Mode::Limit(other)) => own == other,
        _ => false,
    }) && match mode {
        Mode::Exclusive => taken == 0,
        Mode::Shared => taken < holders_max,
        Mode::Limit(limit) => taken < limit as usize,
    }
}

/// A request in the queues of its keys.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) owner: Name,
    pub(crate) keys: Keys,
    pub(crate) mode: Mode,
}

/// All holds and waits, in the order in which they came.
#[derive(Clone, Default)]
pub(crate) struct Scene {
    pub(crate) holds: Vec<(At, Name, Mode)>,
    pub(crate) wishes: Vec<Wish>,
    /// Keys with a restored lock, and no decision since: all waits there are about to end.
    pub(crate) arrived: BTreeSet<At>,
    pub(crate) holders_max: usize,
}

impl std::fmt::Debug for Scene {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, owner, mode) in &self.holds {
            write!(f, "{owner} holds {at} {mode:?}; ")?;
        }
        for Wish { owner, keys, mode, .. } in &self.wishes {
            let keys: Vec<String> = keys.iter().map(|at| at.to_string()).collect();
            write!(f, "{owner} waits for {} {mode:?}; ", keys.join("+"))?;
        }
        Ok(())
    }
}

impl Scene {
    /// G11: returns true if a wish can come true, if every owner releases everything as soon as it can. An owner that
    /// waits for nothing, or for several things and got one of them, needs its locks no longer. It keeps waiting for
    /// everything else.
    ///
    /// The function acts that out. A release never blocks another wish, so the order does not matter.
    pub(crate) fn comes_true(&self, wish: usize) -> bool {
        let mut left = self.clone();
        // A wish that came true is marked as done, so that the others keep their numbers.
        let mut is_done = vec![false; self.wishes.len()];
        loop {
            let waits =
                |owner: Name| (0..left.wishes.len()).any(|n| !is_done[n] && left.wishes[n].owner == owner);
            let free: Vec<Name> =
                left.holds.iter().map(|hold| hold.1).filter(|&owner| !waits(owner)).collect();
            left.holds.retain(|(_, owner, _)| !free.contains(owner));
            let can_have = |&number: &usize| !is_done[number] && left.can_have(number, &is_done);
            let now: Vec<usize> = (0..left.wishes.len()).filter(can_have).collect();
            if now.is_empty() && free.is_empty() {
                return false;
            }
            for number in now {
                is_done[number] = true;
                left.holds.retain(|(_, owner, _)| *owner != left.wishes[number].owner);
            }
            if is_done[wish] {
                return true;
            }
        }
    }

    /// Returns the wishes that are ahead of this one somewhere and have not come true.
    fn ahead_of(&self, number: usize, is_done: &[bool]) -> impl Iterator<Item = usize> {
        let is_near = move |other: &usize| {
            let mut keys = self.wishes[*other].keys.iter();
            !is_done[*other] && keys.any(|at| self.wishes[number].keys.contains(at))
        };
        (0..number).filter(is_near)
    }

    fn can_have(&self, number: usize, is_done: &[bool]) -> bool {
        let Wish { keys, mode, .. } = self.wishes[number];
        let is_held = |at: At| self.holds.iter().any(|hold| hold.0 == at);
        if keys.iter().any(|at| self.arrived.contains(&at) && is_held(at)) {
            return true;
        }
        keys.iter().all(|at| {
            let is_first = !self.ahead_of(number, is_done).any(|ahead| self.wishes[ahead].keys.contains(at));
            let held = self.holds.iter().filter(|hold| hold.0 == at).map(|hold| hold.2);
            is_first && is_free_for(mode, &held.collect::<Vec<_>>(), 0, self.holders_max)
        })
    }
}

/// A request in the queue; one for several keys is in the queue of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pending {
    /// 0 for a reservation without a connection (QUEUE).
    pub(crate) wait: u32,
    pub(crate) owner: Name,
    pub(crate) client: u64,
    pub(crate) lease_ms: u64,
    pub(crate) is_minted: bool,
    /// When it times out, in the world's time; `None` if without limit.
    pub(crate) until: Option<u64>,
    pub(crate) keys: Keys,
    pub(crate) mode: Mode,
    pub(crate) binding: Binding,
    pub(crate) is_reentrant: bool,
    /// The order of arrival: of two requests for several locks, one is ahead everywhere.
    pub(crate) number: u64,
}

impl Pending {
    pub(crate) const fn wish(&self) -> Wish {
        let Self { owner, keys, mode, .. } = *self;
        Wish { owner, keys, mode }
    }

    pub(crate) const fn is_reservation(&self) -> bool {
        self.wait == 0
    }

    /// Returns true for a reservation of a place alongside the holders. A reservation of the whole lock blocks all
    /// others.
    pub(crate) fn is_reserved(&self) -> bool {
        self.is_reservation() && self.mode != Mode::Exclusive
    }
}
