//! The tasks of the pump, in order.

use crate::lock::tuning::Bound;
use std::collections::{BTreeMap, VecDeque};

use crate::lock::effect::{Task, WaiterId};
use crate::lock::queue::{Multi, MultiId, Queue, QueueId, Queues};
use crate::lock::types::Moment;

/// The number of tasks for which memory is kept once all are done.
pub(super) const KEPT: Bound = Bound::of(64, 4);

/// The number of tasks that the pump examines in one run to drop those of requests that have left.
pub(super) const LOOKED_AT_ONCE: Bound = Bound::of(4096, 8);

/// Something that the pump must examine.
#[derive(Debug)]
pub(super) enum Noted {
    /// A queue, by its number: a flush adds all queues in one turn, and copies no name.
    Queue(QueueId),
    /// Anything else.
    Task(Box<Task>),
}

/// Postponed tasks, each until its moment. A tree, because a hash table doubles in one piece.
#[derive(Default)]
struct PutOff {
    all: BTreeMap<(Moment, u64), Task>,
    last: u64,
}

impl PutOff {
    fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn push(&mut self, task: Task, at: Moment) {
        self.last += 1;
        self.all.insert((at, self.last), task);
    }

    /// Iterates over all of them.
    fn iter(&self) -> impl Iterator<Item = &Task> {
        self.all.values()
    }

    /// Returns the moment of the first.
    fn next_at(&self) -> Option<Moment> {
        self.all.first_key_value().map(|(&(at, _), _)| at)
    }

    fn pop(&mut self) -> Option<Task> {
        self.all.pop_first().map(|(_, task)| task)
    }

    /// Returns the first if its moment has come.
    fn pop_due(&mut self, now: Moment) -> Option<Task> {
        self.next_at().filter(|&at| at <= now).and_then(|_| self.pop())
    }
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Notes {
    noted: VecDeque<Noted>,
    /// The number of tasks when the pump last dropped some.
    noted_then: usize,
    /// Undelivered holds to be revoked. They come first.
    to_revoke: VecDeque<Task>,
    /// Holds whose current state must be replicated. That grants nothing.
    untold: VecDeque<Task>,
    /// Tasks that the server may not do yet, by the time of the next attempt.
    put_off: PutOff,
}

impl Notes {
    /// Adds a queue, unless it was added already.
    pub(super) fn mark(&mut self, id: QueueId, queue: &mut Queue) {
        if !std::mem::replace(&mut queue.is_noted, true) {
            self.noted.push_back(Noted::Queue(id));
        }
    }

    /// Asks the pump to look at a queue.
    pub(super) fn note_queue(&mut self, queues: &mut Queues, id: QueueId) {
        if let Some(queue) = queues.queue_mut(id) {
            self.mark(id, queue);
        }
    }

    /// Asks the pump to examine all keys of the request for several locks that this entry belongs to.
    pub(super) fn note_request(&mut self, queues: &mut Queues, first_entry: WaiterId) {
        if let Some(multi) = multi_of(queues, first_entry)
            && !std::mem::replace(&mut multi.is_noted, true)
        {
            self.note_task(Task::Multi(first_entry));
        }
    }

    /// Notes that a request for several locks may be next in this queue. Asks the pump to examine all of its keys,
    /// unless another queue is known to block it.
    pub(super) fn note_multi(&mut self, queues: &mut Queues, id: MultiId, queue: QueueId) {
        let Some(multi) = queues.multi_mut(id) else {
            return;
        };
        if multi.held_up_in.is_none_or(|held_up_in| held_up_in == queue) {
            multi.held_up_in = None;
            if let Some(&first_entry) = multi.entries.first() {
                self.note_request(queues, first_entry);
            }
        }
    }

    /// Adds any other task.
    pub(super) fn note_task(&mut self, task: Task) {
        match task {
            Task::Revoke(..) => self.to_revoke.push_back(task),
            Task::ReplicateAgain(..) => self.untold.push_back(task),
            _ => self.noted.push_back(Noted::Task(Box::new(task))),
        }
    }

