//! Clients that waited when this server stopped deciding, or was to grant nothing any more. They are told so a few at a
//! time, because there can be very many.
//!
//! All queues are set aside as they are, in one moment. What becomes of those who stood there is decided then, and only
//! telling them takes time. So nothing that happens meanwhile finds them: no lock is granted to them, no search for a
//! deadlock meets them, their time to wait does not end. They are told the same if the server decides again before the
//! last of them was told, or if its data set is replaced. A request that comes then stands in a new queue. Only a waiter
//! that leaves by itself is told nothing more.

use super::task_queue::Notes;
use crate::lock::effect::{Answer, Effects, WaiterId};
use crate::lock::queue::Queues;
use crate::lock::types::ClientId;

/// Queues that were set aside, and what the pump was to look at then.
pub(super) struct RejectedWaiters {
    queues: Queues,
    /// The answer that they get.
    answer: Answer,
    /// No queue is left before this place.
    place: usize,
    /// What is not done any more, as there is nothing to decide: its memory is given back in pieces, too.
    dropped: Notes,
}

impl RejectedWaiters {
    /// Every waiter in `queues` will get this answer.
    pub(super) const fn new(queues: Queues, answer: Answer, dropped: Notes) -> Self {
        Self { queues, answer, place: 0, dropped }
    }

    /// Returns true if nothing is left of it.
    pub(super) fn is_empty(&self) -> bool {
        self.queues.waiters() == 0 && self.dropped.is_empty()
    }

    /// Answers the next one, first come first in each queue, or forgets the next of what is dropped.
    pub(super) fn send_one(&mut self, fx: &mut Effects) {
        if let Some(waiter) = self.next() {
            if let Some(client) = self.take(waiter) {
                fx.answer(waiter, client, self.answer.clone());
            }
        } else {
            self.dropped.forget_some();
        }
    }

    /// The waiter that is answered next: the first of a queue.
    fn next(&mut self) -> Option<WaiterId> {
        let queue = self.queues.first_from(&mut self.place)?;
        Some(self.queues.first_entry(self.queues.head(queue)?))
    }

    /// Takes this one out. No other waiter is admitted for it.
    pub(super) fn take(&mut self, waiter: WaiterId) -> Option<ClientId> {
        let left = self.queues.leave(waiter);
        while self.queues.next_left().is_some() {}
        left?.request.client
    }

    /// Tells what is wrong with the queues, if anything is.
    pub(super) fn check(&self) -> Result<(), String> {
        self.queues.check()
    }
}
