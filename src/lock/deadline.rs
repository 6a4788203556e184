//! Queues of deadlines (G3).
//!
//! A 4-ary heap of (moment, record) in which each record knows its position. So a renewal or a release removes its
//! deadline at once: O(log n), and O(1) in the common case of a new deadline later than the others. Four children
//! instead of two halve the depth; a million leases are ten levels.

use super::arena::{Arena, Id};
use super::types::Moment;

const CHILDREN: usize = 4;

/// The position of a record in its queue of deadlines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seat(u32);

impl Seat {
    /// The record has no deadline.
    pub const NONE: Self = Self(u32::MAX);
}

impl Default for Seat {
    fn default() -> Self {
        Self::NONE
    }
}

/// A record that can have one deadline.
pub trait Timed {
    /// Returns its position; only [`Deadlines`] writes it.
    fn seat(&mut self) -> &mut Seat;
}

/// The deadlines of the records of one arena.
pub struct Deadlines<T> {
    heap: Vec<(Moment, Id<T>)>,
}

impl<T> Default for Deadlines<T> {
    fn default() -> Self {
        Self { heap: Vec::new() }
    }
}

impl<T: Timed> Deadlines<T> {
    /// Returns the earliest deadline.
    #[must_use]
    pub fn first(&self) -> Option<(Moment, Id<T>)> {
        self.heap.first().copied()
    }

