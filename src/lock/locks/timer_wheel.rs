//! A timer wheel for the leases (G3).
//!
//! A hierarchical timing wheel (Varghese and Lauck, "Hashed and Hierarchical Timing Wheels", 1987). It uses seven
//! levels of 64 lists: a list covers a millisecond on the lowest level, and 64 times as much on each level above. A
//! lease goes into the list of the lowest level on which its end and the wheel's present differ. When the present
//! reaches a list above the lowest level, its leases are sorted into the lists below. So starting, renewing and
//! ending a lease cost the same few instructions whether ten or ten million others run. A heap would touch one record
//! in each of its levels.
//!
//! The lists run through the records themselves, at eight bytes for each lease. Each step of [`Wheel::next_due`]
//! moves at most one, so that a million leases in one list delay no client.

// There are few levels of 64 lists.
#![allow(clippy::cast_possible_truncation)]

use super::slab::{INDEX_BITS, INDEX_END};

/// Names no record: the neighbor of a record in no list. Names have 28 bits.
pub(super) const NONE: u32 = (1 << INDEX_BITS) - 1;

/// The first record of list `n` has `LIST + n` as its predecessor, and the last one has it as its successor.
pub(super) const LIST: u32 = INDEX_END;

const LEVEL_BITS: u32 = 6;
const LISTS: usize = 1 << LEVEL_BITS;
/// Seven levels reach 2^42 ms. There is room for one more: numbers below a power of two need no check and no
/// division.
const LEVELS: usize = 8;
/// Lists on all levels.
const ALL: usize = LEVELS * LISTS;

/// The number of a list: those of the lowest level come first.
type List = usize;

/// The storage of a record's neighbours.
pub(super) trait Links {
    /// Returns the records before and after this one, or its list; [`NONE`] in no list.
    fn links(&self, index: u32) -> (u32, u32);
    /// Sets both.
    fn set_links(&mut self, index: u32, previous: u32, next: u32);
    /// Sets the next record.
    fn set_next(&mut self, index: u32, next: u32);
    /// Sets the record before.
    fn set_previous(&mut self, index: u32, previous: u32);
    /// Returns when the lease ends, in milliseconds.
    fn tick(&self, index: u32) -> u64;
}

/// The result of one step of the wheel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// No lease ends now.
    Nothing,
    /// A lease was sorted into a lower list, and the search must be continued.
    Sorted,
    /// The lease of this record has expired. It stays in its list until it is removed.
    Due(u32),
}

/// The wheel. See the [module](self).
pub(super) struct Wheel {
    /// The first and the last record of each list. Undefined for an empty list.
    ends: Box<[(u32, u32); ALL]>,
    /// A bit for each list that is not empty.
    occupied: [u64; LEVELS],
    /// A bit for each level with a list that is not empty.
    levels: u32,
    /// The wheel's present: never later than the first end.
    present: u64,
    /// The list above the lowest level that the present has reached, until all of it is sorted.
    sorting: Option<List>,
}

impl Default for Wheel {
    fn default() -> Self {
        Self {
            ends: Box::new([(NONE, NONE); ALL]),
            occupied: [0; LEVELS],
            levels: 0,
            present: 0,
            sorting: None,
        }
    }
}

impl Wheel {
    /// Inserts a record that is in no list at the end of the list of its tick.
    #[inline]
    pub(super) fn insert(&mut self, links: &mut impl Links, index: u32, tick: u64, now: u64) {
        let (last, list) = self.enter(index, tick, now);
        links.set_links(index, last, list);
        if last < LIST {
            links.set_next(last, index);
        }
    }

