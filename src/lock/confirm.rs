//! Delays the reply to a grant or a renewal until enough replicas have acknowledged it (CONTRACT 6).
//!
//! Two rules, each with the theorem that it rests on (`docs/internals/spec`):
//!
//! * *all* (T3): every one of the group's other nodes has acknowledged it.
//! * *majority* (T4): half of the group's nodes, rounded down, have acknowledged it. A node counts only if its present
//!   connection was at least a quarantine old when the request was carried out. This server must have been primary for
//!   as long, too. So at most one of two primaries can answer, however wrongly it was promoted.
//!
//! Requests of one turn of the event loop are one batch: they wait for one offset of the replication stream.
//!
//! `table/revoke.rs` decides the fate of a hold whose reply is not confirmed.

use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map};

use super::types::Moment;

/// The acknowledgements that a confirmation requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// All replicas that are connected have to acknowledge, and at least `replicas` of them.
    All {
        /// The number of replicas of the group.
        replicas: usize,
    },
    /// At least `replicas` replicas have to acknowledge. One counts if it has been connected for `stable_ms`, and none
    /// counts before this server has been primary for as long.
    Majority {
        /// Half of the group's nodes, rounded down.
        replicas: usize,
        /// The quarantine, in milliseconds.
        stable_ms: u64,
    },
}

/// A replica by its address, as the server names it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ReplicaName(pub Box<str>);

/// A replica as the server sees it now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Its name.
    pub name: ReplicaName,
    /// The offset of the replication stream that it has acknowledged.
    pub acknowledged: u64,
}

/// The number of a wait for acknowledgements. They are given in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct WaitId(u64);

/// The outcome of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Enough replicas have acknowledged the change.
    Confirmed,
    /// Too few replicas acknowledged it in time.
    Failed,
}

#[derive(Debug)]
struct Replica {
    /// The time since which it has been connected without a break.
    since: Moment,
    acknowledged: u64,
    /// The first wait for which its acknowledgements were not counted yet. Waits are in the order of their offsets,
    /// so it only advances.
    next: WaitId,
}

#[derive(Debug)]
struct Wait {
    /// The offset that replicas must acknowledge; `None` until the turn of the event loop ends.
    offset: Option<u64>,
    until: Moment,
    needed: usize,
    /// The replicas that count and have not acknowledged it.
    awaited: Vec<ReplicaName>,
    acknowledged: usize,
}

/// All waits for acknowledgements, and the replicas as they were seen last.
#[derive(Debug, Default)]
pub struct Confirmations {
    replicas: BTreeMap<ReplicaName, Replica>,
    waits: BTreeMap<WaitId, Wait>,
    deadlines: BTreeSet<(Moment, WaitId)>,
    /// The last number issued.
    last: u64,
    /// True if a replica has disconnected, so that a client may wait for it in vain.
    has_lost: bool,
    /// Waits that have enough acknowledgements and were not removed yet.
    enough: BTreeSet<WaitId>,
    /// Waits that can never have enough, as far as is known, and were not removed yet.
    hopeless: BTreeSet<WaitId>,
    /// True if waits have ended and were not removed, because there were too many.
    has_late: bool,
    /// The waits that were pending when this server stopped deciding.
    gone: VecDeque<btree_map::IntoIter<WaitId, Wait>>,
    /// Waits up to this number ended because this server stopped deciding.
    gone_up_to: WaitId,
    /// The time since which this server has been primary, in this process.
    primary_since: Option<Moment>,
}

impl Confirmations {
    /// Starts to count time for a majority: this server has just started as a primary, or was promoted.
    pub fn begin(&mut self, now: Moment) {
        self.primary_since = Some(now);
        self.forget_replicas();
    }

    /// Forgets the replicas. It is unknown which of them stayed connected, so each counts as new.
    pub fn forget_replicas(&mut self) {
        self.replicas.clear();
        self.waits.values_mut().for_each(|wait| wait.awaited.clear());
        self.has_lost = true;
    }

    /// Ends all waits without replicas. Their owners are notified in this turn or, if there are many, in the next
    /// ones.
    pub fn waive_acks(&mut self) {
        self.waits.values_mut().for_each(|wait| wait.needed = 0);
        self.has_lost = true;
    }

    /// Returns true if the replicas that are connected could confirm a change made now.
    #[must_use]
    pub fn can_confirm(&self, now: Moment, rule: Rule) -> bool {
        let (needed, counted) = self.counted(now, rule);
        counted.count() >= needed
    }

    /// Returns how many more replicas must be connected, and for long enough, to confirm a change made now.
    #[must_use]
    pub fn replicas_missing(&self, now: Moment, rule: Rule) -> usize {
        let (Rule::All { replicas: needed } | Rule::Majority { replicas: needed, .. }) = rule;
        let (_, counted) = self.counted(now, rule);
        needed.saturating_sub(counted.count())
    }

