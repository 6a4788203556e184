//! Requests for several locks: a place in each line, joined and left in one step.

use super::{Party, Queues, Request};
use crate::lock::effect::WaiterId;
use crate::lock::types::{ClientId, Moment, Place};

impl Queues {
    /// Puts a request at the end of the lines at all of these places. Returns the one that stands for all.
    pub fn join_all(&mut self, places: &[Place<'_>], request: &Request) -> Option<WaiterId> {
        let party = self.parties.insert(Party {
            stands: Vec::with_capacity(places.len()),
            held_up_in: None,
            is_noted: false,
        });
        for (number, &place) in places.iter().enumerate() {
            let queue = self.open(place, request.mode);
            let ahead = self.queues.get(queue).and_then(|queue| queue.tail);
            // One answer, one timeout: the first one's.
            let until = request.until.filter(|_| number == 0);
            let stand = self.insert(queue, Request { until, ..request.clone() }, Some(party), ahead, None);
            self.enter_rank(stand, None);
            self.parties.get_mut(party)?.stands.push(stand);
        }
        self.parties.get(party)?.stands.first().copied()
    }

    /// Lets a newer request of the same owner for the same locks take over the places in all lines of the one that
    /// `old` stands for. Returns the connection that waited, and the number that stands for all now.
    pub fn take_over_all(
        &mut self,
        old: WaiterId,
        client: ClientId,
        until: Option<Moment>,
        lease_ms: u64,
    ) -> Option<(Option<ClientId>, WaiterId)> {
        let lead = self.waiters.get(old)?;
        let (party, before) = (lead.party?, lead.request.client);
        for stand in self.parties.get(party)?.stands.clone() {
            let request = &mut self.waiters.get_mut(stand)?.request;
            (request.client, request.lease_ms) = (Some(client), lease_ms);
        }
        // The one that stands for all gets another number, as the outside knows the old connection by it.
        let (queue, ahead, mut request) =
            self.waiters.get(old).map(|w| (w.queue, w.ahead, w.request.clone()))?;
        request.until = until;
        let new = self.insert(queue, request, Some(party), ahead, Some(old));
        self.enter_rank(new, Some(old));
        self.take_out(old)?;
        let party = self.parties.get_mut(party)?;
        *party.stands.first_mut()? = new;
        // What was asked of the pump names the old one.
        party.is_noted = false;
        Some((before, new))
    }
}
