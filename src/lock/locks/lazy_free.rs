//! Frees all locks of a set that was removed as a whole, a few at a time.
//!
//! When a database is emptied, all of its locks end at once. Reporting a million of them and freeing their memory
//! takes much longer. So the set goes out of use at once, and is freed here: first the locks with several holders,
//! holder by holder, then the others, page by page.

use std::collections::VecDeque;

use super::hold::{Hold, Lock};
use super::hold_ext::Unbound;
use super::holder_list::Holders;
use super::id::{Epoch, LockId};
use super::record::Flag;
use super::record::Head;
use super::store::Locks;

/// See the [module](self).
pub struct Going {
    locks: Locks,
    /// The lock that is being freed, if it has several holders.
    holders: Option<Holders>,
    /// True if its end was reported.
    is_told: bool,
    /// The bindings to connections: trees, which take time to drop.
    unbound: VecDeque<Unbound>,
}

/// A hold that was removed with its lock.
#[derive(Clone, Copy)]
pub struct Gone<'a> {
    /// The lock, or the record of this holder.
    pub lock: Lock<'a>,
    /// The hold.
    pub hold: Hold<'a>,
    /// True if the end of the same lock has not been reported yet.
    pub is_first: bool,
}

impl Going {
    /// Takes over a set of locks that goes out of use.
    #[must_use]
    pub fn new(mut locks: Locks) -> Self {
        let unbound = locks.hold_exts.take_unbound();
        Self { locks, holders: None, is_told: false, unbound }
    }

    /// Returns the number of holds that are left.
    #[must_use]
    pub const fn holds(&self) -> usize {
        self.locks.holds()
    }

    /// Returns true if there are holders of locks that were removed earlier. They are removed first, by
    /// [`Self::locks_mut`].
    #[must_use]
    pub fn has_detached(&self) -> bool {
        self.locks.has_detached()
    }

    /// Returns the locks, before the first of them is removed.
    pub const fn locks_mut(&mut self) -> &mut Locks {
        &mut self.locks
    }

    /// Removes one record, and returns the result of `tell` for its hold. The first value that `tell` returns is true
    /// if it reports the end of the lock. `None` if nothing is left.
    pub fn take_one<R>(&mut self, tell: impl FnOnce(&Gone<'_>) -> (bool, R)) -> Option<Option<R>> {
        let Some((id, is_alone)) = self.next() else {
            return self.take_rest().then_some(None);
        };
        let lock = self.locks.get(id);
        let gone = lock
            .and_then(|lock| Some(Gone { lock, hold: lock.hold()?, is_first: is_alone || !self.is_told }));
        let told = gone.as_ref().map(tell);
        self.is_told |= !is_alone && told.as_ref().is_some_and(|told| told.0);
        self.locks.take_out(id);
        Some(told.map(|told| told.1))
    }

    /// Frees one piece of the data outside of the records. Returns true if there was any.
    fn take_rest(&mut self) -> bool {
        while let Some(unbound) = self.unbound.front_mut() {
            if unbound.next().is_some() {
                return true;
            }
            self.unbound.pop_front();
        }
        self.locks.postponed.pop_first().is_some()
    }

    /// Returns a record, and true if it is a lock of its own.
    fn next(&mut self) -> Option<(LockId, bool)> {
        loop {
            if let Some(holder) = self.holders.as_mut().and_then(Holders::pop) {
                self.locks.holder_lists.listed -= 1;
                return Some((holder, false));
            }
            self.holders = self.locks.holder_lists.all.pop();
            self.is_told = false;
            if self.holders.is_none() {
                let index = self.locks.records.0.last()?;
                let generation = self.locks.records.head(index).map_or(0, |(head, _)| Head::generation(head));
                return Some((self.locks.id(index, generation), true));
            }
        }
    }
}

impl Locks {
    /// Returns an empty set, the `number`th, to replace this one. It knows none of these numbers.
    #[must_use]
    pub fn successor(&self, number: u32) -> Self {
        let (epoch, holder_lists) = (Epoch::new(number), self.holder_lists.successor());
        Self { epoch, holder_lists, newest_client: self.newest_client, ..Self::default() }
    }

    /// Returns true if every record is a hold under a key of these databases; false also if that is unknown.
    #[must_use]
    pub fn are_all_in(&self, is_concerned: impl Fn(u32) -> bool) -> bool {
        self.records.0.len() == self.holds && !self.prefixes.may_be_in(|db| !is_concerned(db))
    }

