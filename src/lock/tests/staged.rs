//! A data set that is staged beside the one that is served.

use crate::lock::codec::{SavedHold, SavedLock};
use crate::lock::effect::{Change, Effects, Existing, LockId};
use crate::lock::table::{Granted, KeyRef, Table};
use crate::lock::types::{Binding, LockKey, Mode, Moment, Token};

const NOW: Moment = Moment(7_000_000);

fn token(number: u64) -> Token {
    Token::new(number).expect("valid")
}

fn lock_key(name: &str) -> LockKey<'_> {
    LockKey { db: 0, name: name.as_bytes() }
}

/// A lock that these hold, with these tokens.
fn saved(mode: Mode, holds: &[(&str, u64)]) -> SavedLock {
    let hold = |&(owner, number): &(&str, u64)| SavedHold {
        owner: owner.as_bytes().into(),
        token: token(number),
        left_ms: 60_000,
        count: 1,
        binding: Binding::NONE,
    };
    SavedLock { mode, holds: holds.iter().map(hold).collect() }
}

fn load(table: &mut Table, name: &str, mode: Mode, holds: &[(&str, u64)]) -> LockId {
    table.load(NOW, lock_key(name), Some(&saved(mode, holds))).expect("there is room")
}

/// The holders of a lock, with their tokens, as clients are told.
fn seen(table: &Table, name: &str, lock: LockId) -> Vec<(String, u64)> {
    let told = table.describe(NOW, lock_key(name), Existing::Lock(lock), b"", usize::MAX);
    let holds = told.into_iter().flat_map(|told| told.holds);
    let hold = |owner: &[u8], token: Option<Token>| {
        (String::from_utf8_lossy(owner).into_owned(), token.map_or(0, Token::get))
    };
    holds.map(|held| hold(&held.owner, held.token)).collect()
}

/// The holders of a lock, with their tokens, as a file would have them.
fn written(table: &Table, lock: LockId) -> Vec<(String, u64)> {
    let holds = table.save(NOW, lock).into_iter().flat_map(|saved| saved.holds);
    holds.map(|hold| (String::from_utf8_lossy(&hold.owner).into_owned(), hold.token.get())).collect()
}

fn held(holds: &[(&str, u64)]) -> Vec<(String, u64)> {
    holds.iter().map(|&(owner, token)| (owner.to_owned(), token)).collect()
}

/// A replica with two locks, whose stream has named token 100.
fn replica() -> (Table, LockId, LockId) {
    let mut table = Table::default();
    table.clock().adopt(100, 100);
    let plain = load(&mut table, "plain", Mode::Exclusive, &[("ann", 90)]);
    let holders = load(&mut table, "crowd", Mode::Shared, &[("bob", 91), ("eve", 92)]);
    (table, plain, holders)
}

/// What is loaded beside: the same names, otherwise held, and a third one.
fn load_staged(table: &mut Table) -> [LockId; 3] {
    table.begin_staged();
    table.begin_load();
    table.loaded_clock().adopt(500, 480);
    [
        load(table, "plain", Mode::Exclusive, &[("zoe", 490)]),
        load(table, "crowd", Mode::Limit(3), &[("yan", 491), ("xia", 492)]),
        load(table, "third", Mode::Exclusive, &[("wim", 493)]),
    ]
}

/// Gives back what is gone, of which nobody is told. Returns in how many steps: one for each hold, and one that finds
/// that nothing is left.
fn given_back(table: &mut Table) -> usize {
    let steps = std::iter::from_fn(|| table.next_notice()).inspect(|step| assert_eq!(*step, None)).count();
    assert!(!table.has_tasks());
    steps
}

