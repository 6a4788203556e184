//! Numbered slots of bytes for the records of locks.
//!
//! A million locks are a million small records of nearly the same size. An allocation for each would cost as many
//! instructions as the rest of an acquire, and the allocator's rounding as much memory as a token. So records are
//! stored in pages, each cut into slots of one size; a size has its own pages. (Bonwick, "The Slab Allocator", 1994.)
//! The first pages of a size have 16 KiB, so that a few locks take little memory; the others have 64 KiB. An
//! allocator places each page on its own, and a walk through all records waits for memory at the beginning of each.
//!
//! The first byte of a slot is its *generation*: it shows if the slot is occupied, and how often it was. So a stale
//! number does not find another lock's record.

// Sizes of slots, their counts in a page and numbers of pages are small by construction: see the constants.
#![allow(clippy::cast_possible_truncation)]

use crate::lock::tuning::Bound;

/// The bytes of a page: a size class of the usual allocators, so that nothing is lost to rounding.
const PAGE_BYTES: usize = 64 * 1024;

/// The bytes of each of the first [`SMALL_PAGES`] of a size.
const SMALL_PAGE_BYTES: usize = Bound::of(16 * 1024, 2 * 1024).fixed();

/// The number of pages of a size that are small.
const SMALL_PAGES: u32 = Bound::of(8, 2).fixed() as u32;

/// A number has 17 bits of page and 11 bits of slot: 8 GiB of records, 170 million of the usual size.
pub(super) const SLOT_BITS: u32 = 11;

/// Bits of a number.
pub(super) const INDEX_BITS: u32 = 28;

/// Numbers from here on name no slot, so that links can use them for other purposes.
pub(super) const INDEX_END: u32 = (1 << INDEX_BITS) - (1 << 16);

/// The most pages.
const PAGES_MAX: usize = (INDEX_END >> SLOT_BITS) as usize;

/// The smallest slot.
const SIZE_MIN: usize = 36;

/// Sizes up to this are even, so that the usual record wastes nothing; larger ones are multiples of 16.
const FINE_MAX: usize = 64;

/// The largest slot.
pub(super) const SIZE_MAX: usize = FINE_MAX + 16 * COARSE;

const FINE: usize = (FINE_MAX - SIZE_MIN) / 2 + 1;
const COARSE: usize = 21;
const CLASSES: usize = FINE + COARSE;

const OCCUPIED: u8 = 0x80;
const NO_SLOT: u16 = u16::MAX;

#[derive(Default)]
struct Page {
    /// Empty if the page went back to the allocator.
    bytes: Box<[u8]>,
    size: u16,
    /// The number of slots.
    slots: u16,
    /// The number of occupied slots.
    live: u16,
    /// The first slot that was never used, like all after it.
    fresh: u16,
    /// The slot that was vacated last; each vacant slot names the next one.
    vacant: u16,
    /// The class of its size.
    class: u8,
}

impl Page {
    /// Returns true if the page is full: no slot fits after the used ones.
    const fn is_full(&self) -> bool {
        self.live == self.slots
    }
}

/// Slots of bytes. See the [module](self).
#[derive(Default)]
pub(super) struct Slab {
    pages: Vec<Page>,
    /// Pages with room by class of size, the next one to use last. Names each page once at most.
    open: Vec<Vec<u32>>,
    /// The number of pages of each class.
    counts: Vec<u32>,
    /// Numbers of pages that went back to the allocator.
    gone: Vec<u32>,
    /// The number of pages opened so far. Generations start from it, so that a reused page does not issue its old
    /// numbers again.
    openings: u8,
    len: usize,
}

/// Returns the class of sizes that a record of this size belongs to.
const fn class_of(size: usize) -> usize {
    if size <= SIZE_MIN {
        0
    } else if size <= FINE_MAX {
        (size - SIZE_MIN).div_ceil(2)
    } else {
        FINE - 1 + (size - FINE_MAX).div_ceil(16)
    }
}

const fn size_of_class(class: usize) -> usize {
    if class < FINE { SIZE_MIN + 2 * class } else { FINE_MAX + 16 * (class + 1 - FINE) }
}

const fn page_of(index: u32) -> usize {
    (index >> SLOT_BITS) as usize
}

const fn slot_of(index: u32) -> usize {
    (index & ((1 << SLOT_BITS) - 1)) as usize
}

impl Slab {
    /// Returns true if there is room for many more slots.
    pub(super) const fn has_room(&self) -> bool {
        const PAGES_KEPT: usize = 128;
        self.pages.len() + PAGES_KEPT < PAGES_MAX
    }

