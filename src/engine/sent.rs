//! What clients were granted in this turn of the event loop, for the case that the server does not send it.
//!
//! A connection that the server has found broken is closed at the end of a turn, and so is one whose user was deleted. A
//! client that is answered before that looks like any other, but its reply is dropped, and nobody says so. Then its
//! connection closes in the turn in which it was answered. Nobody can have read the reply by then, unless the client itself
//! asked the server to close the connection behind it.

use super::clients::Reply;
use crate::lock::effect::Answer;
use crate::lock::types::ClientId;

/// How many turns without a grant end the listening to turns.
const QUIET_TURNS: u32 = if cfg!(test) { 3 } else { 16 };

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Sent {
    replies: Vec<(ClientId, Reply)>,
    /// How many turns have begun since the last grant.
    turns: u32,
}

impl Sent {
    /// Whether a reply has to be kept till the next turn: it tells of a grant.
    pub const fn is_kept(reply: &Reply) -> bool {
        matches!(reply, Reply::Answer(Answer::Granted { .. }))
    }

    /// The server took this reply to this client.
    pub fn note(&mut self, client: ClientId, reply: Reply) {
        self.replies.push((client, reply));
        self.turns = 0;
    }

    /// What this client was granted. Once.
    pub fn take(&mut self, client: ClientId) -> Option<Reply> {
        let place = self.replies.iter().position(|(other, _)| *other == client)?;
        Some(self.replies.swap_remove(place).1)
    }

    /// The turn is over: nothing of it is left unsent.
    pub fn turn_begins(&mut self) {
        self.turns = self.turns.saturating_add(1);
        self.replies.clear();
    }

    /// Whether there was no grant for some turns.
    pub const fn is_quiet(&self) -> bool {
        self.turns >= QUIET_TURNS && self.replies.is_empty()
    }
}
