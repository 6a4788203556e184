//! When a grant or a renewal may be answered: not before enough replicas have it (CONTRACT 6).
//!
//! Two rules, each with the theorem that it rests on (`docs/spec`):
//!
//! * *all* (T3): every one of the group's other nodes has acknowledged it.
//! * *majority* (T4): half of the group's nodes, rounded down, have acknowledged it. A node counts only if its
//!   present connection to this server was a quarantine old when the request was carried out. This server must have been
//!   primary for as long, too. So at most one of two primaries can answer, however wrongly it was promoted.
//!
//! Requests of one turn of the event loop are one batch: they wait for one offset of the replication stream.
//!
//! The last request that waits for an unconfirmed grant undoes it, once: see `confirm/asked_again.rs`.

mod asked_again;
mod begun;
mod demoted;
mod gone;
#[cfg(test)]
mod looked;
mod undos;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use self::begun::Begun;
use self::gone::Gone;
use self::undos::Undos;
use super::effect::PendingGrant;
use super::types::{LockKeyBuf, Moment, Token};
use crate::sabotage;

/// Which acknowledgements are enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// All replicas that are connected have to acknowledge, and at least `replicas` of them.
    All {
        /// How many replicas the group has.
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

impl Rule {
    /// Nobody's. So a request is confirmed in the turn in which it came, and what was to be undone of the hold that it is
    /// told of is not undone.
    pub const NOBODY: Self = Self::Majority { replicas: 0, stable_ms: 0 };
}

/// A replica by its address, as the server names it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ReplicaName(pub Box<str>);

/// A replica as the server sees it now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Which.
    pub name: ReplicaName,
    /// Up to where it has acknowledged the replication stream.
    pub acknowledged: u64,
}

/// The number of a wait for acknowledgements. They are given in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct WaitId(u64);

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Enough replicas have it.
    Confirmed,
    /// Not in time.
    Failed,
}

#[derive(Debug)]
struct Replica {
    /// Since when it has been connected without a break.
    since: Moment,
    acknowledged: u64,
    /// The first wait that its acknowledgements were not counted for yet. Waits are in the order of their offsets, so
    /// it only goes on.
    next: WaitId,
}

#[derive(Debug)]
struct Wait {
    /// What has to be acknowledged; `None` until the turn of the event loop is over.
    offset: Option<u64>,
    until: Moment,
    needed: usize,
    /// The replicas whose acknowledgement counts and has not come.
    awaited: Vec<ReplicaName>,
    acknowledged: usize,
    /// The holds that it is about, all under one token.
    pending_grants: Vec<PendingGrant>,
}

impl Wait {
    /// The token of its holds: one grant has one.
    fn token(&self) -> Option<Token> {
        self.pending_grants.first().map(|pending_grant| pending_grant.token)
    }
}

/// All waits for acknowledgements, and the replicas as they were seen last.
#[derive(Debug, Default)]
pub struct Confirmations {
    replicas: BTreeMap<ReplicaName, Replica>,
    waits: BTreeMap<WaitId, Wait>,
    deadlines: BTreeSet<(Moment, WaitId)>,
    /// The waits for the hold with this token.
    of_token: HashMap<Token, BTreeSet<WaitId>>,
    /// The last number given.
    last: u64,
    /// What began in this turn: a client that is told of it is to wait for it.
    begun: Begun,
    /// What was not confirmed and is to be undone.
    undo: Undos,
    /// A replica has left: a client that waits for it may wait in vain.
    has_lost: bool,
    /// Waits that have enough acknowledgements and were not taken yet.
    enough: BTreeSet<WaitId>,
    /// Waits that can never have enough, as far as is known, and were not taken yet.
    hopeless: BTreeSet<WaitId>,
    /// Waits were over and were not taken, because there were too many.
    has_late: bool,
    /// What waited when this server stopped deciding.
    gone: VecDeque<Gone<WaitId, Wait>>,
    /// Waits up to this number are over, because this server stopped deciding.
    gone_up_to: WaitId,
    /// Since when this server has been primary, in this process.
    primary_since: Option<Moment>,
}

impl Confirmations {
    /// Begins to count for a majority: this server has just started as a primary, or was promoted.
    pub fn begin(&mut self, now: Moment) {
        self.primary_since = Some(now);
        self.forget_replicas();
    }

    /// Forgets the replicas: nobody can tell which of them were connected all the time, so each is as good as new.
    pub fn forget_replicas(&mut self) {
        self.replicas.clear();
        self.waits.values_mut().for_each(|wait| wait.awaited.clear());
        self.has_lost = true;
    }

    /// Lets all waits end without replicas: their owners are told in this turn or, if there are many, in the next ones.
    /// What was not confirmed before is undone all the same.
    pub fn need_nobody(&mut self) {
        self.waits.values_mut().for_each(|wait| wait.needed = 0);
        self.has_lost = true;
    }

