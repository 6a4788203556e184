//! Puts events into the [event queue](super::event_queue), and takes them out.

use super::event_queue::Notice;
use super::state::Table;
use crate::lock::effect::{Event, LockId};
use crate::lock::locks::Gone;
use crate::lock::tuning::Bound;
use crate::lock::types::{LockKey, Moment};

/// After this many sets of locks, values of the first sets could be mistaken for values of the next one. From then
/// on, swapped databases are searched lock by lock, until the keyspace is emptied.
const EPOCHS_WITH_VALUES_MAX: Bound = Bound::of(4_000_000, 4);

impl Table {
    /// Returns true if an event is not published yet. Later events must wait for it.
    #[inline(always)]
    #[must_use]
    pub fn has_notices(&self) -> bool {
        !self.events.is_published()
    }

    /// Queues an event.
    pub fn publish_later(&mut self, lock_key: LockKey<'_>, event: Event) {
        self.events.push(lock_key.to_owned(), event);
    }

    /// Takes the next event out, or only frees memory. `None` if nothing is left.
    pub fn next_notice(&mut self) -> Option<Option<Notice>> {
        let notice = |gone: &Gone<'_>, event| {
            Some(Notice { lock_key: gone.lock.lock_key()?, event, broken: (0, None) })
        };
        self.events
            .next_of_flushed(&mut self.stats, notice)
            .or_else(|| self.events.next_entry(&mut self.locks, &mut self.stats))
    }

    /// As [`Self::next_notice`], while no client listens: leaves out the names of flushed locks, which cost more than
    /// the rest.
    pub fn next_unheard(&mut self) -> Option<Option<Event>> {
        if let Some(step) = self.events.next_of_flushed(&mut self.stats, |_, event| Some(event)) {
            return Some(step);
        }
        Some(self.events.next_entry(&mut self.locks, &mut self.stats)?.map(|notice| notice.event))
    }

    /// Uncounts a lock whose event says that it was broken, but which left with its slot.
    pub fn take_back_broken(&mut self, notice: &Notice) {
        self.stats.broken -= notice.broken.0;
        self.stats.left += notice.broken.0;
    }

    /// Ends all holds in the databases that are being emptied (all, if `None`), and lets their waiters be served. The
    /// server frees the values later, perhaps on another thread; their numbers then stand for nothing. `is_ours` is
    /// true if this server decides, and so counts and publishes broken locks.
    pub fn flushed(&mut self, now: Moment, db: Option<u32>, is_ours: bool) {
        self.events.note_flush(false);
        if db.is_none_or(|db| self.locks.are_all_in(|other| other == db)) {
            let is_told = self.set_all_aside(now, is_ours) && is_ours;
            self.events.note_flush(is_told);
            if db.is_none() {
                self.epochs_then = self.epochs;
            }
        } else {
            self.break_all(now, |other| db == Some(other), is_ours);
        }
        self.forget_locks_of_queues(|key_db| db.is_none_or(|db| db == key_db));
    }

    /// Breaks all locks in two databases that changed places, because a hold belongs to its name. `is_ours` is true
    /// if this server decides, and so counts and publishes that. The values stay in the keyspace, and stand for
    /// nothing.
    pub fn swapped(&mut self, now: Moment, a: u32, b: u32, is_ours: bool) {
        if a == b {
            return;
        }
        let is_concerned = |db: u32| db == a || db == b;
        self.events.note_flush(false);
        let epochs = self.epochs.wrapping_sub(self.epochs_then);
        if (epochs as usize) < EPOCHS_WITH_VALUES_MAX.get() && self.locks.are_all_in(is_concerned) {
            self.set_all_aside(now, is_ours);
        } else {
            self.break_all(now, is_concerned, is_ours);
        }
        self.forget_locks_of_queues(is_concerned);
    }

    /// Replaces all locks by an empty set. Returns true if there were any.
    fn set_all_aside(&mut self, now: Moment, is_ours: bool) -> bool {
        if self.locks.is_empty() && self.locks.holds() == 0 {
            return false;
        }
        self.epochs = self.epochs.wrapping_add(1);
        let next = self.locks.successor(self.epochs);
        let gone = std::mem::replace(&mut self.locks, next);
        if is_ours {
            self.stats.broken += gone.holds() as u64;
        }
        self.events.push_gone(gone, is_ours.then_some(now));
        true
    }

    /// Prepares for a data set to load. Locks that were removed a moment ago for it were not broken (DEBUG RELOAD),
    /// as they come back. Their memory is needed for the load.
    pub fn begin_load(&mut self) {
        self.stats.broken -= self.events.begin_load() as u64;
        self.clock.begin_load();
    }

    /// Keeps only the numbers that may still stand for a lock.
    pub fn keep_known(&self, numbers: &mut Vec<LockId>) {
        numbers.retain(|&id| self.locks.may_know(id));
    }
}

