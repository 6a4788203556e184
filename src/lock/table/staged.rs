//! A data set that is staged beside the one that is served.
//!
//! A replica that loads with `repl-diskless-load swapdb` has two keyspaces for a while. Readers may still see the old
//! one. The new one takes its place as a whole or is dropped as a whole. So the table has two sets of locks and two
//! clocks of tokens. Those that are served stay where they are, and everything in the table goes on working on them
//! alone. What is loaded goes into those beside. A number says of which set it is, and finds nothing in any other.
//! The server frees values of a data set that is gone much later, in any order. The pump gives back its memory, a few
//! locks at a time.
//!
//! Nothing is decided meanwhile. When it is over, nobody is told that locks were broken: on a replica nothing was.

use super::state::*;

impl Table {
    /// A data set is about to be loaded, not instead of the one that is served but beside it.
    pub fn begin_staged(&mut self) {
        self.abort_staged();
        self.epochs = self.epochs.wrapping_add(1);
        let staged = Staged { locks: self.locks.staged(self.epochs), clock: self.clock.staged() };
        self.staged = Some(Box::new(staged));
    }

    /// Whether a data set is being loaded beside the one that is served.
    #[must_use]
    pub const fn has_staged(&self) -> bool {
        self.staged.is_some()
    }

    /// The data set beside was loaded and is served from here on. The old one is gone with all its holds.
    pub fn complete_staged(&mut self) {
        let Some(staged) = self.staged.take() else {
            return;
        };
        let Staged { locks, clock } = *staged;
        let gone = std::mem::replace(&mut self.locks, locks);
        self.locks.absorb(&gone);
        let old = std::mem::replace(&mut self.clock, clock);
        self.clock.replace(&old);
        self.epochs_then = self.epochs;
        // No queue knows any of the new locks.
        self.forget_locks_of_queues(|_| true);
        self.outbox.push_gone(gone, None);
    }

    /// The data set beside could not be loaded. All is as it was before, only that no token of it is minted again.
    pub fn abort_staged(&mut self) {
        if let Some(staged) = self.staged.take() {
            let Staged { locks, clock } = *staged;
            self.locks.absorb(&locks);
            self.clock.absorb(&clock);
            // None of its locks was detached: what is to be published concerns those that are served.
            self.outbox.push_gone(locks, None);
        }
    }

    /// The clock of tokens of the data set that is being loaded, if there is one, or else the only one.
    pub fn loaded_clock(&mut self) -> &mut TokenClock {
        match &mut self.staged {
            Some(staged) => &mut staged.clock,
            None => &mut self.clock,
        }
    }

    /// A data set begins to load, beside another one or instead of it.
    pub fn begin_load(&mut self) {
        if !self.has_staged() {
            self.drop_what_is_loaded_anew();
        }
        self.loaded_clock().begin_load();
    }

    /// The set of locks that lock `id` belongs to.
    #[inline]
    pub(super) fn locks_of(&self, id: LockId) -> &Locks {
        match &self.staged {
            Some(staged) if staged.locks.is_own(id) => &staged.locks,
            _ => &self.locks,
        }
    }

    /// Calls `act` for a table that has in its place the locks that `id` belongs to: its own, or others that are loaded
    /// beside them.
    #[inline(always)]
    pub(super) fn among_its_own<R>(&mut self, id: LockId, act: impl Fn(&mut Self) -> R) -> R {
        // The usual case.
        if self.staged.is_none() { act(self) } else { self.among_two(id, act) }
    }

    #[cold]
    #[inline(never)]
    fn among_two<R>(&mut self, id: LockId, act: impl Fn(&mut Self) -> R) -> R {
        if self.staged.as_ref().is_some_and(|staged| staged.locks.is_own(id)) {
            self.within_staged(act)
        } else {
            act(self)
        }
    }

    /// Does something in the data set that is being loaded beside, if there is one, or else in the only one.
    #[cold]
    #[inline(never)]
    pub(super) fn within_staged<R>(&mut self, act: impl FnOnce(&mut Self) -> R) -> R {
        self.change_places();
        let result = act(self);
        self.change_places();
        result
    }

    fn change_places(&mut self) {
        if let Some(staged) = &mut self.staged {
            std::mem::swap(&mut self.locks, &mut staged.locks);
            std::mem::swap(&mut self.clock, &mut staged.clock);
        }
    }

    /// Keeps those of these numbers that may still stand for a lock.
    pub fn keep_known(&self, numbers: &mut Vec<LockId>) {
        numbers.retain(|&id| self.locks_of(id).may_know(id));
    }

    /// Tells what is wrong with what is loaded beside, if anything is.
    pub(super) fn check_staged(&self) -> Result<(), String> {
        self.staged.as_ref().map_or(Ok(()), |staged| staged.locks.check())
    }
}
