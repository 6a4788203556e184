//! Wakes the server's event loop when something ends (G3).
//!
//! The server's own timers run on the wall clock: set back by an hour, they come an hour late. So a
//! timer descriptor of the kernel, on the boot-time clock, stands in the server's event loop; when it
//! fires it asks for the pump.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd};

use redis_module::raw;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::api::api;
use super::{clock, guard, pump, state};
use crate::lock::types::Moment;

/// The timer of this process.
#[derive(Default)]
pub(crate) struct Timer {
    fd: Option<OwnedFd>,
    /// When it will fire; `None`: it is not set.
    armed: Option<Moment>,
}

impl Timer {
    /// Sees to it that the pump runs at `next`, or earlier: a timer that is set for an earlier moment is
    /// left alone, because what it was set for is usually gone and setting it costs a system call.
    pub(crate) fn wake_at(&mut self, next: Option<Moment>) {
        let Some(next) = next else {
            return;
        };
        if self.armed.is_none_or(|armed| next < armed) {
            self.set(next);
        }
    }

    fn set(&mut self, at: Moment) {
        let Some(fd) = &self.fd else {
            return;
        };
        // From now, and not at a moment: whoever runs the server under a library that shifts its clocks
        // shifts what we read and not what the kernel waits for. Zero would disarm it.
        let micros = at.0.saturating_sub(clock::boot().0).max(1);
        let value = Timespec {
            tv_sec: i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX),
            tv_nsec: ((micros % 1_000_000) * 1_000) as _,
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        if timerfd_settime(fd, TimerfdTimerFlags::empty(), &once).is_ok() {
            self.armed = Some(at);
        }
    }
}

/// Makes the timer and puts it into the server's event loop. Once, at load.
pub(crate) fn begin() -> Result<(), String> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let fd = timerfd_create(TimerfdClockId::Boottime, flags)
        .map_err(|error| format!("no timer on the boot-time clock: {error}"))?;
    let number = fd.as_raw_fd();
    let mask = raw::REDISMODULE_EVENTLOOP_READABLE as c_int;
    // SAFETY: the descriptor lives in the state, which is never dropped.
    let added = unsafe { api!(RedisModule_EventLoopAdd, number, mask, Some(on_fire), std::ptr::null_mut()) };
    if added != Some(raw::REDISMODULE_OK as c_int) {
        return Err("the server's event loop did not take the timer".to_owned());
    }
    let _ = state::with(|state| state.timer.fd = Some(fd));
    Ok(())
}

extern "C" fn on_fire(fd: c_int, _data: *mut c_void, _mask: c_int) {
    guard::callback((), || {
        let mut ticks = [0_u8; 8];
        let _ = state::with(|state| {
            state.timer.armed = None;
            if let Some(timer) = state.timer.fd.as_ref().filter(|timer| timer.as_raw_fd() == fd) {
                // What it says does not matter; unread it would stay readable.
                let _ = rustix::io::read(timer, &mut ticks);
            }
        });
        pump::request();
    });
}
