//! What the pump is asked to look at, as it is kept.

use crate::lock::tuning::TUNING;
use std::collections::{BTreeMap, VecDeque};

use crate::lock::effect::Task;
use crate::lock::queue::{Queue, QueueId};
use crate::lock::types::Moment;

/// For how many notes room is kept when all are done.
pub(super) const KEPT: usize = TUNING.kept;

/// How many notes the pump looks at in one run, to throw away those of requests that have left.
pub(super) const LOOKED_AT_ONCE: usize = TUNING.notes_looked_at;

/// Something for the pump to look at.
#[derive(Debug)]
pub(super) enum Noted {
    /// A queue, by its number: a flush notes all queues in one turn, and copies the name of none.
    Queue(QueueId),
    /// Anything else.
    Task(Box<Task>),
}

/// What is put off, each until its moment. A tree, because a queue doubles in one piece.
#[derive(Default)]
pub(super) struct PutOff {
    all: BTreeMap<(Moment, u64), Task>,
    last: u64,
}

impl PutOff {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn push(&mut self, task: Task, at: Moment) {
        self.last += 1;
        self.all.insert((at, self.last), task);
    }

    /// All of it.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Task> {
        self.all.values()
    }

    /// The moment of the first.
    pub(super) fn next_at(&self) -> Option<Moment> {
        self.all.first_key_value().map(|(&(at, _), _)| at)
    }

    pub(super) fn pop(&mut self) -> Option<Task> {
        self.all.pop_first().map(|(_, task)| task)
    }

    /// The first, if its moment has come.
    pub(super) fn pop_due(&mut self, now: Moment) -> Option<Task> {
        self.next_at().filter(|&at| at <= now).and_then(|_| self.pop())
    }
}

/// Notes a queue, once.
pub(super) fn note(noted: &mut VecDeque<Noted>, id: QueueId, queue: &mut Queue) {
    if !std::mem::replace(&mut queue.is_noted, true) {
        noted.push_back(Noted::Queue(id));
    }
}

/// The first of these. When they are all done, their memory is given back.
pub(super) fn next_of<T>(all: &mut VecDeque<T>) -> Option<T> {
    let next = all.pop_front();
    if all.is_empty() && all.capacity() > KEPT {
        *all = VecDeque::new();
    }
    next
}
