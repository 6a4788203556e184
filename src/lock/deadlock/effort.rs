//! The bound on a search for deadlocks, and for tests a count of its steps.

use crate::lock::lowered;

/// The most holders and requests that are examined for one request that is about to wait.
pub const STEPS_MAX: usize = 4096;

/// Returns whether a search stops that has examined `steps` holders and requests. A test may let it end
/// earlier.
pub(super) fn is_spent(steps: usize) -> bool {
    lowered::is_search_spent(steps, STEPS_MAX)
}

/// Counts visits; only tests do.
#[cfg(not(test))]
#[inline(always)]
pub(super) const fn count(_visits: usize) {}

#[cfg(test)]
pub(super) use crate::lock::tests::visits::count;
