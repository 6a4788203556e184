//! What tests look at.

use super::{Confirmations, WaitId};
use crate::lock::effect::PendingGrant;

impl Confirmations {
    /// All that is to be undone, in its order.
    pub fn to_undo(&self) -> Vec<PendingGrant> {
        let mut left = self.undo.of_token.clone();
        let next = |token| left.get_mut(token).filter(|all| !all.is_empty()).map(|all| all.remove(0));
        self.undo.order.iter().filter_map(next).collect()
    }

    /// What somebody waits to have confirmed.
    pub fn pending_grants(&self, wait: WaitId) -> &[PendingGrant] {
        self.waits.get(&wait).map_or(&[], |wait| &wait.pending_grants)
    }
}
