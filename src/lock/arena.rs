//! Numbered slots for the records of locks, queues and waiters.
//!
//! A number names one record for its whole life and is never reused for another, because it carries the count of
//! insertions at its birth. So the server's keyspace can store a plain number as the value of a key, and a stale
//! number finds `None` instead of a wild pointer.
//!
//! Records live in pages, so that growth never copies a million of them at once, and empty pages go back to the
//! allocator.

// A number is made of 32 bits of birth, 24 of page and 8 of slot: 2^32 records would be a table of
// hundreds of gigabytes.
#![allow(clippy::cast_possible_truncation)]

use std::marker::PhantomData;

const PAGE_BITS: u32 = 8;
const GENERATION_MAX: u32 = u32::MAX >> 1;
const PAGE_SLOTS: usize = 1 << PAGE_BITS;

/// The number of a record in an [`Arena`]: never 0, never reused.
pub struct Id<T> {
    number: u64,
    kind: PhantomData<fn() -> T>,
}

impl<T> Id<T> {
    /// Returns the number, in the form that the edge stores.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.number
    }

    /// Returns the id with this number. A number that was never issued finds nothing.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        Self { number, kind: PhantomData }
    }

    const fn at(birth: u32, page: usize, slot: usize) -> Self {
        Self::from_number((birth as u64) << 32 | (page as u64) << PAGE_BITS | slot as u64)
    }

    const fn page(self) -> usize {
        ((self.number & 0xffff_ffff) >> PAGE_BITS) as usize
    }

    const fn slot(self) -> usize {
        (self.number as usize) & (PAGE_SLOTS - 1)
    }
}

impl<T> Clone for Id<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Id<T> {}
impl<T> PartialEq for Id<T> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl<T> Eq for Id<T> {}
impl<T> std::hash::Hash for Id<T> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}
impl<T> std::fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{}", self.number & 0xffff_ffff)
    }
}

struct Slot<T> {
    /// High half of the id's number while occupied.
    birth: u32,
    record: Option<T>,
}

struct Page<T> {
    slots: Vec<Slot<T>>,
    vacant: Vec<u8>,
}

impl<T> Page<T> {
    fn live(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    fn is_full(&self) -> bool {
        self.vacant.is_empty() && self.slots.len() == PAGE_SLOTS
    }
}

/// A store of records under numbers. See the [module](self).
pub struct Arena<T> {
    pages: Vec<Option<Page<T>>>,
    /// Numbers of pages with room, the next one to use last. Names each page once at most.
    open: Vec<u32>,
    /// The page that was emptied last.
    spare: Option<usize>,
    len: usize,
    generation: u32,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { pages: Vec::new(), open: Vec::new(), spare: None, len: 0, generation: 0 }
    }
}

impl<T> Arena<T> {
    /// Returns an empty store to replace this one. It continues to count generations from here.
    #[must_use]
    pub fn successor(&self) -> Self {
        Self { generation: self.generation, ..Self::default() }
    }

    /// Removes any record from a store that is no longer in use, and frees its memory gradually.
    pub fn pop(&mut self) -> Option<T> {
        while let Some(page) = self.pages.last_mut() {
            while let Some(slot) = page.as_mut().and_then(|page| page.slots.pop()) {
                if let Some(record) = slot.record {
                    self.len -= 1;
                    return Some(record);
                }
            }
            self.pages.pop();
        }
        None
    }

    /// Returns the number of records.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there is no record.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Stores a record and gives it a number.
    pub fn insert(&mut self, record: T) -> Id<T> {
        let page_number = self.open_page();
        // Never 0, so that a number is never 0 (the edge stores it where null means "no value"), and never with the
        // highest bit, which distinguishes other numbers from these.
        self.generation = if self.generation >= GENERATION_MAX { 1 } else { self.generation + 1 };
        let birth = self.generation;
        let page = self.pages[page_number as usize]
            .get_or_insert_with(|| Page { slots: Vec::new(), vacant: Vec::new() });
        let fresh = Slot { birth, record: Some(record) };
        let slot = match page.vacant.pop() {
            Some(slot) => {
                page.slots[usize::from(slot)] = fresh;
                u32::from(slot)
            }
            None => {
                page.slots.push(fresh);
                page.slots.len() as u32 - 1
            }
        };
        if page.is_full() {
            self.open.pop();
        }
        self.len += 1;
        Id::at(birth, page_number as usize, slot as usize)
    }