    /// Inserts a record into its list. The caller sets the links: those of the record to the two that are returned,
    /// and the next link of the first of them, if that is a record.
    #[inline(always)]
    pub(super) fn enter(&mut self, index: u32, tick: u64, now: u64) -> (u32, u32) {
        if self.levels == 0 {
            self.present = self.present.max(now);
        }
        let tick = tick.max(self.present);
        let differing = (tick ^ self.present) | (LISTS as u64 - 1);
        let level = ((63 - differing.leading_zeros()) / LEVEL_BITS) as usize % LEVELS;
        let list = (tick >> (level as u32 * LEVEL_BITS)) as usize % LISTS;
        let number = level * LISTS + list;
        let name = LIST + number as u32;
        let ends = &mut self.ends[number];
        let is_first = self.occupied[level] & 1 << list == 0;
        self.occupied[level] |= 1 << list;
        self.levels |= 1 << level;
        let last = std::mem::replace(&mut ends.1, index);
        if is_first {
            ends.0 = index;
            (name, name)
        } else {
            (last, name)
        }
    }

    /// Removes a record from its list, if it is in one.
    #[inline]
    pub(super) fn remove(&mut self, links: &mut impl Links, index: u32) {
        let (previous, next) = links.links(index);
        if previous == NONE {
            return;
        }
        links.set_links(index, NONE, NONE);
        self.leave(links, previous, next);
    }

    /// Removes a record with these links from its list. The caller sets the record's own links.
    #[inline(always)]
    pub(super) fn leave(&mut self, links: &mut impl Links, previous: u32, next: u32) {
        if next < LIST {
            links.set_previous(next, previous);
        } else {
            let list = Self::list(next);
            self.ends[list].1 = previous;
            if previous == next {
                let level = list / LISTS;
                self.occupied[level] &= !(1 << (list % LISTS));
                if self.occupied[level] == 0 {
                    self.levels &= !(1 << level);
                }
                if self.sorting == Some(list) {
                    self.sorting = None;
                }
            }
        }
        if previous < LIST {
            links.set_next(previous, next);
        } else {
            self.ends[Self::list(previous)].0 = next;
        }
    }

    /// Returns the list with this name.
    const fn list(name: u32) -> List {
        (name - LIST) as usize % ALL
    }

    /// Returns the first list that is not empty, and when the present reaches it.
    #[inline]
    fn first(&self) -> Option<(List, u64)> {
        if let Some(list) = self.sorting {
            return Some((list, self.present));
        }
        if self.levels == 0 {
            return None;
        }
        let level = self.levels.trailing_zeros() as usize % LEVELS;
        // No list is in the past: its records have been sorted or removed.
        let list = self.occupied[level].trailing_zeros();
        let shift = level as u32 * LEVEL_BITS;
        let around = self.present >> shift >> LEVEL_BITS << LEVEL_BITS;
        Some((level * LISTS + list as usize, (around | u64::from(list)) << shift))
    }

    /// Returns the time at which the wheel must be checked next, in milliseconds: never later than the first end.
    pub(super) fn next_tick(&self) -> Option<u64> {
        self.first().map(|first| first.1)
    }

    /// Advances the present towards `now` by one step.
    pub(super) fn next_due(&mut self, links: &mut impl Links, now: u64) -> Next {
        let Some((list, tick)) = self.first().filter(|first| first.1 <= now) else {
            return Next::Nothing;
        };
        self.present = self.present.max(tick);
        let index = self.ends[list].0;
        if list < LISTS {
            return Next::Due(index);
        }
        self.sorting = Some(list);
        self.remove(links, index);
        let tick = links.tick(index);
        self.insert(links, index, tick, self.present);
        Next::Sorted
    }

