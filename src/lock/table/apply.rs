//! Applies facts decided elsewhere: the replication stream, the append-only file, RDB and DUMP payloads.
//!
//! Nothing here refuses, waits or looks at a lease: the primary has decided (G13). Each fact goes on unchanged to
//! this server's own append-only file. Only in a new file must a counted token be named.

use super::key_step::KeyStep;
use super::requests::{Granted, KeyRef, Release, Renewal};
use super::state::Table;
use crate::lock::codec::{SavedHold, SavedLock};
use crate::lock::effect::{Change, Effects, Event, LockId, Record, Step};
use crate::lock::locks::{Hold, NewHold};
use crate::lock::token::Travel;
use crate::lock::types::{LockKey, Mode, Moment, OwnerBuf, Token};

impl Table {
    /// Applies a request that the primary granted, in the words of the client.
    pub fn apply_acquire(
        &mut self,
        now: Moment,
        key_ref: KeyRef<'_>,
        granted: &Granted<'_>,
        fx: &mut Effects,
    ) -> Step<()> {
        let mut ctx = KeyStep::new(key_ref);
        if self.apply_again(now, &ctx, granted) {
            return travels_on(Change::Touched);
        }
        let Some((token, travel)) = self.clock.count() else {
            return Step::unchanged(());
        };
        let Some(named) = self.apply_begin(now, &mut ctx, granted, token, fx) else {
            return Step::unchanged(());
        };
        let record = match travel {
            Travel::Implicit => Record::AsAsked,
            Travel::Explicit => named,
        };
        Step { reply: (), change: self.close(&ctx), record }
    }

