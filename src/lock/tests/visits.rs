//! How often anything was looked at, for a test that sees the search grow with what there is and not faster.

use std::cell::Cell;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

/// Counts `visits` more looks.
pub(crate) fn count(visits: usize) {
    COUNT.set(COUNT.get() + visits);
}

/// How much was looked at on this thread since this was asked last.
pub(crate) fn take() -> usize {
    COUNT.replace(0)
}
