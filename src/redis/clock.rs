//! The two clocks, read here and nowhere else.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::lock::token::JUMP_US;
use crate::lock::types::{Moment, Now};
use crate::sabotage::{self, Rule};

/// When the module was loaded, less a second: ends of leases are counted from there, in 48 bits.
static BEGINNING: AtomicU64 = AtomicU64::new(0);

/// What the wall clock was ahead of ours at the last look, and when that was.
static AHEAD: AtomicI64 = AtomicI64::new(0);
static LOOKED: AtomicU64 = AtomicU64::new(0);

fn micros(time: Timespec) -> u64 {
    // A time before the beginning of its clock is none.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    // Nanoseconds are never negative.
    seconds.wrapping_mul(1_000_000).wrapping_add(time.tv_nsec.cast_unsigned() / 1_000)
}

/// What leases and waits run on.
#[inline(always)]
fn boot_clock() -> ClockId {
    if sabotage::removes(Rule::Clock) { ClockId::Realtime } else { ClockId::Boottime }
}

/// Lets time begin. Once, at load.
pub(crate) fn begin() {
    let now = micros(clock_gettime(boot_clock()));
    BEGINNING.store(now.saturating_sub(1_000_000), Ordering::Relaxed);
}

/// The machine's boot-time clock: it never steps and goes on while the machine sleeps (G2).
pub(crate) fn boot() -> Moment {
    let now = micros(clock_gettime(boot_clock()));
    Moment(now.saturating_sub(BEGINNING.load(Ordering::Relaxed)))
}

/// Microseconds since the epoch, for tokens only.
pub(crate) fn wall_us() -> u64 {
    micros(clock_gettime(ClockId::Realtime))
}

/// Both clocks. The wall clock is read at most once in the time by which tokens may lag behind it anyway, and runs
/// with the other one in between. Each reading costs as much as a tenth of a whole request.
pub(crate) fn now() -> Now {
    let boot = boot();
    if boot.0.wrapping_sub(LOOKED.load(Ordering::Relaxed)) >= JUMP_US {
        let ahead = wall_us().wrapping_sub(boot.0).cast_signed();
        AHEAD.store(ahead, Ordering::Relaxed);
        LOOKED.store(boot.0, Ordering::Relaxed);
    }
    Now { boot, wall_us: boot.0.wrapping_add_signed(AHEAD.load(Ordering::Relaxed)) }
}