    /// Returns the page to insert into, which is then the last of `open`.
    fn open_page(&mut self) -> u32 {
        if let Some(&page) = self.open.last() {
            return page;
        }
        let page = self.pages.len() as u32;
        self.pages.push(None);
        self.open.push(page);
        page
    }

    fn slot(&self, id: Id<T>) -> Option<&Slot<T>> {
        let slot = self.pages.get(id.page())?.as_ref()?.slots.get(id.slot())?;
        (u64::from(slot.birth) == id.number >> 32).then_some(slot)
    }

    /// Returns the record with this number.
    #[must_use]
    pub fn get(&self, id: Id<T>) -> Option<&T> {
        self.slot(id)?.record.as_ref()
    }

    /// Returns the record with this number, to change it.
    pub fn get_mut(&mut self, id: Id<T>) -> Option<&mut T> {
        let page = self.pages.get_mut(id.page())?.as_mut()?;
        let slot = page.slots.get_mut(id.slot())?;
        if u64::from(slot.birth) != id.number >> 32 {
            return None;
        }
        slot.record.as_mut()
    }

    /// Removes the record. Its number is dead from then on.
    pub fn remove(&mut self, id: Id<T>) -> Option<T> {
        self.slot(id)?;
        let page_number = id.page();
        let page = self.pages.get_mut(page_number)?.as_mut()?;
        let record = page.slots.get_mut(id.slot())?.record.take()?;
        let was_full = page.is_full();
        page.vacant.push(id.slot() as u8);
        self.len -= 1;
        if was_full {
            self.open.push(page_number as u32);
        }
        if page.live() == 0 {
            self.keep_one_spare(page_number);
        }
        Some(record)
    }

    /// Gives an empty page back to the allocator when the next one is emptied. One is kept, so that a single lock,
    /// acquired and released repeatedly, does not allocate a page each time.
    fn keep_one_spare(&mut self, emptied: usize) {
        let before = self.spare.replace(emptied);
        if let Some(before) = before.filter(|&before| before != emptied)
            && self.pages[before].as_ref().is_some_and(|page| page.live() == 0)
        {
            // Its place in `open` stays.
            self.pages[before] = None;
        }
    }

    /// Returns the first record at or after this place. For a walk that begins at 0, adds none and removes each
    /// record that it finds: `place` advances to that record.
    pub fn first_from(&self, place: &mut usize) -> Option<Id<T>> {
        loop {
            let page_number = *place >> PAGE_BITS;
            let page = self.pages.get(page_number)?.as_ref();
            match page.and_then(|page| page.slots.get(*place & (PAGE_SLOTS - 1))) {
                Some(Slot { birth, record: Some(_) }) => {
                    return Some(Id::from_number(u64::from(*birth) << 32 | *place as u64));
                }
                Some(_) => *place += 1,
                None => *place = (page_number + 1) << PAGE_BITS,
            }
        }
    }

