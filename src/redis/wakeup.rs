//! Adds the timer to the server's event loop. When it fires, a run of the pump is requested.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;

use redis_module::raw;
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

use super::api::{Ctx, api};
use super::clock::Timer;
use super::{main_thread, panic_guard};
use crate::engine::server_events;

/// Creates the timer and adds it to the event loop. Called once, at load.
pub(super) fn begin() -> Result<(), String> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let fd = timerfd_create(TimerfdClockId::Boottime, flags)
        .map_err(|error| format!("no timer on the boot-time clock: {error}"))?;
    let number = fd.as_raw_fd();
    let mask = raw::REDISMODULE_EVENTLOOP_READABLE as c_int;
    // SAFETY: the descriptor lives in the state, until `end` takes it out of the event loop.
    let added = unsafe { api!(RedisModule_EventLoopAdd, number, mask, Some(on_fire), std::ptr::null_mut()) };
    if added != Some(raw::REDISMODULE_OK as c_int) {
        return Err("the server's event loop did not take the timer".to_owned());
    }
    let _ = main_thread::with(|state| state.wake.alarm = Timer(Some(fd)));
    Ok(())
}

/// Removes the timer from the event loop, if it is there.
pub(super) fn end() {
    if let Some(fd) = main_thread::with(|state| state.wake.alarm.0.take()).flatten() {
        let mask = raw::REDISMODULE_EVENTLOOP_READABLE as c_int;
        // SAFETY: the descriptor is open until the end of this block.
        unsafe { api!(RedisModule_EventLoopDel, fd.as_raw_fd(), mask) };
    }
}

extern "C" fn on_fire(fd: c_int, _data: *mut c_void, _mask: c_int) {
    panic_guard::callback((), || {
        let mut ticks = [0_u8; 8];
        let _ = main_thread::with(|state| {
            if let Some(timer) = state.wake.alarm.0.as_ref().filter(|timer| timer.as_raw_fd() == fd) {
                // The content does not matter, but unread it would stay readable.
                let _ = rustix::io::read(timer, &mut ticks);
            }
        });
        server_events::woken(&Ctx::nowhere());
    });
}
