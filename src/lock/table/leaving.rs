//! Stops granting locks, so that the module can be removed once the last one has ended.
//!
//! Holders may renew and release, and ask again after a lost reply. No request waits, because no wait could end with
//! a grant. Current waiters are set aside, as when this server stops deciding.

use super::rejected_waiters::RejectedWaiters;
use super::state::Table;
use super::task_queue::Notes;
use crate::lock::effect::{Answer, Effects, WaiterId};
use crate::lock::types::Moment;

impl Table {
    /// Stops new holds from the next request on; `false` allows them again.
    pub fn set_leaving(&mut self, is_leaving: bool) {
        let was_leaving = self.restrictions.set_leaving(is_leaving);
        if was_leaving && !is_leaving {
            // Locks that were freed meanwhile have not been granted, and their waiters may still be there.
            self.note_everything();
        }
    }

    /// Ends all waits. The pump answers the waiters with `answer` by [`Self::send_away`]. Reservations are dropped.
    pub fn turn_away(&mut self, answer: Answer) {
        if self.queues.waiters() > 0 {
            self.set_aside(answer, Default::default());
        }
    }

    /// Sets whether later grants and renewals must be confirmed, which delays their replies.
    pub fn set_confirms(&mut self, confirms: bool) {
        self.restrictions.set_confirms(confirms);
    }

    /// Sets the time from which the connected replicas can confirm grants. A quarantine lasts at least until then.
    pub const fn set_confirmable_from(&mut self, at: Moment) {
        self.restrictions.set_confirmable_from(at);
    }

    /// Ends all waits and drops the tasks of the pump, because this server no longer decides.
    pub fn stop_deciding(&mut self) {
        // Holds that began here count as delivered: the new primary keeps or ends them.
        self.undelivered = Default::default();
        let dropped = std::mem::take(&mut self.notes);
        self.set_aside(Answer::Demoted, dropped);
    }

    /// Sets all waiters aside, to be answered a few at a time. All queues are empty afterwards.
    pub(super) fn set_aside(&mut self, answer: Answer, dropped: Notes) {
        let next = self.queues.successor();
        let queues = std::mem::replace(&mut self.queues, next);
        let away = RejectedWaiters::new(queues, answer, dropped);
        if !away.is_empty() {
            self.rejected.push_back(away);
        }
    }

    /// Returns true if any waiter is still set aside.
    #[must_use]
    pub fn has_away(&self) -> bool {
        !self.rejected.is_empty()
    }

    /// Answers the next waiter that was set aside, in the order of its queue. Returns false if none is left.
    pub fn send_away(&mut self, fx: &mut Effects) -> bool {
        let Some(away) = self.rejected.front_mut() else {
            return false;
        };
        away.send_one(fx);
        if away.is_empty() {
            self.rejected.pop_front();
        }
        self.has_away()
    }

