//! Something ended by itself or from outside: leases, timeouts, closed connections, keys that went away.

use super::*;
use crate::lock::locks::Due as LeaseDue;

/// What is due.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Due {
    /// Nothing yet: a little work was done that finds out.
    AskAgain,
    /// The lease of this lock, here, has run out.
    Lease(LockId, PlaceBuf),
    /// This request has waited long enough.
    Timeout(WaiterId),
}

impl Table {
    /// The next moment at which something ends. `leases` is false where this server does not decide.
    #[must_use]
    pub fn next_deadline(&self, leases: bool) -> Option<Moment> {
        let timeout = self.queues.first_timeout().map(|first| first.0);
        let lease = self.locks.next_end().filter(|_| leases);
        match (timeout, lease) {
            (Some(timeout), Some(lease)) => Some(timeout.min(lease)),
            (timeout, lease) => timeout.or(lease),
        }
    }

    /// The first thing that is due, in the order of time.
    #[must_use]
    pub fn due(&mut self, now: Moment, leases: bool) -> Option<Due> {
        let at = self.next_deadline(leases).filter(|&at| at <= now)?;
        // A lease is found to be over in the first whole millisecond behind its end. One that is found together with
        // a timeout comes first: whoever still waits gets the lock.
        if leases && self.locks.next_end() == Some(at) {
            return match self.locks.due(now) {
                LeaseDue::Lease(id) => Some(Due::Lease(id, self.locks.get(id)?.place()?)),
                LeaseDue::AskAgain | LeaseDue::Nothing => Some(Due::AskAgain),
            };
        }
        Some(Due::Timeout(self.queues.first_timeout()?.1))
    }

    /// Ends what is over at this place, and grants the lock to whoever is next if it is free.
    pub fn settle(
        &mut self,
        now: Now,
        place: Place<'_>,
        found: Found,
        gate: Gate<'_>,
        fx: &mut Effects,
    ) -> Step<()> {
        if let Some(over) = self.end_if_over(now.boot, found, fx) {
            return self.pass_on(now, place, found, Record::Ended(over), gate, fx);
        }
        if let Some((_, hold)) = self.live(now.boot, found) {
            let (owner, token) = (hold.owner().into_owned(), hold.token());
            self.tell_holder(place, &owner, token, fx);
            return Step::unchanged(());
        }
        let step = self.grant_next(now, place, found, gate, fx);
        step.unwrap_or(Step::unchanged(()))
    }

    /// G9: whoever came to hold what it waits for (a RESTORE brought its hold) waits no longer.
    fn tell_holder(&mut self, place: Place<'_>, owner: &[u8], token: Token, fx: &mut Effects) {
        let queue = self.queues.at(place);
        let Some(waiter) = queue.and_then(|queue| self.queues.of_owner(queue, owner)) else {
            return;
        };
        let is_minted = self.queues.waiter(waiter).is_some_and(|w| w.request.owner_is_minted);
        let answer =
            Answer::Granted { place: place.to_owned(), token, minted_owner: is_minted.then(|| owner.into()) };
        self.answer(waiter, answer, fx);
    }

    /// The lease of this lock ran out, and the key where it should stand holds something else: it went
    /// away by a way that nobody told us.
    pub fn lost(&mut self, now: Moment, id: LockId) {
        self.break_hold(now, id);
    }

    /// A grant whose client was gone before it was told is as good as released, unless the owner asked again
    /// meanwhile and was told then (G9).
    pub fn take_back(
        &mut self,
        now: Now,
        place: Place<'_>,
        found: Found,
        token: Token,
        gate: Gate<'_>,
        fx: &mut Effects,
    ) -> Step<()> {
        let granted =
            self.live(now.boot, found).filter(|(_, hold)| hold.token() == token && !hold.is_known());
        let Some(id) = granted.map(|(id, _)| id) else {
            return self.settle(now, place, found, gate, fx);
        };
        self.locks.end(id, now.boot);
        self.stats.releases += 1;
        fx.publish(Event::Released);
        self.pass_on(now, place, found, Record::Ended(token), gate, fx)
    }

    /// A request has waited long enough (G7).
    pub fn time_out(&mut self, waiter: WaiterId, fx: &mut Effects) {
        self.stats.timeouts += 1;
        self.answer(waiter, Answer::TimedOut, fx);
    }

    /// The connection of a waiting request is gone, or was answered by the server itself (G8).
    pub fn leave(&mut self, waiter: WaiterId) {
        self.queues.leave(waiter);
    }

    /// A grant could not be delivered: the pump is to take it back.
    pub fn note_undelivered(&mut self, place: PlaceBuf, token: Token) {
        self.tasks.push_back(Task::TakeBack(place, token));
    }

    /// The key of this lock is about to leave its name: deleted, overwritten, renamed, moved.
    ///
    /// `is_ours` says that this server decides: then the waiters are next. Returns whether a live hold
    /// was broken.
    pub fn unlinked(&mut self, now: Moment, id: LockId, is_ours: bool) -> bool {
        let Some(hold) = self.locks.hold(id) else {
            return false;
        };
        let (was_live, held_ms) = (!hold.is_over(now), hold.held_ms(now));
        // It had a key: this one.
        self.locks.doubt(id, false);
        if is_ours {
            self.stats.holds.add(held_ms);
            if was_live {
                self.count_broken(id);
            } else {
                self.stats.expirations += 1;
            }
        }
        self.break_hold(now, id);
        was_live
    }

