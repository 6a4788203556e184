//! Clients that wait.
//!
//! A waiter of the core and a blocked client of the server belong together from [`park`] until exactly
//! one of: an [`Answer`] is sent, the connection goes away, or the server ends the wait by itself
//! (CLIENT UNBLOCK, a role change). Timeouts are the core's: the server is given none, because on Redis
//! before 7.4 its own can meet a grant in the same turn of the event loop and lose the reply.
//!
//! Who is answered may have to wait for its turn to be told: see [`super::turns`]. To the server it is blocked till then.
//!
//! CLIENT UNBLOCK can still meet a client that was answered and not told yet. Redis 7.4 and Valkey keep it
//! away then. Redis 7.0 ends the wait and loses the answer: the client would wait for ever, so its
//! connection is closed, which is the one thing it cannot overlook. Redis 7.2 would abort; there
//! CLIENT UNBLOCK finds nobody to unblock.
//!
//! A grant can be taken back until it was delivered: the server tells when it frees the answer of a
//! client that was gone by then.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use redis_module::raw;

use super::api::{Ctx, api};
use super::state::{self, Handle, State};
use super::{confirm, guard, pump, server, settings};
use crate::command::error::{DEMOTED, REPLACED};
use crate::lock::effect::{Answer, WaiterId};
use crate::lock::types::ClientId;
use crate::sabotage::{self, Rule};

/// Blocks the client of the running command for this waiter. `false`: it cannot be blocked.
pub(crate) fn park(ctx: &Ctx, waiter: WaiterId) -> bool {
    let Some(handle) = block(ctx) else {
        return false;
    };
    let _ = state::with(|state| {
        state.handles.insert(waiter, handle);
        state.waiters.insert(handle, waiter);
    });
    true
}

/// Blocks the client of the running command. `None`: it cannot be blocked.
pub(crate) fn block(ctx: &Ctx) -> Option<Handle> {
    // Without such a callback CLIENT UNBLOCK finds nobody to unblock.
    let on_timeout: raw::RedisModuleCmdFunc =
        if server::kind().can_unblock() { Some(on_unblock) } else { None };
    // SAFETY: 1. a live context of a running command; 2. the callbacks have the types asked for;
    // 3. what `on_free` frees is what `send` makes.
    let handle =
        unsafe { api!(RedisModule_BlockClient, ctx.as_ptr(), Some(on_answer), on_timeout, Some(on_free), 0) };
    let handle = handle.filter(|handle| !handle.is_null())?;
    // SAFETY: a handle just made.
    unsafe { api!(RedisModule_SetDisconnectCallback, handle, Some(on_disconnect)) };
    Some(handle)
}

/// What a blocked client is told.
pub(crate) enum Told {
    /// How its wait in line ended.
    Answer(Answer),
    /// Its lease is as long as it asked for.
    Renewed,
}

/// What a blocked client was sent.
struct Sent {
    told: Told,
    handle: Handle,
}

/// Answers a waiter. Its handle is forgotten: the server must be told only once.
pub(crate) fn send(waiter: WaiterId, client: ClientId, answer: Answer) {
    let handle = state::with(|state| {
        let handle = state.handles.remove(&waiter)?;
        state.waiters.remove(&handle);
        Some(handle)
    });
    if let Some(handle) = handle.flatten() {
        if settings::confirms() {
            confirm::hold_back_waiter(handle, client, answer);
        } else {
            tell(handle, client, Told::Answer(answer));
        }
    }
}

/// Answers a blocked client, whose handle nobody knows any more: now, or when its turn comes.
pub(crate) fn tell(handle: Handle, client: ClientId, told: Told) {
    if state::with(|state| state.room_behind_others()) == Some(0) {
        let _ = pump::after(|state| state.turns.push(handle, client, told));
    } else {
        unblock(handle, client, told);
    }
}

/// Tells those whose turn it is. `false`: others wait for theirs. From the pump, once in a turn of the event loop.
pub(crate) fn tell_some() -> bool {
    let room = state::with(|state| state.room_to_tell()).unwrap_or(0);
    for _ in 0..room.max(1) {
        let Some((handle, client, told)) = state::with(|state| state.turns.pop()).flatten() else {
            return true;
        };
        unblock(handle, client, told);
    }
    state::with(|state| state.turns.is_empty()) != Some(false)
}

fn unblock(handle: Handle, client: ClientId, told: Told) {
    let _ = state::with(|state| state.answered.insert(handle, client));
    let sent = Box::into_raw(Box::new(Sent { told, handle }));
    // SAFETY: 1. the handle was not used before, as its owner has just forgotten it; 2. `on_free` frees what is sent.
    unsafe { api!(RedisModule_UnblockClient, handle, sent.cast()) };
}

