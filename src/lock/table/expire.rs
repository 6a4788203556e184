//! Ends by time or from outside: leases, keys that were removed.

use super::requests::{Admission, KeyRef};
use super::state::Table;
use crate::lock::effect::{Effects, Existing, LockId, Record, Step, Task};
use crate::lock::locks::Due;
use crate::lock::types::{LockKey, Moment, Now, Token};

impl Table {
    /// The next moment at which something ends. `leases` is false where this server does not decide.
    #[inline]
    #[must_use]
    pub fn next_deadline(&self, leases: bool) -> Option<Moment> {
        let lease = self.locks.next_end().filter(|_| leases);
        // The usual case.
        if self.queues.waiters() == 0
            && self.restrictions.quarantine_until().is_none()
            && self.notes.next_put_off().is_none()
        {
            lease
        } else {
            self.next_of_queue(lease, leases)
        }
    }

    #[inline(never)]
    fn next_of_queue(&self, lease: Option<Moment>, leases: bool) -> Option<Moment> {
        let timeout = self.queues.first_timeout().map(|first| first.0);
        let look = self.queues.first_recheck().map(|first| first.0).filter(|_| leases);
        let quarantine = self.restrictions.quarantine_until().filter(|_| leases);
        let put_off = self.notes.next_put_off().filter(|_| leases);
        [timeout, lease, look, quarantine, put_off].into_iter().flatten().min()
    }

    /// The first thing that is due, in the order of time.
    #[must_use]
    pub fn due(&mut self, now: Moment, leases: bool) -> Option<Task> {
        if leases && self.sessions.has_closed() {
            self.unbind_some(1);
            return Some(Task::AskAgain);
        }
        // While the server accepts no writes they would only become more.
        if leases && self.locks.has_running() && self.notes.has_few_untold() {
            if let Some(hold) = self.locks.next_running() {
                self.replicate_again(hold);
            }
            return Some(Task::AskAgain);
        }
        let at = self.next_deadline(leases).filter(|&at| at <= now)?;
        if leases && self.notes.take_up_again(now) {
            return Some(Task::AskAgain);
        }
        if leases && self.leave_quarantine(now) {
            return Some(Task::AskAgain);
        }
        // A lease is found to be over in the first whole millisecond behind its end. One that is found together with
        // a timeout comes first: a request that still waits gets the lock.
        if leases && self.locks.next_end() == Some(at) {
            return match self.locks.due(now) {
                Due::Lease(id) => Some(Task::Expire(self.locks.get(id)?.lock_key()?, id)),
                Due::AskAgain | Due::Nothing => Some(Task::AskAgain),
            };
        }
        if leases && let Some((_, queue)) = self.queues.first_recheck().filter(|first| first.0 <= now) {
            self.queues.recheck_at(queue, None);
            return Some(Task::Settle(self.queues.queue(queue)?.lock_key.clone()));
        }
        Some(Task::TimeOut(self.queues.first_timeout()?.1))
    }

    /// Ends expired holds at this key, and grants the lock to the next waiter if it is free. `due` is a hold that
    /// was told as due, and that may be one of many.
    pub fn settle(
        &mut self,
        now: Now,
        key_ref: KeyRef<'_>,
        due: Option<LockId>,
        admission: Admission<'_>,
        fx: &mut Effects,
    ) -> Step<()> {
        let mut ctx = self.open_step(now.boot, key_ref, fx);
        if self.end_some_lapsed(now.boot, key_ref.lock_key, fx) {
            // The rest of this step follows when all of them are given up.
            self.note(key_ref.lock_key);
            return Step::unchanged(());
        }
        self.expire_due_holds(now.boot, &mut ctx, None, due, fx);
        self.admit_queue(now, &mut ctx, admission, fx);
        self.step(&ctx, ())
    }

    /// Returns true if the value of a key stands for this hold.
    #[must_use]
    pub fn stands_for(&self, existing: Existing, hold: LockId) -> bool {
        match existing {
            Existing::Lock(lock) => lock == hold || (lock.is_list() && self.locks.is_held_by(lock, hold)),
            _ => false,
        }
    }

    /// The lease of this lock ran out, and the key where it should stand holds something else: it went
    /// away by a way that nobody told us. A hold that ended with its lock long ago, and whose record is to be taken out
    /// yet, is left alone until that moment.
    pub fn lost(&mut self, now: Moment, id: LockId, postponed_until: Moment) {
        if self.locks.is_detached(id) {
            self.locks.postpone(id, postponed_until);
        } else {
            self.break_hold(now, id, false);
        }
    }

    /// The record of the hold with this token, for readers.
    #[must_use]
    pub fn to_replicate(&self, existing: Existing, token: Token) -> Option<Record> {
        let Existing::Lock(lock) = existing else {
            return None;
        };
        let (holder, _) = self.locks.hold_with(lock, token)?;
        Some(if lock.is_list() { Record::Holder(lock, holder) } else { Record::Hold(lock) })
    }

    /// The lease of this lock is over, but the server may not end it now (its slot is not ours, or not
    /// yet): look again at this moment.
    pub fn postpone(&mut self, id: LockId, at: Moment) {
        self.locks.postpone(id, at);
    }

    /// The keys that somebody waits for, from this place on: `most` of them at most. `place` becomes where to go on, 0
    /// behind the last one. It does not look at what stands before that place.
    pub fn keys_waited_for(&self, place: &mut usize, most: usize) -> Vec<LockKey<'_>> {
        let mut lock_keys = Vec::new();
        while lock_keys.len() < most {
            let Some(queue) = self.queues.first_from(place).and_then(|id| self.queues.queue(id)) else {
                *place = 0;
                break;
            };
            lock_keys.push(queue.lock_key.as_key());
            *place += 1;
        }
        lock_keys
    }
}

#[cfg(test)]
mod tests {
    use super::super::requests::{Block, Wait};
    use super::*;
    use crate::lock::tests::legacy::ask;
    use crate::lock::types::{ClientId, Mode};

    #[test]
    fn each_key_that_is_waited_for_is_looked_at_once_a_round() {
        let mut table = Table::default();
        let names: Vec<String> = (0..700).map(|number| format!("{number:03}")).collect();
        for name in &names {
            let wait = Wait::Block(Block { client: ClientId(1), until: None });
            let ask = ask(b"ann", Mode::Exclusive, Some(1));
            table.queues.join(LockKey { db: 0, name: name.as_bytes() }, ask.request(Moment(0), wait));
        }
        let mut place = 0;
        for _ in 0..2 {
            let mut seen = Vec::new();
            for (most, begin) in [(300, 0), (300, 300), (300, 600)] {
                assert_eq!(place, begin);
                seen.extend(
                    table.keys_waited_for(&mut place, most).iter().map(|lock_key| lock_key.name.to_vec()),
                );
            }
            seen.sort_unstable();
            assert!(seen.iter().eq(names.iter().map(|name| name.as_bytes())));
        }
        assert!(table.keys_waited_for(&mut place, 0).is_empty());
        assert_eq!(Table::default().keys_waited_for(&mut 900, 3), []);
    }
}
