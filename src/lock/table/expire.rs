//! Ends expired leases and finds what is due next.

use super::requests::{Admission, KeyRef};
use super::state::Table;
use crate::lock::effect::{Effects, Existing, LockId, Record, Step, Task};
use crate::lock::locks::Due;
use crate::lock::types::{LockKey, Moment, Now, Token};

impl Table {
    /// Returns the next moment at which something ends. `leases` is false on a server that does not decide.
    #[inline]
    #[must_use]
    pub fn next_deadline(&self, leases: bool) -> Option<Moment> {
        let lease = self.locks.next_end().filter(|_| leases);
        // The common case.
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

    /// Returns the first task that is due, in the order of time.
    #[must_use]
    pub fn due(&mut self, now: Moment, leases: bool) -> Option<Task> {
        if leases && self.sessions.has_closed() {
            self.unbind_some(1);
            return Some(Task::AskAgain);
        }
        // While the server accepts no writes, these would only accumulate.
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
        // A lease ends in the first whole millisecond after its end. If a timeout is due at the same moment, the
        // lease goes first, so that the waiter gets the lock.
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

    /// Ends expired holds at this key, and grants the lock to the next waiter if it is free. `due` is a hold that was
    /// reported as due; the lock may have others.
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
            // The rest of this step follows once all of them have lapsed.
            self.note(key_ref.lock_key);
            return Step::unchanged(());
        }
        self.expire_due_holds(now.boot, &mut ctx, None, due, fx);
        self.admit_queue(now, &mut ctx, admission, fx);
        self.step(&ctx, ())
    }

    /// Returns true if the value of a key represents this hold.
    #[must_use]
    pub fn stands_for(&self, existing: Existing, hold: LockId) -> bool {
        match existing {
            Existing::Lock(lock) => lock == hold || (lock.is_list() && self.locks.is_held_by(lock, hold)),
            _ => false,
        }
    }

    /// Breaks a hold whose lease ended while its key holds another value: no event reported how the lock went. A hold
    /// of a removed lock, whose record waits to be freed, is only postponed.
    pub fn lost(&mut self, now: Moment, id: LockId, postponed_until: Moment) {
        if self.locks.is_detached(id) {
            self.locks.postpone(id, postponed_until);
        } else {
            self.break_hold(now, id, false);
        }
    }

    /// Returns the record of the hold with this token, for readers.
    #[must_use]
    pub fn to_replicate(&self, existing: Existing, token: Token) -> Option<Record> {
        let Existing::Lock(lock) = existing else {
            return None;
        };
        let (holder, _) = self.locks.hold_with(lock, token)?;
        Some(if lock.is_list() { Record::Holder(lock, holder) } else { Record::Hold(lock) })
    }

    /// Reschedules an expired hold that the server may not end now, because its slot belongs to another node or is
    /// still moving.
    pub fn postpone(&mut self, id: LockId, at: Moment) {
        self.locks.postpone(id, at);
    }

    /// Returns up to `most` lock keys that have waiters, starting at `place`, and advances `place`; 0 after the last
    /// one. Costs nothing for the queues before `place`.
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