#[test]
fn staged_locks_are_not_seen_but_found_by_their_numbers() {
    let (mut table, plain, holders) = replica();
    let before = table.memory_of(plain);
    let new = load_staged(&mut table);
    assert!(table.has_staged());
    assert_eq!((table.locks(), table.holds(), table.last_token()), (2, 3, 100));
    assert_eq!(seen(&table, "plain", plain), held(&[("ann", 90)]));
    assert_eq!(seen(&table, "crowd", holders), held(&[("bob", 91), ("eve", 92)]));
    assert_eq!(table.held_by(NOW, b"zoe"), []);
    for (lock, holds) in [
        (plain, vec![("ann", 90)]),
        (holders, vec![("bob", 91), ("eve", 92)]),
        (new[0], vec![("zoe", 490)]),
        (new[1], vec![("yan", 491), ("xia", 492)]),
        (new[2], vec![("wim", 493)]),
    ] {
        assert_eq!(written(&table, lock), held(&holds));
        assert!(table.is_held(lock));
        assert!(table.memory_of(lock) > 0);
    }
    assert_eq!(table.memory_of(plain), before);
    // A value of the one or the other is freed: nothing else goes with it.
    table.unlinked(NOW, new[2], false);
    assert!(!table.is_held(new[2]) && table.forget_free(new[2]));
    table.unlinked(NOW, plain, false);
    table.forget(NOW, plain, false);
    assert_eq!((table.locks(), table.holds()), (1, 2));
    assert_eq!(written(&table, new[0]), held(&[("zoe", 490)]));
    table.forget(NOW, new[0], false);
    assert_eq!((table.locks(), table.holds()), (1, 2));
    assert_eq!(written(&table, new[0]), []);
    table.check([(lock_key("crowd"), holders)].into_iter()).expect("sound");
}

#[test]
fn an_empty_lock_and_a_value_that_is_refused_are_of_the_set_that_is_loaded() {
    let (mut table, ..) = replica();
    load_staged(&mut table);
    let empty = table.load(NOW, lock_key("empty"), None).expect("there is room");
    assert!(!table.is_held(empty));
    assert_eq!(table.locks(), 2);
    assert_eq!(given_back(&mut table), 0);
    table.complete_staged();
    assert_eq!(given_back(&mut table), 3 + 1, "the holds of the old ones");
    assert_eq!(table.locks(), 4);
    assert!(table.forget_free(empty));
    assert_eq!(table.locks(), 3);
}

#[test]
fn a_loaded_data_set_replaces_the_served_one_as_a_whole() {
    let (mut table, plain, holders) = replica();
    let new = load_staged(&mut table);
    table.complete_staged();
    assert!(!table.has_staged() && table.has_tasks() && !table.has_notices());
    assert_eq!((table.locks(), table.holds()), (3, 4));
    assert_eq!(seen(&table, "plain", new[0]), held(&[("zoe", 490)]));
    assert_eq!(seen(&table, "crowd", new[1]), held(&[("yan", 491), ("xia", 492)]));
    // The old values are freed one after the other, on a thread of the server's.
    let mut dead = vec![plain, new[2], holders];
    table.keep_known(&mut dead);
    assert_eq!(dead, [new[2]]);
    for old in [plain, holders] {
        assert_eq!((table.is_held(old), table.save(NOW, old)), (false, None));
        assert!(table.forget_free(old));
        table.forget(NOW, old, true);
    }
    let keys = [("plain", new[0]), ("crowd", new[1]), ("third", new[2])];
    table.check(keys.iter().map(|&(name, id)| (lock_key(name), id))).expect("sound");
    assert_eq!(table.stats().broken, 0);
    // Counting goes on from what the new data set's head said, minting from the newest token of all.
    assert_eq!((table.clock().replicated_token(), table.last_token()), (480, 500));
    assert_eq!(given_back(&mut table), 3 + 1);
    // There is no other one.
    table.complete_staged();
    assert_eq!((table.locks(), table.has_tasks()), (3, false));
}

