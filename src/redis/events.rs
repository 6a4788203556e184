//! What the server tells about itself. Nothing is written here: it would come before its cause in the
//! stream. Notes are made, and the pump is asked for.

use std::collections::HashSet;
use std::ffi::{c_int, c_void};

use redis_module::raw;

use super::api::{Ctx, api};
use super::state;
use super::{
    carry_out, clock, confirm, ffi, guard, host, leaving, pump, quarantine, rounds, server, settings,
};
use crate::lock::effect::Answer;
use crate::lock::types::ClientId;

pub(super) type Callback = extern "C" fn(*mut raw::RedisModuleCtx, raw::RedisModuleEvent, u64, *mut c_void);

/// What is subscribed to: only events whose numbers mean the same on Redis and Valkey.
const EVENTS: [(u64, &str, Callback); 9] = [
    (raw::REDISMODULE_EVENT_CLIENT_CHANGE, "ClientChange", on_client),
    (raw::REDISMODULE_EVENT_FLUSHDB, "FlushDB", on_flush),
    (raw::REDISMODULE_EVENT_SWAPDB, "SwapDB", on_swap),
    (raw::REDISMODULE_EVENT_LOADING, "Loading", on_loading),
    (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, "ReplicationRoleChanged", on_role),
    (raw::REDISMODULE_EVENT_FORK_CHILD, "ForkChild", on_fork),
    (raw::REDISMODULE_EVENT_CONFIG, "Config", on_config),
    (raw::REDISMODULE_EVENT_MODULE_CHANGE, "ModuleChange", on_module),
    (raw::REDISMODULE_EVENT_CRON_LOOP, "CronLoop", on_cron),
];

/// Slots come or leave as a whole. Valkey's number for it from 9.0 on, and those of its parts, from `valkeymodule.h`.
const EVENT_SLOTS: u64 = 19;
const SLOTS_BEGIN_TO_LEAVE: u64 = 1;
const SLOTS_STAY: u64 = 3;
const SLOTS_HAVE_LEFT: u64 = 5;

/// What is heard of always: it may be the first that ever happens, and nothing that comes later tells that a data set
/// is loaded beside the one that is served.
const BESIDE: (u64, &str, Callback) = (raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD, "ReplAsyncLoad", on_beside);

/// Sees to it that the server can tell what has to be known, and does not have most of it told yet: with every turn of
/// its event loop it goes through all subscriptions of all modules, which who uses no lock need not pay for.
pub(crate) fn require(ctx: &Ctx) -> Result<(), String> {
    for (id, name, callback) in EVENTS.into_iter().chain([BESIDE]) {
        if !subscribe(ctx, id, Some(callback)) {
            return Err(format!("the server does not tell about {name}"));
        }
    }
    for (id, ..) in EVENTS {
        subscribe(ctx, id, None);
    }
    Ok(())
}

/// Subscribes, or with no callback unsubscribes.
pub(super) fn subscribe(ctx: &Ctx, id: u64, callback: Option<Callback>) -> bool {
    let event = raw::RedisModuleEvent { id, dataver: 1 };
    let callback = callback.map(|callback| callback as _);
    // SAFETY: a live context of our module; the callback has the type asked for.
    let done = unsafe { api!(RedisModule_SubscribeToServerEvent, ctx.as_ptr(), event, callback) };
    done == Some(raw::REDISMODULE_OK as c_int)
}

/// There is, or is about to be, something to know about: the first command or the first value that is loaded.
#[inline]
pub(crate) fn begin_use(ctx: &Ctx) {
    if !server::hears_events() {
        begin_first_use(ctx);
    }
}

/// The same where there is no context.
pub(crate) fn begin_use_now() {
    // SAFETY: the pump's own detached context lives as long as the module.
    let ctx = state::with(|state| unsafe { Ctx::from_raw(state.pump.ctx()) });
    if let Some(ctx) = ctx.filter(|ctx| !ctx.as_ptr().is_null()) {
        begin_use(&ctx);
    }
}

