//! What the pump is asked to look at, and what it looks at next.

use super::noted::{LOOKED_AT_ONCE, Noted, next_of, note};
use super::state::Table;
use crate::lock::effect::{LockId, Task, WaiterId};
use crate::lock::queue::{Multi, MultiId, Queue, QueueId};
use crate::lock::types::{LockKey, Moment};

impl Table {
    /// Asks the pump to look at a key, if somebody waits there.
    pub fn note(&mut self, lock_key: LockKey<'_>) {
        if let Some(queue) = self.queues.at(lock_key) {
            self.note_queue(queue);
        }
    }

    /// Asks the pump to look at a queue.
    pub(super) fn note_queue(&mut self, id: QueueId) {
        if let Some(queue) = self.queues.queue_mut(id) {
            note(&mut self.noted, id, queue);
        }
    }

    /// Asks the pump for anything else.
    pub(super) fn note_task(&mut self, task: Task) {
        if matches!(task, Task::ReplicateAgain(..)) {
            self.untold.push_back(task);
        } else {
            self.noted.push_back(Noted::Task(Box::new(task)));
        }
    }

    /// The server may not do this now, and perhaps later (its slot is not ours, or not yet): it is tried again at this
    /// moment.
    pub fn put_off(&mut self, task: Task, at: Moment) {
        self.put_off.push(task, at);
    }

    /// Whether anything is put off. For tests.
    #[cfg(test)]
    pub fn has_put_off(&self) -> bool {
        !self.put_off.is_empty()
    }

    /// Tries one of those again whose moment has come. Returns whether there was one.
    pub(super) fn take_up_again(&mut self, now: Moment) -> bool {
        match self.put_off.pop_due(now) {
            None => false,
            Some(task @ Task::Revoke(..)) => {
                self.to_revoke.push_back(task);
                true
            }
            Some(task) => {
                self.note_task(task);
                true
            }
        }
    }

    /// Asks the pump to look at all keys of the request for several locks that this entry stands for.
    pub(super) fn note_request(&mut self, first_entry: WaiterId) {
        if let Some(multi) = self.multi_of(first_entry)
            && !std::mem::replace(&mut multi.is_noted, true)
        {
            self.note_task(Task::Multi(first_entry));
        }
    }

    fn multi_of(&mut self, entry: WaiterId) -> Option<&mut Multi> {
        let multi = self.queues.waiter(entry)?.multi?;
        self.queues.multi_mut(multi)
    }

    /// Throws away notes of requests that have left. While nothing can be granted no note is done, and each request that
    /// comes and goes would leave one behind. Looks at two for each that was added: so at most half of them are of
    /// requests that have left, but for those who leave all at once.
    pub fn forget_notes_of_left(&mut self) {
        let added = self.noted.len().saturating_sub(self.noted_then);
        for _ in 0..(2 * added).min(LOOKED_AT_ONCE) {
            let Some(noted) = next_of(&mut self.noted) else { break };
            if self.is_still_there(&noted) {
                self.noted.push_back(noted);
            }
        }
        self.noted_then = self.noted.len();
    }

    /// Whether what was noted is still there to be looked at.
    pub(super) fn is_still_there(&self, noted: &Noted) -> bool {
        match noted {
            Noted::Queue(id) => self.queues.queue(*id).is_some(),
            Noted::Task(task) => {
                !matches!(**task, Task::Multi(first_entry) if self.queues.waiter(first_entry).is_none())
            }
        }
    }

    /// Whether the pump has anything to look at, or to publish.
    #[inline(always)]
    #[must_use]
    pub fn has_tasks(&self) -> bool {
        !(self.noted.is_empty() && self.tasks_without_grant() == 0 && self.outbox.is_empty())
    }

