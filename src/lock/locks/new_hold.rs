//! The arguments and results of the steps of a set of [locks](super).

use crate::lock::types::{Binding, ClientId, Token};

/// A hold about to begin.
#[derive(Clone, Copy, Debug)]
pub struct NewHold<'a> {
    /// The owner, 1 to 256 bytes.
    pub owner: &'a [u8],
    /// The fencing token.
    pub token: Token,
    /// The lease.
    pub lease_ms: u64,
    /// The connection that acquired it, if known.
    pub client: Option<ClientId>,
    /// Its binding to that connection.
    pub binding: Binding,
}

/// A hold that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Its fencing token.
    pub token: Token,
    /// How long it was held, in milliseconds.
    pub held_ms: u64,
}