#[cfg(test)]
mod tests {
    use super::super::task_queue::KEPT;

    use super::*;
    use crate::lock::codec::{SavedHold, SavedLock};
    use crate::lock::effect::Task;
    use crate::lock::locks::NewHold;
    use crate::lock::tests::visits;
    use crate::lock::types::{Binding, ClientId, Mode, Token};

    #[test]
    fn what_is_published_later_keeps_its_order_and_gives_its_memory_back() {
        let mut table = Table::default();
        for count in [1, 20, 5_000] {
            for number in 0..count {
                let name = format!("lock-{number}");
                let event = [Event::Broken, Event::Acquired][number % 2];
                table.publish_later(LockKey { db: 3, name: name.as_bytes() }, event);
            }
            for number in 0..count {
                assert!(table.has_notices() && table.has_tasks() && table.tasks() == 0);
                let Notice { lock_key, event, .. } =
                    table.next_notice().flatten().expect("not all are published");
                assert_eq!((lock_key.db, &*lock_key.name), (3, format!("lock-{number}").as_bytes()));
                assert_eq!(event, [Event::Broken, Event::Acquired][number % 2]);
            }
            assert!(!table.has_notices() && table.next_notice().is_none() && !table.has_tasks());
            // Room for a few is kept for the next ones.
            assert_eq!(table.events.room() == 0, count > KEPT.get());
        }
    }

    const NOW: Moment = Moment(5_000_000);
    const TOKEN: Token = Token::new(7).expect("valid");

    /// A table with this lock, which somebody has taken.
    fn with_lock(table: &mut Table, db: u32, name: &str) -> LockId {
        let token = table.clock.mint(0).expect("there are tokens").0;
        let new = NewHold {
            owner: b"ann",
            token,
            lease_ms: 9_000,
            client: Some(ClientId(7)),
            binding: Binding::NONE,
        };
        let lock_key = LockKey { db, name: name.as_bytes() };
        table.locks.insert(NOW, lock_key, Some(&new)).expect("there is room")
    }

    /// All that is published.
    fn published(table: &mut Table) -> Vec<(Vec<u8>, Event)> {
        let steps = std::iter::from_fn(|| table.next_notice());
        steps.flatten().map(|notice| (notice.lock_key.name.into_vec(), notice.event)).collect()
    }

    #[test]
    fn a_lock_that_left_with_its_slot_is_counted_as_left_and_not_as_broken() {
        let mut table = Table::default();
        (table.stats.broken, table.stats.left) = (5, 1);
        let lock_key = LockKey { db: 0, name: b"k" }.to_owned();
        table.take_back_broken(&Notice { lock_key, event: Event::Broken, broken: (2, None) });
        assert_eq!((table.stats.broken, table.stats.left), (3, 3));
    }

    #[test]
    fn numbers_that_may_stand_for_a_lock_are_kept() {
        let mut table = Table::default();
        let known = with_lock(&mut table, 0, "k");
        let mut numbers = vec![known];
        table.keep_known(&mut numbers);
        assert_eq!(numbers, [known]);
        table.flushed(NOW, None, true);
        while table.next_notice().is_some() {}
        table.keep_known(&mut numbers);
        assert!(numbers.is_empty(), "{numbers:?}");
    }

    #[test]
    fn a_number_of_what_was_emptied_finds_nothing_however_late_it_comes() {
        let mut table = Table::default();
        let mut gone = Vec::new();
        for round in 0..20 {
            let lock = with_lock(&mut table, 3, "lock:1");
            // Its database alone, or all of them; and some that have none.
            table.flushed(NOW, (round % 2 == 0).then_some(3), true);
            table.flushed(NOW, Some(4), true);
            gone.push(lock);
            assert_eq!((table.locks(), table.holds(), table.held_by(NOW, b"ann").len()), (0, 0, 0));
            assert_eq!(table.next_deadline(true), None);
            let other = with_lock(&mut table, 3, "lock:2");
            for &old in &gone {
                assert!(!table.is_held(old) && table.forget_free(old));
                table.forget(NOW, old, true);
            }
            assert!(table.is_held(other) && table.locks() == 1);
            table.flushed(NOW, None, true);
            gone.push(other);
        }
        let ends = published(&mut table);
        assert_eq!(ends.len(), 40, "each once: {ends:?}");
        assert!(ends.iter().all(|end| end.1 == Event::Broken));
        assert_eq!(table.stats().broken, 40);
    }

