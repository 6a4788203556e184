//! Bounds of the core that a test lowers on its own thread, so that small worlds reach them.
//!
//! Bounds that a client sees have their shipped values, unless a test lowers them. The others have their smallest
//! values, or those that a life draws by its seed.

use std::cell::Cell;

use super::random::Random;

/// Bounds with their shipped values, or lower ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lowered {
    /// The most holders of a plain list.
    pub(crate) few_max: Option<usize>,
    /// The most holders and requests that a search for deadlocks examines.
    pub(crate) steps_max: Option<usize>,
    /// The most times that one owner holds a lock.
    pub(crate) count_max: Option<u32>,
    /// The most holds of a connection that are unbound at once when it closes.
    pub(crate) unbound_max: Option<usize>,
    /// The most waiters of a lock that are served in one step.
    pub(crate) served_max: Option<usize>,
    /// The seed by which a life draws the bounds that no client sees. Without it they are the smallest.
    drawn_by: Option<u64>,
}

impl Lowered {
    /// The shipped values.
    const NONE: Self = Self {
        few_max: None,
        steps_max: None,
        count_max: None,
        unbound_max: None,
        served_max: None,
        drawn_by: None,
    };

    /// All bounds that a client can see at once.
    pub(crate) const ALL: Self = Self {
        few_max: Some(2),
        steps_max: Some(3),
        count_max: Some(3),
        unbound_max: None,
        served_max: Some(1),
        drawn_by: None,
    };

    /// Lowers some, all or none of them, as this run chooses. It draws the bounds that no client sees.
    pub(crate) fn of(seed: u64) -> Self {
        let Self { few_max, steps_max, count_max, served_max, .. } = Self::ALL;
        let lowered = match seed % 6 {
            0 => Self::NONE,
            1 => Self { few_max, ..Self::NONE },
            2 => Self { steps_max, ..Self::NONE },
            3 => Self { count_max, ..Self::NONE },
            4 => Self { served_max, ..Self::NONE },
            _ => Self::ALL,
        };
        Self { drawn_by: Some(seed), ..lowered }
    }

    /// A lock with more than two holders has a large list.
    pub(crate) const FEW: Self = Self { few_max: Some(2), ..Self::NONE };

    /// Returns true if, on this thread, a list of more than two holders is large.
    pub(crate) fn is_few_lowered() -> bool {
        BOUNDS.get().few_max.is_some()
    }

    /// Returns these bounds, with one hold of a closed connection unbound at a time: for worlds that are judged at
    /// rest.
    pub(crate) const fn one_by_one(self) -> Self {
        Self { unbound_max: Some(1), ..self }
    }

    /// One hold of a closed connection is unbound at a time; the other bounds have their shipped values.
    pub(crate) const ONE_BY_ONE: Self = Self::NONE.one_by_one();

    /// One waiter of a lock is served in each step.
    pub(crate) const ONE_SERVED: Self = Self { served_max: Some(1), ..Self::NONE };

    /// One owner holds a lock twice at most.
    pub(crate) const TWICE: Self = Self { count_max: Some(2), ..Self::NONE };

    /// A search for deadlocks examines `steps_max` holders and requests.
    pub(crate) const fn steps(steps_max: usize) -> Self {
        Self { steps_max: Some(steps_max), ..Self::NONE }
    }

    /// Returns the bounds of this thread. Another thread has the shipped ones, unless it sets its own.
    pub(crate) fn now() -> Self {
        BOUNDS.get()
    }

    /// Runs this on this thread with these bounds.
    pub(crate) fn during<R>(self, what: impl FnOnce() -> R) -> R {
        let before = BOUNDS.replace(self);
        let done = what();
        BOUNDS.set(before);
        done
    }
}

thread_local! {
    static BOUNDS: Cell<Lowered> = const { Cell::new(Lowered::NONE) };
    static HAS_ENDED_EARLY: Cell<bool> = const { Cell::new(false) };
}

/// Returns a bound that no client sees: the smallest, the shipped or one between them, as the life has drawn it.
pub(crate) fn bound(shipped: usize, smallest: usize, line: u32) -> usize {
    let Some(seed) = BOUNDS.get().drawn_by else {
        return smallest;
    };
    let place = (shipped as u64) << 32 ^ (smallest as u64) << 16 ^ u64::from(line);
    let mut random = Random::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ place);
    match random.below(8) {
        0..4 => smallest,
        4 => shipped,
        // Draws each order of magnitude as often as another.
        _ => {
            let least = smallest << random.below(u64::from((shipped / smallest).ilog2()) + 1);
            (least + random.below(least as u64) as usize).min(shipped)
        }
    }
}

/// Returns the most holders of a plain list; `usual` if no test has lowered it.
pub(crate) fn few_max(usual: usize) -> usize {
    BOUNDS.get().few_max.unwrap_or(usual)
}

/// Returns true if a search for deadlocks ends after examining `steps` holders and requests. It usually ends at
/// `usual`.
pub(crate) fn is_search_spent(steps: usize, usual: usize) -> bool {
    let is_spent = steps >= BOUNDS.get().steps_max.unwrap_or(usual);
    HAS_ENDED_EARLY.set(HAS_ENDED_EARLY.get() || is_spent);
    is_spent
}

/// Notes that a step begins, in which no search has ended early yet.
pub(crate) fn begin_step() {
    HAS_ENDED_EARLY.set(false);
}

/// Returns true if a search of this step ended before it had seen everything. Then it may have missed a deadlock.
pub(crate) fn has_search_ended_early() -> bool {
    HAS_ENDED_EARLY.get()
}

/// Returns the most times that one owner holds a lock; `usual` if no test has lowered it.
pub(crate) fn count_max(usual: u32) -> u32 {
    BOUNDS.get().count_max.unwrap_or(usual)
}

/// Returns the most holds of a connection that are unbound at once when it closes; `usual` if no test has lowered it.
pub(crate) fn unbound_max(usual: usize) -> usize {
    BOUNDS.get().unbound_max.unwrap_or(usual)
}

/// Returns the most waiters of a lock that are served in one step; `usual` if no test has lowered it.
pub(crate) fn served_max(usual: usize) -> usize {
    BOUNDS.get().served_max.unwrap_or(usual)
}

#[test]
fn a_life_draws_each_bound_from_the_smallest_to_the_shipped_one() {
    assert_eq!(bound(64, 2, 1), 2, "without a life");
    let drawn = |line| -> Vec<usize> {
        (0..200).map(|seed| Lowered::of(seed).during(|| bound(64, 2, line))).collect()
    };
    let (one, other) = (drawn(1), drawn(2));
    assert_ne!(one, other, "each by itself");
    assert_eq!((one.iter().min(), one.iter().max()), (Some(&2), Some(&64)));
    for range in [3..8, 8..32, 32..64] {
        assert!(one.iter().any(|value| range.contains(value)), "{range:?}: {one:?}");
    }
}