    /// Removes a waiter that leaves while it is set aside.
    #[cold]
    pub(super) fn leave_from_away(&mut self, waiter: WaiterId) {
        for away in &mut self.rejected {
            away.take(waiter);
        }
        self.rejected.retain(|away| !away.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::super::requests::{Acquired, Admission, Ask, Block, Decision, KeyRef, Refusal, Release, Wait};
    use super::*;
    use crate::lock::effect::{Change, Effect, Existing, Step};
    use crate::lock::tests::legacy::ask as plain;
    use crate::lock::types::{ClientId, LockKey, Mode, Moment, Now};

    const NOW: Now = Now { boot: Moment(1_000_000), wall_us: 1_000_000 };
    const DOOR: LockKey<'static> = LockKey { db: 0, name: b"door" };

    fn ask(owner: &[u8], mode: Mode, wait: Option<Wait>) -> Ask<'_> {
        Ask { wait, client: Some(ClientId(1)), ..plain(owner, mode, None) }
    }

    fn acquire(table: &mut Table, existing: Existing, ask: &Ask<'_>) -> Step<Acquired> {
        table.acquire(
            NOW,
            KeyRef { lock_key: DOOR, existing },
            ask,
            &mut |_| Decision::Granted,
            &mut Effects::default(),
        )
    }

    fn stored(step: &Step<Acquired>) -> Existing {
        match step.change {
            Change::Stored(lock) => Existing::Lock(lock),
            change => panic!("{change:?}"),
        }
    }

    #[test]
    fn leaving_grants_nothing_new_and_repeats_what_is_held() {
        let mut table = Table::default();
        let taken = acquire(&mut table, Existing::Nothing, &ask(b"alice", Mode::Shared, None));
        let existing = stored(&taken);
        table.set_leaving(true);
        let refused = Acquired::Refused(Refusal::Leaving);
        let wait = Some(Wait::Block(Block { client: ClientId(1), until: None }));
        for (owner, mode, wait) in [
            (b"bob", Mode::Shared, None),
            (b"bob", Mode::Shared, wait),
            (b"bob", Mode::Exclusive, None),
            (b"bob", Mode::Exclusive, wait),
        ] {
            assert_eq!(acquire(&mut table, existing, &ask(owner, mode, wait)).reply, refused);
        }
        let held = Acquired::Refused(Refusal::Held(0));
        let otherwise = acquire(&mut table, existing, &ask(b"alice", Mode::Exclusive, wait));
        assert_eq!((otherwise.reply, table.waiters()), (held, 0));
        let again = acquire(&mut table, existing, &ask(b"alice", Mode::Shared, None));
        assert_eq!(again.reply, taken.reply);
        assert_eq!(
            acquire(&mut table, Existing::Nothing, &ask(b"bob", Mode::Exclusive, None)).reply,
            refused
        );
        let refs = [KeyRef { lock_key: DOOR, existing: Existing::Nothing }];
        let several = ask(b"bob", Mode::Exclusive, wait);
        let mut fx = [Effects::default()];
        let (reply, _) = table.acquire_many(NOW, &refs, &several, &mut |_| Decision::Granted, &mut fx);
        assert_eq!((reply, table.waiters()), (refused, 0));
        table.set_leaving(false);
        let later = acquire(&mut table, Existing::Nothing, &ask(b"bob", Mode::Exclusive, None));
        assert!(matches!(later.reply, Acquired::Granted(_)), "{:?}", later.reply);
    }

    #[test]
    fn leaving_turns_away_waiters_and_reserved_places_and_grants_neither() {
        let mut table = Table::default();
        let existing = stored(&acquire(&mut table, Existing::Nothing, &ask(b"alice", Mode::Exclusive, None)));
        let wait = Some(Wait::Block(Block { client: ClientId(2), until: None }));
        let _ = acquire(&mut table, existing, &ask(b"bob", Mode::Exclusive, wait));
        let reservation = Some(Wait::Reservation { until: NOW.boot.plus_ms(5_000) });
        let _ = acquire(&mut table, existing, &ask(b"carol", Mode::Exclusive, reservation));
        assert_eq!(table.waiters(), 2);
        table.set_leaving(true);
        let mut fx = Effects::default();
        let admission: Admission<'_> = &mut |_| Decision::Granted;
        let asked = Release { owner: b"alice", token: None };
        let released = table.release(NOW, KeyRef { lock_key: DOOR, existing }, &asked, admission, &mut fx);
        assert_eq!((released.change, table.waiters()), (Change::Deleted, 2));
        let mut fx = Effects::default();
        table.turn_away(Answer::Refused("it leaves"));
        assert_eq!(table.waiters(), 0);
        table.turn_away(Answer::Demoted);
        while table.send_away(&mut fx) {}
        let told: Vec<_> = fx.drain().collect();
        assert!(
            matches!(told[..], [Effect::Answer { answer: Answer::Refused("it leaves"), .. }]),
            "the first one: {told:?}"
        );
        assert!(!table.has_away() && table.waiters() == 0);
    }

    #[test]
    fn nobody_is_told_who_left_after_being_turned_away() {
        let mut table = Table::default();
        let existing = stored(&acquire(&mut table, Existing::Nothing, &ask(b"alice", Mode::Exclusive, None)));
        let waiters = [(b"bob", 2), (b"eve", 3)].map(|(owner, client)| {
            match acquire(&mut table, existing, &plain(owner, Mode::Exclusive, Some(client))).reply {
                Acquired::Waiting(waiter) => waiter,
                reply => panic!("{reply:?}"),
            }
        });
        table.turn_away(Answer::Demoted);
        table.leave(waiters[0]);
        let mut fx = Effects::default();
        while table.send_away(&mut fx) {}
        let told: Vec<_> = fx.drain().collect();
        assert!(
            matches!(told[..], [Effect::Answer { waiter, .. }] if waiter == waiters[1]),
            "only the waiter that is still there: {told:?}"
        );
        table.turn_away(Answer::Demoted);
        assert!(!table.has_away());
    }
}
