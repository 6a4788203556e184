//! Requests that no server could confirm (CONTRACT 6): in a quarantine, and outside of one. The records of a raised
//! token.

use super::legacy::ask as plain;
use crate::lock::effect::{Change, Effects, Existing, Step};
use crate::lock::table::{Acquired, Ask, Decision, Granted, KeyRef, Refusal, Table};
use crate::lock::types::{Binding, LockKey, Mode, Moment, Now, Token};

const DOOR: LockKey<'static> = LockKey { db: 0, name: b"door" };
const GATE: LockKey<'static> = LockKey { db: 0, name: b"gate" };
const REFUSED: Acquired = Acquired::Refused(Refusal::Unconfirmable);

const fn at(ms: u64) -> Now {
    Now { boot: Moment(1_000_000 + ms * 1_000), wall_us: 1_000_000 + ms * 1_000 }
}

/// Returns a table that has been promoted, and knows that alice holds both locks with a lease of 50 ms.
fn promoted(mode: Mode) -> (Table, [Existing; 2]) {
    let mut table = Table::default();
    table.set_confirms(true);
    let granted =
        Granted { owner: b"alice", lease_ms: 50, mode, is_reentrant: false, binding: Binding::NONE };
    let refs = [DOOR, GATE].map(|lock_key| KeyRef { lock_key, existing: Existing::Nothing });
    let mut fx = [Effects::default(), Effects::default()];
    let steps = table.apply_acquire_many(at(0).boot, &refs, &granted, &mut fx);
    let existing = [0, 1].map(|number: usize| match steps[number].change {
        Change::Stored(lock) => Existing::Lock(lock),
        change => panic!("{change:?}"),
    });
    table.begin_quarantine(at(10).boot, 50);
    (table, existing)
}

fn unconfirmable(owner: &[u8], mode: Mode, client: Option<u64>) -> Ask<'_> {
    Ask { cannot_confirm: true, ..plain(owner, mode, client) }
}

fn acquire(table: &mut Table, now: Now, existing: Existing, ask: &Ask<'_>) -> Step<Acquired> {
    let key_ref = KeyRef { lock_key: DOOR, existing };
    table.acquire(now, key_ref, ask, &mut |_| Decision::Granted, &mut Effects::default())
}

fn acquire_both(table: &mut Table, now: Now, existing: [Existing; 2], ask: &Ask<'_>) -> Acquired {
    let refs =
        [KeyRef { lock_key: DOOR, existing: existing[0] }, KeyRef { lock_key: GATE, existing: existing[1] }];
    let mut fx = [Effects::default(), Effects::default()];
    table.acquire_many(now, &refs, ask, &mut |_| Decision::Granted, &mut fx).0
}

fn live(table: &Table, ms: u64, existing: Existing) -> Option<Token> {
    table.live_token(at(ms).boot, existing)
}

#[test]
fn what_is_asked_for_again_in_a_quarantine_does_not_outlast_it_unconfirmed() {
    // G4: the owner may never have received it
    for (held, asked) in
        [(Mode::Exclusive, Mode::Exclusive), (Mode::Exclusive, Mode::Shared), (Mode::Shared, Mode::Shared)]
    {
        let (mut table, existing) = promoted(held);
        for ms in [20, 49] {
            let step = acquire(&mut table, at(ms), existing[0], &unconfirmable(b"alice", asked, None));
            assert_eq!((step.reply, step.change), (REFUSED, Change::Nothing), "{held:?}, {asked:?}");
            let both = acquire_both(&mut table, at(ms), existing, &unconfirmable(b"alice", asked, Some(1)));
            let refused = if held == asked { REFUSED } else { Acquired::Refused(Refusal::Held(0)) };
            assert_eq!(both, refused, "{held:?}, {asked:?}");
        }
        for existing in existing {
            assert!(live(&table, 49, existing).is_some(), "it goes on as it was");
            assert_eq!(live(&table, 50, existing), None);
        }
    }
}

#[test]
fn confirmable_requests_continue_in_a_quarantine() {
    let (mut table, existing) = promoted(Mode::Exclusive);
    let token = live(&table, 20, existing[0]).expect("it is held");
    let again = plain(b"alice", Mode::Exclusive, None);
    assert_eq!(acquire(&mut table, at(20), existing[0], &again).reply, Acquired::Granted(token));
    assert_eq!(acquire_both(&mut table, at(20), existing, &again), Acquired::Granted(token));
    assert_eq!(live(&table, 69, existing[1]), Some(token));
}

#[test]
fn an_owner_without_a_hold_waits_for_a_quarantine_or_gets_its_error() {
    let (mut table, existing) = promoted(Mode::Exclusive);
    let left = Acquired::Refused(Refusal::Quarantine(40));
    let bob = |client| unconfirmable(b"bob", Mode::Exclusive, client);
    assert_eq!(acquire(&mut table, at(20), existing[0], &bob(None)).reply, left);
    assert_eq!(acquire_both(&mut table, at(20), existing, &bob(None)), left);
    let reply = acquire(&mut table, at(20), existing[0], &bob(Some(1))).reply;
    assert!(matches!(reply, Acquired::Waiting(_)), "{reply:?}");
    let reply = acquire_both(&mut table, at(20), existing, &bob(Some(2)));
    assert!(matches!(reply, Acquired::Waiting(_)), "{reply:?}");
}

#[test]
fn without_a_quarantine_nothing_is_done_that_cannot_be_confirmed() {
    let (mut table, existing) = promoted(Mode::Exclusive);
    let before = table.last_token();
    // Her lease has expired, and ends as in any step.
    for (owner, client, change) in
        [(&b"alice"[..], None, Change::Deleted), (b"bob", Some(1), Change::Nothing)]
    {
        let ask = unconfirmable(owner, Mode::Exclusive, client);
        let step = acquire(&mut table, at(60), existing[0], &ask);
        assert_eq!((step.reply, step.change), (REFUSED, change));
        assert_eq!(acquire_both(&mut table, at(60), existing, &ask), REFUSED);
    }
    assert_eq!((table.waiters(), table.last_token()), (0, before));
}
