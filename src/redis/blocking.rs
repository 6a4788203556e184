//! Blocked clients, as the server knows them.
//!
//! The server gets no timeout: on Redis before 7.4, its timeout can meet a grant in the same turn of the event loop,
//! and lose the reply.
//!
//! CLIENT UNBLOCK can still meet a client that was answered and whose reply is not sent yet. Redis 7.4 and Valkey
//! prevent that. Redis 7.0 ends the wait and loses the answer. The client would wait forever, so its connection is
//! closed, which is the one thing that it cannot miss. Redis 7.2 would abort; the module does not load there.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use redis_module::raw;

use super::api::{Ctx, api};
use super::main_thread::Blocked;
use super::panic_guard;
use crate::engine::blocked_clients::Reply;
use crate::engine::replies;

/// The reply to a blocked client.
struct Sent {
    reply: Reply,
    blocked: Blocked,
}

/// Blocks the client of the running command. `None` if it cannot be blocked.
pub(super) fn block(ctx: &Ctx) -> Option<Blocked> {
    // SAFETY: 1. a live context of a running command; 2. the callbacks have the types asked for; 3. what `on_free`
    // frees is what `unblock` makes.
    let blocked = unsafe {
        api!(RedisModule_BlockClient, ctx.as_ptr(), Some(on_answer), Some(on_unblock), Some(on_free), 0)
    };
    let blocked = blocked.filter(|blocked| !blocked.is_null())?;
    // SAFETY: a handle just made.
    unsafe { api!(RedisModule_SetDisconnectCallback, blocked, Some(on_disconnect)) };
    Some(blocked)
}

/// Answers a blocked client, or releases one that has disconnected. Once for each.
pub(super) fn unblock(blocked: Blocked, reply: Option<Reply>) {
    let sent = reply.map_or(null_mut(), |reply| Box::into_raw(Box::new(Sent { reply, blocked })));
    // SAFETY: 1. the handle was not used before, as the engine has just forgotten it; 2. `on_free` frees the reply.
    unsafe { api!(RedisModule_UnblockClient, blocked, sent.cast()) };
}

extern "C" fn on_disconnect(ctx: *mut raw::RedisModuleCtx, blocked: Blocked) {
    panic_guard::callback((), || {
        // SAFETY: the context of the running callback.
        replies::disconnected(&unsafe { Ctx::from_raw(ctx) }, blocked);
    });
}

/// Handles CLIENT UNBLOCK id TIMEOUT.
extern "C" fn on_unblock(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the context of the running callback.
    let ctx = unsafe { Ctx::from_raw(ctx) };
    panic_guard::command(&ctx, || {
        // SAFETY: a live context of a blocked client.
        let blocked = unsafe { api!(RedisModule_GetBlockedClientHandle, ctx.as_ptr()) };
        let reply = blocked.and_then(|blocked| replies::unblocked(&ctx, blocked));
        replies::reply(&ctx, reply.as_ref());
    })
}

extern "C" fn on_answer(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the context of the running callback.
    let ctx = unsafe { Ctx::from_raw(ctx) };
    panic_guard::command(&ctx, || {
        // SAFETY: the private data is null or what `unblock` made, and lives until `on_free`.
        let sent = unsafe {
            let data = api!(RedisModule_GetBlockedClientPrivateData, ctx.as_ptr());
            data.unwrap_or(null_mut()).cast::<Sent>().as_ref()
        };
        replies::reply(&ctx, sent.map(|sent| &sent.reply));
    })
}

extern "C" fn on_free(ctx: *mut raw::RedisModuleCtx, data: *mut c_void) {
    panic_guard::callback((), || {
        if data.is_null() {
            return;
        }
        // SAFETY: 1. made by `unblock`, freed once by the server's contract; 2. a live context.
        let (Sent { reply, blocked }, is_gone) = unsafe {
            let is_gone = api!(RedisModule_BlockedClientDisconnected, ctx) == Some(1);
            (*Box::from_raw(data.cast::<Sent>()), is_gone)
        };
        // SAFETY: the context of the running callback.
        replies::released(&unsafe { Ctx::from_raw(ctx) }, blocked, reply, is_gone);
    });
}
