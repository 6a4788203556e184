//! A data set that is loaded beside the one that is served.
//!
//! A replica that loads so (`repl-diskless-load swapdb`) has two keyspaces for a while: the old one, which readers may
//! still see, and the new one, which takes its place as a whole or is dropped as a whole. So the table has two sets of
//! locks and two clocks of tokens. Those that are served stay where they are, and everything in the table goes on
//! working on them alone; what is loaded goes into those beside. A number says of which set it is, and finds nothing
//! in any other: values of a data set that is gone are freed by the server much later, in any order.
//!
//! Nothing is decided meanwhile. When it is over, nobody is told that locks were broken: on a replica nothing was.

use super::state::*;

impl Table {
    /// A data set is about to be loaded, not instead of the one that is served but beside it.
    pub fn begin_beside(&mut self) {
        self.abort_beside();
        self.sets = self.sets.wrapping_add(1);
        let beside = Beside { locks: self.locks.beside(self.sets), clock: self.clock.beside() };
        self.beside = Some(Box::new(beside));
    }

    /// Whether a data set is being loaded beside the one that is served.
    #[must_use]
    pub const fn has_beside(&self) -> bool {
        self.beside.is_some()
    }

    /// The data set beside was loaded and is served from here on. The old one is gone with all its holds, and is
    /// returned for the caller to drop: that takes time.
    #[must_use]
    pub fn complete_beside(&mut self) -> Option<Gone> {
        let Beside { locks, clock } = *self.beside.take()?;
        let gone = std::mem::replace(&mut self.locks, locks);
        self.locks.outlive(&gone);
        let old = std::mem::replace(&mut self.clock, clock);
        self.clock.replace(&old);
        // No line knows any of the new locks.
        self.forget_locks_of_lines(|_| true);
        Some(Gone(gone))
    }

    /// The data set beside could not be loaded. All is as it was before, only that no token of it is minted again.
    pub fn abort_beside(&mut self) -> Option<Gone> {
        let Beside { locks, clock } = *self.beside.take()?;
        self.locks.outlive(&locks);
        self.clock.outlive(&clock);
        Some(Gone(locks))
    }

    /// The clock of tokens of the data set that is being loaded, if there is one, or else the only one.
    pub fn loaded_clock(&mut self) -> &mut TokenClock {
        match &mut self.beside {
            Some(beside) => &mut beside.clock,
            None => &mut self.clock,
        }
    }

    /// A data set begins to load, beside another one or instead of it.
    pub fn begin_load(&mut self) {
        if !self.has_beside() {
            self.drop_what_is_loaded_anew();
        }
        self.loaded_clock().begin_load();
    }

    /// The locks of which this one is.
    #[inline]
    pub(super) fn locks_of(&self, id: LockId) -> &Locks {
        match &self.beside {
            Some(beside) if beside.locks.is_own(id) => &beside.locks,
            _ => &self.locks,
        }
    }

    /// Does something among the locks of which this one is.
    #[inline(always)]
    pub(super) fn among_its_own<R>(&mut self, id: LockId, act: impl Fn(&mut Self) -> R) -> R {
        // The usual case.
        if self.beside.is_none() { act(self) } else { self.among_two(id, act) }
    }

    #[cold]
    #[inline(never)]
    fn among_two<R>(&mut self, id: LockId, act: impl Fn(&mut Self) -> R) -> R {
        if self.beside.as_ref().is_some_and(|beside| beside.locks.is_own(id)) {
            self.within_beside(act)
        } else {
            act(self)
        }
    }

    /// Does something in the data set that is being loaded beside, if there is one, or else in the only one.
    #[cold]
    #[inline(never)]
    pub(super) fn within_beside<R>(&mut self, act: impl FnOnce(&mut Self) -> R) -> R {
        self.change_places();
        let result = act(self);
        self.change_places();
        result
    }

    fn change_places(&mut self) {
        if let Some(beside) = &mut self.beside {
            std::mem::swap(&mut self.locks, &mut beside.locks);
            std::mem::swap(&mut self.clock, &mut beside.clock);
        }
    }

    /// Of these numbers, those that may still stand for a lock.
    pub fn keep_known(&self, numbers: &mut Vec<LockId>) {
        numbers.retain(|&id| self.locks_of(id).may_know(id));
    }

    /// Tells what is wrong with what is loaded beside, if anything is.
    pub(super) fn check_beside(&self) -> Result<(), String> {
        self.beside.as_ref().map_or(Ok(()), |beside| beside.locks.check())
    }
}
