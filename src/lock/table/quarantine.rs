//! A server that may have lost locks grants none until their leases have ended (CONTRACT 6).
//!
//! A restart may have lost what the server had granted; a promotion, what the old primary granted and did not
//! replicate. If no lease is longer than the quarantine, every lost hold has expired when it ends (theorem T1 in
//! `docs/internals/spec`, provided that the old primary grants nothing more). Known holds can be renewed, acquired
//! again and released meanwhile, and requests that can wait do.

use super::state::Table;
use crate::lock::types::Moment;

impl Table {
    /// Starts a quarantine of `length_ms` milliseconds, because this server has just started or become a primary.
    pub fn begin_quarantine(&mut self, now: Moment, length_ms: u64) {
        self.restrictions.begin_quarantine(now, length_ms);
        self.leave_quarantine(now);
    }

    /// Sets the length of a running quarantine, and ends it if it has lasted that long. Starts none.
    pub fn set_quarantine(&mut self, now: Moment, length_ms: u64) {
        self.leave_quarantine(now);
        self.restrictions.set_quarantine(length_ms);
        self.leave_quarantine(now);
    }

    /// Returns the milliseconds that are left; `None` outside of a quarantine.
    #[must_use]
    pub fn quarantine_left_ms(&self, now: Moment) -> Option<u64> {
        let left_ms = now.ms_until(self.restrictions.quarantine_until()?);
        Some(left_ms).filter(|&left_ms| left_ms > 0)
    }

    /// Ends the quarantine once it is due, and lets waiters be served. Returns true if it has just ended.
    pub(super) fn leave_quarantine(&mut self, now: Moment) -> bool {
        let is_over = self.restrictions.end_quarantine(now);
        if is_over {
            self.note_everything();
        }
        is_over
    }
}
