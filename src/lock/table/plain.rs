//! The short path of the plain exclusive lock: whether it will do, and hand-overs on it.

use super::state::{Table, are_enough};
use super::terms::{Admission, Decision, KeyRef, NO_TOKENS, TOO_MANY_LOCKS, candidate};
use crate::lock::effect::{Answer, Change, Effects, Event, Existing, LockId, Record, Step};
use crate::lock::locks::{Ended, Hold, Locks, NewHold};
use crate::lock::types::{LockKey, Moment, Now, Token};

impl Table {
    /// Whether the short path will do: a lock that one holds at most, with nothing to it but its lease, and a queue
    /// of requests for just that.
    #[inline(always)]
    pub(super) fn is_plain(&self, key_ref: KeyRef<'_>) -> bool {
        let is_plain_lock = match key_ref.existing {
            Existing::Lock(lock) => !lock.is_list() && !self.locks.has_overflow(lock),
            Existing::Nothing | Existing::Other => true,
            Existing::Legacy(_) => false,
        };
        is_plain_lock
            && !self.is_restricted
            && (self.queues.waiters() == 0
                || self.queues.at(key_ref.lock_key).is_none_or(|queue| self.queues.is_plain(queue)))
    }

    /// The hold at a found key whose lease has not ended.
    #[inline(always)]
    pub(super) fn live(&self, now: Moment, existing: Existing) -> Option<(LockId, Hold<'_>)> {
        self.any_hold(existing).filter(|(_, hold)| !hold.is_over(now))
    }

    /// The hold at a found key, even if its lease is over by this server's clock.
    #[inline]
    pub(super) fn any_hold(&self, existing: Existing) -> Option<(LockId, Hold<'_>)> {
        let Existing::Lock(id) = existing else {
            return None;
        };
        Some((id, self.locks.hold(id)?))
    }

    /// Ends the hold at a found key if its lease has run out; returns its token.
    #[inline]
    pub(super) fn end_if_over(&mut self, now: Moment, existing: Existing, fx: &mut Effects) -> Option<Token> {
        let (id, hold) = self.any_hold(existing)?;
        if !hold.is_over(now) {
            return None;
        }
        let Ended { token, held_ms } = self.locks.end(id, now)?;
        self.stats.expirations += 1;
        self.stats.holds.add(held_ms);
        fx.publish(Event::Expired);
        Some(token)
    }

    /// Grants a free lock to the first in the queue who can have it. `None`: nobody who was looked at can. If somebody
    /// still waits then, the pump looks again.
    #[inline(always)]
    pub(super) fn grant_next(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Option<Step<()>> {
        // The usual case.
        if self.queues.waiters() == 0 {
            return None;
        }
        self.grant_in_queue(now, key_ref, admission, fx)
    }

    #[inline(never)]
    pub(super) fn grant_in_queue(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Option<Step<()>> {
        debug_assert!(!self.is_restricted, "the short path knows none of these rules");
        let KeyRef { lock_key, existing } = key_ref;
        let queue = self.queues.at(lock_key)?;
        if self.dismiss_from_other(key_ref, fx) {
            return None;
        }
        let mut served = 0;
        while let Some(id) = self.queues.head(queue) {
            if are_enough(served) {
                self.note_queue(queue);
                return None;
            }
            served += 1;
            let request = &self.queues.waiter(id)?.request;
            if request.until.is_some_and(|until| until <= now.boot) {
                self.stats.timeouts += 1;
                self.answer(id, Answer::TimedOut, fx);
                continue;
            }
            let candidate = candidate(request, lock_key, None)?;
            match self.admit(id, candidate, admission, fx) {
                Decision::Granted => {}
                Decision::Refused(_) => continue,
                Decision::NotNow => return None,
            }
            let Some((token, _)) = self.clock.mint(now.wall_us) else {
                self.answer(id, Answer::Refused(NO_TOKENS), fx);
                continue;
            };
            let client = candidate.client;
            let new = self.queues.waiter(id)?.request.hold(token);
            let begun = begin_hold(&mut self.locks, now.boot, lock_key, existing, &new);
            let Some((lock, change)) = begun else {
                self.clock.waste();
                self.answer(id, Answer::Refused(TOO_MANY_LOCKS), fx);
                continue;
            };
            let request = self.queues.leave(id)?.request;
            self.undelivered.begin(token, lock);
            self.stats.grants += 1;
            self.count_waited(now.boot, request.since, 1);
            if let Some(queue) = self.queues.queue_mut(queue) {
                queue.lock = Some(lock);
            }
            self.assert_nobody_waits_for_own(lock_key, Some(lock));
            fx.publish(Event::Acquired);
            fx.answer(id, client, request.granted(lock_key, Vec::new(), token));
            return Some(Step { reply: (), change, record: Record::Hold(lock) });
        }
        None
    }

    /// Grants a lock that has just lost its hold to the next in the queue, or lets the key go. `ended` is how readers
    /// are told of the hold that was there.
    pub(super) fn pass_on(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        ended: Record,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Step<()> {
        let next = self.grant_next(now, key_ref, admission, fx);
        let free = Step { reply: (), change: Change::Deleted, record: Record::Nothing };
        next.unwrap_or(free).behind(ended, fx)
    }
}

/// Begins a hold at the key: in the lock that is found there, or in a new one. `None`: there are too
/// many locks.
#[inline(always)]
pub(super) fn begin_hold(
    locks: &mut Locks,
    now: Moment,
    lock_key: LockKey<'_>,
    existing: Existing,
    new: &NewHold<'_>,
) -> Option<(LockId, Change)> {
    match existing {
        Existing::Lock(id) if locks.get(id).is_some() => {
            // An empty lock may stand under another name than the one it was made for.
            locks.begin(id, now, lock_key, new);
            Some((id, Change::Renewed))
        }
        _ => {
            let id = locks.insert(now, lock_key, Some(new))?;
            Some((id, Change::Stored(id)))
        }
    }
}