    /// Postpones a task until this time.
    pub(super) fn put_off(&mut self, task: Task, at: Moment) {
        self.put_off.push(task, at);
    }

    /// Returns the time of the first postponed task.
    pub(super) fn next_put_off(&self) -> Option<Moment> {
        self.put_off.next_at()
    }

    /// Adds a postponed task whose time has come. Returns true if there was one.
    pub(super) fn take_up_again(&mut self, now: Moment) -> bool {
        let task = self.put_off.pop_due(now);
        let is_any = task.is_some();
        task.into_iter().for_each(|task| self.note_task(task));
        is_any
    }

    /// Drops tasks of requests that have left. While nothing can be granted, no task is done, and each request that
    /// comes and goes leaves one. Examines two for each that was added, so at most half of them belong to requests
    /// that have left, except when many leave at once.
    pub(super) fn forget_left(&mut self, queues: &Queues) {
        let added = self.noted.len().saturating_sub(self.noted_then);
        for _ in 0..(2 * added).min(LOOKED_AT_ONCE.get()) {
            let Some(noted) = next_of(&mut self.noted) else { break };
            if noted.is_still_there(queues) {
                self.noted.push_back(noted);
            }
        }
        self.noted_then = self.noted.len();
    }

    /// Returns the number of tasks that may grant something. The pump does none of them while nothing can be granted.
    #[inline(always)]
    pub(super) fn with_grant(&self) -> usize {
        self.noted.len()
    }

    /// Returns the number of the other tasks: holds to revoke, and records to replicate.
    #[inline(always)]
    pub(super) fn without_grant(&self) -> usize {
        self.to_revoke.len() + self.untold.len()
    }

    /// Returns true if the next task is a revocation.
    pub(super) fn revokes(&self) -> bool {
        !self.to_revoke.is_empty()
    }

    /// Returns true if few records wait to be replicated.
    pub(super) fn has_few_untold(&self) -> bool {
        self.untold.len() < KEPT.get()
    }

    /// Iterates over the holds to be revoked, including postponed ones.
    pub(super) fn revocations(&self) -> impl Iterator<Item = &Task> {
        self.to_revoke.iter().chain(self.put_off.iter())
    }

    /// Iterates over the tasks that may grant something.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Noted> {
        self.noted.iter()
    }

    /// Returns the next task that grants nothing.
    pub(super) fn next_without_grant(&mut self) -> Option<Task> {
        next_of(&mut self.to_revoke).or_else(|| next_of(&mut self.untold))
    }

    /// Returns the next task of the pump.
    pub(super) fn next(&mut self, queues: &mut Queues) -> Option<Task> {
        if self.without_grant() > 0 {
            return self.next_without_grant();
        }
        Some(match next_of(&mut self.noted)? {
            Noted::Task(task) => {
                if let Task::Multi(first_entry) = *task
                    && let Some(multi) = multi_of(queues, first_entry)
                {
                    multi.is_noted = false;
                }
                *task
            }
            Noted::Queue(id) => match queues.queue_mut(id) {
                Some(queue) => {
                    queue.is_noted = false;
                    Task::Settle(queue.lock_key.clone())
                }
                // The last request there has left.
                None => Task::AskAgain,
            },
        })
    }

    /// Returns true if no task is left, postponed or not.
    pub(super) fn is_empty(&self) -> bool {
        self.noted.is_empty() && self.without_grant() == 0 && self.put_off.is_empty()
    }

    /// Drops one task of each kind: the memory of very many is freed in pieces.
    pub(super) fn forget_some(&mut self) {
        drop((
            self.noted.pop_front(),
            self.to_revoke.pop_front(),
            self.untold.pop_front(),
            self.put_off.pop(),
        ));
    }
}

impl Noted {
    /// Returns true if the queue or the request of this task is still there.
    pub(super) fn is_still_there(&self, queues: &Queues) -> bool {
        match self {
            Self::Queue(id) => queues.queue(*id).is_some(),
            Self::Task(task) => {
                !matches!(**task, Task::Multi(first_entry) if queues.waiter(first_entry).is_none())
            }
        }
    }
}

