//! What goes into the steps of a set of [locks](super), and comes out.

use crate::lock::types::{Binding, ClientId, Token};

/// A hold about to begin.
#[derive(Clone, Copy, Debug)]
pub struct NewHold<'a> {
    /// The owner, 1 to 256 bytes.
    pub owner: &'a [u8],
    /// The fencing token.
    pub token: Token,
    /// For how long.
    pub lease_ms: u64,
    /// The connection that acquired it, where known.
    pub client: Option<ClientId>,
    /// What binds it to that connection.
    pub binding: Binding,
}

/// What a hold was that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Its fencing token.
    pub token: Token,
    /// How long it lasted, in milliseconds.
    pub held_ms: u64,
}
