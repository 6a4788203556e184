//! Queues that are rechecked at intervals, because no event reports the release of their lock.

use super::{LockId, QueueId, Queues};
use crate::lock::types::Moment;

impl Queues {
    /// Notes the result of a step at the key of this queue: the lock there, when to recheck it, and how many
    /// reservations have their turn. Returns true if another reservation has its turn now.
    #[inline]
    pub fn looked(
        &mut self,
        id: QueueId,
        lock: Option<LockId>,
        recheck_at: Option<Moment>,
        turns: usize,
    ) -> bool {
        let Some(queue) = self.queues.get_mut(id) else {
            return false;
        };
        queue.lock = lock;
        let is_new_turn = queue.ranks.as_mut().is_some_and(|ranks| ranks.set_turns(turns));
        if queue.recheck_at != recheck_at {
            self.recheck_at(id, recheck_at);
        }
        is_new_turn
    }

    /// Sets the time of this queue's recheck; `None` cancels it.
    pub fn recheck_at(&mut self, id: QueueId, at: Option<Moment>) {
        let Some(queue) = self.queues.get_mut(id).filter(|queue| queue.recheck_at != at) else {
            return;
        };
        let before = std::mem::replace(&mut queue.recheck_at, at);
        if let Some(before) = before {
            self.rechecks.remove(&(before, id.number()));
        }
        if let Some(at) = at {
            self.rechecks.insert((at, id.number()), id);
        }
    }

    /// Returns the next queue to recheck, and its time.
    #[must_use]
    pub fn first_recheck(&self) -> Option<(Moment, QueueId)> {
        self.rechecks.first_key_value().map(|(key, id)| (key.0, *id))
    }
}
