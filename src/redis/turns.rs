//! Answers in turns: no turn of the event loop tells more clients than it can in a few milliseconds.
//!
//! What is decided is decided at once: the holds are there, replicas and files know them. But to tell a client takes
//! the server some three times as long as to grant its lock takes us, and it tells everybody whom it was given before it
//! hears anybody else. So it is given some at a time, first come first, and the pump gives it more in the next turn.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::blocking::Told;
use super::state::Handle;
use crate::lock::types::ClientId;

/// So many clients are told in one turn.
pub(crate) const TOLD_AT_ONCE: usize = 256;

/// Answers that wait for a later turn.
#[derive(Default)]
pub(crate) struct Turns {
    /// Whose turn it is. Some have gone.
    line: VecDeque<Option<(Handle, ClientId, Told)>>,
    /// Their places in line, counted from the first that there ever was.
    places: HashMap<Handle, usize>,
    /// How many have left the line at its head.
    passed: usize,
}

impl Turns {
    /// Whether nobody waits for a turn.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// This client is told when its turn comes.
    pub(crate) fn push(&mut self, handle: Handle, client: ClientId, told: Told) {
        self.places.insert(handle, self.passed + self.line.len());
        self.line.push_back(Some((handle, client, told)));
    }

    /// Whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<(Handle, ClientId, Told)> {
        while let Some(first) = self.line.pop_front() {
            self.passed += 1;
            if let Some((handle, ..)) = first {
                self.places.remove(&handle);
                return first;
            }
        }
        None
    }

    /// This client will not be told by us.
    pub(crate) fn take(&mut self, handle: Handle) -> Option<Told> {
        let place = self.places.remove(&handle)?;
        self.line.get_mut(place - self.passed)?.take().map(|(.., told)| told)
    }

    /// After a storm nothing of it is kept but room for a few.
    pub(crate) fn give_back_memory(&mut self, kept: usize) {
        if self.is_empty() && self.line.capacity().max(self.places.capacity()) > kept {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(number: u64) -> Handle {
        std::ptr::without_provenance_mut(number as usize)
    }

    fn push(turns: &mut Turns, number: u64) {
        turns.push(handle(number), ClientId(number), Told::Renewed);
    }

    fn next(turns: &mut Turns) -> Option<u64> {
        turns.pop().map(|(popped, client, _)| {
            assert_eq!(popped, handle(client.0));
            client.0
        })
    }

    #[test]
    fn first_come_is_first_told_and_who_went_is_passed_over() {
        let mut turns = Turns::default();
        for number in 1..=6 {
            push(&mut turns, number);
        }
        assert_eq!(next(&mut turns), Some(1));
        for gone in [2, 3, 6] {
            assert!(turns.take(handle(gone)).is_some());
            assert!(turns.take(handle(gone)).is_none(), "once");
        }
        assert!(turns.take(handle(1)).is_none(), "it was told");
        push(&mut turns, 7);
        assert_eq!([(); 4].map(|()| next(&mut turns)), [Some(4), Some(5), Some(7), None]);
        assert!(turns.is_empty());
    }

    #[test]
    fn when_all_went_nobody_waits() {
        let mut turns = Turns::default();
        for number in 1..=3 {
            push(&mut turns, number);
        }
        for number in 1..=3 {
            assert!(!turns.is_empty());
            assert!(turns.take(handle(number)).is_some());
        }
        assert!(turns.is_empty());
        push(&mut turns, 4);
        assert_eq!((next(&mut turns), next(&mut turns)), (Some(4), None));
    }

    #[test]
    fn its_memory_comes_back_when_nobody_waits() {
        let mut turns = Turns::default();
        for count in [20, 1_000] {
            for number in 1..=count {
                push(&mut turns, number);
            }
            turns.give_back_memory(64);
            assert_eq!(turns.places.len() as u64, count);
            while turns.pop().is_some() {}
            turns.give_back_memory(64);
            assert_eq!(turns.line.capacity() + turns.places.capacity() == 0, count == 1_000, "{count}");
        }
    }
}
