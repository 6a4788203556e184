//! Requests that nobody could confirm (CONTRACT 6): in a quarantine, and outside of one.

use super::legacy::ask as plain;
use crate::lock::effect::{Change, Effects, Found, Step};
use crate::lock::table::{Acquired, Admission, Ask, Granted, Refusal, Spot, Table};
use crate::lock::types::{Mode, Moment, Now, Place, Tie, Token};

const DOOR: Place<'static> = Place { db: 0, name: b"door" };
const GATE: Place<'static> = Place { db: 0, name: b"gate" };
const REFUSED: Acquired = Acquired::Refused(Refusal::Unconfirmable);

const fn at(ms: u64) -> Now {
    Now { boot: Moment(1_000_000 + ms * 1_000), wall_us: 1_000_000 + ms * 1_000 }
}

/// A table that has been promoted, and knows that alice holds both locks with a lease of 50 ms.
fn promoted(mode: Mode) -> (Table, [Found; 2]) {
    let mut table = Table::default();
    table.set_confirms(true);
    let granted = Granted { owner: b"alice", lease_ms: 50, mode, is_reentrant: false, tie: Tie::NONE };
    let spots = [DOOR, GATE].map(|place| Spot { place, found: Found::Nothing });
    let mut fx = [Effects::default(), Effects::default()];
    let steps = table.apply_acquire_many(at(0).boot, &spots, &granted, &mut fx);
    let found = [0, 1].map(|number: usize| match steps[number].change {
        Change::Stored(lock) => Found::Lock(lock),
        change => panic!("{change:?}"),
    });
    table.begin_quarantine(at(10).boot, 50);
    (table, found)
}

fn unconfirmable(owner: &[u8], mode: Mode, client: Option<u64>) -> Ask<'_> {
    Ask { cannot_confirm: true, ..plain(owner, mode, client) }
}

fn acquire(table: &mut Table, now: Now, found: Found, ask: &Ask<'_>) -> Step<Acquired> {
    table.acquire(now, DOOR, found, ask, &mut |_| Admission::Granted, &mut Effects::default())
}

fn acquire_both(table: &mut Table, now: Now, found: [Found; 2], ask: &Ask<'_>) -> Acquired {
    let spots = [Spot { place: DOOR, found: found[0] }, Spot { place: GATE, found: found[1] }];
    let mut fx = [Effects::default(), Effects::default()];
    table.acquire_many(now, &spots, ask, &mut |_| Admission::Granted, &mut fx).0
}

fn live(table: &Table, ms: u64, found: Found) -> Option<Token> {
    table.live_token(at(ms).boot, found)
}

#[test]
fn what_is_asked_for_again_in_a_quarantine_does_not_outlast_it_unconfirmed() {
    // G4: nobody may ever have been told of it
    for (held, asked) in
        [(Mode::Exclusive, Mode::Exclusive), (Mode::Exclusive, Mode::Shared), (Mode::Shared, Mode::Shared)]
    {
        let (mut table, found) = promoted(held);
        for ms in [20, 49] {
            let step = acquire(&mut table, at(ms), found[0], &unconfirmable(b"alice", asked, None));
            assert_eq!((step.reply, step.change), (REFUSED, Change::Nothing), "{held:?}, {asked:?}");
            let both = acquire_both(&mut table, at(ms), found, &unconfirmable(b"alice", asked, Some(1)));
            assert_eq!(both, REFUSED, "{held:?}, {asked:?}");
        }
        for found in found {
            assert!(live(&table, 49, found).is_some(), "it goes on as it was");
            assert_eq!(live(&table, 50, found), None);
        }
    }
}

#[test]
fn what_can_be_confirmed_goes_on_in_a_quarantine() {
    let (mut table, found) = promoted(Mode::Exclusive);
    let token = live(&table, 20, found[0]).expect("it is held");
    let again = plain(b"alice", Mode::Exclusive, None);
    assert_eq!(acquire(&mut table, at(20), found[0], &again).reply, Acquired::Granted(token));
    assert_eq!(acquire_both(&mut table, at(20), found, &again), Acquired::Granted(token));
    assert_eq!(live(&table, 69, found[1]), Some(token));
}

#[test]
fn who_holds_nothing_in_a_quarantine_waits_or_is_told_of_it() {
    let (mut table, found) = promoted(Mode::Exclusive);
    let left = Acquired::Refused(Refusal::Quarantine(40));
    let bob = |client| unconfirmable(b"bob", Mode::Exclusive, client);
    assert_eq!(acquire(&mut table, at(20), found[0], &bob(None)).reply, left);
    assert_eq!(acquire_both(&mut table, at(20), found, &bob(None)), left);
    let reply = acquire(&mut table, at(20), found[0], &bob(Some(1))).reply;
    assert!(matches!(reply, Acquired::Waiting(_)), "{reply:?}");
    let reply = acquire_both(&mut table, at(20), found, &bob(Some(2)));
    assert!(matches!(reply, Acquired::Waiting(_)), "{reply:?}");
}

#[test]
fn without_a_quarantine_nothing_is_done_that_cannot_be_confirmed() {
    let (mut table, found) = promoted(Mode::Exclusive);
    let before = table.last_token();
    for (owner, client) in [(&b"alice"[..], None), (b"bob", Some(1))] {
        let ask = unconfirmable(owner, Mode::Exclusive, client);
        let step = acquire(&mut table, at(60), found[0], &ask);
        assert_eq!((step.reply, step.change), (REFUSED, Change::Nothing));
        assert_eq!(acquire_both(&mut table, at(60), found, &ask), REFUSED);
    }
    assert_eq!((table.waiters(), table.last_token()), (0, before));
}
