//! A token that was minted and is not used: readers of the stream do not count it, so the next grant names its token
//! (G13).

use super::legacy::ask;
use crate::lock::effect::{Answer, Change, Effect, Effects, Existing, Record};
use crate::lock::table::{Acquired, Ask, Decision, KeyRef, Refusal, TOO_MANY_LOCKS, Table};
use crate::lock::types::{LockKey, Mode, Moment, Now};

/// A time at which a lease of a minute would end after the last moment that can be represented.
const LATE: Now = Now { boot: Moment((1 << 48) - 10_000_000), wall_us: 1_000_000 };
const TOO_LONG_MS: u64 = 60_000;

const fn free(name: &[u8]) -> KeyRef<'_> {
    KeyRef { lock_key: LockKey { db: 0, name }, existing: Existing::Nothing }
}

fn acquire(table: &mut Table, name: &[u8], ask: &Ask<'_>) -> (Acquired, Record, Existing) {
    let mut fx = Effects::default();
    let step = table.acquire(LATE, free(name), ask, &mut |_| Decision::Granted, &mut fx);
    let existing = match step.change {
        Change::Stored(lock) => Existing::Lock(lock),
        _ => Existing::Nothing,
    };
    (step.reply, step.record, existing)
}

/// Returns a table whose readers count tokens, and a held lock.
fn that_counts() -> (Table, Existing) {
    let mut table = Table::default();
    acquire(&mut table, b"first", &ask(b"ann", Mode::Exclusive, None));
    let (_, record, door) = acquire(&mut table, b"door", &ask(b"ann", Mode::Exclusive, None));
    assert_eq!(record, Record::AsAsked);
    (table, door)
}

fn names_the_next(mut table: Table, what: &str) {
    let (reply, record, _) = acquire(&mut table, b"next", &ask(b"eve", Mode::Exclusive, None));
    assert!(matches!(reply, Acquired::Granted(_)), "{what}: {reply:?}");
    assert!(matches!(record, Record::Hold(_)), "{what}: {record:?} lets readers count");
    let (_, record, _) = acquire(&mut table, b"then", &ask(b"eve", Mode::Exclusive, None));
    assert_eq!(record, Record::AsAsked, "{what}: they count on from there");
}

#[test]
fn a_request_that_fails_after_its_token_was_minted_makes_the_next_one_explicit() {
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Limit(2)] {
        let (mut table, _) = that_counts();
        let ask = Ask { lease_ms: TOO_LONG_MS, ..ask(b"bob", mode, None) };
        let (reply, ..) = acquire(&mut table, b"gate", &ask);
        assert_eq!(reply, Acquired::Refused(Refusal::TooManyLocks));
        names_the_next(table, &format!("{mode:?}"));
    }
}

#[test]
fn a_waiter_that_fails_after_its_token_was_minted_makes_the_next_one_explicit() {
    for mode in [Mode::Exclusive, Mode::Shared] {
        let (mut table, door) = that_counts();
        let key_ref = KeyRef { existing: door, ..free(b"door") };
        let mut fx = Effects::default();
        let ask = Ask { lease_ms: TOO_LONG_MS, ..ask(b"bob", mode, Some(2)) };
        let step = table.acquire(LATE, key_ref, &ask, &mut |_| Decision::Granted, &mut fx);
        assert!(matches!(step.reply, Acquired::Waiting(_)));
        // The key was deleted, and the record of its lock with it.
        let _ = table.settle(LATE, free(b"door"), None, &mut |_| Decision::Granted, &mut fx);
        let told = fx.into_iter().find_map(|effect| match effect {
            Effect::Answer { answer, .. } => Some(answer),
            _ => None,
        });
        assert_eq!(told, Some(Answer::Refused(TOO_MANY_LOCKS)));
        names_the_next(table, &format!("{mode:?}"));
    }
}

#[test]
fn a_request_for_several_locks_that_fails_then_makes_the_next_token_explicit() {
    let (mut table, _) = that_counts();
    let refs = [free(b"gate"), free(b"hall")];
    let mut fx = [Effects::default(), Effects::default()];
    let ask = Ask { lease_ms: TOO_LONG_MS, ..ask(b"bob", Mode::Exclusive, None) };
    let (_, steps) = table.acquire_many(LATE, &refs, &ask, &mut |_| Decision::Granted, &mut fx);
    assert!(steps.iter().all(|step| step.record == Record::Nothing), "{steps:?}");
    names_the_next(table, "several");
}