#[cold]
fn begin_first_use(ctx: &Ctx) {
    for (id, name, callback) in EVENTS {
        if !subscribe(ctx, id, Some(callback)) {
            ctx.log(ffi::SERVER_LOG_WARNING, &format!("the server does not tell about {name} any more"));
        }
    }
    if server::kind().tells_of_slots() && !subscribe(ctx, EVENT_SLOTS, Some(on_slots)) {
        ctx.log(ffi::SERVER_LOG_WARNING, "the server does not tell about slots that leave");
    }
    server::begin_to_hear_events();
    let flags = ctx.flags();
    server::note_role(flags);
    let _ = state::with(|state| state.pump.decides = flags.decides());
    // Whatever is being loaded now will be followed by its end.
    if !flags.is_loading() {
        look_around(ctx);
    }
}

/// What the server's configuration says that matters to us.
fn look_around(ctx: &Ctx) {
    host::read_eviction(ctx);
    host::read_listeners(ctx);
}

/// A connection has closed: what is tied to it runs out from here.
extern "C" fn on_client(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    sub: u64,
    data: *mut c_void,
) {
    if sub != raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED {
        return;
    }
    // SAFETY: the data of this event, version 1, for the length of the callback.
    let client = unsafe { data.cast::<raw::RedisModuleClientInfo>().as_ref() }.map(|info| ClientId(info.id));
    guard::callback((), || {
        if state::with(|state| state.table.has_ties()) == Some(true)
            && let Some(client) = client
        {
            let now = clock::boot();
            note(ctx, |state| state.table.disconnected(now, client));
        }
    });
}

/// Makes a note if this server decides, and asks for the pump.
fn note(ctx: *mut raw::RedisModuleCtx, note: impl FnOnce(&mut state::State)) {
    guard::callback((), || {
        // SAFETY: the context of the running callback.
        let decides = unsafe { Ctx::from_raw(ctx) }.flags().decides();
        if decides {
            let _ = state::with(note);
        }
        pump::request();
    });
}

extern "C" fn on_flush(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    sub: u64,
    data: *mut c_void,
) {
    // At the start: from here on no lock is held there, and the server may take long to free the values.
    if sub != raw::REDISMODULE_SUBEVENT_FLUSHDB_START {
        return;
    }
    // SAFETY: the data of this event, version 1, for the length of the callback.
    let db = unsafe { data.cast::<raw::RedisModuleFlushInfo>().as_ref() }.map(|info| info.dbnum);
    // -1: all databases.
    let db = db.and_then(|db| u32::try_from(db).ok());
    guard::callback((), || {
        // SAFETY: the context of the running callback.
        let decides = unsafe { Ctx::from_raw(ctx) }.flags().decides();
        let now = clock::boot();
        // On replicas and while loading too: the locks are gone there as well.
        let _ = state::with(|state| state.table.flushed(now, db, decides));
        pump::request();
    });
}

extern "C" fn on_swap(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _sub: u64,
    data: *mut c_void,
) {
    guard::callback((), || {
        // SAFETY: the data of this event, version 1, for the length of the callback.
        let info = unsafe { data.cast::<raw::RedisModuleSwapDbInfo>().as_ref() };
        let numbers = info.and_then(|info| {
            Some((u32::try_from(info.dbnum_first).ok()?, u32::try_from(info.dbnum_second).ok()?))
        });
        // On replicas and while loading too: the databases change places there as well.
        if let Some((a, b)) = numbers {
            // SAFETY: the context of the running callback.
            let decides = unsafe { Ctx::from_raw(ctx) }.flags().decides();
            let now = clock::boot();
            let _ = state::with(|state| {
                // What another server decided is published there.
                state.table.swapped(now, a, b, decides);
            });
            pump::request();
        }
    });
}

extern "C" fn on_loading(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    sub: u64,
    _data: *mut c_void,
) {
    guard::callback((), || match sub {
        raw::REDISMODULE_SUBEVENT_LOADING_ENDED | raw::REDISMODULE_SUBEVENT_LOADING_FAILED => {
            // SAFETY: the context of the running callback.
            let server = unsafe { Ctx::from_raw(ctx) };
            server::note_role(server.flags());
            look_around(&server);
            warn_of_lead(ctx);
            note(ctx, |state| state.table.note_everything());
        }
        _ => {
            server::expect_facts();
            let _ = state::with(|state| state.table.begin_load());
        }
    });
}

