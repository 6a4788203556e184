//! Runs the pump after the command or event that requested it, by a timer of the server's of 0 ms.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use redis_module::raw;

use super::api::{Ctx, api};
use super::{events, panic_guard};
use crate::engine::pump;

/// A detached context, for work outside of commands and callbacks; null until load.
static DETACHED: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(null_mut());

/// The server's timer for the last requested run.
static TIMER: AtomicU64 = AtomicU64::new(0);

/// Creates the detached context. Called once, at load.
pub(super) fn begin(ctx: &Ctx) {
    // SAFETY: a live context, within OnLoad; the detached one lives as long as the module.
    let detached = unsafe { api!(RedisModule_GetDetachedThreadSafeContext, ctx.as_ptr()) };
    DETACHED.store(detached.unwrap_or(null_mut()), Ordering::Relaxed);
}

/// Frees the detached context, and cancels the requested run.
pub(super) fn end(ctx: &Ctx) {
    let detached = DETACHED.swap(null_mut(), Ordering::Relaxed);
    // SAFETY: 1. a live context; a number that no timer of ours has is an error and nothing else; 2. ours to free, once.
    unsafe {
        api!(RedisModule_StopTimer, ctx.as_ptr(), TIMER.swap(0, Ordering::Relaxed), null_mut());
        if !detached.is_null() {
            api!(RedisModule_FreeThreadSafeContext, detached);
        }
    }
}

/// Returns the detached context; `None` while the module is being loaded.
pub(super) fn detached() -> Option<Ctx> {
    let ctx = DETACHED.load(Ordering::Relaxed);
    // SAFETY: it lives as long as the module.
    (!ctx.is_null()).then(|| unsafe { Ctx::from_raw(ctx) })
}

/// Requests a run. A late timer is removed first: the server checks its timers in order, and would run none after it.
pub(super) fn run_soon(is_late: bool) {
    let Some(ctx) = detached() else {
        return;
    };
    // SAFETY: 1. our own detached context; 2. a late timer has not run; while one runs, its number is not kept here.
    let timer = unsafe {
        if is_late {
            api!(RedisModule_StopTimer, ctx.as_ptr(), TIMER.load(Ordering::Relaxed), null_mut());
        }
        api!(RedisModule_CreateTimer, ctx.as_ptr(), 0, Some(on_timer), null_mut())
    };
    TIMER.store(timer.unwrap_or(0), Ordering::Relaxed);
}

extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    panic_guard::callback((), || {
        // SAFETY: the context of the running callback.
        let ctx = unsafe { Ctx::from_raw(ctx) };
        // The server frees the timer that is running. A request from here must not stop that timer as well.
        TIMER.store(0, Ordering::Relaxed);
        events::settings_are_final(&ctx);
        pump::run(&ctx);
    });
}