    /// Applies a request for several locks that the primary granted, in the words of the client.
    pub fn apply_acquire_many(
        &mut self,
        now: Moment,
        refs: &[KeyRef<'_>],
        granted: &Granted<'_>,
        fx: &mut [Effects],
    ) -> Vec<Step<()>> {
        let mut ctxs: Vec<KeyStep<'_>> = refs.iter().map(|&key_ref| KeyStep::new(key_ref)).collect();
        let tokens: Vec<Option<Token>> = ctxs
            .iter()
            .map(|ctx| {
                ctx.own(&self.locks, granted.owner).filter(|_| ctx.held_as(&self.locks) == Some(granted.mode))
            })
            .map(|own| own.map(|(_, hold)| hold.token()))
            .collect();
        let is_again =
            tokens.first().is_some_and(|first| first.is_some() && tokens.iter().all(|t| t == first));
        let mut steps = Vec::with_capacity(ctxs.len());
        let counted = if is_again { None } else { self.clock.count() };
        for (number, (ctx, fx)) in ctxs.iter_mut().zip(fx).enumerate() {
            let as_asked = if number == 0 { Record::AsAsked } else { Record::Nothing };
            let (change, record) = match counted {
                None if is_again && self.apply_again(now, ctx, granted) => (Change::Touched, as_asked),
                None => (Change::Nothing, Record::Nothing),
                Some((token, travel)) => match self.apply_begin(now, ctx, granted, token, fx) {
                    Some(_) if travel == Travel::Implicit => (self.close(ctx), as_asked),
                    Some(named) => (self.close(ctx), named),
                    None => (Change::Nothing, Record::Nothing),
                },
            };
            steps.push(Step { reply: (), change, record });
        }
        steps
    }

    /// Applies a repeated request, if the owner holds the lock in this mode already. Returns true if so.
    fn apply_again(&mut self, now: Moment, ctx: &KeyStep<'_>, granted: &Granted<'_>) -> bool {
        let held_as = ctx.held_as(&self.locks);
        let Some((holder, hold)) =
            ctx.own(&self.locks, granted.owner).filter(|_| held_as == Some(granted.mode))
        else {
            return false;
        };
        let (count, binding, is_longer) =
            (hold.count(), hold.binding(), hold.ends_before(now, granted.lease_ms));
        if !granted.binding.is_none() && granted.binding != binding {
            self.locks.rebind(holder, now, granted.binding, None);
        }
        if is_longer {
            self.locks.extend(holder, now, granted.lease_ms);
        }
        if granted.is_reentrant {
            self.locks.set_count(holder, count.saturating_add(1));
        }
        true
    }

    /// Begins a hold, whatever was there.
    fn apply_begin(
        &mut self,
        now: Moment,
        ctx: &mut KeyStep<'_>,
        granted: &Granted<'_>,
        token: Token,
        fx: &mut Effects,
    ) -> Option<Record> {
        let Granted { owner, lease_ms, mode, binding, .. } = *granted;
        let new = NewHold { owner, token, lease_ms, client: None, binding };
        self.make_way(now, ctx, mode, &new, fx);
        let record = self.begin(now, ctx, mode, &new)?;
        ctx.lock.into_iter().for_each(|lock| self.note_arrived(ctx.key_ref.lock_key, lock));
        fx.publish(Event::Acquired);
        Some(record)
    }

    /// Ends holds that exclude a hold from the stream.
    fn make_way(
        &mut self,
        now: Moment,
        ctx: &mut KeyStep<'_>,
        mode: Mode,
        new: &NewHold<'_>,
        fx: &mut Effects,
    ) {
        let Some(lock) = ctx.lock else {
            return;
        };
        if mode != Mode::Exclusive && ctx.held_as(&self.locks) == Some(mode) {
            // Its own hold, and one with the same token, which only a damaged record can name.
            let own = ctx.own(&self.locks, new.owner).map(|(holder, _)| holder);
            if let Some(own) = own {
                ctx.end_one(&mut self.locks, now, own);
            }
            let same = ctx.lock.and_then(|lock| self.locks.hold_with(lock, new.token));
            if let Some(same) = same.map(|(holder, _)| holder) {
                ctx.end_one(&mut self.locks, now, same);
            }
            self.make_room(now, ctx, mode, fx);
            return;
        }
        for _ in self.locks.break_up(lock, now) {
            fx.publish(Event::Released);
        }
        if lock.is_list() {
            ctx.lock = None;
        }
    }

    /// Ends the oldest hold of a full semaphore. Only a damaged stream or file names more holders than permits, and
    /// no server could load a snapshot of that.
    fn make_room(&mut self, now: Moment, ctx: &mut KeyStep<'_>, mode: Mode, fx: &mut Effects) {
        let (Mode::Limit(limit), Some(lock)) = (mode, ctx.lock) else {
            return;
        };
        if self.locks.holders_of(lock) < limit as usize {
            return;
        }
        let oldest = self.locks.holders(lock).next().map(|(holder, _)| holder);
        if let Some(oldest) = oldest {
            ctx.end_one(&mut self.locks, now, oldest);
            fx.publish(Event::Released);
        }
    }

    /// Applies a release that the primary carried out.
    pub fn apply_release(
        &mut self,
        now: Moment,
        key_ref: KeyRef<'_>,
        release: &Release<'_>,
        fx: &mut Effects,
    ) -> Step<()> {
        let ctx = KeyStep::new(key_ref);
        let held = ctx.own_with(&self.locks, release.owner, release.token);
        let held = held.map(|(holder, hold)| (holder, hold.count()));
        if let Some((holder, count)) = held.filter(|(_, count)| *count > 1) {
            self.locks.set_count(holder, count - 1);
            return travels_on(Change::Touched);
        }
        self.apply_end(now, ctx, held.map(|(holder, _)| holder), Event::Released, fx)
    }

    /// Applies a renewal that the primary carried out.
    pub fn apply_renew(&mut self, now: Moment, key_ref: KeyRef<'_>, renewal: &Renewal<'_>) -> Step<()> {
        let ctx = KeyStep::new(key_ref);
        match ctx.own_with(&self.locks, renewal.owner, renewal.token) {
            Some((holder, _)) => {
                self.locks.extend(holder, now, renewal.lease_ms);
                self.locks.note_shown(holder, renewal.client);
                if let Some(raise) = renewal.raise {
                    self.raise_token(&ctx, holder, raise);
                }
                travels_on(Change::Touched)
            }
            _ => Step::unchanged(()),
        }
    }

    /// Makes this owner a holder with this token: alone, or alongside the holders of the same mode.
    pub fn apply_hold(
        &mut self,
        now: Moment,
        key_ref: KeyRef<'_>,
        mode: Mode,
        saved: &SavedHold,
        fx: &mut Effects,
    ) -> Step<()> {
        let mut ctx = KeyStep::new(key_ref);
        if self.apply_going_on(now, &ctx, mode, saved) {
            return travels_on(Change::Touched);
        }
        let new = new_hold(saved);
        self.make_way(now, &mut ctx, mode, &new, fx);
        if self.begin(now, &mut ctx, mode, &new).is_none() {
            return Step::unchanged(());
        }
        ctx.lock.into_iter().for_each(|lock| self.note_arrived(key_ref.lock_key, lock));
        if let Some(holder) = ctx.own(&self.locks, &saved.owner).map(|(holder, _)| holder) {
            self.locks.set_count(holder, saved.count);
        }
        self.clock.hear(saved.token);
        fx.publish(Event::Acquired);
        travels_on(self.close(&ctx))
    }

    /// Changes the lease, count or binding of a hold that is here already. Nothing begins, so the key keeps its time
    /// to live, as on the primary. Returns true if the hold was here.
    fn apply_going_on(&mut self, now: Moment, ctx: &KeyStep<'_>, mode: Mode, saved: &SavedHold) -> bool {
        let own = ctx.own(&self.locks, &saved.owner).filter(|(_, hold)| hold.token() == saved.token);
        let Some((holder, _)) = own.filter(|_| ctx.held_as(&self.locks) == Some(mode)) else {
            return false;
        };
        self.undelivered.note_delivered(saved.token, holder);
        self.locks.go_on_as_replicated(holder, now, saved.left_ms, saved.binding);
        self.locks.set_count(holder, saved.count);
        true
    }

    /// Ends the hold with this token other than by a release.
    pub fn apply_ended(
        &mut self,
        now: Moment,
        key_ref: KeyRef<'_>,
        token: Token,
        fx: &mut Effects,
    ) -> Step<()> {
        let ctx = KeyStep::new(key_ref);
        let held = ctx.lock.and_then(|lock| self.locks.hold_with(lock, token));
        self.apply_end(now, ctx, held.map(|(holder, _)| holder), Event::Expired, fx)
    }

    /// Puts an empty lock at this key.
    pub fn apply_empty(&mut self, now: Moment, lock_key: LockKey<'_>) -> Step<()> {
        let made = self.locks.insert(now, lock_key, None);
        made.map_or(Step::unchanged(()), |id| travels_on(Change::Stored(id)))
    }

    fn apply_end(
        &mut self,
        now: Moment,
        mut ctx: KeyStep<'_>,
        held: Option<LockId>,
        event: Event,
        fx: &mut Effects,
    ) -> Step<()> {
        match held.and_then(|holder| ctx.end_one(&mut self.locks, now, holder)) {
            Some(_) => {
                fx.publish(event);
                travels_on(self.close(&ctx))
            }
            None => Step::unchanged(()),
        }
    }

    /// Loads a lock from a file or a payload, before the key that will hold its number. Returns `None` if there are
    /// too many locks.
    pub fn load(&mut self, now: Moment, lock_key: LockKey<'_>, saved: Option<&SavedLock>) -> Option<LockId> {
        let lock = self.take_in(now, lock_key, saved)?;
        if saved.is_some() {
            self.note_arrived(lock_key, lock);
        }
        self.assert_nobody_waits_for_own(lock_key, Some(lock));
        Some(lock)
    }

    fn take_in(&mut self, now: Moment, lock_key: LockKey<'_>, saved: Option<&SavedLock>) -> Option<LockId> {
        let Some(SavedLock { mode, holds }) = saved else {
            return self.locks.insert(now, lock_key, None);
        };
        let mut new = holds.iter().map(new_hold);
        let lock = match *mode {
            Mode::Exclusive => self.locks.insert(now, lock_key, new.next().as_ref())?,
            mode => self.locks.insert_list(now, lock_key, mode, new)?,
        };
        for hold in holds.iter().filter(|hold| hold.count > 1) {
            if let Some((holder, _)) = self.locks.hold_with(lock, hold.token) {
                self.locks.set_count(holder, hold.count);
            }
        }
        holds.last().into_iter().for_each(|newest| self.clock.raise(newest.token));
        Some(lock)
    }

    /// Returns the saved form of a lock; `None` if it is empty.
    #[must_use]
    pub fn save(&self, now: Moment, id: LockId) -> Option<SavedLock> {
        let mode = self.locks.mode(id)?;
        let holds = self.locks.holders(id).map(|(_, hold)| saved(now, hold)).collect();
        Some(SavedLock { mode, holds })
    }

    /// Returns the record of one hold for readers.
    #[must_use]
    pub fn save_hold(&self, now: Moment, holder: LockId) -> Option<SavedHold> {
        self.locks.hold(holder).map(|hold| saved(now, hold))
    }
}

fn saved(now: Moment, hold: Hold<'_>) -> SavedHold {
    SavedHold {
        owner: OwnerBuf::from_slice(&hold.owner()),
        token: hold.token(),
        left_ms: hold.left_ms(now),
        count: hold.count(),
        binding: hold.binding(),
    }
}

/// Returns the new hold that a record describes.
fn new_hold(saved: &SavedHold) -> NewHold<'_> {
    NewHold {
        owner: &saved.owner,
        token: saved.token,
        lease_ms: saved.left_ms,
        client: None,
        binding: saved.binding,
    }
}

/// Returns a step that passes the fact on unchanged.
const fn travels_on(change: Change) -> Step<()> {
    Step { reply: (), change, record: Record::AsAsked }
}
