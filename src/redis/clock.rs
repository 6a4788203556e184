//! The two clocks, read here and nowhere else.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use crate::lock::types::{Moment, Now};

/// The machine's boot-time clock: it never steps and goes on while the machine sleeps (G2).
pub(crate) fn boot() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Moment(seconds * 1_000_000 + nanos / 1_000)
}

/// Microseconds since the epoch, for tokens only.
pub(crate) fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// Both.
pub(crate) fn now() -> Now {
    Now { boot: boot(), wall_us: wall_us() }
}
