//! Queues that are rechecked at intervals, because no event reports the release of their lock.

use super::{QueueId, Queues};
use crate::lock::types::Moment;

impl Queues {
    /// Sets the time of this queue's recheck; `None` cancels it.
    pub fn look_at(&mut self, id: QueueId, at: Option<Moment>) {
        let Some(queue) = self.queues.get_mut(id).filter(|queue| queue.look_at != at) else {
            return;
        };
        let before = std::mem::replace(&mut queue.look_at, at);
        if let Some(before) = before {
            self.rechecks.remove(&(before, id.number()));
        }
        if let Some(at) = at {
            self.rechecks.insert((at, id.number()), id);
        }
    }

    /// The next queue to recheck, and its time.
    #[must_use]
    pub fn first_recheck(&self) -> Option<(Moment, QueueId)> {
        self.rechecks.first_key_value().map(|(key, id)| (key.0, *id))
    }
}