    /// Calls `see` with each record in a list.
    pub(super) fn for_each(&self, links: &impl Links, mut see: impl FnMut(u32)) {
        for list in (0..ALL).filter(|list| self.occupied[list / LISTS] & 1 << (list % LISTS) != 0) {
            let mut index = self.ends[list].0;
            while index < LIST {
                see(index);
                index = links.links(index).1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Records: next, previous, end.
    struct Records(Vec<(u32, u32, u64)>);

    impl Links for Records {
        fn links(&self, index: u32) -> (u32, u32) {
            let (next, previous, _) = self.0[index as usize];
            (previous, next)
        }
        fn set_links(&mut self, index: u32, previous: u32, next: u32) {
            self.set_previous(index, previous);
            self.set_next(index, next);
        }
        fn set_next(&mut self, index: u32, next: u32) {
            self.0[index as usize].0 = next;
        }
        fn set_previous(&mut self, index: u32, previous: u32) {
            self.0[index as usize].1 = previous;
        }
        fn tick(&self, index: u32) -> u64 {
            self.0[index as usize].2
        }
    }

    fn due(wheel: &mut Wheel, records: &mut Records, now: u64) -> Vec<u32> {
        let mut due = Vec::new();
        loop {
            match wheel.next_due(records, now) {
                Next::Nothing => return due,
                Next::Sorted => {}
                Next::Due(index) => {
                    wheel.remove(records, index);
                    due.push(index);
                }
            }
        }
    }

    #[test]
    fn each_end_comes_in_its_own_millisecond() {
        for start in [0, 5, 63, 64, 4_095, 1_000_000, (1 << 36) - 1] {
            let ends = [0, 1, 63, 64, 65, 4_096, 30_000, 86_400_000].map(|left| start + left);
            let mut records = Records(ends.iter().map(|&end| (NONE, NONE, end)).collect());
            let mut wheel = Wheel::default();
            for (index, &end) in (0..).zip(&ends) {
                wheel.insert(&mut records, index, end, start);
            }
            for (index, end) in (0..).zip(ends) {
                if end > start {
                    assert_eq!(due(&mut wheel, &mut records, end - 1), [], "before {end}");
                }
                assert!(wheel.next_tick().is_some_and(|tick| tick <= end));
                assert_eq!(due(&mut wheel, &mut records, end), [index], "at {end}");
            }
            assert_eq!(wheel.next_tick(), None);
        }
    }

    #[test]
    fn a_wheel_agrees_with_a_sorted_map_under_random_use() {
        let mut records = Records(vec![(NONE, NONE, 0); 2_000]);
        let mut oracle: BTreeMap<u32, u64> = BTreeMap::new();
        let mut wheel = Wheel::default();
        let (mut seed, mut now) = (99_u64, 1 << 33);
        for _ in 0..300_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (pick, index) = (seed >> 40, (seed >> 20) as u32 % 2_000);
            match pick % 8 {
                0 => now += pick % 4_000,
                1 => now += 1,
                2 => {
                    wheel.remove(&mut records, index);
                    oracle.remove(&index);
                }
                // Cuts a search short: the half-sorted lists are not lost.
                3 | 4 => {
                    for _ in 0..pick % 5 {
                        if let Next::Due(index) = wheel.next_due(&mut records, now) {
                            assert!(oracle[&index] <= now, "too early");
                            wheel.remove(&mut records, index);
                            oracle.remove(&index);
                        }
                    }
                }
                _ => {
                    wheel.remove(&mut records, index);
                    let end = now + (1 << (pick % 27)) + pick % 100;
                    records.0[index as usize].2 = end;
                    wheel.insert(&mut records, index, end, now);
                    oracle.insert(index, end);
                }
            }
            let first = oracle.values().min().copied();
            assert!(wheel.next_tick().is_none() == first.is_none());
            assert!(wheel.next_tick() <= first, "it sleeps too long");
            if pick % 8 < 2 {
                let mut found = due(&mut wheel, &mut records, now);
                found.sort_unstable();
                let over: Vec<u32> = oracle.extract_if(.., |_, end| *end <= now).map(|e| e.0).collect();
                assert_eq!(found, over);
            }
        }
        let mut count = 0;
        wheel.for_each(&records, |index| {
            assert!(oracle.contains_key(&index));
            count += 1;
        });
        assert_eq!(count, oracle.len());
    }

    #[test]
    fn a_wheel_that_slept_for_long_still_finds_all_in_order_of_time() {
        // A replica checks no lease for months, and is then promoted.
        let ends: Vec<u64> = (0..1_000).map(|n| 1 + n * 7_777_777).collect();
        let mut records = Records(ends.iter().map(|&end| (NONE, NONE, end)).collect());
        let mut wheel = Wheel::default();
        for (index, &end) in (0..).zip(&ends) {
            wheel.insert(&mut records, index, end, 0);
        }
        assert!(due(&mut wheel, &mut records, 1 << 39).into_iter().eq(0..1_000));
    }
}
