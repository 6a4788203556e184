//! `INFO redislock` (CONTRACT 8).

use std::ffi::{CString, c_int};

use redis_module::raw;

use super::api::{Ctx, api};
use super::panic_guard;
use crate::engine::describe::{self, Value};

/// The version of the module.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit of its sources.
pub(crate) const COMMIT: &str = env!("REDISLOCK_COMMIT");

/// Registers the section. Called once, at load.
pub(crate) fn register(ctx: &Ctx) -> Result<(), String> {
    // SAFETY: within OnLoad; the callback has the type asked for.
    match unsafe { api!(RedisModule_RegisterInfoFunc, ctx.as_ptr(), Some(on_info)) } {
        Some(done) if done == raw::REDISMODULE_OK as c_int => Ok(()),
        _ => Err("the INFO section could not be registered".to_owned()),
    }
}

extern "C" fn on_info(info: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    // After a crash the table may be in any state, so none of it is read.
    if for_crash_report != 0 {
        return;
    }
    panic_guard::callback((), || {
        // SAFETY: the context of the running callback; null means the module's own name.
        let wanted = unsafe { api!(RedisModule_InfoAddSection, info, std::ptr::null()) };
        if wanted == Some(raw::REDISMODULE_OK as c_int) {
            let text = |text: &str| Value::Text(text.to_owned());
            add(info, "version", &text(VERSION));
            add(info, "commit", &text(COMMIT));
            describe::fields(&Ctx::nowhere()).iter().for_each(|(name, value)| add(info, name, value));
        }
    });
}

fn add(info: *mut raw::RedisModuleInfoCtx, name: &str, value: &Value) {
    let Ok(name) = CString::new(name) else {
        return;
    };
    match value {
        Value::Number(number) => {
            // SAFETY: the context of the running callback and a C string.
            unsafe { api!(RedisModule_InfoAddFieldULongLong, info, name.as_ptr(), *number) };
        }
        Value::Text(text) => {
            let Ok(text) = CString::new(text.as_str()) else {
                return;
            };
            // SAFETY: the context of the running callback and two C strings.
            unsafe { api!(RedisModule_InfoAddFieldCString, info, name.as_ptr(), text.as_ptr()) };
        }
    }
}
