//! Starts holds: grants locks to waiters, in the order of their queue, and begins the hold of every grant.

use super::key_step::KeyStep;
use super::requests::{Admission, Decision, NO_TOKENS, TOO_MANY_LOCKS, candidate};
use super::state::{Table, are_enough};
use crate::lock::effect::{Answer, Change, Effects, Event, Existing, LockId, Record, Step, WaiterId};
use crate::lock::locks::NewHold;
use crate::lock::queue::{QueueId, Waiter};
use crate::lock::types::{Mode, Moment, Now, Token};

/// A server finds an expired key gone within the millisecond after its end; one more allows for the rounding of two
/// clocks.
const LEGACY_GONE_MS: u64 = 2;

impl Table {
    /// Returns the step's outcome for its key.
    pub(super) fn step<R>(&mut self, ctx: &KeyStep<'_>, reply: R) -> Step<R> {
        Step { reply, change: self.close(ctx), record: ctx.record }
    }

    /// Returns the change that the step makes to its key.
    pub(super) fn close(&mut self, ctx: &KeyStep<'_>) -> Change {
        self.assert_nobody_waits_for_own(ctx.key_ref.lock_key, ctx.lock);
        let mut is_new_turn = false;
        if self.queues.waiters() > 0
            && let Some(queue) = self.queues.at(ctx.key_ref.lock_key)
        {
            // No event reports that a key of another type expired.
            let gone = ctx.legacy.map(|legacy| legacy.until.plus_ms(LEGACY_GONE_MS));
            let turns = self.turns(ctx, queue);
            is_new_turn = self.queues.looked(queue, ctx.lock, gone, turns);
        }
        self.note_left(None);
        match self.change(ctx) {
            Change::Nothing if is_new_turn => Change::Signalled,
            change => change,
        }
    }

    fn change(&self, ctx: &KeyStep<'_>) -> Change {
        if !(ctx.has_begun || ctx.has_ended || ctx.is_touched) {
            return Change::Nothing;
        }
        let held = ctx.lock.filter(|&lock| self.locks.mode(lock).is_some());
        match (held, ctx.key_ref.existing) {
            (Some(lock), Existing::Lock(existing)) if lock == existing => {
                match (ctx.has_begun, ctx.is_touched) {
                    (true, _) => Change::Renewed,
                    (false, true) => Change::Touched,
                    // Some of its holds may have ended in this step.
                    (false, false) if ctx.has_ended => Change::Touched,
                    (false, false) => Change::Nothing,
                }
            }
            (Some(lock), _) => Change::Stored(lock),
            (None, Existing::Lock(_) | Existing::Legacy(_)) if ctx.has_ended => Change::Deleted,
            (None, _) => Change::Nothing,
        }
    }

    /// Ends the expired holds of the lock. `due` is a hold known to have expired.
    pub(super) fn expire_due_holds(
        &mut self,
        now: Moment,
        ctx: &mut KeyStep<'_>,
        owner: Option<&[u8]>,
        due: Option<LockId>,
        fx: &mut Effects,
    ) {
        if let Some(owner) = owner.filter(|_| self.sessions.has_closed()) {
            self.unbind_own(ctx, owner);
        }
        if let Some(lock) = ctx.lock.filter(|&lock| lock.is_list() && self.locks.is_large(lock)) {
            // The pump will end the others. These must end now.
            let own = owner.and_then(|owner| self.locks.hold_of(lock, owner)).map(|(holder, _)| holder);
            let due = due.filter(|&due| self.locks.is_held_by(lock, due));
            for holder in own.into_iter().chain(due) {
                if self.locks.hold(holder).is_some_and(|hold| hold.is_over(now)) {
                    self.expire(now, ctx, holder, fx);
                }
            }
        }
        while let Some(over) = ctx.lock.and_then(|lock| self.locks.over_of(lock, now)) {
            self.expire(now, ctx, over, fx);
        }
    }

    #[cold]
    pub(super) fn expire(&mut self, now: Moment, ctx: &mut KeyStep<'_>, holder: LockId, fx: &mut Effects) {
        if let Some(ended) = ctx.end_one(&mut self.locks, now, holder) {
            self.stats.expirations += 1;
            self.stats.holds.add(ended.held_ms);
            fx.publish(Event::Expired);
            ctx.replicate(Record::Ended(ended.token), fx);
        }
    }

    /// Returns true if the request could be granted while `reserved` permits stay free for others.
    pub(super) fn fits(&self, ctx: &KeyStep<'_>, mode: Mode, reserved: usize) -> bool {
        reserved < self.room(ctx, mode)
    }

