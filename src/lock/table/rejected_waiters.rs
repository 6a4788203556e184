//! Waiters to reject after this server stopped deciding or granting. There can be very many, so they are answered a
//! few at a time.
//!
//! All queues are set aside as they are, in one moment. The answer of their waiters is final; only sending it takes
//! time. Until then no step can reach them: no grant, no search for deadlocks, no timeout. They get the same answer
//! even if the server decides again, or its data set is replaced, before the last one was answered. Later requests
//! join new queues. A waiter that leaves by itself gets no answer.

use super::task_queue::Notes;
use crate::lock::effect::{Answer, Effects, WaiterId};
use crate::lock::queue::Queues;
use crate::lock::types::ClientId;

/// Queues that were set aside, and the pump's tasks of that time.
pub(super) struct RejectedWaiters {
    queues: Queues,
    /// The answer to all of these waiters.
    answer: Answer,
    /// All queues before this place are empty.
    place: usize,
    /// Tasks that became void. Their memory is freed in pieces, too.
    dropped: Notes,
}

impl RejectedWaiters {
    /// Sets these queues aside. Every waiter in them gets this answer.
    pub(super) const fn new(queues: Queues, answer: Answer, dropped: Notes) -> Self {
        Self { queues, answer, place: 0, dropped }
    }

    /// Returns true if nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.queues.waiters() == 0 && self.dropped.is_empty()
    }

    /// Answers the next waiter, or frees the next dropped task.
    pub(super) fn send_one(&mut self, fx: &mut Effects) {
        if let Some(waiter) = self.next() {
            if let Some(client) = self.take(waiter) {
                fx.answer(waiter, client, self.answer.clone());
            }
        } else {
            self.dropped.forget_some();
        }
    }

    /// Returns the next waiter to answer: the first one of a queue.
    fn next(&mut self) -> Option<WaiterId> {
        let queue = self.queues.first_from(&mut self.place)?;
        Some(self.queues.first_entry(self.queues.head(queue)?))
    }

    /// Removes one waiter. Its removal admits no other.
    pub(super) fn take(&mut self, waiter: WaiterId) -> Option<ClientId> {
        let left = self.queues.leave(waiter);
        while self.queues.next_left().is_some() {}
        left?.request.client
    }

    /// Returns an error if the queues are inconsistent.
    pub(super) fn check(&self) -> Result<(), String> {
        self.queues.check()
    }
}
