//! The effect of records on a reader: its own records, and streams that no primary would send.

use crate::lock::codec::SavedHold;
use crate::lock::effect::{Change, Effect, Effects, Event, Existing, Record, Step};
use crate::lock::table::{Granted, KeyRef, Table};
use crate::lock::types::{Binding, LockKey, Mode, Moment, Token};

const K: LockKey<'static> = LockKey { db: 0, name: b"k" };
const NOW: Moment = Moment(1_000_000);

fn token(number: u64) -> Token {
    Token::new(number).expect("valid")
}

/// A reader, and the value of its only key.
struct Reader {
    table: Table,
    existing: Existing,
}

impl Reader {
    fn new() -> Self {
        Self { table: Table::default(), existing: Existing::Nothing }
    }

    /// Applies the record of a hold. Returns how many holds were reported as released.
    fn hold(&mut self, mode: Mode, owner: &[u8], number: u64) -> usize {
        let (token, binding) = (token(number), Binding::NONE);
        let hold = SavedHold { owner: owner.into(), token, left_ms: 50, count: 1, binding };
        let mut fx = Effects::default();
        let key_ref = KeyRef { lock_key: K, existing: self.existing };
        let step = self.table.apply_hold(NOW, key_ref, mode, &hold, &mut fx);
        if let Change::Stored(lock) = step.change
            && let Existing::Lock(old) = std::mem::replace(&mut self.existing, Existing::Lock(lock))
        {
            // The value that was replaced is freed.
            self.table.forget_free(old);
        }
        fx.into_iter().filter(|effect| *effect == Effect::Publish(Event::Released)).count()
    }

    /// Returns the holders, with their tokens.
    fn holders(&self) -> Vec<(Vec<u8>, u64)> {
        let told = self.table.describe(NOW, K, self.existing, b"", usize::MAX).expect("held");
        let holds = told.holds.iter();
        holds.map(|hold| (hold.owner.to_vec(), hold.token.map_or(0, Token::get))).collect()
    }
}

#[test]
fn a_holder_beyond_the_limit_ends_the_oldest_hold() {
    for limit in [1, 2, 3] {
        let mut reader = Reader::new();
        for number in 1..=5 {
            let released = reader.hold(Mode::Limit(limit), format!("owner-{number}").as_bytes(), number);
            assert_eq!(released, usize::from(number > u64::from(limit)), "{number} of {limit}");
        }
        let newest = (6 - u64::from(limit)..=5).map(|n| (format!("owner-{n}").into_bytes(), n));
        assert_eq!(reader.holders(), newest.collect::<Vec<_>>());
    }
}

#[test]
fn no_owner_holds_twice_and_no_token_is_anothers() {
    let mut reader = Reader::new();
    for (owner, number) in [(b"ann", 1), (b"bob", 2), (b"ann", 3), (b"eve", 2)] {
        assert_eq!(reader.hold(Mode::Shared, owner, number), 0);
    }
    assert_eq!(reader.holders(), [(b"eve".to_vec(), 2), (b"ann".to_vec(), 3)]);
    // An exclusive holder holds alone, no matter which holds there were.
    assert_eq!(reader.hold(Mode::Exclusive, b"bob", 4), 2);
    assert_eq!(reader.holders(), [(b"bob".to_vec(), 4)]);
    assert_eq!(reader.hold(Mode::Limit(9), b"ann", 5), 1);
    assert_eq!(reader.holders(), [(b"ann".to_vec(), 5)]);
    assert_eq!((reader.table.locks(), reader.table.holds()), (1, 1));
}

/// Makes ann hold all of these now, as her primary granted it word for word.
fn take_all(
    table: &mut Table,
    existing: &mut [(LockKey<'static>, Existing)],
    lease_ms: u64,
) -> Vec<Step<()>> {
    let granted = Granted {
        owner: b"ann",
        lease_ms,
        mode: Mode::Exclusive,
        is_reentrant: false,
        binding: Binding::NONE,
    };
    let refs: Vec<KeyRef<'_>> =
        existing.iter().map(|&(lock_key, existing)| KeyRef { lock_key, existing }).collect();
    let mut fx: Vec<Effects> = refs.iter().map(|_| Effects::default()).collect();
    let steps = table.apply_acquire_many(NOW, &refs, &granted, &mut fx);
    for (step, (_, existing)) in steps.iter().zip(existing) {
        if let Change::Stored(lock) = step.change {
            *existing = Existing::Lock(lock);
        }
    }
    steps
}

#[test]
fn a_file_names_several_locks_by_one_request_or_each_with_its_token() {
    let lock_keys = [b"a", b"b", b"c"].map(|name| LockKey { db: 0, name });
    let as_asked = [Record::AsAsked, Record::Nothing, Record::Nothing];
    let records = |steps: &[Step<()>]| steps.iter().map(|step| step.record).collect::<Vec<_>>();
    for is_new_file in [false, true] {
        let mut existing = lock_keys.map(|lock_key| (lock_key, Existing::Nothing));
        let mut table = Table::default();
        table.clock().hear(token(100));
        if is_new_file {
            table.clock().begin_file();
        }
        let steps = take_all(&mut table, &mut existing, 50);
        let locks = existing.map(|(_, existing)| match existing {
            Existing::Lock(lock) => lock,
            _ => panic!("{existing:?}"),
        });
        let named = locks.map(Record::Hold);
        assert_eq!(records(&steps), if is_new_file { named } else { as_asked });
        for (_, existing) in existing {
            assert_eq!(table.live_token(NOW, existing), Some(token(101)));
        }
        // The same request again, with a longer lease.
        assert_eq!(records(&take_all(&mut table, &mut existing, 90)), as_asked);
        for (lock_key, existing) in existing {
            assert_eq!(table.live_token(NOW, existing), Some(token(101)));
            let told = table.describe(NOW, lock_key, existing, b"", usize::MAX).expect("held");
            assert_eq!(told.holds[0].left_ms, 90);
        }
    }
}