    /// Whether nobody waits, and nothing is to be undone.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_empty() && !self.has_undo()
    }

    /// Whether anything is to be undone.
    #[must_use]
    pub fn has_undo(&self) -> bool {
        !self.undo.is_empty()
    }

    /// Whether what began here under this token is to be undone yet. For tests.
    #[cfg(test)]
    pub fn is_to_undo(&self, lock_key: super::types::LockKey<'_>, token: Token) -> bool {
        self.undo.with(token).any(|other| other.lock_key.as_key() == lock_key)
    }

    /// Whether anything is to be undone that is not put off.
    #[must_use]
    pub fn has_undo_now(&self) -> bool {
        self.undo.has_some_now()
    }

    /// What is to be undone next.
    pub fn next_undo(&mut self, now: Moment) -> Option<PendingGrant> {
        self.undo.pop(now)
    }

    /// The server cannot undo this now, and perhaps at this moment. Till then its owner may ask again, and keep it.
    pub fn put_off_undo(&mut self, pending_grant: PendingGrant, at: Moment) {
        self.undo.put_off(pending_grant, at);
    }

    /// When there is something to undo.
    #[must_use]
    pub fn next_undo_at(&self) -> Option<Moment> {
        self.undo.next_at()
    }

    /// Whether what is carried out now could be confirmed by the replicas that are connected.
    #[must_use]
    pub fn can_confirm(&self, now: Moment, rule: Rule) -> bool {
        let (needed, counted) = self.counted(now, rule);
        counted.count() >= needed
    }

    /// How many replicas more would have to be connected, and for long enough, to confirm what is carried out now.
    #[must_use]
    pub fn replicas_missing(&self, now: Moment, rule: Rule) -> usize {
        let (Rule::All { replicas: needed } | Rule::Majority { replicas: needed, .. }) = rule;
        let (_, counted) = self.counted(now, rule);
        needed.saturating_sub(counted.count())
    }

    /// How many acknowledgements are needed, and whose count.
    fn counted(&self, now: Moment, rule: Rule) -> (usize, impl Iterator<Item = &ReplicaName>) {
        let (needed, since_max) = match rule {
            _ if sabotage::removes(sabotage::Rule::Acknowledgement) => (0, None),
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

    /// What a step says has begun: somebody is told of it next.
    pub fn note_begun(&mut self, begun: Vec<PendingGrant>) {
        self.begun.0.extend(begun);
    }

    /// The turn of the event loop is over: a client that was to be told of what began in it waits by now.
    pub fn forget_begun(&mut self) {
        self.begun.0.clear();
    }

    /// Begins the wait of an owner that is to be told, within `lasts_ms` milliseconds, that it holds these locks under
    /// this token. It ends at the latest with the lease that has just begun: a client that is told of a hold shall have
    /// it.
    ///
    /// `None`: there can never be enough acknowledgements.
    pub fn wait_to_answer(
        &mut self,
        now: Moment,
        rule: Rule,
        lasts_ms: u64,
        token: Option<Token>,
        lock_keys: impl IntoIterator<Item = LockKeyBuf>,
    ) -> Option<WaitId> {
        let pending_grants: Vec<PendingGrant> = token.map_or_else(Vec::new, |token| {
            lock_keys.into_iter().map(|lock_key| self.begun.take(lock_key, token)).collect()
        });
        let lasts_ms =
            pending_grants.iter().map(|pending_grant| pending_grant.lease_ms).fold(lasts_ms, u64::min);
        self.wait(now, now.plus_ms(lasts_ms), rule, pending_grants)
    }

    /// Something was carried out that needs acknowledgements until this moment, about these holds of one token. What
    /// was about to be undone of them, and is not yet, is this wait's from here on (G9).
    ///
    /// `None`: it can never have enough.
    fn wait(
        &mut self,
        now: Moment,
        until: Moment,
        rule: Rule,
        mut pending_grants: Vec<PendingGrant>,
    ) -> Option<WaitId> {
        pending_grants.iter_mut().for_each(|pending_grant| self.undo.pass_on(pending_grant));
        let (needed, counted) = self.counted(now, rule);
        let awaited: Vec<ReplicaName> = counted.cloned().collect();
        let is_hopeless = awaited.len() < needed;
        self.last += 1;
        let id = WaitId(self.last);
        let wait = Wait { offset: None, until, needed, awaited, acknowledged: 0, pending_grants };
        if let Some(token) = wait.token() {
            self.of_token.entry(token).or_default().insert(id);
        }
        self.deadlines.insert((until, id));
        self.waits.insert(id, wait);
        if is_hopeless {
            self.leave(id);
            return None;
        }
        Some(id)
    }

    /// Whether there are waits whose offset is not known yet: the turn of the event loop is to ask for it, and for
    /// acknowledgements.
    #[must_use]
    pub fn has_new(&self) -> bool {
        self.waits.values().next_back().is_some_and(|wait| wait.offset.is_none())
    }

    /// Everything carried out so far is in the stream up to here.
    pub fn sent(&mut self, offset: u64) {
        for (&id, wait) in self.waits.iter_mut().rev().take_while(|(_, wait)| wait.offset.is_none()) {
            wait.offset = Some(offset);
            if wait.needed == 0 {
                self.enough.insert(id);
            }
        }
    }

    /// The replicas that are connected now. One that is not named has left: it never will acknowledge what it has not
    /// acknowledged by now. When it comes back it may have been promoted and demoted in between. One that is named
    /// twice has come back before its old connection was found to be dead: it is as good as new.
    pub fn see(&mut self, now: Moment, seen: &[Seen]) {
        let count = |name: &ReplicaName| match seen.iter().filter(|seen| seen.name == *name).count() {
            2.. if sabotage::removes(sabotage::Rule::ListedTwice) => 1,
            0 if sabotage::removes(sabotage::Rule::LeftReplica) => 1,
            count => count,
        };
        let before = self.replicas.len();
        self.replicas.retain(|name, _| count(name) == 1);
        if self.replicas.len() < before {
            self.has_lost = true;
            for wait in self.waits.values_mut() {
                wait.awaited.retain(|name| self.replicas.contains_key(name));
            }
        }
        for Seen { name, acknowledged } in seen {
            // No wait that is there already waits for it.
            let new = Replica { since: now, acknowledged: 0, next: WaitId(self.last + 1) };
            let replica = self.replicas.entry(name.clone()).or_insert(new);
            if count(name) == 1 {
                replica.acknowledged = *acknowledged;
            }
        }
    }

    /// The waits that are over by now, in the order in which they began.
    #[cfg(test)]
    pub fn take_over(&mut self, now: Moment) -> Vec<(WaitId, Verdict)> {
        self.take_some_over(now, usize::MAX, usize::MAX)
    }

    /// Removes waits that are over by now, oldest first, and returns how each ended: at most `confirmed_max` that are
    /// confirmed, and at most `failed_max` that failed. The others go on. Until a wait is removed, its grant can be
    /// undone, because nobody was told of it.
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
        // An owner that is told of a hold shall have it: one whose time is over is not confirmed any more.
        let confirmed: Vec<WaitId> =
            self.enough.iter().copied().filter(is_in_time).take(confirmed_max).collect();
        for id in confirmed {
            self.confirmed(id);
            over.push((id, Verdict::Confirmed));
        }
        over.sort_unstable_by_key(|&(id, _)| id);
        over
    }

    /// A wait that is over without enough acknowledgements.
    fn next_failed(&mut self, now: Moment) -> Option<WaitId> {
        if let Some(&(_, id)) = self.deadlines.first().filter(|(until, _)| *until <= now) {
            return Some(id);
        }
        // Fewer may be needed since.
        let is_hopeless = |wait: &Wait| wait.acknowledged + wait.awaited.len() < wait.needed;
        while let Some(id) = self.hopeless.pop_first() {
            if self.waits.get(&id).is_some_and(is_hopeless) {
                return Some(id);
            }
        }
        None
    }

    /// Whether more waits are over than were taken.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        !self.is_empty() && self.has_late || !self.enough.is_empty()
    }

    /// Counts what was acknowledged since it was counted last: each wait is looked at once for each replica, however
    /// long it waits for another one.
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

    /// Finds those that can never have enough, because replicas have left. Those that have enough, because fewer are
    /// needed, are over, too.
    fn find_hopeless(&mut self) {
        for (&id, wait) in &self.waits {
            if wait.acknowledged + wait.awaited.len() < wait.needed {
                self.hopeless.insert(id);
            } else if wait.offset.is_some() && wait.acknowledged >= wait.needed {
                self.enough.insert(id);
            }
        }
    }

    fn remove(&mut self, id: WaitId) -> Option<Wait> {
        let wait = self.waits.remove(&id)?;
        self.enough.remove(&id);
        self.hopeless.remove(&id);
        self.deadlines.remove(&(wait.until, id));
        wait.token().into_iter().for_each(|token| self.forget_wait(token, id));
        Some(wait)
    }

    /// When the first wait has lasted long enough.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.deadlines.first().map(|first| first.0)
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waits.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// How many replicas are connected, and how many of them have been for `stable_ms` milliseconds.
    #[must_use]
    pub fn replicas(&self, now: Moment, stable_ms: u64) -> (usize, usize) {
        let stable = self.replicas.values().filter(|replica| replica.since.plus_ms(stable_ms) <= now);
        (self.replicas.len(), stable.count())
    }
}

#[cfg(test)]
mod tests;
