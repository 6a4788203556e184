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
        fx: &mut Vec<Effect>,
    ) -> Step<()> {
        if let Some((id, hold)) = self.any_hold(found)
            && *hold.owner == *owner
        {
            let until = now.plus_ms(lease_ms).max(hold.until);
            if let Some(hold) = self.locks.get_mut(id).and_then(|lock| lock.hold.as_mut()) {
                hold.until = until;
                self.leases.set(&mut self.locks, id, until);
            }
            return told(Change::Touched);
        }
        let Some((token, travel)) = self.clock.count() else {
            return Step::unchanged(());
        };
        let new = NewHold { owner, lease_ms, client: None };
        let (id, change) = self.begin_hold(now, place, found, &new, token);
        fx.push(Effect::Publish(Event::Acquired));
        let record = match travel {
            Travel::Counted => Record::AsAsked,
            Travel::Named => Record::Hold(id),
        };
        Step { reply: (), change, record }
    }

    /// A release that the primary carried out.
    pub fn apply_release(
        &mut self,
        found: Found,
        owner: &[u8],
        token: Option<Token>,
        fx: &mut Vec<Effect>,
    ) -> Step<()> {
        let held = self.any_hold(found).filter(|(_, hold)| is_of(hold, owner, token));
        self.apply_end(held.map(|(id, _)| id), Event::Released, fx)
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
                self.extend(now, id, lease_ms, None);
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
        fx: &mut Vec<Effect>,
    ) -> Step<()> {
        if let Some((id, _)) = self.any_hold(found) {
            self.end_hold(id);
            fx.push(Effect::Publish(Event::Released));
        }
        let new = NewHold { owner: &saved.owner, lease_ms: saved.left_ms, client: None };
        let (_, change) = self.begin_hold(now, place, found, &new, saved.token);
        self.clock.hear(saved.token);
        fx.push(Effect::Publish(Event::Acquired));
        told(change)
    }

    /// The hold with this token ended by itself.
    pub fn apply_ended(&mut self, found: Found, token: Token, fx: &mut Vec<Effect>) -> Step<()> {
        let held = self.any_hold(found).filter(|(_, hold)| hold.token == token);
        self.apply_end(held.map(|(id, _)| id), Event::Expired, fx)
    }

    /// An empty lock stands here.
    pub fn apply_empty(&mut self, place: Place<'_>) -> Step<()> {
        told(Change::Stored(self.locks.insert(Lock::new(place, None))))
    }

    fn apply_end(&mut self, held: Option<LockId>, event: Event, fx: &mut Vec<Effect>) -> Step<()> {
        match held.and_then(|id| self.end_hold(id)) {
            Some(_) => {
                fx.push(Effect::Publish(event));
                told(Change::Deleted)
            }
            None => Step::unchanged(()),
        }
    }

    /// A lock was read from a file or a payload; the key that will hold its number comes after.
    pub fn load(&mut self, now: Moment, place: Place<'_>, saved: Option<&SavedHold>) -> LockId {
        let Some(saved) = saved else {
            return self.locks.insert(Lock::new(place, None));
        };
        let new = NewHold { owner: &saved.owner, lease_ms: saved.left_ms, client: None };
        let (id, _) = self.begin_hold(now, place, Found::Nothing, &new, saved.token);
        self.clock.raise(saved.token);
        if let Some(hold) = self.locks.get_mut(id).and_then(|lock| lock.hold.as_mut()) {
            hold.is_known = true;
        }
        // Its owner may be waiting here: it does not wait for what it holds.
        self.note(place);
        id
    }

    /// What a file or a payload says of a lock; `None` for an empty one.
    #[must_use]
    pub fn save(&self, now: Moment, id: LockId) -> Option<SavedHold> {
        let hold = self.locks.get(id)?.hold.as_ref()?;
        Some(SavedHold { owner: hold.owner.clone(), token: hold.token, left_ms: now.ms_until(hold.until) })
    }

    /// The hold at a found key, even if its lease is over by this server's clock.
    fn any_hold(&self, found: Found) -> Option<(LockId, &Hold)> {
        let Found::Lock(id) = found else {
            return None;
        };
        Some((id, self.locks.get(id)?.hold.as_ref()?))
    }
}

/// A fact that travels on as it came.
const fn told(change: Change) -> Step<()> {
    Step { reply: (), change, record: Record::AsAsked }
}
