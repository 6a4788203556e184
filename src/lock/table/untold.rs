//! Grants that their owners were not told of, because their connections had closed: they are taken back (G8).

use super::state::*;

/// This hold, unless its owner knows of it.
fn not_told((id, hold): (LockId, Hold<'_>)) -> Option<LockId> {
    (!hold.is_acknowledged()).then_some(id)
}

impl Table {
    /// A grant could not be delivered: the pump is to take it back, before it looks at anything else. Or another
    /// request of its owner could go on with a hold that nobody was told of.
    pub fn note_undelivered(&mut self, lock_key: LockKeyBuf, token: Token) {
        self.undelivered.push_back(Task::TakeBack(lock_key, token));
    }

    /// A grant whose client was gone before it was told is as good as released, unless the owner asked again
    /// meanwhile and was told then (G9).
    pub fn take_back(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        token: Token,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Step<()> {
        if !self.is_plain(key_ref) {
            return self.take_back_any(now, key_ref, token, admission, fx);
        }
        let own = self.live(now.boot, key_ref.existing).filter(|(_, hold)| hold.token() == token);
        let Some(id) = own.and_then(not_told) else {
            return self.settle(now, key_ref, None, admission, fx);
        };
        self.locks.end(id, now.boot);
        self.stats.releases += 1;
        fx.publish(Event::Released);
        self.pass_on(now, key_ref, Record::Ended(token), admission, fx)
    }

    fn take_back_any(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        token: Token,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Step<()> {
        let mut ctx = self.open_step(now.boot, key_ref, fx);
        let held = ctx.lock.and_then(|lock| self.locks.hold_with(lock, token));
        let owner = held.map(|(_, hold)| hold.owner().to_vec());
        self.end_overs(now.boot, &mut ctx, owner.as_deref(), None, fx);
        let held = ctx.lock.and_then(|lock| self.locks.hold_with(lock, token));
        if let Some(holder) = held.and_then(not_told) {
            self.end_one(now.boot, &mut ctx, holder);
            self.stats.releases += 1;
            fx.publish(Event::Released);
            ctx.replicate(Record::Ended(token), fx);
        }
        self.admit_queue(now, &mut ctx, admission, fx);
        self.step(&ctx, ())
    }
}
