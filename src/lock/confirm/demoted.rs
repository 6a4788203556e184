//! The waits that are pending when this server stops deciding: all of them end in one step.

use super::{Confirmations, WaitId};

impl Confirmations {
    /// Ends all waits: this server decides nothing any more. They are taken apart a little at a time, because there can be
    /// very many.
    pub fn drop_all(&mut self) {
        self.deadlines.clear();
        self.enough.clear();
        self.hopeless.clear();
        self.has_late = false;
        self.primary_since = None;
        self.gone_up_to = WaitId(self.last);
        let waits = std::mem::take(&mut self.waits);
        if !waits.is_empty() {
            self.gone.push_back(waits.into_iter());
        }
        self.forget_replicas();
    }

    /// Returns true if waits of the time before this server stopped deciding are left.
    #[must_use]
    pub fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Returns whether this wait ended because this server stopped deciding.
    #[must_use]
    pub fn is_gone(&self, wait: WaitId) -> bool {
        wait <= self.gone_up_to
    }

    /// Removes the next of the waits of that time.
    pub fn take_gone(&mut self) -> Option<WaitId> {
        let gone = self.gone.front_mut()?;
        let wait = gone.next();
        if gone.len() == 0 {
            self.gone.pop_front();
        }
        wait.map(|(id, _)| id)
    }
}
