//! Registers the settings with the server: `loadmodule ... name value`, `CONFIG SET redislock.name value`.
//!
//! A value given to `loadmodule` becomes the setting's default. So a line `redislock.name value` in the file still
//! wins, and CONFIG REWRITE writes nothing while the two agree.

use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};

use redis_module::raw;

use super::api::{Ctx, Str, api, lock_type};
use super::{events, main_thread, needs, panic_guard, pump_timer};
use crate::engine;
use crate::engine::drain;
use crate::engine::settings::{CONFIRM_WORDS, Number, Settings, Switch};

static SETTINGS: &Settings = &main_thread::SHARED.settings;

/// Registers the settings. `args` are those of `loadmodule`.
pub(crate) fn register(ctx: &Ctx, args: &[Str<'_>]) -> Result<(), String> {
    SETTINGS.take_load_arguments(args)?;
    for number in SETTINGS.numbers() {
        register_number(ctx, number)?;
    }
    for switch in SETTINGS.switches() {
        register_switch(ctx, switch)?;
    }
    register_confirm(ctx)?;
    // SAFETY: a live context, within OnLoad.
    if unsafe { api!(RedisModule_LoadConfigs, ctx.as_ptr()) } != Some(raw::REDISMODULE_OK as c_int) {
        return Err("a redislock.* setting of the configuration file is not valid".to_owned());
    }
    check()?;
    engine::server_events::settings_changed(ctx, false);
    Ok(())
}

fn register_number(ctx: &Ctx, number: &'static Number) -> Result<(), String> {
    let default = number.raw();
    // SAFETY: 1. within OnLoad; 2. name and privdata are static; 3. the callbacks have the types asked
    // for and cast privdata back to the same Number.
    let done = unsafe {
        api!(
            RedisModule_RegisterNumericConfig,
            ctx.as_ptr(),
            number.name.as_ptr(),
            default,
            raw::REDISMODULE_CONFIG_DEFAULT,
            number.min,
            number.max,
            Some(get_number),
            Some(set_number),
            Some(apply),
            std::ptr::from_ref(number).cast_mut().cast()
        )
    };
    registered(done, number.name)
}

fn register_switch(ctx: &Ctx, switch: &'static Switch) -> Result<(), String> {
    let default = c_int::from(switch.is_on());
    // SAFETY: as for a number; privdata is a static Switch.
    let done = unsafe {
        api!(
            RedisModule_RegisterBoolConfig,
            ctx.as_ptr(),
            switch.name.as_ptr(),
            default,
            raw::REDISMODULE_CONFIG_DEFAULT,
            Some(get_switch),
            Some(set_switch),
            Some(apply),
            std::ptr::from_ref(switch).cast_mut().cast()
        )
    };
    registered(done, switch.name)
}

fn register_confirm(ctx: &Ctx) -> Result<(), String> {
    let words = CONFIRM_WORDS.map(CStr::as_ptr);
    let numbers: [c_int; 3] = [0, 1, 2];
    // SAFETY: 1. within OnLoad; 2. the server copies words and numbers, as many as the call passes; 3. the callbacks
    // have the types asked for and use no privdata.
    let done = unsafe {
        api!(
            RedisModule_RegisterEnumConfig,
            ctx.as_ptr(),
            c"confirm".as_ptr(),
            c_int::from(SETTINGS.confirm()),
            raw::REDISMODULE_CONFIG_DEFAULT,
            words.as_ptr().cast_mut(),
            numbers.as_ptr(),
            numbers.len() as c_int,
            Some(get_confirm),
            Some(set_confirm),
            Some(apply),
            std::ptr::null_mut()
        )
    };
    registered(done, c"confirm")
}

extern "C" fn get_confirm(_name: *const c_char, _data: *mut c_void) -> c_int {
    c_int::from(SETTINGS.confirm())
}

extern "C" fn set_confirm(
    _name: *const c_char,
    value: c_int,
    _data: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // The server has checked the word.
    SETTINGS.set_confirm(u8::try_from(value).unwrap_or(0));
    raw::REDISMODULE_OK as c_int
}

/// Checks that the settings are consistent, and possible on this server.
fn check() -> Result<(), &'static str> {
    SETTINGS.check().and_then(|()| needs::check(SETTINGS))
}

/// Checks the settings once one CONFIG SET has set all of its values. If they are inconsistent, the server restores
/// them.
extern "C" fn apply(
    _ctx: *mut raw::RedisModuleCtx,
    _data: *mut c_void,
    error: *mut *mut raw::RedisModuleString,
) -> c_int {
    let failed = raw::REDISMODULE_ERR as c_int;
    panic_guard::callback(failed, || match check() {
        Ok(()) => {
            // Not while the module is being loaded, which ends by applying all settings.
            if let Some(ctx) = pump_timer::detached() {
                events::settings_are_new(&ctx);
            }
            raw::REDISMODULE_OK as c_int
        }
        Err(reason) => {
            reply_why(error, reason);
            failed
        }
    })
}

/// Passes the server the reason why a setting is refused.
fn reply_why(error: *mut *mut raw::RedisModuleString, reason: &str) {
    // SAFETY: 1. a string of this length, made without a context; 2. the server frees the string that it receives
    // here, in the place that it gave to the running callback.
    unsafe {
        let text = api!(RedisModule_CreateString, std::ptr::null_mut(), reason.as_ptr().cast(), reason.len());
        if let Some(text) = text.filter(|_| !error.is_null()) {
            *error = text;
        }
    }
}

fn registered(done: Option<c_int>, name: &CStr) -> Result<(), String> {
    if done == Some(raw::REDISMODULE_OK as c_int) {
        return Ok(());
    }
    Err(format!("the setting {} could not be registered", name.to_string_lossy()))
}

extern "C" fn get_number(_name: *const c_char, number: *mut c_void) -> c_longlong {
    // SAFETY: the privdata of register_number: a static Number.
    unsafe { &*number.cast::<Number>() }.raw()
}

extern "C" fn set_number(
    _name: *const c_char,
    value: c_longlong,
    number: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the privdata of register_number: a static Number. The server has checked the range.
    unsafe { &*number.cast::<Number>() }.set(value);
    raw::REDISMODULE_OK as c_int
}

extern "C" fn get_switch(_name: *const c_char, switch: *mut c_void) -> c_int {
    // SAFETY: the privdata of register_switch: a static Switch.
    c_int::from(unsafe { &*switch.cast::<Switch>() }.is_on())
}

extern "C" fn set_switch(
    _name: *const c_char,
    value: c_int,
    switch: *mut c_void,
    error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the privdata of register_switch: a static Switch.
    let switch = unsafe { &*switch.cast::<Switch>() };
    let has_type = !lock_type().is_null();
    if let Some(reason) = drain::refusal_of_setting(&main_thread::SHARED, switch, value != 0, has_type) {
        reply_why(error, reason);
        return raw::REDISMODULE_ERR as c_int;
    }
    switch.set(value != 0);
    raw::REDISMODULE_OK as c_int
}