    /// Returns the time from which the replicas that are connected now count for a majority, if they stay. `None` if
    /// they are too few, or the rule requires no time.
    #[must_use]
    pub fn confirms_from(&self, rule: Rule) -> Option<Moment> {
        let Rule::Majority { replicas: needed, stable_ms } = rule else {
            return None;
        };
        let mut since: Vec<Moment> = self.replicas.values().map(|replica| replica.since).collect();
        since.sort_unstable();
        // This server must have been primary for as long.
        since.insert(0, self.primary_since?);
        since.get(..=needed)?.iter().max().map(|last| last.plus_ms(stable_ms))
    }

    /// Returns the number of acknowledgements required, and the replicas that count.
    fn counted(&self, now: Moment, rule: Rule) -> (usize, impl Iterator<Item = &ReplicaName>) {
        let (needed, since_max) = match rule {
            Rule::All { replicas } => (replicas.max(self.replicas.len()), None),
            Rule::Majority { replicas, stable_ms } => {
                let is_stable = self.primary_since.is_some_and(|since| since.plus_ms(stable_ms) <= now);
                (if is_stable { replicas } else { usize::MAX }, Some(stable_ms))
            }
        };
        let counts = move |since: Moment| since_max.is_none_or(|ms| since.plus_ms(ms) <= now);
        let counted = self.replicas.iter().filter(move |(_, replica)| counts(replica.since));
        (needed, counted.map(|(name, _)| name))
    }

    /// Registers a wait for a change whose owner is notified when enough replicas acknowledge it by `until`.
    ///
    /// `None` if there can never be enough acknowledgements.
    pub fn wait(&mut self, now: Moment, until: Moment, rule: Rule) -> Option<WaitId> {
        let (needed, counted) = self.counted(now, rule);
        let awaited: Vec<ReplicaName> = counted.cloned().collect();
        if awaited.len() < needed {
            return None;
        }
        self.last += 1;
        let id = WaitId(self.last);
        self.deadlines.insert((until, id));
        self.waits.insert(id, Wait { offset: None, until, needed, awaited, acknowledged: 0 });
        Some(id)
    }

    /// Returns true if the offset of some waits is unknown: the event loop must read it and request
    /// acknowledgements.
    #[must_use]
    pub fn has_new(&self) -> bool {
        self.waits.values().next_back().is_some_and(|wait| wait.offset.is_none())
    }

    /// Notes the offset of the stream up to which everything carried out so far is written.
    pub fn sent(&mut self, offset: u64) {
        for (&id, wait) in self.waits.iter_mut().rev().take_while(|(_, wait)| wait.offset.is_none()) {
            wait.offset = Some(offset);
            if wait.needed == 0 {
                self.enough.insert(id);
            }
        }
    }

    /// Notes the replicas that are connected now. A replica that is not listed has disconnected, so it will
    /// acknowledge nothing more. When it reconnects, it may have been promoted and demoted in between. A replica that
    /// is listed twice has reconnected before its old connection was found to be dead: it counts as new.
    pub fn see(&mut self, now: Moment, seen: &[Seen]) {
        let count = |name: &ReplicaName| seen.iter().filter(|seen| seen.name == *name).count();
        let before = self.replicas.len();
        self.replicas.retain(|name, _| count(name) == 1);
        if self.replicas.len() < before {
            self.has_lost = true;
            for wait in self.waits.values_mut() {
                wait.awaited.retain(|name| self.replicas.contains_key(name));
            }
        }
        for Seen { name, acknowledged } in seen {
            // No pending wait depends on it.
            let new = Replica { since: now, acknowledged: 0, next: WaitId(self.last + 1) };
            let replica = self.replicas.entry(name.clone()).or_insert(new);
            if count(name) == 1 {
                replica.acknowledged = *acknowledged;
            }
        }
    }

    /// Removes and returns the waits that have ended by now, in the order in which they began.
    #[cfg(test)]
    pub fn poll(&mut self, now: Moment) -> Vec<(WaitId, Verdict)> {
        self.take_some_over(now, usize::MAX, usize::MAX)
    }

