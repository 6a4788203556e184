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
pub struct Sent(Vec<(ClientId, Reply)>);

impl Sent {
    /// The server took this reply to this client.
    pub fn note(&mut self, client: ClientId, reply: Reply) {
        if matches!(reply, Reply::Answer(Answer::Granted { .. })) {
            self.0.push((client, reply));
        }
    }

    /// What this client was granted. Once.
    pub fn take(&mut self, client: ClientId) -> Option<Reply> {
        let place = self.0.iter().position(|(other, _)| *other == client)?;
        Some(self.0.swap_remove(place).1)
    }

    /// The turn is over: nothing of it is left unsent.
    pub fn take_all(&mut self) -> impl Iterator<Item = Reply> {
        self.0.drain(..).map(|(_, reply)| reply)
    }
}
