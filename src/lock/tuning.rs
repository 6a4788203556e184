//! Bounds that are lower in the tests of the core and of the engine.
//!
//! Models and random lives are small, and reach a bound only if it is small as well. Tests use the smallest value of
//! each, and random lives draw theirs (`tests/tuning.rs`). A shipped module pays nothing for that.

use std::panic::Location;

#[cfg(test)]
pub(crate) use super::tests::tuning::{bound, count_max, few_max, is_search_spent, served_max, unbound_max};
#[cfg(not(test))]
pub(crate) use usual::{bound, count_max, few_max, is_search_spent, served_max, unbound_max};

/// A bound as shipped, and its smallest value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    shipped: usize,
    smallest: usize,
    /// The line of its definition: two bounds of the same values are drawn independently.
    line: u32,
}

impl Bound {
    #[track_caller]
    pub(crate) const fn of(shipped: usize, smallest: usize) -> Self {
        Self { shipped, smallest, line: Location::caller().line() }
    }

    /// Returns the value in use.
    #[inline(always)]
    pub(crate) fn get(self) -> usize {
        bound(self.shipped, self.smallest, self.line)
    }

    /// Returns the value as a constant, for a layout or the length of an array. Tests use the smallest one.
    pub(crate) const fn fixed(self) -> usize {
        if cfg!(test) { self.smallest } else { self.shipped }
    }
}

/// The bounds as shipped.
#[cfg(not(test))]
mod usual {
    pub(crate) const fn bound(shipped: usize, _smallest: usize, _line: u32) -> usize {
        shipped
    }

    pub(crate) const fn few_max(usual: usize) -> usize {
        usual
    }

    pub(crate) const fn is_search_spent(steps: usize, usual: usize) -> bool {
        steps >= usual
    }

    pub(crate) const fn count_max(usual: u32) -> u32 {
        usual
    }

    pub(crate) const fn unbound_max(usual: usize) -> usize {
        usual
    }

    pub(crate) const fn served_max(usual: usize) -> usize {
        usual
    }
}