    /// Returns all records with their numbers, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Id<T>, &T)> {
        self.pages.iter().enumerate().flat_map(|(page_number, page)| {
            page.iter().flat_map(move |page| {
                page.slots.iter().enumerate().filter_map(move |(index, slot)| {
                    Some((Id::at(slot.birth, page_number, index), slot.record.as_ref()?))
                })
            })
        })
    }

    /// Returns all records with their numbers, to change them, in no particular order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Id<T>, &mut T)> {
        self.pages.iter_mut().enumerate().flat_map(|(page_number, page)| {
            page.iter_mut().flat_map(move |page| {
                page.slots.iter_mut().enumerate().filter_map(move |(index, slot)| {
                    Some((Id::at(slot.birth, page_number, index), slot.record.as_mut()?))
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_has_the_highest_bit() {
        let mut arena = Arena { generation: GENERATION_MAX - 2, ..Arena::default() };
        let numbers: Vec<u64> = (0..5).map(|record| arena.insert(record).number()).collect();
        assert!(numbers.iter().all(|number| number >> 63 == 0 && number >> 32 != 0), "{numbers:x?}");
    }

    #[test]
    fn a_walk_that_takes_each_record_out_finds_all_of_them_in_their_places() {
        let mut arena = Arena::default();
        let ids: Vec<_> = (0..3 * PAGE_SLOTS).map(|record| arena.insert(record)).collect();
        // A page of which one is left, one of which none is, and one of which every other one is.
        let is_left = |number: usize| number == 7 || (number >= 2 * PAGE_SLOTS && number.is_multiple_of(2));
        (0..ids.len()).filter(|&number| !is_left(number)).for_each(|number| _ = arena.remove(ids[number]));
        let (mut place, mut found) = (0, Vec::new());
        while let Some(id) = arena.first_from(&mut place) {
            assert_eq!(arena.first_from(&mut place), Some(id), "it is still there");
            assert!(!arena.is_empty());
            found.extend(arena.remove(id));
        }
        assert_eq!(found, (0..ids.len()).filter(|&number| is_left(number)).collect::<Vec<_>>());
        assert!(arena.is_empty() && arena.first_from(&mut 0).is_none());
    }

    #[test]
    fn a_store_and_those_that_take_its_place_never_share_a_number() {
        for generation in [0, 1, 6, GENERATION_MAX - 9, GENERATION_MAX - 1, GENERATION_MAX] {
            let mut arena = Arena { generation, ..Arena::default() };
            let mut all = std::collections::BTreeSet::new();
            for round in 0..4 {
                for record in 0..3 {
                    let id = arena.insert(record);
                    assert!(id.number() >> 63 == 0 && id.number() >> 32 != 0);
                    assert!(all.insert(id.number()), "{id:?} in round {round}, from {generation}");
                }
                arena = arena.successor();
            }
        }
    }

    #[test]
    fn a_page_with_room_is_listed_once() {
        let mut arena = Arena::default();
        let pages = |arena: &Arena<usize>| {
            let mut listed = arena.open.clone();
            listed.sort_unstable();
            let count = listed.len();
            listed.dedup();
            assert_eq!(listed.len(), count, "{listed:?}");
            count
        };
        let ids: Vec<_> = (0..4 * PAGE_SLOTS).map(|number| arena.insert(number)).collect();
        assert_eq!(pages(&arena), 0);
        // One of each page; then more of the same.
        for (number, &id) in ids.iter().step_by(PAGE_SLOTS).enumerate() {
            arena.remove(id);
            assert_eq!(pages(&arena), number + 1);
        }
        for &id in ids.iter().skip(1).step_by(PAGE_SLOTS) {
            arena.remove(id);
            assert_eq!(pages(&arena), 4);
        }
        assert!(format!("{:?}", ids[3]).starts_with('#'));
    }

    #[test]
    fn a_number_is_never_taken_for_another_record() {
        let mut arena = Arena::default();
        let first = arena.insert("first");
        assert_eq!(arena.remove(first), Some("first"));
        let second = arena.insert("second");
        assert_ne!(first, second);
        assert_eq!(arena.get(first), None);
        assert_eq!(arena.remove(first), None);
        assert_eq!(arena.get(second), Some(&"second"));
        assert_eq!(arena.get(Id::from_number(0)), None);
        assert_eq!(arena.get(Id::from_number(u64::MAX)), None);
    }

    #[test]
    fn a_million_records_come_and_go_and_leave_no_pages() {
        let mut arena = Arena::default();
        let ids: Vec<_> = (0..1_000_000_u32).map(|n| arena.insert(n)).collect();
        assert_eq!(arena.len(), 1_000_000);
        assert!(ids.iter().zip(0..).all(|(&id, n)| arena.get(id) == Some(&n)));
        assert_eq!(arena.iter().count(), 1_000_000);
        for id in ids {
            assert!(arena.remove(id).is_some());
        }
        assert!(arena.is_empty());
        let kept = arena.pages.iter().flatten().count();
        assert!(kept <= 1, "{kept} pages are kept");
        // The room of the pages is used again.
        let before = arena.pages.len();
        for n in 0..1_000 {
            arena.insert(n);
        }
        assert_eq!(arena.pages.len(), before);
    }

    #[test]
    fn a_store_agrees_with_a_map_under_random_use() {
        let mut arena = Arena::default();
        let mut oracle = std::collections::BTreeMap::new();
        let mut live: Vec<Id<u64>> = Vec::new();
        let mut seed = 7_u64;
        for step in 0..200_000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let pick = (seed >> 33) as usize;
            if pick % 5 < 2 + usize::from(live.len() < 700) {
                let id = arena.insert(step);
                assert!(oracle.insert(id.number(), step).is_none());
                live.push(id);
            } else if !live.is_empty() {
                let id = live.swap_remove(pick % live.len());
                assert_eq!(arena.remove(id), oracle.remove(&id.number()));
            }
        }
        assert_eq!(arena.len(), oracle.len());
        for (id, record) in arena.iter() {
            assert_eq!(oracle.get(&id.number()), Some(record));
        }
    }
}
