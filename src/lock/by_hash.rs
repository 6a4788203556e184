//! A map keyed by the hash of a name, for very many entries.
//!
//! A single hash table doubles in one piece: with a million entries, all clients would wait for 20 to 60 ms. This map
//! uses many small tables instead. When they hold too many entries, one table moves half of its entries to a new one.
//! When they hold far too few, the newest table gives its entries back. So no step moves more than about a thousand
//! entries.
//!
//! This is linear hashing: W. Litwin, "Linear Hashing: A New Tool for File and Table Addressing", VLDB 1980.

use crate::lock::tuning::Bound;
use hashbrown::HashTable;

/// The highest average number of entries of a table. The table that is split next has up to twice that number, the
/// capacity of a table of 1,024 places. If there are several tables, their average is at least a quarter of it.
const MEAN_MAX: usize = Bound::of(440, 4).fixed();

/// See the [module](self).
#[derive(Debug)]
pub struct ByHash<T> {
    /// Never empty once there has been an entry.
    tables: Vec<HashTable<(u64, T)>>,
    len: usize,
}

impl<T> Default for ByHash<T> {
    fn default() -> Self {
        Self { tables: Vec::new(), len: 0 }
    }
}

/// Returns the number of the table of an entry, out of `tables`.
///
/// A table finds its entries by the lowest bits and the seven highest, so this takes bits between them.
#[inline]
const fn table_of(hash: u64, tables: usize) -> usize {
    let among = tables.next_power_of_two();
    let at = (hash >> 20) as usize & (among - 1);
    // The upper half of the tables is not complete yet: an entry without a table there is still in the lower half.
    if at < tables { at } else { at - among / 2 }
}

impl<T: Copy + Eq> ByHash<T> {
    /// Returns an empty map with as many tables as this number of entries needs: none is split as they come.
    #[must_use]
    pub fn with_room(entries: usize) -> Self {
        let tables = entries.div_ceil(MEAN_MAX).max(1);
        let each = entries / tables;
        Self { tables: (0..tables).map(|_| HashTable::with_capacity(each)).collect(), len: 0 }
    }

    /// Returns the number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no entries.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the entry with this hash for which `is` holds.
    #[must_use]
    pub fn find(&self, hash: u64, is: impl Fn(T) -> bool) -> Option<T> {
        let table = self.tables.get(table_of(hash, self.tables.len()))?;
        table.find(hash, |entry| entry.0 == hash && is(entry.1)).map(|entry| entry.1)
    }

    /// Adds an entry that the map does not have.
    pub fn insert(&mut self, hash: u64, entry: T) {
        if self.tables.is_empty() {
            self.tables.push(HashTable::new());
        } else if self.len >= self.tables.len() * MEAN_MAX {
            self.halve_one();
        }
        let at = table_of(hash, self.tables.len());
        if let Some(table) = self.tables.get_mut(at) {
            table.insert_unique(hash, (hash, entry), |entry| entry.0);
            self.len += 1;
        }
    }

    /// Removes an entry. Returns true if it was there.
    pub fn remove(&mut self, hash: u64, entry: T) -> bool {
        let at = table_of(hash, self.tables.len());
        let found =
            self.tables.get_mut(at).map(|table| table.find_entry(hash, |&other| other == (hash, entry)));
        let Some(Ok(there)) = found else {
            return false;
        };
        there.remove();
        self.len -= 1;
        if self.len < (self.tables.len() - 1) * MEAN_MAX / 4 {
            self.give_one_back();
        }
        true
    }

    /// Replaces an entry by another. Returns true if it was there.
    pub fn replace(&mut self, hash: u64, entry: T, by: T) -> bool {
        let at = table_of(hash, self.tables.len());
        let table = self.tables.get_mut(at);
        let Some(there) = table.and_then(|table| table.find_mut(hash, |&other| other == (hash, entry)))
        else {
            return false;
        };
        there.1 = by;
        true
    }

    /// Moves half of the entries of one table into a new one.
    fn halve_one(&mut self) {
        let tables = self.tables.len();
        let among = (tables + 1).next_power_of_two();
        let Some(old) = self.tables.get_mut(tables - among / 2) else {
            return;
        };
        let mut new = HashTable::with_capacity(old.len() / 2);
        for entry in old.extract_if(|entry| table_of(entry.0, tables + 1) == tables) {
            new.insert_unique(entry.0, entry, |entry| entry.0);
        }
        old.shrink_to_fit(|entry| entry.0);
        self.tables.push(new);
    }

    /// Moves the entries of the newest table back to the one that they came from.
    fn give_one_back(&mut self) {
        let Some(newest) = self.tables.pop() else {
            return;
        };
        let tables = self.tables.len();
        for entry in newest {
            if let Some(table) = self.tables.get_mut(table_of(entry.0, tables)) {
                table.insert_unique(entry.0, entry, |entry| entry.0);
            }
        }
    }

