//! Ends locks whose keys were removed, alone or with a database or a slot.

use super::event_queue::{Detached, Notice};
use super::state::Table;
use crate::lock::effect::{Event, LockId};
use crate::lock::types::{LockKey, LockKeyBuf, Moment};

impl Table {
    /// Handles a key that is about to lose its value: deleted, overwritten, renamed or moved.
    ///
    /// `is_ours` is true if this server decides: then the waiters are served next.
    pub fn unlinked(&mut self, now: Moment, id: LockId, is_ours: bool) {
        if self.locks.holders_of(id) == 0 {
            return;
        }
        if self.locks.is_large(id)
            && let Some(lock_key) = self.locks.first_key(id)
        {
            self.detach(now, id, lock_key.clone(), is_ours);
            self.note_broken(lock_key.as_key(), id);
            return;
        }
        if is_ours {
            self.count_ended(now, id);
        }
        self.break_hold(now, id, is_ours);
    }

    /// Counts and publishes holds that are about to be ended from outside.
    fn count_ended(&mut self, now: Moment, id: LockId) {
        let over = self.locks.holders(id).filter(|(_, hold)| hold.is_over(now)).count();
        let live = self.locks.holders_of(id) - over;
        self.stats.expirations += over as u64;
        self.note_expired(id, over);
        if live > 0 {
            self.count_broken(id, live as u64);
        }
    }

    /// Removes a lock that has no holders, once the value of its key was freed. Returns true if it did.
    #[inline]
    pub fn forget_free(&mut self, id: LockId) -> bool {
        self.locks.remove_free(id)
    }

    /// Removes a lock once the value of its key was freed. A lock that is still held went with a slot as a whole,
    /// which no event names by key. `is_ours` is true if this server decides, and so counts and publishes it.
    pub fn forget(&mut self, now: Moment, id: LockId, is_ours: bool) {
        if is_ours {
            self.count_broken(id, self.locks.holders_of(id) as u64);
        }
        self.break_hold(now, id, false);
        self.locks.remove(id, now);
    }

    /// Removes the lock of a value that never was a key's: it came from a payload whose time to live had ended.
    /// Publishes no `broken` event. (The value of a key leaves its name before it is freed.)
    pub fn discard(&mut self, now: Moment, id: LockId) {
        self.forget(now, id, false);
    }

    /// Clears the lock of all queues in these databases, so that their waiters are served.
    pub(super) fn forget_locks_of_queues(&mut self, is_concerned: impl Fn(u32) -> bool + Copy) {
        self.note_all(is_concerned, |queue| queue.lock = None);
    }

    /// Ends all holds in these databases from outside.
    pub(super) fn break_all(&mut self, now: Moment, is_concerned: impl Fn(u32) -> bool, is_ours: bool) {
        for id in self.locks.all_held(is_concerned) {
            if is_ours {
                self.count_ended(now, id);
            }
            self.locks.break_up(id, now);
        }
    }

    /// Counts and publishes live holds that are about to be ended from outside, once for the lock.
    fn count_broken(&mut self, id: LockId, holds: u64) {
        if let Some(lock_key) = self.locks.first_key(id) {
            let token = self.locks.holders(id).map(|(_, hold)| hold.token()).max();
            self.events.push_notice(Notice { lock_key, event: Event::Broken, broken: (holds, token) });
        }
    }

    /// Publishes leases that had expired before anything ended them.
    fn note_expired(&mut self, id: LockId, holds: usize) {
        let lock_key = self.locks.first_key(id).filter(|_| holds > 0);
        for _ in 0..holds {
            lock_key.iter().for_each(|lock_key| self.events.push(lock_key.clone(), Event::Expired));
        }
    }

    pub(super) fn break_hold(&mut self, now: Moment, id: LockId, is_counted: bool) {
        let lock_key = self.locks.first_key(id).filter(|_| self.queues.waiters() > 0);
        let ended = self.locks.break_up(id, now);
        for ended in ended.iter().filter(|_| is_counted) {
            self.stats.holds.add(ended.held_ms);
        }
        if let Some(lock_key) = lock_key.filter(|_| !ended.is_empty()) {
            self.note_broken(lock_key.as_key(), id);
        }
    }

    /// Lets the pump serve the waiters of a lock whose holds were broken.
    fn note_broken(&mut self, lock_key: LockKey<'_>, id: LockId) {
        if let Some(queue) = self.queues.at(lock_key).and_then(|queue| self.queues.queue_mut(queue))
            && queue.lock == Some(id)
        {
            // The number may be reused for a hold under another name.
            queue.lock = None;
        }
        self.note(lock_key);
    }

    /// Detaches a lock that very many owners hold. The pump ends its holds, a few at a time.
    fn detach(&mut self, now: Moment, id: LockId, lock_key: LockKeyBuf, is_ours: bool) {
        let token = self.locks.holders(id).next().map(|(_, hold)| hold.token());
        self.locks.detach(id);
        let detached = Detached { lock_key, then: now, is_ours, expired: 0, broken: 0, token };
        self.events.push_detached(detached);
    }
}

#[cfg(test)]
mod tests {
    use super::super::requests::{Block, Wait};
    use super::*;
    use crate::lock::effect::Task;
    use crate::lock::queue::Queue;
    use crate::lock::tests::legacy::ask;
    use crate::lock::types::{ClientId, Mode};

    #[test]
    fn queues_of_an_emptied_database_forget_their_locks_and_are_noted() {
        let mut table = Table::default();
        let lock = LockId::from_number(7);
        for db in [0, 1] {
            let wait = Wait::Block(Block { client: ClientId(1), until: None });
            let lock_key = LockKey { db, name: b"k" };
            let ask = ask(b"ann", Mode::Exclusive, Some(1));
            table.queues.join(lock_key, ask.request(Moment(0), wait));
            let queue = table.queues.at(lock_key).expect("somebody waits there");
            table.queues.queue_mut(queue).expect("as above").lock = Some(lock);
        }
        table.forget_locks_of_queues(|db| db == 1);
        let known = |queue: &Queue| (queue.lock_key.db, queue.lock, queue.is_noted);
        let mut known: Vec<_> = table.queues.queues().map(|(_, queue)| known(queue)).collect();
        known.sort_unstable();
        assert_eq!(known, [(0, Some(lock), false), (1, None, true)]);
        assert_eq!(table.next_task(), Some(Task::Settle(LockKey { db: 1, name: b"k" }.to_owned())));
        assert_eq!(table.next_task(), None);
    }
}
