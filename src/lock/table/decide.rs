//! A client asks, on a primary: acquire, release, renew. What is not plain goes to [`super::kinds`].

use super::context::StepContext;
use super::plain::begin_hold;
use super::state::Table;
use super::terms::Acquired::{Busy, Granted, Refused};
use super::terms::{Acquired, Admission, Ask, KeyRef, Refusal, Release, Renewal, Wait};
use crate::lock::effect::{Answer, Change, Effects, Event, Existing, LockId, Record, Step};
use crate::lock::locks::{Hold, NewHold};
use crate::lock::queue::Request;
use crate::lock::token::Travel;
use crate::lock::types::{Binding, LockKey, Moment, Now, Token};

impl Table {
    /// LOCK.ACQUIRE.
    #[inline(always)]
    pub fn acquire(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        ask: &Ask<'_>,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Step<Acquired> {
        if !ask.is_plain() || !self.is_plain(key_ref) {
            return self.acquire_any(now, key_ref, ask, admission, fx);
        }
        let over = self.end_if_over(now.boot, key_ref.existing, fx);
        let ended = over.map_or(Record::Nothing, Record::Ended);
        if self.live(now.boot, key_ref.existing).is_none() {
            // G5: those who wait come first, also while their grant is still on its way.
            if let Some(step) = self.grant_next(now, key_ref, admission, fx) {
                let existing = match step.change {
                    Change::Stored(id) => Existing::Lock(id),
                    _ => key_ref.existing,
                };
                let step = step.behind(ended, fx);
                return self.join_holder(now, KeyRef { existing, ..key_ref }, ask, step, fx);
            }
            if self.queues.waiters() > 0 && self.is_waited_for(key_ref.lock_key) {
                return self.acquire_behind(now, key_ref, ask, over, fx);
            }
            let step = self.take_free(now, key_ref.lock_key, key_ref.existing, ask, over.is_some());
            let step = step.behind(ended, fx);
            if matches!(step.reply, Granted(_)) {
                fx.publish(Event::Acquired);
            }
            return step;
        }
        self.join_holder(now, key_ref, ask, Step::unchanged(()), fx)
    }

    /// Decides a request for the plain lock where there is no key, as mostly. Returns the step, and what is to be
    /// published. `None`: the request is for [`Self::acquire`], and nothing was done.
    #[inline(always)]
    pub fn acquire_at_once(
        &mut self,
        now: Now,
        lock_key: LockKey<'_>,
        ask: &Ask<'_>,
    ) -> Option<(Step<Acquired>, Option<Event>)> {
        if self.is_restricted || self.queues.waiters() > 0 {
            return None;
        }
        let step = self.take_free(now, lock_key, Existing::Nothing, ask, false);
        Some((step, matches!(step.reply, Granted(_)).then_some(Event::Acquired)))
    }

    /// The lock is free, and the pump is to look at more of those who wait for it. `over` is the hold that this step has
    /// ended.
    #[cold]
    fn acquire_behind(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        ask: &Ask<'_>,
        over: Option<Token>,
        fx: &mut Effects,
    ) -> Step<Acquired> {
        let mut ctx = StepContext::new(key_ref);
        if let Some(over) = over {
            ctx.has_ended = true;
            ctx.replicate(Record::Ended(over), fx);
        }
        let reply = self.take_or_wait(now, &mut ctx, ask, fx);
        self.step(&ctx, reply)
    }

    /// Decides a request for a lock that is held: by the owner itself, who is granted again (G9), or by another one.
    #[inline(never)]
    fn join_holder(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        ask: &Ask<'_>,
        step: Step<()>,
        fx: &mut Effects,
    ) -> Step<Acquired> {
        if let Some((id, hold)) = self.live(now.boot, key_ref.existing)
            && hold.is_of(ask.owner)
        {
            return self.grant_again(now, id, ask, step);
        }
        match ask.wait {
            Some(wait) => {
                let reply = self.wait_in_queue(now, key_ref, ask, wait, fx);
                step.reply(reply)
            }
            None => step.reply(Busy),
        }
    }

    /// G9: the same owner again: the same token, and a lease that is never shortened.
    fn grant_again(&mut self, now: Now, id: LockId, ask: &Ask<'_>, step: Step<()>) -> Step<Acquired> {
        let Some(hold) = self.locks.hold(id) else {
            return step.reply(Busy);
        };
        let (token, is_longer, binding) =
            (hold.token(), hold.ends_before(now.boot, ask.lease_ms), hold.binding());
        self.note_asked_again(id, ask.client);
        if !binding.is_none() {
            // Granted in this very step to its older request, for the connection of that. It stands still already.
            self.locks.rebind(id, now.boot, binding, ask.bind_to);
        }
        if !is_longer {
            return step.reply(Granted(token));
        }
        self.locks.extend(id, now.boot, ask.lease_ms);
        let (change, record) = match step.record {
            Record::Nothing => (Change::Touched, Record::AsAsked),
            told => (step.change, told),
        };
        Step { reply: Granted(token), change, record }
    }

