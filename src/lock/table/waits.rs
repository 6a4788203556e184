//! Begins and ends waits: who may join a queue, and the answers to waiters that leave one.

use super::key_step::KeyStep;
use super::requests::{ARRIVED, Admission, Candidate, Decision, KeyRef, Refusal, WRONG_TYPE};
use super::state::Table;
use crate::lock::deadlock::{self, Link, Scope};
use crate::lock::effect::{Answer, Effects, Existing, LockId, WaiterId};
use crate::lock::locks::Hold;
use crate::lock::queue::QueueId;
use crate::lock::tuning::Bound;
use crate::lock::types::{LockKey, Moment};

/// The most lapsed reservations that one step of the pump removes.
const LAPSED_A_STEP: Bound = Bound::of(16, 2);

impl Table {
    /// Returns the queue of each entry of these requests.
    pub(super) fn queues_of(&self, requests: &[WaiterId]) -> Vec<QueueId> {
        let entries = requests.iter().flat_map(|&request| self.queues.entries(request));
        entries.filter_map(|entry| self.queues.waiter(entry).map(|waiter| waiter.queue)).collect()
    }

    /// Returns the limit that forbids another wait, which replaces an entry in each queue of `replaced`.
    pub(super) fn is_full(
        &self,
        queue: Option<QueueId>,
        more: usize,
        replaced: &[QueueId],
    ) -> Option<Refusal> {
        let here = replaced.iter().filter(|&&other| Some(other) == queue).count();
        let in_queue = queue.and_then(|queue| self.queues.queue(queue)).map_or(0, |queue| queue.len) - here;
        if in_queue >= self.limits.waiters_per_lock_max {
            return Some(Refusal::QueueIsFull(self.limits.waiters_per_lock_max));
        }
        let all = (self.queues.waiters() - replaced.len()).saturating_add(more);
        (all > self.limits.waiters_max).then_some(Refusal::ServerIsFull(self.limits.waiters_max))
    }

    /// Returns true if a request that has joined the queue would wait for itself (G11), not counting the requests in
    /// `but`. It is then removed again.
    pub(super) fn would_never_end(&mut self, now: Moment, waiter: WaiterId, but: &[WaiterId]) -> bool {
        let (queues, locks, holders_max) = (&self.queues, &self.locks, self.limits.holders_max);
        let scope = Scope { queues, locks, now, holders_max, but };
        let Some(cycle) = deadlock::find(scope, waiter, &mut self.looked) else {
            return false;
        };
        self.queues.leave(waiter);
        self.stats.deadlocks += 1;
        self.cycle = cycle;
        true
    }

    /// Returns the cycle of waits that the last refused request would have closed.
    pub fn take_cycle(&mut self) -> Vec<Link> {
        std::mem::take(&mut self.cycle)
    }

    /// Records which lock the queue at this key waits for, after a request has joined it.
    pub(super) fn set_lock_of_queue(&mut self, ctx: &KeyStep<'_>, queue: Option<QueueId>) {
        self.assert_nobody_waits_for_own(ctx.key_ref.lock_key, ctx.lock);
        if let Some(queue) = queue.and_then(|queue| self.queues.queue_mut(queue)) {
            queue.lock = ctx.lock;
        }
    }

    /// Asserts, in builds with assertions, that no holder of the lock waits at its key. A lock that has just arrived
    /// ends all waits, and a lock with many holders may still list expired ones.
    #[inline(always)]
    pub(super) fn assert_nobody_waits_for_own(&self, lock_key: LockKey<'_>, lock: Option<LockId>) {
        debug_assert!(self.nobody_waits_for_own(lock_key, lock), "nobody waits for a lock that they hold");
    }

    fn nobody_waits_for_own(&self, lock_key: LockKey<'_>, lock: Option<LockId>) -> bool {
        let Some(id) = self.queues.at(lock_key) else {
            return true;
        };
        let is_settled = self.queues.queue(id).is_some_and(|queue| queue.arrived.is_none());
        let waits = |hold: Hold<'_>| self.queues.of_owner(id, &hold.owner()).is_some();
        let few = lock.filter(|&lock| is_settled && !self.locks.is_large(lock));
        few.is_none_or(|lock| !self.locks.holders(lock).any(|(_, hold)| waits(hold)))
    }