    /// Returns how many more holders of this mode the lock admits now.
    fn room(&self, ctx: &KeyStep<'_>, mode: Mode) -> usize {
        if ctx.legacy.is_some() || self.restrictions.is_closed() {
            return 0;
        }
        let holders = || ctx.lock.map_or(0, |lock| self.locks.holders_of(lock));
        match (mode, ctx.held_as(&self.locks)) {
            (Mode::Exclusive, held_as) => usize::from(held_as.is_none()),
            (Mode::Shared, None | Some(Mode::Shared)) => self.limits.holders_max.saturating_sub(holders()),
            (Mode::Limit(limit), held_as) if held_as.is_none_or(|held_as| held_as == mode) => {
                (limit as usize).saturating_sub(holders())
            }
            // The current mode admits no other holder.
            (Mode::Shared | Mode::Limit(_), _) => 0,
        }
    }

    /// Returns the number of reservations at the head of the queue whose turn has come: the next call of their owners
    /// is granted.
    fn turns(&self, ctx: &KeyStep<'_>, queue: QueueId) -> usize {
        let Some((reserved, bar)) = self.queues.reserved_at_head(queue) else {
            return 0;
        };
        if reserved > 0 {
            let mode = self.queues.queue(queue).map(|queue| queue.mode);
            let mode = mode.filter(|mode| matches!(mode, Mode::Limit(_))).unwrap_or(Mode::Shared);
            return reserved.min(self.room(ctx, mode));
        }
        let first = bar.and_then(|bar| self.queues.waiter(bar)).map(|bar| &bar.request);
        let first = first.filter(|first| first.client.is_none());
        usize::from(first.is_some_and(|first| self.fits(ctx, first.mode, 0)))
    }

    /// Grants the lock to all waiters that it admits now, in their order (G5). A step serves a bounded number; the
    /// pump serves the rest.
    #[inline(always)]
    pub(super) fn admit_queue(
        &mut self,
        now: Now,
        ctx: &mut KeyStep<'_>,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) {
        // The common case.
        if self.queues.waiters() > 0 {
            self.admit_who_can(now, ctx, admission, fx);
        }
    }

    #[inline(never)]
    fn admit_who_can(&mut self, now: Now, ctx: &mut KeyStep<'_>, admission: Admission<'_>, fx: &mut Effects) {
        let Some(queue) = self.queues.at(ctx.key_ref.lock_key) else {
            return;
        };
        if self.dismiss_from_other(ctx.key_ref, fx) {
            return;
        }
        self.end_lapsed(now.boot, queue, fx);
        let mut next = self.queues.head(queue);
        while let Some(id) = next {
            let Some(waiter) = self.queues.waiter(id) else { break };
            if are_enough(ctx.served) {
                self.notes.note_queue(&mut self.queues, queue);
                break;
            }
            next = self.queues.behind(id);
            let request = &waiter.request;
            if request.until.is_some_and(|until| until <= now.boot) {
                ctx.served += 1;
                self.time_out(id, fx);
                continue;
            }
            let Some(candidate) = candidate(request, ctx.key_ref.lock_key, None) else {
                // No waiter overtakes one that wants the whole lock. A waiter after the others may still fit.
                if request.mode == Mode::Exclusive {
                    break;
                }
                next = self.queues.next_bar(id);
                continue;
            };
            let reserved = self.queues.reservations_ahead(id);
            if !self.fits(ctx, request.mode, reserved) {
                break;
            }
            if let Some(multi) = waiter.multi {
                self.notes.note_multi(&mut self.queues, multi, queue);
                break;
            }
            let is_exclusive = request.mode == Mode::Exclusive;
            ctx.served += 1;
            match self.admit(id, candidate, admission, fx) {
                Decision::Granted => {}
                Decision::Refused(_) => continue,
                Decision::NotNow => break,
            }
            if self.grant_waiter(now, ctx, id, fx) && is_exclusive {
                break;
            }
        }
        self.note_left(Some(queue));
    }

    /// Grants the lock to a waiter and answers it, or refuses it if no token or no lock number is left. Returns true
    /// if it was granted.
    fn grant_waiter(&mut self, now: Now, ctx: &mut KeyStep<'_>, id: WaiterId, fx: &mut Effects) -> bool {
        let Some((token, _)) = self.clock.mint(now.wall_us) else {
            self.answer(id, Answer::Refused(NO_TOKENS), fx);
            return false;
        };
        let Some(Waiter { request, .. }) = self.queues.leave(id) else {
            return false;
        };
        let record = self.begin_granted(now.boot, ctx, (request.mode, &request.hold(token)), true);
        if record.is_none() {
            self.clock.waste();
        }
        let (client, since) = (request.client, request.since);
        let answer = match record {
            Some(record) => {
                self.count_waited(now.boot, since, 1);
                fx.publish(Event::Acquired);
                ctx.replicate(record, fx);
                request.granted(ctx.key_ref.lock_key, Vec::new(), token)
            }
            None => Answer::Refused(TOO_MANY_LOCKS),
        };
        if let Some(client) = client {
            fx.answer(id, client, answer);
        }
        record.is_some()
    }