    #[test]
    fn databases_change_places_and_no_lock_is_looked_at_nor_found_again() {
        let (mut table, mut old) = (Table::default(), Vec::new());
        let max = EPOCHS_WITH_VALUES_MAX.get() as u32;
        for round in 0..3 * max {
            for number in 0..10 {
                old.push(with_lock(&mut table, round % 2, &format!("lock:{number}")));
            }
            visits::take();
            table.swapped(NOW, 0, 1, true);
            // Without this, the values that are left could be taken for others after that many rounds.
            let is_walk = round % (2 * max) >= max;
            assert_eq!(visits::take() > 0, is_walk, "{round}");
            assert_eq!((table.holds(), table.next_deadline(true)), (0, None));
            assert!(old.iter().all(|&id| !table.is_held(id)));
            assert_eq!(table.memory_of(old[0]), 0);
            let ends = published(&mut table);
            assert_eq!(ends.len(), 10, "each once");
            assert!(ends.iter().all(|end| end.1 == Event::Broken));
            if round % (2 * max) == 2 * max - 1 {
                table.flushed(NOW, None, true);
                old.clear();
            }
        }
    }

    /// A lock with twenty holders. The lease of every third one ends a second later.
    fn with_many(table: &mut Table) -> LockId {
        let (id, lock_key) = (table.locks.form(Mode::Limit(50)), LockKey { db: 0, name: b"many" });
        for number in 0..20 {
            let (owner, token) =
                (format!("owner-{number}"), table.clock.mint(0).expect("there are tokens").0);
            let lease_ms = if number % 3 == 0 { 10 } else { 9_000 };
            let new =
                NewHold { owner: owner.as_bytes(), token, lease_ms, client: None, binding: Binding::NONE };
            table.locks.join(id, NOW, lock_key, &new).expect("there is room");
        }
        id
    }

    #[test]
    fn the_holders_of_a_lock_that_very_many_held_are_let_go_one_by_one() {
        let later = NOW.plus_ms(1_000);
        let ends = [vec![Event::Expired; 7], vec![Event::Broken, Event::Acquired]].concat();
        for interruption in ["none", "flush", "leases"] {
            let mut table = Table::default();
            let id = with_many(&mut table);
            table.unlinked(later, id, true);
            assert!(table.has_tasks() && !table.is_held(id));
            assert_eq!((table.holds(), table.locks(), table.stats().broken), (0, 0, 0));
            assert!(table.held_by(later, b"owner-1").is_empty());
            table.publish_later(LockKey { db: 0, name: b"many" }, Event::Acquired);
            let first: Vec<_> = (0..3).map(|_| table.next_notice()).collect();
            assert!(first.iter().all(Option::is_some) && table.stats().broken == 0, "a few at a time");
            match interruption {
                "flush" => {
                    with_lock(&mut table, 0, "other");
                    table.flushed(later, None, true);
                }
                "leases" => {
                    // The leases of holders that are not let go yet run out on the wheel.
                    let end = NOW.plus_ms(10_000);
                    for _ in 0..1_000 {
                        let Some(Task::Expire(_, lock)) = table.due(end, true) else { continue };
                        table.lost(end, lock, end.plus_ms(1_000));
                    }
                    assert_eq!((table.holds(), table.due(end, true)), (0, None));
                }
                _ => {}
            }
            let first = first.into_iter().flatten().flatten().map(|notice| notice.event);
            let mut told: Vec<Event> = first.collect();
            told.extend(published(&mut table).into_iter().map(|end| end.1));
            let expected =
                if interruption == "flush" { [&*ends, &[Event::Broken]].concat() } else { ends.clone() };
            assert_eq!(told, expected, "{interruption}");
            let broken = 13 + u64::from(interruption == "flush");
            assert_eq!((table.stats().broken, table.stats().expirations), (broken, 7), "{interruption}");
            assert!(!table.has_tasks());
            table.check(std::iter::empty()).expect("nothing is wrong");
        }
    }

