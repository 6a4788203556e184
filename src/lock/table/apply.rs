//! Facts decided elsewhere: the replication stream, the append-only file, RDB and DUMP payloads.
//!
//! Nothing here refuses, waits or looks at a lease: the primary said it, so it is so (G13). Every
//! applied fact travels on as it came, to this server's own append-only file; only a counted token must
//! be named there if that file is new.

use super::decide::is_of;
use super::line::At;
use super::state::*;
use crate::lock::codec::{SavedHold, SavedLock};

impl Table {
    /// A request that the primary granted, word for word.
    pub fn apply_acquire(
        &mut self,
        now: Moment,
        place: Place<'_>,
        found: Found,
        granted: &Granted<'_>,
        fx: &mut Effects,
    ) -> Step<()> {
        let mut at = At::new(place, found);
        if self.apply_again(now, &at, granted) {
            return told(Change::Touched);
        }
        let Some((token, travel)) = self.clock.count() else {
            return Step::unchanged(());
        };
        let Some(named) = self.apply_begin(now, &mut at, granted, token, fx) else {
            return Step::unchanged(());
        };
        let record = match travel {
            Travel::Counted => Record::AsAsked,
            Travel::Named => named,
        };
        Step { reply: (), change: self.close(&at), record }
    }

    /// A request for several locks that the primary granted, word for word.
    pub fn apply_acquire_many(
        &mut self,
        now: Moment,
        spots: &[Spot<'_>],
        granted: &Granted<'_>,
        fx: &mut [Effects],
    ) -> Vec<Step<()>> {
        let mut ats: Vec<At<'_>> = spots.iter().map(|spot| At::new(spot.place, spot.found)).collect();
        let tokens: Vec<Option<Token>> = ats
            .iter()
            .map(|at| self.own(at, granted.owner).filter(|_| self.held_as(at) == Some(granted.mode)))
            .map(|own| own.map(|(_, hold)| hold.token()))
            .collect();
        let is_again =
            tokens.first().is_some_and(|first| first.is_some() && tokens.iter().all(|t| t == first));
        let mut steps = Vec::with_capacity(ats.len());
        let counted = if is_again { None } else { self.clock.count() };
        for (number, (at, fx)) in ats.iter_mut().zip(fx).enumerate() {
            let as_asked = if number == 0 { Record::AsAsked } else { Record::Nothing };
            let (change, record) = match counted {
                None if is_again && self.apply_again(now, at, granted) => (Change::Touched, as_asked),
                None => (Change::Nothing, Record::Nothing),
                Some((token, travel)) => match self.apply_begin(now, at, granted, token, fx) {
                    Some(_) if travel == Travel::Counted => (self.close(at), as_asked),
                    Some(named) => (self.close(at), named),
                    None => (Change::Nothing, Record::Nothing),
                },
            };
            steps.push(Step { reply: (), change, record });
        }
        steps
    }

    /// The owner holds the lock in this way already. Returns whether that is so.
    fn apply_again(&mut self, now: Moment, at: &At<'_>, granted: &Granted<'_>) -> bool {
        let held_as = self.held_as(at);
        let Some((member, hold)) = self.own(at, granted.owner).filter(|_| held_as == Some(granted.mode))
        else {
            return false;
        };
        let (count, tie, is_longer) = (hold.count(), hold.tie(), hold.ends_before(now, granted.lease_ms));
        if !granted.tie.is_none() && granted.tie != tie {
            self.locks.retie(member, now, granted.tie, None);
        }
        if is_longer {
            self.locks.extend(member, now, granted.lease_ms);
        }
        if granted.is_reentrant {
            self.locks.set_count(member, count.saturating_add(1));
        }
        true
    }

    /// A hold begins, whatever was there.
    fn apply_begin(
        &mut self,
        now: Moment,
        at: &mut At<'_>,
        granted: &Granted<'_>,
        token: Token,
        fx: &mut Effects,
    ) -> Option<Record> {
        self.make_way(now, at, granted.mode, granted.owner, Some(token), fx);
        let Granted { owner, lease_ms, mode, tie, .. } = *granted;
        let new = NewHold { owner, token, lease_ms, client: None, tie };
        let record = self.begin(now, at, mode, &new)?;
        fx.publish(Event::Acquired);
        Some(record)
    }

    /// Ends what cannot be beside a hold that was told of.
    fn make_way(
        &mut self,
        now: Moment,
        at: &mut At<'_>,
        mode: Mode,
        owner: &[u8],
        token: Option<Token>,
        fx: &mut Effects,
    ) {
        let Some(lock) = at.lock else {
            return;
        };
        if mode != Mode::Exclusive && self.held_as(at) == Some(mode) {
            // Its own hold, and one with the same token, which only a broken record can name.
            let own = self.own(at, owner).map(|(member, _)| member);
            if let Some(own) = own {
                self.end_one(now, at, own);
            }
            let same = token.zip(at.lock).and_then(|(token, lock)| self.locks.hold_with(lock, token));
            if let Some(same) = same.map(|(member, _)| member) {
                self.end_one(now, at, same);
            }
            self.make_room(now, at, mode, fx);
            return;
        }
        for _ in self.locks.break_up(lock, now) {
            fx.publish(Event::Released);
        }
        if lock.is_crowd() {
            at.lock = None;
        }
    }

    /// Ends the oldest hold of a semaphore that is full: one more than it has places for, which only a broken stream
    /// or file names, would be in a snapshot that nobody reads back.
    fn make_room(&mut self, now: Moment, at: &mut At<'_>, mode: Mode, fx: &mut Effects) {
        let (Mode::Limit(limit), Some(lock)) = (mode, at.lock) else {
            return;
        };
        if self.locks.holders_of(lock) < limit as usize {
            return;
        }
        let oldest = self.locks.holders(lock).next().map(|(member, _)| member);
        if let Some(oldest) = oldest {
            self.end_one(now, at, oldest);
            fx.publish(Event::Released);
        }
    }

    /// A release that the primary carried out.
    pub fn apply_release(
        &mut self,
        now: Moment,
        place: Place<'_>,
        found: Found,
        owner: &[u8],
        token: Option<Token>,
        fx: &mut Effects,
    ) -> Step<()> {
        let at = At::new(place, found);
        let held = self.own(&at, owner).filter(|(_, hold)| is_of(*hold, owner, token));
        let held = held.map(|(member, hold)| (member, hold.count()));
        if let Some((member, count)) = held.filter(|(_, count)| *count > 1) {
            self.locks.set_count(member, count - 1);
            return told(Change::Touched);
        }
        self.apply_end(now, at, held.map(|(member, _)| member), Event::Released, fx)
    }

    /// A renewal that the primary carried out.
    pub fn apply_renew(
        &mut self,
        now: Moment,
        place: Place<'_>,
        found: Found,
        owner: &[u8],
        token: Option<Token>,
        raise: Option<Token>,
        lease_ms: u64,
    ) -> Step<()> {
        let at = At::new(place, found);
        match self.own(&at, owner) {
            Some((member, hold)) if is_of(hold, owner, token) => {
                self.locks.extend(member, now, lease_ms);
                self.locks.note_known(member, None);
                if let Some(raise) = raise {
                    self.raise_token(&at, member, raise);
                }
                told(Change::Touched)
            }
            _ => Step::unchanged(()),
        }
    }

    /// This owner holds, with this token: alone, whatever was there, or beside others who hold in the same way.
    pub fn apply_hold(
        &mut self,
        now: Moment,
        place: Place<'_>,
        found: Found,
        mode: Mode,
        saved: &SavedHold,
        fx: &mut Effects,
    ) -> Step<()> {
        let mut at = At::new(place, found);
        if self.apply_going_on(now, &at, mode, saved) {
            return told(Change::Touched);
        }
        self.make_way(now, &mut at, mode, &saved.owner, Some(saved.token), fx);
        if self.begin(now, &mut at, mode, &new_hold(saved)).is_none() {
            return Step::unchanged(());
        }
        if let Some(member) = self.own(&at, &saved.owner).map(|(member, _)| member) {
            self.locks.set_count(member, saved.count);
        }
        self.clock.hear(saved.token);
        fx.publish(Event::Acquired);
        told(self.close(&at))
    }

    /// A hold that stands here already goes on, with another lease, count or tie: nothing begins, and nobody's time to
    /// live is taken from the key, as it is not on the primary. Returns whether that is so.
    fn apply_going_on(&mut self, now: Moment, at: &At<'_>, mode: Mode, saved: &SavedHold) -> bool {
        let own = self.own(at, &saved.owner).filter(|(_, hold)| hold.token() == saved.token);
        let Some((member, _)) = own.filter(|_| self.held_as(at) == Some(mode)) else {
            return false;
        };
        if sabotage::removes(Rule::TimeToLive) {
            return false;
        }
        self.locks.go_on_as_told(member, now, saved.left_ms, saved.tie);
        self.locks.set_count(member, saved.count);
        true
    }

    /// The hold with this token ended by itself.
    pub fn apply_ended(
        &mut self,
        now: Moment,
        place: Place<'_>,
        found: Found,
        token: Token,
        fx: &mut Effects,
    ) -> Step<()> {
        let at = At::new(place, found);
        let held = at.lock.and_then(|lock| self.locks.hold_with(lock, token));
        self.apply_end(now, at, held.map(|(member, _)| member), Event::Expired, fx)
    }

    /// An empty lock stands here.
    pub fn apply_empty(&mut self, now: Moment, place: Place<'_>) -> Step<()> {
        let made = self.locks.insert(now, place, None);
        made.map_or(Step::unchanged(()), |id| told(Change::Stored(id)))
    }

    fn apply_end(
        &mut self,
        now: Moment,
        mut at: At<'_>,
        held: Option<LockId>,
        event: Event,
        fx: &mut Effects,
    ) -> Step<()> {
        match held.and_then(|member| self.end_one(now, &mut at, member)) {
            Some(_) => {
                fx.publish(event);
                told(self.close(&at))
            }
            None => Step::unchanged(()),
        }
    }

    /// A lock was read from a file or a payload; the key that will hold its number comes after. `None`: there
    /// are too many locks.
    pub fn load(&mut self, now: Moment, place: Place<'_>, saved: Option<&SavedLock>) -> Option<LockId> {
        if self.has_beside() {
            return self.within_beside(|table| table.take_in(now, place, saved));
        }
        let lock = self.take_in(now, place, saved)?;
        if saved.is_some() {
            // Its owner may be waiting here: it does not wait for what it holds.
            self.note(place);
            self.set_lock_of_line(&At::new(place, Found::Lock(lock)));
        }
        Some(lock)
    }

    fn take_in(&mut self, now: Moment, place: Place<'_>, saved: Option<&SavedLock>) -> Option<LockId> {
        let Some(saved) = saved else {
            return self.locks.insert(now, place, None);
        };
        let mut at = At::new(place, Found::Nothing);
        for hold in &saved.holds {
            if self.begin(now, &mut at, saved.mode, &new_hold(hold)).is_none() {
                if let Some(lock) = at.lock {
                    self.locks.remove(lock, now);
                }
                return None;
            }
            let member = self.own(&at, &hold.owner).map(|(member, _)| member)?;
            self.clock.raise(hold.token);
            self.locks.set_count(member, hold.count);
            self.locks.note_known(member, None);
        }
        at.lock
    }

    /// What a file or a payload says of a lock; `None` for an empty one.
    #[must_use]
    pub fn save(&self, now: Moment, id: LockId) -> Option<SavedLock> {
        let locks = self.locks_of(id);
        let mode = locks.mode(id)?;
        let holds = locks.holders(id).map(|(_, hold)| saved(now, hold)).collect();
        Some(SavedLock { mode, holds })
    }

    /// What readers are told of one hold.
    #[must_use]
    pub fn save_hold(&self, now: Moment, member: LockId) -> Option<SavedHold> {
        self.locks.hold(member).map(|hold| saved(now, hold))
    }
}

fn saved(now: Moment, hold: Hold<'_>) -> SavedHold {
    SavedHold {
        owner: hold.owner().into(),
        token: hold.token(),
        left_ms: hold.left_ms(now),
        count: hold.count(),
        tie: hold.tie(),
    }
}

/// The hold that was told of.
const fn new_hold(saved: &SavedHold) -> NewHold<'_> {
    NewHold { owner: &saved.owner, token: saved.token, lease_ms: saved.left_ms, client: None, tie: saved.tie }
}

/// A fact that travels on as it came.
const fn told(change: Change) -> Step<()> {
    Step { reply: (), change, record: Record::AsAsked }
}