/// A replica loads its primary's data set beside its own, while which clients may read. The server says so before it
/// loads anything; when all is loaded and the databases have changed places; or when that has failed, before it frees
/// what was loaded.
extern "C" fn on_beside(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    sub: u64,
    _data: *mut c_void,
) {
    guard::callback((), || {
        let gone = state::with(|state| match sub {
            raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_STARTED => {
                server::expect_facts();
                state.table.begin_beside();
                None
            }
            raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_COMPLETED => state.table.complete_beside(),
            raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_ABORTED => state.table.abort_beside(),
            _ => None,
        });
        drop(gone);
        carry_out::rearm();
    });
}

/// Says so if the data set that was loaded is far ahead of the wall clock: a file is believed (tokens
/// must not go back when the wall clock does), but not in silence.
fn warn_of_lead(ctx: *mut raw::RedisModuleCtx) {
    let wall_us = clock::wall_us();
    let lead_us = state::with(|state| state.table.token_lead_us(wall_us)).unwrap_or(0);
    if lead_us > settings::token_lead_us_max() {
        let text = format!(
            "the loaded tokens are {} seconds ahead of the wall clock, more than redislock.max-token-lead: \
             either the clock was set back or the data set is not to be trusted",
            lead_us / 1_000_000
        );
        // SAFETY: the context of the running callback.
        unsafe { Ctx::from_raw(ctx) }.log(ffi::SERVER_LOG_WARNING, &text);
    }
}

extern "C" fn on_role(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    sub: u64,
    _data: *mut c_void,
) {
    guard::callback((), || {
        // SAFETY: the context of the running callback.
        let ctx = unsafe { Ctx::from_raw(ctx) };
        server::note_role(ctx.flags());
        if sub == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_REPLICA {
            server::expect_facts();
            let fx = state::with(|state| {
                let mut fx = std::mem::take(&mut state.fx);
                state.table.dismiss_all(&Answer::Demoted, &mut fx);
                state.table.forget_connections();
                fx
            });
            confirm::demoted();
            carry_out::effects(&ctx, None, fx.unwrap_or_default());
        } else {
            confirm::promoted(&ctx);
            quarantine::begin(&ctx, "this server was promoted and may lack some of the old primary's");
        }
        pump::request();
    });
}

extern "C" fn on_fork(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    sub: u64,
    _data: *mut c_void,
) {
    if sub != raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN {
        return;
    }
    guard::callback((), || {
        let _ = state::with(|state| {
            state.table.clock().begin_file();
            state.pump.must_tick = true;
        });
        pump::request();
    });
}

/// Valkey may give up a move of slots by chance if a module replicates a command without keys, as LOCK.TICK is: it
/// looks at flags that nobody has set (`VM_Replicate` in `module.c` of 9.1).
extern "C" fn on_slots(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    sub: u64,
    _data: *mut c_void,
) {
    guard::callback((), || match sub {
        SLOTS_BEGIN_TO_LEAVE => {
            let _ = state::with(|state| state.pump.moves += 1);
        }
        SLOTS_STAY | SLOTS_HAVE_LEFT => {
            let _ = state::with(|state| state.pump.moves = state.pump.moves.saturating_sub(1));
            pump::request();
        }
        _ => {}
    });
}

extern "C" fn on_config(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _sub: u64,
    _data: *mut c_void,
) {
    guard::callback((), || {
        // SAFETY: the context of the running callback.
        let ctx = unsafe { Ctx::from_raw(ctx) };
        look_around(&ctx);
    });
}

extern "C" fn on_module(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _sub: u64,
    _data: *mut c_void,
) {
    guard::callback((), || {
        // A command of this name may be another one now.
        let _ = state::with(|state| state.never_block = HashSet::new());
        // SAFETY: the context of the running callback.
        host::read_listeners(&unsafe { Ctx::from_raw(ctx) });
    });
}

/// Ten times a second: what was freed elsewhere is buried, and whatever was lost is asked for again.
extern "C" fn on_cron(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _sub: u64,
    _data: *mut c_void,
) {
    guard::callback((), || {
        let has_tasks = state::with(|state| {
            state.give_back_memory();
            let has_rounds = rounds::begin(state);
            has_rounds || state.table.has_tasks() || state.confirm.has_undo() || !state.turns.is_empty()
        });
        if state::has_dead() || has_tasks == Some(true) || pump::is_late() {
            pump::request();
        }
        carry_out::rearm();
        // SAFETY: the context of the running callback.
        let ctx = unsafe { Ctx::from_raw(ctx) };
        confirm::look_again(&ctx);
        leaving::look(&ctx);
    });
}
