//! Gives the pump its tasks.

use super::state::Table;
use crate::lock::effect::{LockId, Task};
use crate::lock::queue::{Queue, QueueId};
use crate::lock::types::{LockKey, Moment};

impl Table {
    /// Asks the pump to examine a key, if a request waits there.
    pub fn note(&mut self, lock_key: LockKey<'_>) {
        if let Some(queue) = self.queues.at(lock_key) {
            self.notes.note_queue(&mut self.queues, queue);
        }
    }

    /// Postpones a task that the server may not do now (its slot belongs to another node, or is still moving).
    pub fn put_off(&mut self, task: Task, at: Moment) {
        self.notes.put_off(task, at);
    }

    /// Returns true if any task is postponed. For tests.
    #[cfg(test)]
    pub fn has_put_off(&self) -> bool {
        self.notes.next_put_off().is_some()
    }

    /// Drops tasks of requests that have left.
    pub fn forget_notes_of_left(&mut self) {
        self.notes.forget_left(&self.queues);
    }

    /// Returns true if the pump has anything to examine or to publish.
    #[inline(always)]
    #[must_use]
    pub fn has_tasks(&self) -> bool {
        !(self.tasks() == 0 && self.events.is_empty())
    }

    /// Returns the number of keys that the pump must examine.
    #[inline(always)]
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.notes.without_grant() + self.notes.with_grant()
    }

    /// Returns how many tasks are done even while nothing can be granted, as long as the server accepts writes: holds
    /// to revoke and to replicate.
    #[inline(always)]
    #[must_use]
    pub fn tasks_without_grant(&self) -> usize {
        self.notes.without_grant()
    }

    /// Returns true if the next task is to revoke a hold.
    #[must_use]
    pub fn revokes(&self) -> bool {
        self.notes.revokes()
    }

    /// Returns the next task that is done even while nothing can be granted.
    pub fn next_without_grant(&mut self) -> Option<Task> {
        self.notes.next_without_grant()
    }

    /// Returns the next task of the pump.
    pub fn next_task(&mut self) -> Option<Task> {
        self.notes.next(&mut self.queues)
    }

    /// Asks the pump to examine every queue that a request has left, if that may unblock others; except for this
    /// queue.
    #[inline(always)]
    pub(super) fn note_left(&mut self, but: Option<QueueId>) {
        if self.queues.has_left() {
            self.note_all_left(but);
        }
    }

    #[inline(never)]
    fn note_all_left(&mut self, but: Option<QueueId>) {
        while let Some(queue) = self.queues.next_left() {
            if Some(queue) != but {
                self.notes.note_queue(&mut self.queues, queue);
            }
        }
    }

    /// Asks the pump to examine all queues.
    pub fn note_everything(&mut self) {
        self.note_all(|_| true, |_| ());
    }

    /// Changes all queues in these databases, and asks the pump to examine them.
    pub(super) fn note_all(&mut self, is_concerned: impl Fn(u32) -> bool, change: impl Fn(&mut Queue)) {
        for (id, queue) in self.queues.queues_mut().filter(|(_, queue)| is_concerned(queue.lock_key.db)) {
            change(queue);
            self.notes.mark(id, queue);
        }
    }

    /// Asks the pump to replicate the lease of this hold.
    pub(super) fn replicate_again(&mut self, hold: LockId) {
        let lock_key = self.locks.get(hold).and_then(|lock| lock.lock_key());
        if let Some((lock_key, hold)) = lock_key.zip(self.locks.hold(hold)) {
            let task = Task::ReplicateAgain(lock_key, hold.token());
            self.notes.note_task(task);
        }
    }

    /// Notes that this lock came to a key other than by a grant. If it stays, the pump ends the waits there.
    pub(super) fn note_arrived(&mut self, lock_key: LockKey<'_>, lock: LockId) {
        if let Some(queue) = self.queues.at(lock_key) {
            self.queues.set_arrived(queue, lock);
            self.notes.note_queue(&mut self.queues, queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::requests::{Block, Wait};
    use super::super::task_queue::LOOKED_AT_ONCE;
    use super::*;
    use crate::lock::tests::legacy::ask;
    use crate::lock::types::{ClientId, Mode};

    #[test]
    fn a_queue_that_ended_after_it_was_noted_is_not_looked_at() {
        let (mut table, lock_key) = (Table::default(), LockKey { db: 0, name: b"k" });
        let wait = Wait::Block(Block { client: ClientId(1), until: None });
        let request = || ask(b"ann", Mode::Exclusive, Some(1)).request(Moment(0), wait);
        let first = table.queues.join(lock_key, request());
        table.note(lock_key);
        table.leave(first);
        // A new one at the same key is another one.
        table.queues.join(lock_key, request());
        assert_eq!((table.tasks(), table.next_task(), table.next_task()), (1, Some(Task::AskAgain), None));
        table.note(lock_key);
        table.note(lock_key);
        assert_eq!(table.next_task(), Some(Task::Settle(lock_key.to_owned())));
        assert_eq!((table.next_task(), table.has_tasks()), (None, false));
    }

    #[test]
    fn notes_of_those_who_have_left_go_a_few_at_a_time() {
        let mut table = Table::default();
        let wait = Wait::Block(Block { client: ClientId(1), until: None });
        let join = |table: &mut Table, name: &[u8]| {
            let lock_key = LockKey { db: 0, name };
            let request = ask(b"ann", Mode::Exclusive, Some(1)).request(Moment(0), wait);
            let waiter = table.queues.join(lock_key, request);
            table.note(lock_key);
            waiter
        };
        let leaving: Vec<_> =
            (0..LOOKED_AT_ONCE.get() + 2).map(|n| join(&mut table, &[b'a', n as u8])).collect();
        join(&mut table, b"stays");
        leaving.into_iter().for_each(|waiter| table.leave(waiter));
        table.forget_notes_of_left();
        assert_eq!(table.tasks(), 3, "no more are looked at in one run");
        table.forget_notes_of_left();
        assert_eq!(table.tasks(), 3, "none was added");
        let left = join(&mut table, b"k");
        table.leave(left);
        table.forget_notes_of_left();
        assert_eq!(table.tasks(), 2, "two for the one that was added");
        let left = [b"k", b"l"].map(|name| join(&mut table, name));
        left.into_iter().for_each(|waiter| table.leave(waiter));
        table.forget_notes_of_left();
        let stays = LockKey { db: 0, name: b"stays" }.to_owned();
        assert_eq!((table.tasks(), table.next_task(), table.tasks()), (1, Some(Task::Settle(stays)), 0));
    }
}
