//! What wakes the server's event loop when something ends (G3).
//!
//! The server's own timers run on the wall clock: set back by an hour, they come an hour late. So a timer descriptor of
//! the kernel, on the boot-time clock, stands in the server's event loop: see [`wakeup`](super::wakeup).

use std::os::fd::OwnedFd;

use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};

use super::clock;
use crate::engine::state::Alarm;
use crate::lock::types::Moment;

/// The timer of this process.
#[derive(Default)]
pub(crate) struct Timer(pub(super) Option<OwnedFd>);

impl Alarm for Timer {
    fn set(&mut self, at: Moment) -> bool {
        let Some(fd) = &self.0 else {
            return false;
        };
        // From now, and not at a moment: a library under the server that shifts its clocks shifts what we read and not
        // what the kernel waits for. Zero would disarm it.
        let micros = at.0.saturating_sub(clock::boot().0).max(1);
        let value = Timespec {
            tv_sec: i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX),
            tv_nsec: ((micros % 1_000_000) * 1_000) as _,
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(fd, TimerfdTimerFlags::empty(), &once).is_ok()
    }
}