    #[test]
    fn what_nobody_hears_of_ends_as_what_is_heard_of() {
        let ended = |is_heard| {
            let mut table = Table::default();
            table.publish_later(LockKey { db: 0, name: b"before" }, Event::Acquired);
            with_many(&mut table);
            for number in 0..20 {
                with_lock(&mut table, 0, &format!("lock:{number}"));
            }
            table.flushed(NOW.plus_ms(1_000), None, true);
            table.publish_later(LockKey { db: 0, name: b"behind" }, Event::Released);
            let next = |_| {
                if is_heard { Some(table.next_notice()?.map(|end| end.event)) } else { table.next_unheard() }
            };
            let steps: Vec<_> = (0..100).map_while(next).collect();
            assert!(!table.has_tasks());
            table.check(std::iter::empty()).expect("nothing is wrong");
            (steps, format!("{:?}", table.stats()))
        };
        let (steps, stats) = ended(true);
        let count = |event| steps.iter().filter(|&&step| step == Some(event)).count();
        assert_eq!(
            [Event::Acquired, Event::Expired, Event::Broken, Event::Released].map(count),
            [1, 7, 21, 1]
        );
        assert_eq!(ended(false), (steps, stats));
    }

    #[test]
    fn a_reader_lets_go_of_many_holders_in_silence() {
        let mut table = Table::default();
        let id = with_many(&mut table);
        table.unlinked(NOW, id, false);
        assert_eq!((table.holds(), published(&mut table), table.stats().broken), (0, Vec::new(), 0));
        assert!(!table.has_tasks());
    }

    #[test]
    fn what_a_reader_empties_is_not_published() {
        let mut table = Table::default();
        for db in [Some(1), None] {
            for number in 0..100 {
                with_lock(&mut table, 0, &format!("lock:{number}"));
                with_lock(&mut table, 1, &format!("lock:{number}"));
            }
            table.flushed(NOW, db, false);
            assert!(!table.has_notices());
        }
        assert!(table.has_tasks(), "memory is to be given back");
        assert_eq!(published(&mut table), []);
        assert_eq!((table.has_tasks(), table.stats().broken, table.locks()), (false, 0, 0));
    }

    #[test]
    fn what_is_thrown_away_to_be_loaded_anew_was_not_broken() {
        let mut table = Table::default();
        with_lock(&mut table, 0, "lock:1");
        table.flushed(NOW, None, true);
        // A command took this one meanwhile; then DEBUG RELOAD.
        with_lock(&mut table, 0, "lock:2");
        table.flushed(NOW, None, true);
        assert_eq!(table.stats().broken, 2);
        table.begin_load();
        assert_eq!(table.stats().broken, 1);
        with_lock(&mut table, 0, "lock:3");
        table.flushed(NOW, None, true);
        // There is nothing to throw away this time: what was flushed before is broken.
        table.flushed(NOW, None, true);
        table.begin_load();
        assert_eq!(table.stats().broken, 2);
        let names = published(&mut table).into_iter().map(|end| end.0);
        assert_eq!(names.collect::<Vec<_>>(), [b"lock:1".to_vec(), b"lock:3".to_vec()]);
    }

    #[test]
    fn a_lock_that_was_restored_is_told_of_as_any_other() {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let mut table = Table::default();
            let lock_key = LockKey { db: 0, name: b"lock:1" };
            let restore = |table: &mut Table| {
                let owner = b"ann"[..].into();
                let hold =
                    SavedHold { owner, token: TOKEN, left_ms: 9_000, count: 1, binding: Binding::NONE };
                let saved = SavedLock { mode, holds: vec![hold] };
                table.load(NOW, lock_key, Some(&saved)).expect("there is room")
            };
            // Its time to live is over: it never was a key's.
            let discarded = restore(&mut table);
            table.discard(NOW, discarded);
            assert_eq!((table.has_tasks(), table.locks()), (false, 0));
            restore(&mut table);
            table.flushed(NOW, Some(0), true);
            restore(&mut table);
            let other = LockKey { db: 1, ..lock_key };
            table.load(NOW, other, None).expect("there is room");
            table.flushed(NOW, Some(0), true);
            restore(&mut table);
            table.swapped(NOW, 0, 1, true);
            let unlinked = restore(&mut table);
            table.unlinked(NOW, unlinked, true);
            let late = restore(&mut table);
            table.forget(NOW, late, true);
            assert_eq!((published(&mut table).len(), table.stats().broken), (5, 5));
        }
    }
}
