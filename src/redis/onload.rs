//! The start of the module.

use std::ffi::{c_char, c_int};

use redis_module::raw;

use super::api::{Ctx, Signals, Str};
use super::{
    api_table, clock, docs, events, ffi, info, main_thread, module_type, needs, panic_guard, pump_timer,
    replicate, server, server_quirks, settings, wakeup,
};
use crate::engine;

const NAME: &std::ffi::CStr = c"redislock";

/// The version in `MODULE LIST`: 10,203 for version 1.2.3.
const VERSION_NUMBER: c_int = part(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
    + part(env!("CARGO_PKG_VERSION_MINOR")) * 100
    + part(env!("CARGO_PKG_VERSION_PATCH"));

/// Parses a part of a version: only digits, as Cargo ensures.
const fn part(digits: &str) -> c_int {
    let (digits, mut at, mut number) = (digits.as_bytes(), 0, 0);
    while at < digits.len() {
        number = number * 10 + (digits[at] - b'0') as c_int;
        at += 1;
    }
    number
}

/// Loads the module. Called by the server.
///
/// # Safety
/// Called by the server, with a context and the arguments of `loadmodule`.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let failed = raw::REDISMODULE_ERR as c_int;
    let api_version = raw::REDISMODULE_APIVER_1 as c_int;
    // SAFETY: the server's context; the name is a C string. Nothing may be allocated before this.
    let ready = unsafe {
        raw::Export_RedisModule_Init(ctx, NAME.as_ptr().cast::<c_char>(), VERSION_NUMBER, api_version)
    };
    if ready == failed {
        return failed;
    }
    // SAFETY: the arguments that the server passed.
    let (ctx, args) = unsafe { (Ctx::from_raw(ctx), Str::args(argv, argc)) };
    let started = panic_guard::callback(Err("internal error".to_owned()), || start(&ctx, args));
    panic_guard::callback(failed, || match started {
        Ok(()) => raw::REDISMODULE_OK as c_int,
        Err(reason) => {
            stop(&ctx);
            ctx.log(ffi::SERVER_LOG_WARNING, &format!("not loaded: {reason}"));
            failed
        }
    })
}

/// Unloads the module. Servers keep a module that defines a data type; only Redis 8 unloads it, when MODULE LOADEX
/// names a setting that the module does not have.
///
/// # Safety
/// Called by the server, with a context.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn RedisModule_OnUnload(ctx: *mut raw::RedisModuleCtx) -> c_int {
    // SAFETY: the arguments that the server passed.
    panic_guard::callback((), || stop(&unsafe { Ctx::from_raw(ctx) }));
    raw::REDISMODULE_OK as c_int
}

/// Removes all callbacks that could call this module after its code is unloaded. The server removes the rest:
/// commands, settings, the data type.
fn stop(ctx: &Ctx) {
    events::end(ctx);
    wakeup::end();
    pump_timer::end(ctx);
    main_thread::end();
}

fn start(ctx: &Ctx, args: &[Str<'_>]) -> Result<(), String> {
    require_api()?;
    api_table::begin();
    server::begin(ctx);
    if server_quirks::kind().is_excluded() {
        return Err(
            "Redis 7.2, Redis 7.4 and Valkey 7.2 are excluded, because the module is not tested on them; \
             use Redis 7.0, Redis 8.0 or later, or Valkey 8.0 or later"
                .to_owned(),
        );
    }
    clock::begin();
    main_thread::begin();
    ctx.set_options(Signals::WhenClosed);
    needs::begin(ctx);
    docs::register_commands(ctx)?;
    settings::register(ctx, args)?;
    module_type::register(ctx)?;
    replicate::begin()?;
    info::register(ctx)?;
    wakeup::begin()?;
    events::require(ctx)?;
    // Nothing fails from here on. No timer of the server's may be set before the load has ended: Redis 8 would exit
    // if it had to unload the module.
    pump_timer::begin(ctx);
    events::listen_to_keys(ctx);
    engine::server_events::started(ctx);
    let (version, commit, limits) = (info::VERSION, info::COMMIT, main_thread::SHARED.settings.in_words());
    ctx.log(ffi::SERVER_LOG_NOTICE, &format!("version {version} ({commit}) is loaded; {limits}"));
    engine::lazy_subscribe::warn_of_eviction(ctx);
    Ok(())
}

/// Checks for everything that is newer than the module API's first version and that the module requires.
fn require_api() -> Result<(), String> {
    macro_rules! missing {
        ($($name:ident)*) => {
            // SAFETY: static pointers that the server has just filled in.
            unsafe { [$((stringify!($name), { let function = raw::$name; function.is_none() })),*] }
        };
    }
    let missing = missing!(
        RedisModule_EventLoopAdd RedisModule_AvoidReplicaTraffic RedisModule_SetCommandInfo
        RedisModule_RegisterNumericConfig RedisModule_RegisterBoolConfig RedisModule_RegisterEnumConfig
        RedisModule_LoadConfigs
        RedisModule_GetDbIdFromIO RedisModule_GetClientUserNameById
        RedisModule_GetModuleUserFromUserName RedisModule_ACLCheckCommandPermissions
        RedisModule_SetDisconnectCallback RedisModule_ReplyWithMap RedisModule_ReplyWithBool
        RedisModule_GetDetachedThreadSafeContext
    );
    match missing.iter().find(|(_, is_missing)| *is_missing) {
        Some((name, _)) => Err(format!("the server lacks {name}; Redis 7.0 or Valkey is needed")),
        None => Ok(()),
    }
}