    /// Returns whether a waiter may be granted the lock here now. A waiter that may not any more is answered and
    /// removed. If no waiter may now, the pump tries again later.
    #[inline]
    pub(super) fn admit(
        &mut self,
        waiter: WaiterId,
        candidate: Candidate<'_>,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Decision {
        let decision = admission(candidate);
        match decision {
            Decision::Granted => {}
            Decision::Refused(reason) => self.answer(waiter, Answer::Refused(reason), fx),
            Decision::NotNow => self.note(candidate.lock_key),
        }
        decision
    }

    /// Removes a request from its queue, and answers it unless it is a reservation.
    pub(super) fn answer(&mut self, waiter: WaiterId, answer: Answer, fx: &mut Effects) {
        let first_entry = self.queues.first_entry(waiter);
        if let Some(client) = self.queues.leave(waiter).and_then(|left| left.request.client) {
            fx.answer(first_entry, client, answer);
        }
    }

    /// Times out a waiting request (G7).
    pub fn time_out(&mut self, waiter: WaiterId, fx: &mut Effects) {
        let is_told = self.queues.waiter(waiter).is_some_and(|waiter| waiter.request.client.is_some());
        self.stats.timeouts += u64::from(is_told);
        self.answer(waiter, Answer::TimedOut, fx);
        self.note_left(None);
    }

    /// Removes a waiting request whose connection closed, or was answered by the server itself (G8).
    pub fn leave(&mut self, waiter: WaiterId) {
        if self.queues.leave(waiter).is_none() {
            self.leave_from_away(waiter);
        }
        self.note_left(None);
    }

    /// Gives all waiters at this key the same answer.
    pub fn dismiss(&mut self, lock_key: LockKey<'_>, answer: &Answer, fx: &mut Effects) {
        while let Some(waiter) = self.queues.at(lock_key).and_then(|queue| self.queues.head(queue)) {
            self.answer(waiter, answer.clone(), fx);
        }
        // A request for several locks has left other queues too.
        self.note_left(None);
    }

    /// If a value of another type is at this key, keeps it and answers the waiters as it would answer a new request
    /// (CONTRACT 5). Returns true if so. Writes nothing, so no admission is needed.
    #[cold]
    #[inline(never)]
    pub(super) fn dismiss_from_other(&mut self, key_ref: KeyRef<'_>, fx: &mut Effects) -> bool {
        let is_other = key_ref.existing == Existing::Other;
        if is_other {
            self.dismiss(key_ref.lock_key, &Answer::Refused(WRONG_TYPE), fx);
        }
        is_other
    }

    /// Ends all waits and reservations at a key where a lock with a live hold has arrived other than by a grant.
    pub(super) fn end_waits_for_arrived(&mut self, now: Moment, key_ref: KeyRef<'_>, fx: &mut Effects) {
        // The common case.
        if self.queues.waiters() == 0 {
            return;
        }
        let queue = self.queues.at(key_ref.lock_key).and_then(|queue| self.queues.queue_mut(queue));
        let Some(arrived) = queue.and_then(|queue| queue.arrived.take()) else {
            return;
        };
        let is_live = |(_, hold): (LockId, Hold<'_>)| !hold.is_over(now);
        if key_ref.existing == Existing::Lock(arrived) && self.locks.holders(arrived).any(is_live) {
            self.dismiss(key_ref.lock_key, &Answer::Refused(ARRIVED), fx);
        }
    }

    /// Removes the lapsed reservations of this queue.
    pub(super) fn end_lapsed(&mut self, now: Moment, queue: QueueId, fx: &mut Effects) {
        while self.end_first_lapsed(now, queue, fx) {}
    }

    /// Removes some of them. Returns true if there may be more.
    pub(super) fn end_some_lapsed(&mut self, now: Moment, lock_key: LockKey<'_>, fx: &mut Effects) -> bool {
        let queue = self.queues.at(lock_key);
        queue.is_some_and(|queue| (0..LAPSED_A_STEP.get()).all(|_| self.end_first_lapsed(now, queue, fx)))
    }

    #[inline]
    fn end_first_lapsed(&mut self, now: Moment, queue: QueueId, fx: &mut Effects) -> bool {
        let lapsed = self.queues.lapsed(queue, now);
        if let Some(lapsed) = lapsed {
            self.answer(lapsed, Answer::TimedOut, fx);
        }
        lapsed.is_some()
    }

    /// Counts locks that were granted to a waiting request, and how long it waited.
    pub(super) fn count_waited(&mut self, now: Moment, since: Moment, locks: u64) {
        self.stats.contended_grants += locks;
        self.stats.waits.add(now.ms_since(since));
    }
}
