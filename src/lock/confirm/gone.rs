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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_there_until_the_last_of_each_kind_is_dropped() {
        let token = |number: u64| Token::new(number + 1).expect("valid");
        for (waits, tokens, undos) in [(3, 0, 0), (0, 3, 0), (0, 0, 3), (1, 2, 3), (0, 2, 2)] {
            let mut gone = Gone::new(
                (0..waits).map(|number| (number, ())).collect(),
                (0..tokens).map(|number| (token(number), BTreeSet::new())).collect(),
                (0..undos).map(|number| (token(number), Vec::new())).collect(),
            );
            for number in 0..waits.max(tokens).max(undos) {
                assert!(!gone.is_empty(), "{number} of {waits}, {tokens} and {undos}");
                assert_eq!(gone.drop_one(), (number < waits).then_some(number));
            }
            assert!(gone.is_empty());
        }
    }
}
