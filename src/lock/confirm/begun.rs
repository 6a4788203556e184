//! What began in this turn of the event loop, until a client waits to be told of it.
//!
//! A step may grant two requests of one owner, the second under a new token. The client of the first is told the token
//! that its request was granted under. What it waits for, and what is to be undone, is the hold as it goes on.

use std::collections::HashMap;

use crate::lock::effect::{PendingGrant, UndoRecord};
use crate::lock::types::{LockKeyBuf, Token};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Begun {
    /// Each with the token that its client is told.
    all: Vec<(Token, PendingGrant)>,
    /// The next token of a hold that went on in this turn, by its lock and the token that it had. No hold has a token
    /// that is looked up here, so no token leads back to itself.
    went_on: HashMap<(LockKeyBuf, Token), Token>,
}

impl Begun {
    /// A hold begins, or goes on. What began of it before, and nobody waits for yet, goes on with it.
    pub(super) fn note(&mut self, pending_grant: PendingGrant) {
        let token = pending_grant.token;
        // A hold has this token from here on: one that was raised to it, or that has it again.
        if !self.went_on.is_empty() {
            self.went_on.remove(&(pending_grant.lock_key.clone(), token));
        }
        if let Some(was) = pending_grant.was.filter(|&was| was != token) {
            let before = PendingGrant { token: was, ..pending_grant.clone() };
            let earlier = self.all.iter_mut().map(|(_, earlier)| earlier);
            earlier.filter(|earlier| earlier.is_of_hold(&before)).for_each(|earlier| earlier.token = token);
            self.went_on.insert((before.lock_key, was), token);
        }
        self.all.push((token, pending_grant));
    }

    /// What a client that is told of this token has here, and what of it is to be undone if it is not told.
    pub(super) fn take(&mut self, lock_key: LockKeyBuf, token: Token) -> PendingGrant {
        let is_it = |(told, begun): &(Token, PendingGrant)| *told == token && begun.lock_key == lock_key;
        if let Some(begun) = self.all.iter().position(is_it) {
            return self.all.swap_remove(begun).1;
        }
        let mut of_hold = (lock_key, token);
        while let Some(next) = self.went_on.get(&of_hold) {
            of_hold.1 = *next;
        }
        let (lock_key, token) = of_hold;
        PendingGrant { lock_key, token, was: None, lease_ms: u64::MAX, undo: UndoRecord::NOTHING }
    }

    /// The turn is over.
    pub(super) fn forget(&mut self) {
        self.all.clear();
        if !self.went_on.is_empty() {
            self.went_on = HashMap::new();
        }
    }
}