fn multi_of(queues: &mut Queues, entry: WaiterId) -> Option<&mut Multi> {
    let multi = queues.waiter(entry)?.multi?;
    queues.multi_mut(multi)
}

/// Takes the first one out. Frees the memory once none is left.
pub(super) fn next_of<T>(all: &mut VecDeque<T>) -> Option<T> {
    let next = all.pop_front();
    if all.is_empty() && all.capacity() > KEPT.get() {
        *all = VecDeque::new();
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::types::{LockKey, Token};

    #[test]
    fn a_task_that_was_put_off_comes_back_at_its_time() {
        let (mut notes, mut queues) = (Notes::default(), Queues::default());
        let task = Task::Revoke(LockKey { db: 0, name: b"k" }.to_owned(), Token::new(1).expect("valid"));
        notes.put_off(task.clone(), Moment(20));
        notes.put_off(Task::AskAgain, Moment(10));
        assert!(
            !notes.is_empty() && !notes.take_up_again(Moment(9)) && notes.next_put_off() == Some(Moment(10))
        );
        assert!(
            notes.take_up_again(Moment(20))
                && notes.take_up_again(Moment(20))
                && !notes.take_up_again(Moment(20))
        );
        assert_eq!((notes.with_grant(), notes.without_grant(), notes.revokes()), (1, 1, true));
        assert_eq!(notes.next(&mut queues), Some(task));
        assert_eq!((notes.next(&mut queues), notes.next(&mut queues)), (Some(Task::AskAgain), None));
        assert!(notes.is_empty());
    }

    #[test]
    fn tasks_that_were_put_off_to_one_moment_all_come_back() {
        let (mut notes, mut queues) = (Notes::default(), Queues::default());
        for _ in 0..2 {
            notes.put_off(Task::AskAgain, Moment(10));
        }
        while notes.take_up_again(Moment(10)) {}
        let mut next = || notes.next(&mut queues);
        assert_eq!((next(), next(), next()), (Some(Task::AskAgain), Some(Task::AskAgain), None));
    }

    #[test]
    fn notes_that_are_dropped_go_one_of_each_kind_at_a_time() {
        let mut notes = Notes::default();
        let key = || LockKey { db: 0, name: b"k" }.to_owned();
        let token = Token::new(1).expect("valid");
        for at in 1..=3 {
            notes.note_task(Task::AskAgain);
            notes.note_task(Task::Revoke(key(), token));
            notes.note_task(Task::ReplicateAgain(key(), token));
            notes.put_off(Task::AskAgain, Moment(at));
        }
        for left in (0..3).rev() {
            notes.forget_some();
            assert_eq!(
                (notes.with_grant(), notes.without_grant(), notes.is_empty()),
                (left, 2 * left, left == 0)
            );
        }
    }

    #[test]
    fn the_memory_of_many_tasks_comes_back_when_the_last_is_done() {
        let lock_key = || LockKey { db: 0, name: b"k" }.to_owned();
        let token = Token::new(1).expect("valid");
        let mut notes = Notes::default();
        let mut queues = Queues::default();
        for count in [1, 40, 40, 5_000] {
            for _ in 0..count {
                notes.note_task(Task::ReplicateAgain(lock_key(), token));
                notes.note_task(Task::Revoke(lock_key(), token));
            }
            assert_eq!(notes.without_grant(), 2 * count);
            for left in (0..2 * count).rev() {
                assert_eq!(notes.revokes(), left >= count, "{count}: {left}");
                assert!(notes.untold.capacity() >= count, "{count}: {left} left");
                let task = notes.next(&mut queues).expect("there is one");
                assert_eq!(matches!(task, Task::Revoke(..)), left >= count, "{count}: {left}");
            }
            // Room for a few is kept for the next ones.
            let is_gone = (notes.untold.capacity() == 0, notes.to_revoke.capacity() == 0);
            assert_eq!(
                (is_gone, notes.without_grant()),
                ((count > KEPT.get(), count > KEPT.get()), 0),
                "{count}"
            );
        }
    }
}