    /// Grants a lock that nobody holds and nobody waits for. Perhaps a lease is just over: the caller tells of that,
    /// and publishes it if the lock is granted.
    #[inline(always)]
    fn take_free(
        &mut self,
        now: Now,
        lock_key: LockKey<'_>,
        existing: Existing,
        ask: &Ask<'_>,
        is_over: bool,
    ) -> Step<Acquired> {
        debug_assert!(!self.is_restricted, "the short path knows none of these rules");
        if existing == Existing::Other {
            return Step::unchanged(Refused(Refusal::WrongType));
        }
        let change = if is_over { Change::Deleted } else { Change::Nothing };
        let refused = |refusal| Step { reply: Refused(refusal), change, record: Record::Nothing };
        let Some((token, travel)) = self.clock.mint(now.wall_us) else {
            return refused(Refusal::NoTokens);
        };
        let new = NewHold {
            owner: ask.owner,
            token,
            lease_ms: ask.lease_ms,
            client: ask.client,
            binding: Binding::NONE,
        };
        let Some((id, change)) = begin_hold(&mut self.locks, now.boot, lock_key, existing, &new) else {
            self.clock.waste();
            return refused(Refusal::TooManyLocks);
        };
        self.stats.grants += 1;
        // Word for word only if nothing else is told.
        let as_asked = travel == Travel::Implicit && !ask.must_be_explicit && !is_over;
        Step {
            reply: Granted(token),
            change,
            record: if as_asked { Record::AsAsked } else { Record::Hold(id) },
        }
    }

    /// Puts the request in the queue, or in the queue entry that its owner has already (G9).
    fn wait_in_queue(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        ask: &Ask<'_>,
        wait: Wait,
        fx: &mut Effects,
    ) -> Acquired {
        let KeyRef { lock_key, existing } = key_ref;
        let request = ask.request(now.boot, wait);
        let queue = self.queues.at(lock_key);
        if let Some(old) = queue.and_then(|queue| self.queues.of_owner(queue, ask.owner)) {
            let since = self.queues.waiter(old).map_or(now.boot, |w| w.request.since);
            let Some((left, new)) = self.queues.take_over(old, Request { since, ..request }) else {
                return Busy;
            };
            if let Some(client) = left.request.client {
                fx.answer(old, client, Answer::Replaced);
            }
            return wait.reply(new);
        }
        if let Some(refusal) = self.is_full(queue, 1, &[]) {
            return Refused(refusal);
        }
        let new = self.queues.join(lock_key, request);
        let lock = self.any_hold(existing).map(|(lock, _)| lock);
        self.assert_nobody_waits_for_own(lock_key, lock);
        if let Some(queue) = self.queues.at(lock_key).and_then(|queue| self.queues.queue_mut(queue)) {
            queue.lock = lock;
        }
        if self.would_never_end(now.boot, new, &[]) { Refused(Refusal::Deadlock) } else { wait.reply(new) }
    }

    /// LOCK.EXEC: whether a command may run under this token. If not, that is counted, and the newest live token of
    /// the lock is told.
    pub fn fence(&mut self, now: Moment, existing: Existing, token: Token) -> Result<(), Option<Token>> {
        if self.is_live(now, existing, token) {
            return Ok(());
        }
        self.stats.fenced += 1;
        Err(self.live_token(now, existing))
    }

    /// LOCK.RELEASE of a plain lock that this owner holds and nobody waits for, as mostly; and what is to be published.
    /// `None`: it is for [`Self::release`], and nothing was done.
    #[inline(always)]
    pub fn release_at_once(
        &mut self,
        now: Moment,
        existing: Existing,
        owner: &[u8],
    ) -> Option<(Step<Option<bool>>, Option<Event>)> {
        let Existing::Lock(id) = existing else {
            return None;
        };
        // Where nobody waits anywhere it does not matter where this is.
        let key_ref = KeyRef { lock_key: LockKey { db: 0, name: &[] }, existing };
        if self.queues.waiters() > 0 || !self.is_plain(key_ref) {
            return None;
        }
        let hold = self.locks.hold(id)?;
        if hold.is_over(now) || !is_of(hold, owner, None) {
            return None;
        }
        self.give_up(now, id);
        let step = Step { reply: Some(true), change: Change::Deleted, record: Record::AsAsked };
        Some((step, Some(Event::Released)))
    }

