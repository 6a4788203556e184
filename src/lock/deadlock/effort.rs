//! How far a search for deadlocks goes, and for tests how far it went.

use crate::lock::lowered;

/// How many holders and requests are looked at for one request that is about to wait.
pub const STEPS_MAX: usize = 4096;

/// Whether a search ends that has looked at `steps` holders and requests. A test may let it end earlier.
pub(super) fn is_spent(steps: usize) -> bool {
    lowered::is_search_spent(steps, STEPS_MAX)
}

/// Counts visits; only tests do.
#[cfg(not(test))]
#[inline(always)]
pub(super) const fn count(_visits: usize) {}

#[cfg(test)]
pub(super) use crate::lock::tests::visits::count;
