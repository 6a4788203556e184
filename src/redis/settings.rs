//! What the user can set (SPEC 7): `loadmodule ... name value`, `CONFIG SET redislock.name value`.
//!
//! A value given to `loadmodule` becomes the setting's default, so that a line `redislock.name value` in
//! the file still wins and CONFIG REWRITE has nothing to write while the two agree.

use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use redis_module::raw;

use super::api::{Ctx, Str, api};
use super::{clock, events, server, state};
use crate::command::args::{Bounds, integer};
use crate::lock::table::Limits;

/// A setting that is a number.
struct Number {
    name: &'static CStr,
    min: i64,
    max: i64,
    value: AtomicI64,
}

const fn number(name: &'static CStr, default: i64, min: i64, max: i64) -> Number {
    Number { name, min, max, value: AtomicI64::new(default) }
}

const DAY_MS: i64 = 86_400_000;

static MAX_LEASE: Number = number(c"max-lease", 3_600_000, 100, DAY_MS);
static MAX_WAIT: Number = number(c"max-wait", 0, 0, DAY_MS);
static MAX_WAITERS_PER_LOCK: Number = number(c"max-waiters-per-lock", 10_000, 0, 1_000_000);
static MAX_WAITERS: Number = number(c"max-waiters", 20_000, 0, 10_000_000);
static MAX_HOLDERS: Number = number(c"max-holders", 10_000, 1, 1_000_000);
static MAX_TOKEN_LEAD: Number = number(c"max-token-lead", 60_000, 0, DAY_MS);

static QUARANTINE: Number = number(c"quarantine", 0, 0, DAY_MS);

static NUMBERS: [&Number; 7] =
    [&MAX_LEASE, &MAX_WAIT, &MAX_WAITERS_PER_LOCK, &MAX_WAITERS, &MAX_HOLDERS, &MAX_TOKEN_LEAD, &QUARANTINE];

/// A setting that is yes or no.
struct Switch {
    name: &'static CStr,
    value: AtomicBool,
}

static ALLOW_EVICTION: Switch = Switch { name: c"allow-eviction", value: AtomicBool::new(false) };
static LEGACY_STRINGS: Switch = Switch { name: c"legacy-strings", value: AtomicBool::new(false) };

static SWITCHES: [&Switch; 2] = [&ALLOW_EVICTION, &LEGACY_STRINGS];

impl Switch {
    fn is_on(&self) -> bool {
        self.value.load(Ordering::Relaxed)
    }
}

impl Number {
    fn get(&self) -> u64 {
        u64::try_from(self.value.load(Ordering::Relaxed)).unwrap_or(0)
    }
}

/// What parsing needs.
pub(crate) fn bounds() -> Bounds {
    // What may be forgotten must be over when the quarantine is.
    let quarantine_ms = Some(QUARANTINE.get()).filter(|&ms| ms > 0);
    let lease_ms_max = quarantine_ms.map_or(MAX_LEASE.get(), |ms| ms.min(MAX_LEASE.get()));
    Bounds { lease_ms_max, wait_ms_max: Some(MAX_WAIT.get()).filter(|&max| max > 0) }
}

/// How long no new lock is granted after a start and after a promotion.
pub(crate) fn quarantine_ms() -> u64 {
    QUARANTINE.get()
}

/// How far ahead of the wall clock a token from outside may be, in microseconds.
pub(crate) fn token_lead_us_max() -> u64 {
    MAX_TOKEN_LEAD.get() * 1000
}

/// Whether locks are granted on a server that may evict them.
pub(crate) fn allows_eviction() -> bool {
    ALLOW_EVICTION.is_on()
}

/// Whether a string with a time to live counts as a lock.
#[inline]
pub(crate) fn has_legacy_strings() -> bool {
    LEGACY_STRINGS.is_on()
}

/// The limits in words, for the log.
pub(crate) fn in_words() -> String {
    NUMBERS.iter().fold(String::new(), |text, number| {
        let name = number.name.to_string_lossy();
        format!("{text}{}{name} {}", if text.is_empty() { "" } else { ", " }, number.get())
    })
}

fn push_limits() {
    let limits = Limits {
        waiters_per_lock_max: MAX_WAITERS_PER_LOCK.get() as usize,
        waiters_max: MAX_WAITERS.get() as usize,
        holders_max: MAX_HOLDERS.get() as usize,
    };
    let now = clock::boot();
    let has_tasks = state::with(|state| {
        state.table.set_limits(limits);
        state.table.set_quarantine(now, quarantine_ms());
        state.table.tasks() > 0 || state.pump.is_quarantined
    });
    if quarantine_ms() > 0 {
        // A promotion must be heard of, even if no lock was ever used here.
        events::begin_use_now();
    }
    if has_tasks == Some(true) {
        super::pump::request();
    }
}

