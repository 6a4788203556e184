//! How far a search for deadlocks goes, and for tests how far it went.

/// How many holders and requests are looked at for one request that is about to wait.
pub const STEPS_MAX: usize = 4096;

/// Whether a search that has looked at so many ends; a test may let it end earlier.
#[cfg(not(test))]
pub(super) const fn is_spent(steps: usize) -> bool {
    steps >= STEPS_MAX
}

#[cfg(test)]
pub(super) fn is_spent(steps: usize) -> bool {
    crate::lock::tests::lowered::is_search_spent(steps, STEPS_MAX)
}

/// So much more was looked at. Only tests count.
#[cfg(not(test))]
#[inline(always)]
pub(super) const fn count(_visits: usize) {}

#[cfg(test)]
pub(super) use crate::lock::tests::visits::count;
