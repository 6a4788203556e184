//! What the configuration of the server itself says that matters to us: whether it may evict locks, and whether
//! anybody hears keyspace events.

use std::ffi::{CStr, c_int};

use redis_module::raw;

use super::api::{Ctx, api};
use super::reply::{Reply, element, text};
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
    // SAFETY: 1. a live context; 2. the format takes a C string; 3. the reply is freed once, after its last use;
    // 4. elements are asked for within its length, and checked for null.
    unsafe {
        let reply =
            api!(RedisModule_Call, ctx.as_ptr(), c"MODULE".as_ptr(), c"cE".as_ptr(), c"LIST".as_ptr());
        let Some(reply) = reply.filter(|reply| !reply.is_null()) else {
            return false;
        };
        let is_list = api!(RedisModule_CallReplyType, reply) == Some(raw::REDISMODULE_REPLY_ARRAY as c_int);
        let count = api!(RedisModule_CallReplyLength, reply).unwrap_or(0);
        let is_quiet = is_list
            && (0..count).all(|number| {
                let module = api!(RedisModule_CallReplyArrayElement, reply, number);
                module.is_some_and(|module| text_at(module, 1).is_some_and(|name| is_quiet(&name)))
            });
        api!(RedisModule_FreeCallReply, reply);
        is_quiet
    }
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
    // SAFETY: 1. a live context; 2. the format takes two C strings; 3. the reply is freed once, after
    // its last use.
    unsafe {
        let reply = api!(
            RedisModule_Call,
            ctx.as_ptr(),
            c"CONFIG".as_ptr(),
            c"ccE".as_ptr(),
            c"GET".as_ptr(),
            name.as_ptr()
        );
        let reply = reply.filter(|reply| !reply.is_null())?;
        let text = text_at(reply, 1);
        api!(RedisModule_FreeCallReply, reply);
        text
    }
}

/// The text at this key of a list.
fn text_at(reply: Reply, number: usize) -> Option<String> {
    element(reply, number).and_then(text)
}
