//! What clients were told of their holds in this turn of the event loop, for the case that the server does not send it.
//!
//! A connection that the server has found broken is closed at the end of a turn, and so is one whose user was
//! deleted. A client that is answered before that looks like any other, but its reply is dropped, and nobody says so.
//! Then its connection closes in the turn in which it was answered. Nobody can have read the reply by then, unless
//! the client itself asked the server to close the connection behind it.

use super::blocked_clients::Reply;
use crate::lock::tuning::Bound;
use crate::lock::types::ClientId;

/// The number of turns without a grant that ends the subscription to turns.
const QUIET_TURNS: Bound = Bound::of(16, 3);

/// See the [module](self).
#[derive(Debug, Default)]
pub struct UnflushedReplies {
    replies: Vec<(ClientId, Reply)>,
    /// The number of turns since the last grant.
    turns: u32,
}

impl UnflushedReplies {
    /// The server took this reply to this client.
    pub fn note(&mut self, client: ClientId, reply: Reply) {
        self.replies.push((client, reply));
        self.turns = 0;
    }

    /// A reply that this client was sent. Each once.
    pub fn take(&mut self, client: ClientId) -> Option<Reply> {
        let place = self.replies.iter().position(|(other, _)| *other == client)?;
        Some(self.replies.swap_remove(place).1)
    }

    /// The turn has ended: nothing of it is left unsent. Returns one of the replies, if any is left.
    pub fn next_sent(&mut self) -> Option<Reply> {
        self.replies.pop().map(|(_, reply)| reply)
    }

    /// A turn begins.
    pub fn turn_begins(&mut self) {
        self.turns = self.turns.saturating_add(1);
    }

    /// Returns true if there was no grant for some turns.
    pub fn is_quiet(&self) -> bool {
        self.turns as usize >= QUIET_TURNS.get() && self.replies.is_empty()
    }
}
