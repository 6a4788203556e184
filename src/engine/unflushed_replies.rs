//! Replies of this turn of the event loop that name holds, in case the server does not send them.
//!
//! At the end of a turn, the server closes connections that it has found broken, and those of deleted users. A client
//! that is answered before that looks like any other, but its reply is dropped without notice. Its connection then
//! closes in the same turn. Only in a few cases can a client have read the reply by then: see `has_dropped_reply` of
//! the server.

use super::blocked_clients::Reply;
use crate::lock::tuning::Bound;
use crate::lock::types::{ClientId, Moment};

/// The number of turns without a grant after which the subscription to turns ends.
const QUIET_TURNS: Bound = Bound::of(16, 3);

/// See the [module](self).
#[derive(Debug, Default)]
pub struct UnflushedReplies {
    /// With each, when the server accepted it.
    replies: Vec<(ClientId, Reply, Moment)>,
    /// The number of turns since the last grant.
    turns: u32,
}

impl UnflushedReplies {
    /// Records a reply that the server accepted for this client.
    pub fn note(&mut self, client: ClientId, reply: Reply, now: Moment) {
        self.replies.push((client, reply, now));
        self.turns = 0;
    }

    /// Takes out a reply to this client, and when the server accepted it.
    pub fn take(&mut self, client: ClientId) -> Option<(Reply, Moment)> {
        let place = self.replies.iter().position(|(other, ..)| *other == client)?;
        let (_, reply, since) = self.replies.swap_remove(place);
        Some((reply, since))
    }

    /// Takes out a reply of a turn that has ended: all of them were sent.
    pub fn next_sent(&mut self) -> Option<Reply> {
        self.replies.pop().map(|(_, reply, _)| reply)
    }

    /// Begins a turn.
    pub fn turn_begins(&mut self) {
        self.turns = self.turns.saturating_add(1);
    }

    /// Returns true if there was no grant for some turns.
    pub fn is_quiet(&self) -> bool {
        self.turns as usize >= QUIET_TURNS.get() && self.replies.is_empty()
    }
}
