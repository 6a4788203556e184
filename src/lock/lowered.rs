//! Bounds that a test lowers on its own thread, so that small worlds get to them. Each is given as it usually is.

#[cfg(test)]
pub(crate) use super::tests::lowered::{bound, count_max, few_max, is_search_spent, served_max, unbound_max};
#[cfg(not(test))]
pub(crate) use usual::{bound, count_max, few_max, is_search_spent, served_max, unbound_max};

/// As they are in a module that is shipped.
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
