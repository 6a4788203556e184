//! Keyspace events, which are listened to while strings may be locks: see `src/engine/legacy.rs`.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::raw;

use super::api::{Ctx, Str, api};
use super::{guard, keeper};
use crate::engine::legacy;

static LISTENS: AtomicBool = AtomicBool::new(false);

/// Begins to hear of strings that come and go, if the setting is on.
pub(super) fn listen(ctx: &Ctx) {
    if !keeper::SHARED.settings.has_legacy_strings() || LISTENS.swap(true, Ordering::Relaxed) {
        return;
    }
    let types = raw::REDISMODULE_NOTIFY_GENERIC
        | raw::REDISMODULE_NOTIFY_STRING
        | raw::REDISMODULE_NOTIFY_EXPIRED
        | raw::REDISMODULE_NOTIFY_EVICTED;
    // SAFETY: a context of our module; the callback has the type asked for.
    unsafe { api!(RedisModule_SubscribeToKeyspaceEvents, ctx.as_ptr(), types as c_int, Some(on_key)) };
}

extern "C" fn on_key(
    ctx: *mut raw::RedisModuleCtx,
    _kind: c_int,
    _event: *const c_char,
    name: *mut raw::RedisModuleString,
) -> c_int {
    guard::callback((), || {
        // SAFETY: the context and the name of the running callback.
        let (ctx, name) = unsafe { (Ctx::from_raw(ctx), Str::from_raw(name)) };
        if let Some(name) = name {
            legacy::key_changed(&ctx, name);
        }
    });
    raw::REDISMODULE_OK as c_int
}
