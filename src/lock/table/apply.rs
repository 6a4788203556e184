//! Facts decided elsewhere: the replication stream, the append-only file, RDB and DUMP payloads.
//!
//! Nothing here refuses, waits or looks at a lease: the primary said it, so it is so (G13). Every
//! applied fact travels on as it came, to this server's own append-only file; only a counted token must
//! be named there if that file is new.

use super::decide::is_of;
use super::*;
use crate::lock::codec::SavedHold;

impl Table {
    /// A request that the primary granted, word for word.
    pub fn apply_acquire(
        &mut self,
        now: Moment,
        place: Place<'_>,
        found: Found,
        owner: &[u8],
        lease_ms: u64,
        fx: &mut Effects,
    ) -> Step<()> {
        if let Some((id, hold)) = self.any_hold(found)
            && hold.is_of(owner)
        {
            if hold.ends_before(now, lease_ms) {
                self.locks.extend(id, now, lease_ms);
            }
            return told(Change::Touched);
        }
        let Some((token, travel)) = self.clock.count() else {
            return Step::unchanged(());
        };
        let new = NewHold { owner, token, lease_ms, client: None };
        let Some((id, change)) = begin_hold(&mut self.locks, now, place, found, &new) else {
            return Step::unchanged(());
        };
        fx.publish(Event::Acquired);
        let record = match travel {
            Travel::Counted => Record::AsAsked,
            Travel::Named => Record::Hold(id),
        };
        Step { reply: (), change, record }
    }

    /// A release that the primary carried out.
    pub fn apply_release(
        &mut self,
        now: Moment,
        found: Found,
        owner: &[u8],
        token: Option<Token>,
        fx: &mut Effects,
    ) -> Step<()> {
        let held = self.any_hold(found).filter(|(_, hold)| is_of(*hold, owner, token));
        self.apply_end(now, held.map(|(id, _)| id), Event::Released, fx)
    }

    /// A renewal that the primary carried out.
    pub fn apply_renew(
        &mut self,
        now: Moment,
        found: Found,
        owner: &[u8],
        token: Option<Token>,
        lease_ms: u64,
    ) -> Step<()> {
        match self.any_hold(found) {
            Some((id, hold)) if is_of(hold, owner, token) => {
                self.locks.extend(id, now, lease_ms);
                self.locks.note_known(id, None);
                told(Change::Touched)
            }
            _ => Step::unchanged(()),
        }
    }

    /// This owner holds, with this token, whatever was there.
    pub fn apply_hold(
        &mut self,
        now: Moment,
        place: Place<'_>,
        found: Found,
        saved: &SavedHold,
        fx: &mut Effects,
    ) -> Step<()> {
        if let Some((id, _)) = self.any_hold(found) {
            self.locks.end(id, now);
            fx.publish(Event::Released);
        }
        let Some((_, change)) = begin_hold(&mut self.locks, now, place, found, &new_hold(saved)) else {
            return Step::unchanged(());
        };
        self.clock.hear(saved.token);
        fx.publish(Event::Acquired);
        told(change)
    }

    /// The hold with this token ended by itself.
    pub fn apply_ended(&mut self, now: Moment, found: Found, token: Token, fx: &mut Effects) -> Step<()> {
        let held = self.any_hold(found).filter(|(_, hold)| hold.token() == token);
        self.apply_end(now, held.map(|(id, _)| id), Event::Expired, fx)
    }

    /// An empty lock stands here.
    pub fn apply_empty(&mut self, now: Moment, place: Place<'_>) -> Step<()> {
        let made = self.locks.insert(now, place, None);
        made.map_or(Step::unchanged(()), |id| told(Change::Stored(id)))
    }

    fn apply_end(&mut self, now: Moment, held: Option<LockId>, event: Event, fx: &mut Effects) -> Step<()> {
        match held.and_then(|id| self.locks.end(id, now)) {
            Some(_) => {
                fx.publish(event);
                told(Change::Deleted)
            }
            None => Step::unchanged(()),
        }
    }

    /// A lock was read from a file or a payload; the key that will hold its number comes after. `None`: there
    /// are too many locks.
    pub fn load(&mut self, now: Moment, place: Place<'_>, saved: Option<&SavedHold>) -> Option<LockId> {
        let Some(saved) = saved else {
            return self.locks.insert(now, place, None);
        };
        let id = self.locks.insert(now, place, Some(&new_hold(saved)))?;
        self.clock.raise(saved.token);
        self.locks.note_known(id, None);
        // Its owner may be waiting here: it does not wait for what it holds.
        self.note(place);
        Some(id)
    }

    /// What a file or a payload says of a lock; `None` for an empty one.
    #[must_use]
    pub fn save(&self, now: Moment, id: LockId) -> Option<SavedHold> {
        let hold = self.locks.hold(id)?;
        Some(SavedHold { owner: hold.owner().into(), token: hold.token(), left_ms: hold.left_ms(now) })
    }
}

/// The hold that was told of.
const fn new_hold(saved: &SavedHold) -> NewHold<'_> {
    NewHold { owner: &saved.owner, token: saved.token, lease_ms: saved.left_ms, client: None }
}

/// A fact that travels on as it came.
const fn told(change: Change) -> Step<()> {
    Step { reply: (), change, record: Record::AsAsked }
}
