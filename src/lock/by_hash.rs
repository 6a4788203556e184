//! What is found by the hash of a name, where there can be very many.
//!
//! A hash table doubles in one piece: with a million entries all clients wait for 20 to 60 ms. So this is a tree, in the
//! order of the hashes. It grows and shrinks entry by entry, and a look costs some hundred instructions.

use std::collections::BTreeSet;
use std::marker::PhantomData;

use super::arena::Id;

/// What has a number that stands for it.
pub trait Numbered: Copy {
    /// Its number.
    fn number(self) -> u64;
    /// What has this number.
    fn of_number(number: u64) -> Self;
}

impl<T> Numbered for Id<T> {
    fn number(self) -> u64 {
        self.number()
    }

    fn of_number(number: u64) -> Self {
        Self::from_number(number)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct ByHash<T> {
    entries: BTreeSet<(u64, u64)>,
    kind: PhantomData<fn() -> T>,
}

impl<T> Default for ByHash<T> {
    fn default() -> Self {
        Self { entries: BTreeSet::new(), kind: PhantomData }
    }
}

impl<T: Numbered> ByHash<T> {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The one with this hash that `is` what is looked for.
    #[must_use]
    pub fn find(&self, hash: u64, is: impl Fn(T) -> bool) -> Option<T> {
        let same = self.entries.range((hash, 0)..=(hash, u64::MAX));
        same.map(|&(_, number)| T::of_number(number)).find(|&entry| is(entry))
    }

    /// Adds one.
    pub fn insert(&mut self, hash: u64, entry: T) {
        self.entries.insert((hash, entry.number()));
    }

    /// Takes one away. Returns whether it was there.
    pub fn remove(&mut self, hash: u64, entry: T) -> bool {
        self.entries.remove(&(hash, entry.number()))
    }

    /// All, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        self.entries.iter().map(|&(_, number)| T::of_number(number))
    }

    /// Bytes that it occupies: the nodes of a tree are two thirds full.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.entries.len() * 3 / 2 * size_of::<(u64, u64)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is numbered.
    type Lock = Id<()>;

    const fn lock(number: u64) -> Lock {
        Lock::from_number(number)
    }

    #[test]
    fn entries_of_one_hash_are_told_apart() {
        let mut found = ByHash::default();
        for number in [1, 2, u64::MAX] {
            found.insert(7, lock(number));
        }
        found.insert(8, lock(3));
        for number in [1, 2, u64::MAX] {
            assert_eq!(found.find(7, |entry| entry == lock(number)), Some(lock(number)));
        }
        assert_eq!(found.find(7, |entry| entry == lock(3)), None);
        assert_eq!(found.find(9, |_| true), None);
        assert!(found.remove(7, lock(2)) && !found.remove(7, lock(2)) && !found.remove(8, lock(1)));
        assert_eq!(
            (found.len(), found.iter().count(), found.find(7, |entry| entry == lock(2))),
            (3, 3, None)
        );
    }

    #[test]
    fn it_occupies_nothing_when_it_is_empty() {
        let mut found = ByHash::default();
        assert!(found.is_empty() && found.bytes() == 0);
        found.insert(1, lock(1));
        found.insert(2, lock(2));
        assert!(!found.is_empty() && found.bytes() >= 2 * size_of::<(u64, u64)>());
        assert!(found.remove(1, lock(1)) && found.remove(2, lock(2)));
        assert!(found.is_empty() && found.bytes() == 0);
    }
}
