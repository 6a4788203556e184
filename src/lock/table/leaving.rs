//! The way out: no lock is granted any more, so that the module can go when the last one is over.
//!
//! Who holds a lock may renew and release it, and ask for it again after a lost reply. Nobody waits: a wait could not
//! end with a grant.

use super::state::*;

impl Table {
    /// From the next request on no hold begins (or, with `false`, holds begin again).
    pub fn set_leaving(&mut self, is_leaving: bool) {
        self.is_leaving = is_leaving;
        self.note_restrictions();
    }

    /// Answers everybody who waits, and drops the places that are kept in line.
    pub fn turn_away(&mut self, answer: &Answer, fx: &mut Effects) {
        let places: Vec<PlaceBuf> = self.places_waited_for().map(Place::to_owned).collect();
        for place in places {
            self.dismiss(place.as_place(), answer, fx);
        }
    }

    /// Whether the requests in line have to wait, whatever is free.
    pub(super) const fn is_closed(&self) -> bool {
        self.quarantine.is_some() || self.is_leaving
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::effect::Effect;
    use crate::lock::types::Tie;

    const NOW: Now = Now { boot: Moment(1_000_000), wall_us: 1_000_000 };
    const DOOR: Place<'static> = Place { db: 0, name: b"door" };

    fn ask(owner: &[u8], mode: Mode, wait: Option<Wait>) -> Ask<'_> {
        let client = Some(ClientId(1));
        let (is_reentrant, tie, must_be_named) = (false, Tie::NONE, false);
        let (owner_is_minted, bind_to) = (false, None);
        Ask {
            owner,
            owner_is_minted,
            lease_ms: 50,
            mode,
            is_reentrant,
            tie,
            wait,
            client,
            bind_to,
            must_be_named,
            cannot_confirm: false,
        }
    }

    fn acquire(table: &mut Table, found: Found, ask: &Ask<'_>) -> Step<Acquired> {
        table.acquire(NOW, DOOR, found, ask, &mut |_| Admission::Granted, &mut Effects::default())
    }

    fn stored(step: &Step<Acquired>) -> Found {
        match step.change {
            Change::Stored(lock) => Found::Lock(lock),
            change => panic!("{change:?}"),
        }
    }

    #[test]
    fn nothing_begins_and_nobody_waits_but_what_is_held_is_held_again() {
        let mut table = Table::default();
        let taken = acquire(&mut table, Found::Nothing, &ask(b"alice", Mode::Shared, None));
        let found = stored(&taken);
        table.set_leaving(true);
        let refused = Acquired::Refused(Refusal::Leaving);
        let wait = Some(Wait::Block(Block { client: ClientId(1), until: None }));
        for (owner, mode, wait) in [
            (b"bob", Mode::Shared, None),
            (b"bob", Mode::Shared, wait),
            (b"bob", Mode::Exclusive, None),
            (b"bob", Mode::Exclusive, wait),
        ] {
            assert_eq!(acquire(&mut table, found, &ask(owner, mode, wait)).reply, refused);
        }
        let upgrade = acquire(&mut table, found, &ask(b"alice", Mode::Exclusive, wait));
        assert_eq!((upgrade.reply, table.waiters()), (refused, 0));
        let again = acquire(&mut table, found, &ask(b"alice", Mode::Shared, None));
        assert_eq!(again.reply, taken.reply);
        assert_eq!(acquire(&mut table, Found::Nothing, &ask(b"bob", Mode::Exclusive, None)).reply, refused);
        let spots = [Spot { place: DOOR, found: Found::Nothing }];
        let several = ask(b"bob", Mode::Exclusive, wait);
        let mut fx = [Effects::default()];
        let (reply, _) = table.acquire_many(NOW, &spots, &several, &mut |_| Admission::Granted, &mut fx);
        assert_eq!((reply, table.waiters()), (refused, 0));
        table.set_leaving(false);
        let later = acquire(&mut table, Found::Nothing, &ask(b"bob", Mode::Exclusive, None));
        assert!(matches!(later.reply, Acquired::Granted(_)), "{:?}", later.reply);
    }

    #[test]
    fn who_waits_and_who_keeps_a_place_is_turned_away_and_a_free_lock_is_not_granted_to_them() {
        let mut table = Table::default();
        let found = stored(&acquire(&mut table, Found::Nothing, &ask(b"alice", Mode::Exclusive, None)));
        let wait = Some(Wait::Block(Block { client: ClientId(2), until: None }));
        let _ = acquire(&mut table, found, &ask(b"bob", Mode::Exclusive, wait));
        let place = Some(Wait::Place { until: NOW.boot.plus_ms(5_000) });
        let _ = acquire(&mut table, found, &ask(b"carol", Mode::Exclusive, place));
        assert_eq!(table.waiters(), 2);
        table.set_leaving(true);
        let mut fx = Effects::default();
        let gate: Gate<'_> = &mut |_| Admission::Granted;
        let released = table.release(NOW, DOOR, found, b"alice", None, gate, &mut fx);
        assert_eq!((released.change, table.waiters()), (Change::Deleted, 2));
        let mut fx = Effects::default();
        table.turn_away(&Answer::Demoted, &mut fx);
        let told = fx.drain().filter(|effect| matches!(effect, Effect::Answer { .. })).count();
        assert_eq!((told, table.waiters()), (1, 0));
    }
}