    /// Removes a record, and nothing else: neither from the wheel nor from its list of holders.
    fn take_out(&mut self, id: LockId) {
        let index = id.index();
        if let Some((head, _)) = self.records.head(index) {
            let (shape, prefix, is_held) = (head.shape, head.prefix, head.has(Flag::Held));
            if head.has(Flag::HoldExt) {
                self.hold_exts.drop_one(index);
            }
            self.holds -= usize::from(is_held);
            self.forget_name(index, shape, prefix);
            self.records.0.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::lock::locks::NewHold;
    use crate::lock::tests::visits;
    use crate::lock::types::{Binding, ClientId, LockKey, Mode, Moment, Token};

    const NOW: Moment = Moment(9_000_000);
    const CUT: Binding = Binding { ephemeral_ms: Some(5), is_keepalive: false, is_running: false };

    const fn lock_key(db: u32, name: &str) -> LockKey<'_> {
        LockKey { db, name: name.as_bytes() }
    }

    fn hold(owner: &str, number: u64, lease_ms: u64, binding: Binding) -> NewHold<'_> {
        let token = Token::new(number).expect("valid");
        NewHold { owner: owner.as_bytes(), token, lease_ms, client: Some(ClientId(number)), binding }
    }

    /// Removes all. Returns the reports: the name, the token, and true for the first of its lock.
    fn take_all(going: &mut Going) -> Vec<(String, u64, bool)> {
        let mut told = Vec::new();
        let mut holds = going.holds();
        while let Some(step) = going.take_one(|gone| {
            let name =
                gone.lock.lock_key().map(|lock_key| String::from_utf8_lossy(&lock_key.name).into_owned());
            (!gone.hold.is_over(NOW), (name.unwrap_or_default(), gone.hold.token().get(), gone.is_first))
        }) {
            holds -= usize::from(step.is_some());
            assert_eq!(going.holds(), holds);
            told.extend(step);
        }
        assert!(going.take_one(|_| (true, ())).is_none(), "nothing is left");
        told
    }

    #[test]
    fn every_hold_is_reported_once_and_every_lock_ends_once() {
        let mut locks = Locks::default();
        let long = "a name that is longer than what a slot has room for: ".repeat(4);
        let mut names = BTreeSet::new();
        for number in 1..=2_000 {
            let name = if number % 10 == 0 { format!("{long}{number}") } else { format!("lock:{number}") };
            let binding = if number % 7 == 0 { CUT } else { Binding::NONE };
            let lease_ms = if number % 5 == 0 { 0 } else { 100 };
            locks
                .insert(NOW, lock_key(0, &name), Some(&hold("ann", number, lease_ms, binding)))
                .expect("there is room");
            names.insert((name, number, true));
        }
        for (number, ids) in [(3_000, 3), (4_000, 300), (5_000, 1)] {
            let holders = locks.form(Mode::Shared);
            for holder in 0..ids {
                let (name, owner) = (format!("crowd-{number}"), format!("owner-{holder}"));
                let new = hold(&owner, number + holder, 100, CUT);
                locks.join(holders, NOW, lock_key(0, &name), &new).expect("there is room");
            }
        }
        let empty = locks.insert(NOW, lock_key(0, "empty"), None).expect("there is room");
        locks.postpone(LockId::new(locks.epoch, 1, 0), NOW);
        let postponed = locks.insert(NOW, lock_key(0, "late"), Some(&hold("ann", 9_000, 100, Binding::NONE)));
        locks.postpone(postponed.expect("there is room"), NOW);
        names.insert(("late".to_owned(), 9_000, true));
        assert!(locks.get(empty).is_some_and(|lock| lock.hold().is_none()));
        let mut going = Going::new(locks);
        assert_eq!(going.holds(), 2_305);
        let mut told = take_all(&mut going);
        for (number, ids) in [(3_000, 3), (4_000, 300), (5_000, 1)] {
            let name = format!("crowd-{number}");
            let (of_list, others) = told.into_iter().partition(|gone| gone.0 == name);
            let of_list: Vec<(String, u64, bool)> = of_list;
            told = others;
            assert_eq!(of_list.len(), ids);
            assert_eq!(of_list.iter().filter(|gone| gone.2).count(), 1, "{name} ends once");
            assert!(of_list[0].2 && of_list.iter().all(|gone| gone.1 / 1_000 == number / 1_000));
        }
        assert_eq!((told.len(), told.into_iter().collect::<BTreeSet<_>>()), (names.len(), names));
        assert!(going.locks.is_empty() && going.locks.spilled.is_empty() && going.locks.postponed.is_empty());
    }

    #[test]
    fn an_expired_holder_does_not_report_the_end_of_its_lock() {
        let mut locks = Locks::default();
        let holders = locks.form(Mode::Limit(5));
        for (number, lease_ms) in [(1, 100), (2, 100), (3, 0), (4, 0)] {
            let owner = format!("owner-{number}");
            let new = hold(&owner, number, lease_ms, Binding::NONE);
            locks.join(holders, NOW, lock_key(0, "crowd"), &new).expect("there is room");
        }
        let told = take_all(&mut Going::new(locks));
        let told: Vec<_> = told.into_iter().map(|(_, number, is_first)| (number, is_first)).collect();
        assert_eq!(told, [(4, true), (3, true), (2, true), (1, false)]);
    }