/// Forgets the waiter behind a handle that the server is done with. Its going may let others in (G6).
fn drop_waiter(handle: Handle) -> bool {
    let forget = |state: &mut State| {
        let waiter = state.waiters.remove(&handle)?;
        state.handles.remove(&waiter);
        state.table.leave(waiter);
        Some(())
    };
    let known = if sabotage::removes(Rule::LeaverWakes) { state::with(forget) } else { pump::after(forget) };
    known.flatten().is_some()
}

extern "C" fn on_disconnect(_ctx: *mut raw::RedisModuleCtx, handle: Handle) {
    guard::callback((), || {
        // G8: it leaves the queue at once. A handle that is not known any more was answered: then
        // `on_free` will tell that nobody got the answer.
        if drop_waiter(handle) || confirm::client_left(handle).is_some() || missed_its_turn(handle) {
            // SAFETY: the handle was not used before; the server waits for this call to free it.
            unsafe { api!(RedisModule_UnblockClient, handle, null_mut()) };
            return;
        }
        // Answered, and not told: the connection is gone, or Redis 7.0 has lost the answer.
        let _ = state::with(|state| {
            let client = state.answered.remove(&handle);
            state.pump.untold.extend(client.filter(|_| server::kind().loses_answers()));
        });
        pump::request();
    });
}

/// Whether this client waited for its turn, and will not be told any more.
fn missed_its_turn(handle: Handle) -> bool {
    let told = state::with(|state| state.turns.take(handle)).flatten();
    told.map(note_undelivered).is_some()
}

/// Nobody learns of this: a grant is to be taken back.
fn note_undelivered(told: Told) {
    let Told::Answer(Answer::Granted { place, others, token, .. }) = told else {
        return;
    };
    let _ = pump::after(|state| {
        for place in std::iter::once(place).chain(others) {
            state.table.note_undelivered(place, token);
        }
    });
}

/// CLIENT UNBLOCK id TIMEOUT: as if the time to wait were over.
extern "C" fn on_unblock(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the context of the running callback.
    let ctx = unsafe { Ctx::from_raw(ctx) };
    guard::command(&ctx, || {
        // SAFETY: a live context of a blocked client.
        if let Some(handle) = unsafe { api!(RedisModule_GetBlockedClientHandle, ctx.as_ptr()) } {
            // SAFETY: the handle was not used before: the server asks only for clients that were not answered. Its
            // client is answered here and now; the server frees the handle when it finds nobody behind it.
            unsafe { api!(RedisModule_UnblockClient, handle, null_mut()) };
            drop_waiter(handle);
            let told = confirm::client_left(handle);
            // Who was answered already is only told sooner.
            let told = told.or_else(|| state::with(|state| state.turns.take(handle)).flatten());
            if told.is_some() {
                return reply(&ctx, told.as_ref());
            }
        }
        ctx.reply_null()
    })
}

extern "C" fn on_answer(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the context of the running callback.
    let ctx = unsafe { Ctx::from_raw(ctx) };
    guard::command(&ctx, || {
        // SAFETY: the private data is null or what `send` made, and lives until `on_free`.
        let sent = unsafe {
            let data = api!(RedisModule_GetBlockedClientPrivateData, ctx.as_ptr());
            data.unwrap_or(null_mut()).cast::<Sent>().as_ref()
        };
        reply(&ctx, sent.map(|sent| &sent.told))
    })
}

/// What a client reads.
fn reply(ctx: &Ctx, told: Option<&Told>) -> c_int {
    let answer = match told {
        Some(Told::Renewed) => return ctx.reply_integer(1),
        Some(Told::Answer(answer)) => Some(answer),
        None => None,
    };
    match answer {
        Some(Answer::Granted { token, minted_owner: None, .. }) => ctx.reply_integer(token.get()),
        Some(Answer::Granted { token, minted_owner: Some(owner), .. }) => {
            ctx.reply_array(2);
            ctx.reply_bytes(owner);
            ctx.reply_integer(token.get())
        }
        Some(Answer::TimedOut | Answer::Withdrawn) | None => ctx.reply_null(),
        Some(Answer::Replaced) => ctx.reply_error(REPLACED),
        Some(Answer::Demoted) => ctx.reply_error(DEMOTED),
        Some(Answer::Refused(text)) => ctx.reply_error(text),
        Some(Answer::Moved(text)) => ctx.reply_error(text),
    }
}

extern "C" fn on_free(ctx: *mut raw::RedisModuleCtx, data: *mut c_void) {
    guard::callback((), || {
        if data.is_null() {
            return;
        }
        // SAFETY: 1. made by `send`, freed once by the server's contract; 2. a live context.
        let (sent, nobody_got_it) = unsafe {
            let gone = api!(RedisModule_BlockedClientDisconnected, ctx) == Some(1);
            (*Box::from_raw(data.cast::<Sent>()), gone)
        };
        let _ = state::with(|state| state.answered.remove(&sent.handle));
        if nobody_got_it {
            note_undelivered(sent.told);
        }
    });
}
