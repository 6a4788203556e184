//! What waits when this server stops deciding: all of it is over in one step.

use super::gone::Gone;
use super::{Confirmations, WaitId};

impl Confirmations {
    /// Ends all waits, and undoes nothing: this server decides nothing any more.
    pub fn drop_all(&mut self) {
        self.deadlines.clear();
        self.enough.clear();
        self.hopeless.clear();
        self.has_late = false;
        self.begun.0.clear();
        self.primary_since = None;
        self.gone_up_to = WaitId(self.last);
        let (waits, of_token) = (std::mem::take(&mut self.waits), std::mem::take(&mut self.of_token));
        let gone = Gone::new(waits, of_token, std::mem::take(&mut self.undo).of_token);
        if !gone.is_empty() {
            self.gone.push_back(gone);
        }
        self.forget_replicas();
    }

    /// Whether there is anything left of what waited when this server stopped deciding.
    #[must_use]
    pub fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Whether this wait is over because this server stopped deciding.
    #[must_use]
    pub fn is_gone(&self, wait: WaitId) -> bool {
        wait <= self.gone_up_to
    }

    /// Takes out the next of what waited then. Returns the wait, if it was one.
    pub fn take_gone(&mut self) -> Option<WaitId> {
        let gone = self.gone.front_mut()?;
        let wait = gone.drop_one();
        if gone.is_empty() {
            self.gone.pop_front();
        }
        wait
    }
}