    /// Leaves no room, for a test.
    #[cfg(test)]
    pub(super) fn use_up_numbers(&mut self) {
        self.pages.resize_with(PAGES_MAX - 1, Page::default);
    }

    /// Returns the number of occupied slots.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Occupies a slot of at least `size` bytes. Returns its number, and its bytes, the generation first. `None` if
    /// the record is too large, or there are too many.
    #[inline(always)]
    pub(super) fn insert(&mut self, size: usize) -> Option<(u32, &mut [u8])> {
        if size > SIZE_MAX {
            return None;
        }
        let class = class_of(size);
        let number = match self.open.get(class).and_then(|open| open.last()) {
            Some(&number) => number,
            None => self.open_page(class)?,
        };
        let page = self.pages.get_mut(number as usize)?;
        let is_fresh = page.vacant == NO_SLOT;
        let slot = if is_fresh { page.fresh } else { page.vacant };
        let start = usize::from(slot) * usize::from(page.size);
        let bytes = page.bytes.get_mut(start..start + usize::from(page.size))?;
        let [generation, low, high, ..] = bytes else {
            return None;
        };
        if is_fresh {
            page.fresh += 1;
        } else {
            page.vacant = u16::from_le_bytes([*low, *high]);
        }
        *generation = generation.wrapping_add(1) | OCCUPIED;
        page.live += 1;
        if page.live == page.slots {
            self.open[class].pop();
        }
        self.len += 1;
        Some((number << SLOT_BITS | u32::from(slot), bytes))
    }

    #[cold]
    fn open_page(&mut self, class: usize) -> Option<u32> {
        let size = size_of_class(class);
        self.counts.resize(CLASSES, 0);
        let count = self.counts.get_mut(class)?;
        let mut bytes = vec![0; if *count < SMALL_PAGES { SMALL_PAGE_BYTES } else { PAGE_BYTES }];
        self.openings = self.openings.wrapping_add(37);
        bytes.iter_mut().step_by(size).for_each(|generation| *generation = self.openings & !OCCUPIED);
        let page = Page {
            slots: (bytes.len() / size) as u16,
            bytes: bytes.into(),
            size: size as u16,
            live: 0,
            fresh: 0,
            vacant: NO_SLOT,
            class: class as u8,
        };
        let number = match self.gone.pop() {
            Some(number) => number,
            None if self.pages.len() < PAGES_MAX => {
                self.pages.push(Page::default());
                (self.pages.len() - 1) as u32
            }
            None => return None,
        };
        *count += 1;
        self.pages[number as usize] = page;
        self.open.resize_with(CLASSES, Vec::new);
        self.open[class].push(number);
        Some(number)
    }

    /// Returns the bytes of a slot, the generation first; `None` if it is not occupied.
    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&[u8]> {
        let page = self.pages.get(page_of(index))?;
        let start = slot_of(index) * usize::from(page.size);
        let slot = page.bytes.get(start..start + usize::from(page.size))?;
        (slot.first()? & OCCUPIED != 0).then_some(slot)
    }

    /// Returns the bytes of a slot, to change them; `None` if it is not occupied. The generation must not be changed.
    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut [u8]> {
        let page = self.pages.get_mut(page_of(index))?;
        let start = slot_of(index) * usize::from(page.size);
        let slot = page.bytes.get_mut(start..start + usize::from(page.size))?;
        (slot.first()? & OCCUPIED != 0).then_some(slot)
    }

    /// Vacates a slot.
    pub(super) fn remove(&mut self, index: u32) {
        self.remove_if(index, |_| Some(()));
    }

    /// Vacates a slot if `look` finds a reason in its bytes, and returns that reason. One search for the slot serves
    /// both.
    #[inline(always)]
    pub(super) fn remove_if<R>(&mut self, index: u32, look: impl FnOnce(&[u8]) -> Option<R>) -> Option<R> {
        let (number, slot) = (page_of(index), slot_of(index));
        let page = self.pages.get_mut(number)?;
        let start = slot * usize::from(page.size);
        let bytes = page.bytes.get_mut(start..start + usize::from(page.size))?;
        if bytes.first()? & OCCUPIED == 0 {
            return None;
        }
        let found = look(bytes)?;
        if let [generation, low, high, ..] = bytes {
            *generation &= !OCCUPIED;
            [*low, *high] = page.vacant.to_le_bytes();
        }
        let was_full = page.is_full();
        page.vacant = slot as u16;
        page.live -= 1;
        self.len -= 1;
        if was_full || page.live == 0 {
            let (class, is_empty) = (usize::from(page.class), page.live == 0);
            self.page_changed(class, number, was_full, is_empty);
        }
        Some(found)
    }