    /// How many keys the pump has to look at.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.tasks_without_grant() + self.noted.len()
    }

    /// How many of these tasks are done though nothing can be granted, as long as the server accepts writes. A hold
    /// is revoked, or readers are told of one.
    #[inline(always)]
    #[must_use]
    pub fn tasks_without_grant(&self) -> usize {
        self.to_revoke.len() + self.untold.len()
    }

    /// Whether a hold that is to be revoked is what the pump is to look at next.
    #[must_use]
    pub fn revokes(&self) -> bool {
        !self.to_revoke.is_empty()
    }

    /// The next task that is done though nothing can be granted.
    pub fn next_without_grant(&mut self) -> Option<Task> {
        next_of(&mut self.to_revoke).or_else(|| next_of(&mut self.untold))
    }

    /// What the pump is to look at next.
    pub fn next_task(&mut self) -> Option<Task> {
        if self.tasks_without_grant() > 0 {
            return self.next_without_grant();
        }
        Some(match next_of(&mut self.noted)? {
            Noted::Task(task) => {
                if let Task::Multi(first_entry) = *task
                    && let Some(multi) = self.multi_of(first_entry)
                {
                    multi.is_noted = false;
                }
                *task
            }
            Noted::Queue(id) => match self.queues.queue_mut(id) {
                Some(queue) => {
                    queue.is_noted = false;
                    Task::Settle(queue.lock_key.clone())
                }
                // The last who waited there has left.
                None => Task::AskAgain,
            },
        })
    }

    /// Asks the pump to look at every queue that somebody left whose going may let others in, but for this one.
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
                self.note_queue(queue);
            }
        }
    }

    /// Notes that it may be the turn of a request for several locks. Asks the pump to look at all of them, unless the
    /// request is known to be held up in another queue.
    pub(super) fn note_multi(&mut self, id: MultiId, queue: QueueId) {
        let Some(multi) = self.queues.multi_mut(id) else {
            return;
        };
        if multi.held_up_in.is_none_or(|held_up_in| held_up_in == queue) {
            multi.held_up_in = None;
            if let Some(&first_entry) = multi.entries.first() {
                self.note_request(first_entry);
            }
        }
    }

    /// Any waiter may be next.
    pub fn note_everything(&mut self) {
        self.note_all(|_| true, |_| ());
    }

    /// Notes all queues in these databases, each changed so.
    pub(super) fn note_all(&mut self, is_concerned: impl Fn(u32) -> bool, change: impl Fn(&mut Queue)) {
        for (id, queue) in self.queues.queues_mut().filter(|(_, queue)| is_concerned(queue.lock_key.db)) {
            change(queue);
            note(&mut self.noted, id, queue);
        }
    }

    /// Asks the pump to tell readers how long this hold lasts.
    pub(super) fn replicate_again(&mut self, hold: LockId) {
        let lock_key = self.locks.get(hold).and_then(|lock| lock.lock_key());
        if let Some((lock_key, hold)) = lock_key.zip(self.locks.hold(hold)) {
            let task = Task::ReplicateAgain(lock_key, hold.token());
            self.note_task(task);
        }
    }

    /// Notes that this lock came to a key other than by a grant: the pump ends the waits there, if it stays.
    pub(super) fn note_arrived(&mut self, lock_key: LockKey<'_>, lock: LockId) {
        if let Some(queue) = self.queues.at(lock_key) {
            self.queues.set_arrived(queue, lock);
            self.note_queue(queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::noted::KEPT;
    use super::super::terms::{Block, Wait};
    use super::*;
    use crate::lock::tests::legacy::ask;
    use crate::lock::types::{ClientId, Mode, Token};

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
        let leaving: Vec<_> = (0..LOOKED_AT_ONCE + 2).map(|n| join(&mut table, &[b'a', n as u8])).collect();
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

    #[test]
    fn the_memory_of_many_tasks_comes_back_when_the_last_is_done() {
        let lock_key = || LockKey { db: 0, name: b"k" }.to_owned();
        let token = Token::new(1).expect("valid");
        let mut table = Table::default();
        for count in [1, 40, 40, 5_000] {
            for _ in 0..count {
                table.note_task(Task::ReplicateAgain(lock_key(), token));
                table.to_revoke.push_back(Task::Revoke(lock_key(), token));
            }
            assert_eq!(table.tasks(), 2 * count);
            for left in (0..2 * count).rev() {
                assert_eq!((table.has_tasks(), table.revokes()), (true, left >= count), "{count}: {left}");
                assert!(table.untold.capacity() >= count, "{count}: {left} left");
                let task = table.next_task().expect("there is one");
                assert_eq!(matches!(task, Task::Revoke(..)), left >= count, "{count}: {left}");
            }
            // Room for a few is kept for the next ones.
            let is_gone = (table.untold.capacity() == 0, table.to_revoke.capacity() == 0);
            assert_eq!((is_gone, table.tasks()), ((count > KEPT, count > KEPT), 0), "{count}");
        }
    }
}