    /// Returns true if this waiter is next: only reservations are ahead of it, and it fits alongside them.
    pub(super) fn is_turn_of(&self, ctx: &KeyStep<'_>, queue: QueueId, waiter: WaiterId) -> bool {
        let request = self.queues.waiter(waiter).map(|waiter| &waiter.request);
        request.is_some_and(|request| {
            let reserved = self.reserved_ahead(queue, Some(waiter), None);
            reserved.is_some_and(|reserved| self.fits(ctx, request.mode, reserved))
        })
    }

    /// Returns true if a newcomer fits alongside all entries of the queue, because they are reservations. `but` is an
    /// entry that it would replace.
    pub(super) fn fits_beside(
        &self,
        ctx: &KeyStep<'_>,
        queue: QueueId,
        mode: Mode,
        but: Option<WaiterId>,
    ) -> bool {
        let reserved = self.reserved_ahead(queue, None, but);
        reserved.is_some_and(|reserved| self.fits(ctx, mode, reserved))
    }

    /// Returns the number of reservations ahead of a waiter, or in the whole queue, except `but`. `None` if other
    /// requests are ahead.
    fn reserved_ahead(
        &self,
        queue: QueueId,
        waiter: Option<WaiterId>,
        but: Option<WaiterId>,
    ) -> Option<usize> {
        self.queues.reserved_ahead(queue, waiter, but)
    }

    /// Begins a hold that this server decided on. Returns `None` if there are too many locks. `is_told_later` is true
    /// for an owner that waited: it is answered after this step.
    ///
    /// All grants except those of [`Self::acquire_at_once`] pass through here. Rules that forbid a grant are asserted
    /// here, so that tests find a step that did not check them.
    pub(super) fn begin_granted(
        &mut self,
        now: Moment,
        ctx: &mut KeyStep<'_>,
        (mode, new): (Mode, &NewHold<'_>),
        is_told_later: bool,
    ) -> Option<Record> {
        debug_assert!(
            !self.restrictions.is_closed(),
            "nothing is granted in a quarantine, nor when the module is to go"
        );
        debug_assert!(
            ctx.own(&self.locks, new.owner).is_none_or(|(_, hold)| hold.is_over(now)),
            "a grant only ever begins holds"
        );
        let record = self.begin(now, ctx, mode, new)?;
        self.stats.grants += 1;
        if let Record::Hold(holder) | Record::Holder(_, holder) = record
            && (is_told_later || self.restrictions.confirms())
        {
            self.undelivered.begin(new.token, holder);
        }
        Some(record)
    }

    /// Raises the token of an exclusive hold to at least this one, and the clock of tokens with it.
    pub(super) fn raise_token(&mut self, ctx: &KeyStep<'_>, holder: LockId, raise: Token) {
        self.clock.hear(raise);
        // Only a damaged record can name one of several holders.
        let is_alone = ctx.lock.is_some_and(|lock| !lock.is_list());
        if is_alone && self.locks.hold(holder).is_some_and(|hold| hold.token() < raise) {
            self.locks.set_token(holder, raise);
        }
    }

    /// Begins a hold. Returns `None` if there are too many locks.
    pub(super) fn begin(
        &mut self,
        now: Moment,
        ctx: &mut KeyStep<'_>,
        mode: Mode,
        new: &NewHold<'_>,
    ) -> Option<Record> {
        let own = ctx.own(&self.locks, new.owner).map(|(holder, _)| holder);
        if let Some(own) = own {
            ctx.end_one(&mut self.locks, now, own);
        }
        if mode == Mode::Exclusive {
            let record = ctx.lock.filter(|&lock| self.locks.get(lock).is_some());
            let lock = match record {
                Some(lock) => {
                    self.locks.begin(lock, now, ctx.key_ref.lock_key, new);
                    lock
                }
                None => self.locks.insert(now, ctx.key_ref.lock_key, Some(new))?,
            };
            ctx.lock = Some(lock);
            ctx.note_begun();
            return Some(Record::Hold(lock));
        }
        let (holders, is_new) =
            match ctx.lock.filter(|&lock| ctx.held_as(&self.locks) == Some(mode) && lock.is_list()) {
                Some(holders) => (holders, false),
                None => (self.locks.form(mode), true),
            };
        if let Some(record) = ctx.lock.filter(|&lock| is_new && ctx.key_ref.existing != Existing::Lock(lock))
        {
            // This step made the record, and it is no key's value yet: nothing else would remove it.
            self.locks.remove_free(record);
        }
        let Some(holder) = self.locks.join(holders, now, ctx.key_ref.lock_key, new) else {
            if is_new {
                self.locks.dissolve(holders);
            }
            return None;
        };
        ctx.lock = Some(holders);
        if is_new {
            ctx.note_begun();
        } else {
            // The key keeps a time to live that a user gave it, because the lock had holders already.
            ctx.touch();
        }
        Some(Record::Holder(holders, holder))
    }
}
