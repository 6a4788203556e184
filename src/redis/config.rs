//! What the configuration of the server itself says that matters to us: whether it may evict locks, and whether
//! anybody hears keyspace events.

use std::ffi::CStr;

use redis_module::raw;

use super::api::{Ctx, api};
use super::reply::{ask, element, elements, is_of_kind, text};
use super::server;
use crate::engine::first_use;

/// Whether anybody could hear a keyspace event: a client, or another module, which needs no setting.
pub(super) fn has_listeners(ctx: &Ctx) -> bool {
    first_use::has_listeners(config(ctx, c"notify-keyspace-events").as_deref(), || modules(ctx))
}

/// The names of all modules. `None`: the server does not tell them all. While one is being loaded it is not in the list
/// itself.
fn modules(ctx: &Ctx) -> Option<Vec<String>> {
    // SAFETY: a live context; the format takes a C string.
    let modules = unsafe { ask!(ctx, c"MODULE", c"cE", c"LIST".as_ptr()) }?;
    if !is_of_kind(modules.get(), raw::REDISMODULE_REPLY_ARRAY) {
        return None;
    }
    elements(modules.get()).map(|module| element(module, 1).and_then(text)).collect()
}

/// Whether the server may evict keys that have no time to live.
pub(super) fn may_evict(ctx: &Ctx) -> bool {
    let policy = server::info(ctx, c"memory", c"maxmemory_policy");
    let memory = server::info(ctx, c"memory", c"maxmemory");
    first_use::may_evict(policy.as_deref(), memory.as_deref())
}

/// A setting of the server; `None` if it does not tell.
pub(super) fn config(ctx: &Ctx, name: &CStr) -> Option<String> {
    // SAFETY: a live context; the format takes two C strings.
    let reply = unsafe { ask!(ctx, c"CONFIG", c"ccE", c"GET".as_ptr(), name.as_ptr()) }?;
    element(reply.get(), 1).and_then(text)
}
