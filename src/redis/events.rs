//! Events of the server, handed to the engine.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::raw;

use super::api::{Ctx, Str, api};
use super::{exec, main_thread, panic_guard, server_quirks};
use crate::engine::flags::Level;
use crate::engine::server::Server;
use crate::engine::{confirm, lazy_subscribe, legacy, replies, schedule, server_events};
use crate::lock::types::ClientId;

type Callback = extern "C" fn(*mut raw::RedisModuleCtx, raw::RedisModuleEvent, u64, *mut c_void);

/// The subscriptions: only events whose numbers mean the same on Redis and Valkey.
const EVENTS: [(u64, &str, Callback); 9] = [
    (raw::REDISMODULE_EVENT_CLIENT_CHANGE, "ClientChange", on_client),
    (raw::REDISMODULE_EVENT_FLUSHDB, "FlushDB", on_flush),
    (raw::REDISMODULE_EVENT_SWAPDB, "SwapDB", on_swap),
    (raw::REDISMODULE_EVENT_LOADING, "Loading", on_loading),
    (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, "ReplicationRoleChanged", on_role),
    (raw::REDISMODULE_EVENT_FORK_CHILD, "ForkChild", on_fork),
    CONFIG,
    (raw::REDISMODULE_EVENT_MODULE_CHANGE, "ModuleChange", on_module),
    (raw::REDISMODULE_EVENT_CRON_LOOP, "CronLoop", on_cron),
];

/// Whole slots come or leave. The number of the event and of its parts in Valkey 9.0 and later, from
/// `valkeymodule.h`.
const SLOTS: (u64, &str, Callback) = (19, "slots that leave", on_slots);
const SLOTS_BEGIN_TO_LEAVE: u64 = 1;
const SLOTS_STAY: u64 = 3;
const SLOTS_HAVE_LEFT: u64 = 5;

/// A command that sets settings has succeeded.
const CONFIG: (u64, &str, Callback) = (raw::REDISMODULE_EVENT_CONFIG, "Config", on_config);

/// Replicas connect and disconnect.
const REPLICAS: (u64, &str, Callback) = (raw::REDISMODULE_EVENT_REPLICA_CHANGE, "ReplicaChange", on_replica);

/// The event that makes every turn of the event loop cost a little more.
const TURNS: (u64, &str, Callback) = (raw::REDISMODULE_EVENT_EVENTLOOP, "EventLoop", on_turn);

/// Checks that the server can deliver the required events, and leaves most of them unsubscribed.
pub(super) fn require(ctx: &Ctx) -> Result<(), String> {
    for (id, name, callback) in EVENTS.into_iter().chain([TURNS]) {
        if !subscribe(ctx, id, Some(callback)) {
            return Err(format!("the server does not tell about {name}"));
        }
    }
    for (id, ..) in EVENTS.into_iter().chain([TURNS]) {
        subscribe(ctx, id, None);
    }
    Ok(())
}

/// Ends all subscriptions. Redis 7.0 would keep calling a module whose load has failed.
pub(super) fn end(ctx: &Ctx) {
    let slots = server_quirks::kind().announces_slots().then_some(SLOTS);
    for (id, _, callback) in EVENTS.into_iter().chain([TURNS, REPLICAS]).chain(slots) {
        // Without a subscription, this would add one without a callback.
        if subscribe(ctx, id, Some(callback)) {
            subscribe(ctx, id, None);
        }
    }
}

/// Subscribes; without a callback, unsubscribes.
fn subscribe(ctx: &Ctx, id: u64, callback: Option<Callback>) -> bool {
    let event = raw::RedisModuleEvent { id, dataver: 1 };
    let callback = callback.map(|callback| callback as _);
    // SAFETY: a live context of our module; the callback has the type asked for.
    let done = unsafe { api!(RedisModule_SubscribeToServerEvent, ctx.as_ptr(), event, callback) };
    done == Some(raw::REDISMODULE_OK as c_int)
}

/// Subscribes to the events that are required while locks are used. Returns false if the server lacks some, which the
/// log names.
pub(super) fn begin(ctx: &Ctx) -> bool {
    let mut is_all_told = true;
    let mut begin_one = |id, callback, name: &str| {
        if !subscribe(ctx, id, Some(callback)) {
            Server::log(ctx, Level::Warning, &format!("the server does not tell about {name}"));
            is_all_told = false;
        }
    };
    for (id, name, callback) in EVENTS {
        begin_one(id, callback, &format!("{name} any more"));
    }
    if server_quirks::kind().announces_slots() {
        let (id, name, callback) = SLOTS;
        begin_one(id, callback, name);
    }
    is_all_told
}

/// Subscribes to turns of the event loop. Returns false if the server does not report them.
pub(super) fn begin_with_turns(ctx: &Ctx) -> bool {
    let (id, _, callback) = TURNS;
    subscribe(ctx, id, Some(callback))
}

/// Unsubscribes from them.
pub(super) fn end_with_turns(ctx: &Ctx) {
    subscribe(ctx, TURNS.0, None);
}

/// Also subscribes to replicas. Returns false if the server does not report both.
pub(super) fn begin_with_replicas(ctx: &Ctx) -> bool {
    let (id, _, callback) = REPLICAS;
    begin_with_turns(ctx) && subscribe(ctx, id, Some(callback))
}