    /// Updates the lists for a page that was full and has room now, or that is empty and not needed.
    #[inline]
    fn page_changed(&mut self, class: usize, number: usize, was_full: bool, is_empty: bool) {
        let Some(open) = self.open.get_mut(class) else {
            return;
        };
        if was_full {
            open.push(number as u32);
        } else if is_empty && open.len() > 1 {
            self.close_page(class, number);
        }
    }

    /// Gives an empty page back to the allocator if its class has another one with room. So a single lock, acquired
    /// and released repeatedly, does not allocate a page each time.
    #[cold]
    fn close_page(&mut self, class: usize, number: usize) {
        let open = &mut self.open[class];
        let Some(seat) = open.iter().rposition(|&page| page as usize == number) else {
            return;
        };
        open.swap_remove(seat);
        self.counts[class] -= 1;
        self.pages[number] = Page::default();
        self.gone.push(number as u32);
    }

    /// Returns the bytes that a slot takes.
    pub(super) fn size(&self, index: u32) -> usize {
        self.pages.get(page_of(index)).map_or(0, |page| usize::from(page.size))
    }

    /// Returns an occupied slot of a slab that is no longer in use. Frees pages without any on the way.
    pub(super) fn last(&mut self) -> Option<u32> {
        while let Some(page) = self.pages.last_mut() {
            while let Some(slot) = page.fresh.checked_sub(1) {
                let generation = page.bytes.get(usize::from(slot) * usize::from(page.size));
                if generation.is_some_and(|generation| generation & OCCUPIED != 0) {
                    return Some((self.pages.len() as u32 - 1) << SLOT_BITS | u32::from(slot));
                }
                page.fresh = slot;
            }
            self.pages.pop();
        }
        None
    }