#[test]
fn a_failed_load_leaves_the_served_locks_as_they_were() {
    let (mut table, plain, holders) = replica();
    let new = load_staged(&mut table);
    table.abort_staged();
    assert_eq!(given_back(&mut table), 4 + 1);
    assert_eq!((table.locks(), table.holds(), table.has_staged()), (2, 3, false));
    assert_eq!(seen(&table, "plain", plain), held(&[("ann", 90)]));
    for id in new {
        assert!(!table.is_held(id));
        table.forget(NOW, id, false);
    }
    table.check([(lock_key("plain"), plain), (lock_key("crowd"), holders)].into_iter()).expect("sound");
    // Its stream goes on where it was: the next grant that travels as it was asked is token 101. But what the
    // other data set named is never minted again.
    assert_eq!((table.clock().replicated_token(), table.last_token()), (100, 500));
    let granted = Granted {
        owner: b"kim",
        lease_ms: 60_000,
        mode: Mode::Exclusive,
        is_reentrant: false,
        binding: Binding::NONE,
    };
    let key_ref = KeyRef { lock_key: lock_key("next"), existing: Existing::Nothing };
    let step = table.apply_acquire(NOW, key_ref, &granted, &mut Effects::default());
    let Change::Stored(next) = step.change else { panic!("{step:?}") };
    assert_eq!(seen(&table, "next", next), held(&[("kim", 101)]));
    assert_eq!(table.clock().mint(7).map(|(token, _)| token.get()), Some(501));
    table.abort_staged();
    table.begin_staged();
    table.abort_staged();
    assert_eq!((given_back(&mut table), table.locks()), (1, 3));
}

#[test]
fn no_number_of_a_set_that_is_gone_finds_anything_in_a_later_one() {
    let (mut table, plain, holders) = replica();
    let mut dead = Vec::new();
    let mut served = vec![plain, holders];
    for round in 0..40 {
        // The same slots and the same lives as in every set before.
        let new = load_staged(&mut table);
        for id in &dead {
            assert!(!table.is_held(*id) && table.forget_free(*id), "{id:?} in round {round}");
            table.forget(NOW, *id, false);
        }
        if round % 3 == 1 {
            table.abort_staged();
            dead.extend(new);
        } else {
            table.complete_staged();
            dead.append(&mut served);
            served.extend(new);
        }
        for id in &dead {
            assert!(!table.is_held(*id) && table.forget_free(*id), "{id:?} in round {round}");
            table.forget(NOW, *id, false);
        }
        assert!(served.iter().all(|&id| table.is_held(id)), "round {round}");
        assert_eq!(table.locks(), served.len());
        let mut numbers = dead.clone();
        numbers.extend(&served);
        table.keep_known(&mut numbers);
        // Numbers of lists of holders are not known by their set, but by their generations: none is used twice.
        assert!(served.iter().all(|id| numbers.contains(id)));
        numbers.retain(|id| !id.is_list());
        assert!(numbers.iter().all(|id| served.contains(id)), "round {round}: {numbers:?}");
    }
}

#[test]
fn leases_of_the_set_that_is_served_run_on_and_end() {
    let (mut table, plain, _) = replica();
    let end = table.next_deadline(true).expect("there are leases");
    load_staged(&mut table);
    assert_eq!(table.next_deadline(true), Some(end));
    let later = NOW.plus_ms(60_001);
    assert_eq!(table.live_token(later, Existing::Lock(plain)), None);
    assert_eq!(table.live_token(NOW, Existing::Lock(plain)), Some(token(90)));
    table.abort_staged();
    assert_eq!(table.next_deadline(true), Some(end));
    // A promoted server ends them.
    let mut over = 0;
    while let Some(due) = table.due(later, true) {
        if let crate::lock::effect::Task::Expire(_, lock) = due {
            table.lost(later, lock, later);
            over += 1;
        }
    }
    assert_eq!((over, table.holds()), (3, 0));
}

#[test]
fn a_file_that_was_begun_meanwhile_has_to_be_told_the_next_token() {
    let (mut table, ..) = replica();
    load_staged(&mut table);
    table.clock().begin_file();
    table.complete_staged();
    table.loaded_clock().adopt(500, 500);
    let counted = |table: &mut Table| table.clock().count().map(|(token, travel)| (token.get(), travel));
    assert_eq!(counted(&mut table), Some((501, crate::lock::token::Travel::Explicit)));
    assert_eq!(counted(&mut table), Some((502, crate::lock::token::Travel::Implicit)));
}