/// A command has set settings of ours that are not applied yet.
static SETTINGS_ARE_NEW: AtomicBool = AtomicBool::new(false);

/// Notes changed settings. The command that sets them may still fail over a setting of another module, and restore
/// them. So they are applied when the server reports a changed configuration. Another module may set them by a
/// function that fires no event; then the pump's next run applies them.
pub(super) fn settings_are_new(ctx: &Ctx) {
    SETTINGS_ARE_NEW.store(true, Ordering::Relaxed);
    let (id, _, callback) = CONFIG;
    subscribe(ctx, id, Some(callback));
    schedule::request(ctx);
}

/// Applies changed settings, as they are final now.
pub(super) fn settings_are_final(ctx: &Ctx) {
    if SETTINGS_ARE_NEW.swap(false, Ordering::Relaxed) {
        listen_to_keys(ctx);
        server_events::settings_changed(ctx, true);
    }
}

/// Defines a callback for an event. It gets the part of the event and its data.
macro_rules! callback {
    ($name:ident, $handler:expr) => {
        extern "C" fn $name(
            ctx: *mut raw::RedisModuleCtx,
            _event: raw::RedisModuleEvent,
            sub: u64,
            data: *mut c_void,
        ) {
            let handler: fn(&Ctx, u64, *mut c_void) = $handler;
            // SAFETY: the context of the running callback.
            panic_guard::callback((), || handler(&unsafe { Ctx::from_raw(ctx) }, sub, data));
        }
    };
}

callback!(on_client, |ctx, sub, data| {
    if sub == raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED {
        // SAFETY: the data of this event, version 1, for the length of the callback.
        let info = unsafe { data.cast::<raw::RedisModuleClientInfo>().as_ref() };
        if let Some(info) = info {
            server_events::client_closed(ctx, ClientId(info.id));
        }
    }
});

callback!(on_flush, |ctx, sub, data| {
    if sub == raw::REDISMODULE_SUBEVENT_FLUSHDB_START {
        // SAFETY: the data of this event, version 1, for the length of the callback.
        let info = unsafe { data.cast::<raw::RedisModuleFlushInfo>().as_ref() };
        // -1: all databases.
        server_events::flushed(ctx, info.and_then(|info| u32::try_from(info.dbnum).ok()));
    }
});

callback!(on_swap, |ctx, _, data| {
    // SAFETY: the data of this event, version 1, for the length of the callback.
    let info = unsafe { data.cast::<raw::RedisModuleSwapDbInfo>().as_ref() };
    let numbers = info.map(|info| (u32::try_from(info.dbnum_first), u32::try_from(info.dbnum_second)));
    if let Some((Ok(a), Ok(b))) = numbers {
        server_events::swapped(ctx, a, b);
    }
});

callback!(on_loading, |ctx, sub, _| match sub {
    raw::REDISMODULE_SUBEVENT_LOADING_ENDED | raw::REDISMODULE_SUBEVENT_LOADING_FAILED =>
        server_events::loaded(ctx),
    _ => server_events::loading(ctx),
});

callback!(on_role, |ctx, sub, _| match sub {
    raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_REPLICA => server_events::demoted(ctx),
    _ => server_events::promoted(ctx),
});

callback!(on_fork, |ctx, sub, _| {
    if sub == raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN {
        server_events::forked(ctx);
    }
});

callback!(on_slots, |ctx, sub, _| match sub {
    SLOTS_BEGIN_TO_LEAVE => server_events::slots_leave(ctx),
    SLOTS_STAY | SLOTS_HAVE_LEFT => server_events::slots_have_left_or_stay(ctx),
    _ => {}
});

callback!(on_config, |ctx, _, _| {
    settings_are_final(ctx);
    lazy_subscribe::look_around(ctx);
});

callback!(on_module, |ctx, _, _| {
    // A command of this name may now be another one.
    exec::forget_commands();
    lazy_subscribe::look_for_listeners(ctx);
});

callback!(on_cron, |ctx, _, _| server_events::cron(ctx));

callback!(on_replica, |ctx, _, _| confirm::replica_changed(ctx));

callback!(on_turn, |ctx, sub, _| match sub {
    raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP => confirm::turn(ctx),
    raw::REDISMODULE_SUBEVENT_EVENTLOOP_AFTER_SLEEP => replies::turn_begins(ctx),
    _ => {}
});

/// True while the module listens to keyspace events, because strings may be locks: see `src/engine/legacy.rs`.
static LISTENS_TO_KEYS: AtomicBool = AtomicBool::new(false);

/// Subscribes to writes and removals of strings, if the setting is on.
pub(super) fn listen_to_keys(ctx: &Ctx) {
    if !main_thread::SHARED.settings.has_legacy_strings() || LISTENS_TO_KEYS.swap(true, Ordering::Relaxed) {
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
    panic_guard::callback((), || {
        // SAFETY: the context and the name of the running callback.
        let (ctx, name) = unsafe { (Ctx::from_raw(ctx), Str::from_raw(name)) };
        if let Some(name) = name {
            legacy::key_changed(&ctx, name);
        }
    });
    raw::REDISMODULE_OK as c_int
}
