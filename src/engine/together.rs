//! Whether the keys of one command can be used together, on a node of a cluster.
//!
//! Of some commands the server knows the first key alone. It has seen to the slot of that one. What it asks of several
//! keys is asked here.

use super::server::Server;
use crate::command::error::{CROSS_SLOT, SLOT_IS_MOVING};
use crate::command::slot;

/// Why these cannot be used together; nothing if they can.
pub fn refusal<S: Server>(server: &S, names: &[S::Name<'_>]) -> Option<&'static str> {
    if names.len() < 2 || !server.shared().is_cluster() {
        None
    } else if !slot::are_of_one(names.iter().map(AsRef::as_ref)) {
        Some(CROSS_SLOT)
    } else {
        (!server.has_all(names)).then_some(SLOT_IS_MOVING)
    }
}
