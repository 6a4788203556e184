//! Owners that wait for what a RESTORE has made them hold (G9): how much of that is done in one step of the pump.

use super::legacy::ask;
use crate::lock::codec::{SavedHold, SavedLock};
use crate::lock::effect::{Change, Effects, Existing, LockId};
use crate::lock::table::{Acquired, Decision, KeyRef, Table};
use crate::lock::types::{Binding, LockKey, Mode, Moment, Now, Token};

const DOOR: LockKey<'static> = LockKey { db: 0, name: b"door" };
const NOW: Now = Now { boot: Moment(1_000_000), wall_us: 1_000_000 };

/// A lock with `readers` readers, as a payload has it.
fn saved(readers: u64) -> SavedLock {
    let hold = |number| SavedHold {
        owner: format!("reader-{number}").as_bytes().into(),
        token: Token::new(number + 1).expect("valid"),
        left_ms: 9_000,
        count: 1,
        binding: Binding::NONE,
    };
    SavedLock { mode: Mode::Shared, holds: (0..readers).map(hold).collect() }
}

/// Lets `waiters` owners, named alike, wait for a lock in this way. Then writes a lock of twenty readers over it.
fn restored_over(owner: &str, waiters: u64, mode: Mode) -> (Table, LockId) {
    let mut table = Table::default();
    let mut fx = Effects::default();
    let mut acquire = |table: &mut Table, existing, owner: &str, mode, client| {
        let asked = ask(owner.as_bytes(), mode, client);
        let key_ref = KeyRef { lock_key: DOOR, existing };
        table.acquire(NOW, key_ref, &asked, &mut |_| Decision::Granted, &mut fx)
    };
    let Change::Stored(old) = acquire(&mut table, Existing::Nothing, "bob", Mode::Exclusive, None).change
    else {
        panic!("it was free");
    };
    for number in 0..waiters {
        let name = format!("{owner}-{number}");
        let step = acquire(&mut table, Existing::Lock(old), &name, mode, Some(number));
        assert!(matches!(step.reply, Acquired::Waiting(_)), "{name}");
    }
    let new = table.load(NOW.boot, DOOR, Some(&saved(20))).expect("there is room");
    table.unlinked(NOW.boot, old, true);
    while table.next_task().is_some() {}
    (table, new)
}

/// How many steps the pump needs there, how many of them have searched for deadlocks, and how many wait after it.
fn settled((mut table, lock): (Table, LockId)) -> (usize, usize, usize) {
    let key_ref = KeyRef { lock_key: DOOR, existing: Existing::Lock(lock) };
    let (mut steps, mut searches) = (0, 0);
    loop {
        let _ = table.settle(NOW, key_ref, None, &mut |_| Decision::Granted, &mut Effects::default());
        steps += 1;
        searches += usize::from(table.take_searched());
        if table.next_task().is_none() {
            return (steps, searches, table.waiters());
        }
    }
}

#[test]
fn a_step_looks_at_a_limited_number_of_those_who_waited_when_a_lock_was_restored() {
    // 64 in a step, and those who could come in are among them.
    for (waiters, steps) in [(63, 1), (65, 2), (127, 2), (129, 3)] {
        let waiters_left = usize::try_from(waiters).expect("few");
        assert_eq!(settled(restored_over("other", waiters, Mode::Exclusive)), (steps, 0, waiters_left));
    }
}

#[test]
fn a_step_decides_anew_all_who_are_told_at_once() {
    assert_eq!(settled(restored_over("reader", 5, Mode::Shared)), (1, 0, 0));
}

#[test]
fn a_step_searches_for_one_deadlock_at_most() {
    // Of several upgrades one can wait.
    assert_eq!(settled(restored_over("reader", 1, Mode::Exclusive)), (1, 1, 1));
    assert_eq!(settled(restored_over("reader", 4, Mode::Exclusive)), (4, 4, 1));
}
