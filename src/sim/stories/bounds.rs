//! Tests of bounds. The search for deadlocks (G11) assumes that everything beyond its bound can be granted. One
//! owner can hold a lock a limited number of times. One step lets a limited number of reservations lapse, and serves
//! a limited number of waiters.

use std::collections::BTreeMap;

use crate::lock::codec::{SavedHold, SavedLock};
use crate::lock::deadlock::STEPS_MAX;
use crate::lock::effect::{Change, Effects, Existing, Record, Step, Task};
use crate::lock::table::{Acquired, Ask, Candidate, Decision, KeyRef, Limits, Refusal, Release, Table, Wait};
use crate::lock::tests::legacy::ask;
use crate::lock::tests::tuning::Lowered;
use crate::lock::tests::visits;
use crate::lock::types::{Binding, COUNT_MAX, LockKey, Mode, Moment, Now, Token};

const NOW: Now = Now { boot: Moment(1_000_000), wall_us: 1_000_000 };
const MORE: u32 = STEPS_MAX as u32 + 8;

/// A world whose locks and owners are numbers.
struct World {
    table: Table,
    keys: BTreeMap<u32, Existing>,
}

impl World {
    fn new() -> Self {
        let mut table = Table::default();
        let many = 4 * STEPS_MAX;
        table.set_limits(Limits::of(many, many, many));
        Self { table, keys: BTreeMap::new() }
    }

    /// Requests a lock for an owner, which waits for it if it must.
    fn ask(&mut self, owner: u32, key: u32, mode: Mode) -> Acquired {
        let client = u64::from(owner) << 32 | u64::from(key);
        let (owner, name) = (owner.to_le_bytes(), key.to_le_bytes());
        let ask = ask(&owner, mode, Some(client));
        let existing = self.keys.get(&key).copied().unwrap_or(Existing::Nothing);
        let key_ref = KeyRef { lock_key: LockKey { db: 0, name: &name }, existing };
        let mut fx = Effects::default();
        let step = self.table.acquire(NOW, key_ref, &ask, &mut |_| Decision::Granted, &mut fx);
        if let Change::Stored(lock) = step.change {
            self.keys.insert(key, Existing::Lock(lock));
        }
        step.reply
    }

    fn holds(&mut self, owner: u32, key: u32, mode: Mode) {
        let reply = self.ask(owner, key, mode);
        assert!(matches!(reply, Acquired::Granted(_)), "{owner} at {key}: {reply:?}");
    }

    fn waits(&mut self, owner: u32, key: u32, mode: Mode) {
        let reply = self.ask(owner, key, mode);
        assert!(matches!(reply, Acquired::Waiting(_)), "{owner} at {key}: {reply:?}");
    }
}

#[test]
fn a_long_cycle_is_found_and_one_beyond_the_limit_of_steps_is_not() {
    for (length, is_found) in [(STEPS_MAX as u32 / 2, true), (MORE, false)] {
        let mut world = World::new();
        for owner in 0..length {
            world.holds(owner, owner, Mode::Exclusive);
        }
        for owner in 0..length - 1 {
            world.waits(owner, owner + 1, Mode::Exclusive);
        }
        let last = world.ask(length - 1, 0, Mode::Exclusive);
        assert_eq!(last == Acquired::Refused(Refusal::Deadlock), is_found, "{length}: {last:?}");
        assert_eq!(world.table.take_cycle().len(), if is_found { length as usize } else { 0 });
    }
}

#[test]
fn a_search_among_very_many_holders_looks_at_those_that_wait() {
    // As many others wait, elsewhere. If those are too many to examine, the search ends before it finds the one.
    for (holders, others, is_found) in
        [(STEPS_MAX as u32 / 2, 0, true), (MORE, 0, true), (MORE, 100, true), (MORE, MORE, false)]
    {
        let mut world = World::new();
        let writer = MORE + 1;
        world.holds(writer, 1, Mode::Exclusive);
        for owner in 1..=holders {
            world.holds(owner, 0, Mode::Shared);
        }
        world.waits(1, 1, Mode::Exclusive);
        for other in 0..others {
            world.waits(writer + 1 + other, 1, Mode::Exclusive);
        }
        let reply = world.ask(writer, 0, Mode::Exclusive);
        let is_refused = reply == Acquired::Refused(Refusal::Deadlock);
        assert_eq!(is_refused, is_found, "{holders} beside {others}: {reply:?}");
    }
}

#[test]
fn a_reader_beyond_the_most_readers_waits_for_them() {
    for (readers_max, is_found) in [(1, true), (2, false)] {
        let mut world = World::new();
        let many = 4 * STEPS_MAX;
        let limits = Limits::of(many, many, readers_max);
        world.table.set_limits(limits);
        world.holds(1, 0, Mode::Shared);
        world.holds(2, 1, Mode::Exclusive);
        world.waits(1, 1, Mode::Exclusive);
        let reply = world.ask(2, 0, Mode::Shared);
        assert_eq!(reply == Acquired::Refused(Refusal::Deadlock), is_found, "{readers_max}: {reply:?}");
        assert_eq!(matches!(reply, Acquired::Granted(_)), !is_found, "{readers_max}: {reply:?}");
    }
}