    #[test]
    fn whether_all_are_in_one_database_is_known() {
        for name in ["lock:1", "unpacked", &"long".repeat(40)] {
            let mut locks = Locks::default();
            assert!(locks.are_all_in(|db| db == 0) && locks.are_all_in(|db| db == 1));
            let add = |locks: &mut Locks, db| {
                locks
                    .insert(NOW, lock_key(db, name), Some(&hold("ann", 1, 100, Binding::NONE)))
                    .expect("there is room")
            };
            let first = add(&mut locks, 3);
            assert!(locks.are_all_in(|db| db == 3) && !locks.are_all_in(|db| db == 0), "{name}");
            let second = add(&mut locks, 0);
            assert!(!locks.are_all_in(|db| db == 3) && !locks.are_all_in(|db| db == 0), "{name}");
            locks.remove(second, NOW);
            // Names that are not packed only show in which databases any of them were.
            assert_eq!(locks.are_all_in(|db| db == 3), name == "lock:1");
            // An empty lock may be under a key of any database.
            locks.end(first, NOW);
            assert!(!locks.are_all_in(|db| db == 3) && !locks.are_all_in(|db| db == 0), "{name}");
        }
    }

    #[test]
    fn no_lock_is_looked_at_for_a_database_that_never_had_one() {
        for name in ["lock:1", "unpacked", &"long".repeat(40)] {
            let mut locks = Locks::default();
            for db in [2, 4] {
                let new = hold("ann", 1, 100, Binding::NONE);
                locks.insert(NOW, lock_key(db, name), Some(&new)).expect("there is room");
                let looks = |dbs: [u32; 2]| {
                    visits::take();
                    (locks.all_held(|db| dbs.contains(&db)).len(), visits::take() > 0)
                };
                assert_eq!(looks([2, 7]), (1, true), "{name}");
                // Names that are not packed only show the database, if they are all in one.
                assert_eq!(looks([0, 1]), (0, db == 4 && name != "lock:1"), "{name}");
            }
        }
    }

    #[test]
    fn a_record_without_room_for_its_next_name_counts_as_unpacked() {
        let mut locks = Locks::default();
        let id =
            locks.insert(NOW, lock_key(0, "lock:1"), Some(&hold("a", 1, 100, Binding::NONE))).expect("room");
        locks.begin(id, NOW, lock_key(2, "lock:1"), &hold(&"long".repeat(30), 2, 100, Binding::NONE));
        assert!(!locks.are_all_in(|db| db == 0) && locks.are_all_in(|db| db == 2));
    }

    #[test]
    fn no_number_finds_anything_in_the_epochs_that_come_after() {
        let mut locks = Locks::default();
        let mut numbers = Vec::new();
        for set in 1..20 {
            let alone = locks.insert(NOW, lock_key(0, "lock:1"), Some(&hold("ann", 1, 100, Binding::NONE)));
            let holders = locks.form(Mode::Shared);
            locks.join(holders, NOW, lock_key(0, "lock:2"), &hold("ann", 2, 100, Binding::NONE));
            for &old in &numbers {
                assert!(locks.get(old).is_none() && locks.holders_of(old) == 0, "{old:?} in set {set}");
            }
            numbers.extend([alone.expect("room"), holders]);
            let client = locks.newest_client;
            locks = locks.successor(set);
            assert_eq!((locks.newest_client, locks.len()), (client, 0));
        }
    }

    #[test]
    fn of_many_names_that_are_not_packed_it_is_known_that_all_are_in_one_database() {
        let mut locks = Locks::default();
        for (name, number) in [("unpacked", 1), ("another", 2), ("a third one", 3)] {
            let new = hold("ann", number, 100, Binding::NONE);
            locks.insert(NOW, lock_key(3, name), Some(&new)).expect("there is room");
            assert!(locks.are_all_in(|db| db == 3) && !locks.are_all_in(|db| db == 0), "{name}");
        }
    }

    #[test]
    fn what_was_bound_to_connections_is_given_back_piece_by_piece() {
        let mut locks = Locks::default();
        for number in 1..=30 {
            let (name, new) = (format!("lock:{number}"), hold("ann", number, 100, CUT));
            // Ten holds for each connection.
            let new = NewHold { client: Some(ClientId(number % 3)), ..new };
            locks.insert(NOW, lock_key(0, &name), Some(&new)).expect("there is room");
        }
        let mut going = Going::new(locks);
        let mut steps = 0;
        while going.take_one(|_| (true, ())).is_some() {
            steps += 1;
        }
        assert_eq!(steps, 30 + 30, "a step for each hold, and one for what was bound");
        assert_eq!(going.locks.hold_exts.len(), 0, "nothing is left to be dropped at once");
    }
}