    /// Ends a hold that its owner gives up. The caller publishes that.
    #[inline(always)]
    fn give_up(&mut self, now: Moment, id: LockId) {
        if let Some(ended) = self.locks.end(id, now) {
            self.stats.releases += 1;
            self.stats.holds.add(ended.held_ms);
        }
    }

    /// LOCK.RELEASE. The reply is whether a hold was given up; `None`: the key holds something else.
    pub fn release(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        release: &Release<'_>,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Step<Option<bool>> {
        if key_ref.existing == Existing::Other {
            self.dismiss_from_other(key_ref, fx);
            return Step::unchanged(None);
        }
        self.end_waits_for_arrived(now.boot, key_ref, fx);
        let queue = self.queues.at(key_ref.lock_key);
        if let Some(waiter) = queue.and_then(|queue| self.queues.of_owner(queue, release.owner)) {
            self.answer(waiter, Answer::Withdrawn, fx);
            self.note_left(None);
        }
        if !self.is_plain(key_ref) {
            return self.release_any(now, key_ref, release, admission, fx);
        }
        let Some((id, hold)) = self.any_hold(key_ref.existing) else {
            return Step::unchanged(Some(false));
        };
        if hold.is_over(now.boot) {
            let over = self.end_if_over(now.boot, key_ref.existing, fx);
            let record = over.map_or(Record::Nothing, Record::Ended);
            return self.pass_on(now, key_ref, record, admission, fx).reply(Some(false));
        }
        if !is_of(hold, release.owner, release.token) {
            return Step::unchanged(Some(false));
        }
        self.give_up(now.boot, id);
        fx.publish(Event::Released);
        self.pass_on(now, key_ref, Record::AsAsked, admission, fx).reply(Some(true))
    }

    /// LOCK.RENEW. The reply is whether the hold was renewed.
    pub fn renew(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        renewal: &Renewal<'_>,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Step<Result<bool, Refusal>> {
        if key_ref.existing == Existing::Other {
            self.dismiss_from_other(key_ref, fx);
            return Step::unchanged(Err(Refusal::WrongType));
        }
        if renewal.raise.is_some() || !self.is_plain(key_ref) {
            return self.renew_any(now, key_ref, renewal, admission, fx);
        }
        if let Some(over) = self.end_if_over(now.boot, key_ref.existing, fx) {
            let step = self.pass_on(now, key_ref, Record::Ended(over), admission, fx);
            return step.reply(Ok(false));
        }
        let id = match self.live(now.boot, key_ref.existing) {
            Some((id, hold)) if is_of(hold, renewal.owner, renewal.token) => id,
            _ => return Step::unchanged(Ok(false)),
        };
        self.locks.extend(id, now.boot, renewal.lease_ms);
        self.note_asked_again(id, renewal.client);
        Step { reply: Ok(true), change: Change::Touched, record: Record::AsAsked }
    }
}

/// G10: a hold is touched by its own owner only, and by no older request of its owner if it names a token.
#[inline(always)]
pub(super) fn is_of(hold: Hold<'_>, owner: &[u8], token: Option<Token>) -> bool {
    token.is_none_or(|token| token == hold.token()) && hold.is_of(owner)
}

#[cfg(test)]
mod tests {
    use super::super::terms::Decision;
    use super::*;
    use crate::lock::tests::legacy::ask;
    use crate::lock::types::Mode;

    #[test]
    fn a_fenced_command_is_counted_and_told_the_live_token() {
        let (mut table, mut fx) = (Table::default(), Effects::default());
        let now = Now { boot: Moment(1_000_000), wall_us: 1_000_000 };
        let lock_key = LockKey { db: 0, name: b"door" };
        let [old, live] = [1, 1_000_000].map(|number| Token::new(number).unwrap());
        assert_eq!(table.fence(now.boot, Existing::Nothing, old), Err(None));
        let ask = Ask { lease_ms: 10, ..ask(b"alice", Mode::Exclusive, None) };
        let key_ref = KeyRef { lock_key, existing: Existing::Nothing };
        let step = table.acquire(now, key_ref, &ask, &mut |_| Decision::Granted, &mut fx);
        let Change::Stored(lock) = step.change else { panic!("{step:?}") };
        assert_eq!(table.fence(now.boot, Existing::Lock(lock), live), Ok(()));
        assert_eq!(table.fence(now.boot, Existing::Lock(lock), old), Err(Some(live)));
        let later = now.boot.plus_ms(10);
        assert_eq!(table.fence(later, Existing::Lock(lock), live), Err(None));
        assert_eq!(table.stats.fenced, 3);
    }
}