    /// The value of a key is gone for good, and its lock with it if nobody holds it. Returns whether that is so.
    #[inline]
    pub fn forget_free(&mut self, id: LockId) -> bool {
        self.locks.remove_free(id)
    }

    /// The value of a key is gone for good: its number dies.
    pub fn forget(&mut self, now: Moment, id: LockId, is_ours: bool) {
        if is_ours {
            self.count_broken(id);
        }
        self.break_hold(now, id);
        self.locks.remove(id, now);
    }

    /// This lock was read from a payload, and it is not sure that a key will hold it: if not, nobody is told
    /// that it was broken.
    pub fn doubt(&mut self, id: LockId) {
        self.locks.doubt(id, true);
    }

    /// These databases (all, if `None`) were emptied: whoever waits there is next.
    pub fn flushed(&mut self, db: Option<u32>) {
        self.note_all(|place_db| db.is_none_or(|db| db == place_db));
    }

    /// Two databases changed places. A hold is tied to its name: all of both are broken.
    pub fn swapped(&mut self, now: Moment, a: u32, b: u32) {
        if a == b {
            return;
        }
        let is_concerned = |db: u32| db == a || db == b;
        let held: Vec<LockId> = self
            .locks
            .iter()
            .filter(|(_, lock)| lock.hold().is_some() && lock.db().is_some_and(is_concerned))
            .map(|(id, _)| id)
            .collect();
        for id in held {
            self.count_broken(id);
            self.locks.end(id, now);
        }
        self.note_all(is_concerned);
    }

    /// This server decides from now on: whoever waits may be next.
    pub fn note_everything(&mut self) {
        self.note_all(|_| true);
    }

    fn note_all(&mut self, is_concerned: impl Fn(u32) -> bool) {
        let mut places: Vec<PlaceBuf> = self
            .queues
            .queues()
            .filter(|(_, queue)| is_concerned(queue.place.db))
            .map(|(_, queue)| queue.place.clone())
            .collect();
        // The order of a hash map is nobody's business.
        places.sort_unstable_by(|a, b| (a.db, &a.name).cmp(&(b.db, &b.name)));
        for place in places {
            self.note(place.as_place());
        }
    }

    /// A live hold of ours is about to be ended from outside: counts that and has it published.
    fn count_broken(&mut self, id: LockId) {
        let lock = self.locks.get(id).filter(|lock| lock.hold().is_some() && !lock.is_doubtful());
        if let Some(place) = lock.and_then(|lock| lock.place()) {
            self.stats.broken += 1;
            // The event comes before that of the next grant; without a waiter there is no hurry.
            if self.queues.at(place.as_place()).is_some() {
                self.broken_first.push_back(place);
            } else {
                self.broken.push_back(place);
            }
        }
    }

    fn break_hold(&mut self, now: Moment, id: LockId) {
        if self.locks.end(id, now).is_some()
            && self.queues.waiters() > 0
            && let Some(place) = self.locks.get(id).and_then(|lock| lock.place())
        {
            self.note(place.as_place());
        }
    }

    /// Asks the pump to look at a place, if somebody waits there.
    pub fn note(&mut self, place: Place<'_>) {
        let queue = self.queues.at(place);
        if let Some(queue) = queue.and_then(|queue| self.queues.queue_mut(queue))
            && !queue.is_noted
        {
            queue.is_noted = true;
            self.tasks.push_back(Task::Settle(queue.place.clone()));
        }
    }

    /// How many places the pump has to look at.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.tasks.len() + self.broken_first.len() + self.broken.len()
    }

    /// The lease of this lock is over, but the server may not end it now (its slot is not ours, or not
    /// yet): look again at this moment.
    pub fn postpone(&mut self, id: LockId, at: Moment) {
        self.locks.postpone(id, at);
    }

    /// What the pump is to look at next.
    pub fn next_task(&mut self) -> Option<Task> {
        let task = self.broken_first.pop_front().map(Task::Broken);
        let task = task.or_else(|| self.tasks.pop_front());
        let task = task.or_else(|| self.broken.pop_front().map(Task::Broken));
        if self.tasks() == 0 && self.tasks.capacity() + self.broken.capacity() > 1024 {
            self.tasks = VecDeque::new();
            self.broken_first = VecDeque::new();
            self.broken = VecDeque::new();
        }
        if let Some(Task::Settle(place)) = &task
            && let Some(queue) = self.queues.at(place.as_place())
            && let Some(queue) = self.queues.queue_mut(queue)
        {
            queue.is_noted = false;
        }
        task
    }

    /// Answers everybody who waits at this place with the same.
    pub fn dismiss(&mut self, place: Place<'_>, answer: &Answer, fx: &mut Effects) {
        while let Some(waiter) = self.queues.at(place).and_then(|queue| self.queues.head(queue)) {
            self.answer(waiter, answer.clone(), fx);
        }
    }

    /// Answers everybody who waits anywhere with the same, and drops what the pump was to look at.
    pub fn dismiss_all(&mut self, answer: &Answer, fx: &mut Effects) {
        self.note_everything();
        for task in std::mem::take(&mut self.tasks) {
            if let Task::Settle(place) = task {
                self.dismiss(place.as_place(), answer, fx);
            }
        }
    }

    /// The places that somebody waits for.
    pub fn places_waited_for(&self) -> impl Iterator<Item = Place<'_>> {
        self.queues.queues().map(|(_, queue)| queue.place.as_place())
    }
}
