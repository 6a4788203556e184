//! Bounds of the core that a test lowers on its own thread, so that small worlds get to them.
//!
//! The other tests of the core run with the bounds of a module that is shipped.

use std::cell::Cell;

thread_local! {
    static FEW_MAX: Cell<Option<usize>> = const { Cell::new(None) };
}

/// How many members of a crowd are few, where that is usually so many.
pub(crate) fn few_max(usual: usize) -> usize {
    FEW_MAX.get().unwrap_or(usual)
}

/// Does this, on this thread, while more than two holders of one lock are many.
pub(super) fn with_few_of_two<R>(what: impl FnOnce() -> R) -> R {
    let before = FEW_MAX.replace(Some(2));
    let done = what();
    FEW_MAX.set(before);
    done
}
