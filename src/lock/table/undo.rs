//! What has to be confirmed before its owner may be told, and is undone if it is not (CONTRACT 6).
//!
//! The table only tells what began and undoes what it is told to. [`confirm`](crate::lock::confirm) knows who waits for
//! what.

use super::state::*;

impl Table {
    /// Whether grants have to be confirmed from here on.
    pub fn set_confirms(&mut self, confirms: bool) {
        self.begun = confirms.then(Vec::new);
        self.note_restrictions();
    }

    /// What has begun since this was asked last.
    pub fn take_begun(&mut self) -> Vec<PendingGrant> {
        self.begun.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes note of a hold that has begun.
    #[inline]
    pub(super) fn note_pending_grant(&mut self, lock_key: LockKey<'_>, new: &NewHold<'_>) {
        if let Some(begun) = &mut self.begun {
            let (lock_key, token) = (lock_key.to_owned(), new.token);
            let undo = UndoRecord { owner: new.owner.into(), counts: true };
            begun.push(PendingGrant { lock_key, token, lease_ms: new.lease_ms, undo });
        }
    }

    /// Whether the short path is closed.
    pub(super) const fn note_restrictions(&mut self) {
        self.is_restricted = self.is_closed() || self.begun.is_some();
    }

    /// Whether nothing is done for a request because no grant could be confirmed.
    ///
    /// In a quarantine, a client that holds nothing waits for its end, or is told of it. One that asks again for its
    /// hold is refused then, too: the server may know of a hold that its primary has undone and that nobody was ever
    /// told of. If such a hold were made longer, it could outlast the quarantine, and be told under its old token after
    /// somebody else was told of a newer one (G4).
    pub(super) const fn refuses_unconfirmed(&self, ask: &Ask<'_>, is_held_by_it: bool) -> bool {
        ask.cannot_confirm && (is_held_by_it || self.quarantine.is_none())
    }

    /// Undoes what a grant did, if the hold with this token still lasts, and lets in the next waiter. Nobody else's
    /// hold is touched, nor a later one of the same owner.
    pub fn undo(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        (token, undo): (Token, UndoRecord),
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Step<()> {
        let mut ctx = self.open_step(now.boot, key_ref, fx);
        self.end_overs(now.boot, &mut ctx, None, None, fx);
        let held = ctx.lock.and_then(|lock| self.locks.hold_with(lock, token));
        let held = held.filter(|(_, hold)| hold.is_of(&undo.owner) && !hold.is_over(now.boot));
        match held.map(|(holder, hold)| (holder, hold.count())) {
            Some((holder, ..=1)) if undo.counts => {
                self.end_one(now.boot, &mut ctx, holder);
                self.stats.releases += 1;
                fx.publish(Event::Released);
                ctx.replicate(Record::Ended(token), fx);
            }
            Some((holder, count)) if undo.counts => {
                self.locks.set_count(holder, count - 1);
                ctx.touch();
                ctx.replicate(self.record_of(&ctx, holder), fx);
            }
            _ => {}
        }
        self.admit_queue(now, &mut ctx, admission, fx);
        self.step(&ctx, ())
    }
}
