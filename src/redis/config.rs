//! What the configuration of the server itself says that matters to us: whether it may evict locks, and whether
//! anybody hears keyspace events.

use std::ffi::CStr;

use redis_module::raw;

use super::api::{Ctx, api};
use super::reply::{ask, element, elements, is_of_kind, text};
use super::server;

/// Whether anybody could hear a keyspace event: a client, or another module, which needs no setting.
pub(super) fn has_listeners(ctx: &Ctx) -> bool {
    let is_silent = config(ctx, c"notify-keyspace-events").is_some_and(|events| events.is_empty());
    !is_silent || !is_only_module(ctx)
}

/// Ourselves, and what newer servers are born with: these listen to no keyspace event.
const QUIET_MODULES: [&[u8]; 3] = [b"redislock", b"lua", b"vectorset"];

/// Whether there is no other module that could listen. While it is being loaded it is not in the list itself.
fn is_only_module(ctx: &Ctx) -> bool {
    // SAFETY: a live context; the format takes a C string.
    let modules = unsafe { ask!(ctx, c"MODULE", c"cE", c"LIST".as_ptr()) };
    modules.is_some_and(|modules| {
        let name = |module| element(module, 1).and_then(text);
        is_of_kind(modules.get(), raw::REDISMODULE_REPLY_ARRAY)
            && elements(modules.get()).all(|module| name(module).is_some_and(|name| is_quiet(&name)))
    })
}

fn is_quiet(name: &str) -> bool {
    QUIET_MODULES.contains(&name.as_bytes())
}

/// Whether the server may evict keys that have no time to live. What it does not tell may be so.
pub(super) fn may_evict(ctx: &Ctx) -> bool {
    let policy = server::info(ctx, c"memory", c"maxmemory_policy");
    let memory = server::info(ctx, c"memory", c"maxmemory");
    policy.is_none_or(|policy| policy.starts_with("allkeys-")) && memory.is_none_or(|max| max != "0")
}

/// A setting of the server; `None` if it does not tell.
fn config(ctx: &Ctx, name: &CStr) -> Option<String> {
    // SAFETY: a live context; the format takes two C strings.
    let reply = unsafe { ask!(ctx, c"CONFIG", c"ccE", c"GET".as_ptr(), name.as_ptr()) }?;
    element(reply.get(), 1).and_then(text)
}
