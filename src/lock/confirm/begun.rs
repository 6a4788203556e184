//! What began in this turn of the event loop, until a client waits to be told of it.

use crate::lock::effect::{PendingGrant, UndoRecord};
use crate::lock::types::{LockKeyBuf, Token};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Begun(pub(super) Vec<PendingGrant>);

impl Begun {
    /// What a client that is told of this token has here, and what of it is to be undone if it is not told.
    pub(super) fn take(&mut self, lock_key: LockKeyBuf, token: Token) -> PendingGrant {
        let is_it = |begun: &PendingGrant| begun.token == token && begun.lock_key == lock_key;
        match self.0.iter().position(is_it) {
            Some(begun) => self.0.swap_remove(begun),
            None => PendingGrant { lock_key, token, lease_ms: u64::MAX, undo: UndoRecord::NOTHING },
        }
    }
}
