//! What began and is to be undone, as nobody is told of it.

use std::collections::{HashMap, VecDeque};

use crate::lock::effect::{PendingGrant, UndoRecord};
use crate::lock::types::{Moment, Token};

impl UndoRecord {
    /// Takes over what another request began, as far as this one relies on it. Returns whether anything is left there.
    pub(super) fn take_over(&mut self, other: &mut Self) -> bool {
        if self.owner.is_empty() {
            self.owner.clone_from(&other.owner);
        }
        if !self.counts {
            self.counts = std::mem::take(&mut other.counts);
        }
        other.counts
    }
}

impl PendingGrant {
    /// Whether both are about the same hold. Another owner's token may have been raised to just this number; a request
    /// that began nothing does not always know its owner.
    pub(super) fn is_of_hold(&self, other: &Self) -> bool {
        let (owner, others) = (&self.undo.owner, &other.undo.owner);
        (self.token, &self.lock_key) == (other.token, &other.lock_key)
            && (owner == others || owner.is_empty() || others.is_empty())
    }
}

/// What is to be undone, in the order in which that was found.
#[derive(Debug, Default)]
pub(super) struct Undos {
    pub(super) order: VecDeque<Token>,
    /// What the server could not undo, in the order in which it is tried again.
    put_off: VecDeque<(Moment, Token)>,
    pub(super) of_token: HashMap<Token, Vec<PendingGrant>>,
}

impl Undos {
    pub(super) fn is_empty(&self) -> bool {
        self.of_token.is_empty()
    }

    /// What is to be undone of the hold with this token.
    #[cfg(test)]
    pub(super) fn with(&self, token: Token) -> impl Iterator<Item = &PendingGrant> {
        self.of_token.get(&token).into_iter().flatten()
    }

    pub(super) fn push(&mut self, pending_grant: PendingGrant) {
        self.order.push_back(pending_grant.token);
        self.of_token.entry(pending_grant.token).or_default().push(pending_grant);
    }

    /// Puts off a grant that cannot be undone now, and perhaps can at this moment.
    pub(super) fn put_off(&mut self, pending_grant: PendingGrant, at: Moment) {
        self.put_off.push_back((at, pending_grant.token));
        self.of_token.entry(pending_grant.token).or_default().push(pending_grant);
    }

    /// Whether there is any that is not put off.
    pub(super) fn has_some_now(&self) -> bool {
        !self.is_empty() && !self.order.is_empty()
    }

    /// When there is something to undo again; at once, if that is not put off.
    pub(super) fn next_at(&self) -> Option<Moment> {
        if self.has_some_now() {
            return Some(Moment::default());
        }
        self.put_off.front().filter(|_| !self.is_empty()).map(|&(at, _)| at)
    }

    pub(super) fn pop(&mut self, now: Moment) -> Option<PendingGrant> {
        while let Some(&(_, token)) = self.put_off.front().filter(|(at, _)| *at <= now) {
            self.put_off.pop_front();
            self.order.push_back(token);
        }
        while let Some(token) = self.order.pop_front() {
            if let Some(pending_grants) = self.of_token.get_mut(&token) {
                let pending_grant = pending_grants.remove(0);
                if pending_grants.is_empty() {
                    self.of_token.remove(&token);
                }
                return Some(pending_grant);
            }
        }
        None
    }

    /// A request waits for this hold again: what was about to be undone, and the request relies on, is the request's.
    pub(super) fn pass_on(&mut self, heir: &mut PendingGrant) {
        if self.is_empty() {
            return;
        }
        let of_hold = heir.clone();
        self.change(&of_hold, |left| heir.undo.take_over(&mut left.undo));
    }

    /// Nothing of this hold is undone any more.
    pub(super) fn came_back(&mut self, hold: &PendingGrant) {
        self.change(hold, |_| false);
    }

    /// Does this to all that is to be undone of a hold, and keeps what it says is left.
    fn change(&mut self, of_hold: &PendingGrant, mut is_left: impl FnMut(&mut PendingGrant) -> bool) {
        if let Some(pending_grants) = self.of_token.get_mut(&of_hold.token) {
            pending_grants.retain_mut(|left| !left.is_of_hold(of_hold) || is_left(left));
            if pending_grants.is_empty() {
                self.of_token.remove(&of_hold.token);
            }
        }
        if self.of_token.is_empty() {
            self.order.clear();
            self.put_off.clear();
        }
    }
}