/// Tests `COUNT_MAX`, which is far beyond the counts of tests: a payload brings such a hold.
#[test]
fn an_owner_at_the_highest_count_is_refused() {
    for (count, is_refused) in [(COUNT_MAX - 1, false), (COUNT_MAX, true)] {
        let mut table = Table::default();
        let (lock_key, token) = (LockKey { db: 0, name: b"k" }, Token::new(7).expect("valid"));
        let hold = SavedHold { owner: b"ann"[..].into(), token, left_ms: 50, count, binding: Binding::NONE };
        let saved = SavedLock { mode: Mode::Exclusive, holds: vec![hold] };
        let lock = table.load(NOW.boot, lock_key, Some(&saved)).expect("there is room");
        let ask = Ask { is_reentrant: true, ..ask(b"ann", Mode::Exclusive, None) };
        let (key_ref, mut fx) = (KeyRef { lock_key, existing: Existing::Lock(lock) }, Effects::default());
        let reply = table.acquire(NOW, key_ref, &ask, &mut |_| Decision::Granted, &mut fx).reply;
        let expected =
            if is_refused { Acquired::Refused(Refusal::TooManyTimes) } else { Acquired::Granted(token) };
        assert_eq!(reply, expected, "{count}");
    }
}

#[test]
fn reservations_that_lapse_together_end_a_few_in_a_step() {
    let (mut table, mut fx) = (Table::default(), Effects::default());
    let lock_key = LockKey { db: 0, name: b"k" };
    let mut key_ref = KeyRef { lock_key, existing: Existing::Nothing };
    let ann = ask(b"ann", Mode::Exclusive, None);
    let held = table.acquire(NOW, key_ref, &ann, &mut |_| Decision::Granted, &mut fx);
    let Change::Stored(lock) = held.change else { panic!("{held:?}") };
    key_ref.existing = Existing::Lock(lock);
    let wait = Some(Wait::Reservation { until: NOW.boot.plus_ms(10) });
    let reserve = |owner| Ask { wait, ..ask(owner, Mode::Exclusive, None) };
    let reservations = [b"b", b"c", b"d", b"e", b"f"].map(|owner| reserve(owner));
    let bob = ask(b"bob", Mode::Exclusive, Some(1));
    for request in reservations.iter().chain([&bob]) {
        let _ = table.acquire(NOW, key_ref, request, &mut |_| Decision::Granted, &mut fx);
    }
    assert_eq!((table.waiters(), table.next_task()), (6, None));
    // Ann's lease has expired, too. Bob is next, and is granted the lock once all waiters ahead of him have left.
    let later = Now { boot: NOW.boot.plus_ms(60), ..NOW };
    for left in [4, 2] {
        let step = table.settle(later, key_ref, None, &mut |_| Decision::Granted, &mut fx);
        assert_eq!((step, table.waiters()), (Step::unchanged(()), left));
        assert!(matches!(table.next_task(), Some(Task::Settle(_))), "the pump comes back");
    }
    let step = table.settle(later, key_ref, None, &mut |_| Decision::Granted, &mut fx);
    assert_eq!((step.change, table.waiters()), (Change::Renewed, 0));
    assert_eq!(table.next_task(), None);
}

/// Returns a writer that holds the lock, and many waiters for it in this mode.
fn with_waiters(count: u32, mode: Mode) -> (World, KeyRef<'static>) {
    let mut world = World::new();
    world.holds(0, 0, Mode::Exclusive);
    for owner in 1..=count {
        world.waits(owner, 0, mode);
    }
    let existing = world.keys[&0];
    (world, KeyRef { lock_key: LockKey { db: 0, name: &[0; 4] }, existing })
}

fn is_noted(table: &mut Table) -> bool {
    matches!((table.next_task(), table.next_task()), (Some(Task::Settle(_)), None))
}

#[test]
fn many_readers_are_granted_some_in_a_step_and_no_request_passes_them() {
    let (mut world, mut key_ref) = with_waiters(150, Mode::Shared);
    let (table, mut fx) = (&mut world.table, Effects::default());
    let writer = Release { owner: &0_u32.to_le_bytes(), token: None };
    let step = table.release(NOW, key_ref, &writer, &mut |_| Decision::Granted, &mut fx);
    assert_eq!((step.reply, table.holds(), table.waiters()), (Some(true), 64, 86));
    if let Change::Stored(lock) = step.change {
        key_ref.existing = Existing::Lock(lock);
    }
    assert!(is_noted(table), "the pump comes back");
    // A newcomer also causes grants, and is queued after the others.
    let newcomer = 151_u32.to_le_bytes();
    let ask = ask(&newcomer, Mode::Shared, None);
    let step = table.acquire(NOW, key_ref, &ask, &mut |_| Decision::Granted, &mut fx);
    assert_eq!((step.reply, table.holds(), table.waiters()), (Acquired::Busy, 128, 22));
    assert!(is_noted(table), "and again");
    let _ = table.settle(NOW, key_ref, None, &mut |_| Decision::Granted, &mut fx);
    assert_eq!((table.holds(), table.waiters(), table.next_task()), (150, 0, None));
}

