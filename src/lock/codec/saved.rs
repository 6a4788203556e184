//! What files, payloads and records say of a lock.

use crate::lock::types::{Binding, Mode, OwnerBuf, Token};

/// A hold on its way between servers: its lease is what was left of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SavedHold {
    /// The owner that holds.
    pub owner: OwnerBuf,
    /// The fencing token.
    pub token: Token,
    /// What was left of the lease.
    pub left_ms: u64,
    /// How many releases it takes.
    pub count: u32,
    /// What bound it to its connection.
    pub binding: Binding,
}

/// A lock on its way between servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SavedLock {
    /// How it is held.
    pub mode: Mode,
    /// By whom, in the order of their tokens; never empty.
    pub holds: Vec<SavedHold>,
}
