//! Requests in a queue whose owners may hold the lock, because it was loaded.

use super::{QueueId, Queues, WaiterId};

impl Queues {
    /// The last one in this queue of which that is to be found out. Those ahead of it are next. A newcomer was asked.
    #[must_use]
    pub fn undecided(&self, queue: QueueId) -> Option<WaiterId> {
        self.queues.get(queue)?.undecided
    }

    /// That is to be found out of this one and of those ahead of it. `None`: of nobody.
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

    /// This request is one of a holder that wants to hold alone, and stands ahead of everybody from here on.
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
