//! Decides requests for several locks, all or none (G12).
//!
//! A waiting request of this kind is in the queue of each lock and holds none of them. It joins all queues in one
//! step, so of two such requests the same one is ahead everywhere.

use super::key_step::KeyStep;
use super::requests::Acquired::{Busy, Granted, Refused, Waiting};
use super::requests::{
    Acquired, Admission, Ask, Decision, KeyRef, NO_TOKENS, Refusal, Steps, TOO_MANY_LOCKS, Wait, candidate,
};
use super::state::Table;
use crate::lock::effect::{Answer, Effects, Event, Existing, Record, Step, WaiterId};
use crate::lock::locks::NewHold;
use crate::lock::queue::Request;
use crate::lock::token::Travel;
use crate::lock::types::{LockKey, LockKeyBuf, Mode, Moment, Now, Token};

impl Table {
    /// Decides LOCK.MACQUIRE. `fx` has room for each of the key references.
    pub fn acquire_many(
        &mut self,
        now: Now,
        refs: &[KeyRef<'_>],
        ask: &Ask<'_>,
        admission: Admission<'_>,
        fx: &mut [Effects],
    ) -> Steps<Acquired> {
        self.leave_quarantine(now.boot);
        let mut ctxs = self.open_steps(now.boot, refs, fx);
        for (ctx, fx) in ctxs.iter_mut().zip(fx.iter_mut()) {
            self.expire_due_holds(now.boot, ctx, Some(ask.owner), None, fx);
        }
        if self.holds_all(&ctxs, ask.owner, ask.mode).is_none() {
            for (ctx, fx) in ctxs.iter_mut().zip(fx.iter_mut()) {
                self.revoke_own(now.boot, ctx, ask, fx);
            }
        }
        self.admit_queues(now, &mut ctxs, admission, fx);
        let reply = self.take_or_wait_for_all(now, &mut ctxs, ask, fx);
        if matches!(reply, Granted(_)) {
            self.admit_queues(now, &mut ctxs, admission, fx);
        }
        (reply, self.close_all(&ctxs))
    }

    fn open_steps<'a>(&mut self, now: Moment, refs: &[KeyRef<'a>], fx: &mut [Effects]) -> Vec<KeyStep<'a>> {
        refs.iter().zip(fx).map(|(&key_ref, fx)| self.open_step(now, key_ref, fx)).collect()
    }

    fn close_all(&mut self, ctxs: &[KeyStep<'_>]) -> Vec<Step<()>> {
        ctxs.iter().map(|ctx| self.step(ctx, ())).collect()
    }

    fn admit_queues(
        &mut self,
        now: Now,
        ctxs: &mut [KeyStep<'_>],
        admission: Admission<'_>,
        fx: &mut [Effects],
    ) {
        // One step serves a bounded number of waiters, however many locks there are.
        let mut served = ctxs.iter().map(|ctx| ctx.served).max().unwrap_or(0);
        for (ctx, fx) in ctxs.iter_mut().zip(fx) {
            ctx.served = served;
            self.admit_queue(now, ctx, admission, fx);
            served = ctx.served;
        }
    }

    fn take_or_wait_for_all(
        &mut self,
        now: Now,
        ctxs: &mut [KeyStep<'_>],
        ask: &Ask<'_>,
        fx: &mut [Effects],
    ) -> Acquired {
        let is_other =
            |ctx: &KeyStep<'_>| ctx.held_as(&self.locks).is_none() && ctx.key_ref.existing == Existing::Other;
        if ctxs.iter().any(is_other) {
            return Refused(Refusal::WrongType);
        }
        let held = self.holds_all(ctxs, ask.owner, ask.mode);
        let other_kind = |ctx: &KeyStep<'_>| {
            let (held_as, queue) = (ctx.held_as(&self.locks), self.queues.at(ctx.key_ref.lock_key));
            self.other_kind(held_as, queue, ask.mode)
        };
        if let Some(other) = ctxs.iter().find_map(other_kind) {
            return Refused(Refusal::OtherKind(other));
        }
        let is_own = |ctx: &KeyStep<'_>| ctx.own(&self.locks, ask.owner).is_some();
        if held.is_none()
            && let Some(key) = ctxs.iter().position(is_own)
        {
            return Refused(Refusal::Held(key));
        }
        if self.restrictions.refuses_unconfirmed(ask, held.is_some()) {
            return Refused(Refusal::Unconfirmable);
        }
        if let Some(token) = held {
            return self.hold_all_again(now, ctxs, ask, token, fx);
        }
        if self.restrictions.is_leaving() {
            return Refused(Refusal::Leaving);
        }
        let own = self.own_multi(ctxs, ask);
        let is_turn = ctxs.iter().all(|ctx| match self.queues.at(ctx.key_ref.lock_key) {
            None => self.fits(ctx, ask.mode, 0),
            Some(queue) => match self.queues.of_owner(queue, ask.owner) {
                Some(entry) => own.is_some() && self.is_turn_of(ctx, queue, entry),
                None => self.fits_beside(ctx, queue, ask.mode, None),
            },
        });
        if is_turn {
            let reply = self.take_all(now, ctxs, ask, fx);
            if let (Some(own), Some(fx), Granted(_)) = (own, fx.first_mut(), &reply) {
                self.answer(own, Answer::Replaced, fx);
            }
            return reply;
        }
        self.wait_for_all(now, ctxs, ask, own, fx)
    }

    /// Returns the token under which this owner already holds all of these locks in this mode.
    fn holds_all(&self, ctxs: &[KeyStep<'_>], owner: &[u8], mode: Mode) -> Option<Token> {
        let mut tokens = ctxs.iter().map(|ctx| {
            let own = ctx.own(&self.locks, owner).filter(|_| ctx.held_as(&self.locks) == Some(mode));
            own.map(|(_, hold)| hold.token())
        });
        let first = tokens.next()??;
        tokens.all(|token| token == Some(first)).then_some(first)
    }

    fn hold_all_again(
        &mut self,
        now: Now,
        ctxs: &mut [KeyStep<'_>],
        ask: &Ask<'_>,
        token: Token,
        fx: &mut [Effects],
    ) -> Acquired {
        let mut is_any_longer = false;
        // These leases pause from now on, for this connection.
        let mut standing = Vec::new();
        for ctx in &mut *ctxs {
            let Some((holder, hold)) = ctx.own(&self.locks, ask.owner) else {
                continue;
            };
            let is_longer = hold.ends_before(now.boot, ask.lease_ms);
            let binding = hold.binding();
            self.note_asked_again(holder, ask.client);
            if self.locks.rebind(holder, now.boot, binding, ask.bind_to) {
                standing.push(holder);
                ctx.touch();
            }
            if is_longer {
                self.locks.extend(holder, now.boot, ask.lease_ms);
                ctx.touch();
                is_any_longer = true;
            }
        }
        if let Some((ctx, fx)) = ctxs.first_mut().zip(fx.first_mut()).filter(|_| is_any_longer) {
            ctx.replicate(Record::AsAsked, fx);
        }
        for (ctx, fx) in ctxs.iter_mut().zip(fx) {
            if let Some((holder, _)) =
                ctx.own(&self.locks, ask.owner).filter(|(holder, _)| standing.contains(holder))
            {
                ctx.replicate(self.record_of(ctx, holder), fx);
            }
        }
        Granted(token)
    }

    /// Returns this owner's waiting request for the same locks in the same mode.
    fn own_multi(&self, ctxs: &[KeyStep<'_>], ask: &Ask<'_>) -> Option<WaiterId> {
        let of_owner =
            |ctx: &KeyStep<'_>| self.queues.of_owner(self.queues.at(ctx.key_ref.lock_key)?, ask.owner);
        let first = self.queues.waiter(of_owner(ctxs.first()?)?)?;
        let multi = self.queues.multi(first.multi?)?;
        let is_same = first.request.mode == ask.mode
            && multi.entries.len() == ctxs.len()
            && ctxs.iter().all(|ctx| of_owner(ctx).is_some_and(|entry| multi.entries.contains(&entry)));
        if is_same { multi.entries.first().copied() } else { None }
    }

    fn take_all(
        &mut self,
        now: Now,
        ctxs: &mut [KeyStep<'_>],
        ask: &Ask<'_>,
        fx: &mut [Effects],
    ) -> Acquired {
        if !self.locks.has_room() {
            return Refused(Refusal::TooManyLocks);
        }
        let Some((token, travel)) = self.clock.mint(now.wall_us) else {
            return Refused(Refusal::NoTokens);
        };
        let is_told = ctxs.iter().any(KeyStep::replicates);
        let as_asked = travel == Travel::Implicit && !ask.must_be_explicit && !is_told;
        self.begin_all(now, ctxs, (ask.mode, &ask.hold(token)), (as_asked, false), fx);
        Granted(token)
    }

    /// Begins one hold in each lock. A record in the words of the request is written once.
    fn begin_all(
        &mut self,
        now: Now,
        ctxs: &mut [KeyStep<'_>],
        grant: (Mode, &NewHold<'_>),
        (as_asked, is_told_later): (bool, bool),
        fx: &mut [Effects],
    ) {
        for (number, (ctx, fx)) in ctxs.iter_mut().zip(fx).enumerate() {
            if let Some(record) = self.begin_granted(now.boot, ctx, grant, is_told_later) {
                fx.publish(Event::Acquired);
                match as_asked {
                    true if number == 0 => ctx.replicate(Record::AsAsked, fx),
                    true => {}
                    false => ctx.replicate(record, fx),
                }
            } else {
                self.clock.waste();
            }
        }
    }

    fn wait_for_all(
        &mut self,
        now: Now,
        ctxs: &[KeyStep<'_>],
        ask: &Ask<'_>,
        own: Option<WaiterId>,
        fx: &mut [Effects],
    ) -> Acquired {
        let (Some(Wait::Block(block)), Some(fx)) = (ask.wait, fx.first_mut()) else {
            let left_ms = self.quarantine_left_ms(now.boot);
            return left_ms.map_or(Busy, |left_ms| Refused(Refusal::Quarantine(left_ms)));
        };
        let mut since = now.boot;
        if let Some(own) = own {
            // Its queue entries stay; only the connection to answer changes.
            since = self.queues.waiter(own).map_or(since, |own| own.request.since);
            let taken = self.queues.take_over_all(own, block.client, block.until, ask.lease_ms);
            if let Some((old_client, new)) = taken {
                if let Some(client) = old_client {
                    fx.answer(own, client, Answer::Replaced);
                }
                self.notes.note_request(&mut self.queues, new);
                return Waiting(new);
            }
        }
        let older = self.older_requests(ctxs, ask.owner);
        // They may have thousands of entries, so these are looked up once for all keys.
        let replaced = self.queues_of(&older);
        let full =
            |ctx: &KeyStep<'_>| self.is_full(self.queues.at(ctx.key_ref.lock_key), ctxs.len(), &replaced);
        if let Some(refusal) = ctxs.iter().find_map(full) {
            return Refused(refusal);
        }
        let lock_keys: Vec<LockKey<'_>> = ctxs.iter().map(|ctx| ctx.key_ref.lock_key).collect();
        let request = Request { since, ..ask.request(now.boot, Wait::Block(block)) };
        let Some(new) = self.queues.join_all(&lock_keys, &request) else {
            return Busy;
        };
        for ctx in ctxs {
            self.set_lock_of_queue(ctx, self.queues.at(ctx.key_ref.lock_key));
        }
        if self.would_never_end(now.boot, new, &older) {
            return Refused(Refusal::Deadlock);
        }
        if !older.is_empty() {
            // The older requests may have been all that was ahead of it.
            self.notes.note_request(&mut self.queues, new);
        }
        // Only now: a refused request replaces nothing (G9).
        older.into_iter().for_each(|old| self.answer(old, Answer::Replaced, fx));
        Waiting(new)
    }

    /// Returns this owner's requests in these queues.
    fn older_requests(&self, ctxs: &[KeyStep<'_>], owner: &[u8]) -> Vec<WaiterId> {
        let in_queue = |ctx: &KeyStep<'_>| self.queues.of_owner(self.queues.at(ctx.key_ref.lock_key)?, owner);
        let mut older: Vec<WaiterId> =
            ctxs.iter().filter_map(in_queue).map(|entry| self.queues.first_entry(entry)).collect();
        older.sort_unstable_by_key(|first_entry| first_entry.number());
        older.dedup();
        older
    }

    /// Returns the keys of a waiting request for several locks.
    #[must_use]
    pub fn keys_of(&self, first_entry: WaiterId) -> Vec<LockKeyBuf> {
        let multi =
            self.queues.waiter(first_entry).and_then(|first_entry| self.queues.multi(first_entry.multi?));
        let entries = multi.into_iter().flat_map(|multi| &multi.entries);
        let queues = entries.filter_map(|&entry| self.queues.queue(self.queues.waiter(entry)?.queue));
        queues.map(|queue| queue.lock_key.clone()).collect()
    }

    /// Grants a waiting request for several locks if it is first in every queue.
    pub fn settle_many(
        &mut self,
        now: Now,
        first_entry: WaiterId,
        refs: &[KeyRef<'_>],
        admission: Admission<'_>,
        fx: &mut [Effects],
    ) -> Vec<Step<()>> {
        let mut ctxs = self.open_steps(now.boot, refs, fx);
        for (ctx, fx) in ctxs.iter_mut().zip(fx.iter_mut()) {
            self.expire_due_holds(now.boot, ctx, None, None, fx);
            self.dismiss_from_other(ctx.key_ref, fx);
            if let Some(queue) = self.queues.at(ctx.key_ref.lock_key) {
                self.end_lapsed(now.boot, queue, fx);
            }
        }
        // Even if this request keeps waiting: other waiters may need what expired here.
        if self.try_all(now, first_entry, &mut ctxs, admission, fx).is_some()
            || ctxs.iter().any(KeyStep::has_ended)
        {
            self.admit_queues(now, &mut ctxs, admission, fx);
        }
        self.close_all(&ctxs)
    }

    /// Returns `None` if the request stays in the queue.
    fn try_all(
        &mut self,
        now: Now,
        first_entry: WaiterId,
        ctxs: &mut [KeyStep<'_>],
        admission: Admission<'_>,
        fx: &mut [Effects],
    ) -> Option<()> {
        let waiter = self.queues.waiter(first_entry)?;
        let (multi, request) = (waiter.multi?, waiter.request.clone());
        let entries = self.queues.multi(multi)?.entries.clone();
        let first_fx = fx.first_mut()?;
        if request.until.is_some_and(|until| until <= now.boot) {
            self.time_out(first_entry, first_fx);
            return Some(());
        }
        for (ctx, &entry) in ctxs.iter().zip(&entries) {
            let queue = self.queues.waiter(entry)?.queue;
            if !self.is_turn_of(ctx, queue, entry) {
                self.queues.multi_mut(multi)?.held_up_in = Some(queue);
                return None;
            }
        }
        let client = request.client?;
        for ctx in &*ctxs {
            let candidate = candidate(&request, ctx.key_ref.lock_key, Some(entries.len()))?;
            match self.admit(first_entry, candidate, admission, first_fx) {
                Decision::Granted => {}
                Decision::Refused(_) => return Some(()),
                Decision::NotNow => return None,
            }
        }
        let minted = match self.locks.has_room() {
            true => self.clock.mint(now.wall_us).ok_or(NO_TOKENS),
            false => Err(TOO_MANY_LOCKS),
        };
        let token = match minted {
            Ok((token, _)) => token,
            Err(refusal) => {
                self.answer(first_entry, Answer::Refused(refusal), first_fx);
                return Some(());
            }
        };
        self.queues.leave(first_entry);
        self.count_waited(now.boot, request.since, ctxs.len() as u64);
        let mut lock_keys = ctxs.iter().map(|ctx| ctx.key_ref.lock_key);
        let lock_key = lock_keys.next()?;
        let others = lock_keys.map(|lock_key| lock_key.to_owned()).collect();
        first_fx.answer(first_entry, client, request.clone().granted(lock_key, others, token));
        self.begin_all(now, ctxs, (request.mode, &request.hold(token)), (false, true), fx);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::effect::{Change, Effect};

    use crate::lock::tests::legacy::ask;

    const NOW: Now = Now { boot: Moment(1_000_000), wall_us: 1_000_000 };

    #[test]
    fn a_grant_of_several_locks_is_told_once() {
        let lock_keys = [b"a", b"b", b"c"].map(|name| LockKey { db: 0, name });
        for count in 1..=lock_keys.len() {
            let refs: Vec<_> = lock_keys[..count]
                .iter()
                .map(|&lock_key| KeyRef { lock_key, existing: Existing::Nothing })
                .collect();
            let ask = ask(b"ann", Mode::Exclusive, None);
            let mut table = Table::default();
            // Its first token tells readers how far the clock is, so it is told by name.
            for is_first in [true, false] {
                let mut fx: Vec<Effects> = refs.iter().map(|_| Effects::default()).collect();
                let (reply, steps) =
                    table.acquire_many(NOW, &refs, &ask, &mut |_| Decision::Granted, &mut fx);
                assert!(matches!(reply, Granted(_)), "{reply:?}");
                let records: Vec<_> = steps.iter().map(|step| step.record).collect();
                let mut as_asked = vec![Record::Nothing; count];
                as_asked[0] = Record::AsAsked;
                let by_name = records.iter().all(|record| matches!(record, Record::Hold(_)));
                assert!(if is_first { by_name } else { records == as_asked }, "{records:?}");
                table.flushed(NOW.boot, None, true);
            }
        }
    }

    #[test]
    fn where_numbers_have_run_out_a_waiting_request_is_told_so_and_takes_no_token() {
        let free = [b"a", b"b"]
            .map(|name| KeyRef { lock_key: LockKey { db: 0, name }, existing: Existing::Nothing });
        let mut table = Table::default();
        let mut fx = Effects::default();
        let eve = ask(b"eve", Mode::Exclusive, None);
        let step = table.acquire(NOW, free[0], &eve, &mut |_| Decision::Granted, &mut fx);
        let Change::Stored(lock) = step.change else { panic!("{step:?}") };
        let held = [KeyRef { existing: Existing::Lock(lock), ..free[0] }, free[1]];
        let mut fx = [Effects::default(), Effects::default()];
        let ann = ask(b"ann", Mode::Exclusive, Some(2));
        let (reply, _) = table.acquire_many(NOW, &held, &ann, &mut |_| Decision::Granted, &mut fx);
        let Waiting(waiter) = reply else { panic!("{reply:?}") };
        let last = table.last_token();
        table.locks.use_up_numbers();
        table.settle_many(NOW, waiter, &free, &mut |_| Decision::Granted, &mut fx);
        let told = fx.into_iter().flat_map(Effects::into_iter).find_map(|effect| match effect {
            Effect::Answer { answer, .. } => Some(answer),
            _ => None,
        });
        assert_eq!(told, Some(Answer::Refused(TOO_MANY_LOCKS)));
        assert_eq!(table.last_token(), last);
    }
}
