//! The table itself, and what all of its steps use.

pub(super) use std::collections::VecDeque;

use super::away::Away;
use super::closed::ClosedConnections;
pub(super) use super::noted::{Noted, PutOff};
use super::outbox::Outbox;
pub(super) use super::terms::*;
use super::undelivered::Undelivered;
pub(super) use crate::lock::deadlock::{Link, Looked};
pub(super) use crate::lock::effect::{
    Answer, Change, Effects, Event, Existing, Legacy, LockId, Record, Step, Task, WaiterId,
};
pub(super) use crate::lock::locks::{Ended, Hold, Locks, NewHold};
use crate::lock::lowered;
pub(super) use crate::lock::queue::{Queues, Request};
pub(super) use crate::lock::stats::Stats;
pub(super) use crate::lock::token::{TokenClock, Travel};
pub(super) use crate::lock::types::{Binding, ClientId, LockKey, LockKeyBuf, Mode, Moment, Now, Token};
pub(super) use crate::sabotage::{self, Rule};

/// How many waiters of a lock are let in or refused in one step. The rest come in with the next steps of the
/// pump, and until then a newcomer stands behind them.
const SERVED_A_STEP: usize = 64;

/// Whether a step that has served `served` waiters leaves the rest to the pump.
pub(super) fn are_enough(served: usize) -> bool {
    served >= lowered::served_max(SERVED_A_STEP)
}

/// The locks of one server. See the [module](self).
#[derive(Default)]
pub struct Table {
    pub(super) locks: Locks,
    pub(super) queues: Queues,
    pub(super) clock: TokenClock,
    /// How many sets of locks were set aside.
    pub(super) epochs: u32,
    /// How many there were when the keyspace was last emptied or replaced: it may have values of any set since then.
    pub(super) epochs_then: u32,
    pub(super) noted: VecDeque<Noted>,
    /// How many notes there were when the pump last threw some away.
    pub(super) noted_then: usize,
    /// Holds whose owners may not have been told of them.
    pub(super) undelivered: Undelivered,
    /// Those of them that are to be revoked. They are the first that the pump is to look at.
    pub(super) to_revoke: VecDeque<Task>,
    /// Holds that readers are to be told of as they are now. That grants nothing.
    pub(super) untold: VecDeque<Task>,
    /// What the server may not do yet, by when it is tried again.
    pub(super) put_off: PutOff,
    pub(super) closed: ClosedConnections,
    pub(super) outbox: Outbox,
    pub(super) stats: Stats,
    pub(super) limits: Limits,
    /// Until when nothing new is granted.
    pub(super) quarantine: Option<Quarantine>,
    /// Whether grants and renewals have to be confirmed, and are told later.
    pub(super) confirms: bool,
    /// Whether nothing new is granted because the module is to go.
    pub(super) is_leaving: bool,
    /// Whether there is a quarantine, anything has to be confirmed, or the module is to go: then the short path will
    /// not do.
    pub(super) is_restricted: bool,
    /// Why the request refused last would have waited for itself.
    pub(super) cycle: Vec<Link>,
    /// How much the search for it looked at last.
    pub(super) looked: Looked,
    /// Clients that wait in vain, and were not told so yet.
    pub(super) away: VecDeque<Away>,
}

impl Table {
    /// Sets the limits, from the next request on. Nobody who waits already is turned away.
    pub fn set_limits(&mut self, limits: Limits) {
        let has_room = limits.holders_max > self.limits.holders_max;
        self.limits = limits;
        if has_room {
            self.note_everything();
        }
    }

    /// The clock of tokens.
    pub const fn clock(&mut self) -> &mut TokenClock {
        &mut self.clock
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

    /// Takes a request out of its queue and answers it, unless nobody waits for the answer.
    pub(super) fn answer(&mut self, waiter: WaiterId, answer: Answer, fx: &mut Effects) {
        let first_entry = self.queues.first_entry(waiter);
        if let Some(client) = self.queues.leave(waiter).and_then(|left| left.request.client) {
            fx.answer(first_entry, client, answer);
        }
    }

    /// A value of another type stands where these wait: it stays, and they are told what a request that comes later is
    /// told (CONTRACT 5). Returns whether it is so. Nothing is written, so nobody need admit them.
    #[cold]
    #[inline(never)]
    pub(super) fn dismiss_from_other(&mut self, key_ref: KeyRef<'_>, fx: &mut Effects) -> bool {
        let is_other = key_ref.existing == Existing::Other && !sabotage::removes(Rule::WrittenOver);
        if is_other {
            self.dismiss(key_ref.lock_key, &Answer::Refused(WRONG_TYPE), fx);
        }
        is_other
    }

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

    /// Whether a waiter may be granted the lock here now. One that may not any more is told so and leaves; if nobody
    /// may now, the pump looks again.
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

/// While a server that may have forgotten locks grants none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quarantine {
    pub(super) since: Moment,
    pub(super) length_ms: u64,
}

impl Quarantine {
    pub(super) const fn until(self) -> Moment {
        self.since.plus_ms(self.length_ms)
    }
}
