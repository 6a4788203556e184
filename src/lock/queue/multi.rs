//! Requests for several locks: an entry in each queue, joined and left in one step.

use super::{Multi, Queues, Request};
use crate::lock::effect::WaiterId;
use crate::lock::types::{ClientId, LockKey, Moment};

impl Queues {
    /// Puts a request at the end of the queues at all of these locks. Returns the entry that represents the request.
    pub fn join_all(&mut self, lock_keys: &[LockKey<'_>], request: &Request) -> Option<WaiterId> {
        let multi = self.multis.insert(Multi {
            entries: Vec::with_capacity(lock_keys.len()),
            held_up_in: None,
            is_noted: false,
        });
        for (number, &lock_key) in lock_keys.iter().enumerate() {
            let queue = self.open(lock_key, request.mode);
            let ahead = self.queues.get(queue).and_then(|queue| queue.tail);
            // Only the first entry has a timeout, and is answered.
            let until = request.until.filter(|_| number == 0);
            let entry = self.insert(queue, Request { until, ..request.clone() }, Some(multi), ahead, None);
            self.enter_rank(entry, None);
            self.multis.get_mut(multi)?.entries.push(entry);
        }
        self.multis.get(multi)?.entries.first().copied()
    }

    /// Replaces the request with the first entry `old`, in all its queues, by a newer one of the same owner for the
    /// same locks. Returns the connection that waited, and the number of the new first entry.
    pub fn take_over_all(
        &mut self,
        old: WaiterId,
        client: ClientId,
        until: Option<Moment>,
        lease_ms: u64,
    ) -> Option<(Option<ClientId>, WaiterId)> {
        let first_entry = self.waiters.get(old)?;
        let (multi, before) = (first_entry.multi?, first_entry.request.client);
        for entry in self.multis.get(multi)?.entries.clone() {
            let request = &mut self.waiters.get_mut(entry)?.request;
            (request.client, request.lease_ms) = (Some(client), lease_ms);
        }
        // The first entry gets another number, because the old connection is known by the old one.
        let (queue, ahead, mut request) =
            self.waiters.get(old).map(|w| (w.queue, w.ahead, w.request.clone()))?;
        request.until = until;
        let new = self.insert(queue, request, Some(multi), ahead, Some(old));
        self.enter_rank(new, Some(old));
        self.take_out(old)?;
        let multi = self.multis.get_mut(multi)?;
        *multi.entries.first_mut()? = new;
        // The notes for the pump name the old one.
        multi.is_noted = false;
        Some((before, new))
    }
}
