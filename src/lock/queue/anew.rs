//! Requests in a queue whose owners may hold the lock, because it was loaded.

use super::{QueueId, Queues, Waiter, WaiterId};
use crate::lock::types::Mode;

/// What becomes of a request whose owner holds the lock: it waits no longer, or as an upgrade.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Anew {
    /// The hold is what was asked for.
    Same,
    /// The owner holds alone, and asked for SHARED.
    Downgrade,
    /// The owner holds SHARED, and asked for the whole lock.
    Upgrade,
    /// The lock is held in this way, which excludes the request.
    OtherKind(Mode),
}

impl Waiter {
    /// What becomes of this request, whose owner holds the lock in this way. `None`: it goes on waiting as it does.
    #[must_use]
    pub fn anew(&self, held_as: Mode) -> Option<Anew> {
        let request = &self.request;
        if self.multi.is_some() {
            return None;
        }
        match (held_as, request.mode) {
            (held_as, mode) if held_as == mode => Some(Anew::Same),
            // A reservation asks for nothing yet: the next call of its owner is decided by itself.
            _ if request.client.is_none() => None,
            (Mode::Exclusive, Mode::Shared) => Some(Anew::Downgrade),
            (Mode::Shared, Mode::Exclusive) if request.is_upgrade => None,
            (Mode::Shared, Mode::Exclusive) => Some(Anew::Upgrade),
            _ => Some(Anew::OtherKind(held_as)),
        }
    }
}

impl Queues {
    /// The last request in this queue that is still to be decided anew ([`Waiter::anew`]). The requests ahead of it are
    /// next. A newcomer was decided when it came.
    #[must_use]
    pub fn undecided(&self, queue: QueueId) -> Option<WaiterId> {
        self.queues.get(queue)?.undecided
    }

    /// Notes that this request and all ahead of it are to be decided anew. `None`: no request is.
    pub fn set_undecided(&mut self, queue: QueueId, from: Option<WaiterId>) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.undecided = from;
        }
    }

    /// The last one in this queue.
    #[must_use]
    pub fn tail(&self, queue: QueueId) -> Option<WaiterId> {
        self.queues.get(queue)?.tail
    }

    /// Moves a request ahead of everybody: it is one of a holder that wants to hold alone.
    pub fn move_to_head(&mut self, id: WaiterId) {
        self.leave_rank(id);
        let Some(waiter) = self.waiters.get_mut(id) else {
            return;
        };
        waiter.request.is_upgrade = true;
        let (queue, ahead, behind) = (waiter.queue, waiter.ahead, waiter.behind);
        self.link(queue, ahead, behind);
        let head = self.head(queue);
        self.link(queue, None, Some(id));
        self.link(queue, Some(id), head);
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.is_plain = false;
        }
        self.enter_rank(id, None);
    }
}
