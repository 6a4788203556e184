//! What is undone if nobody is told of it.
//!
//! An owner may ask for its hold again while its first request waits for replicas. Then several requests wait for one
//! hold, in the order in which they came. The first has begun the hold, the others nothing: they rely on it. So a
//! request that fails passes on what it began to a later one. Where there is none, it is undone. A request that is
//! confirmed makes its owner's what it relies on. A request says nothing of what came after it.

use super::{Confirmations, WaitId};
use crate::lock::effect::{PendingGrant, UndoRecord};
use crate::lock::types::{LockKey, Token};
use crate::sabotage;

impl Confirmations {
    pub(super) fn forget_wait(&mut self, token: Token, id: WaitId) {
        if let Some(waits) = self.of_token.get_mut(&token) {
            waits.remove(&id);
            if waits.is_empty() {
                self.of_token.remove(&token);
            }
        }
    }

    /// The owner is told. So what this wait relies on, and an earlier one began, is not undone any more.
    pub fn confirmed(&mut self, id: WaitId) {
        for mut pending_grant in self.remove(id).into_iter().flat_map(|wait| wait.pending_grants) {
            for earlier in self.waits_of(&pending_grant).into_iter().take_while(|other| *other < id) {
                if let Some(other) = self.pending_grant_in(earlier, &pending_grant) {
                    pending_grant.undo.take_over(&mut other.undo);
                }
            }
        }
    }

    /// Ends a wait that tells nobody: it failed, or its client is gone. What it began is to be undone, unless a later
    /// request of the owner relies on it.
    pub fn leave(&mut self, id: WaitId) {
        for mut pending_grant in self.remove(id).into_iter().flat_map(|wait| wait.pending_grants) {
            let later = |other: &WaitId| *other > id && !sabotage::removes(sabotage::Rule::PassedOn);
            for later in self.waits_of(&pending_grant).into_iter().filter(later) {
                if let Some(heir) = self.pending_grant_in(later, &pending_grant) {
                    heir.undo.take_over(&mut pending_grant.undo);
                }
            }
            if !pending_grant.undo.is_nothing() {
                self.undo.push(pending_grant);
            }
        }
    }

    /// A hold was loaded here. One with its token may have begun here before, which has left since: with its slot, and
    /// has come back with it. Where it was meanwhile, its owner may have been told of it. So nothing of it is undone.
    pub fn came_back(&mut self, lock_key: LockKey<'_>, owner: &[u8], token: Token) {
        if self.is_over() {
            return;
        }
        let undo = UndoRecord { owner: owner.into(), ..UndoRecord::NOTHING };
        let hold = PendingGrant { lock_key: lock_key.to_owned(), token, lease_ms: u64::MAX, undo };
        for id in self.waits_of(&hold) {
            if let Some(pending_grant) = self.pending_grant_in(id, &hold) {
                pending_grant.undo = UndoRecord::NOTHING;
            }
        }
        self.undo.came_back(&hold);
    }

    /// The waits for holds with this token, in the order in which they began.
    fn waits_of(&self, pending_grant: &PendingGrant) -> Vec<WaitId> {
        self.of_token.get(&pending_grant.token).into_iter().flatten().copied().collect()
    }

    /// The grant of this hold in another wait, if it is about that hold.
    fn pending_grant_in(&mut self, id: WaitId, same: &PendingGrant) -> Option<&mut PendingGrant> {
        self.waits.get_mut(&id)?.pending_grants.iter_mut().find(|other| other.is_of_hold(same))
    }
}