    /// Returns all occupied slots, in no particular order: their numbers, and their bytes, the generation first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.pages.iter().zip(0_u32..).flat_map(|(page, number)| {
            let slots = page.bytes.chunks_exact(usize::from(page.size).max(1)).take(usize::from(page.fresh));
            slots.zip(number << SLOT_BITS..).filter_map(|(bytes, index)| {
                let is_occupied = bytes.first().is_some_and(|generation| generation & OCCUPIED != 0);
                is_occupied.then_some((index, bytes))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn classes_cover_all_sizes_and_waste_little() {
        for size in 1..=SIZE_MAX {
            let class = class_of(size);
            let given = size_of_class(class);
            assert!(class < CLASSES && given >= size, "{size} gets {given}");
            assert_eq!(class_of(given), class);
            let waste = given - size;
            assert!(size < SIZE_MIN || waste < if size <= FINE_MAX { 2 } else { 16 }, "{size} gets {given}");
        }
        const { assert!(PAGE_BYTES / SIZE_MIN < 1 << SLOT_BITS && PAGE_BYTES / SIZE_MIN < NO_SLOT as usize) };
        assert!(Slab::default().insert(SIZE_MAX + 1).is_none());
    }

    #[test]
    fn a_slot_that_was_never_used_is_not_occupied() {
        let mut slab = Slab::default();
        // One page for each size, and a few more: their first generations differ.
        for size in (SIZE_MIN..SIZE_MAX).step_by(2) {
            let (index, _) = slab.insert(size).expect("there is room");
            let number = page_of(index);
            for slot in slab.pages[number].fresh..slab.pages[number].slots {
                let unused = (number as u32) << SLOT_BITS | u32::from(slot);
                assert!(slab.get(unused).is_none() && slab.get_mut(unused).is_none(), "{size}: {slot}");
            }
        }
        assert!(slab.pages.len() > 16);
    }

    #[test]
    fn there_is_an_end_to_numbers() {
        let mut slab = Slab::default();
        slab.pages.resize_with(PAGES_MAX - 129, Page::default);
        assert!(slab.has_room());
        slab.pages.push(Page::default());
        assert!(!slab.has_room());
        slab.pages.resize_with(PAGES_MAX - 1, Page::default);
        let (last, _) = slab.insert(SIZE_MIN).expect("a page is left");
        assert!(last < INDEX_END && INDEX_END - last <= 1 << SLOT_BITS, "{last}");
        assert!(slab.insert(SIZE_MAX).is_none());
        assert!(slab.insert(SIZE_MIN).is_some(), "its page has room");
    }

    #[test]
    fn a_number_finds_its_own_bytes_under_random_use() {
        let mut slab = Slab::default();
        let mut oracle: BTreeMap<u32, (usize, u8)> = BTreeMap::new();
        let mut seed = 7_u64;
        for step in 0..200_000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let pick = (seed >> 33) as usize;
            if pick % 5 < 2 + usize::from(oracle.len() < 3_000) {
                let size = 3 + pick / 8 % (SIZE_MAX - 3);
                let (index, _) = slab.insert(size).expect("there is room");
                let fill = step as u8;
                slab.get_mut(index).expect("occupied")[1..size].fill(fill);
                assert_eq!(oracle.insert(index, (size, fill)), None);
            } else if let Some((&index, _)) = oracle.range(pick as u32 % 70_000..).next() {
                let (size, fill) = oracle.remove(&index).expect("known");
                let bytes = slab.get(index).expect("occupied");
                assert!(bytes[1..size].iter().all(|&byte| byte == fill));
                slab.remove(index);
                assert_eq!(slab.get(index), None);
                slab.remove(index);
            }
        }
        assert_eq!(slab.len(), oracle.len());
        assert!(slab.iter().eq(oracle.keys().map(|&index| (index, slab.get(index).expect("there")))));
    }

    #[test]
    fn the_first_pages_of_a_size_are_small() {
        let mut slab = Slab::default();
        let bytes = |slab: &Slab| -> Vec<usize> {
            let mut bytes: Vec<usize> = slab.pages.iter().map(|page| page.bytes.len()).collect();
            bytes.retain(|&bytes| bytes > 0);
            bytes.sort_unstable();
            bytes
        };
        let mut expected = Vec::new();
        for size in [50, 60] {
            let mut indexes = Vec::new();
            for page in [SMALL_PAGE_BYTES, SMALL_PAGE_BYTES, PAGE_BYTES, PAGE_BYTES] {
                indexes.extend((0..page / size).map(|_| slab.insert(size).expect("there is room").0));
                expected.push(page);
                expected.sort_unstable();
                assert_eq!(bytes(&slab), expected, "{size}");
            }
            // The next page is small, because only two of this size are left.
            let count = PAGE_BYTES / size;
            indexes.drain(2 * (SMALL_PAGE_BYTES / size)..).for_each(|index| slab.remove(index));
            assert_eq!(bytes(&slab).len() + 1, expected.len(), "{size}: one page is kept that is empty");
            (0..2 * count).for_each(|_| _ = slab.insert(size).expect("there is room"));
            assert_eq!(bytes(&slab), expected, "{size}");
        }
    }

    #[test]
    fn a_million_records_leave_no_pages_and_their_room_is_used_again() {
        let mut slab = Slab::default();
        let indexes: Vec<u32> = (0..1_000_000).map(|_| slab.insert(50).expect("there is room").0).collect();
        let bytes: usize = slab.pages.iter().map(|page| page.bytes.len()).sum();
        assert!(bytes < 50_200_000, "{bytes} bytes for a million records of 50");
        for index in indexes {
            slab.remove(index);
        }
        let kept = slab.pages.iter().filter(|page| !page.bytes.is_empty()).count();
        assert_eq!((slab.len(), kept), (0, 1));
        let before = slab.pages.len();
        for _ in 0..10_000 {
            slab.insert(50).expect("there is room");
        }
        assert_eq!(slab.pages.len(), before);
    }

    #[test]
    fn a_slot_that_comes_back_has_another_generation() {
        let mut slab = Slab::default();
        let mut generations = Vec::new();
        for _ in 0..100 {
            let (index, _) = slab.insert(40).expect("there is room");
            generations.push(slab.get(index).expect("occupied")[0]);
            slab.remove(index);
        }
        generations.sort_unstable();
        generations.dedup();
        assert_eq!(generations.len(), 100);
    }

    #[test]
    fn a_size_that_is_hardly_used_any_more_gets_small_pages_again() {
        let mut slab = Slab::default();
        let bytes = |slab: &Slab| -> Vec<usize> {
            let bytes = slab.pages.iter().map(|page| page.bytes.len());
            bytes.filter(|&bytes| bytes > 0).collect()
        };
        let count = 2 * (SMALL_PAGE_BYTES / 50) + 1;
        let indexes: Vec<u32> = (0..count).map(|_| slab.insert(50).expect("there is room").0).collect();
        assert_eq!(bytes(&slab), [SMALL_PAGE_BYTES, SMALL_PAGE_BYTES, PAGE_BYTES]);
        indexes.into_iter().for_each(|index| slab.remove(index));
        assert_eq!(bytes(&slab), [PAGE_BYTES]);
        (0..=PAGE_BYTES / 50).for_each(|_| _ = slab.insert(50).expect("there is room"));
        assert_eq!(bytes(&slab), [SMALL_PAGE_BYTES, PAGE_BYTES]);
    }
}