#[test]
fn many_readers_who_may_not_have_the_lock_are_refused_some_in_a_step() {
    let (mut world, mut key_ref) = with_waiters(100, Mode::Shared);
    let (table, mut fx) = (&mut world.table, Effects::default());
    let writer = Release { owner: &0_u32.to_le_bytes(), token: None };
    let mut refuse = |_: Candidate<'_>| Decision::Refused("no");
    let step = table.release(NOW, key_ref, &writer, &mut refuse, &mut fx);
    assert_eq!((step.change, table.waiters()), (Change::Deleted, 36));
    assert!(is_noted(table), "the pump comes back");
    key_ref.existing = Existing::Nothing;
    let _ = table.settle(NOW, key_ref, None, &mut refuse, &mut fx);
    assert_eq!((table.waiters(), table.next_task()), (0, None));
}

/// No newcomer passes waiters that are not examined yet, no matter who releases the lock.
#[test]
fn many_writers_who_may_not_have_the_lock_are_refused_some_in_a_step() {
    let (mut world, mut key_ref) = with_waiters(150, Mode::Exclusive);
    let (table, mut fx) = (&mut world.table, Effects::default());
    let holder = Release { owner: &0_u32.to_le_bytes(), token: None };
    let mut admit_the_last = |who: Candidate<'_>| {
        if who.client.0 >> 32 == 150 { Decision::Granted } else { Decision::Refused("no") }
    };
    let step = table.release(NOW, key_ref, &holder, &mut admit_the_last, &mut fx);
    assert_eq!((step.reply, step.change, table.waiters()), (Some(true), Change::Deleted, 86));
    assert!(is_noted(table), "the pump comes back");
    key_ref.existing = Existing::Nothing;
    let newcomer = ask(b"newcomer", Mode::Exclusive, None);
    let step = table.acquire(NOW, key_ref, &newcomer, &mut admit_the_last, &mut fx);
    assert_eq!((step.reply, step.change, table.waiters()), (Acquired::Busy, Change::Nothing, 22));
    assert!(is_noted(table), "and again");
    let step = table.settle(NOW, key_ref, None, &mut admit_the_last, &mut fx);
    assert!(matches!(step.change, Change::Stored(_)), "the last one has it: {step:?}");
    assert_eq!((table.holds(), table.waiters(), table.next_task()), (1, 0, None));
}

/// The lock's lease has expired, and a newcomer is the first to find it.
#[test]
fn a_newcomer_that_finds_a_lease_over_stands_behind_those_who_are_looked_at_later() {
    let (mut world, key_ref) = with_waiters(100, Mode::Exclusive);
    let (table, mut fx) = (&mut world.table, Effects::default());
    let later = Now { boot: NOW.boot.plus_ms(60), ..NOW };
    let newcomer = ask(b"newcomer", Mode::Exclusive, Some(1));
    let mut refuse = |_: Candidate<'_>| Decision::Refused("no");
    let step = table.acquire(later, key_ref, &newcomer, &mut refuse, &mut fx);
    assert!(matches!(step.reply, Acquired::Waiting(_)), "{step:?}");
    assert!(matches!((step.change, step.record), (Change::Deleted, Record::Ended(_))), "{step:?}");
    assert_eq!((table.holds(), table.waiters()), (0, 37));
    assert!(is_noted(table), "the pump comes back");
}

#[test]
fn a_search_that_has_looked_at_many_still_finds_the_one_who_waits_among_very_many_holders() {
    let (writer, readers) = (MORE + 1, 100);
    let mut world = World::new();
    world.holds(writer, 1, Mode::Exclusive);
    for owner in 1..=MORE {
        world.holds(owner, 0, Mode::Shared);
    }
    // The search examines these first, because they are ahead.
    for reader in 1..=readers {
        world.waits(writer + reader, 1, Mode::Shared);
    }
    world.waits(writer, 0, Mode::Exclusive);
    assert_eq!(world.ask(MORE, 1, Mode::Shared), Acquired::Refused(Refusal::Deadlock));
}

#[test]
fn a_search_that_has_reached_its_bound_examines_no_further_holders() {
    let (writer, holders) = (1_000, 200);
    Lowered::steps(10).during(|| {
        let mut world = World::new();
        world.holds(writer, 1, Mode::Exclusive);
        for owner in 1..=holders {
            world.holds(owner, 0, Mode::Shared);
        }
        // The search goes through the holders: there are more waiters than it may examine.
        for owner in 1..=20 {
            world.waits(owner, 1, Mode::Exclusive);
        }
        visits::take();
        world.waits(writer, 0, Mode::Exclusive);
        let visits = visits::take();
        assert!((10..100).contains(&visits), "{visits}");
    });
}
