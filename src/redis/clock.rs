//! The two clocks, read here and nowhere else, and the timer that goes by one of them (G3).
//!
//! The server's own timers run on the wall clock: set back by an hour, they come an hour late. So the server's event
//! loop polls a timer descriptor of the kernel, on the boot-time clock: see [`wakeup`](super::wakeup).

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rustix::time::{ClockId, Itimerspec, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_settime};

use crate::engine::state::Alarm;
use crate::lock::token::JUMP_US;
use crate::lock::types::{Moment, Now};

/// When the module was loaded, less a second: ends of leases are counted from there, in 48 bits.
static BEGINNING: AtomicU64 = AtomicU64::new(0);

/// The distance of the wall clock ahead of ours at the last look, and the time of that look.
static AHEAD: AtomicI64 = AtomicI64::new(0);
static LOOKED: AtomicU64 = AtomicU64::new(0);

fn micros(time: Timespec) -> u64 {
    // A time before the beginning of its clock is none.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    // Nanoseconds are never negative.
    seconds.wrapping_mul(1_000_000).wrapping_add(time.tv_nsec.cast_unsigned() / 1_000)
}

/// The clock of leases and waits.
#[inline(always)]
fn boot_clock() -> ClockId {
    ClockId::Boottime
}

/// Lets time begin. Once, at load.
pub(crate) fn begin() {
    let now = micros(clock_gettime(boot_clock()));
    BEGINNING.store(now.saturating_sub(1_000_000), Ordering::Relaxed);
}

/// The machine's boot-time clock: it never steps, and it continues while the machine sleeps (G2).
pub(crate) fn boot() -> Moment {
    let now = micros(clock_gettime(boot_clock()));
    Moment(now.saturating_sub(BEGINNING.load(Ordering::Relaxed)))
}

/// Microseconds since the epoch, for tokens only.
pub(crate) fn wall_us() -> u64 {
    micros(clock_gettime(ClockId::Realtime))
}

/// Both clocks. The wall clock is read at most once in the time by which tokens may lag it anyway, and advances with
/// the other one in between. Each reading costs as much as a tenth of a whole request.
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
        // From now, and not at a moment: a library under the server that shifts its clocks shifts our readings and not
        // the kernel's timers. Zero would disarm it.
        let micros = at.0.saturating_sub(boot().0).max(1);
        let value = Timespec {
            tv_sec: i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX),
            tv_nsec: ((micros % 1_000_000) * 1_000) as _,
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(fd, TimerfdTimerFlags::empty(), &once).is_ok()
    }
}
