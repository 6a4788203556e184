//! What is over as a whole, and is taken apart a little at a time, because it can be very much.

use std::collections::{BTreeMap, BTreeSet, HashMap, btree_map, hash_map};

use crate::lock::effect::PendingGrant;
use crate::lock::types::Token;

/// Waits `W` by their numbers `K`, and what else was kept of them.
#[derive(Debug)]
pub(super) struct Gone<K, W> {
    waits: btree_map::IntoIter<K, W>,
    of_token: hash_map::IntoIter<Token, BTreeSet<K>>,
    undo: hash_map::IntoIter<Token, Vec<PendingGrant>>,
}

impl<K, W> Gone<K, W> {
    /// Takes what is over, to give it back a piece at a time.
    pub(super) fn new(
        waits: BTreeMap<K, W>,
        of_token: HashMap<Token, BTreeSet<K>>,
        undo: HashMap<Token, Vec<PendingGrant>>,
    ) -> Self {
        Self { waits: waits.into_iter(), of_token: of_token.into_iter(), undo: undo.into_iter() }
    }

    /// Whether nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.waits.len() + self.of_token.len() + self.undo.len() == 0
    }

    /// Drops the next of it. Returns the wait, if it was one.
    pub(super) fn drop_one(&mut self) -> Option<K> {
        let (wait, _, _) = (self.waits.next(), self.of_token.next(), self.undo.next());
        wait.map(|(id, _)| id)
    }
}
