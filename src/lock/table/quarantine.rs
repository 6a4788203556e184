//! A server that may have forgotten locks grants none until they are over (CONTRACT 6).
//!
//! After a restart it may have lost what it had granted before, after a promotion what the old primary had granted
//! and not sent. While no lease is longer than the quarantine, whatever was forgotten is over when it ends (theorem
//! T1 in `docs/internals/spec`, if the old primary grants nothing any more). What the server does know of may be
//! renewed, asked for again and released in the meantime; a request that can wait waits.

use super::state::Table;
use crate::lock::types::Moment;

impl Table {
    /// Grants no new hold for `length_ms` milliseconds from now: this server has just begun, or begun to decide.
    pub fn begin_quarantine(&mut self, now: Moment, length_ms: u64) {
        self.restrictions.begin_quarantine(now, length_ms);
        self.leave_quarantine(now);
    }

    /// Sets the length. That starts no quarantine, and ends one that has lasted `length_ms` milliseconds already.
    pub fn set_quarantine(&mut self, now: Moment, length_ms: u64) {
        self.leave_quarantine(now);
        self.restrictions.set_quarantine(length_ms);
        self.leave_quarantine(now);
    }

    /// The rest of it, in milliseconds; `None` if there is none.
    #[must_use]
    pub fn quarantine_left_ms(&self, now: Moment) -> Option<u64> {
        let left_ms = now.ms_until(self.restrictions.quarantine_until()?);
        Some(left_ms).filter(|&left_ms| left_ms > 0)
    }

    /// When it ends, the waiters are next. Returns whether it has just ended.
    pub(super) fn leave_quarantine(&mut self, now: Moment) -> bool {
        let is_over = self.restrictions.end_quarantine(now);
        if is_over {
            self.note_everything();
        }
        is_over
    }
}