    /// Returns all entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        self.tables.iter().flatten().map(|entry| entry.1)
    }

    /// Returns the bytes that it occupies.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let of_tables: usize = self.tables.iter().map(HashTable::allocation_size).sum();
        of_tables + self.tables.capacity() * size_of::<HashTable<(u64, T)>>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::lock::tests::random::Random;

    #[test]
    fn entries_of_one_hash_are_distinguished() {
        let mut found = ByHash::default();
        for entry in 1..=9 {
            found.insert(7, entry);
        }
        found.insert(8, 10);
        for entry in 1..=9 {
            assert_eq!(found.find(7, |other| other == entry), Some(entry));
        }
        assert_eq!((found.find(7, |entry| entry == 10), found.find(9, |_| true)), (None, None));
        assert!(found.remove(7, 2) && !found.remove(7, 2) && !found.remove(8, 1));
        assert!(found.replace(7, 3, 30) && !found.replace(7, 3, 31) && !found.replace(8, 30, 3));
        let of_seven = |entry| found.find(7, |other| other == entry);
        assert_eq!((of_seven(2), of_seven(3), of_seven(30), found.len()), (None, None, Some(30), 9));
    }

    #[test]
    fn entries_are_found_as_in_a_set_while_tables_come_and_go() {
        let mut random = Random::new(12);
        let (mut found, mut set) = (ByHash::default(), BTreeSet::new());
        assert_eq!((found.remove(1, 1), found.bytes(), found.iter().next()), (false, 0, None));
        let mut tables_most = 0;
        for step in 0..30_000_u64 {
            // By turns more come than go, and more go than come.
            let comes = random.below(8) < if step / 3_000 % 2 == 0 { 5 } else { 2 };
            // A few hashes are those of several.
            let number = random.below(2_000);
            let hash = (number % 1_900).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let before = found.tables.len();
            if comes && set.insert((hash, number)) {
                found.insert(hash, number);
            } else if !comes {
                assert_eq!(found.remove(hash, number), set.remove(&(hash, number)));
            }
            assert!(found.tables.len().abs_diff(before.max(1)) <= 1, "one table at a time");
            let tables = found.tables.len();
            assert!(
                set.len() <= tables * MEAN_MAX && set.len() >= (tables - 1) * MEAN_MAX / 4,
                "{tables} tables"
            );
            tables_most = tables_most.max(tables);
            let there = set.contains(&(hash, number)).then_some(number);
            assert_eq!(found.find(hash, |other| other == number), there);
            assert_eq!((found.len(), found.is_empty()), (set.len(), set.is_empty()));
        }
        assert!(tables_most > 100, "there were {tables_most} tables");
        assert!(
            found
                .iter()
                .collect::<BTreeSet<_>>()
                .iter()
                .eq(set.iter().map(|entry| &entry.1).collect::<BTreeSet<_>>())
        );
        for (hash, number) in set {
            assert!(found.remove(hash, number));
        }
        assert_eq!((found.len(), found.tables.len(), found.iter().next()), (0, 1, None));
        assert!(found.is_empty());
    }

    #[test]
    fn a_map_with_room_has_the_tables_that_its_entries_need() {
        for entries in [0, 1, MEAN_MAX, MEAN_MAX + 1, 9 * MEAN_MAX + 1] {
            let mut found = ByHash::with_room(entries);
            let tables = found.tables.len();
            for number in 0..entries as u64 {
                found.insert(number.wrapping_mul(0x9E37_79B9_7F4A_7C15), number);
            }
            assert_eq!((found.tables.len(), found.len()), (tables, entries));
            assert_eq!(tables, entries.div_ceil(MEAN_MAX).max(1));
        }
    }

    #[test]
    fn no_table_has_much_more_than_its_share_and_none_keeps_room_that_it_does_not_need() {
        let mut random = Random::new(3);
        let mut found = ByHash::default();
        for number in 0..4_096_u64 {
            found.insert(random.below(1 << 32) << 32 | random.below(1 << 32), number);
        }
        assert_eq!(found.tables.len(), 4_096 / MEAN_MAX, "no more tables than entries need");
        let longest = found.tables.iter().map(HashTable::len).max();
        // Twice the mean on average; chance adds to so few.
        assert!(longest.is_some_and(|longest| longest <= 5 * MEAN_MAX), "{longest:?}");
        let of_one = size_of::<(u64, u64)>() + 1;
        assert!(found.bytes() >= 4_096 * of_one && found.bytes() < 4_096 * of_one * 6, "{}", found.bytes());
    }
}
