//! Counts visits, for tests that check that a search grows no faster than its input.

use std::cell::Cell;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

/// Counts `visits` more looks.
pub(crate) fn count(visits: usize) {
    COUNT.set(COUNT.get() + visits);
}

/// Returns the number of visits on this thread since the last call.
pub(crate) fn take() -> usize {
    COUNT.replace(0)
}
