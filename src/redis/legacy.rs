//! Locks of old clients during a migration: `SET key value NX PX`, with the setting legacy-strings.
//!
//! A string with a time to live counts as a lock that the owner named by its value holds. It goes in ways that the
//! module's own type would be told of, and a string is not: so this listens to keyspace events, which nobody else has
//! to pay for, because it begins when the setting is switched on.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::raw;

use super::api::{Ctx, Key, Str, api, place_of};
use super::{clock, guard, pump, settings, state};
use crate::lock::effect::{Found, Legacy};

/// What is found at an open key, where strings may be locks; `owner` is whoever asks.
#[inline]
pub(crate) fn look(key: &Key<'_>, found: Found, owner: Option<&[u8]>) -> Found {
    if found == Found::Other && settings::has_legacy_strings() { look_closer(key, owner) } else { found }
}

#[cold]
fn look_closer(key: &Key<'_>, owner: Option<&[u8]>) -> Found {
    let Some(left_ms) = key.string_ttl_ms() else {
        return Found::Other;
    };
    let is_own = owner.is_some_and(|owner| key.string() == owner);
    Found::Legacy(Legacy { is_own, until: clock::boot().plus_ms(left_ms) })
}

static LISTENS: AtomicBool = AtomicBool::new(false);

/// Begins to hear of strings that come and go, if the setting is on.
pub(crate) fn listen() {
    // SAFETY: the pump's own detached context lives as long as the module.
    let ctx = state::with(|state| unsafe { Ctx::from_raw(state.pump.ctx()) });
    let Some(ctx) = ctx.filter(|ctx| settings::has_legacy_strings() && !ctx.as_ptr().is_null()) else {
        return;
    };
    if LISTENS.swap(true, Ordering::Relaxed) {
        return;
    }
    let types = raw::REDISMODULE_NOTIFY_GENERIC
        | raw::REDISMODULE_NOTIFY_STRING
        | raw::REDISMODULE_NOTIFY_EXPIRED
        | raw::REDISMODULE_NOTIFY_EVICTED;
    // SAFETY: a context of our module; the callback has the type asked for.
    unsafe { api!(RedisModule_SubscribeToKeyspaceEvents, ctx.as_ptr(), types as c_int, Some(on_key)) };
}

/// Something happened to a key: who waits for it may be next.
extern "C" fn on_key(
    ctx: *mut raw::RedisModuleCtx,
    _kind: c_int,
    _event: *const c_char,
    name: *mut raw::RedisModuleString,
) -> c_int {
    guard::callback((), || {
        if state::with(|state| state.table.waiters() > 0) != Some(true) {
            return;
        }
        // SAFETY: the context and the name of the running callback.
        let (ctx, name) = unsafe { (Ctx::from_raw(ctx), Str::from_raw(name)) };
        let Some(name) = name else {
            return;
        };
        let place = place_of(&ctx, name);
        let _ = pump::after(|state| state.table.note(place));
    });
    raw::REDISMODULE_OK as c_int
}