    /// Removes waits that have ended by now, oldest first, and returns their outcomes: at most `confirmed_max`
    /// confirmed, and at most `failed_max` failed. The others stay.
    pub fn take_some_over(
        &mut self,
        now: Moment,
        confirmed_max: usize,
        failed_max: usize,
    ) -> Vec<(WaitId, Verdict)> {
        self.count();
        if std::mem::take(&mut self.has_lost) {
            self.find_hopeless();
        }
        let mut over: Vec<_> = Vec::new();
        while over.len() < failed_max
            && let Some(id) = self.next_failed(now)
        {
            self.leave(id);
            over.push((id, Verdict::Failed));
        }
        let is_late = |(until, _): &(Moment, WaitId)| *until <= now;
        self.has_late = self.deadlines.first().is_some_and(is_late) || !self.hopeless.is_empty();
        let is_in_time = |id: &WaitId| self.waits.get(id).is_some_and(|wait| wait.until > now);
        // An owner that is notified of a hold must have it, so a wait past its deadline is never confirmed.
        let confirmed: Vec<WaitId> =
            self.enough.iter().copied().filter(is_in_time).take(confirmed_max).collect();
        for id in confirmed {
            self.leave(id);
            over.push((id, Verdict::Confirmed));
        }
        over.sort_unstable_by_key(|&(id, _)| id);
        over
    }

    /// Returns a wait that ended without enough acknowledgements.
    fn next_failed(&mut self, now: Moment) -> Option<WaitId> {
        if let Some(&(_, id)) = self.deadlines.first().filter(|(until, _)| *until <= now) {
            return Some(id);
        }
        // Fewer may be required by now.
        let is_hopeless = |wait: &Wait| wait.acknowledged + wait.awaited.len() < wait.needed;
        while let Some(id) = self.hopeless.pop_first() {
            if self.waits.get(&id).is_some_and(is_hopeless) {
                return Some(id);
            }
        }
        None
    }

    /// Returns true if more waits have ended than were removed.
    #[must_use]
    pub fn has_backlog(&self) -> bool {
        !self.is_empty() && self.has_late || !self.enough.is_empty()
    }

    /// Counts the acknowledgements since the last count: each wait is examined once for each replica, however long it
    /// waits for another one.
    fn count(&mut self) {
        for (name, replica) in &mut self.replicas {
            for (&id, wait) in self.waits.range_mut(replica.next..) {
                #[cfg(test)]
                super::tests::visits::count(1);
                if wait.offset.is_none_or(|offset| offset > replica.acknowledged) {
                    break;
                }
                replica.next = WaitId(id.0 + 1);
                if let Some(awaited) = wait.awaited.iter().position(|other| other == name) {
                    wait.awaited.swap_remove(awaited);
                    wait.acknowledged += 1;
                    if wait.acknowledged >= wait.needed {
                        self.enough.insert(id);
                    }
                }
            }
        }
    }

    /// Finds the waits that can never have enough acknowledgements, because replicas have disconnected. Waits that
    /// have enough because fewer are required now have ended, too.
    fn find_hopeless(&mut self) {
        for (&id, wait) in &self.waits {
            if wait.acknowledged + wait.awaited.len() < wait.needed {
                self.hopeless.insert(id);
            } else if wait.offset.is_some() && wait.acknowledged >= wait.needed {
                self.enough.insert(id);
            }
        }
    }

    /// Ends a wait that has its outcome, or whose client has disconnected.
    pub fn leave(&mut self, id: WaitId) {
        if let Some(wait) = self.waits.remove(&id) {
            self.enough.remove(&id);
            self.hopeless.remove(&id);
            self.deadlines.remove(&(wait.until, id));
        }
    }

    /// Returns the time at which the first wait times out.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.deadlines.first().map(|first| first.0)
    }

    /// Returns the number of waits.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waits.len()
    }

    /// Returns true if there are no waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// Returns the number of connected replicas, and of those connected for at least `stable_ms` milliseconds.
    #[must_use]
    pub fn replicas(&self, now: Moment, stable_ms: u64) -> (usize, usize) {
        let stable = self.replicas.values().filter(|replica| replica.since.plus_ms(stable_ms) <= now);
        (self.replicas.len(), stable.count())
    }
}

/// Ends the pending waits, all in one step, when this server stops deciding.
impl Confirmations {
    /// Ends all waits, because this server stops deciding. They are dropped a few at a time, because there can be
    /// very many.
    pub fn drop_all(&mut self) {
        self.deadlines.clear();
        self.enough.clear();
        self.hopeless.clear();
        self.has_late = false;
        self.primary_since = None;
        self.gone_up_to = WaitId(self.last);
        let waits = std::mem::take(&mut self.waits);
        if !waits.is_empty() {
            self.gone.push_back(waits.into_iter());
        }
        self.forget_replicas();
    }

    /// Returns true if waits that ended that way are left to remove.
    #[must_use]
    pub fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Returns true if this wait ended because this server stopped deciding.
    #[must_use]
    pub fn is_gone(&self, wait: WaitId) -> bool {
        wait <= self.gone_up_to
    }

    /// Removes the next of those waits.
    pub fn take_gone(&mut self) -> Option<WaitId> {
        let gone = self.gone.front_mut()?;
        let wait = gone.next();
        if gone.len() == 0 {
            self.gone.pop_front();
        }
        wait.map(|(id, _)| id)
    }
}

#[cfg(test)]
mod tests;