    /// Returns the number of records.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.heap.len()
    }

    /// Returns true if there is no record.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Sets the deadline of the record, in place of any earlier one.
    pub fn set(&mut self, arena: &mut Arena<T>, id: Id<T>, at: Moment) {
        let Some(seat) = arena.get_mut(id).map(|record| *record.seat()) else {
            return;
        };
        if seat == Seat::NONE {
            self.heap.push((at, id));
            self.rise(arena, self.heap.len() - 1);
        } else {
            let index = seat.0 as usize;
            let before = self.heap[index].0;
            self.heap[index].0 = at;
            if at < before {
                self.rise(arena, index);
            } else {
                self.sink(arena, index);
            }
        }
    }

    /// Removes the record's deadline, if it has one.
    pub fn clear(&mut self, arena: &mut Arena<T>, id: Id<T>) {
        let Some(record) = arena.get_mut(id) else {
            return;
        };
        let seat = std::mem::take(record.seat());
        if seat == Seat::NONE {
            return;
        }
        let index = seat.0 as usize;
        self.heap.swap_remove(index);
        if index < self.heap.len() {
            let index = self.rise(arena, index);
            self.sink(arena, index);
        }
        if self.heap.len() < self.heap.capacity() / 4 {
            self.heap.shrink_to(self.heap.len() * 2);
        }
    }

    /// Moves the entry at `index` towards the root, writes its seat, and returns its new position.
    fn rise(&mut self, arena: &mut Arena<T>, mut index: usize) -> usize {
        let entry = self.heap[index];
        while index > 0 {
            let parent = (index - 1) / CHILDREN;
            if self.heap[parent].0 <= entry.0 {
                break;
            }
            self.put(arena, index, self.heap[parent]);
            index = parent;
        }
        self.put(arena, index, entry);
        index
    }

    /// Moves the entry at `index` away from the root, and writes its seat.
    fn sink(&mut self, arena: &mut Arena<T>, mut index: usize) {
        let entry = self.heap[index];
        loop {
            let first = index * CHILDREN + 1;
            let last = (first + CHILDREN).min(self.heap.len());
            let Some(least) = (first..last).min_by_key(|&child| self.heap[child].0) else {
                break;
            };
            if entry.0 <= self.heap[least].0 {
                break;
            }
            self.put(arena, index, self.heap[least]);
            index = least;
        }
        self.put(arena, index, entry);
    }

    fn put(&mut self, arena: &mut Arena<T>, index: usize, entry: (Moment, Id<T>)) {
        self.heap[index] = entry;
        if let Some(record) = arena.get_mut(entry.1) {
            // A heap of 2^32 leases would be a table of hundreds of gigabytes.
            *record.seat() = u32::try_from(index).map_or(Seat::NONE, Seat);
        }
    }

    /// Returns the fault of the heap, if there is one.
    pub fn check(&self, arena: &Arena<T>, seat_of: impl Fn(&T) -> Seat) -> Result<(), String> {
        for (index, &(at, id)) in self.heap.iter().enumerate() {
            let record = arena.get(id).ok_or_else(|| format!("deadline of no record {id:?}"))?;
            if seat_of(record).0 as usize != index {
                return Err(format!("{id:?} does not know its seat {index}"));
            }
            if index > 0 && self.heap[(index - 1) / CHILDREN].0 > at {
                return Err(format!("deadline {index} is earlier than its parent"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Lease {
        seat: Seat,
    }

    impl Timed for Lease {
        fn seat(&mut self) -> &mut Seat {
            &mut self.seat
        }
    }

    #[test]
    fn deadlines_agree_with_a_sorted_set_under_random_use() {
        let mut arena = Arena::default();
        let mut deadlines = Deadlines::default();
        let mut oracle = std::collections::BTreeSet::new();
        let mut live: Vec<(Id<Lease>, Moment)> = Vec::new();
        let mut seed = 3_u64;
        for step in 0..60_000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
            let pick = (seed >> 33) as usize;
            let at = Moment((seed >> 20) % 5_000);
            match pick % 7 {
                0..=2 => {
                    let id = arena.insert(Lease { seat: Seat::NONE });
                    deadlines.set(&mut arena, id, at);
                    oracle.insert((at, id.number()));
                    live.push((id, at));
                }
                3..=4 if !live.is_empty() => {
                    let index = pick % live.len();
                    let (id, before) = live[index];
                    deadlines.set(&mut arena, id, at);
                    oracle.remove(&(before, id.number()));
                    oracle.insert((at, id.number()));
                    live[index].1 = at;
                }
                5..=6 if !live.is_empty() => {
                    let (id, at) = live.swap_remove(pick % live.len());
                    deadlines.clear(&mut arena, id);
                    deadlines.clear(&mut arena, id);
                    arena.remove(id);
                    oracle.remove(&(at, id.number()));
                }
                _ => {}
            }
            assert_eq!(deadlines.first().map(|f| f.0), oracle.first().map(|f| f.0));
            assert_eq!(deadlines.len(), oracle.len());
            if step % 1_000 == 0 {
                deadlines.check(&arena, |lease| lease.seat).expect("sound");
            }
        }
        while let Some((at, id)) = deadlines.first() {
            assert_eq!(oracle.first().map(|f| f.0), Some(at));
            oracle.remove(&(at, id.number()));
            deadlines.clear(&mut arena, id);
            arena.remove(id);
        }
        assert!(oracle.is_empty());
    }

    #[test]
    fn memory_comes_back_when_few_are_left() {
        let (mut arena, mut deadlines) = (Arena::default(), Deadlines::default());
        assert!(deadlines.is_empty());
        let ids: Vec<_> = (0..1_000).map(|_| arena.insert(Lease { seat: Seat::NONE })).collect();
        for (&id, at) in ids.iter().zip(0..) {
            deadlines.set(&mut arena, id, Moment(at));
        }
        assert!(!deadlines.is_empty());
        let mut capacities = std::collections::BTreeSet::new();
        for (&id, left) in ids.iter().zip((0..1_000).rev()) {
            deadlines.clear(&mut arena, id);
            let capacity = deadlines.heap.capacity();
            assert!(capacity >= left && capacity <= 4 * left + 3, "{capacity} for {left}");
            capacities.insert(capacity);
        }
        assert!(deadlines.is_empty());
        // The capacity is halved each time, not reduced a little with every removal.
        assert!(capacities.len() < 20, "{capacities:?}");
    }
}
