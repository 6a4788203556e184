//! The two clocks, read only here, and the timer that follows one of them (G3).
//!
//! The server's own timers follow the wall clock: if it is set back by an hour, they are an hour late. So the
//! server's event loop polls a kernel timer on the boot-time clock: see [`wakeup`](super::wakeup).

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rustix::time::{ClockId, Itimerspec, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_settime};

use crate::engine::state::Alarm;
use crate::lock::token::JUMP_US;
use crate::lock::types::{Moment, Now};

/// One second before the module was loaded. Ends of leases are counted from there, in 48 bits.
static BEGINNING: AtomicU64 = AtomicU64::new(0);

/// How far the wall clock was ahead of ours at the last reading, and the time of that reading.
static AHEAD: AtomicI64 = AtomicI64::new(0);
static LOOKED: AtomicU64 = AtomicU64::new(0);

fn micros(time: Timespec) -> u64 {
    // A time before the beginning of its clock does not exist.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    // Nanoseconds are never negative.
    seconds.wrapping_mul(1_000_000).wrapping_add(time.tv_nsec.cast_unsigned() / 1_000)
}

/// Returns the clock of leases and waits.
#[inline(always)]
fn boot_clock() -> ClockId {
    ClockId::Boottime
}

/// Starts the clock. Called once, at load.
pub(crate) fn begin() {
    let now = micros(clock_gettime(boot_clock()));
    BEGINNING.store(now.saturating_sub(1_000_000), Ordering::Relaxed);
}

/// Returns the machine's boot-time clock: it never steps, and continues while the machine sleeps (G2).
pub(crate) fn boot() -> Moment {
    let now = micros(clock_gettime(boot_clock()));
    Moment(now.saturating_sub(BEGINNING.load(Ordering::Relaxed)))
}

/// Returns microseconds since the epoch, for tokens only.
pub(crate) fn wall_us() -> u64 {
    micros(clock_gettime(ClockId::Realtime))
}

/// Returns both clocks. Reads the wall clock at most once in the time by which tokens may lag, and advances it with
/// the other clock in between. Each reading costs as much as a tenth of a whole request.
pub(crate) fn now() -> Now {
    let boot = boot();
    if boot.0.wrapping_sub(LOOKED.load(Ordering::Relaxed)) >= JUMP_US {
        let ahead = wall_us().wrapping_sub(boot.0).cast_signed();
        AHEAD.store(ahead, Ordering::Relaxed);
        LOOKED.store(boot.0, Ordering::Relaxed);
    }
    Now { boot, wall_us: boot.0.wrapping_add_signed(AHEAD.load(Ordering::Relaxed)) }
}

/// The timer of this process.
#[derive(Default)]
pub(crate) struct Timer(pub(super) Option<OwnedFd>);

impl Alarm for Timer {
    fn set(&mut self, at: Moment) -> bool {
        let Some(fd) = &self.0 else {
            return false;
        };
        // A duration, not a moment: a library that shifts the server's clocks shifts our readings, but not the
        // kernel's timers. Zero would disarm it.
        let micros = at.0.saturating_sub(boot().0).max(1);
        let value = Timespec {
            tv_sec: i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX),
            tv_nsec: ((micros % 1_000_000) * 1_000) as _,
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(fd, TimerfdTimerFlags::empty(), &once).is_ok()
    }
}
