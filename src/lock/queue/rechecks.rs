//! Lines that have to be looked at now and then, because nobody tells when what they wait for is gone.

use super::{QueueId, Queues};
use crate::lock::types::Moment;

impl Queues {
    /// Sets when this queue is to be looked at; `None`: not any more.
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

    /// The next queue to look at, and when.
    #[must_use]
    pub fn first_recheck(&self) -> Option<(Moment, QueueId)> {
        self.rechecks.first_key_value().map(|(key, id)| (key.0, *id))
    }
}
