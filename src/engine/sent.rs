//! What clients were granted in this turn of the event loop, for the case that the server does not send it.
//!
//! A connection that the server has found broken is closed at the end of a turn, and so is one whose user was deleted. A
//! client that is answered before that looks like any other, but its reply is dropped, and nobody says so. Then its
//! connection closes in the turn in which it was answered. Nobody can have read the reply by then, unless the client itself
//! asked the server to close the connection behind it.

use super::clients::Reply;
use crate::lock::effect::Answer;
use crate::lock::types::ClientId;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Sent {
    /// The turn that it is about.
    turn: u64,
    grants: Vec<(ClientId, Reply)>,
}

impl Sent {
    /// In this turn, the server took this reply to this client.
    pub fn note(&mut self, turn: u64, client: ClientId, reply: Reply) {
        if self.turn != turn {
            self.turn = turn;
            self.grants.clear();
        }
        if matches!(reply, Reply::Answer(Answer::Granted { .. })) {
            self.grants.push((client, reply));
        }
    }

    /// What this client was granted in this turn. Once.
    pub fn take(&mut self, turn: u64, client: ClientId) -> Option<Reply> {
        let place = self.grants.iter().position(|(other, _)| *other == client);
        let place = place.filter(|_| self.turn == turn)?;
        Some(self.grants.swap_remove(place).1)
    }
}
