//! Checks of all queues, for the tests.

use super::{MultiId, QueueId, Queues};
use crate::lock::deadline::Seat;

impl Queues {
    /// Fails if the pump's notes and the marks of the waiters disagree. The arguments are the noted queues and
    /// requests.
    pub fn check_notes(&self, queues: &[QueueId], multis: &[Option<MultiId>]) -> Result<(), String> {
        for (id, queue) in self.queues.iter() {
            let count = queues.iter().filter(|&&noted| noted == id).count();
            if count != usize::from(queue.is_noted) {
                return Err(format!("queue {id:?} is noted {count} times, and marked as {}", queue.is_noted));
            }
        }
        for (id, multi) in self.multis.iter() {
            let count = multis.iter().filter(|&&noted| noted == Some(id)).count();
            if count != usize::from(multi.is_noted) {
                return Err(format!(
                    "request {id:?} is noted {count} times, and marked as {}",
                    multi.is_noted
                ));
            }
        }
        Ok(())
    }

    /// Returns the fault of the queues, if there is one.
    pub fn check(&self) -> Result<(), String> {
        let (mut count, mut binding) = (0, 0);
        for (id, queue) in self.queues.iter() {
            if self.at(queue.lock_key.as_key()) != Some(id) {
                return Err(format!("queue {id:?} is not found by its key"));
            }
            let mut ahead = None;
            for (number, (waiter_id, waiter)) in self.in_order(id).enumerate() {
                if waiter.ahead != ahead || waiter.queue != id || number >= queue.len {
                    return Err(format!("queue {id:?} is broken at {waiter_id:?}"));
                }
                if self.of_owner(id, &waiter.request.owner) != Some(waiter_id) {
                    return Err(format!("{waiter_id:?} is not found by its owner, or not alone"));
                }
                if !self.all_of_owner(&waiter.request.owner).any(|(other, _)| other == waiter_id) {
                    return Err(format!("{waiter_id:?} is not found among its owner's"));
                }
                if waiter
                    .multi
                    .is_some_and(|multi| self.multi(multi).is_none_or(|p| !p.entries.contains(&waiter_id)))
                {
                    return Err(format!("{waiter_id:?} is no entry of its request"));
                }
                if !waiter.request.mode.agrees_with(queue.mode) {
                    return Err(format!("{waiter_id:?} is of another kind than its queue"));
                }
                if (waiter.seat == Seat::NONE) != waiter.request.until.is_none() {
                    return Err(format!("{waiter_id:?} has the wrong timeout"));
                }
                ahead = Some(waiter_id);
                count += 1;
                binding += usize::from(!waiter.request.binding.is_none());
            }
            self.check_ranks(id)?;
            if queue.tail != ahead || ahead.is_none() {
                return Err(format!("queue {id:?} has a wrong end or is empty"));
            }
        }
        if count != self.waiters.len()
            || self.by_owner.len() != count
            || self.by_key.len() != self.queues.len()
            || self.binding != binding
        {
            return Err("a waiter stands in no queue".to_owned());
        }
        self.timeouts.check(&self.waiters, |waiter| waiter.seat)
    }
}