/// Registers the settings. `args` are those of `loadmodule`.
pub(crate) fn register(ctx: &Ctx, args: &[Str<'_>]) -> Result<(), String> {
    take_load_arguments(args)?;
    for number in NUMBERS {
        register_number(ctx, number)?;
    }
    for switch in SWITCHES {
        register_switch(ctx, switch)?;
    }
    // SAFETY: a live context, within OnLoad.
    if unsafe { api!(RedisModule_LoadConfigs, ctx.as_ptr()) } != Some(raw::REDISMODULE_OK as c_int) {
        return Err("a redislock.* setting of the configuration file is not valid".to_owned());
    }
    push_limits();
    Ok(())
}

fn take_load_arguments(args: &[Str<'_>]) -> Result<(), String> {
    let mut given: Vec<String> = Vec::new();
    for pair in args.chunks(2) {
        let name = crate::command::error::shown(pair[0].bytes()).to_ascii_lowercase();
        if given.contains(&name) {
            return Err(format!("loadmodule argument {name} is given twice"));
        }
        given.push(name.clone());
        let value = pair.get(1).ok_or_else(|| format!("loadmodule argument {name} needs a value"))?;
        let text = value.bytes();
        if let Some(switch) = SWITCHES.iter().find(|switch| switch.name.to_bytes() == name.as_bytes()) {
            let truth = match text.to_ascii_lowercase().as_slice() {
                b"yes" => true,
                b"no" => false,
                _ => return Err(format!("loadmodule argument {name} must be yes or no")),
            };
            switch.value.store(truth, Ordering::Relaxed);
            continue;
        }
        let number = NUMBERS
            .iter()
            .find(|number| number.name.to_bytes() == name.as_bytes())
            .ok_or_else(|| format!("loadmodule argument {name} is not a setting of redislock"))?;
        let parsed = integer(text)
            .and_then(|value| i64::try_from(value).ok())
            .filter(|value| (number.min..=number.max).contains(value))
            .ok_or_else(|| {
                let (min, max) = (number.min, number.max);
                format!("loadmodule argument {name} must be an integer from {min} to {max}")
            })?;
        number.value.store(parsed, Ordering::Relaxed);
    }
    Ok(())
}

fn register_number(ctx: &Ctx, number: &'static Number) -> Result<(), String> {
    let default = number.value.load(Ordering::Relaxed);
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
            None,
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
            None,
            std::ptr::from_ref(switch).cast_mut().cast()
        )
    };
    registered(done, switch.name)
}

fn registered(done: Option<c_int>, name: &CStr) -> Result<(), String> {
    if done == Some(raw::REDISMODULE_OK as c_int) {
        return Ok(());
    }
    Err(format!("the setting {} could not be registered", name.to_string_lossy()))
}

extern "C" fn get_number(_name: *const c_char, number: *mut c_void) -> c_longlong {
    // SAFETY: the privdata of register_number: a static Number.
    unsafe { &*number.cast::<Number>() }.value.load(Ordering::Relaxed)
}

extern "C" fn set_number(
    _name: *const c_char,
    value: c_longlong,
    number: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the privdata of register_number: a static Number. The server has checked the range.
    unsafe { &*number.cast::<Number>() }.value.store(value, Ordering::Relaxed);
    push_limits();
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
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the privdata of register_switch: a static Switch.
    unsafe { &*switch.cast::<Switch>() }.value.store(value != 0, Ordering::Relaxed);
    if has_legacy_strings() {
        super::legacy::listen();
    }
    raw::REDISMODULE_OK as c_int
}

/// Whether the server may evict keys that have no time to live: kept by [`read_eviction`].
static MAY_EVICT: AtomicBool = AtomicBool::new(false);

/// Whether the server may evict locks.
pub(crate) fn may_evict() -> bool {
    MAY_EVICT.load(Ordering::Relaxed)
}

/// Whether anybody could hear a keyspace event: kept by [`read_listeners`].
static EVENTS_ARE_HEARD: AtomicBool = AtomicBool::new(true);

/// Whether anybody could hear a keyspace event: a client, or another module, which needs no setting.
pub(crate) fn events_are_heard() -> bool {
    EVENTS_ARE_HEARD.load(Ordering::Relaxed)
}

/// Asks who hears keyspace events: at load, when the configuration changes, when a module comes or goes.
pub(crate) fn read_listeners(ctx: &Ctx) {
    let is_silent = config(ctx, c"notify-keyspace-events").is_some_and(|events| events.is_empty());
    EVENTS_ARE_HEARD.store(!is_silent || !is_only_module(ctx), Ordering::Relaxed);
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

/// Asks the server for its eviction policy: at load, and whenever its configuration changes.
pub(crate) fn read_eviction(ctx: &Ctx) {
    let policy = server::info(ctx, c"memory", c"maxmemory_policy");
    let memory = server::info(ctx, c"memory", c"maxmemory");
    // What is not told may be so.
    let may =
        policy.is_none_or(|policy| policy.starts_with("allkeys-")) && memory.is_none_or(|max| max != "0");
    MAY_EVICT.store(may, Ordering::Relaxed);
    REFUSAL_IS_LOGGED.store(false, Ordering::Relaxed);
}

static REFUSAL_IS_LOGGED: AtomicBool = AtomicBool::new(false);

/// Whether the log is to say that grants are refused for the sake of eviction: once per configuration.
pub(crate) fn refusal_is_news() -> bool {
    !REFUSAL_IS_LOGGED.swap(true, Ordering::Relaxed)
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

/// The text at this place of a list.
///
/// # Safety
/// The reply is null or lives.
unsafe fn text_at(reply: *mut raw::RedisModuleCallReply, number: usize) -> Option<String> {
    let mut len = 0;
    // SAFETY: 1. the caller's contract; 2. what is no list or too short has no such element; 3. the text lives as
    // long as the reply, and is copied.
    unsafe {
        let list = Some(reply).filter(|reply| !reply.is_null())?;
        let element = api!(RedisModule_CallReplyArrayElement, list, number).filter(|it| !it.is_null())?;
        let text = api!(RedisModule_CallReplyStringPtr, element, &raw mut len).filter(|it| !it.is_null())?;
        let bytes = std::slice::from_raw_parts(text.cast::<u8>(), len);
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}
