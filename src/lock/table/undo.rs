//! What has to be confirmed before its owner may be told, and is undone if it is not (CONTRACT 6).
//!
//! The table only tells what began and undoes what it is told to; who waits for what is known to
//! [`confirm`](crate::lock::confirm).

use super::line::At;
use super::state::*;

impl Table {
    /// Whether grants have to be confirmed from here on.
    pub fn set_confirms(&mut self, confirms: bool) {
        self.begun = confirms.then(Vec::new);
        self.note_restrictions();
    }

    /// What has begun since this was asked last.
    pub fn take_begun(&mut self) -> Vec<Stake> {
        self.begun.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes note of what an owner has now that it did not have before: one count more, and the lock alone.
    #[inline]
    pub(super) fn note_stake(
        &mut self,
        place: Place<'_>,
        token: Token,
        (owner, lease_ms): (&[u8], u64),
        (counts, is_upgrade): (bool, bool),
    ) {
        if let Some(begun) = &mut self.begun {
            let undo = Undo::of(owner, counts, is_upgrade);
            begun.push(Stake { place: place.to_owned(), token, lease_ms, undo });
        }
    }

    /// Whether the short path is closed.
    pub(super) const fn note_restrictions(&mut self) {
        self.is_restricted = self.is_closed() || self.begun.is_some();
    }

    /// Whether nothing is done for a request because no grant could be confirmed.
    ///
    /// In a quarantine, who holds nothing waits for its end, or is told of it. Who asks again for a hold is refused
    /// then, too: the server may know of a hold that its primary has undone and that nobody was ever told of. If such
    /// a hold were made longer, it could outlast the quarantine, and be told under its old token after somebody else
    /// was told of a newer one (G4).
    pub(super) const fn refuses_unconfirmed(&self, ask: &Ask<'_>, is_held_by_it: bool) -> bool {
        ask.cannot_confirm && (is_held_by_it || self.quarantine.is_none())
    }

    /// Undoes what a grant did, if the hold with this token still lasts, and lets in whoever is next. Nobody else's
    /// hold is touched, nor a later one of the same owner.
    pub fn undo(
        &mut self,
        now: Now,
        place: Place<'_>,
        found: Found,
        (token, undo): (Token, Undo),
        gate: Gate<'_>,
        fx: &mut Effects,
    ) -> Step<()> {
        let mut at = At::new(place, found);
        self.leave_quarantine(now.boot);
        self.end_overs(now.boot, &mut at, None, None, fx);
        let held = at.lock.and_then(|lock| self.locks.hold_with(lock, token));
        let held = held.filter(|(_, hold)| hold.is_of(&undo.owner) && !hold.is_over(now.boot));
        match held.map(|(member, hold)| (member, hold.count())) {
            Some((member, ..=1)) if undo.counts => {
                self.end_one(now.boot, &mut at, member);
                self.stats.releases += 1;
                fx.publish(Event::Released);
                at.tell(Record::Ended(token), fx);
            }
            Some((member, count)) => self.hold_less(now.boot, &mut at, (member, count), &undo, fx),
            None => {}
        }
        self.admit_line(now, &mut at, gate, fx);
        self.step(&at, ())
    }

    /// The hold goes on, with one count less or with others beside it as before.
    fn hold_less(
        &mut self,
        now: Moment,
        at: &mut At<'_>,
        (member, count): (LockId, u32),
        undo: &Undo,
        fx: &mut Effects,
    ) {
        let is_alone = undo.is_upgrade && self.held_as(at) == Some(Mode::Exclusive);
        if undo.counts {
            self.locks.set_count(member, count - 1);
        }
        if is_alone {
            at.lock = self.locks.open_up(member, now, Mode::Shared).or(at.lock);
        }
        if let Some((member, _)) = self.own(at, &undo.owner).filter(|_| undo.counts || is_alone) {
            at.touch();
            at.tell(self.record_of(at, member), fx);
        }
    }
}
